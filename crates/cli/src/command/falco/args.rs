//! Falco's command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, ValueEnum};

/// How lists are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Markdown,
    Json,
}

/// `tollgate falco`, and the program when it is called `falco`.
///
/// Watches every process of this machine by Falco's rules and configuration, or replays a capture.
/// The exit status is 0, or 1 if something is wrong, as Falco's is.
#[derive(Args, Debug, Default)]
#[command(
    disable_version_flag = true,
    // As in Falco the last one counts.
    args_override_self = true,
    after_help = "The configuration is FILE.yaml of Falco 0.44 or older: what it asks for and is not \
                  done here is warned about. Without -c it is /etc/falco/falco.yaml. SIGHUP loads rules \
                  anew, as changes of their files do (watch_config_files); SIGUSR1 reopens outputs."
)]
pub(crate) struct Falco {
    /// Configuration file [default: /etc/falco/falco.yaml]
    #[arg(short = 'c', value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Rule file, or folder of rule files, instead of those of the configuration; repeatable
    #[arg(short = 'r', value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    /// Set one key of the configuration, as in `a.b[1].c=v`; repeatable
    #[arg(short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Replay this capture instead of watching
    #[arg(short = 'e', value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// End after this time; 0 is no limit
    #[arg(
        short = 'M',
        value_name = "SECONDS",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) seconds: u64,
    /// Write the pid to this file
    #[arg(short = 'P', long = "pidfile", value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,
    /// Write counters to this file, one JSON object a line
    #[arg(short = 's', value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Time between two lines of the file of -s
    #[arg(long, value_name = "MS", default_value_t = 5000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stats_interval: u64,
    /// Write each alert at once, whatever buffered_outputs says
    #[arg(short = 'U', long = "unbuffered")]
    pub(crate) unbuffered: bool,
    /// Say more
    #[arg(short = 'v')]
    pub(crate) verbose: bool,
    /// Validate this rule file and exit; repeatable
    #[arg(short = 'V', long = "validate", value_name = "RULES")]
    pub(crate) validate: Vec<PathBuf>,
    /// Show name and description of all rules and exit; with -o json_output=true everything about
    /// rules, macros and lists
    #[arg(short = 'L')]
    pub(crate) describe_all: bool,
    /// Show name and description of this rule and exit
    #[arg(short = 'l', value_name = "RULE")]
    pub(crate) describe: Option<String>,
    /// List fields and exit
    #[arg(long, value_name = "SOURCE", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    pub(crate) list: Option<String>,
    /// List event types and exit
    #[arg(long, alias = "list-syscall-events")]
    pub(crate) list_events: bool,
    /// List the events that are ignored by default, and exit
    #[arg(short = 'i')]
    pub(crate) ignored: bool,
    /// Form of --list and --list-events
    #[arg(
        long,
        value_enum,
        value_name = "text|markdown|json",
        hide_possible_values = true,
        ignore_case = true
    )]
    pub(crate) format: Option<Format>,
    /// The old word for --format markdown
    #[arg(long, conflicts_with = "format")]
    pub(crate) markdown: bool,
    /// With --list, print names only
    #[arg(short = 'N')]
    pub(crate) names_only: bool,
    /// Do everything but watch
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print what a report of a problem needs, as JSON, and exit
    #[arg(long)]
    pub(crate) support: bool,
    /// Print the version and exit
    #[arg(long)]
    pub(crate) version: bool,
    /// Print the size of a page of memory and exit
    #[arg(long)]
    pub(crate) page_size: bool,
    /// Print the configuration's keys as a JSON schema and exit
    #[arg(long)]
    pub(crate) config_schema: bool,
    /// Print the form of rule files as a JSON schema and exit
    #[arg(long)]
    pub(crate) rule_schema: bool,
    /// Print what of Falco there is here, as Markdown, and exit
    #[arg(long, hide = true)]
    pub(crate) compat: bool,
    /// List plugins and exit
    #[arg(long)]
    pub(crate) list_plugins: bool,
    /// Show a plugin and exit
    #[arg(long, value_name = "PLUGIN")]
    pub(crate) plugin_info: Option<String>,
    /// Take events of this source only; repeatable
    #[arg(long, value_name = "SOURCE")]
    pub(crate) enable_source: Vec<String>,
    /// Take no events of this source; repeatable
    #[arg(long, value_name = "SOURCE", conflicts_with = "enable_source")]
    pub(crate) disable_source: Vec<String>,
    /// Append this to outputs; c and k stand for container and pod
    #[arg(short = 'p', long = "print", value_name = "FORMAT")]
    pub(crate) print: Option<String>,
    #[command(flatten)]
    pub(crate) old: Old,
}

