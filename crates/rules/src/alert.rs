//! Alerts: the output of a rule that matched an event.

use std::sync::Arc;

use event::{Pid, Process, StartTime};

use crate::Priority;

/// A value in an alert's `output_fields`, detached from the event.
#[derive(Clone, Debug, PartialEq)]
pub enum AlertValue {
    /// `<NA>` in text, `null` in JSON.
    Absent,
    /// Boolean.
    Bool(bool),
    /// Signed number.
    Int(i64),
    /// Unsigned number.
    Uint(u64),
    /// Floating-point number. Only metrics use it; no field of an event is one.
    Float(f64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Several values.
    List(Vec<AlertValue>),
}

/// One alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Time of the event in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Time at which the alert was created, in nanoseconds since the epoch. The difference to `time_ns` is
    /// the agent's own latency.
    pub made_ns: u64,
    /// Name of the rule.
    pub rule: Arc<str>,
    /// Priority of the rule.
    pub priority: Priority,
    /// Event source: `syscall`, or `internal` for messages of the agent itself.
    pub source: Arc<str>,
    /// Tags of the rule.
    pub tags: Arc<[String]>,
    /// Host name.
    pub hostname: Arc<str>,
    /// Output template with its fields filled in, without time and priority.
    pub message: String,
    /// Fields that the template names, in the template's order.
    pub fields: Vec<(Arc<str>, AlertValue)>,
    /// Where the rule is, and what else is known about the event.
    pub details: AlertDetails,
}

/// What an alert says beyond Falco's members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlertDetails {
    /// File of the rule; `None` for an alert that no rule raised.
    pub file: Option<Arc<str>>,
    /// Line of the rule in its file.
    pub line: u32,
    /// Fields about process, file and container for alerts that people read; empty unless
    /// [`crate::EngineOptions::context`] is set.
    pub context: Vec<(Arc<str>, AlertValue)>,
    /// The calling process; `None` for an alert that no event raised.
    pub process: Option<AlertProcess>,
}

/// The process of an alert. Pid and start time together identify it for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertProcess {
    /// Process id in the agent's pid namespace; in a sandbox or a capture that of another kernel.
    pub pid: Pid,
    /// Start time.
    pub start: StartTime,
    /// Its ancestors as they were known at the event, the nearest first, 32 at most.
    pub ancestors: Vec<(Pid, StartTime)>,
}

/// Number of ancestors that an alert names at most.
const MOST_ANCESTORS: usize = 32;

impl AlertProcess {
    /// Returns the identity of a process.
    pub(crate) fn of(process: &Process) -> Self {
        let parents = std::iter::successors(process.parent(), |parent| parent.parent());
        let parents = parents.map(|parent| (parent.pid, parent.start));
        Self {
            pid: process.pid,
            start: process.start,
            ancestors: parents.take(MOST_ANCESTORS).collect(),
        }
    }
}

impl Alert {
    /// Returns an identifier that is the same wherever this alert is delivered: a hash of host, rule, time and
    /// message in 16 hexadecimal digits.
    #[must_use]
    pub fn id(&self) -> String {
        // FNV-1a, which is the same in every build and on every machine.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        let mut add = |bytes: &[u8]| {
            // The zero byte keeps neighbours apart.
            for byte in bytes.iter().chain(&[0]) {
                hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        add(self.hostname.as_bytes());
        add(self.source.as_bytes());
        add(self.rule.as_bytes());
        add(&self.time_ns.to_le_bytes());
        add(self.message.as_bytes());
        format!("{hash:016x}")
    }

    /// Returns the rule's name in lower case with hyphens, such as `read-sensitive-file-untrusted`.
    #[must_use]
    pub fn rule_id(&self) -> String {
        let words = self.rule.split(|c: char| !c.is_alphanumeric());
        let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        words.join("-").to_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_and_its_rule_have_stable_identifiers() {
        let alert = |rule: &str, message: &str| Alert {
            time_ns: 1,
            made_ns: 2,
            rule: rule.into(),
            priority: Priority::Warning,
            source: "syscall".into(),
            tags: Arc::new([]),
            hostname: "box".into(),
            message: message.to_owned(),
            fields: Vec::new(),
            details: AlertDetails::default(),
        };
        let first = alert("Read sensitive file (untrusted)", "a");
        assert_eq!(first.rule_id(), "read-sensitive-file-untrusted");
        let again = Alert {
            made_ns: 3,
            ..first.clone()
        };
        assert_eq!(first.id(), again.id());
        assert_eq!(first.id().len(), 16);
        assert_ne!(
            first.id(),
            alert("Read sensitive file (untrusted)", "b").id()
        );
        assert_ne!(alert("a", "bc").id(), alert("ab", "c").id());
    }
}
