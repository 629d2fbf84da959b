//! `-V`: validation of rule files, as text or JSON.

use std::path::PathBuf;

use agent::journal;
use agent::plugins::Plugins;
use agent::sink::DeferredSink;
use config::rule_files::{self, NoSink, RuleFile};
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use rules::EngineOptions;
use rules::Priority;
use serde_json::Value;

use super::describe;
use rule_tools::falco_results::{self, FileResult};

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
    let results = results(&files, options, plugins);
    let is_good = results.iter().all(FileResult::is_successful);
    let mut loaded = rule_files::load_read_with(files, &plugins.environment());
    loaded.compile(options, NoSink);
    let only = match described {
        _ if !is_good => None,
        Describe::Nothing => None,
        Describe::All => Some(None),
        Describe::One(rule) => Some(Some(*rule)),
    };
    let description =
        only.map(|only| describe::describe(&loaded.ruleset, options, plugins.catalogue(), only));
    let description = description.transpose()?;
    let summary = summary(&results);
    let mut out = if json {
        let results: Vec<_> = results.iter().map(FileResult::json).collect();
        let mut results = serde_json::json!({ "falco_load_results": results });
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

/// Loads files as Falco does, with the sources of plugins.
pub(super) fn results(
    files: &[RuleFile],
    options: &EngineOptions,
    plugins: &Plugins,
) -> Vec<FileResult> {
    falco_results::results(files, &plugins.environment(), |loaded| {
        loaded.compile(options, NoSink);
        plugins.compile(loaded, options, &DeferredSink::default());
    })
}

/// Lists all errors. Of valid files it mentions only that there are warnings, which are in the log.
fn summary(results: &[FileResult]) -> String {
    let mut parts = Vec::new();
    for result in results {
        if result.is_successful() && !result.warnings.is_empty() {
            journal::warn(&result.text());
            parts.push(format!("{}: Ok, with warnings", result.name));
        } else {
            parts.push(result.text().trim_end().to_owned());
        }
    }
    parts.join("\n")
}

/// Returns the object that `--rule-schema` prints: an item may have any key of any kind of item, and needs none.
pub(super) fn rule_schema() -> Value {
    let properties: serde_json::Map<_, _> = rules::load::item_keys()
        .flatten()
        .map(|key| (key.to_owned(), json_type(key)))
        .collect();
    serde_json::json!({
        "$schema": "http://json-schema.org/draft-06/schema#",
        "type": "array",
        "items": {
            "type": "object",
            "properties": properties,
            "required": [],
            "additionalProperties": false,
        },
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
        "priority" => json!({ "type": "string", "enum": falco_results::PRIORITIES }),
        "risk" => json!({ "type": ["integer", "object"] }),
        "required_engine_version" => json!({ "type": ["string", "integer"] }),
        _ => json!({ "type": "string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(text: &str) -> FileResult {
        let file = RuleFile {
            name: "r.yaml".into(),
            text: Ok(text.to_owned()),
        };
        let mut results = results(&[file], &EngineOptions::default(), &Plugins::default());
        results.remove(0)
    }

    #[test]
    fn a_bad_file_is_reported_with_places_that_count_from_zero() {
        let text = summary(&[result(
            "- rule: R\n  desc: d\n  condition: evt.type contaisn x\n  output: o\n  priority: INFO\n",
        )]);
        let expected = "r.yaml: Invalid\n1 Errors:\nIn rules content: (r.yaml:0:0)\n    \
             rule 'R': (r.yaml:0:2)\n    rule condition: (r.yaml:2:13)\n    \
             condition expression: (\"evt.type contaisn x\":2:";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("------\n  condition: evt.type contaisn x\n"),
            "{text}"
        );
        assert!(text.contains("\nLOAD_ERR_COMPILE_CONDITION ("), "{text}");
    }

    #[test]
    fn good_files_are_one_line_each() {
        assert_eq!(summary(&[result("")]), "r.yaml: Ok");
        let warned = result("- list: unused\n  items: [a]\n");
        assert_eq!(summary(&[warned]), "r.yaml: Ok, with warnings");
    }

    #[test]
    fn the_schema_has_the_keys_of_every_kind_of_item() {
        let schema = rule_schema();
        let keys = schema["items"]["properties"]
            .as_object()
            .expect("an object");
        for key in [
            "rule",
            "macro",
            "list",
            "required_engine_version",
            "override",
        ] {
            assert!(keys.contains_key(key), "{key}");
        }
        assert_eq!(schema["items"]["required"], serde_json::json!([]));
    }
}
