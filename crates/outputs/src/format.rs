//! Formats an alert as one line in Falco's format.

use std::collections::BTreeMap;

use jiff::tz::TimeZone;
use rules::{Alert, AlertValue};

use crate::json::{self, Object};
use crate::time;

/// Format of the time in front of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeFormat {
    /// `HH:MM:SS.NNNNNNNNN`, local time.
    #[default]
    Clock,
    /// `YYYY-MM-DDTHH:MM:SS.NNNNNNNNN+0000`, UTC.
    Iso8601,
}

/// Optional members of a JSON alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonParts {
    /// `output`: time, priority and message.
    pub output: bool,
    /// `tags`.
    pub tags: bool,
    /// `output_fields`.
    pub output_fields: bool,
    /// `message`: the message alone.
    pub message: bool,
    /// `id`, `rule_id`, `rule_file` and `rule_line`, which Falco does not have.
    pub ids: bool,
}

impl Default for JsonParts {
    fn default() -> Self {
        Self {
            output: true,
            tags: true,
            output_fields: true,
            message: false,
            ids: true,
        }
    }
}

/// Format of an alert line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `13:53:31.726060287: Critical Something happened (user=root)`.
    Text(TimeFormat),
    /// One JSON object.
    Json(JsonParts, TimeFormat),
}

impl Default for Format {
    fn default() -> Self {
        Format::Text(TimeFormat::default())
    }
}

/// Returns an alert as a JSON object with all members, whatever the format of the outputs, without a line feed.
#[must_use]
pub fn alert_json(alert: &Alert) -> String {
    // No member of the object depends on the time zone.
    let formatter = Formatter {
        format: Format::default(),
        zone: TimeZone::UTC,
    };
    formatter.json(alert)
}

/// Formats alerts.
#[derive(Clone, Debug)]
pub(crate) struct Formatter {
    format: Format,
    zone: TimeZone,
}

impl Formatter {
    /// A formatter that prints clock times in the system's time zone.
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            zone: time::local_zone(),
        }
    }

    /// Returns the alert as one line, line feed included.
    pub(crate) fn line(&self, alert: &Alert) -> String {
        let mut line = String::with_capacity(256 + alert.message.len());
        match self.format {
            Format::Text(_) => return self.text_line(alert),
            Format::Json(parts, time) => self.write_json(&mut line, alert, parts, time),
        }
        line.push('\n');
        line
    }

    /// Returns the alert as a line of text, also where lines are JSON.
    pub(crate) fn text_line(&self, alert: &Alert) -> String {
        let mut line = String::with_capacity(256 + alert.message.len());
        json::write_escaped(&mut line, &self.text(alert));
        line.push('\n');
        line
    }

    /// Returns the alert as text, also where lines are JSON.
    pub(crate) fn text(&self, alert: &Alert) -> String {
        let (Format::Text(time) | Format::Json(_, time)) = self.format;
        self.output(alert, time)
    }

    /// Returns the alert as a JSON object with all members, also where lines are text.
    pub(crate) fn json(&self, alert: &Alert) -> String {
        let mut object = String::with_capacity(256 + alert.message.len());
        self.write_json(
            &mut object,
            alert,
            JsonParts::default(),
            TimeFormat::Iso8601,
        );
        object
    }

    fn output(&self, alert: &Alert, format: TimeFormat) -> String {
        let time = match format {
            TimeFormat::Clock => time::clock(alert.time_ns, &self.zone),
            TimeFormat::Iso8601 => time::iso_8601(alert.time_ns),
        };
        format!("{time}: {} {}", alert.priority, alert.message)
    }

    /// Writes the members in alphabetical order, like Falco's JSON library.
    fn write_json(&self, line: &mut String, alert: &Alert, parts: JsonParts, time: TimeFormat) {
        let mut object = Object::open(line);
        object.string("hostname", &alert.hostname);
        if parts.ids {
            object.string("id", &alert.id());
        }
        if parts.message {
            object.string("message", &alert.message);
        }
        if parts.output {
            object.string("output", &self.output(alert, time));
        }
        if parts.output_fields {
            object.member("output_fields", |out| write_fields(out, alert, time));
        }
        object.string("priority", &alert.priority.to_string());
        object.string("rule", &alert.rule);
        if parts.ids {
            let file = alert.details.file.as_deref();
            if let Some(file) = file {
                object.string("rule_file", file);
            }
            object.string("rule_id", &alert.rule_id());
            if file.is_some() {
                object.number("rule_line", alert.details.line.into());
            }
        }
        object.string("source", &alert.source);
        if parts.tags {
            object.member("tags", |out| write_tags(out, &alert.tags));
        }
        object.string("time", &time::rfc_3339(alert.time_ns));
        object.close();
    }
}

/// The field that the time in front of a line is made of is always a member: Falco formats that
/// time with the same machinery as the message. Its JSON value is a number in either time format.
fn write_fields(out: &mut String, alert: &Alert, time: TimeFormat) {
    let prefix = match time {
        TimeFormat::Clock => "evt.time",
        TimeFormat::Iso8601 => "evt.time.iso8601",
    };
    let event_time = AlertValue::Uint(alert.time_ns);
    let mut fields: BTreeMap<&str, &AlertValue> = alert
        .fields
        .iter()
        .map(|(name, value)| (&**name, value))
        .collect();
    fields.insert(prefix, &event_time);
    let mut object = Object::open(out);
    for (name, value) in fields {
        object.member(name, |out| write_value(out, value));
    }
    object.close();
}

