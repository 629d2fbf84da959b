//! The command line of `tollgate generate`, with the options of Falco's event generator.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use regex::Regex;

use crate::args::Engine;

/// `tollgate generate`.
#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// List actions
    List(List),
    /// Play actions
    Run(Run),
    /// Play actions and check that a detector alerts on each
    Test(Box<Test>),
    /// Find where a detector breaks: more and more actions a second, until alerts are lost
    Bench(Box<Bench>),
    /// Tests that are described in YAML: processes, resources, calls, and the alert to expect
    #[command(subcommand, arg_required_else_help = true)]
    Suite(Suite),
    /// Play one action; for the generator itself
    #[command(hide = true)]
    Perform(Perform),
    /// Play actions over and over; for the generator itself
    #[command(hide = true)]
    Work(Work),
    /// Play one described test; for the generator itself
    #[command(hide = true)]
    Scene(Scene),
    /// Clean up when the standard input ends; for the generator itself
    #[command(hide = true)]
    Sweep(Sweep),
}

/// How an action is played; for the generator itself.
#[derive(Args, Clone, Debug)]
pub(crate) struct Perform {
    /// The action
    pub(super) name: String,
    /// The folder of the run
    #[arg(long)]
    pub(super) scratch: PathBuf,
    /// This process is a part that the action has started under another name, with a folder in this one
    #[arg(long, value_name = "FOLDER")]
    pub(super) spawned: Option<PathBuf>,
    /// Take this for a container, or for none, instead of finding out
    #[arg(long)]
    pub(super) container: Option<bool>,
    /// Change folders of the system where they cannot be covered by layers
    #[arg(long = "unsafe")]
    pub(super) touch_system: bool,
    /// Leave this address to the real network
    #[arg(long, value_name = "ADDRESS")]
    pub(super) allow_network: Vec<IpAddr>,
    /// As whom
    #[arg(long = "as", value_name = "USER")]
    pub(super) user: Option<String>,
    /// Milliseconds to wait first
    #[arg(long, default_value_t = 0)]
    pub(super) after: u64,
}

/// How actions are played; for the generator itself.
#[derive(Args, Clone, Debug)]
pub(crate) struct Work {
    /// How many play at the same time
    #[arg(long, default_value_t = 1)]
    pub(super) threads: u16,
    /// Further actions
    #[arg(long = "and", value_name = "NAME")]
    pub(super) more: Vec<String>,
    /// How the first is played, and all others
    #[command(flatten)]
    pub(super) perform: Perform,
}

/// For the process that makes the surroundings.
#[derive(Args, Clone, Debug)]
pub(crate) struct Scene {
    /// The scenario, as JSON
    #[arg(long)]
    pub(super) file: PathBuf,
    /// The folder of the run
    #[arg(long)]
    pub(super) scratch: PathBuf,
    /// Change the machine where layers cannot be had
    #[arg(long = "unsafe")]
    pub(super) touch_system: bool,
    /// Leave this address to the real network
    #[arg(long, value_name = "ADDRESS")]
    pub(super) allow_network: Vec<IpAddr>,
    /// This process is the first of the container
    #[arg(long)]
    pub(super) inside: bool,
}

/// For the janitor.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sweep {
    /// The folder to remove when the standard input ends
    #[arg(long)]
    pub(super) scratch: PathBuf,
}

/// Which actions.
#[derive(Args, Clone, Debug)]
pub(crate) struct Selection {
    /// Only actions whose names this regular expression fits, as in ^syscall.Write
    #[arg(value_name = "REGEXP")]
    pub(crate) pattern: Option<Regex>,
    /// Also actions whose rules Falco does not load by default
    #[arg(long)]
    pub(crate) all: bool,
}

/// `tollgate generate list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Also what each does, which rule it is for, what it needs and what it changes
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Print JSON, one action a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// How actions are played.
#[derive(Args, Clone, Debug)]
pub(crate) struct Play {
    /// Time to wait before each action, as in 100ms, 2s
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    pub(crate) sleep: Duration,
    /// Start again at the end
    #[arg(long = "loop")]
    pub(crate) repeat: bool,
    /// As whom to play; the generator has to run as root for this
    #[arg(long = "as", value_name = "USER")]
    pub(crate) user: Option<String>,
    /// Change folders of the system where they cannot be covered by a layer that vanishes
    #[arg(long = "unsafe")]
    pub(crate) touch_system: bool,
    /// Let actions contact this address for real; otherwise they do so in a network of their own
    /// that has it, or not at all. Repeatable
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) allow_network: Vec<IpAddr>,
    /// Whether this is a container, where that cannot be found out
    #[arg(long, value_name = "true|false", hide_possible_values = true)]
    pub(crate) container: Option<bool>,
}

/// `tollgate generate run`.
#[derive(Args, Debug)]
#[command(
    after_help = "What actions change is covered by layers that vanish with the process that \
                        plays, or removed, also if the generator is killed. `list --long` says \
                        what each changes. The exit status is 1 if an action failed."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) play: Play,
    /// Print JSON, one action a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate generate test`.
