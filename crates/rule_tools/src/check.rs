//! Checks rule files for errors.

use config::rule_files::{Loaded, NoSink, RuleFile};
use diagnostics::exit::Exit;
use diagnostics::failure::Outcome;
use diagnostics::terminal;
use rules::diagnostic::{Diagnostic, Location};
use rules::load::LEFT_OUT;
use rules::{Code, EngineOptions, Level};
use serde_json::{Value, json};

use crate::responses::{self, ResponseFiles};
use crate::{RuleFiles, attack};

/// Loads rule files, and the response files that act on their alerts, and prints their problems; exit status 2 if one is
/// an error.
///
/// # Errors
///
/// The configuration cannot be read, or the result cannot be printed.
pub fn execute(rules: &RuleFiles, responses: &ResponseFiles, is_json: bool) -> Outcome {
    let mut with_plugins = rules.load()?;
    with_plugins
        .loaded
        .compile(&EngineOptions::default(), NoSink);
    with_plugins.compile_sources();
    let mut loaded = with_plugins.loaded;
    refuse_unchecked(&mut loaded);
    warn_of_unknown_techniques(&mut loaded);
    warn_of_unknown_levels(&mut loaded);
    let responses = responses.load(&loaded);
    if is_json {
        let mut results = json_results(&loaded);
        if let Some(responses) = &responses {
            results["response_load_results"] = responses::json_results(responses);
        }
        terminal::print(&format!("{results}\n"))?;
    } else {
        let responses = responses.as_ref().map(responses::text_results);
        let text = text_results(&loaded) + &responses.unwrap_or_default();
        terminal::print(&text)?;
    }
    let is_usable = responses.is_none_or(|responses| responses.is_usable());
    let is_bad = loaded.diagnostics.iter().any(Diagnostic::is_error);
    if is_bad && !is_json && changes_other_rules(rules) {
        terminal::complain(
            "help: these files change rules that they do not have; beside the built-in ones they are right: \
             `tollgate rules check --add-rules FILE`, `tollgate run --add-rules FILE`\n",
        );
    }
    Ok(if is_bad || !is_usable {
        Exit::BadInput
    } else {
        Exit::Ok
    })
}

/// Turns warnings of rules with an unknown source into errors: nothing of such a rule is known to be right.
fn refuse_unchecked(loaded: &mut Loaded) {
    let is_unknown = |problem: &&mut Diagnostic| problem.code == Code::UnknownSource;
    for problem in loaded.diagnostics.iter_mut().filter(is_unknown) {
        let cause = problem.message.strip_suffix(LEFT_OUT);
        let message = format!(
            "{}, the rule cannot be checked",
            cause.unwrap_or(&problem.message)
        );
        let known = problem.help.as_deref().unwrap_or_default();
        let help = format!("{known}, and `-c FILE` names the configuration");
        let location = problem.location.clone();
        *problem = Diagnostic::new(Code::UncheckedSource, location, message)
            .with_help(help)
            .in_item(problem.context.clone());
    }
}

/// Adds a warning for each tag that looks like a level and is none: the rule is on at every level.
fn warn_of_unknown_levels(loaded: &mut Loaded) {
    for rule in &loaded.ruleset.rules {
        let unknown = rule.tags.iter().filter_map(|tag| Level::of_tag(tag)?.err());
        for error in unknown {
            let location = rule.location.clone();
            let mut warning = Diagnostic::new(Code::UnknownLevel, location, error.to_string());
            warning.context = format!("rule {}", rule.name);
            let near = error.suggestion();
            warning.help = near.map(|near| format!("did you mean `level_{near}`?"));
            loaded.diagnostics.push(warning);
        }
    }
}

/// Adds a warning for each tag that looks like a technique or a tactic of ATT&CK and is none.
fn warn_of_unknown_techniques(loaded: &mut Loaded) {
    for rule in &loaded.ruleset.rules {
        for (message, near) in attack::unknown_tags(rule) {
            let location = rule.location.clone();
            let mut warning = Diagnostic::new(Code::UnknownTechnique, location, message);
            warning.context = format!("rule {}", rule.name);
            warning.help = near.map(|near| format!("did you mean `{near}`?"));
            loaded.diagnostics.push(warning);
        }
    }
}

/// Returns true if the named files have no errors when they are loaded after the default rules.
fn changes_other_rules(rules: &RuleFiles) -> bool {
    let beside = RuleFiles {
        named: Vec::new(),
        added: [&rules.named[..], &rules.added[..]].concat(),
        ..rules.clone()
    };
    // A broken configuration is another problem.
    let Ok(sources) = beside.sources().map_err(drop) else {
        return false;
    };
    let mut loaded = sources.load();
    loaded.compile(&EngineOptions::default(), NoSink);
    // Other rules beside it do not make a source known.
    refuse_unchecked(&mut loaded);
    !rules.named.is_empty() && loaded.usable().is_ok()
}

