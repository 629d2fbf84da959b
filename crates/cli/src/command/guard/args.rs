//! The command line of `tollgate guard`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use config::Choice as _;
use guard::options::{self, Allowed, Preset};

use crate::choice::choice;

/// Heading of the options that make the box larger or smaller.
const BOX: &str = "Box options";
/// Heading of the options on denials.
const REPORT: &str = "Report options";

/// `tollgate guard`.
///
/// The exit status is that of CMD: 128+N if signal N killed it, 127 if it was not found, 126 if it
/// cannot be executed. If a layer of the box cannot be put in force nothing is run.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "CMD may write below the working directory, to caches and temporary files, read everything but \
                  credentials and the homes of others, and connect to package registries, git hosts and this \
                  host. Every denial is reported on stderr, with the option that would allow it. Needs no \
                  privileges. The exit status is that of CMD."
)]
pub(crate) struct Guard {
    #[command(subcommand)]
    pub(crate) action: Option<Action>,
    #[command(flatten)]
    pub(crate) options: BoxOptions,
    /// Ask on the terminal before a connection is refused; an answer holds for the peer until CMD ends
    #[arg(long, help_heading = REPORT)]
    pub(crate) ask: bool,
    /// Write each denial as a line of JSON to descriptor N as well
    #[arg(long, help_heading = REPORT, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) report_fd: Option<i32>,
    /// The command and its arguments
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// Verbs of `tollgate guard`.
#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Show which layers are active here, what each does not cover, and the policy
    Explain(Explain),
    /// Run a command unguarded, and print the smallest preset and options that it needs
    Learn(Learn),
}

/// `tollgate guard explain`.
#[derive(Args, Debug)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) options: BoxOptions,
    /// Print only the policy, for `tollgate enforce --policy`
    #[arg(long)]
    pub(crate) policy: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "policy")]
    pub(crate) json: bool,
    /// The command whose registries and caches are meant
    #[arg(last = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `tollgate guard learn`.
#[derive(Args, Debug)]
pub(crate) struct Learn {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// What the command may do.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct BoxOptions {
    /// What CMD is: agent reads everything but credentials; install and build read system folders, tools and
    /// the working directory; build has no network but this host; strict writes the working directory alone
    #[arg(long, value_parser = choice::<Preset>(), default_value = Preset::Agent.word(), hide_possible_values = true, value_name = "agent|install|build|strict", help_heading = BOX)]
    pub(crate) preset: Preset,
    /// Allow to read PATH, and all that is in a folder; repeatable
    #[arg(long, value_name = "PATH", help_heading = BOX)]
    pub(crate) allow_read: Vec<PathBuf>,
    /// Allow to read and change PATH, and all that is in a folder; repeatable
    #[arg(long, value_name = "PATH", help_heading = BOX)]
    pub(crate) allow_write: Vec<PathBuf>,
    /// Allow to execute only PATH, and all that is in a folder; repeatable [default: what the preset reads]
    #[arg(long, value_name = "PATH", help_heading = BOX)]
    pub(crate) allow_exec: Vec<PathBuf>,
    /// Allow to connect to HOST:PORT (HOST:*, an address, a network) or unix:PATH; repeatable
    #[arg(long, value_name = "PEER", help_heading = BOX)]
    pub(crate) allow_connect: Vec<String>,
    /// Deny PATH, which the preset would allow to read; repeatable
    #[arg(long, value_name = "PATH", help_heading = BOX)]
    pub(crate) deny_read: Vec<PathBuf>,
    /// Allow ptrace, new user namespaces, or the whole network; repeatable
    #[arg(long, value_parser = choice::<Allowed>(), value_name = "ptrace|namespaces|network", hide_possible_values = true, help_heading = BOX)]
    pub(crate) allow: Vec<Allowed>,
}

impl From<BoxOptions> for options::BoxOptions {
    fn from(args: BoxOptions) -> Self {
        Self {
            preset: args.preset,
            allow_read: args.allow_read,
            allow_write: args.allow_write,
            allow_exec: args.allow_exec,
            allow_connect: args.allow_connect,
            deny_read: args.deny_read,
            allow: args.allow,
        }
    }
}
