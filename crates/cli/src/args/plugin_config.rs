//! The configuration whose plugins rules may refer to.

use std::path::PathBuf;

use clap::Args;

/// The configuration of a verb that reads rules and watches nothing.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct PluginConfig {
    /// Also read the configuration in FILE, in the format of falco.yaml, whose plugins have the event sources of rules; it
    /// overrides /etc/tollgate/config.yaml and ~/.config/tollgate/config.yaml
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Set one configuration key, such as plugin_host.timeout=5000; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
}
