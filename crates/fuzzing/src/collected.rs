//! Bodies of requests to the collector.

use collector::testing::{self, MAX_ALERT};
use serde_json::Value;
use store::{NewAlert, Record};

use crate::{Outcome, text};

/// Time of arrival in nanoseconds since 1970.
const NOW_NS: i64 = 1_800_000_000_000_000_000;
/// A sender's clock may be so much ahead.
const AHEAD_NS: i64 = 600_000_000_000;
/// Longest texts that alerts are grouped by, in characters.
const LENGTH: usize = 160;

/// Takes an alert as Falco and falcosidekick send it: what is stored is the JSON that was sent, at a time that is not in the
/// future, and the texts by which it is grouped are short.
///
/// # Panics
///
/// If that does not hold.
pub fn alert(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let record = testing::alert(text, NOW_NS);
    if let Ok(record) = &record {
        let Record::Alert(alert, _) = record else {
            panic!("{record:?} is no alert");
        };
        check(alert);
        assert_eq!(alert.body, text.trim());
        // What is stored is an alert, too.
        let again = testing::alert(&alert.body, NOW_NS);
        assert_eq!(again.as_ref(), Ok(record));
    }
    Outcome::accepted_if(record.is_ok())
}

fn check(alert: &NewAlert) {
    assert!(alert.body.len() <= MAX_ALERT * 2);
    assert!((0..=NOW_NS + AHEAD_NS).contains(&alert.time_ns));
    for text in [&alert.rule, &alert.host, &alert.program, &alert.object] {
        assert!(text.chars().count() <= LENGTH, "{text}");
    }
    assert!(!alert.rule.is_empty());
    let body: Value = serde_json::from_str(&alert.body).expect("it is JSON");
    assert!(body.is_object());
}

/// Takes a batch of an agent: each line becomes one record, whatever it is, so that the numbers of the others stay. Accepted is
/// a batch without a line that cannot be read.
///
/// # Panics
///
/// If that does not hold.
pub fn batch(bytes: &[u8]) -> Outcome {
    let plain = testing::decompressed(bytes);
    let Some(text) = text(plain.as_deref().unwrap_or(bytes)) else {
        return Outcome::Refused;
    };
    let Ok(records) = testing::batch(text, NOW_NS) else {
        return Outcome::Refused;
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    assert_eq!(records.len(), lines.count());
    let mut is_readable = !records.is_empty();
    for record in &records {
        if let Record::Alert(alert, _) = record {
            check(alert);
            is_readable &= alert.rule != "Collector: unreadable record";
        }
    }
    Outcome::accepted_if(is_readable)
}

/// Takes the inventory of an agent: its labels are few.
///
/// # Panics
///
/// If that does not hold.
pub fn inventory(bytes: &[u8]) -> Outcome {
    let Some(text) = text(bytes) else {
        return Outcome::Refused;
    };
    let labels = testing::labels(text);
    if let Ok(count) = labels {
        assert!(count <= bytes.len() / 4);
    }
    Outcome::accepted_if(labels.is_ok())
}

/// Takes a request of OpenTelemetry, in JSON if it begins with a brace and in Protocol Buffers else: each log record becomes an
/// alert or is counted as rejected. Accepted is a request of which nothing is rejected.
///
/// # Panics
///
/// If that does not hold.
pub fn otlp_logs(bytes: &[u8]) -> Outcome {
    let is_json = bytes.first() == Some(&b'{');
    let Ok((records, rejected)) = testing::logs(bytes, is_json, NOW_NS) else {
        return Outcome::Refused;
    };
    for record in &records {
        let Record::Alert(alert, _) = record else {
            panic!("{record:?} is no alert");
        };
        check(alert);
    }
    Outcome::accepted_if(rejected == 0 && !records.is_empty())
}
