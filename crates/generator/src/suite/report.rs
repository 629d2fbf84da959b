//! Results of tests, by rule.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::load::{Expected, Test};
use crate::action::Outcome;
use crate::alerts::Alert;
use crate::expectation::{Expectation, Verdict};
use crate::options::ReportFormat;

/// Tests and their results.
pub(super) struct Report {
    pub(super) results: Vec<(Test, Verdict)>,
}

/// Returns the alert that a test must raise: of its rule, and with what it requires.
pub(super) fn expectation(test: &Test) -> Expectation<'_, Alert> {
    let is_candidate = |alert: &Alert| alert.rule == test.rule;
    let differences = |alert: &Alert| differences(&test.expected, alert);
    Expectation::nothing()
        .require(&test.rule, is_candidate, differences)
        .allow(|_| true)
}

fn differences(expected: &Expected, alert: &Alert) -> Vec<String> {
    let mut all = Vec::new();
    let mut compare = |name: &str, expected: Option<&str>, found: &str, same_case: bool| {
        let fits = expected.is_none_or(|expected| {
            if same_case {
                expected == found
            } else {
                expected.eq_ignore_ascii_case(found)
            }
        });
        if !fits {
            all.push(format!(
                "{name} is {found:?}, not {:?}",
                expected.unwrap_or_default()
            ));
        }
    };
    compare("source", expected.source.as_deref(), &alert.source, true);
    compare(
        "hostname",
        expected.hostname.as_deref(),
        &alert.hostname,
        true,
    );
    compare(
        "priority",
        expected.priority.as_deref(),
        &alert.priority,
        false,
    );
    for (name, value) in &expected.output_fields {
        let found = match alert.fields.get(name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        compare(name, value.as_str(), &found, true);
    }
    all
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Played => "played",
        Verdict::Detected { .. } => "passed",
        Verdict::Missed { .. } => "failed",
        Verdict::NotPlayed(Outcome::Skipped { .. }) => "skipped",
        Verdict::NotPlayed(_) => "error",
    }
}

fn reason(verdict: &Verdict) -> Option<String> {
    match verdict {
        Verdict::Played | Verdict::Detected { .. } => None,
        Verdict::Missed { different, .. } if different.is_empty() => {
            Some("no alert of the rule came".to_owned())
        }
        Verdict::Missed { different, .. } => Some(different.join("; ")),
        Verdict::NotPlayed(Outcome::Skipped { reason }) => Some(reason.clone()),
        Verdict::NotPlayed(Outcome::Failed { error }) => Some(error.clone()),
        Verdict::NotPlayed(Outcome::Done) => None,
    }
}

impl Report {
    pub(super) fn text(&self, format: ReportFormat) -> String {
        let suites = self.suites();
        match format {
            ReportFormat::Text => self.plain(),
            ReportFormat::Json => suites
                .iter()
                .fold(String::new(), |text, suite| text + &format!("{suite}\n")),
            ReportFormat::Yaml => {
                let mut text = String::new();
                yaml(&Value::Array(suites), 0, &mut text);
                text
            }
        }
    }

    fn by_rule(&self) -> BTreeMap<&str, Vec<&(Test, Verdict)>> {
        let mut all: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for result in &self.results {
            all.entry(&result.0.rule).or_default().push(result);
        }
        all
    }

    fn plain(&self) -> String {
        let mut text = String::new();
        for (rule, results) in self.by_rule() {
            let _ = writeln!(text, "{}", if rule.is_empty() { "(no rule)" } else { rule });
            for (test, verdict) in results {
                let reason =
                    reason(verdict).map_or_else(String::new, |reason| format!(": {reason}"));
                let _ = writeln!(text, "  {:8} {}{reason}", word(verdict), test.scenario.name);
            }
        }
        let count = |wanted: &str| {
            self.results
                .iter()
                .filter(|(_, verdict)| word(verdict) == wanted)
                .count()
        };
        let words =
            ["passed", "played", "failed", "error", "skipped"].map(|word| (word, count(word)));
        let counts: Vec<_> = words
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        text + &format!("{}\n", counts.join(", "))
    }

