//! `tollgate alerts` and `tollgate fleet`: what a collector knows, in a terminal.

pub(crate) mod args;
mod captures;
mod client;
mod export;

use std::fmt::Write as _;

use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use serde_json::{Value, json};

use self::args::{Acknowledge, Alerts, Fleet, List, Show, Status};
use self::client::{Client, json_text, plain, query};

/// Runs `tollgate alerts`.
pub(crate) fn execute(verb: &Alerts) -> Outcome {
    match verb {
        Alerts::List(args) => list(args),
        Alerts::Show(args) => show(args),
        Alerts::Ack(args) => acknowledge(args),
        Alerts::Export(args) => export::execute(args),
    }
}

/// Runs `tollgate fleet`.
pub(crate) fn execute_fleet(verb: &Fleet) -> Outcome {
    match verb {
        Fleet::Status(args) => status(args),
        Fleet::Capture(args) => captures::request(args),
        Fleet::Captures(args) => captures::list(args),
        Fleet::Download(args) => captures::download(args),
    }
}

/// Returns a member as text for a terminal.
fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::String(text) => plain(text),
        Value::Null => String::new(),
        other => plain(&other.to_string()),
    }
}

/// Returns a time to the second.
fn time(value: &Value, name: &str) -> String {
    let time: String = text(value, name).chars().take(19).collect();
    time.replace('T', " ")
}

fn rows<'v>(answer: &'v Value, name: &str) -> &'v [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

fn list(args: &List) -> Outcome {
    let client = Client::open(&args.asked)?;
    let name = if args.each { "alerts" } else { "groups" };
    let query = query(&args.filter, &[("limit", args.limit.to_string())]);
    let answer = client.get(&format!("/api/v1/{name}?{query}"))?;
    if args.json {
        return terminal::print(&(json_text(&answer) + "\n"));
    }
    let rows = rows(&answer, name);
    if rows.is_empty() {
        terminal::complain("tollgate: no alert matches\n");
        return Ok(Exit::Ok);
    }
    let mut out = match args.each {
        true => format!(
            "{:<8} {:<20} {:<13} {:<20} ALERT\n",
            "NUMBER", "TIME (UTC)", "PRIORITY", "HOST"
        ),
        false => format!(
            "{:<8} {:<20} {:<13} {:>8} {:>5}  RULE, PROGRAM, OBJECT\n",
            "GROUP", "LAST (UTC)", "PRIORITY", "ALERTS", "HOSTS"
        ),
    };
    for row in rows {
        let of = |name: &str| text(row, name);
        let _ = match args.each {
            true => writeln!(
                out,
                "{:<8} {:<20} {:<13} {:<20} {}",
                of("id"),
                time(row, "time"),
                of("priority"),
                of("host"),
                text(&row["alert"], "output")
            ),
            false => writeln!(
                out,
                "{:<8} {:<20} {:<13} {:>8} {:>5}  {}, {}, {}",
                of("id"),
                time(row, "last"),
                of("priority"),
                of("count"),
                of("hosts"),
                of("rule"),
                of("program"),
                of("object")
            ),
        };
    }
    terminal::print(&out)
}

fn show(args: &Show) -> Outcome {
    let client = Client::open(&args.asked)?;
    let alert = client.get(&format!("/api/v1/alerts/{}", args.number))?;
    if args.json {
        return terminal::print(&(json_text(&alert) + "\n"));
    }
    let mut out = format!("{}: {}\n", text(&alert, "priority"), text(&alert, "rule"));
    let _ = writeln!(out, "{}\n", text(&alert["alert"], "output"));
    for (title, name) in [
        ("time", "time"),
        ("received", "received"),
        ("host", "host"),
        ("program", "program"),
        ("object", "object"),
        ("group", "group"),
        ("agent", "agent"),
        ("class", "class"),
        ("acknowledged by", "acknowledged_by"),
    ] {
        if !alert[name].is_null() {
            let _ = writeln!(out, "{title:<26} {}", text(&alert, name));
        }
    }
    let fields = alert["alert"]["output_fields"].as_object();
    for name in fields.into_iter().flat_map(|fields| fields.keys()) {
        let value = text(&alert["alert"]["output_fields"], name);
        let _ = writeln!(out, "{:<26} {value}", plain(name));
    }
    terminal::print(&out)
}

fn acknowledge(args: &Acknowledge) -> Outcome {
    let client = Client::open(&args.asked)?;
    let path = format!("/api/v1/groups/{}/acknowledgement", args.group);
    client.put(
        &path,
        &json!({"acknowledged": !args.undo, "note": args.note}),
    )?;
    terminal::print(&match args.undo {
        true => format!("took the acknowledgement of group {} back\n", args.group),
        false => format!("acknowledged group {}\n", args.group),
    })
}

