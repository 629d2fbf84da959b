//! Alerts of a detector, as they arrive.

mod file;
mod grpc;
mod http;
mod tls;

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use diagnostics::failure::Failure;
use serde_json::{Map, Value};

use crate::options::AlertSource;

/// One alert.
#[derive(Clone, Debug)]
pub(crate) struct Alert {
    /// Name of the rule that fired.
    pub(crate) rule: String,
    /// Source of the event.
    pub(crate) source: String,
    /// Priority, as the detector spells it.
    pub(crate) priority: String,
    /// Host name.
    pub(crate) hostname: String,
    /// Output fields of the rule.
    pub(crate) fields: Map<String, Value>,
    /// Nanoseconds from the event to the arrival here, if the alert has the time of the event.
    pub(crate) delay_ns: Option<u64>,
}

impl Alert {
    /// Parses an alert of Falco or tollgate.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        let word = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
        let delay_ns = value["time"].as_str().and_then(nanoseconds).map(|event| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            u64::try_from(now.as_nanos())
                .unwrap_or(u64::MAX)
                .saturating_sub(event)
        });
        Some(Self {
            rule: word("rule")?,
            source: word("source").unwrap_or_default(),
            priority: word("priority").unwrap_or_default(),
            hostname: word("hostname").unwrap_or_default(),
            fields: value["output_fields"]
                .as_object()
                .cloned()
                .unwrap_or_default(),
            delay_ns,
        })
    }
}

/// Alerts from a thread that listens or reads.
#[derive(Debug)]
pub(crate) struct Alerts(Receiver<Alert>);

impl Alerts {
    /// Starts to listen.
    pub(crate) fn open(source: &AlertSource) -> Result<Self, Failure> {
        let (sender, alerts) = std::sync::mpsc::channel();
        match &source.alerts_file {
            Some(file) => file::follow(file, sender)?,
            None if source.grpc.is_wanted() => grpc::subscribe(&source.grpc, sender)?,
            None => http::listen(source, sender)?,
        }
        Ok(Self(alerts))
    }

    /// Discards the alerts that have arrived so far.
    pub(crate) fn forget(&self) {
        while self.0.try_recv().is_ok() {}
    }

    /// Takes the alerts that have arrived so far.
    pub(crate) fn take(&self) -> Vec<Alert> {
        self.0.try_iter().collect()
    }

    /// Returns the next alert, or `None` at the deadline.
    pub(crate) fn next(&self, deadline: Instant) -> Option<Alert> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.0.recv_timeout(left) {
            Ok(alert) => Some(alert),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(left.min(Duration::from_millis(10)));
                None
            }
        }
    }
}

/// Parses a time such as `2026-11-21T14:05:06.123456789Z` to nanoseconds since the Unix epoch.
fn nanoseconds(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut clock = clock.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    let nanoseconds: u64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    // Days of a date since the Unix epoch. March is the first month, so that leap days come last.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
        - 719_469;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    u64::try_from(seconds)
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1970-01-01T00:00:01.5Z", 1_500_000_000),
            ("2024-02-29T12:00:00.000000001Z", 1_709_208_000_000_000_001),
            ("2026-11-21T14:11:31Z", 1_795_270_291_000_000_000),
        ] {
            assert_eq!(nanoseconds(text), Some(expected), "{text}");
        }
        for text in ["", "2024-02-29", "2024-02-29T12:00:00", "x-y-zTa:b:cZ"] {
            assert_eq!(nanoseconds(text), None, "{text}");
        }
    }

    #[test]
    fn alerts_are_read_and_other_lines_are_not() {
        let alert =
            Alert::parse(r#"{"rule":"R","output_fields":{"a":1},"time":"1970-01-01T00:00:00Z"}"#)
                .unwrap();
        assert_eq!(alert.rule, "R");
        assert!(alert.delay_ns.unwrap() > 1_700_000_000_000_000_000);
        assert!(Alert::parse("{}").is_none());
        assert!(Alert::parse("text").is_none());
    }
}
