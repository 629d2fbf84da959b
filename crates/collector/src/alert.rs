//! From the JSON of an alert to what the store keeps.

use jiff::Timestamp;
use outputs::json;
use serde::Deserialize;
use serde_json::{Map, Value};
use store::{NewAlert, Record, Severity};

use crate::grouping;
use crate::losses;

/// Largest alert in bytes; a longer one is kept without its fields.
pub(crate) const MAX_ALERT: usize = 256 << 10;

/// How far in the future the time of an alert may be: clocks differ. A later one would stay in front of all
/// others.
const FUTURE_NS: i64 = 600_000_000_000;

/// Rule of what a sender sent in place of an alert.
const UNREADABLE: &str = "Collector: unreadable record";

/// Longest excerpt of an unreadable record, in characters.
const EXCERPT: usize = 4000;

/// An alert as Falco and falcosidekick write it. Other members are kept, and not looked at.
#[derive(Deserialize)]
struct Written {
    rule: String,
    priority: String,
    #[serde(default)]
    output: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    time: Option<String>,
    #[serde(default)]
    output_fields: Option<Map<String, Value>>,
}

/// The text is not an alert.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the alert: {problem}")]
pub(crate) struct AlertError {
    problem: String,
}

/// Reads an alert. `received_ns` takes the place of a time that is missing or in the future.
pub(crate) fn read(text: &str, received_ns: i64) -> Result<Record, AlertError> {
    let problem = |problem: String| AlertError { problem };
    if text.len() > MAX_ALERT {
        return Err(problem(format!("it has more than {MAX_ALERT} bytes")));
    }
    // A list would be taken for the members in order.
    if !text.trim_start().starts_with('{') {
        return Err(problem("expected a JSON object".to_owned()));
    }
    let written: Written =
        serde_json::from_str(text).map_err(|error| problem(error.to_string()))?;
    let severity = Severity::named(&written.priority).ok_or_else(|| {
        problem(format!(
            "unknown priority `{}`",
            json_text(&written.priority)
        ))
    })?;
    if written.rule.is_empty() {
        return Err(problem("its rule has no name".to_owned()));
    }
    let fields = written.output_fields.unwrap_or_default();
    let time_ns = time(written.time.as_deref(), &fields)
        .filter(|time| *time <= received_ns.saturating_add(FUTURE_NS))
        .unwrap_or(received_ns);
    let loss = losses::of_alert(&written.rule, &fields, time_ns, &written.output);
    let alert = NewAlert {
        time_ns,
        severity,
        program: grouping::program(&fields),
        object: grouping::object(&fields),
        rule: grouping::clipped(&written.rule),
        host: grouping::clipped(&written.hostname),
        message: written.output,
        body: text.trim().to_owned(),
    };
    Ok(Record::Alert(alert, loss))
}

/// Returns a record for what cannot be read, so that a sender neither loses it nor sends it for ever.
pub(crate) fn unreadable(text: &str, error: &AlertError, received_ns: i64) -> Record {
    let excerpt: String = text.chars().take(EXCERPT).collect();
    let mut body = String::new();
    let mut object = json::Object::open(&mut body);
    object
        .string("output", &format!("{error}: {excerpt}"))
        .string("priority", "Error")
        .string("rule", UNREADABLE)
        .string("source", "internal")
        .string("time", &time_text(received_ns));
    object.close();
    let alert = NewAlert {
        time_ns: received_ns,
        severity: Severity::named("Error").unwrap_or(Severity::DEBUG),
        rule: UNREADABLE.to_owned(),
        host: String::new(),
        program: String::new(),
        object: String::new(),
        message: excerpt,
        body,
    };
    Record::Alert(alert, None)
}

fn time(text: Option<&str>, fields: &Map<String, Value>) -> Option<i64> {
    let written = text.and_then(|text| text.parse::<Timestamp>().ok());
    let written = written.and_then(|time| i64::try_from(time.as_nanosecond()).ok());
    let event = || {
        ["evt.time", "evt.time.iso8601"]
            .iter()
            .find_map(|name| fields.get(*name)?.as_i64())
    };
    written.or_else(event).filter(|time| *time >= 0)
}

/// Returns a time as RFC 3339 writes it, in UTC.
pub(crate) fn time_text(time_ns: i64) -> String {
    let time = Timestamp::from_nanosecond(time_ns.into());
    time.map_or_else(|_| time_ns.to_string(), |time| time.to_string())
}

/// Returns text without characters that control a terminal.
fn json_text(text: &str) -> String {
    let mut out = String::new();
    json::write_escaped(&mut out, &grouping::clipped(text));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000_000_000_000;

    fn alert(text: &str) -> NewAlert {
        match read(text, NOW) {
            Ok(Record::Alert(alert, _)) => alert,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_alert_of_falco_is_read() {
        let read = alert(
            r#"{"hostname":"h","output":"10:00: Warning opened","priority":"Warning","rule":"R",
                "source":"syscall","tags":["a"],"time":"2026-01-02T03:04:05.000000006Z",
                "output_fields":{"proc.name":"cat","fd.name":"/proc/12/mem","evt.num":7}}"#,
        );
        assert_eq!(
            (&*read.rule, &*read.host, &*read.program),
            ("R", "h", "cat")
        );
        assert_eq!(
            (&*read.object, read.severity.name()),
            ("/proc/*/mem", "Warning")
        );
        assert_eq!(time_text(read.time_ns), "2026-01-02T03:04:05.000000006Z");
    }

    #[test]
    fn a_missing_or_future_time_is_that_of_arrival() {
        for time in ["", r#","time":"2126-01-02T03:04:05Z""#, r#","time":"soon""#] {
            let read = alert(&format!(r#"{{"rule":"R","priority":"Debug"{time}}}"#));
            assert_eq!(read.time_ns, NOW, "{time}");
        }
    }

    #[test]
    fn what_is_no_alert_is_refused_with_the_reason() {
        for (text, expected) in [
            ("x", "expected a JSON object"),
            (r#"["R","Debug"]"#, "expected a JSON object"),
            (r#"{"rule":"R"}"#, "missing field `priority`"),
            (r#"{"rule":"","priority":"Debug"}"#, "no name"),
            (
                r#"{"rule":"R","priority":"\u001b[2J"}"#,
                r"unknown priority `\u001b[2J`",
            ),
        ] {
            let error = read(text, NOW).expect_err(text).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_report_of_drops_is_a_loss() {
        let text = r#"{"rule":"Falco internal: syscall event drop","priority":"Critical","output":"o",
                       "output_fields":{"n_drops":"12"}}"#;
        let Ok(Record::Alert(_, Some(loss))) = read(text, NOW) else {
            panic!("no loss");
        };
        assert_eq!((loss.count, loss.kind.name()), (12, "dropped_events"));
    }
}
