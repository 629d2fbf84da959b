//! Messages from the process that makes a pass to the one that prints: one JSON object per line.

use serde_json::{Value, json};

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Report {
    /// A script starts. `action` is the index in [`super::action::ACTIONS`]; `twin` is true for the harmless
    /// twin.
    Begin { action: usize, twin: bool },
    /// An alert has arrived, at a time in nanoseconds since the Unix epoch.
    Alert { alert: Value, arrived_ns: u64 },
    /// The script has ended: its error, if any, and the number of events or alerts that were lost.
    End {
        problem: Option<String>,
        dropped: u64,
        output: String,
    },
    /// The action cannot be tried here.
    Skipped { action: usize, why: String },
    /// The pass cannot be made here.
    Failed { why: String },
}

impl Report {
    /// Formats the message as one line of JSON.
    pub(crate) fn line(&self) -> String {
        let object = match self {
            Report::Begin { action, twin } => json!({"begin": action, "twin": twin}),
            Report::Alert { alert, arrived_ns } => {
                json!({"alert": alert, "arrived_ns": arrived_ns})
            }
            Report::End {
                problem,
                dropped,
                output,
            } => {
                json!({"end": problem, "dropped": dropped, "output": output})
            }
            Report::Skipped { action, why } => json!({"skipped": action, "why": why}),
            Report::Failed { why } => json!({"failed": why}),
        };
        format!("{object}\n")
    }

    /// Parses a line. `None` for a line that is not a message.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let index = |key: &str| usize::try_from(value.get(key)?.as_u64()?).ok();
        let text = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
        if let Some(action) = index("begin") {
            return Some(Report::Begin {
                action,
                twin: value.get("twin")?.as_bool()?,
            });
        }
        if let Some(alert) = value.get("alert") {
            let arrived_ns = value.get("arrived_ns")?.as_u64()?;
            return Some(Report::Alert {
                alert: alert.clone(),
                arrived_ns,
            });
        }
        if value.get("end").is_some() {
            let dropped = value.get("dropped")?.as_u64()?;
            return Some(Report::End {
                problem: text("end"),
                dropped,
                output: text("output")?,
            });
        }
        if let Some(action) = index("skipped") {
            return Some(Report::Skipped {
                action,
                why: text("why")?,
            });
        }
        Some(Report::Failed {
            why: text("failed")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_report_survives_the_pipe() {
        let reports = [
            Report::Begin {
                action: 3,
                twin: true,
            },
            Report::Alert {
                alert: json!({"rule": "R", "output": "a\nb"}),
                arrived_ns: u64::MAX,
            },
            Report::End {
                problem: None,
                dropped: 0,
                output: "x\n".into(),
            },
            Report::End {
                problem: Some("p".into()),
                dropped: 7,
                output: String::new(),
            },
            Report::Skipped {
                action: 0,
                why: "w".into(),
            },
            Report::Failed { why: "f".into() },
        ];
        for report in reports {
            let line = report.line();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Report::parse(&line), Some(report));
        }
        for other in ["", "x", "{}", "[]", "{\"begin\": -1}"] {
            assert_eq!(Report::parse(other), None, "{other}");
        }
    }
}
