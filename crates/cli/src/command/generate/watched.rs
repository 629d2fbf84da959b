//! A detector of our own for each action: `tollgate run`, whose standard output is read.

use std::fs;
use std::path::PathBuf;

use clap::ValueEnum;
use workload::action::Action;

use super::args::Source;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::rule_files;

/// How `tollgate run` is started, and which rules it has.
pub(super) struct Watched {
    prefix: Vec<String>,
    rules: Vec<String>,
    /// Holds the rules that are built in while the detector needs them as files.
    _builtin: Option<tempfile::TempDir>,
}

impl Watched {
    pub(super) fn new(source: &Source) -> Result<Self, Failure> {
        let (files, builtin) = if source.rules.is_empty() {
            let (files, folder) = builtin_files()?;
            (files, Some(folder))
        } else {
            (source.rules.clone(), None)
        };
        let loaded = rule_files::load(&files);
        let rules = loaded
            .ruleset
            .rules
            .iter()
            .map(|rule| rule.name.to_string());
        let rules = rules.collect();
        let engine = source.engine.to_possible_value();
        let engine = engine.map_or_else(String::new, |value| value.get_name().to_owned());
        let mut prefix = vec![super::own_program()?.display().to_string()];
        // What prepares an action may fire rules as well; each must get its turn.
        let options = [
            "run",
            "--quiet",
            "--json",
            "-o",
            "rule_matching=all",
            "--engine",
        ];
        prefix.extend(options.map(str::to_owned));
        prefix.push(engine);
        for file in files {
            prefix.extend(["-r".to_owned(), file.display().to_string()]);
        }
        prefix.push("--".to_owned());
        Ok(Self {
            prefix,
            rules,
            _builtin: builtin,
        })
    }

    /// What to put before a command to have it watched.
    pub(super) fn prefix(&self) -> Vec<String> {
        self.prefix.clone()
    }

    /// The same with further options of `tollgate run`.
    pub(super) fn prefix_with(&self, options: &[&str]) -> Vec<String> {
        let mut words = self.prefix.clone();
        let end = words.pop();
        words.extend(options.iter().map(|option| (*option).to_owned()));
        words.extend(end);
        words
    }

    /// Whether a rule is loaded that is about this action.
    pub(super) fn has_rule_for(&self, action: &Action) -> bool {
        self.rules.iter().any(|rule| action.is_for(rule))
    }
}

fn builtin_files() -> Result<(Vec<PathBuf>, tempfile::TempDir), Failure> {
    let refuse = |error: std::io::Error| {
        Failure::new(
            Exit::Unsupported,
            format!("cannot write the built-in rules to a temporary folder: {error}"),
        )
    };
    let folder = tempfile::tempdir().map_err(refuse)?;
    let files = [
        ("default.yaml", rule_files::BUILTIN),
        ("more.yaml", rule_files::MORE),
    ];
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::write(&path, text).map_err(refuse)?;
        paths.push(path);
    }
    Ok((paths, folder))
}
