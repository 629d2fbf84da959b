//! The command line of `tollgate generate`, with the options of Falco's event generator.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use regex::Regex;

use crate::engine::Engine;

/// Headings of options in help texts.
const ACTIONS: &str = "Action options";
const MEASUREMENT: &str = "Measurement options";
const REPORT: &str = "Report options";
const ROUNDS: &str = "Round options";
const SOURCE: &str = "Alert source options";
const TESTS: &str = "Test options";

/// `tollgate generate`.
#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// List the actions, such as reading /etc/shadow
    List(List),
    /// Perform actions
    Run(Run),
    /// Perform actions and check that a detector alerts on each
    Test(Box<Test>),
    /// Find the rate at which a detector loses alerts
    Bench(Box<Bench>),
    /// Run tests in YAML: processes, resources, calls, and the alerts to expect
    #[command(subcommand, arg_required_else_help = true)]
    Suite(Suite),
    /// Perform one action; internal verb
    #[command(hide = true)]
    Perform(Perform),
    /// Perform actions repeatedly; internal verb
    #[command(hide = true)]
    Work(Work),
    /// Run one YAML test; internal verb
    #[command(hide = true)]
    Scene(Scene),
    /// Remove a folder when standard input closes; internal verb
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
    /// Use only the actions whose name matches this regular expression, such as ^syscall.Write [default: all]
    #[arg(value_name = "REGEXP")]
    pub(crate) pattern: Option<Regex>,
    /// Include actions for rules that Falco does not load by default
    #[arg(long)]
    pub(crate) all: bool,
}

/// `tollgate generate list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Show what each action does, its rule, its requirements and what it changes
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Print JSON, one object a line for each action
    #[arg(long)]
    pub(crate) json: bool,
}

/// How actions are played.
#[derive(Args, Clone, Debug)]
pub(crate) struct Play {
    /// Time to wait before each action, such as 100ms or 2s
    #[arg(long, help_heading = ACTIONS, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    pub(crate) sleep: Duration,
    /// Repeat the actions until interrupted
    #[arg(long = "loop", help_heading = ACTIONS)]
    pub(crate) repeat: bool,
    /// Perform actions as USER; needs root [default: the current user]
    #[arg(long = "as", value_name = "USER", help_heading = ACTIONS)]
    pub(crate) user: Option<String>,
    /// Allow changes to system folders where no temporary overlay can be mounted
    #[arg(long = "unsafe", help_heading = ACTIONS)]
    pub(crate) touch_system: bool,
    /// Let actions connect to this address on the real network; repeatable [default: connect only within a
    /// private network namespace]
    #[arg(long, value_name = "ADDRESS", help_heading = ACTIONS)]
    pub(crate) allow_network: Vec<IpAddr>,
    /// Whether actions run in a container [default: detected]
    #[arg(long, help_heading = ACTIONS, value_name = "true|false", hide_possible_values = true)]
    pub(crate) container: Option<bool>,
}

