//! `-V`: validation of rule files, as text or JSON.

use std::path::PathBuf;

use agent::journal;
use agent::plugins::Plugins;
use agent::sink::DeferredSink;
use config::rule_files::{self, Loaded, NoSink, RuleFile};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use rules::EngineOptions;
use rules::Priority;
use rules::diagnostic::{Diagnostic, Location};
use serde_json::Value;

use super::describe;
use rule_tools::check::{self, Numbering};

/// Rules to describe in addition, if all files are valid.
pub(super) enum Describe<'a> {
    Nothing,
    All,
    One(&'a str),
}

/// Validates the files and prints the results.
pub(super) fn run(
    files: &[PathBuf],
    options: &EngineOptions,
    plugins: &Plugins,
    (json, described): (bool, &Describe<'_>),
) -> Outcome {
    journal::say(Priority::Informational, "Validating rules file(s):");
    for file in files {
        journal::say(Priority::Informational, &format!("   {}", file.display()));
    }
    for path in rule_files::passed_over(files) {
        let path = path.display();
        journal::warn(&format!(
            "warning: {path} is no rule file, and is not validated"
        ));
    }
    let files = rule_files::read_as_falco(files);
    let mut loaded = rule_files::load_read_with(files, &plugins.environment());
    loaded.compile(options, NoSink);
    plugins.compile(&mut loaded, options, &DeferredSink::default());
    let is_good = !loaded.diagnostics.iter().any(Diagnostic::is_error);
    let description = match described {
        _ if !is_good => None,
        Describe::Nothing => None,
        Describe::All => Some(describe::describe(
            &loaded.ruleset,
            options,
            plugins.catalogue(),
            None,
        )?),
        Describe::One(rule) => Some(describe::describe(
            &loaded.ruleset,
            options,
            plugins.catalogue(),
            Some(rule),
        )?),
    };
    let summary = summary(&loaded);
    let mut out = if json {
        let mut results = check::json_results(&loaded, Numbering::FromZero);
        if let Some(description) = &description {
            results["falco_describe_results"] = description.clone();
        }
        format!("{results}\n")
    } else {
        format!("{summary}\n")
    };
    if let Some(description) = description.filter(|_| !json) {
        out.push('\n');
        out.push_str(&describe::text_table(&description));
    }
    terminal::print(&out)?;
    if is_good {
        return Ok(Exit::Ok);
    }
    Err(Failure::new(Exit::BadInput, summary))
}

/// Lists all errors. Of valid files it mentions only that there are warnings, which are in the log.
fn summary(loaded: &Loaded) -> String {
    let mut parts = Vec::new();
    for file in &loaded.files {
        let (errors, warnings) = check::of_file(loaded, file);
        let whole = report(loaded, file, &errors, &warnings);
        if errors.is_empty() && !warnings.is_empty() {
            journal::warn(&whole);
            parts.push(format!("{}: Ok, with warnings", file.name));
        } else {
            parts.push(whole);
        }
    }
    parts.join("\n")
}

/// Formats a file's verdict and its problems, each with its position, the line, and a mark below it.
pub(super) fn report(
    loaded: &Loaded,
    file: &RuleFile,
    errors: &[&Diagnostic],
    warnings: &[&Diagnostic],
) -> String {
    let verdict = match (errors.is_empty(), warnings.is_empty()) {
        (false, _) => "Invalid",
        (true, false) => "Ok, with warnings",
        (true, true) => "Ok",
    };
    let mut out = format!("{}: {verdict}", file.name);
    for (problems, word) in [(errors, "Errors"), (warnings, "Warnings")] {
        if !problems.is_empty() {
            out.push_str(&format!("\n{} {word}:\n", problems.len()));
        }
        for problem in problems {
            out.push_str(&one(loaded, problem));
        }
    }
    out
}

fn one(loaded: &Loaded, problem: &Diagnostic) -> String {
    let place = |location: &Location| {
        let line = location.line.saturating_sub(1);
        let column = location.column.saturating_sub(1);
        format!("({}:{line}:{column})", location.file)
    };
    let file = &problem.location.file;
    let mut out = format!("In rules content: ({file}:0:0)\n");
    match problem.context.split_once(' ') {
        Some((kind, name)) => out.push_str(&format!(
            "    {kind} '{name}': {}\n",
            place(&problem.location)
        )),
        None => out.push_str(&format!(
            "    rules content item: {}\n",
            place(&problem.location)
        )),
    }
    let snippet = check::snippet(&problem.location, loaded.text(file));
    let snippet = if snippet.is_empty() {
        "<No context available>\n".to_owned()
    } else {
        snippet
    };
    out.push_str(&format!(
        "------\n{snippet}------\n{} ({}): {}\n",
        problem.code.name(),
        problem.code.title(),
        problem.message
    ));
    if let Some(help) = &problem.help {
        out.push_str(&format!("help: {help}\n"));
    }
    out
}

/// Returns the object that `--rule-schema` prints.
pub(super) fn rule_schema() -> Value {
    let kind = |keys: Vec<&'static str>| {
        let properties: serde_json::Map<_, _> = keys
            .iter()
            .map(|key| ((*key).to_owned(), json_type(key)))
            .collect();
        serde_json::json!({
            "type": "object",
            "properties": properties,
            "required": [keys[0]],
            "additionalProperties": false,
        })
    };
    let kinds: Vec<_> = rules::load::item_keys().map(kind).collect();
    serde_json::json!({
        "$schema": "http://json-schema.org/draft-06/schema#",
        "type": "array",
        "items": { "anyOf": kinds },
    })
}

