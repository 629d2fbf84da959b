//! Delivery of alerts: Falco's text and JSON formats, channels with a queue and a thread each, rate
//! limits, and the stats file.
//!
//! A [`Dispatcher`] accepts alerts from any number of capture threads and never blocks them. Each
//! channel has a bounded queue and a thread of its own. Alerts that a slow or dead channel cannot
//! take are counted as lost by that channel, announced on the others and, when it recovers, on
//! itself.
//!
//! Preparing and starting are separate, because a process that still has to fork must not have
//! threads: [`Dispatcher::prepare`] opens everything that can fail, and [`Prepared::start`] creates
//! the threads.
//!
//! A new kind of output is one file that implements [`Channel`] and [`OutputKind`], and a row of
//! [`Outputs`].

mod capture;
mod channel;
pub mod collector;
mod dispatcher;
mod file;
mod format;
mod hold;
mod http;
mod hub;
mod internal;
pub mod http_client {
    //! The HTTP client of outputs, for what else asks servers.
    pub use crate::net::client::{ClientOptions, agent};
}
pub mod json;
mod key_value;
mod kind;
mod nats;
mod net;
mod opening;
mod otlp;
mod pretty;
mod program;
mod queue;
mod report;
mod stats;
mod stdout;
mod stream;
mod syslog;
mod terminal;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing {
    //! Entries for fuzzing.
    pub use crate::collector::testing::{SpoolLines, drain_spool};
    pub use crate::net::names::testing::dns_answer;
    pub use crate::otlp::testing::{otlp_partial, otlp_retry_after};
}
mod throttle;
mod time;
mod worker;

pub use capture::{
    AlertCaptureCounts, CaptureCause, CaptureOnAlert, CaptureOnAlertError, CaptureProgress,
    CaptureSource, CaptureWake, CapturedAlert, MAX_AFTER, MAX_BEFORE, MAX_CAPTURE_RULE_BYTES,
    MAX_CAPTURE_RULES, MAX_LIMIT_MIB,
};
pub use channel::{Channel, Delivery, DeliveryError, OnSettled, Peer};
pub use collector::CollectorOutput;
pub use dispatcher::{Counters, Dispatcher, Pending, Prepared, RuleAlerts, Settings, StartError};
pub use file::{FileChannel, FileOutput, OpenError};
pub use format::{Format, JsonParts, TimeFormat, alert_json};
pub use http::{HttpChannel, HttpOptions, HttpOutput};
pub use hub::{ChannelCounters, OnInternal, OnProblem};
pub use internal::{Internal, internal_alert};
pub use json::visible;
pub use kind::{ChannelOpenError, Common, Missing, OutputKind};
pub use nats::{JetStream, NatsError, NatsLink, NatsOutput, NatsServers, NatsTls};
pub use net::client::HttpError;
pub use net::names::addresses;
pub use net::tls::{ClientFiles, TlsError, TlsOptions};
pub use opening::open_without_waiting;
pub use otlp::{Encoding, OtlpOutput};
pub use program::{ProgramChannel, ProgramOptions, ProgramOutput};
pub use queue::{LineOutput, QUEUE_CAPACITY, QueueAccount, QueueCapacity};
pub use report::{
    AgentReport, BundleReport, BundleSink, BundledPolicy, BundledPolicyState, EnforcerReport,
    PolicyReport, ReportSlot, ReportSource, RuleTime, RuleTimes, RulesReport,
};
pub use stats::{
    FILTERED_IN_KERNEL_REASON, Snapshot, StatsError, StatsFile, StatsSource, StatsWriter,
};
pub use stdout::{
    StandardStream, StdioChannel, StdioError, StdoutOutput, StreamFormat, StreamTarget,
};
pub use syslog::{SyslogChannel, SyslogOutput};
pub use terminal::status_line_was_drawn;
pub use throttle::{Throttle, ThrottleRate};
pub use time::log_stamp;

use yaml::settings::{Node, Problem};

// The list of all outputs, which the configuration, the agent and the `falco` command use.
kind::outputs! {
    /// `stdout_output`: the alert stream.
    stdout: StdoutOutput,
    /// `file_output`.
    file: FileOutput,
    /// `syslog_output`.
    syslog: SyslogOutput,
    /// `program_output`.
    program: ProgramOutput,
    /// `http_output`.
    http: HttpOutput,
    /// `nats_output`.
    nats: NatsOutput,
    /// `otlp_output`.
    otlp: OtlpOutput,
    /// `collector_output`.
    collector: CollectorOutput,
}

