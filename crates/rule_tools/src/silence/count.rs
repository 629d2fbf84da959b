//! Counts what candidates silence among recorded alerts.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use config::rule_files;
use config::rule_files::RuleFile;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rules::synthetic_event::SyntheticValue;
use rules::{AlertSink, AlertValue, EngineOptions, RuleMatching};
use serde_json::Value;

use super::alert::Alert;
use super::candidate::Candidate;
use crate::event_explanation::{MAGIC, shown};

/// Number of other alerts that are shown.
const EXAMPLES: usize = 3;

/// What one candidate silences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) silenced: usize,
    /// Alerts that do not show the fields that the candidate compares.
    pub(super) unknown: usize,
    pub(super) all: usize,
    /// Some silenced alerts of other programs or objects.
    pub(super) examples: Vec<String>,
}

/// Counts one candidate among alerts of its rule. `own` is the alert to silence.
pub(super) fn count(candidate: &Candidate, own: &Alert, alerts: &[Alert]) -> Count {
    let mut count = Count {
        all: alerts.len(),
        ..Count::default()
    };
    for alert in alerts {
        match candidate.silences(alert) {
            Some(true) => count.silenced += 1,
            None => count.unknown += 1,
            Some(false) => continue,
        }
        let subject = subject(alert);
        let is_new = subject != self::subject(own) && !count.examples.contains(&subject);
        if is_new && count.examples.len() < EXAMPLES {
            count.examples.push(subject);
        }
    }
    count
}

/// Describes who did what to which object.
fn subject(alert: &Alert) -> String {
    let fields = ["proc.exepath", "proc.cmdline", "fd.name"];
    let texts = fields.into_iter().filter_map(|field| alert.text(field));
    let texts: Vec<_> = texts.map(yaml::quote::comment).collect();
    texts.join(" ")
}

/// Reads the alerts of a rule from a capture or a file of alerts. Also returns the number of lines that are no alerts.
pub(super) fn alerts(
    path: &Path,
    rule: &str,
    files: &[RuleFile],
) -> Result<(Vec<Alert>, usize), Failure> {
    let cannot = |error: &dyn std::fmt::Display| {
        let message = format!("cannot read {}: {error}", path.display());
        Failure::new(Exit::BadInput, message).help("name a capture, or a file of alerts in JSON")
    };
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(|error| cannot(&error))?;
    let read = file.by_ref().take(4).read_to_end(&mut bytes);
    read.map_err(|error| cannot(&error))?;
    if MAGIC.iter().any(|magic| bytes.starts_with(magic)) {
        return Ok((of_capture(path, rule, files)?, 0));
    }
    file.read_to_end(&mut bytes)
        .map_err(|error| cannot(&error))?;
    let text = String::from_utf8(bytes).map_err(|error| cannot(&error))?;
    let mut others = 0;
    let mut alerts = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let object: Option<Value> = serde_json::from_str(line).ok();
        match object.and_then(|object| Alert::of(&object).ok()) {
            Some(alert) if alert.rule == rule => alerts.push(alert),
            Some(_) => {}
            None => others += 1,
        }
    }
    Ok((alerts, others))
}

/// A sink that keeps the alerts of one rule.
#[derive(Clone)]
struct OfRule {
    rule: Arc<str>,
    alerts: Arc<Mutex<Vec<Alert>>>,
}

impl AlertSink for OfRule {
    fn emit(&self, alert: rules::Alert) {
        if alert.rule != self.rule {
            return;
        }
        let fields = alert.fields.iter().map(|(name, value)| {
            let value = match value {
                AlertValue::Absent => SyntheticValue::Absent,
                value => SyntheticValue::One(shown(value)),
            };
            (name.to_string(), value)
        });
        let alert = Alert {
            rule: alert.rule.to_string(),
            output: alert.message.clone(),
            fields: fields.collect(),
        };
        let mut alerts = self.alerts.lock().unwrap_or_else(PoisonError::into_inner);
        alerts.push(alert);
    }
}

fn of_capture(path: &Path, rule: &str, files: &[RuleFile]) -> Result<Vec<Alert>, Failure> {
    let mut loaded = rule_files::load_read(files.to_vec());
    let sink = OfRule {
        rule: rule.into(),
        alerts: Arc::default(),
    };
    let options = EngineOptions {
        rule_matching: RuleMatching::All,
        ..EngineOptions::default()
    };
    let (engine, _plan) = loaded.compile(&options, sink.clone());
    replay::evaluate(path, &engine)?;
    let mut alerts = sink.alerts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *alerts))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::alert::tests::alert;
    use super::super::candidate::candidates;
    use super::*;

    #[test]
    fn other_silenced_alerts_are_counted_and_shown() {
        let of =
            |exe: &str, file: &str| alert("R", json!({ "proc.exepath": exe, "fd.name": file }));
        let own = of("/a", "/etc/shadow");
        let unknown = alert("R", json!({ "proc.exepath": "/a" }));
        let log = [
            own.clone(),
            of("/a", "/etc/gshadow"),
            of("/b", "/etc/shadow"),
            unknown,
        ];
        let counts: Vec<_> = candidates(&own)
            .iter()
            .map(|candidate| {
                let count = count(candidate, &own, &log);
                (count.silenced, count.unknown, count.examples.len())
            })
            .collect();
        // The file, the folder, the program, the object.
        assert_eq!(counts, [(1, 1, 1), (2, 1, 2), (3, 0, 2), (2, 1, 2)]);
    }
}