#[derive(Args, Debug)]
#[command(
    after_help = "Alerts come from the HTTP output of a detector that runs (http_output with \
                        json_output, as Falco and tollgate have it), from its gRPC output, from a file that it writes, \
                        or with --watched from a `tollgate run` that plays each action. The exit \
                        status is 1 if an action failed or no alert came."
)]
pub(crate) struct Test {
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) play: Play,
    #[command(flatten)]
    pub(crate) source: Source,
    /// How long to wait for an alert
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) test_timeout: Duration,
    /// Print JSON, one action a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate generate bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "The detector must not limit its alerts: set outputs.rate to 0. Rounds go on \
                        until this program is stopped, unless --rounds or --knee says otherwise. \
                        Actions that failed are not counted as played."
)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) play: Play,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Length of a round; --loop halves --sleep after each
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) round_duration: Duration,
    /// Stop after so many rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Go on until alerts or events are lost, or no more can be played; then print the highest and
    /// the average rates before. Implies --loop
    #[arg(long)]
    pub(crate) knee: bool,
    /// The detector, whose processor time and memory are measured
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// Time between two looks at the detector
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration)]
    pub(crate) polling_interval: Duration,
    /// Numbers as people write them
    #[arg(long, value_name = "true|false", default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) humanize: bool,
    /// Play only: no alerts are expected
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How many threads play
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Open a file that no rule cares for so many times after each action, for calls that the detector
    /// has to look at without an alert
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) calls: u32,
    /// The detector's file of counters, as `tollgate run -s` writes it: calls a second, drops
    #[arg(long, value_name = "FILE", conflicts_with = "metrics")]
    pub(crate) stats: Option<PathBuf>,
    /// The detector's counters by HTTP, in the form of Prometheus, as in http://localhost:8765/metrics
    #[arg(long, value_name = "URL")]
    pub(crate) metrics: Option<String>,
    /// Limit the detector to so many processors, by control groups; several, as in 0.5,1,2, make a
    /// table
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = processors)]
    pub(crate) cpus: Vec<f64>,
    /// Limit the detector's memory, as in 512M
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Form of what is printed: text and json as the event generator of Falco, or a table
    #[arg(long, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true,
          value_name = "text|json|table")]
    pub(crate) logformat: LogFormat,
    /// Append each round to this file, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Draw the rates to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// `tollgate generate suite`.
#[derive(Debug, Subcommand)]
pub(crate) enum Suite {
    /// Print what a description may hold
    Explain(SuiteExplain),
    /// Play described tests
    Run(SuiteRun),
    /// Play described tests and check that a detector alerts as they expect
    Test(Box<SuiteTest>),
}

/// `tollgate generate suite explain`.
#[derive(Args, Debug)]
pub(crate) struct SuiteExplain {
    /// Where in a description, as in tests.steps{type=syscall}{syscall=openat2}.args
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// The same words beside the path, as in tests.steps.type=syscall
    #[arg(long, value_name = "CHOICE", value_delimiter = ',', requires = "path")]
    pub(crate) with: Vec<String>,
}

/// Which tests, and what they may do.
#[derive(Args, Clone, Debug)]
pub(crate) struct Descriptions {
    /// File with tests; repeatable, or several with commas between them
    #[arg(short = 'f', long, value_name = "FILE", value_delimiter = ',')]
    pub(crate) description_file: Vec<PathBuf>,
    /// Folder with such files, which end in .yaml; repeatable, or several with commas
    #[arg(short = 'd', long, value_name = "DIR", value_delimiter = ',')]
    pub(crate) description_dir: Vec<PathBuf>,
    /// Tests, as YAML
    #[arg(long, value_name = "YAML")]
    pub(crate) description: Option<String>,
    /// How long all tests may take
    #[arg(short = 't', long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Change the machine where it cannot be covered by a layer that vanishes
    #[arg(long = "unsafe")]
    pub(crate) touch_system: bool,
    /// Let tests contact this address for real; repeatable
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) allow_network: Vec<IpAddr>,
}

/// `tollgate generate suite run`.
#[derive(Args, Debug)]
pub(crate) struct SuiteRun {
    #[command(flatten)]
    pub(crate) descriptions: Descriptions,
    /// Form of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text, hide_possible_values = true,
          value_name = "text|json|yaml")]
    pub(crate) report_format: ReportFormat,
}

/// `tollgate generate suite test`.
#[derive(Args, Debug)]
pub(crate) struct SuiteTest {
    #[command(flatten)]
    pub(crate) descriptions: Descriptions,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Only play
    #[arg(long)]
    pub(crate) skip_outcome_verification: bool,
    /// Form of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text, hide_possible_values = true,
          value_name = "text|json|yaml")]
    pub(crate) report_format: ReportFormat,
}

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReportFormat {
    /// For people
    Text,
    /// One object a line for each rule
    Json,
    /// The same as one list
    Yaml,
}

