//! The rules and the configuration of the verbs that evaluate events.

use std::path::PathBuf;

use clap::Args;

use super::RULES;

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
    /// Also read the configuration in FILE, in the format of falco.yaml; it overrides
    /// /etc/tollgate/config.yaml and ~/.config/tollgate/config.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE", help_heading = RULES)]
    pub(crate) config: Option<PathBuf>,
    /// Set one configuration key, such as outputs.rate=5; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE", help_heading = RULES)]
    pub(crate) options: Vec<String>,
}