/// Formats every problem, and a line for each file.
fn text_results(loaded: &Loaded) -> String {
    let mut out = loaded.render(loaded.diagnostics.iter());
    for file in &loaded.files {
        let (errors, warnings) = of_file(loaded, file);
        let verdict = match (errors.len(), warnings.len()) {
            (0, 0) => "Ok".to_owned(),
            (0, warnings) => format!("Ok, with {}", count(warnings, "warning")),
            (errors, 0) => format!("Invalid: {}", count(errors, "error")),
            (errors, warnings) => {
                format!(
                    "Invalid: {}, {}",
                    count(errors, "error"),
                    count(warnings, "warning")
                )
            }
        };
        out.push_str(&format!("{}: {verdict}\n", file.name));
    }
    out
}

pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// Returns an object of the form that Falco prints with `-V FILE -o json_output=true`, with all problems, and positions
/// that count from 1, as in all messages of this program.
fn json_results(loaded: &Loaded) -> Value {
    let results: Vec<_> = loaded
        .files
        .iter()
        .map(|file| json_result(loaded, file))
        .collect();
    json!({ "falco_load_results": results })
}

fn json_result(loaded: &Loaded, file: &RuleFile) -> Value {
    let (errors, warnings) = of_file(loaded, file);
    let list = |diagnostics: Vec<&Diagnostic>| -> Vec<Value> {
        diagnostics
            .into_iter()
            .map(|diagnostic| json_problem(loaded, diagnostic))
            .collect()
    };
    let schema_warnings = schema_warnings(&errors, &warnings);
    json!({
        "errors": list(errors.clone()),
        "name": &*file.name,
        "schema_valid": schema_warnings.is_empty(),
        "schema_warnings": schema_warnings,
        "successful": errors.is_empty(),
        "warnings": list(warnings),
    })
}

/// Returns the messages of problems with the structure of a file: unknown items and keys, and invalid YAML.
fn schema_warnings(errors: &[&Diagnostic], warnings: &[&Diagnostic]) -> Vec<String> {
    let is_form = |code| {
        matches!(
            code,
            Code::YamlParse | Code::YamlValidate | Code::UnknownItem | Code::UnknownKey
        )
    };
    let all = errors.iter().chain(warnings);
    all.filter(|problem| is_form(problem.code))
        .map(|problem| problem.message.clone())
        .collect()
}

/// Returns the errors and the warnings of a file.
fn of_file<'l>(loaded: &'l Loaded, file: &RuleFile) -> (Vec<&'l Diagnostic>, Vec<&'l Diagnostic>) {
    let of_file = loaded
        .diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.location.file == file.name);
    of_file.partition(|diagnostic| diagnostic.is_error())
}

fn json_problem(loaded: &Loaded, diagnostic: &Diagnostic) -> Value {
    let text = loaded.text(&diagnostic.location.file);
    let position = json_position(&diagnostic.location, text);
    let mut locations = vec![json!({
        "item_name": "",
        "item_type": "rules content",
        "position": { "column": 1, "line": 1, "name": &*diagnostic.location.file, "offset": 0 },
    })];
    if let Some((item_type, item_name)) = diagnostic.context.split_once(' ') {
        locations
            .push(json!({ "item_name": item_name, "item_type": item_type, "position": position }));
    } else {
        locations[0]["position"] = position;
    }
    json!({
        "code": diagnostic.code.name(),
        "codedesc": diagnostic.code.title(),
        "context": { "locations": locations, "snippet": snippet(&diagnostic.location, text) },
        "help": diagnostic.help,
        "message": diagnostic.message,
    })
}

/// The line is 0 if the file could not be read.
fn json_position(location: &Location, text: Option<&str>) -> Value {
    json!({
        "column": location.column,
        "line": location.line,
        "name": &*location.file,
        "offset": text.and_then(|text| offset(location, text)).unwrap_or(0),
    })
}

/// Returns the number of bytes before a location.
pub(crate) fn offset(location: &Location, text: &str) -> Option<usize> {
    let line = usize::try_from(location.line).ok()?.checked_sub(1)?;
    let column = usize::try_from(location.column).ok()?.checked_sub(1)?;
    let mut lines = text.split_inclusive('\n');
    let before: usize = lines.by_ref().take(line).map(str::len).sum();
    let line = lines.next().unwrap_or_default();
    Some(before + line.chars().take(column).map(char::len_utf8).sum::<usize>())
}

/// Longest part of a line that is shown, in characters.
const SHOWN: usize = 160;

/// Formats the line, or the part of a long one that has the location, and a mark below the location.
#[must_use]
pub(crate) fn snippet(location: &Location, text: Option<&str>) -> String {
    let at = usize::try_from(location.line)
        .ok()
        .and_then(|line| line.checked_sub(1));
    let line = text.zip(at).and_then(|(text, at)| text.lines().nth(at));
    let column = usize::try_from(location.column).unwrap_or(1).max(1);
    let Some(line) = line else {
        return String::new();
    };
    let is_long = line.chars().nth(SHOWN).is_some();
    let left = match is_long {
        true => (column - 1).saturating_sub(SHOWN / 2),
        false => 0,
    };
    let shown: String = line.chars().skip(left).take(SHOWN).collect();
    // A place behind the end is shown at the end. Widths have a limit.
    let mark = (column - left).min(SHOWN + 1);
    format!("{shown}\n{:>mark$}\n", "^")
}

