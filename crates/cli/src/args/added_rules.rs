//! Rule files beside those that a verb names.

use std::path::PathBuf;

use clap::Args;
use rules::{Level, UnknownLevel};

/// Rule files beside those that a verb names.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AddedRules {
    /// Also load rules from this file or folder, which can change the other rules; repeatable
    #[arg(long, value_name = "RULES")]
    pub(crate) add_rules: Vec<PathBuf>,
    /// Turn on the rules up to this level: stable, hunting or forensic [default: rules_level of the configuration,
    /// stable]
    #[arg(long, value_name = "LEVEL", value_parser = level)]
    pub(crate) level: Option<Level>,
}

/// Reads a level of rules.
pub(super) fn level(text: &str) -> Result<Level, String> {
    text.parse()
        .map_err(|error: UnknownLevel| match error.suggestion() {
            Some(near) => format!("{error}; did you mean `{near}`?"),
            None => error.to_string(),
        })
}
