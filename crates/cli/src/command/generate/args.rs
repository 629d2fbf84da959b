//! The command line of `tollgate generate`, with the options of Falco's event generator.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use regex::Regex;
use workload::action::{PerformArgs, SweepArgs};

use crate::args::Engine;

/// `tollgate generate`.
#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// List actions
    List(List),
    /// Play actions
    Run(Run),
    /// Play actions and check that a detector alerts on each
    Test(Test),
    /// Play one action; for the generator itself
    #[command(hide = true)]
    Perform(PerformArgs),
    /// Clean up when the standard input ends; for the generator itself
    #[command(hide = true)]
    Sweep(SweepArgs),
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
                        json_output, as Falco and tollgate have it), from a file that it writes, \
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

#[cfg(test)]
mod tests {
    use super::*;

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