/// `tollgate generate run`.
#[derive(Args, Debug)]
#[command(
    after_help = "Actions change files in temporary overlays, or undo their changes, even if the generator is \
                  killed. `tollgate generate list --long` shows what each action changes. The exit status \
                  is 1 if an action failed."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) play: Play,
    /// Print JSON, one object a line for each action
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate generate test`.
#[derive(Args, Debug)]
#[command(
    after_help = "Alerts are received from the HTTP output of a running detector (Falco or tollgate with \
                  http_output and json_output), from its gRPC output, from a file that it writes, or with \
                  --watched from `tollgate run`, which starts each action. The exit status is 1 if an \
                  action failed or an alert is missing."
)]
pub(crate) struct Test {
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) play: Play,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Time to wait for each alert
    #[arg(long, help_heading = ACTIONS, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) test_timeout: Duration,
    /// Print JSON, one object a line for each action
    #[arg(long)]
    pub(crate) json: bool,
}

/// `tollgate generate bench`.
#[derive(Args, Debug)]
#[command(
    after_help = "The detector must not limit its alerts: set outputs.rate to 0. Rounds repeat until \
                  interrupted, unless --rounds or --knee is given. Failed actions are not counted."
)]
pub(crate) struct Bench {
    #[command(flatten)]
    pub(crate) selection: Selection,
    #[command(flatten)]
    pub(crate) play: Play,
    #[command(flatten)]
    pub(crate) source: Source,
    /// Length of a round; --loop halves --sleep after each
    #[arg(long, help_heading = ROUNDS, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) round_duration: Duration,
    /// Stop after N rounds [default: no limit]
    #[arg(long, help_heading = ROUNDS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Raise the rate until alerts or events are lost, then print the highest and the average rate before
    /// that; implies --loop
    #[arg(long, help_heading = ROUNDS)]
    pub(crate) knee: bool,
    /// Measure CPU time and memory of the detector with this process ID [default: not measured]
    #[arg(long, help_heading = MEASUREMENT, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// Time between two measurements of the detector
    #[arg(long, help_heading = MEASUREMENT, value_name = "DURATION", default_value = "500ms", value_parser = duration)]
    pub(crate) polling_interval: Duration,
    /// Print numbers with units, such as 1.5k
    #[arg(long, help_heading = REPORT, value_name = "true|false", default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set, hide_possible_values = true)]
    pub(crate) humanize: bool,
    /// Perform the actions without expecting alerts
    #[arg(long, help_heading = ROUNDS)]
    pub(crate) dry_run: bool,
    /// Number of threads that perform actions
    #[arg(long, help_heading = ROUNDS, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Open a file that no rule matches N times after each action, as background load
    #[arg(long, help_heading = ROUNDS, value_name = "N", default_value_t = 0)]
    pub(crate) calls: u32,
    /// Read rates and drops from the detector's stats file, as written by `tollgate run -s`
    #[arg(long, help_heading = MEASUREMENT, value_name = "FILE", conflicts_with = "metrics")]
    pub(crate) stats: Option<PathBuf>,
    /// Read rates and drops from the detector's Prometheus metrics, such as http://localhost:8765/metrics
    #[arg(long, help_heading = MEASUREMENT, value_name = "URL")]
    pub(crate) metrics: Option<String>,
    /// Limit the detector to N CPUs with control groups; a list such as 0.5,1,2 prints a table [default: no
    /// limit]
    #[arg(long, help_heading = MEASUREMENT, value_name = "N", value_delimiter = ',', value_parser = processors)]
    pub(crate) cpus: Vec<f64>,
    /// Limit the detector's memory, such as 512M [default: no limit]
    #[arg(long, help_heading = MEASUREMENT, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// Output format; text and json match the event generator of Falco
    #[arg(long, help_heading = REPORT, value_enum, default_value_t = LogFormat::Text, hide_possible_values = true,
          value_name = "text|json|table")]
    pub(crate) logformat: LogFormat,
    /// Append each round to FILE, one JSON object a line
    #[arg(long, help_heading = REPORT, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// Write a graph of the rates to FILE (SVG)
    #[arg(long, help_heading = REPORT, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// `tollgate generate suite`.
#[derive(Debug, Subcommand)]
pub(crate) enum Suite {
    /// Print the keys of a test file
    Explain(SuiteExplain),
    /// Run the actions of YAML tests
    Run(SuiteRun),
    /// Run YAML tests and check that a detector alerts as they expect
    Test(Box<SuiteTest>),
}

/// `tollgate generate suite explain`.
#[derive(Args, Debug)]
pub(crate) struct SuiteExplain {
    /// Key to explain, such as tests.steps{type=syscall}{syscall=openat2}.args [default: all]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<String>,
    /// Choices that PATH depends on, such as tests.steps.type=syscall; repeatable
    #[arg(long, value_name = "CHOICE", value_delimiter = ',', requires = "path")]
    pub(crate) with: Vec<String>,
}

/// Which tests, and what they may do.
#[derive(Args, Clone, Debug)]
pub(crate) struct Descriptions {
    /// Read tests from FILE; repeatable, or a list with commas
    #[arg(help_heading = TESTS, short = 'f', long, value_name = "FILE", value_delimiter = ',')]
    pub(crate) description_file: Vec<PathBuf>,
    /// Read tests from the .yaml files in DIR; repeatable, or a list with commas
    #[arg(help_heading = TESTS, short = 'd', long, value_name = "DIR", value_delimiter = ',')]
    pub(crate) description_dir: Vec<PathBuf>,
    /// Tests as YAML text
    #[arg(help_heading = TESTS, long, value_name = "YAML")]
    pub(crate) description: Option<String>,
    /// Time limit of all tests together
    #[arg(help_heading = TESTS, short = 't', long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Allow changes to system folders where no temporary overlay can be mounted
    #[arg(long = "unsafe", help_heading = TESTS)]
    pub(crate) touch_system: bool,
    /// Let tests connect to this address on the real network; repeatable [default: connect only within a
    /// private network namespace]
    #[arg(long, value_name = "ADDRESS", help_heading = TESTS)]
    pub(crate) allow_network: Vec<IpAddr>,
}

/// `tollgate generate suite run`.
#[derive(Args, Debug)]
pub(crate) struct SuiteRun {
    #[command(flatten)]
    pub(crate) descriptions: Descriptions,
    /// Format of the report
    #[arg(long, help_heading = TESTS, value_enum, default_value_t = ReportFormat::Text, hide_possible_values = true,
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
    /// Perform the actions without checking alerts
    #[arg(long, help_heading = TESTS)]
    pub(crate) skip_outcome_verification: bool,
    /// Format of the report
    #[arg(long, help_heading = TESTS, value_enum, default_value_t = ReportFormat::Text, hide_possible_values = true,
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
    /// Receive alerts from the detector's gRPC output on this socket [default with another --grpc option:
    /// unix:///run/falco/falco.sock]
    #[arg(long, help_heading = SOURCE, value_name = "unix:///PATH")]
    pub(crate) grpc_unix_socket: Option<String>,
    /// Host of the gRPC output, over TCP [default with --grpc-port: localhost]
    #[arg(long, help_heading = SOURCE, value_name = "HOST")]
    pub(crate) grpc_hostname: Option<String>,
    /// TCP port of the gRPC output [default with --grpc-hostname: 5060]
    #[arg(long, help_heading = SOURCE, value_name = "PORT")]
    pub(crate) grpc_port: Option<u16>,
    /// CA certificate that signed the detector's gRPC certificate [default: /etc/falco/certs/ca.crt]
    #[arg(long, help_heading = SOURCE, value_name = "FILE")]
    pub(crate) grpc_ca: Option<PathBuf>,
    /// Client certificate for the gRPC output [default: /etc/falco/certs/client.crt]
    #[arg(long, help_heading = SOURCE, value_name = "FILE")]
    pub(crate) grpc_cert: Option<PathBuf>,
    /// Key of the client certificate [default: /etc/falco/certs/client.key]
    #[arg(long, help_heading = SOURCE, value_name = "FILE")]
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
    /// Address to listen on for the detector's HTTP output
    #[arg(long, help_heading = SOURCE, value_name = "ADDRESS", default_value = "localhost:8080")]
    pub(crate) http_server_address: String,
    /// Server authentication: none, TLS, or mutual TLS
    #[arg(long, help_heading = SOURCE, value_enum, default_value_t = Security::Insecure, hide_possible_values = true,
          value_name = "insecure|tls|mtls")]
    pub(crate) http_server_security_mode: Security,
    /// Certificate of the HTTP server, with tls and mtls
    #[arg(
        long,
        help_heading = SOURCE,
        value_name = "FILE",
        default_value = "/etc/falco/certs/server.crt"
    )]
    pub(crate) http_server_cert: PathBuf,
    /// Key of the HTTP server, with tls and mtls
    #[arg(
        long,
        help_heading = SOURCE,
        value_name = "FILE",
        default_value = "/etc/falco/certs/server.key"
    )]
    pub(crate) http_server_key: PathBuf,
    /// CA certificate that signed the detector's certificate, with mtls
    #[arg(long, help_heading = SOURCE, value_name = "FILE", default_value = "/etc/falco/certs/ca.crt")]
    pub(crate) http_client_ca: PathBuf,
    #[command(flatten)]
    pub(crate) grpc: Grpc,
    /// Follow alerts in FILE from its end on, one JSON object a line
    #[arg(long, help_heading = SOURCE, value_name = "FILE", conflicts_with = "watched")]
    pub(crate) alerts_file: Option<PathBuf>,
    /// Start the detector, too: perform the actions under `tollgate run`
    #[arg(long, help_heading = SOURCE)]
    pub(crate) watched: bool,
    /// With --watched: load rules from this file or folder; repeatable [default: the built-in rules, those of
    /// level hunting, too]
    #[arg(
        help_heading = SOURCE,
        short = 'r',
        long = "rules",
        value_name = "RULES",
        requires = "watched"
    )]
    pub(crate) rules: Vec<PathBuf>,
    /// With --watched: capture engine
    #[arg(long, help_heading = SOURCE, value_enum, default_value_t = Engine::Auto, hide_possible_values = true,
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
    /// HTTPS; the detector must present a certificate
    Mtls,
}

/// Parses a duration as Go programs write it: numbers with units, as in 1m30s or 250ms.
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

/// Parses a number of processors.
fn processors(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(count) if (0.01..=4096.0).contains(&count) => Ok(count),
        _ => Err("expected a number of processors from 0.01 on, as in 0.5".to_owned()),
    }
}

/// Parses a number of bytes with binary units.
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
