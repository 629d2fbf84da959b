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

/// Headings of options in help texts.
const CAPTURE: &str = "Capture options";
const CONFIGURATION: &str = "Rule and configuration options";
const OUTPUT: &str = "Output options";
const QUERY: &str = "Options that print something and exit";

/// `tollgate falco`, and the program when it is called `falco`.
///
/// Watches all processes with Falco's rules and configuration, or replays a capture. The exit status is 0,
/// or 1 after an error, as Falco's is.
#[derive(Args, Debug, Default)]
#[command(
    disable_version_flag = true,
    // As in Falco the last one counts.
    args_override_self = true,
    after_help = "Reads falco.yaml of Falco 0.44 or older, and warns about keys that have no effect here. SIGHUP \
                  reloads the rules, as a change of a rule file does (watch_config_files); SIGUSR1 reopens \
                  the outputs. The exit status is 0, or 1 after an error."
)]
pub(crate) struct Falco {
    /// Read the configuration from FILE [default: /etc/falco/falco.yaml]
    #[arg(help_heading = CONFIGURATION, short = 'c', value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Load rules from this file or folder instead of those of the configuration; repeatable
    #[arg(help_heading = CONFIGURATION, short = 'r', value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    /// Set one configuration key, such as `a.b[1].c=v`; repeatable
    #[arg(help_heading = CONFIGURATION, short = 'o', long = "option", value_name = "KEY=VALUE")]
    pub(crate) options: Vec<String>,
    /// Replay this capture instead of watching
    #[arg(help_heading = CAPTURE, short = 'e', value_name = "FILE")]
    pub(crate) replay: Option<PathBuf>,
    /// Stop after SECONDS seconds; 0 is no limit
    #[arg(
        help_heading = CAPTURE,
        short = 'M',
        value_name = "SECONDS",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) seconds: u64,
    /// Write the process ID to FILE
    #[arg(help_heading = OUTPUT, short = 'P', long = "pidfile", value_name = "FILE")]
    pub(crate) pidfile: Option<PathBuf>,
    /// Write counters to FILE, one JSON object a line
    #[arg(help_heading = OUTPUT, short = 's', value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,
    /// Milliseconds between two lines of the file of -s
    #[arg(help_heading = OUTPUT, long, value_name = "MS", default_value_t = 5000,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) stats_interval: u64,
    /// Write each alert at once, even if buffered_outputs is true
    #[arg(help_heading = OUTPUT, short = 'U', long = "unbuffered")]
    pub(crate) unbuffered: bool,
    /// Print more messages
    #[arg(help_heading = OUTPUT, short = 'v')]
    pub(crate) verbose: bool,
    /// Validate this rule file and exit; repeatable
    #[arg(help_heading = QUERY, short = 'V', long = "validate", value_name = "RULES")]
    pub(crate) validate: Vec<PathBuf>,
    /// Show the names and descriptions of all rules and exit; with -o json_output=true, show all details of
    /// rules, macros and lists
    #[arg(help_heading = QUERY, short = 'L')]
    pub(crate) describe_all: bool,
    /// Show the name and description of RULE and exit
    #[arg(help_heading = QUERY, short = 'l', value_name = "RULE")]
    pub(crate) describe: Option<String>,
    /// List the fields of SOURCE and exit [default: of all sources]
    #[arg(help_heading = QUERY, long, value_name = "SOURCE", num_args = 0..=1, require_equals = true,
          default_missing_value = "")]
    pub(crate) list: Option<String>,
    /// List the event types and exit
    #[arg(help_heading = QUERY, long, alias = "list-syscall-events")]
    pub(crate) list_events: bool,
    /// List the events that are ignored by default, and exit
    #[arg(help_heading = QUERY, short = 'i')]
    pub(crate) ignored: bool,
    /// Format of --list and --list-events [default: text]
    #[arg(
        help_heading = QUERY,
        long,
        value_enum,
        value_name = "text|markdown|json",
        hide_possible_values = true,
        ignore_case = true
    )]
    pub(crate) format: Option<Format>,
    /// Old name of --format markdown
    #[arg(help_heading = QUERY, long, conflicts_with = "format")]
    pub(crate) markdown: bool,
    /// With --list, print names only
    #[arg(help_heading = QUERY, short = 'N')]
    pub(crate) names_only: bool,
    /// Load configuration and rules, and exit without watching
    #[arg(help_heading = QUERY, long)]
    pub(crate) dry_run: bool,
    /// Print versions, configuration and rules for a bug report as JSON, and exit
    #[arg(help_heading = QUERY, long)]
    pub(crate) support: bool,
    /// Print the version and exit
    #[arg(help_heading = QUERY, long)]
    pub(crate) version: bool,
    /// Print the memory page size in bytes and exit
    #[arg(help_heading = QUERY, long)]
    pub(crate) page_size: bool,
    /// Print the JSON schema of the configuration and exit
    #[arg(help_heading = QUERY, long)]
    pub(crate) config_schema: bool,
    /// Print the JSON schema of rule files and exit
    #[arg(help_heading = QUERY, long)]
    pub(crate) rule_schema: bool,
    /// Print a Markdown table of the supported parts of Falco, and exit
    #[arg(long, hide = true)]
    pub(crate) compat: bool,
    /// List plugins and exit
    #[arg(help_heading = QUERY, long)]
    pub(crate) list_plugins: bool,
    /// Show PLUGIN and exit
    #[arg(help_heading = QUERY, long, value_name = "PLUGIN")]
    pub(crate) plugin_info: Option<String>,
    /// Capture only events of SOURCE; repeatable [default: all sources]
    #[arg(help_heading = CAPTURE, long, value_name = "SOURCE")]
    pub(crate) enable_source: Vec<String>,
    /// Capture no events of SOURCE; repeatable
    #[arg(help_heading = CAPTURE, long, value_name = "SOURCE", conflicts_with = "enable_source")]
    pub(crate) disable_source: Vec<String>,
    /// Append FORMAT to the output of every rule; c and k add container and pod fields
    #[arg(help_heading = OUTPUT, short = 'p', long = "print", value_name = "FORMAT")]
    pub(crate) print: Option<String>,
    #[command(flatten)]
    pub(crate) old: Old,
}

