//! The protobuf messages, with Falco's field numbers.

use std::collections::BTreeMap;

use rules::{Alert, AlertValue, Priority};

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Seconds since the epoch.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// An alert.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Output {
    /// Time of the event.
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    /// Priority, from 0 (emergency) to 7 (debug).
    #[prost(int32, tag = "2")]
    pub priority: i32,
    /// Source for older clients: 0 is syscall, 2 is internal.
    #[prost(int32, tag = "3")]
    pub source_deprecated: i32,
    /// Name of the rule.
    #[prost(string, tag = "4")]
    pub rule: String,
    /// Output text of the rule.
    #[prost(string, tag = "5")]
    pub output: String,
    /// Fields of the output text, formatted.
    #[prost(btree_map = "string, string", tag = "6")]
    pub output_fields: BTreeMap<String, String>,
    /// Host name.
    #[prost(string, tag = "7")]
    pub hostname: String,
    /// Tags of the rule.
    #[prost(string, repeated, tag = "8")]
    pub tags: Vec<String>,
    /// Source of the event.
    #[prost(string, tag = "9")]
    pub source: String,
}

/// Response of `falco.version.service`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Version {
    /// `MAJOR.MINOR.PATCH`.
    #[prost(string, tag = "1")]
    pub version: String,
    /// Major version.
    #[prost(uint32, tag = "2")]
    pub major: u32,
    /// Minor version.
    #[prost(uint32, tag = "3")]
    pub minor: u32,
    /// Patch version.
    #[prost(uint32, tag = "4")]
    pub patch: u32,
    /// Version part after a `-`.
    #[prost(string, tag = "5")]
    pub prerelease: String,
    /// Version part after a `+`.
    #[prost(string, tag = "6")]
    pub build: String,
    /// Minor version of the rule engine.
    #[prost(uint32, tag = "7")]
    pub engine_minor: u32,
    /// Checksum of the fields that rules can use.
    #[prost(string, tag = "8")]
    pub engine_fields_checksum: String,
    /// Major version of the rule engine.
    #[prost(uint32, tag = "9")]
    pub engine_major: u32,
    /// Patch version of the rule engine.
    #[prost(uint32, tag = "10")]
    pub engine_patch: u32,
    /// Full version of the rule engine.
    #[prost(string, tag = "11")]
    pub engine_version: String,
}

const INTERNAL: &str = "internal";
const NANOS: u64 = 1_000_000_000;

impl Output {
    /// Creates the message of an alert. `line` is the alert as text.
    pub(super) fn of(alert: &Alert, line: &str) -> Self {
        let is_internal = &*alert.source == INTERNAL;
        let priority = Priority::ALL
            .iter()
            .position(|other| *other == alert.priority);
        let priority = priority.expect("the list has every priority");
        let fields = alert.fields.iter();
        Self {
            time: Some(Timestamp {
                seconds: i64::try_from(alert.time_ns / NANOS).unwrap_or(i64::MAX),
                nanos: i32::try_from(alert.time_ns % NANOS).expect("less than a second"),
            }),
            priority: i32::try_from(priority).expect("there are eight"),
            source_deprecated: if is_internal { 2 } else { 0 },
            rule: alert.rule.to_string(),
            output: line.to_owned(),
            output_fields: fields
                .map(|(name, value)| (name.to_string(), text(value)))
                .collect(),
            hostname: alert.hostname.to_string(),
            tags: alert.tags.to_vec(),
            source: alert.source.to_string(),
        }
    }
}

fn text(value: &AlertValue) -> String {
    match value {
        AlertValue::Absent => "<NA>".to_owned(),
        AlertValue::Bool(value) => value.to_string(),
        AlertValue::Int(value) => value.to_string(),
        AlertValue::Uint(value) => value.to_string(),
        AlertValue::Float(value) => value.to_string(),
        AlertValue::Text(value) => value.clone(),
        AlertValue::List(values) => {
            let values: Vec<_> = values.iter().map(text).collect();
            format!("({})", values.join(","))
        }
    }
}
