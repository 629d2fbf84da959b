//! Output of a benchmark: the log of Falco's event generator as text or JSON, or a table.
//!
//! Words and names of values are those of the event generator, so that a program that reads its log can read
//! this one. Values that it does not have are added.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

use super::meter::float;
use super::round::Round;
use crate::options::LogFormat;

/// Printer of rounds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    pub(super) format: LogFormat,
    pub(super) humanize: bool,
}

/// Kind of a log line.
#[derive(Clone, Copy)]
enum Level {
    Info,
    Warning,
}

impl Log {
    /// Formats the line before a round.
    pub(super) fn begin(self, number: u32, sleep_ns: u64, is_dry: bool) -> String {
        if self.format == LogFormat::Table {
            return if number == 1 { header() } else { String::new() };
        }
        let mut fields = Map::new();
        fields.insert("sleep".into(), go_duration(sleep_ns).into());
        if is_dry {
            fields.insert("dry-run".into(), true.into());
        }
        self.line(Level::Info, &format!("round #{number}"), fields)
    }

    /// Formats the line at the end of a round's time.
    pub(super) fn resting(self) -> String {
        if self.format == LogFormat::Table {
            return String::new();
        }
        self.line(Level::Info, "resting...", Map::new())
    }

    /// Formats the results of a round.
    pub(super) fn statistics(self, round: &Round) -> String {
        if self.format == LogFormat::Table {
            return row(round);
        }
        let mut text = String::new();
        for action in &round.actions {
            let fields = json!({"actual": action.actual, "expected": action.expected,
                                "ratio": action.ratio()});
            text += &self.line(Level::Info, action.name, object(fields));
        }
        text += &self.line(Level::Info, "statistics", self.values(round));
        for action in &round.actions {
            if action.expected == 0 {
                let fields = json!({"action": action.name, "reason": action.reason});
                text += &self.line(Level::Warning, "cannot generate events", object(fields));
            }
            if action.actual > action.expected && !round.is_dry {
                let fields = json!({"action": action.name});
                text += &self.line(Level::Warning, "unexpected events received", object(fields));
            }
        }
        text
    }

    fn values(self, round: &Round) -> Map<String, Value> {
        let mut all = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                all.insert(name.to_owned(), value);
            }
        };
        let humanize = self.humanize;
        let number = |value: f64, text: String| if humanize { json!(text) } else { json!(value) };
        let bytes = |value: u64| {
            if humanize {
                json!(si_bytes(value))
            } else {
                json!(value)
            }
        };
        put(
            "cpu",
            round
                .cpu()
                .map(|cpu| number(cpu, format!("{:.1}%", cpu * 100.0))),
        );
        put("res_mem", round.after.resident.map(bytes));
        put("virt_mem", round.after.virtual_size.map(bytes));
        put(
            "throughput",
            Some(number(round.eps(), format!("{:.1} EPS", round.eps()))),
        );
        if !round.is_dry {
            put(
                "lost",
                Some(number(
                    round.lost(),
                    format!("{:.0}%", (round.lost() * 100.0).trunc() + 0.0),
                )),
            );
        }
        put("drops", round.drops().map(|drops| json!(drops)));
        put(
            "syscalls",
            round
                .calls_per_s()
                .map(|calls| number(calls, format!("{calls:.0}/s"))),
        );
        for (name, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)] {
            put(
                name,
                round
                    .percentile(share)
                    .map(|ns| number(ns, milliseconds(ns))),
            );
        }
        all
    }

    /// Formats one line as logrus does when its output is not a terminal.
    fn line(self, level: Level, message: &str, fields: Map<String, Value>) -> String {
        let (time, level) = (
            now(),
            match level {
                Level::Info => "info",
                Level::Warning => "warning",
            },
        );
        // logrus sorts names.
        let mut fields: Vec<(String, Value)> = fields.into_iter().collect();
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        if self.format == LogFormat::Json {
            fields.extend([
                ("level".to_owned(), json!(level)),
                ("msg".to_owned(), json!(message)),
                ("time".to_owned(), json!(time)),
            ]);
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            let object: Map<_, _> = fields.into_iter().collect();
            return format!("{}\n", Value::Object(object));
        }
        let mut text = format!(
            "time={} level={level} msg={}",
            quoted(&time),
            quoted(message)
        );
        for (name, value) in fields {
            let value = match value {
                Value::String(text) => quoted(&text),
                other => other.to_string(),
            };
            let _ = write!(text, " {name}={value}");
        }
        text + "\n"
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .collect(),
        _ => Map::new(),
    }
}