#[cfg(test)]
mod tests {
    use config::rule_files;

    use super::*;

    fn loaded(text: &str) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r.yaml");
        std::fs::write(&path, text).unwrap();
        rule_files::load(&[path])
    }

    #[test]
    fn of_a_long_line_the_part_with_the_location_is_shown() {
        let line = format!("{}wrong{}", "a".repeat(70_000), "b".repeat(70_000));
        let at = |column| Location {
            file: "r.yaml".into(),
            line: 1,
            column,
        };
        for column in [1, 70_001, 140_005, u32::MAX] {
            let shown = snippet(&at(column), Some(&line));
            let (part, mark) = shown.split_once('\n').expect("two lines");
            assert!(
                part.len() <= SHOWN && mark.len() <= SHOWN + 2,
                "{column}: {shown}"
            );
        }
        let shown = snippet(&at(70_001), Some(&line));
        let (part, mark) = shown.split_once('\n').expect("two lines");
        assert_eq!(part.find("wrong"), mark.find('^'), "{shown}");
        assert_eq!(snippet(&at(3), Some("abc")), "abc\n  ^\n");
    }

    const BROKEN: &str = "- macro: m\n  condition: evt.type = open\n  colour: red\n\
        - rule: R\n  desc: d\n  condition: evt.type contaisn x\n  output: o\n  priority: notice\n";

    #[test]
    fn json_is_shaped_as_falcos() {
        let results = json_results(&loaded(BROKEN));
        let result = &results["falco_load_results"][0];
        assert_eq!(result["successful"], false);
        let error = &result["errors"][0];
        assert_eq!(error["code"], "LOAD_ERR_COMPILE_CONDITION");
        let location = error["context"]["locations"]
            .as_array()
            .unwrap()
            .last()
            .unwrap();
        assert_eq!(location["item_type"], "rule");
        assert_eq!(location["item_name"], "R");
        assert_eq!(location["position"]["line"], 6);
        let offset = location["position"]["offset"].as_u64().unwrap();
        let line_start = BROKEN.find("  condition: evt.type contaisn x").unwrap();
        assert!(
            offset > line_start as u64 && offset < line_start as u64 + 30,
            "{offset}"
        );
        let snippet = error["context"]["snippet"].as_str().unwrap();
        assert!(
            snippet.starts_with("  condition: evt.type contaisn x\n"),
            "{snippet}"
        );
        assert_eq!(result["warnings"][0]["code"], "LOAD_UNKNOWN_KEY");
    }

    #[test]
    fn a_tag_that_is_no_technique_is_a_warning() {
        let rule = "- {rule: R, desc: d, condition: evt.type = open, output: o, priority: INFO, tags: [TAGS]}\n";
        let mut good = loaded(&rule.replace("TAGS", "T1059.004, mitre_execution, TA0002, T1"));
        warn_of_unknown_techniques(&mut good);
        assert!(good.diagnostics.is_empty(), "{:?}", good.diagnostics);
        let mut bad = loaded(&rule.replace("TAGS", "T1059.099, mitre_exekution"));
        warn_of_unknown_techniques(&mut bad);
        let text = text_results(&bad);
        for part in [
            "LOAD_UNKNOWN_TECHNIQUE",
            "no technique T1059.099",
            "did you mean `T1059.009`?",
            "no tactic for the tag mitre_exekution",
            "did you mean `mitre_execution`?",
            "Ok, with 2 warnings",
        ] {
            assert!(text.contains(part), "no {part}: {text}");
        }
    }

    #[test]
    fn a_tag_that_is_no_level_is_a_warning() {
        let mut bad = loaded(
            "- {rule: R, desc: d, condition: evt.type = open, output: o, priority: INFO, tags: [level_huntin]}\n",
        );
        warn_of_unknown_levels(&mut bad);
        let text = text_results(&bad);
        for part in [
            "LOAD_UNKNOWN_LEVEL",
            "unknown level `huntin`",
            "did you mean `level_hunting`?",
        ] {
            assert!(text.contains(part), "no {part}: {text}");
        }
    }

    #[test]
    fn text_ends_with_a_verdict_for_each_file() {
        let text = text_results(&loaded(BROKEN));
        assert!(text.contains("r.yaml:6:"), "{text}");
        assert!(
            text.trim_end()
                .ends_with("r.yaml: Invalid: 1 error, 1 warning"),
            "{text}"
        );
        assert!(text_results(&loaded("")).trim_end().ends_with("r.yaml: Ok"));
    }
}
