//! Checks response files beside the rules whose alerts they act on.

use std::path::PathBuf;

use config::rule_files::Loaded as LoadedRules;
use response::{Diagnostic, Loaded, load};
use serde_json::{Value, json};
use yaml::Code as _;

use crate::check::count;

/// Response files to check.
#[derive(Clone, Debug, Default)]
pub struct ResponseFiles {
    /// Paths, in the order in which they are merged.
    pub files: Vec<PathBuf>,
    /// Refused actionners whose actions are left out.
    pub accepted: Vec<String>,
}

impl ResponseFiles {
    /// Loads the files; `None` if there are none.
    pub(crate) fn load(&self, rules: &LoadedRules) -> Option<Loaded> {
        if self.files.is_empty() {
            return None;
        }
        let mut loaded = load::load(load::read_files(&self.files), &self.accepted);
        let names: Vec<&str> = rules.ruleset.rules.iter().map(|rule| &*rule.name).collect();
        loaded.check_rules(&names);
        Some(loaded)
    }
}

/// Formats every problem, and a line for each file.
pub(crate) fn text_results(loaded: &Loaded) -> String {
    let mut out = loaded.render();
    for name in loaded.names() {
        let (errors, warnings) = of_file(loaded, name);
        let warnings = match warnings.len() {
            0 => String::new(),
            number => count(number, "warning"),
        };
        let verdict = match (errors.len(), warnings.as_str()) {
            (0, "") => "Ok".to_owned(),
            (0, warnings) => format!("Ok, with {warnings}"),
            (errors, "") => format!("Invalid: {}", count(errors, "error")),
            (errors, warnings) => format!("Invalid: {}, {warnings}", count(errors, "error")),
        };
        out.push_str(&format!("{name}: {verdict}\n"));
    }
    let (rules, actions) = loaded.counts();
    let (rules, actions) = (count(rules, "response rule"), count(actions, "action"));
    out.push_str(&format!("{rules} with {actions}\n"));
    out
}

/// Returns the problems of each file.
pub(crate) fn json_results(loaded: &Loaded) -> Value {
    let file = |name: &str| {
        let (errors, warnings) = of_file(loaded, name);
        let list = |problems: &[&Diagnostic]| -> Vec<Value> {
            problems
                .iter()
                .map(|problem| json_problem(problem))
                .collect()
        };
        json!({
            "name": name,
            "successful": errors.is_empty(),
            "errors": list(&errors),
            "warnings": list(&warnings),
        })
    };
    loaded.names().map(file).collect()
}

fn json_problem(problem: &Diagnostic) -> Value {
    json!({
        "code": problem.code.name(),
        "line": problem.location.line,
        "column": problem.location.column,
        "item": problem.context,
        "message": problem.message,
        "help": problem.help,
    })
}

/// Returns the errors and the warnings of a file.
fn of_file<'l>(loaded: &'l Loaded, name: &str) -> (Vec<&'l Diagnostic>, Vec<&'l Diagnostic>) {
    let problems = loaded.diagnostics.iter();
    let of_file = problems.filter(|problem| *problem.location.file == *name);
    of_file.partition(|problem| problem.is_error())
}
