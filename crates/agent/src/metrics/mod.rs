//! Metrics of the agent, for `/metrics` and for snapshots, under Falco's names.

mod host;
mod latency;
mod prometheus;
mod snapshot;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use config::Config;
use config::Metrics as Wanted;
use outputs::{Dispatcher, Snapshot};
use rules::Engine;

pub(crate) use self::latency::Latency;
pub(crate) use self::snapshot::{Running, Snapshots};
use crate::digest;
use crate::version::FALCO_VERSION;

/// Group of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Area {
    Falco,
    Scap,
    /// Prefixed with `state` in Falco's snapshots, and with the engine on its page.
    State,
    Evt,
    /// Not in Falco.
    Tollgate,
}

/// A value and its unit.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    /// A monotonic counter.
    Count(u64),
    /// A gauge.
    Gauge(u64),
    Percent(f64),
    Kib(u64),
    Bytes(u64),
    /// A time in nanoseconds since the epoch.
    TimestampNs(u64),
    /// A monotonic time in seconds.
    Seconds(u64),
    Nanoseconds(u64),
    /// Text in a label of this name.
    Info(&'static str, String),
}

/// A metric with its name.
#[derive(Clone, Debug, PartialEq)]
struct Metric {
    area: Area,
    /// Name without group and unit.
    name: String,
    labels: Vec<(String, String)>,
    value: Value,
}

impl Metric {
    fn new(area: Area, name: impl Into<String>, value: Value) -> Self {
        Self {
            area,
            name: name.into(),
            labels: Vec::new(),
            value,
        }
    }

    fn label(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.labels.push((name.into(), text.into()));
        self
    }
}

/// Callback that returns the engine's counters.
pub(crate) type Counters = Arc<dyn Fn() -> Snapshot + Send + Sync>;
/// Callback that returns the rules in force: those of system calls, then those of plugins' sources.
pub(crate) type RulesInForce = Arc<dyn Fn() -> Vec<Arc<Engine>> + Send + Sync>;

/// Sources of all metrics.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) wanted: Wanted,
    /// Falco's name of the engine.
    pub(crate) engine_name: &'static str,
    pub(crate) counters: Counters,
    pub(crate) in_force: RulesInForce,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) latency: Arc<Latency>,
    pub(crate) files: Files,
    pub(crate) started: SystemTime,
}

/// Files whose checksums are reported.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    config: Vec<PathBuf>,
    rules: Vec<PathBuf>,
}

impl Files {
    pub(crate) fn of(config: &Config) -> Self {
        let mut rules = Vec::new();
        for path in config.rule_sources().paths() {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let before = rules.len();
            rules.extend(
                entries
                    .map(|entry| entry.path())
                    .filter(|path| path.is_file()),
            );
            if rules.len() == before {
                rules.push(path.clone());
            }
        }
        rules.sort();
        Self {
            config: config.files.clone(),
            rules,
        }
    }
}

impl Source {
    /// Returns the page `/metrics`.
    pub(crate) fn page(&self) -> String {
        prometheus::page(&self.gather())
    }

    fn gather(&self) -> Vec<Metric> {
        let mut all = self.about();
        let snapshot = (self.counters)();
        self.engine(&snapshot, &mut all);
        self.rules(&mut all);
        self.outputs(&mut all);
        if self.wanted.resources {
            all.extend(host::resources());
        }
        all.extend(self.latency.metrics());
        all
    }

