//! Metrics at an interval, as internal events and in a file (`metrics`).

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use outputs::{Internal, internal_alert};
use rules::{AlertValue, Priority};
use serde_json::{Map, Value as Json, json};

use super::{Area, Metric, Source, Value, since_epoch};
use crate::journal;

/// Opened snapshots without a thread.
pub(crate) struct Snapshots {
    file: Option<(PathBuf, File)>,
}

/// Ends the snapshots when dropped.
pub(crate) struct Running {
    _stop: Sender<()>,
}

impl Snapshots {
    /// Opens the file for appending, if one is configured.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str().is_empty() {
            return Ok(Self { file: None });
        }
        let opened = OpenOptions::new().append(true).create(true).open(path);
        let file = opened.map_err(|error| {
            let message = format!("cannot open metrics file {}: {error}", path.display());
            Failure::new(Exit::BadInput, message).help("name a writable one in metrics.output_file")
        })?;
        let file = Some((path.to_owned(), file));
        Ok(Self { file })
    }

    /// Starts taking a snapshot at each interval.
    pub(crate) fn start(self, source: Source) -> anyhow::Result<Running> {
        let (stop, stopped) = channel();
        let interval = source.wanted.interval;
        let mut writer = Writer {
            source,
            file: self.file,
            samples: 0,
            last: None,
        };
        let work = move || {
            let mut due = Instant::now() + interval;
            loop {
                let left = due.saturating_duration_since(Instant::now());
                match stopped.recv_timeout(left) {
                    Err(RecvTimeoutError::Timeout) => {
                        due += interval;
                        writer.sample();
                    }
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(work)
            .context("cannot start the thread that takes metrics")?;
        Ok(Running { _stop: stop })
    }
}

struct Writer {
    source: Source,
    file: Option<(PathBuf, File)>,
    samples: u64,
    last: Option<Last>,
}

/// Values of the previous snapshot.
#[derive(Clone, Copy)]
struct Last {
    at: Instant,
    events: u64,
    drops: u64,
}

impl Writer {
    fn sample(&mut self) {
        self.samples += 1;
        let fields = self.fields();
        if self.source.wanted.output_rule {
            self.emit(&fields);
        }
        if let Err(error) = self.write(&fields) {
            // One line per interval while the error persists.
            journal::warn(&format!("cannot write metrics: {error}"));
        }
    }

    fn emit(&self, fields: &BTreeMap<String, Json>) {
        let event = Internal {
            rule: "Falco internal: metrics snapshot",
            priority: Priority::Informational,
            message: "Falco metrics snapshot".to_owned(),
            fields: Vec::new(),
        };
        let host: Arc<str> = decoder::host::host_name().into();
        let mut alert = internal_alert(&host, event);
        let fields = fields.iter();
        alert.fields = fields
            .map(|(name, value)| (name.as_str().into(), alert_value(value)))
            .collect();
        self.source.dispatcher.emit(alert);
    }

    fn write(&mut self, fields: &BTreeMap<String, Json>) -> io::Result<()> {
        let Some((_, file)) = &mut self.file else {
            return Ok(());
        };
        let fields: Map<_, _> = fields
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let line = json!({ "output_fields": fields, "sample": self.samples });
        writeln!(file, "{line}")
    }

    fn fields(&mut self) -> BTreeMap<String, Json> {
        let wanted = self.source.wanted.clone();
        let metrics = self.source.gather();
        let mut out = BTreeMap::new();
        out.insert("evt.time".to_owned(), json!(since_epoch(SystemTime::now())));
        out.insert("evt.source".to_owned(), json!("syscall"));
        let mut matched = 0;
        for metric in &metrics {
            if metric.name == "rules_matches" {
                matched += count(metric);
            }
            let (name, value) = field(metric, wanted.megabytes);
            let is_empty = matches!(&value, Json::Number(n) if n.as_f64() == Some(0.0));
            // Falco always reports these.
            let is_always = name.starts_with("scap.n_evts") || name == "scap.n_drops";
            if !is_empty || wanted.empty_values || is_always {
                out.insert(name, value);
            }
        }
        if wanted.rules {
            out.insert("falco.rules.matches_total".to_owned(), json!(matched));
        }
        self.rates(&metrics, &mut out);
        out
    }

    /// Adds the rates since the previous snapshot.
    fn rates(&mut self, metrics: &[Metric], out: &mut BTreeMap<String, Json>) {
        let of = |name: &str| {
            let found = metrics
                .iter()
                .find(|metric| metric.area == Area::Scap && metric.name == name);
            found.map(count)
        };
        let (Some(events), Some(drops)) = (of("n_evts"), of("n_drops")) else {
            return;
        };
        let now = Last {
            at: Instant::now(),
            events,
            drops,
        };
        let before = self.last.replace(now);
        let (new, lost, passed) = before.map_or((0, 0, Duration::ZERO), |last| {
            (
                events.saturating_sub(last.events),
                drops.saturating_sub(last.drops),
                now.at - last.at,
            )
        });
        let per_second = |count: u64| {
            let seconds = passed.as_secs_f64();
            if seconds > 0.0 {
                (as_float(count) / seconds * 10.0).round() / 10.0
            } else {
                0.0
            }
        };
        let mut set = |name: &str, value: Json| out.insert(name.to_owned(), value);
        let (events_before, drops_before) = before.map_or((0, 0), |last| (last.events, last.drops));
        set("falco.num_evts", json!(events - drops.min(events)));
        set(
            "falco.num_evts_prev",
            json!(events_before - drops_before.min(events_before)),
        );
        set(
            "falco.evts_rate_sec",
            json!(per_second(new - lost.min(new))),
        );
        set("scap.n_evts_prev", json!(events_before));
        set("scap.n_drops_prev", json!(drops_before));
        set("scap.evts_rate_sec", json!(per_second(new)));
        set("scap.evts_drop_rate_sec", json!(per_second(lost)));
        let percent = if new > 0 {
            100.0 * as_float(lost) / as_float(new)
        } else {
            0.0
        };
        set("scap.n_drops_perc", json!(percent));
    }
}

fn count(metric: &Metric) -> u64 {
    match metric.value {
        Value::Count(n) | Value::Gauge(n) => n,
        _ => 0,
    }
}

/// Converts to a float, which is exact below 2^53; event counts stay below.
fn as_float(n: u64) -> f64 {
    let high = u32::try_from(n >> 32).expect("half of the bits");
    let low = u32::try_from(n & 0xffff_ffff).expect("half of the bits");
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// Returns name and value of a metric in a snapshot.
fn field(metric: &Metric, megabytes: bool) -> (String, Json) {
    let area = match metric.area {
        Area::Falco | Area::State => "falco",
        Area::Scap => "scap",
        Area::Evt => "evt",
        Area::Tollgate => "tollgate",
    };
    let label = |name: &str| {
        let found = metric.labels.iter().find(|(label, _)| label == name);
        found.map_or("", |(_, text)| text)
    };
    let name = match metric.name.as_str() {
        "rules_matches" => format!("rules.{}", sanitized(label("rule_name"))),
        "sha256_rules_files" => format!("sha256_rules_file.{}", sanitized(label("file_name"))),
        "sha256_config_files" => format!("sha256_config_file.{}", sanitized(label("file_name"))),
        name => {
            let is_own = |label: &&(String, String)| label.0 != "evt_source" && label.0 != "dir";
            let labels = metric.labels.iter().filter(is_own);
            labels.fold(name.to_owned(), |name, (_, text)| {
                format!("{name}_{}", sanitized(text))
            })
        }
    };
    let mib = |bytes: u64| (as_float(bytes) / 1_048_576.0 * 10.0).round() / 10.0;
    let (unit, value) = match &metric.value {
        Value::Count(n) | Value::Gauge(n) => ("", json!(n)),
        Value::Percent(percent) => ("_perc", json!((percent * 10.0).round() / 10.0)),
        Value::Kib(n) if megabytes => ("_mb", json!(mib(n.saturating_mul(1024)))),
        Value::Bytes(n) if megabytes => ("_mb", json!(mib(*n))),
        Value::Kib(n) => ("_kb", json!(n)),
        Value::Bytes(n) => ("_bytes", json!(n)),
        Value::TimestampNs(n) => ("_ts", json!(n)),
        Value::Seconds(n) => ("_sec", json!(n)),
        Value::Nanoseconds(n) => ("_ns", json!(n)),
        Value::Info(_, text) => ("", json!(text)),
    };
    (format!("{area}.{name}{unit}"), value)
}

/// Replaces all but letters, digits, colons and underscores.
fn sanitized(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        let c = if c.is_ascii_alphanumeric() || c == ':' {
            c
        } else {
            '_'
        };
        if c != '_' || !out.ends_with('_') {
            out.push(c);
        }
    }
    out.strip_suffix('_').map(str::to_owned).unwrap_or(out)
}

fn alert_value(value: &Json) -> AlertValue {
    match value {
        Json::Number(number) => match (number.as_u64(), number.as_f64()) {
            (Some(number), _) => AlertValue::Uint(number),
            (None, number) => AlertValue::Float(number.unwrap_or(f64::NAN)),
        },
        Json::String(text) => AlertValue::Text(text.clone()),
        other => AlertValue::Text(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_falcos_names() {
        for (metric, megabytes, name, value) in [
            (
                Metric::new(Area::Falco, "rules_matches", Value::Count(2))
                    .label("rule_name", "Read sensitive file (x)"),
                true,
                "falco.rules.Read_sensitive_file_x",
                json!(2),
            ),
            (
                Metric::new(Area::Falco, "memory_rss", Value::Kib(2048)),
                true,
                "falco.memory_rss_mb",
                json!(2.0),
            ),
            (
                Metric::new(Area::Falco, "memory_rss", Value::Kib(2048)),
                false,
                "falco.memory_rss_kb",
                json!(2048),
            ),
            (
                Metric::new(Area::State, "n_threads", Value::Gauge(3)),
                true,
                "falco.n_threads",
                json!(3),
            ),
            (
                Metric::new(Area::Falco, "duration", Value::Seconds(3)),
                true,
                "falco.duration_sec",
                json!(3),
            ),
            (
                Metric::new(Area::Scap, "n_drops_buffer", Value::Count(3))
                    .label("dir", "exit")
                    .label("drop", "bulk"),
                true,
                "scap.n_drops_buffer_bulk",
                json!(3),
            ),
        ] {
            assert_eq!(field(&metric, megabytes), (name.to_owned(), value));
        }
        assert_eq!(as_float(1 << 40), 1_099_511_627_776.0);
    }
}