/// The gRPC output of a detector: of tollgate, and of Falco before 0.44. Any of these options chooses it.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Grpc {
    /// Take alerts from the gRPC output of a detector at this socket [default, if another option of
    /// gRPC is given: unix:///run/falco/falco.sock]
    #[arg(long, value_name = "unix:///PATH")]
    pub(crate) grpc_unix_socket: Option<String>,
    /// Take them over TCP, from this host [default with --grpc-port: localhost]
    #[arg(long, value_name = "HOST")]
    pub(crate) grpc_hostname: Option<String>,
    /// The port there [default with --grpc-hostname: 5060]
    #[arg(long, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,
    /// Who vouches for the detector, over TCP [default: /etc/falco/certs/ca.crt]
    #[arg(long, value_name = "FILE")]
    pub(crate) grpc_ca: Option<PathBuf>,
    /// The certificate to show to it, over TCP [default: /etc/falco/certs/client.crt]
    #[arg(long, value_name = "FILE")]
    pub(crate) grpc_cert: Option<PathBuf>,
    /// Its key [default: /etc/falco/certs/client.key]
    #[arg(long, value_name = "FILE")]
    pub(crate) grpc_key: Option<PathBuf>,
}

/// The form of what a benchmark prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Words and values
    Text,
    /// One object a line
    Json,
    /// One row a round
    Table,
}

/// Where alerts come from.
#[derive(Args, Clone, Debug)]
pub(crate) struct Source {
    /// Where to listen for the detector's HTTP output
    #[arg(long, value_name = "ADDRESS", default_value = "localhost:8080")]
    pub(crate) http_server_address: String,
    /// What the detector has to bring: nothing, belief in the server's certificate, or a certificate
    #[arg(long, value_enum, default_value_t = Security::Insecure, hide_possible_values = true,
          value_name = "insecure|tls|mtls")]
    pub(crate) http_server_security_mode: Security,
    /// The server's certificate
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/falco/certs/server.crt"
    )]
    pub(crate) http_server_cert: PathBuf,
    /// The server's key
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/falco/certs/server.key"
    )]
    pub(crate) http_server_key: PathBuf,
    /// Who vouches for the detector, with mtls
    #[arg(long, value_name = "FILE", default_value = "/etc/falco/certs/ca.crt")]
    pub(crate) http_client_ca: PathBuf,
    #[command(flatten)]
    pub(crate) grpc: Grpc,
    /// Read alerts from the end of this file on, one JSON object a line
    #[arg(long, value_name = "FILE", conflicts_with = "watched")]
    pub(crate) alerts_file: Option<PathBuf>,
    /// Start the detector: play under `tollgate run`
    #[arg(long)]
    pub(crate) watched: bool,
    /// With --watched: rule file or folder [default: the built-in rules and those of rules/more.yaml]
    #[arg(
        short = 'r',
        long = "rules",
        value_name = "RULES",
        requires = "watched"
    )]
    pub(crate) rules: Vec<PathBuf>,
    /// With --watched: how events are captured
    #[arg(long, value_enum, default_value_t = Engine::Auto, hide_possible_values = true,
          value_name = "auto|notify|ptrace|ebpf", requires = "watched")]
    pub(crate) engine: Engine,
}

/// Who is let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Security {
    /// Plain HTTP
    Insecure,
    /// HTTPS
    Tls,
    /// HTTPS; the detector must show a certificate
    Mtls,
}

/// A duration as Go programs write it: numbers with units, as in 1m30s or 250ms.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a duration, as in 250ms, 1.5s, 2m".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_error| wrong())?;
        rest = &rest[digits..];
        let units = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let seconds = match &rest[..units] {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        rest = &rest[units..];
        sum += Duration::try_from_secs_f64(number * seconds).map_err(|error| error.to_string())?;
    }
    if text.is_empty() {
        Err(wrong())
    } else {
        Ok(sum)
    }
}

/// A number of processors.
fn processors(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(count) if (0.01..=4096.0).contains(&count) => Ok(count),
        _ => Err("expected a number of processors from 0.01 on, as in 0.5".to_owned()),
    }
}

/// A number of bytes with a unit of 1024s.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || "expected a size, as in 512M or 2G".to_owned();
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit.to_ascii_uppercase().trim_end_matches("IB") {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_error| wrong())?;
    number
        .checked_mul(1 << shift)
        .filter(|size| *size > 0)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!(size("100"), Ok(100));
        for text in ["", "0", "M", "1T", "99999999999G"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        for (text, milliseconds) in [("250ms", 250), ("1.5s", 1500), ("1m30s", 90_000), ("0", 0)] {
            assert_eq!(
                duration(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        assert_eq!(duration("300us"), Ok(Duration::from_micros(300)));
        for text in ["", "5", "s", "1x", "-1s", "1..5s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
