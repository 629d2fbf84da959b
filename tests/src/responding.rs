//! Runs whose alerts are answered by response files.

use std::fs;

use crate::marks::{marking, work};
use crate::{Alert, Watch, WatchResult};

/// Name of the alert about an action.
pub const TAKEN: &str = "Tollgate internal: response";

/// Returns a response file with one rule for the alert `Mark`, whose actions are items of a YAML list.
#[must_use]
pub fn to_mark(actions: &str) -> String {
    format!("- rule: Answer\n  match: {{rules: [Mark]}}\n  actions:\n{actions}")
}

/// Action that ends the process.
pub const KILL: &str = "  - {action: Kill, actionner: 'process:terminate'}\n";
/// Action that stops it.
pub const STOP: &str = "  - {action: Stop, actionner: 'process:freeze'}\n";
/// Action that lets it go on.
pub const RESUME: &str = "  - {action: Resume, actionner: 'process:thaw'}\n";

/// Creates a run of a script whose opens of `%W/mark` are answered.
#[must_use]
pub fn answering(script: &str, responses: &str) -> Watch {
    with_responses(marking(script), responses)
}

/// Adds a response file, in which `%W` stands for the work folder.
///
/// # Panics
/// If it cannot be written.
#[must_use]
pub fn with_responses(watch: Watch, responses: &str) -> Watch {
    let work = work(&watch);
    let file = work.join("responses.yaml");
    let text = responses.replace("%W", &work.display().to_string());
    fs::write(&file, text).expect("the scratch folder is writable");
    watch
        .option("--responses")
        .option(file.display().to_string())
}

/// Returns what was reported about actions: actionner and result.
#[must_use]
pub fn results(watched: &WatchResult) -> Vec<(String, String)> {
    let taken = watched.of(TAKEN).into_iter();
    let result = |alert: &Alert| {
        (
            alert.field("response.actionner"),
            alert.field("response.result"),
        )
    };
    taken.map(result).collect()
}

/// Returns a report as [`results`] does.
#[must_use]
pub fn pair(actionner: &str, result: &str) -> (String, String) {
    (actionner.to_owned(), result.to_owned())
}