/// What Falco's command line had once.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Of older versions")]
pub(crate) struct Old {
    /// Leave out rules with this text in their name; repeatable
    #[arg(short = 'D', value_name = "TEXT")]
    pub(crate) disable_rules: Vec<String>,
    /// Leave out rules with this tag; repeatable
    #[arg(short = 'T', value_name = "TAG")]
    pub(crate) disable_tags: Vec<String>,
    /// Leave out rules without this tag; repeatable
    #[arg(short = 't', value_name = "TAG")]
    pub(crate) only_tags: Vec<String>,
    /// The same as -o base_syscalls.all=true
    #[arg(short = 'A')]
    pub(crate) all_events: bool,
    /// The same as -o buffer_format_base64=true
    #[arg(short = 'b', long = "print-base64")]
    pub(crate) base64: bool,
    /// The same as -o falco_libs.snaplen=BYTES
    #[arg(short = 'S', long = "snaplen", value_name = "BYTES")]
    pub(crate) snaplen: Option<u32>,
    /// The same as -o engine.kind=modern_ebpf
    #[arg(long)]
    pub(crate) modern_bpf: bool,
    /// The same as -o engine.kind=nodriver
    #[arg(long)]
    pub(crate) nodriver: bool,
    /// No effect: it stays in the foreground
    #[arg(short = 'd', long = "daemon")]
    pub(crate) daemon: bool,
    /// No effect: container runtimes are found by their state on disk
    #[arg(long, value_name = "SOCKET")]
    pub(crate) cri: Vec<PathBuf>,
    /// No effect: as --cri
    #[arg(long)]
    pub(crate) disable_cri_async: bool,
    /// No effect: the Kubernetes API is not asked
    #[arg(short = 'k', long = "k8s-api", value_name = "URL")]
    pub(crate) k8s_api: Option<String>,
    /// No effect: as -k
    #[arg(short = 'K', long = "k8s-api-cert", value_name = "FILE")]
    pub(crate) k8s_api_cert: Option<String>,
    /// No effect: as -k
    #[arg(long, value_name = "NODE")]
    pub(crate) k8s_node: Option<String>,
    /// No effect: Mesos is not asked
    #[arg(short = 'm', long = "mesos-api", value_name = "URL")]
    pub(crate) mesos_api: Option<String>,
    /// Refused: the engine in user space is gone
    #[arg(short = 'u', long = "userspace")]
    pub(crate) userspace: bool,
    /// Watch sandboxes of gVisor by this trace session; the same as engine.kind gvisor and its config
    #[arg(short = 'g', long = "gvisor-config", value_name = "FILE")]
    pub(crate) gvisor_config: Option<PathBuf>,
    /// Print the trace session that the rules ask for, with this socket, and exit
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true,
          default_missing_value = "/run/falco/gvisor.sock")]
    pub(crate) gvisor_generate_config: Option<PathBuf>,
    /// No effect: containers are known by what gVisor and their runtimes write down
    #[arg(long, value_name = "DIR")]
    pub(crate) gvisor_root: Option<String>,
    /// Words that Falco passes over
    #[arg(hide = true, action = ArgAction::Append)]
    pub(crate) rest: Vec<OsString>,
}
