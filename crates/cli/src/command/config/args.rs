//! The command line of `tollgate config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::args::AddedRules;

/// `tollgate config`.
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Show the effective configuration, and where each value comes from
    Show(Show),
    /// Check the configuration for errors
    Check(Check),
}

/// `tollgate config show`.
#[derive(Args, Debug)]
#[command(after_help = FILES)]
pub(crate) struct Show {
    /// Also read the configuration in FILE, in the format of falco.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one configuration key, such as outputs.rate=5; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    #[command(flatten)]
    pub(crate) added: AddedRules,
    /// Show only keys that a file or an option sets
    #[arg(long)]
    pub(crate) changed: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate config check`.
#[derive(Args, Debug)]
#[command(after_help = FILES)]
pub(crate) struct Check {
    /// Check only FILE [default: the configuration that `tollgate run` reads, and its rules]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const FILES: &str = "\
Files, each overriding those before:
  /etc/tollgate/config.yaml
  $XDG_CONFIG_HOME/tollgate/config.yaml, by default ~/.config/tollgate/config.yaml
  the file that --config names
  options -o KEY=VALUE

TOLLGATE_CONFIG_DIR=DIR replaces the first two by DIR/config.yaml, and /etc/tollgate/rules.d by DIR/rules.d; \
empty, it turns them off. When root runs tollgate, files that another user can change are refused.";
