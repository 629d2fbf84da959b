//! A detector that the generator starts for each action, and whose standard output it reads.

use std::fs;
use std::path::PathBuf;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use tempfile::TempDir;

use crate::action::Action;
use crate::own_program;

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

    /// Returns `tollgate run`, with the engine of this name and the rule files at these paths; `rules` are the names of their
    /// rules, `files` is the folder that must exist as long as it runs.
    ///
    /// # Errors
    ///
    /// If the path of this program is unknown.
    pub fn tollgate_run(
        engine: &str,
        paths: &[PathBuf],
        rules: Vec<String>,
        files: Option<TempDir>,
    ) -> Result<Self, Failure> {
        let mut command = vec![own_program()?.display().to_string()];
        // The preparation of an action may fire rules, too; every rule that matches must alert.
        let options = [
            "run",
            "--quiet",
            "--json",
            "--log",
            "-",
            "-o",
            "rule_matching=all",
            "-o",
            "rules_level=forensic",
            "--engine",
            engine,
        ];
        command.extend(options.map(str::to_owned));
        for path in paths {
            command.extend(["-r".to_owned(), path.display().to_string()]);
        }
        Ok(Self::new(command, rules, files))
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

/// Writes rule files to a temporary folder, and returns their paths in the given order.
///
/// # Errors
///
/// If the folder cannot be written.
pub fn write_rules<'t>(
    texts: impl IntoIterator<Item = &'t str>,
) -> Result<(Vec<PathBuf>, TempDir), Failure> {
    let refuse = |error: std::io::Error| {
        let message = format!("cannot write rules to a temporary folder: {error}");
        Failure::new(Exit::Unsupported, message)
            .help("name a folder with free space in the variable TMPDIR")
    };
    let folder = tempfile::tempdir().map_err(refuse)?;
    let mut paths = Vec::new();
    for (number, text) in (1..).zip(texts) {
        let path = folder.path().join(format!("{number:03}.yaml"));
        fs::write(&path, text).map_err(refuse)?;
        paths.push(path);
    }
    Ok((paths, folder))
}
