//! Options that several tools have: rule files, and the form of lists.

use std::path::PathBuf;

use config::rule_files::RuleSources;
use config::{Effective, Places, Request};
use diagnostics::failure::Failure;
use rules::Level;

/// The rule files of a tool.
#[derive(Clone, Debug, Default)]
pub struct RuleFiles {
    /// Rule files and directories of them; empty for those that `tollgate run` loads by default.
    pub named: Vec<PathBuf>,
    /// Rule files and directories that are loaded after the others.
    pub added: Vec<PathBuf>,
    /// Highest level of the rules that are on; by default that of the configuration.
    pub level: Option<Level>,
}

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListFormat {
    /// Lines for people.
    Text,
    /// One JSON object.
    Json,
    /// A table in Markdown.
    Markdown,
}

impl RuleFiles {
    /// Returns the files that the rules come from.
    ///
    /// # Errors
    ///
    /// No files are named, and the configuration cannot be read.
    pub(crate) fn sources(&self) -> Result<RuleSources, Failure> {
        let added = self.added.clone();
        if !self.named.is_empty() {
            return Ok(RuleSources {
                named: self.named.clone(),
                folder: None,
                bundled: Vec::new(),
                given: Vec::new(),
                added,
                // Without `--level`, as `tollgate run` without a configuration.
                level: self.level.unwrap_or_default(),
                enables_hunting: false,
            });
        }
        let places = Places::of_user()?;
        let request = Request {
            layers: &places.files,
            ..Request::default()
        };
        let Effective { mut config, .. } = request.load()?;
        config.rules_folder = places.rules;
        config.added_rules = added;
        config.level = self.level.unwrap_or(config.level);
        Ok(config.rule_sources())
    }
}