impl Outputs {
    /// Sets the key at `path`.
    ///
    /// # Errors
    ///
    /// The value is invalid for this key.
    ///
    /// # Panics
    ///
    /// Panics if `path` is not among [`Outputs::keys`].
    pub fn set(&mut self, path: &str, node: &Node) -> Result<(), Problem> {
        let mut results = self.each_mut().filter_map(|output| output.set(path, node));
        results.next().expect("the key is one of an output")
    }

    /// Returns the groups of the enabled outputs, such as `stdout_output`.
    pub fn enabled(&self) -> impl Iterator<Item = &'static str> {
        let enabled = self.each().filter(|output| output.is_enabled());
        enabled.map(|output| output.group())
    }

    /// Returns the groups of enabled outputs that lack a required key, with the key.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, Missing)> {
        let enabled = self.each().filter(|output| output.is_enabled());
        enabled.filter_map(|output| Some((output.group(), output.missing()?)))
    }

    /// Returns warnings about enabled outputs whose settings give a secret away.
    pub fn exposures(&self) -> impl Iterator<Item = String> {
        let enabled = self.each().filter(|output| output.is_enabled());
        enabled.filter_map(|output| output.exposure())
    }

    /// Creates the channels of the enabled outputs, without their threads.
    ///
    /// # Errors
    ///
    /// A channel cannot be opened as configured.
    pub fn open(&self, common: &Common) -> Result<Vec<Box<dyn Channel>>, ChannelOpenError> {
        let enabled = self.each().filter(|output| output.is_enabled());
        enabled.map(|output| output.open(common)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_begin_with_the_group_of_their_output_and_occur_once() {
        let all = Outputs::default();
        let groups: Vec<_> = all.each().map(|output| output.group()).collect();
        let mut paths: Vec<_> = Outputs::keys().map(|(path, _)| path).collect();
        for path in &paths {
            let (group, _) = path.split_once('.').expect(path);
            assert!(groups.contains(&group), "{path}");
        }
        for group in groups {
            let enabled = format!("{group}.enabled");
            assert!(paths.contains(&enabled.as_str()), "{enabled}");
        }
        let count = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }

    #[test]
    fn more_than_an_agent_records_around_an_alert_is_refused() {
        for (key, most) in [("before", 60), ("after", 300), ("limit", 12)] {
            let set = |number: u64| {
                let node = yaml::settings::read("f.yaml", &number.to_string()).unwrap();
                let path = format!("collector_output.capture_on_alert.{key}");
                Outputs::default().set(&path, &node)
            };
            assert_eq!(set(most), Ok(()));
            let problem = set(most + 1).unwrap_err();
            let expected = format!("to {most}, found {}", most + 1);
            assert!(format!("{problem:?}").contains(&expected), "{problem:?}");
        }
    }

    /// The settings with another value than the default at this key.
    fn changed(path: &str, json_type: &str) -> Outputs {
        let texts = match json_type {
            "boolean" => "true false",
            "integer" => "7",
            "number" => "0.5",
            "array" => "[other]",
            "object" => "{other:text}",
            _ if path.ends_with(".priority") => "WARNING",
            _ => "other",
        };
        let mut texts: Vec<_> = texts.split(' ').map(str::to_owned).collect();
        let mut is_told = false;
        while let Some(text) = texts.pop() {
            let node = yaml::settings::read("f.yaml", &text.replace(':', ": ")).unwrap();
            let mut all = Outputs::default();
            match all.set(path, &node) {
                Ok(()) if all != Outputs::default() => return all,
                Ok(()) => {}
                // `expected gzip or none, found ..`: a key that takes certain words.
                Err(problem) => {
                    assert!(!is_told, "{path}: {problem:?}");
                    is_told = true;
                    let (known, _) = problem.message.split_once(',').expect(path);
                    let known = known.trim_start_matches("expected ").split(" or ");
                    texts = known.map(str::to_owned).collect();
                }
            }
        }
        panic!("{path} changes nothing");
    }

    #[test]
    fn each_key_is_taken_and_has_a_place_of_its_own() {
        let mut seen = Vec::new();
        for (path, json_type) in Outputs::keys() {
            let all = changed(path, json_type);
            assert!(!seen.contains(&all), "{path} sets what another key sets");
            seen.push(all);
        }
    }

    #[test]
    fn every_output_can_be_enabled_by_its_key() {
        let node = yaml::settings::read("f.yaml", "true").unwrap();
        let mut all = Outputs::default();
        let groups: Vec<_> = all.each().map(|output| output.group()).collect();
        for group in &groups {
            all.set(&format!("{group}.enabled"), &node).unwrap();
        }
        assert!(all.enabled().eq(groups));
    }
}
