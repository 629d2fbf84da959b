//! The rules and the configuration of the verbs that evaluate events.

use std::path::PathBuf;

use clap::Args;
use rules::Level;

use super::RULES;
use super::added_rules::level;

/// The rules and the configuration of a verb that evaluates events.
#[derive(Args, Debug, Default)]
pub(crate) struct RuleSources {
    /// Load rules from this file or folder instead; repeatable [default: the built-in rules and
    /// /etc/tollgate/rules.d]
    #[arg(short = 'r', long = "rules", value_name = "RULES", help_heading = RULES)]
    pub(crate) rules: Vec<PathBuf>,
    /// Also load rules from this file or folder, which can change the other rules; repeatable
    #[arg(long, value_name = "RULES", help_heading = RULES)]
    pub(crate) add_rules: Vec<PathBuf>,
    /// Turn on the rules up to this level: stable, hunting (also rules that are broad, for people who look for something)
    /// or forensic (also rules whose alerts go to the terminal or --log, file_output and recordings alone) [default:
    /// rules_level of the configuration, stable]
    #[arg(long, value_name = "LEVEL", help_heading = RULES, value_parser = level)]
    pub(crate) level: Option<Level>,
    /// Also read the configuration in FILE, in the format of falco.yaml; it overrides
    /// /etc/tollgate/config.yaml and ~/.config/tollgate/config.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE", help_heading = RULES)]
    pub(crate) config: Option<PathBuf>,
    /// Set one configuration key, such as outputs.rate=5; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE", help_heading = RULES)]
    pub(crate) options: Vec<String>,
}

impl RuleSources {
    /// Returns the settings of the command line, the most important last.
    pub(crate) fn settings(&self) -> Vec<String> {
        let level = self
            .level
            .iter()
            .map(|level| format!("rules_level={level}"));
        self.options.iter().cloned().chain(level).collect()
    }
}