/// Options of older versions of Falco.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Options of older Falco versions")]
pub(crate) struct Old {
    /// Disable rules with TEXT in their name; repeatable
    #[arg(short = 'D', value_name = "TEXT")]
    pub(crate) disable_rules: Vec<String>,
    /// Disable rules with this tag; repeatable
    #[arg(short = 'T', value_name = "TAG")]
    pub(crate) disable_tags: Vec<String>,
    /// Disable rules without this tag; repeatable
    #[arg(short = 't', value_name = "TAG")]
    pub(crate) only_tags: Vec<String>,
    /// Same as -o base_syscalls.all=true
    #[arg(short = 'A')]
    pub(crate) all_events: bool,
    /// Same as -o buffer_format_base64=true
    #[arg(short = 'b', long = "print-base64")]
    pub(crate) base64: bool,
    /// Same as -o falco_libs.snaplen=BYTES
    #[arg(short = 'S', long = "snaplen", value_name = "BYTES")]
    pub(crate) snaplen: Option<u32>,
    /// Same as -o engine.kind=modern_ebpf
    #[arg(long)]
    pub(crate) modern_bpf: bool,
    /// Same as -o engine.kind=nodriver
    #[arg(long)]
    pub(crate) nodriver: bool,
    /// No effect: the program runs in the foreground
    #[arg(short = 'd', long = "daemon")]
    pub(crate) daemon: bool,
    /// No effect: containers are found in the state files of their runtimes
    #[arg(long, value_name = "SOCKET")]
    pub(crate) cri: Vec<PathBuf>,
    /// No effect, like --cri
    #[arg(long)]
    pub(crate) disable_cri_async: bool,
    /// No effect: the Kubernetes API is not used
    #[arg(short = 'k', long = "k8s-api", value_name = "URL")]
    pub(crate) k8s_api: Option<String>,
    /// No effect, like -k
    #[arg(short = 'K', long = "k8s-api-cert", value_name = "FILE")]
    pub(crate) k8s_api_cert: Option<String>,
    /// No effect, like -k
    #[arg(long, value_name = "NODE")]
    pub(crate) k8s_node: Option<String>,
    /// No effect: Mesos is not used
    #[arg(short = 'm', long = "mesos-api", value_name = "URL")]
    pub(crate) mesos_api: Option<String>,
    /// Refused: the userspace engine was removed from Falco
    #[arg(short = 'u', long = "userspace")]
    pub(crate) userspace: bool,
    /// Watch gVisor sandboxes with the trace session in FILE; same as engine.kind=gvisor
    #[arg(short = 'g', long = "gvisor-config", value_name = "FILE")]
    pub(crate) gvisor_config: Option<PathBuf>,
    /// Print the trace session that the rules need, with this socket, and exit
    #[arg(long, value_name = "SOCKET", num_args = 0..=1, require_equals = true,
          default_missing_value = "/run/falco/gvisor.sock")]
    pub(crate) gvisor_generate_config: Option<PathBuf>,
    /// No effect: containers are found in the state files of gVisor and other runtimes
    #[arg(long, value_name = "DIR")]
    pub(crate) gvisor_root: Option<String>,
    /// Extra arguments, which Falco ignores
    #[arg(hide = true, action = ArgAction::Append)]
    pub(crate) rest: Vec<OsString>,
}