fn header() -> String {
    format!(
        "{:>5}  {:>10}  {:>10}  {:>9}  {:>9}  {:>6}  {:>8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>8}  {:>10}  {:>6}\n",
        "round",
        "sleep",
        "EPS",
        "expected",
        "actual",
        "lost",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "CPU",
        "memory",
        "syscalls/s",
        "drops"
    )
}

fn row(round: &Round) -> String {
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let delay = |share| or_dash(round.percentile(share).map(milliseconds));
    format!(
        "{:>5}  {:>10}  {:>10.1}  {:>9}  {:>9}  {:>6}  {:>8}  {:>8}  {:>8}  {:>8}  {:>7}  {:>8}  {:>10}  {:>6}\n",
        round.number,
        go_duration(round.sleep_ns),
        round.eps(),
        round.expected(),
        round.actual(),
        if round.is_dry {
            "-".to_owned()
        } else {
            format!("{:.1}%", round.lost() * 100.0 + 0.0)
        },
        delay(0.5),
        delay(0.9),
        delay(0.99),
        delay(0.999),
        or_dash(round.cpu().map(|cpu| format!("{:.1}%", cpu * 100.0))),
        or_dash(round.after.resident.map(si_bytes)),
        or_dash(round.calls_per_s().map(|calls| format!("{calls:.0}"))),
        or_dash(round.drops().map(|drops| drops.to_string())),
    )
}

fn milliseconds(ns: f64) -> String {
    format!("{:.2}ms", ns / 1e6)
}

/// Formats a duration as Go does.
fn go_duration(ns: u64) -> String {
    let trimmed = |value: f64, unit: &str| {
        let text = format!("{value:.6}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match ns {
        0 => "0s".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => trimmed(float(ns) / 1e3, "µs"),
        1_000_000..1_000_000_000 => trimmed(float(ns) / 1e6, "ms"),
        _ => trimmed(float(ns) / 1e9, "s"),
    }
}

/// Formats bytes with units of thousands, and one digit below ten.
fn si_bytes(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = float(bytes);
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if value < 9.95 && unit > 0 {
        format!("{value:.1} {}", units[unit])
    } else {
        format!("{value:.0} {}", units[unit])
    }
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/@^+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

/// Returns the current time in UTC, in seconds.
fn now() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    timestamp(since.as_secs())
}

fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil date from days since the Unix epoch; years begin in March here.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, late) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = year_of_era + era * 400 + late;
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::super::round::tests::round;
    use super::*;

    fn after_time(line: &str) -> String {
        let (_, rest) = line.split_once(" level").unwrap();
        format!("level{rest}")
    }

    #[test]
    fn text_is_what_logrus_writes() {
        let log = Log {
            format: LogFormat::Text,
            humanize: true,
        };
        assert_eq!(
            after_time(&log.begin(3, 62_500_000, false)),
            "level=info msg=\"round #3\" sleep=62.5ms\n"
        );
        let text = log.statistics(&round(1, 100, 25));
        let lines: Vec<_> = text.lines().map(after_time).collect();
        assert_eq!(
            lines[0],
            "level=info msg=syscall.X actual=75 expected=100 ratio=0.75"
        );
        assert_eq!(
            lines[1],
            "level=info msg=statistics drops=25 lost=\"25%\" syscalls=1000/s throughput=\"100.0 EPS\""
        );
    }

    #[test]
    fn json_has_the_same_names_and_plain_numbers() {
        let log = Log {
            format: LogFormat::Json,
            humanize: false,
        };
        let text = log.statistics(&round(1, 100, 25));
        let value: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&value["msg"], &value["lost"]),
            (&json!("statistics"), &json!(0.25))
        );
        assert_eq!(value["throughput"], 100.0);
    }

    #[test]
    fn numbers_are_written_as_people_and_go_do() {
        for (bytes, text) in [(87_123_456, "87 MB"), (1_250_000, "1.2 MB"), (999, "999 B")] {
            assert_eq!(si_bytes(bytes), text);
        }
        for (ns, text) in [
            (10_000_000, "10ms"),
            (1_250_000, "1.25ms"),
            (2_500_000_000, "2.5s"),
            (312_500, "312.5µs"),
            (0, "0s"),
        ] {
            assert_eq!(go_duration(ns), text);
        }
        assert_eq!(timestamp(1_709_208_000), "2024-02-29T12:00:00Z");
        assert_eq!(timestamp(0), "1970-01-01T00:00:00Z");
    }
}
