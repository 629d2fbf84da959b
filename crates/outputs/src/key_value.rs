//! Alerts for logs: one line of `key=value`.

use std::collections::BTreeSet;

use rules::{Alert, AlertValue};

use crate::json;
use crate::pretty;
use crate::time;

/// Formats an alert as one line, line feed included. Fields without a value are left out.
pub(crate) fn line(alert: &Alert) -> String {
    let mut line = String::with_capacity(256 + alert.message.len());
    let mut pair = |key: &str, value: &str| {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(key);
        line.push('=');
        push_value(&mut line, value);
    };
    pair("time", &time::rfc_3339(alert.time_ns));
    pair("priority", &alert.priority.to_string());
    pair("rule", &alert.rule);
    pair("id", &alert.id());
    pair("source", &alert.source);
    pair("what", &pretty::what(alert));
    let mut seen = BTreeSet::new();
    for (name, value) in alert.fields.iter().chain(&alert.details.context) {
        if !matches!(value, AlertValue::Absent) && seen.insert(name) {
            pair(name, &pretty::plain(value));
        }
    }
    line.push('\n');
    line
}

/// Appends a value, in quotes if it has characters that end or disguise a value.
fn push_value(line: &mut String, value: &str) {
    let mut visible = String::new();
    json::write_escaped(&mut visible, value);
    let is_bare = visible == value && !value.is_empty() && !value.contains([' ', '=']);
    if is_bare {
        line.push_str(value);
    } else {
        line.push('"');
        line.push_str(&visible);
        line.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretty::tests::reading;

    #[test]
    fn a_line_has_every_known_field_once() {
        let alert = reading("/etc/shadow");
        assert_eq!(
            line(&alert),
            format!(
                "time=2026-11-21T08:15:42.000000007Z priority=Warning rule=\"Read sensitive file \
                 untrusted\" id={} source=syscall what=\"A sensitive file was opened for reading\" \
                 fd.name=/etc/shadow user.name=root proc.pid=4711 proc.name=cat proc.pname=sh \
                 proc.aname[2]=bash proc.aname[4]=systemd container.id=host\n",
                alert.id()
            )
        );
    }

    #[test]
    fn a_value_cannot_pass_for_another_field_or_line() {
        let file = "/tmp/a rule=x\"\n\u{1b}[2J\\";
        let line = line(&reading(file));
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(
            line.contains(r#" fd.name="/tmp/a rule=x\"\n\u001b[2J\\" "#),
            "{line}"
        );
    }
}
