//! Endurance: `watch`, `run`, `runtime --agent host` and `serve` side by side under a mixed load, for minutes or days.
//!
//! `make soak` runs it. Each second files are opened that rules ask for; each minute has reloads, rotations of logs,
//! upgrades, outputs that die, and a disk that fills. What grows after the warm-up, is left behind, or is lost without
//! a report fails the test. `TOLLGATE_SOAK_MINUTES` is its length, `TOLLGATE_SOAK` the folder of its samples.

mod containers;
mod ledger;
mod load;
mod log;
mod sample;
#[path = "../small_disk/mod.rs"]
mod small_disk;
mod subjects;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use e2e::runtime_fixture::RuntimeFixture;
use e2e::{Fixture, need_root, skip};
use serde_json::{Value, json};

use containers::{Containers, Tally};
use ledger::Entry;
use load::{Load, Marker, Mood, Receiver};
use sample::Processes;
use subjects::{MARK, OPENED, SECRET, Subjects};
use verdict::{Growth, Series, Usage};

/// All that disturbs happens once in so many seconds, so that the warm-up has had each of it.
const CYCLE: u64 = 60;

/// Roles of processes that live all the time. Of others only the number is compared.
const STEADY: [&str; 6] = [
    "watch",
    "serve",
    "run: tollgate",
    "run: tollgate-keeper",
    "run: tollgate-agent",
    "runtime: tollgate-host",
];

/// How long, and where results go.
struct Plan {
    length: Duration,
    warm_up: Duration,
    interval: Duration,
    folder: PathBuf,
}

impl Plan {
    fn read() -> Option<Self> {
        let minutes = std::env::var("TOLLGATE_SOAK_MINUTES").ok()?;
        let minutes: u64 = minutes
            .parse()
            .expect("TOLLGATE_SOAK_MINUTES is a whole number");
        let length = Duration::from_secs(60 * minutes);
        let folder = std::env::var_os("TOLLGATE_SOAK").map(PathBuf::from);
        Some(Self {
            length,
            // Ten minutes, or two fifths of a short run: at least a whole cycle.
            warm_up: (length * 2 / 5).clamp(Duration::from_secs(CYCLE), Duration::from_secs(600)),
            interval: (length / 150).clamp(Duration::from_secs(1), Duration::from_secs(60)),
            folder: folder
                .unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("soak")),
        })
    }

    /// Returns by how many parts of a thousand memory may grow.
    fn growth(&self) -> u64 {
        let is_warm = self.warm_up >= Duration::from_secs(600);
        if is_warm {
            verdict::GROWTH
        } else {
            verdict::GROWTH_OF_SHORT_RUNS
        }
    }
}

/// What happened so far.
#[derive(Default)]
struct Done {
    marks: u64,
    secrets: u64,
    reloads: u64,
    upgrades: u64,
}

/// A run.
struct Soak {
    plan: Plan,
    /// These end before the subjects.
    load: Option<Load>,
    containers: Option<Containers>,
    marker: Marker,
    subjects: Subjects,
    receiver: Receiver,
    samples: File,
    series: Series,
    started: Instant,
    done: Done,
}

