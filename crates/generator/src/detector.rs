//! A detector that the generator starts for each action, and whose standard output it reads.

use tempfile::TempDir;

use crate::action::Action;

/// Environment variable that names the folder of a detector's configuration; empty for none. Actions are tests of rules, and
/// not of this machine's configuration, which may send alerts elsewhere.
pub(crate) const CONFIG_VARIABLE: &str = "TOLLGATE_CONFIG_DIR";

/// The command line of a detector, and the names of its rules.
#[derive(Debug)]
pub struct Detector {
    command: Vec<String>,
    rules: Vec<String>,
    /// Rule files that the detector reads, removed with this.
    _files: Option<TempDir>,
}

impl Detector {
    /// Creates a detector from its `command` without the `--` before the watched command, the names of the
    /// `rules` that it loads, and the folder of rule files that must exist as long as it runs.
    #[must_use]
    pub fn new(command: Vec<String>, rules: Vec<String>, files: Option<TempDir>) -> Self {
        Self {
            command,
            rules,
            _files: files,
        }
    }

    /// Returns the words to put before a command to start it under the detector.
    pub(crate) fn prefix(&self) -> Vec<String> {
        self.prefix_with(&[])
    }

    /// Like [`Detector::prefix`], with further options of the detector.
    pub(crate) fn prefix_with(&self, options: &[&str]) -> Vec<String> {
        let mut words = self.command.clone();
        words.extend(options.iter().map(|option| (*option).to_owned()));
        words.push("--".to_owned());
        words
    }

    /// Returns true if a rule for this action is loaded.
    pub(crate) fn has_rule_for(&self, action: &Action) -> bool {
        self.rules.iter().any(|rule| action.is_for(rule))
    }
}