fn write_value(out: &mut String, value: &AlertValue) {
    match value {
        AlertValue::Absent => out.push_str("null"),
        AlertValue::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        AlertValue::Int(value) => out.push_str(&value.to_string()),
        AlertValue::Uint(value) => out.push_str(&value.to_string()),
        AlertValue::Float(value) if value.is_finite() => out.push_str(&value.to_string()),
        AlertValue::Float(_) => out.push_str("null"),
        AlertValue::Text(text) => json::write_string(out, text),
        AlertValue::List(values) => write_list(out, values, write_value),
    }
}

/// Tags are a set: sorted and each once.
fn write_tags(out: &mut String, tags: &[String]) {
    let mut tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    tags.sort_unstable();
    tags.dedup();
    write_list(out, &tags, |out, tag| json::write_string(out, tag));
}

fn write_list<T>(out: &mut String, items: &[T], write: impl Fn(&mut String, &T)) {
    out.push('[');
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(out, item);
    }
    out.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert() -> Alert {
        Alert {
            tags: vec![
                "maturity_stable".to_owned(),
                "T1555".into(),
                "host".into(),
                "host".into(),
            ]
            .into(),
            fields: vec![
                ("fd.name".into(), AlertValue::Text("/etc/sh\"adow\n".into())),
                ("user.name".into(), AlertValue::Absent),
                ("evt.rawres".into(), AlertValue::Int(-2)),
                (
                    "proc.aname".into(),
                    AlertValue::List(vec![AlertValue::Text("sh".into()), AlertValue::Absent]),
                ),
                ("fd.is_server".into(), AlertValue::Bool(true)),
            ],
            ..crate::channel::testing::alert()
        }
    }

    const FALCOS: JsonParts = JsonParts {
        output: true,
        tags: true,
        output_fields: true,
        message: false,
        ids: false,
    };

    fn line(format: Format) -> String {
        Formatter {
            format,
            zone: TimeZone::UTC,
        }
        .line(&alert())
    }

    #[test]
    fn text_is_time_priority_message() {
        assert_eq!(
            line(Format::Text(TimeFormat::Clock)),
            "08:15:42.000000007: Warning Sensitive file opened \
             (file=/etc/sh\\\"adow\\n user=<NA>)\n"
        );
        assert_eq!(
            line(Format::Text(TimeFormat::Iso8601)),
            "2026-11-21T08:15:42.000000007+0000: Warning Sensitive file opened \
             (file=/etc/sh\\\"adow\\n user=<NA>)\n"
        );
    }

    #[test]
    fn json_has_falcos_members_in_falcos_order() {
        assert_eq!(
            line(Format::Json(FALCOS, TimeFormat::Clock)),
            concat!(
                r#"{"hostname":"box","output":"08:15:42.000000007: Warning Sensitive file opened"#,
                r#" (file=/etc/sh\"adow\n user=<NA>)","output_fields":{"evt.rawres":-2,"#,
                r#""evt.time":1795248942000000007,"fd.is_server":true,"#,
                r#""fd.name":"/etc/sh\"adow\n","proc.aname":["sh",null],"user.name":null},"#,
                r#""priority":"Warning","rule":"Read sensitive file untrusted","#,
                r#""source":"syscall","tags":["T1555","host","maturity_stable"],"#,
                r#""time":"2026-11-21T08:15:42.000000007Z"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn json_names_the_rule_and_the_alert_beside_falcos_members() {
        let read = |parts| {
            let line = line(Format::Json(parts, TimeFormat::Clock));
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&line).unwrap()
        };
        let (mut all, falcos) = (read(JsonParts::default()), read(FALCOS));
        assert_eq!(
            all.remove("rule_id").unwrap(),
            "read-sensitive-file-untrusted"
        );
        assert_eq!(all.remove("rule_file").unwrap(), "rules/a.yaml");
        assert_eq!(all.remove("rule_line").unwrap(), 12);
        assert_eq!(all.remove("id").unwrap(), alert().id());
        assert_eq!(all, falcos);
    }

    #[test]
    fn json_parts_can_be_left_out() {
        let parts = JsonParts {
            output: false,
            tags: false,
            output_fields: false,
            message: true,
            ids: false,
        };
        assert_eq!(
            line(Format::Json(parts, TimeFormat::Iso8601)),
            concat!(
                r#"{"hostname":"box","message":"Sensitive file opened (file=/etc/sh\"adow\n"#,
                r#" user=<NA>)","priority":"Warning","rule":"Read sensitive file untrusted","#,
                r#""source":"syscall","time":"2026-11-21T08:15:42.000000007Z"}"#,
                "\n"
            )
        );
    }

    #[test]
    fn iso_time_adds_its_own_field() {
        let json = line(Format::Json(JsonParts::default(), TimeFormat::Iso8601));
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            value["output_fields"]["evt.time.iso8601"],
            1_795_248_942_000_000_007_u64
        );
        assert!(value["output_fields"].get("evt.time").is_none());
    }
}
