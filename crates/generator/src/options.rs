//! Options of the generator, without the syntax of a command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;

use crate::detector::Detector;

/// Selection of the actions to play or list.
#[derive(Clone, Debug)]
pub struct Selection {
    /// Selects only actions whose names match. `None`: every action.
    pub pattern: Option<Regex>,
    /// Also selects actions whose rules Falco does not load by default.
    pub all: bool,
}

/// Options of [`crate::list::execute`].
#[derive(Debug)]
pub struct ListOptions {
    /// The selected actions.
    pub selection: Selection,
    /// Print description, rule, needs and changes of each action.
    pub long: bool,
    /// Print JSON, one action a line.
    pub json: bool,
}

/// Options for playing actions.
#[derive(Clone, Debug, Default)]
pub struct PlayOptions {
    /// Time to wait before each action.
    pub sleep: Duration,
    /// Repeat the actions until the process is stopped.
    pub repeat: bool,
    /// Play as this user. Needs root.
    pub user: Option<String>,
    /// Allow changes to system folders where no overlay can cover them.
    pub touch_system: bool,
    /// Addresses that actions contact in the real network.
    pub allow_network: Vec<IpAddr>,
    /// True if this is a container, false if not. `None`: detect it.
    pub container: Option<bool>,
}

/// Options of [`crate::run::execute`].
#[derive(Debug)]
pub struct RunOptions {
    /// The selected actions.
    pub selection: Selection,
    /// Options for playing.
    pub play: PlayOptions,
    /// Print JSON, one action a line.
    pub json: bool,
}

/// Options of [`crate::test::execute`].
#[derive(Debug)]
pub struct TestOptions {
    /// The selected actions.
    pub selection: Selection,
    /// Options for playing.
    pub play: PlayOptions,
    /// Source of alerts.
    pub source: AlertSource,
    /// Time limit for an alert.
    pub test_timeout: Duration,
    /// Print JSON, one action a line.
    pub json: bool,
}

/// Options of [`crate::bench::execute`].
#[derive(Debug)]
pub struct BenchOptions {
    /// The selected actions.
    pub selection: Selection,
    /// Options for playing.
    pub play: PlayOptions,
    /// Source of alerts.
    pub source: AlertSource,
    /// Length of a round. `play.repeat` halves `play.sleep` after each.
    pub round_duration: Duration,
    /// Number of rounds. None: until the process is stopped.
    pub rounds: Option<u32>,
    /// Continue until alerts or events are lost, then print the highest rates before. Implies `play.repeat`.
    pub knee: bool,
    /// Process id of the detector, for its processor time and memory.
    pub pid: Option<i32>,
    /// Interval at which the detector is measured.
    pub polling_interval: Duration,
    /// Print numbers with units.
    pub humanize: bool,
    /// Play only: expect no alerts.
    pub dry_run: bool,
    /// Number of threads that play actions.
    pub threads: u16,
    /// Number of opens of an unrelated file after each action.
    pub calls: u32,
    /// Statistics file of the detector, as `tollgate run -s` writes it.
    pub stats: Option<PathBuf>,
    /// URL of the detector's Prometheus metrics.
    pub metrics: Option<String>,
    /// Processor limits for the detector. Each limit gets its own series of rounds.
    pub cpus: Vec<f64>,
    /// Memory limit for the detector, in bytes.
    pub memory: Option<u64>,
    /// Format of the output.
    pub logformat: LogFormat,
    /// Append each round to this file, one JSON object a line.
    pub record: Option<PathBuf>,
    /// Draw the rates to this file (SVG).
    pub plot: Option<PathBuf>,
}

/// Described tests to play, and the changes that they may make.
#[derive(Clone, Debug)]
pub struct Descriptions {
    /// Files with tests.
    pub description_file: Vec<PathBuf>,
    /// Folders with test files, which end in `.yaml` or `.yml`.
    pub description_dir: Vec<PathBuf>,
    /// Tests, as YAML.
    pub description: Option<String>,
    /// Time limit for all tests together.
    pub timeout: Duration,
    /// Allow changes to the host where no overlay can cover them.
    pub touch_system: bool,
    /// Addresses that tests contact in the real network.
    pub allow_network: Vec<IpAddr>,
}

/// Options of [`crate::suite::run`].
#[derive(Debug)]
pub struct SuiteRunOptions {
    /// The described tests.
    pub descriptions: Descriptions,
    /// Format of the report.
    pub report_format: ReportFormat,
}

/// Options of [`crate::suite::test`].
#[derive(Debug)]
pub struct SuiteTestOptions {
    /// The described tests.
    pub descriptions: Descriptions,
    /// Source of alerts.
    pub source: AlertSource,
    /// Play without checking alerts.
    pub skip_outcome_verification: bool,
    /// Format of the report.
    pub report_format: ReportFormat,
}

/// Format of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// Text.
    Text,
    /// One JSON object a line for each rule.
    Json,
    /// The JSON objects as one YAML list.
    Yaml,
}

/// Format of a benchmark's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text: words and values.
    Text,
    /// One JSON object a line.
    Json,
    /// A table with one row per round.
    Table,
}

/// The gRPC output of a detector: of tollgate, and of Falco before 0.44. Any value chooses gRPC over HTTP.
#[derive(Clone, Debug, Default)]
pub struct GrpcSource {
    /// Socket, as `unix:///PATH`.
    pub grpc_unix_socket: Option<String>,
    /// Host, for TCP. Default: `localhost`.
    pub grpc_hostname: Option<String>,
    /// Port, for TCP. Default: 5060.
    pub grpc_port: Option<u16>,
    /// Certificate authority of the detector, for TCP.
    pub grpc_ca: Option<PathBuf>,
    /// Client certificate, for TCP.
    pub grpc_cert: Option<PathBuf>,
    /// Key of the client certificate.
    pub grpc_key: Option<PathBuf>,
}

impl GrpcSource {
    /// Returns true if any value is set.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        let texts = [&self.grpc_unix_socket, &self.grpc_hostname];
        let files = [&self.grpc_ca, &self.grpc_cert, &self.grpc_key];
        texts.iter().any(|text| text.is_some())
            || files.iter().any(|file| file.is_some())
            || self.grpc_port.is_some()
    }
}

/// Source of a detector's alerts.
#[derive(Debug)]
pub struct AlertSource {
    /// Address to listen at for the detector's HTTP output.
    pub http_server_address: String,
    /// Encryption and authentication of that server.
    pub http_server_security_mode: SecurityMode,
    /// Certificate of that server.
    pub http_server_cert: PathBuf,
    /// Key of that certificate.
    pub http_server_key: PathBuf,
    /// Certificate authority of the detector, for [`SecurityMode::Mtls`].
    pub http_client_ca: PathBuf,
    /// The detector's gRPC output.
    pub grpc: GrpcSource,
    /// File that the detector appends alerts to, one JSON object a line.
    pub alerts_file: Option<PathBuf>,
    /// A detector to start. It prints alerts to its standard output; the other sources are not used.
    pub detector: Option<Detector>,
}

/// Encryption and authentication of the HTTP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityMode {
    /// Plain HTTP.
    Insecure,
    /// HTTPS.
    Tls,
    /// HTTPS with a client certificate.
    Mtls,
}