#[test]
fn nothing_grows_is_left_or_is_lost_unsaid_under_a_mixed_load() {
    need_root!();
    let Some(plan) = Plan::read() else {
        skip!("is a measurement", || Ok(
            "TOLLGATE_SOAK_MINUTES is not set".to_owned()
        ));
    };
    e2e::which("runc");
    fs::create_dir_all(&plan.folder).expect("the folder of results can be made");
    let receiver = Receiver::start();
    let mut subjects = Subjects::start(receiver.port);
    let fixture = RuntimeFixture::new();
    subjects.folders.push(fixture.scratch.path().to_owned());
    let containers = Containers::start(&fixture, subjects.program.clone(), subjects.scratch.path());
    load::fill_tables(&Fixture::compile("crowd"), &subjects.enter());
    let port = free_port();
    let load = Load::start(&subjects.path("load"), port, &subjects.enter());
    let samples = File::create(plan.folder.join("samples.jsonl")).expect("writable");
    let mut soak = Soak {
        plan,
        load: Some(load),
        containers: Some(containers),
        marker: Marker::start(&subjects.path("mark"), &subjects.enter()),
        subjects,
        receiver,
        samples,
        series: Series::new(),
        started: Instant::now(),
        done: Done::default(),
    };
    soak.run();
    soak.finish();
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

impl Soak {
    fn run(&mut self) {
        let mut sampled = self.started;
        let mut second = 0;
        while self.started.elapsed() < self.plan.length {
            // A second that takes longer makes the next ones come late, and what is due in them is done all the same.
            let due = self.started + Duration::from_secs(second + 1);
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.marker.open(20);
            self.done.marks += 20;
            let run = self.subjects.run.as_mut().expect("it runs");
            self.done.secrets += run.open(10, 2);
            let now = self.started.elapsed().as_secs();
            (second + 1..=now).for_each(|second| self.disturb(second));
            second = now;
            if sampled.elapsed() >= self.plan.interval {
                sampled = Instant::now();
                self.sample();
            }
        }
        self.calm();
    }

    /// Does what is due in this second.
    fn disturb(&mut self, second: u64) {
        let run = self.subjects.run.as_ref().expect("it runs");
        match second % CYCLE {
            10 => self.receiver.set(Mood::Closes),
            16 => self.receiver.set(Mood::Hangs),
            24 => self.receiver.set(Mood::Takes),
            31 => self.subjects.stop_collector(true),
            37 => self.subjects.stop_collector(false),
            41 => run.fill_disk(true),
            47 => run.fill_disk(false),
            _ => {}
        }
        if second.is_multiple_of(5) {
            self.subjects.reload();
            self.done.reloads += 1;
        }
        // Rarely, because what an agent uses is compared over its life.
        if second == 21 || second % 600 == 51 {
            self.subjects.upgrade();
            self.done.upgrades += 1;
        }
        if second % 15 == 2 {
            self.subjects.rotate();
        }
        // Once, because growth is that of one process.
        if second == CYCLE / 2 - 2 {
            self.subjects.restart_collector();
        }
    }

    /// Ends what disturbs, and waits until detectors have caught up.
    fn calm(&mut self) {
        self.receiver.set(Mood::Takes);
        self.subjects.stop_collector(false);
        self.subjects
            .run
            .as_ref()
            .expect("it runs")
            .fill_disk(false);
        thread::sleep(Duration::from_secs(4));
    }

    fn sample(&mut self) {
        let usage = self.subjects.usage();
        let elapsed = self.started.elapsed();
        let is_warm = elapsed >= self.plan.warm_up;
        let stats =
            |detector: Option<&subjects::Detector>| detector.map(|it| sample::extract(&it.stats()));
        let roles: BTreeMap<&String, Value> = usage
            .iter()
            .map(|(role, usage)| (role, sample::as_json(usage)))
            .collect();
        let run = self.subjects.run.as_ref().map(|run| &run.detector);
        let line = json!({
            "seconds": elapsed.as_secs(),
            "phase": if is_warm { "measured" } else { "warm-up" },
            "expected": {"watch": self.done.marks, "run": self.done.secrets},
            "roles": roles,
            "watch": stats(self.subjects.watch.as_ref()),
            "run": stats(run),
        });
        writeln!(self.samples, "{line}").expect("writable");
        if !is_warm {
            return;
        }
        for (role, mut usage) in usage {
            if !STEADY.contains(&role.as_str()) {
                usage = Usage {
                    processes: usage.processes,
                    ..Usage::default()
                };
            }
            self.series.entry(role).or_default().push(usage);
        }
    }

    /// Ends everything, and says what was wrong.
    fn finish(mut self) {
        let rounds = self.load.take().expect("it runs").finish();
        let tally = self.containers.take().expect("they run").finish();
        let (watch_log, watch) = self.subjects.end_watch();
        let (run_log, run, run_lost) = self.subjects.end_run();
        let collected = self.subjects.collected(MARK);
        let left = self.wait_for_ends();
        let mut container_log =
            std::mem::replace(&mut self.subjects.containers, log::Log::new(PathBuf::new()));
        container_log.finish();
        let answered = self.receiver.finish();
        let mut entries = ledger::of_watch(
            MARK,
            self.done.marks,
            &watch_log,
            &watch,
            collected,
            answered,
        );
        entries.push(ledger::of_run(
            SECRET,
            self.done.secrets,
            &run_log,
            &run,
            run_lost,
        ));
        let reported = container_log.gaps();
        entries.push(Entry::new(
            "runtime: opens",
            tally.opens,
            container_log.of(OPENED),
            reported,
        ));
        let growth = verdict::growth(&self.series, self.plan.growth());
        let mut problems = problems(&entries, &growth, &tally, &rounds);
        problems.extend(left);
        if run_lost == 0 {
            problems.push("run: its disk never was full".to_owned());
        }
        let logs = [&watch_log, &run_log, &container_log];
        let report = Report {
            done: &self.done,
            plan: &self.plan,
            entries: &entries,
            series: &self.series,
            tally: &tally,
        };
        let text = report.text(&rounds, &logs, &problems);
        fs::write(self.plan.folder.join("README.md"), &text).expect("writable");
        let finals = json!({
            "ledger": entries.iter().map(Entry::json).collect::<Vec<_>>(),
            "watch": watch, "run": run, "run_lost": {"by_stats": run_lost, "by_alerts": run_log.lost()}, "alerts": logs.map(log::Log::rules), "problems": problems,
        });
        fs::write(self.plan.folder.join("final.json"), format!("{finals:#}\n")).expect("writable");
        println!("{text}");
        let said = ["watch", "run"].map(|name| self.subjects.said(name));
        assert!(problems.is_empty(), "{problems:#?}\n{said:?}");
    }

    /// Waits until no process of the subjects is left but the collector. Returns those that stay.
    fn wait_for_ends(&self) -> Vec<String> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let all = Processes::read();
            let mut left = all.ours(&self.subjects.folders);
            let collector = self.subjects.collector_pid();
            left.retain(|process| Some(process.pid) != collector);
            if left.is_empty() {
                return Vec::new();
            }
            if Instant::now() > deadline {
                return left
                    .iter()
                    .map(|process| format!("left: {process:?}"))
                    .collect();
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
}

fn problems(
    entries: &[Entry],
    growth: &[Growth],
    tally: &Tally,
    rounds: &[(&str, usize)],
) -> Vec<String> {
    let mut found: Vec<String> = entries.iter().filter_map(Entry::problem).collect();
    found.extend(growth.iter().map(|growth| {
        let Growth { of, from, to } = growth;
        format!("{of} grew from {from} to {to}")
    }));
    found.extend(
        tally
            .failures
            .iter()
            .map(|why| format!("a container failed: {why}")),
    );
    found.extend(
        tally
            .left
            .iter()
            .map(|path| format!("left of a container: {path}")),
    );
    let idle = rounds.iter().filter(|(_, rounds)| *rounds == 0);
    found.extend(idle.map(|(name, _)| format!("the load `{name}` did nothing")));
    found
}

/// What the README of the results says.
struct Report<'a> {
    done: &'a Done,
    plan: &'a Plan,
    entries: &'a [Entry],
    series: &'a Series,
    tally: &'a Tally,
}

impl Report<'_> {
    fn text(&self, rounds: &[(&str, usize)], logs: &[&log::Log], problems: &[String]) -> String {
        let minutes = self.plan.length.as_secs() / 60;
        let mut text = format!(
            "# {minutes} minutes of mixed load\n\n    make soak MINUTES={minutes}\n\n\
             Asked: whether `watch` (engine `ebpf`, the default rules), `run`, `runtime --agent host` and `serve` grow, leak\n\
             or lose alerts without a word, side by side, under load and disturbances.\n\n\
             Meanwhile: {} reloads of each, {} rotations of each log, {} upgrades of the agent of `run`, a restart of the collector,\n\
             {} short containers, and in each minute a web server for alerts that closes connections and then hangs, a collector that\n\
             is stopped, and a full disk. Rounds of the load:",
            self.done.reloads,
            logs[0].rotations(),
            self.done.upgrades,
            self.tally.ran,
        );
        for (name, rounds) in rounds {
            write!(text, " {name} {rounds},").expect("a String takes all");
        }
        text.pop();
        text +=
            ".\n\nAlerts:\n\n| of | expected | seen | reported as lost |\n|---|---:|---:|---:|\n";
        text.extend(self.entries.iter().map(Entry::row));
        text += &self.usage();
        text += &match problems {
            [] => format!(
                "\nFound: no memory grew by more than {} %, nothing was left, and no loss was unreported.\n",
                self.plan.growth() / 10
            ),
            problems => format!("\nFound:\n\n- {}\n", problems.join("\n- ")),
        };
        text
    }

    /// Medians of the first and the last third of the measured time.
    fn usage(&self) -> String {
        let warm_up = self.plan.warm_up.as_secs();
        let mut text = format!(
            "\nAfter {warm_up} s of warm-up, medians of the first third and of the last:\n\n\
             | processes | RSS in KiB | descriptors | threads | maps in KiB |\n|---|---:|---:|---:|---:|\n"
        );
        let steady = self
            .series
            .iter()
            .filter(|(role, _)| STEADY.contains(&role.as_str()));
        for (role, samples) in steady {
            let third = samples.len() / 3;
            let (first, last) = (&samples[..third], &samples[samples.len() - third..]);
            let pair = |value: fn(&Usage) -> u64| {
                let of = |part: &[Usage]| verdict::median(part.iter().map(value).collect());
                format!("{} -> {}", of(first), of(last))
            };
            let cells = [
                pair(|u| u.memory),
                pair(|u| u.descriptors),
                pair(|u| u.threads),
                pair(|u| u.map_memory),
            ];
            writeln!(text, "| {role} | {} |", cells.join(" | ")).expect("a String takes all");
        }
        text
    }
}