fn status(args: &Status) -> Outcome {
    let client = Client::open(&args.asked)?;
    let answer = client.get("/api/v1/agents")?;
    if args.json {
        return terminal::print(&(json_text(&answer) + "\n"));
    }
    let rows = rows(&answer, "agents");
    if rows.is_empty() {
        terminal::complain(
            "tollgate: no agent has enrolled\nhelp: tollgate serve token create --agent-class default\n",
        );
        return Ok(Exit::Ok);
    }
    let mut out = format!(
        "{:<7} {:<24} {:<12} {:<9} {:<9} {:<12} {:>9} {:>8} {:>8} {:>7}  {:<20} {:<7} {:<32} WHY\n",
        "NUMBER",
        "HOST",
        "CLASS",
        "VERSION",
        "ENGINE",
        "RULES",
        "STORED",
        "MISSING",
        "WAITING",
        "OLDEST",
        "LAST SEEN (UTC)",
        "BUNDLE",
        "LABELS"
    );
    for row in rows {
        let of = |name: &str| text(row, name);
        let host = match (row["direct"].as_bool(), row["ended"].as_bool()) {
            (Some(true), _) => "(direct senders)".to_owned(),
            (_, Some(true)) => format!("{} (ended)", of("host")),
            _ => of("host"),
        };
        let [waiting, oldest] = lag(&row["inventory"]["spool"]);
        let rules = text(&row["inventory"], "rules");
        let rules = rules.strip_prefix("sha256:").unwrap_or(&rules);
        let rules: String = rules.chars().take(12).collect();
        let _ = writeln!(
            out,
            "{:<7} {host:<24} {:<12} {:<9} {:<9} {rules:<12} {:>9} {:>8} {waiting:>8} {oldest:>7}  {:<20} {:<7} {:<32} {}",
            of("id"),
            of("class"),
            text(&row["inventory"], "version"),
            text(&row["inventory"], "engine"),
            of("acknowledged"),
            of("missing"),
            time(row, "last_seen"),
            bundle(row),
            labels(row),
            of("bundle_why")
        );
    }
    terminal::print(&out)
}

/// Returns the number of records that an agent had not got rid of when it last spoke, and the age of the oldest. An agent of
/// an earlier build tells neither.
fn lag(spool: &Value) -> [String; 2] {
    let count = |name: &str| spool[name].as_u64();
    let waiting = count("pending").map_or("-".to_owned(), |count| count.to_string());
    let oldest = count("oldest_seconds").map_or("-".to_owned(), |age| match age {
        ..60 => format!("{age}s"),
        60..3600 => format!("{}m", age / 60),
        3600..86_400 => format!("{}h", age / 3600),
        _ => format!("{}d", age / 86_400),
    });
    [waiting, oldest]
}

/// Returns the version of the bundle that an agent is to have.
fn bundle(row: &Value) -> String {
    match row["bundle"].is_null() {
        true => "-".to_owned(),
        false => text(row, "bundle"),
    }
}

/// Returns the labels of an agent.
fn labels(row: &Value) -> String {
    let labels = row["labels"].as_object().into_iter().flatten();
    let labels: Vec<_> = labels
        .map(|(key, _)| format!("{}={}", plain(key), text(&row["labels"], key)))
        .collect();
    match labels.is_empty() {
        true => "-".to_owned(),
        false => labels.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lag_that_an_agent_does_not_tell_is_no_zero() {
        assert_eq!(lag(&Value::Null), ["-", "-"]);
        let none = json!({"pending": 0, "oldest_seconds": null});
        assert_eq!(lag(&none), ["0", "-"]);
        let hours = json!({"pending": 12, "oldest_seconds": 7300});
        assert_eq!(lag(&hours), ["12", "2h"]);
        assert_eq!(lag(&json!({"pending": "\u{1b}[2J"})), ["-", "-"]);
    }

    #[test]
    fn no_value_of_a_sender_controls_a_terminal() {
        let hostile = "\u{1b}[2J\u{9b}2J\u{7f}\u{202e}\u{2066}";
        let fields = json!({"a": hostile, "b": [hostile], "c": {hostile: hostile}});
        let is_bad = |c: char| c.is_control() || "\u{202e}\u{2066}".contains(c);
        for name in ["a", "b", "c"] {
            let text = text(&fields, name);
            assert!(!text.contains(is_bad), "{name}: {text:?}");
        }
        let text = json_text(&fields);
        assert!(!text.contains(is_bad), "{text:?}");
        let back: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(back, fields);
    }
}