fn json_type(key: &str) -> Value {
    use serde_json::json;
    match key {
        "append" | "capture" | "enabled" | "skip-if-unknown-filter" | "warn_evttypes" => {
            json!({ "type": "boolean" })
        }
        "capture_duration" => json!({ "type": "integer" }),
        "exceptions" | "items" | "required_plugin_versions" | "tags" => json!({ "type": "array" }),
        "count" | "override" => json!({ "type": "object" }),
        "risk" => json!({ "type": ["integer", "object"] }),
        "required_engine_version" => json!({ "type": ["string", "integer"] }),
        _ => json!({ "type": "string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str) -> Loaded {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let path = dir.path().join("r.yaml");
        std::fs::write(&path, text).expect("it can be written");
        let mut loaded = rule_files::load(&[path]);
        loaded.compile(&EngineOptions::default(), NoSink);
        loaded
    }

    #[test]
    fn a_bad_file_is_reported_with_places_that_count_from_zero() {
        let loaded = loaded(
            "- rule: R\n  desc: d\n  condition: evt.type contaisn x\n  output: o\n  priority: info\n",
        );
        let text = summary(&loaded);
        let name = &loaded.files[0].name;
        let expected = format!(
            "{name}: Invalid\n1 Errors:\nIn rules content: ({name}:0:0)\n    rule 'R': ({name}:2:"
        );
        assert!(text.starts_with(&expected), "{text}");
        assert!(
            text.contains("------\n  condition: evt.type contaisn x\n"),
            "{text}"
        );
        assert!(text.contains("\nLOAD_ERR_COMPILE_CONDITION ("), "{text}");
    }

    #[test]
    fn good_files_are_one_line_each() {
        let good = loaded("");
        assert_eq!(summary(&good), format!("{}: Ok", good.files[0].name));
        let warned = loaded("- list: unused\n  items: [a]\n");
        let expected = format!("{}: Ok, with warnings", warned.files[0].name);
        assert_eq!(summary(&warned), expected);
    }

    #[test]
    fn the_schema_has_every_kind_of_item() {
        let schema = rule_schema();
        let kinds = schema["items"]["anyOf"].as_array().expect("an array");
        let names: Vec<_> = kinds
            .iter()
            .map(|kind| kind["required"][0].clone())
            .collect();
        assert_eq!(
            names,
            [
                "rule",
                "macro",
                "list",
                "required_engine_version",
                "required_plugin_versions"
            ]
        );
    }
}
