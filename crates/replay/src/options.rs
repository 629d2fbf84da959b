//! Options of a replay.

use std::path::PathBuf;

use agent::options::AlertStream;
use agent::plugins::Plugins;
use config::{CompatMode, Places};

/// Captures, and what to do with their events: with `fields` or `filter` they are printed, else rules are evaluated.
#[derive(Debug)]
pub struct ReplayOptions {
    /// Captures to read, in this order; `-` is the standard input.
    pub files: Vec<PathBuf>,
    /// Rule files and directories of them; empty for those of the configuration.
    pub rules: Vec<PathBuf>,
    /// Rule files and directories that are loaded after the others.
    pub add_rules: Vec<PathBuf>,
    /// Configuration file in the format of Falco's `falco.yaml`.
    pub config: Option<PathBuf>,
    /// Settings that override the file, such as `outputs.rate=5`.
    pub options: Vec<String>,
    /// Write alerts or events as JSON.
    pub json: bool,
    /// Where the alert stream goes.
    pub stream: AlertStream,
    /// Format of a printed event.
    pub fields: Option<String>,
    /// Condition of the events that are printed.
    pub filter: Option<String>,
    /// Print statistics at the end.
    pub stats: bool,
    /// Print no warnings and no progress.
    pub quiet: bool,
    /// Seconds of a capture to replay, from its first event on.
    pub seconds: Option<u64>,
    /// Whose conventions apply.
    pub manner: CompatMode,
    /// Files of the machine and the user that are read without being named.
    pub places: Places,
    /// The plugins of the configuration; `None` if they are not loaded yet.
    pub plugins: Option<Plugins>,
}
