//! Options of a guarded command.

use std::ffi::OsString;
use std::path::PathBuf;

use config::Choice;

/// A command to run in a box.
#[derive(Debug)]
pub struct Guard {
    /// Options of the box.
    pub options: BoxOptions,
    /// Ask on the terminal before a connection is refused.
    pub ask: bool,
    /// Descriptor for denials as JSON.
    pub report_fd: Option<i32>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// A box to explain.
#[derive(Debug)]
pub struct Explain {
    /// Options of the box.
    pub options: BoxOptions,
    /// Print only the policy.
    pub policy: bool,
    /// Print one JSON object.
    pub json: bool,
    /// The command whose registries and caches are meant.
    pub command: Vec<OsString>,
}

/// A command whose needs are recorded.
#[derive(Debug)]
pub struct Learn {
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

/// What the command may do.
#[derive(Clone, Debug, Default)]
pub struct BoxOptions {
    /// Kind of the command.
    pub preset: Preset,
    /// Files and folders to read.
    pub allow_read: Vec<PathBuf>,
    /// Files and folders to read and change.
    pub allow_write: Vec<PathBuf>,
    /// Files and folders to execute; empty for what the preset reads.
    pub allow_exec: Vec<PathBuf>,
    /// Peers to connect to.
    pub allow_connect: Vec<String>,
    /// Files and folders that are denied although the preset allows to read them.
    pub deny_read: Vec<PathBuf>,
    /// What no preset allows.
    pub allow: Vec<Allowed>,
}

/// Kinds of commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// A coding agent.
    #[default]
    Agent,
    /// Installation of packages.
    Install,
    /// A build.
    Build,
    /// A program that needs nothing but its folder.
    Strict,
}

impl Choice for Preset {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Agent, "agent", "A coding agent"),
        (Self::Install, "install", "Installation of packages"),
        (Self::Build, "build", "A build"),
        (
            Self::Strict,
            "strict",
            "A program that needs nothing but its folder",
        ),
    ];
}

impl Preset {
    /// Returns the preset as an option has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.word()
    }
}

/// What no preset allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Tracing processes of the box.
    Ptrace,
    /// New user namespaces.
    Namespaces,
    /// Every peer.
    Network,
}

impl Choice for Allowed {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Ptrace, "ptrace", "Tracing processes of the box"),
        (Self::Namespaces, "namespaces", "New user namespaces"),
        (Self::Network, "network", "Every peer"),
    ];
}