    fn suites(&self) -> Vec<Value> {
        let suite = |(rule, results): (&str, Vec<&(Test, Verdict)>)| {
            let tests: Vec<Value> = results
                .into_iter()
                .map(|(test, verdict)| object(test, verdict))
                .collect();
            json!({"rule": rule, "tests": tests})
        };
        self.by_rule().into_iter().map(suite).collect()
    }
}

fn object(test: &Test, verdict: &Verdict) -> Value {
    let mut object = Map::new();
    object.insert("name".into(), json!(test.scenario.name));
    if let Some(description) = &test.description {
        object.insert("description".into(), json!(description));
    }
    if let Some(case) = &test.case {
        object.insert("case".into(), case.clone());
    }
    object.insert("verdict".into(), json!(word(verdict)));
    if let Some(reason) = reason(verdict) {
        object.insert("reason".into(), json!(reason));
    }
    Value::Object(object)
}

/// Writes YAML in block style. Texts are quoted as in JSON, which is valid YAML.
fn yaml(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let is_leaf = |value: &Value| match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => true,
    };
    match value {
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                yaml(item, depth + 1, &mut inner);
                let _ = write!(text, "{indent}- {}", inner.trim_start());
            }
        }
        Value::Object(members) => {
            for (name, value) in members {
                if is_leaf(value) {
                    let _ = writeln!(text, "{indent}{name}: {value}");
                } else {
                    let _ = writeln!(text, "{indent}{name}:");
                    yaml(value, depth + 1, text);
                }
            }
        }
        leaf => {
            let _ = writeln!(text, "{indent}{leaf}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expectation::Comparison;
    use yaml::settings;

    fn test(priority: &str) -> Test {
        Test {
            rule: "R".to_owned(),
            description: None,
            case: Some(json!({"fd": 3})),
            expected: Expected {
                priority: Some(priority.to_owned()),
                output_fields: json!({"proc.name": "httpd"}).as_object().unwrap().clone(),
                ..Expected::default()
            },
            scenario: crate::scenario::Scenario {
                name: "t".to_owned(),
                ..Default::default()
            },
        }
    }

    fn alert(rule: &str, name: &str) -> Alert {
        let text =
            json!({"rule": rule, "priority": "Warning", "output_fields": {"proc.name": name}});
        Alert::parse(&text.to_string()).unwrap()
    }

    #[test]
    fn one_fitting_alert_is_enough() {
        let alerts = [
            alert("Other", "httpd"),
            alert("R", "nginx"),
            alert("R", "httpd"),
        ];
        let weigh = |priority: &str, alerts: &[Alert]| {
            let test = test(priority);
            let comparison = Comparison::new(expectation(&test)).with(alerts.to_vec());
            Verdict::of(&comparison)
        };
        let passed = weigh("WARNING", &alerts);
        assert!(matches!(passed, Verdict::Detected { .. }), "{passed:?}");
        let different = |verdict| match verdict {
            Verdict::Missed { different, .. } => different,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            different(weigh("WARNING", &alerts[..2])),
            [r#"proc.name is "nginx", not "httpd""#]
        );
        assert!(different(weigh("WARNING", &alerts[..1])).is_empty());
        assert!(weigh("ERROR", &alerts).is_wrong());
    }

    #[test]
    fn reports_are_grouped_and_their_yaml_is_yaml() {
        let reason = "R".to_owned();
        let results = vec![
            (
                test("x"),
                Verdict::Detected {
                    rule: "R".to_owned(),
                    delay_ns: None,
                },
            ),
            (test("y"), Verdict::NotPlayed(Outcome::Skipped { reason })),
        ];
        let report = Report { results };
        assert!(
            report
                .text(ReportFormat::Text)
                .ends_with("  skipped  t: R\n1 passed, 1 skipped\n")
        );
        let read = settings::read("report", &report.text(ReportFormat::Yaml)).unwrap();
        let read = super::super::load::anything(&read);
        assert_eq!(read[0]["tests"][1]["verdict"], "skipped");
        assert_eq!(read[0]["tests"][0]["case"]["fd"], 3);
        let json: Value = serde_json::from_str(&report.text(ReportFormat::Json)).unwrap();
        assert_eq!(json["tests"], read[0]["tests"]);
    }
}