    /// Returns metrics that are constant or depend only on the clock.
    fn about(&self) -> Vec<Metric> {
        use Area::{Evt, Falco, Scap};
        let system = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let uptime = self.started.elapsed().unwrap_or_default();
        let info = |area, name: &'static str, value: String| {
            Metric::new(area, name, Value::Info(name, value))
        };
        let mut all = vec![
            info(Falco, "version", FALCO_VERSION.to_owned()),
            info(Scap, "engine_name", self.engine_name.to_owned()).label("evt_source", "syscall"),
            info(Falco, "kernel_release", text(system.release())),
            info(Evt, "hostname", decoder::host::host_name()),
            Metric::new(
                Falco,
                "start",
                Value::TimestampNs(since_epoch(self.started)),
            ),
            // Rules are reloaded in place; the configuration is that of the start.
            Metric::new(
                Falco,
                "reload",
                Value::TimestampNs(since_epoch(self.started)),
            ),
            Metric::new(Falco, "duration", Value::Seconds(uptime.as_secs())),
            Metric::new(Falco, "host_num_cpus", Value::Gauge(host::cpus())),
        ];
        let boot = host::boot_time_ns().map(Value::TimestampNs);
        all.extend(boot.map(|boot| Metric::new(Falco, "host_boot", boot)));
        for (name, files) in [
            ("sha256_rules_files", &self.files.rules),
            ("sha256_config_files", &self.files.config),
        ] {
            for file in files {
                let Ok(content) = std::fs::read(file) else {
                    // The file was removed since; a reload reports that.
                    continue;
                };
                let sum = digest::sha256(&content);
                let name_of = file.file_name().map(|name| name.to_string_lossy());
                all.push(
                    Metric::new(Falco, name, Value::Info("sha256", sum))
                        .label("file_name", name_of.unwrap_or_default()),
                );
            }
        }
        all
    }

    fn engine(&self, snapshot: &Snapshot, all: &mut Vec<Metric>) {
        let counter = |wanted: &str| {
            let counter = snapshot.counters.iter().find(|(name, _)| *name == wanted);
            counter.map(|(_, count)| *count)
        };
        if self.wanted.kernel {
            all.push(Metric::new(
                Area::Scap,
                "n_evts",
                Value::Count(snapshot.events),
            ));
            all.push(Metric::new(
                Area::Scap,
                "n_drops",
                Value::Count(snapshot.drops),
            ));
            let filtered = snapshot.filtered_in_kernel.map(Value::Count);
            all.extend(
                filtered.map(|calls| Metric::new(Area::Tollgate, "filtered_in_kernel", calls)),
            );
            for lane in ["critical", "bulk", "state"] {
                if let Some(lost) = counter(&format!("lost_{lane}")) {
                    all.push(
                        Metric::new(Area::Scap, "n_drops_buffer", Value::Count(lost))
                            .label("dir", "exit")
                            .label("drop", lane),
                    );
                }
            }
        }
        if self.wanted.state {
            let state = [
                ("processes", "n_threads", Value::Gauge as fn(u64) -> Value),
                ("evicted", "n_drops_full_threadtable", Value::Count),
            ];
            for (name, falcos, value) in state {
                all.extend(counter(name).map(|n| Metric::new(Area::State, falcos, value(n))));
            }
        }
        for (name, count) in &snapshot.counters {
            all.push(
                Metric::new(Area::Tollgate, "engine_events", Value::Count(*count))
                    .label("kind", *name),
            );
        }
    }

    fn rules(&self, all: &mut Vec<Metric>) {
        if !self.wanted.rules {
            return;
        }
        let in_force = (self.in_force)();
        for rule in in_force.iter().flat_map(|engine| engine.rule_matches()) {
            if rule.matches == 0 && !self.wanted.empty_values {
                continue;
            }
            let priority = rules::Priority::ALL
                .iter()
                .position(|other| *other == rule.priority)
                .expect("the list has every priority");
            let mut metric = Metric::new(Area::Falco, "rules_matches", Value::Count(rule.matches))
                .label("priority", priority.to_string())
                .label("rule_name", rule.rule)
                .label("source", rule.source);
            for tag in rule.tags {
                metric = metric.label(format!("tag_{tag}"), "true");
            }
            all.push(metric);
        }
        let forgotten = in_force.iter().map(|engine| engine.forgotten_counts());
        let forgotten: u64 = forgotten.sum();
        if forgotten > 0 || self.wanted.empty_values {
            all.push(Metric::new(
                Area::Tollgate,
                "rules_forgotten_counts",
                Value::Count(forgotten),
            ));
        }
        let costs = in_force.iter().flat_map(|engine| engine.costs());
        for cost in costs.filter(|cost| cost.evaluations > 0) {
            for (name, value) in [
                ("rule_evaluations", Value::Count(cost.evaluations)),
                ("rule_time", Value::Nanoseconds(cost.nanoseconds)),
            ] {
                all.push(Metric::new(Area::Tollgate, name, value).label("rule_name", cost.rule));
            }
        }
        // Those of system calls: all events of plugins are of one kind, and their sources count them.
        let of_syscalls = in_force.first();
        for (kind, count) in of_syscalls
            .into_iter()
            .flat_map(|engine| engine.evaluated())
        {
            all.push(
                Metric::new(Area::Tollgate, "events_evaluated", Value::Count(count))
                    .label("call", kind.name()),
            );
        }
    }

    fn outputs(&self, all: &mut Vec<Metric>) {
        let counters = self.dispatcher.counters();
        let lost = counters
            .channels
            .iter()
            .map(|channel| channel.lost_queue_full);
        let lost = Value::Count(lost.sum());
        all.push(Metric::new(Area::Falco, "outputs_queue_num_drops", lost));
        for (name, count) in [
            ("alerts_emitted", counters.emitted),
            ("alerts_suppressed", counters.suppressed),
            ("alerts_internal", counters.internal),
        ] {
            all.push(Metric::new(Area::Tollgate, name, Value::Count(count)));
        }
        for channel in &counters.channels {
            let pending = u64::try_from(channel.pending).unwrap_or(u64::MAX);
            for (name, value) in [
                ("output_delivered", Value::Count(channel.delivered)),
                (
                    "output_lost_queue_full",
                    Value::Count(channel.lost_queue_full),
                ),
                (
                    "output_lost_write_failed",
                    Value::Count(channel.lost_write_failed),
                ),
                ("output_lost_rejected", Value::Count(channel.lost_rejected)),
                (
                    "output_lost_no_receiver",
                    Value::Count(channel.lost_no_receiver),
                ),
                ("output_timeouts", Value::Count(channel.timeouts)),
                ("output_queue_length", Value::Gauge(pending)),
            ] {
                all.push(
                    Metric::new(Area::Tollgate, name, value).label("channel", &*channel.channel),
                );
            }
        }
    }
}

fn since_epoch(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
