//! The command lines of `tollgate alerts` and `tollgate fleet`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

const OUTPUT: &str = "Output options";
const FILTER: &str = "Filter options";
const COLLECTOR: &str = "Collector options";

/// `tollgate alerts`.
#[derive(Debug, Subcommand)]
pub(crate) enum Alerts {
    /// List groups of alerts, or with --each single ones, the latest first
    List(List),
    /// Show one alert
    Show(Show),
    /// Acknowledge a group, or take that back
    Ack(Acknowledge),
    /// Print all alerts that the filter accepts, as JSON lines or CSV
    Export(Export),
}

/// `tollgate fleet`.
#[derive(Debug, Subcommand)]
pub(crate) enum Fleet {
    /// List the agents: where they run, whether they report, what of them is missing
    #[command(alias = "list")]
    Status(Status),
    /// Ask one of the agents for some seconds of events
    Capture(RequestCapture),
    /// List what agents were asked for, and how far it is
    Captures(Captures),
    /// Download some seconds of events as a file that sysdig reads
    Download(Download),
}

/// The collector that is asked.
#[derive(Args, Clone, Debug)]
pub(crate) struct Asked {
    /// Address of the collector [default: TOLLGATE_COLLECTOR]
    #[arg(long = "collector", value_name = "URL", help_heading = COLLECTOR)]
    pub(crate) url: Option<String>,
    /// File with a token of a viewer or operator [default: TOLLGATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = COLLECTOR)]
    pub(crate) token_file: Option<PathBuf>,
    /// Trust the certificates in FILE for the collector [default: those of the system]
    #[arg(long = "collector-ca", value_name = "FILE", help_heading = COLLECTOR)]
    pub(crate) ca: Option<PathBuf>,
}

/// Which alerts.
#[derive(Args, Clone, Debug)]
pub(crate) struct FilterOptions {
    /// From this time on, as in 2026-01-02T03:04:05Z
    #[arg(long, value_name = "TIME", help_heading = FILTER)]
    pub(crate) from: Option<String>,
    /// Before this time
    #[arg(long, value_name = "TIME", help_heading = FILTER)]
    pub(crate) to: Option<String>,
    /// This priority and more severe ones, as in Warning
    #[arg(long, value_name = "PRIORITY", help_heading = FILTER)]
    pub(crate) severity: Option<String>,
    /// Of this rule
    #[arg(long, value_name = "NAME", help_heading = FILTER)]
    pub(crate) rule: Option<String>,
    /// On this host
    #[arg(long, value_name = "NAME", help_heading = FILTER)]
    pub(crate) host: Option<String>,
    /// By this program
    #[arg(long, value_name = "NAME", help_heading = FILTER)]
    pub(crate) program: Option<String>,
    /// Of the group with this number
    #[arg(long, value_name = "NUMBER", help_heading = FILTER)]
    pub(crate) group: Option<u64>,
    /// With these words in the message
    #[arg(long, value_name = "WORDS", help_heading = FILTER)]
    pub(crate) text: Option<String>,
    /// Acknowledged and muted groups, too
    #[arg(long, help_heading = FILTER)]
    pub(crate) hidden: bool,
}

/// `tollgate alerts list`.
#[derive(Args, Debug)]
pub(crate) struct List {
    /// List single alerts
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) each: bool,
    /// Number of rows
    #[arg(long, value_name = "N", default_value_t = 50, help_heading = OUTPUT, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) limit: u64,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tollgate alerts show`.
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Number of the alert
    #[arg(value_name = "NUMBER")]
    pub(crate) number: u64,
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tollgate alerts ack`.
#[derive(Args, Debug)]
pub(crate) struct Acknowledge {
    /// Number of the group
    #[arg(value_name = "GROUP")]
    pub(crate) group: u64,
    /// Why it is fine
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) note: String,
    /// Take the acknowledgement back
    #[arg(long, conflicts_with = "note")]
    pub(crate) undo: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tollgate alerts export`.
#[derive(Args, Debug)]
pub(crate) struct Export {
    /// Form: jsonl has the alerts as their senders wrote them
    #[arg(long, value_enum, value_name = "jsonl|csv", hide_possible_values = true, default_value_t = Format::Jsonl, help_heading = OUTPUT)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) filter: FilterOptions,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// The form of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    // Without doc comments, as in `policy init`.
    Jsonl,
    Csv,
}

/// `tollgate fleet status`.
#[derive(Args, Debug)]
pub(crate) struct Status {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tollgate fleet capture`.
#[derive(Args, Debug)]
pub(crate) struct RequestCapture {
    /// Number, as `fleet status` lists it
    #[arg(value_name = "AGENT")]
    pub(crate) agent: u64,
    /// For how long
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=300))]
    pub(crate) seconds: u64,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tollgate fleet captures`.
#[derive(Args, Debug)]
pub(crate) struct Captures {
    /// Print JSON
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) asked: Asked,
}

/// `tollgate fleet download`.
#[derive(Args, Debug)]
pub(crate) struct Download {
    /// Number of the capture, as `fleet captures` lists it
    #[arg(value_name = "CAPTURE")]
    pub(crate) capture: u64,
    /// File to write; it must not exist
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) asked: Asked,
}
