//! `tollgate alerts export`.

use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use serde_json::Value;

use super::args::{Export, Format};
use super::client::{Client, json_text, plain, query};

/// Alerts of one question.
const PAGE: &str = "1000";

const HEAD: &str = "id,time,priority,rule,host,program,group,output\r\n";

pub(super) fn execute(args: &Export) -> Outcome {
    let client = Client::open(&args.asked)?;
    if args.format == Format::Csv {
        terminal::print(HEAD)?;
    }
    let mut after = String::new();
    loop {
        let further = [("limit", PAGE.to_owned()), ("after", after)];
        let answer = client.get(&format!("/api/v1/alerts?{}", query(&args.filter, &further)))?;
        let rows = answer["alerts"].as_array().map_or(&[][..], Vec::as_slice);
        let lines: String = rows.iter().map(|row| line(row, args.format)).collect();
        terminal::print(&lines)?;
        match (
            rows.is_empty() || terminal::has_no_reader(),
            answer["next"].as_str(),
        ) {
            (false, Some(next)) => after = next.to_owned(),
            _ => return Ok(Exit::Ok),
        }
    }
}

fn line(row: &Value, format: Format) -> String {
    if format == Format::Jsonl {
        return json_text(&row["alert"]) + "\n";
    }
    let text = |value: &Value| match value {
        Value::String(text) => cell(text),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        nested => cell(&nested.to_string()),
    };
    let names = ["id", "time", "priority", "rule", "host", "program", "group"];
    let mut cells: Vec<String> = names.iter().map(|name| text(&row[*name])).collect();
    cells.push(text(&row["alert"]["output"]));
    cells.join(",") + "\r\n"
}

/// Returns text as a cell. A spreadsheet would run what begins like a formula; a quote before it prevents that.
fn cell(text: &str) -> String {
    let text = plain(text);
    let is_formula = text
        .trim_start()
        .starts_with(['=', '+', '-', '@', '|', '%', '\\']);
    let guard = if is_formula { "'" } else { "" };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_cell_is_no_formula_and_ends_where_it_ends() {
        for (text, expected) in [
            ("plain", "\"plain\""),
            ("=cmd|' /C calc'!A0", "\"'=cmd|' /C calc'!A0\""),
            (" @SUM(1)", "\"' @SUM(1)\""),
            ("-1+1", "\"'-1+1\""),
            ("\t=1", "\"'\\t=1\""),
            ("a\",\"b", "\"a\"\",\"\"b\""),
            ("a\r\nb", "\"a\\r\\nb\""),
        ] {
            assert_eq!(cell(text), expected);
        }
    }

    #[test]
    fn a_nested_value_is_one_cell_and_controls_no_terminal() {
        let row = json!({"id": 7, "alert": {"output": {"a": "\u{9b}2J\u{202e}", "b": "="}}});
        let text = line(&row, Format::Csv);
        let bad = |c: char| c.is_control() && !"\r\n".contains(c) || c == '\u{202e}';
        assert!(!text.contains(bad), "{text:?}");
        assert!(
            text.ends_with(",\"{\"\"a\"\":\"\"\\u009b2J\\u202e\"\",\"\"b\"\":\"\"=\"\"}\"\r\n"),
            "{text:?}"
        );
    }

    #[test]
    fn a_line_of_json_is_the_alert_and_controls_no_terminal() {
        let row = json!({"alert": {"output": "\u{1b}[2J\u{9b}\u{202e}é"}});
        let text = line(&row, Format::Jsonl);
        let bad = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!text.contains(bad), "{text:?}");
        let back: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(back, row["alert"]);
    }
}
