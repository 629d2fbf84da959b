//! Machine-readable formats: CSV, JUnit and Bencher.

use std::fmt::Write;

use crate::escape::escape;

/// Formats rows as CSV (RFC 4180).
#[must_use]
pub fn csv(rows: &[Vec<String>]) -> String {
    let cell = |text: &String| {
        if text.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", text.replace('"', "\"\""))
        } else {
            text.clone()
        }
    };
    rows.iter()
        .map(|row| row.iter().map(cell).collect::<Vec<_>>().join(",") + "\r\n")
        .collect()
}

/// Outcome of a test case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The case passed.
    Passed,
    /// A limit was exceeded.
    Failed(String),
    /// The case could not be measured.
    Error(String),
}

/// One test case of a JUnit file.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Group of the case.
    pub class: String,
    /// Name of the case.
    pub name: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Outcome of the case.
    pub outcome: Outcome,
    /// Result as text.
    pub said: String,
}

/// Formats a JUnit file, as continuous-integration servers read it.
#[must_use]
pub fn junit(suite: &str, cases: &[Case]) -> String {
    let count =
        |wanted: fn(&Outcome) -> bool| cases.iter().filter(|case| wanted(&case.outcome)).count();
    let seconds: f64 = cases.iter().map(|case| case.seconds).sum();
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"{}\" tests=\"{}\" \
         failures=\"{}\" errors=\"{}\" time=\"{seconds:.3}\">\n",
        escape(suite),
        cases.len(),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
        count(|outcome| matches!(outcome, Outcome::Error(_))),
    );
    for case in cases {
        write!(
            out,
            "<testcase classname=\"{}\" name=\"{}\" time=\"{:.3}\">",
            escape(&case.class),
            escape(&case.name),
            case.seconds
        )
        .expect("text grows");
        match &case.outcome {
            Outcome::Passed => {}
            Outcome::Failed(why) => {
                write!(out, "<failure message=\"{}\"/>", escape(why)).expect("text grows");
            }
            Outcome::Error(why) => {
                write!(out, "<error message=\"{}\"/>", escape(why)).expect("text grows");
            }
        }
        writeln!(
            out,
            "<system-out>{}</system-out></testcase>",
            escape(&case.said)
        )
        .expect("text grows");
    }
    out + "</testsuite>\n</testsuites>\n"
}

/// One benchmark figure for Bencher.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    /// Name of the benchmark.
    pub benchmark: String,
    /// Name of the measure, e.g. `latency` (nanoseconds) or `ratio`.
    pub measure: String,
    /// Value of the measure.
    pub value: f64,
    /// Interval (low, high) around the value.
    pub bounds: Option<(f64, f64)>,
}

/// Formats figures as Bencher Metric Format: benchmark, measure, value.
#[must_use]
pub fn bencher(measures: &[Measure]) -> String {
    let mut all = serde_json::Map::new();
    for measure in measures {
        let mut figure = serde_json::Map::new();
        figure.insert("value".to_owned(), measure.value.into());
        if let Some((low, high)) = measure.bounds {
            figure.insert("lower_value".to_owned(), low.into());
            figure.insert("upper_value".to_owned(), high.into());
        }
        let benchmark = all
            .entry(&measure.benchmark)
            .or_insert_with(|| serde_json::Map::new().into());
        if let Some(benchmark) = benchmark.as_object_mut() {
            benchmark.insert(measure.measure.clone(), figure.into());
        }
    }
    serde_json::Value::from(all).to_string() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_needs_it() {
        let rows = [vec!["a".to_owned(), "b,c".to_owned(), "d\"e".to_owned()]];
        assert_eq!(csv(&rows), "a,\"b,c\",\"d\"\"e\"\r\n");
    }

    #[test]
    fn junit_counts_what_failed() {
        let case = |outcome| Case {
            class: "open".to_owned(),
            name: "a & b".to_owned(),
            seconds: 0.5,
            outcome,
            said: String::new(),
        };
        let xml = junit(
            "quick",
            &[
                case(Outcome::Passed),
                case(Outcome::Failed("1.5 > 1.2".to_owned())),
                case(Outcome::Error("exit status 4".to_owned())),
            ],
        );
        assert!(
            xml.contains("tests=\"3\" failures=\"1\" errors=\"1\" time=\"1.500\""),
            "{xml}"
        );
        assert!(xml.contains("name=\"a &amp; b\"") && xml.contains("1.5 &gt; 1.2"));
    }

    #[test]
    fn bencher_groups_by_benchmark() {
        let measure = |name: &str, bounds| Measure {
            benchmark: "open/notify".to_owned(),
            measure: name.to_owned(),
            value: 2.0,
            bounds,
        };
        let json = bencher(&[measure("latency", None), measure("ratio", Some((1.0, 3.0)))]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["open/notify"]["latency"]["value"], 2.0);
        assert_eq!(json["open/notify"]["ratio"]["upper_value"], 3.0);
    }
}
