//! `tollgate generate bench`: rounds at increasing rates of actions, and the alerts of a detector.

mod cgroup;
mod knee;
mod log;
mod meter;
mod plot;
mod round;
mod table;
mod worker;

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;

use crate::action::{Action, RoundOrder, RoundResult};
use crate::alerts::{Alert, Alerts};
use crate::detector::Detector;
use crate::options::{BenchOptions, LogFormat};
use cgroup::{Confined, Limits};
use log::Log;
use meter::Meter;
use round::{PerAction, Round, Sample};
use worker::Worker;

/// Time without alerts after which a detector is taken to have sent all.
const QUIET: Duration = Duration::from_millis(500);

/// Time limit for the start of a detector.
const START: Duration = Duration::from_secs(20);

/// Interval of the stats file of a detector that is started here, in milliseconds.
const STATS_INTERVAL: &str = "200";

/// Plays more and more actions a second until alerts are lost, or for a number of rounds.
///
/// # Errors
///
/// If the options contradict each other, actions cannot be played, or the detector cannot be measured.
pub fn execute(args: &BenchOptions) -> Outcome {
    check(args)?;
    let actions = super::select(&args.selection)?;
    let mut series = Vec::new();
    let all_cpus: Vec<Option<f64>> = if args.cpus.is_empty() {
        vec![None]
    } else {
        args.cpus.iter().copied().map(Some).collect()
    };
    let alerts = if args.source.detector.is_some() || args.dry_run {
        None
    } else {
        Some(Alerts::open(&args.source)?)
    };
    for cpus in all_cpus {
        let limits = Limits {
            cpus,
            memory: args.memory,
        };
        if args.cpus.len() > 1 && args.logformat == LogFormat::Table {
            terminal::print(&format!("\n{}\n", table::title(limits)))?;
        }
        let rounds = Stage::new(args, &actions, limits, alerts.as_ref())?.rounds()?;
        series.push((limits, rounds));
    }
    if args.knee {
        terminal::print(&table::text(&series))?;
    }
    if let Some(file) = &args.plot {
        write_file(file, &plot::svg(&series))?;
    }
    Ok(Exit::Ok)
}

fn check(args: &BenchOptions) -> Result<(), Failure> {
    let bad = |message: &str| Failure::new(Exit::BadInput, message);
    if args.round_duration <= args.play.sleep {
        return Err(
            bad("cannot play in rounds that are shorter than the wait before an action")
                .help("make --round-duration longer than --sleep"),
        );
    }
    let limited = args.memory.is_some() || !args.cpus.is_empty();
    if limited && args.pid.is_none() && args.source.detector.is_none() {
        return Err(
            bad("cannot limit a detector without knowing which process it is")
                .help("name it with --pid, or start one with --watched"),
        );
    }
    Ok(())
}

/// State of a series of rounds.
struct Stage<'args> {
    args: &'args BenchOptions,
    actions: &'args [&'static Action],
    /// Limits the detector while this lives. Dropped before the worker ends the detector: a group with a
    /// process cannot be removed.
    _confined: Option<Confined>,
    worker: Worker,
    meter: Meter,
    alerts: Option<&'args Alerts>,
    log: Log,
    /// Files of a detector that was started here.
    _folder: tempfile::TempDir,
}

/// Returns the command line of a detector that writes its pid and counters, and does not limit alerts.
fn measured_prefix(detector: &Detector, pidfile: &Path, stats: &Path) -> Vec<String> {
    let options = [
        "-P",
        &pidfile.display().to_string(),
        "-s",
        &stats.display().to_string(),
        "--stats-interval",
        STATS_INTERVAL,
        "-o",
        "outputs.rate=0",
    ];
    detector.prefix_with(&options)
}

impl<'args> Stage<'args> {
    fn new(
        args: &'args BenchOptions,
        actions: &'args [&'static Action],
        limits: Limits,
        alerts: Option<&'args Alerts>,
    ) -> Result<Self, Failure> {
        let program = super::own_program()?;
        let folder = tempfile::tempdir().map_err(|error| {
            Failure::new(
                Exit::Unsupported,
                format!("cannot make a temporary folder: {error}"),
            )
        })?;
        let mut meter = Meter {
            pid: args.pid,
            stats: args.stats.clone(),
            metrics: args.metrics.clone(),
            began: Some(Instant::now()),
        };
        meter.check()?;
        let (pidfile, stats) = (folder.path().join("pid"), folder.path().join("stats"));
        let detector = args.source.detector.as_ref();
        let prefix = detector.map_or_else(Vec::new, |detector| {
            measured_prefix(detector, &pidfile, &stats)
        });
        let worker = Worker::start(&program, args, actions, &prefix)?;
        if detector.is_some() {
            meter.pid = Some(wait_for("which process it is", || {
                fs::read_to_string(&pidfile).ok()?.trim().parse().ok()
            })?);
            meter.stats = Some(stats);
            wait_for("what it has counted", || meter.read().calls)?;
        }
        let confined = match meter.pid {
            Some(pid) if limits != Limits::default() => Some(Confined::new(pid, limits)?),
            _ => None,
        };
        Ok(Self {
            args,
            actions,
            worker,
            meter,
            alerts,
            log: Log {
                format: args.logformat,
                humanize: args.humanize,
            },
            _confined: confined,
            _folder: folder,
        })
    }

    /// Plays rounds until the options end the series.
    fn rounds(mut self) -> Result<Vec<Round>, Failure> {
        let mut rounds: Vec<Round> = Vec::new();
        let mut sleep_ns = nanoseconds(self.args.play.sleep);
        for number in 1.. {
            terminal::print(&self.log.begin(number, sleep_ns, self.args.dry_run))?;
            let round = self.round(number, sleep_ns)?;
            terminal::print(&self.log.statistics(&round))?;
            self.record(&round)?;
            // More alerts than actions: another process does the same. A higher rate would show no more.
            let is_dirty = round
                .actions
                .iter()
                .any(|action| action.actual > action.expected);
            if (self.args.play.repeat || self.args.knee) && (!is_dirty || self.args.dry_run) {
                sleep_ns /= 2;
            }
            rounds.push(round);
            let enough = self.args.rounds.is_some_and(|rounds| number >= rounds);
            if enough || (self.args.knee && knee::is_over(&rounds)) {
                break;
            }
        }
        Ok(rounds)
    }

    fn round(&mut self, number: u32, sleep_ns: u64) -> Result<Round, Failure> {
        // Late alerts belong to no round.
        self.take_alerts();
        let mut round = Round {
            number,
            sleep_ns,
            actions: self
                .actions
                .iter()
                .map(|action| PerAction::new(action))
                .collect(),
            before: self.meter.read(),
            is_dry: self.args.dry_run,
            ..Round::default()
        };
        self.worker.order(RoundOrder {
            sleep_ns,
            duration_ns: nanoseconds(self.args.round_duration),
            calls: self.args.calls,
        })?;
        let worked = self.play(&mut round)?;
        for action in &mut round.actions {
            if let Some(tally) = worked.actions.get(action.name) {
                action.expected = tally.done;
                action.not_done = tally.not_done;
                action.reason.clone_from(&tally.reason);
            }
        }
        round.seconds = meter::float(worked.elapsed_ns) / 1e9;
        terminal::print(&self.log.resting())?;
        self.rest(&mut round)?;
        round.after = self.meter.read();
        Ok(round)
    }

    /// Measures the detector until the worker has played the round.
    fn play(&mut self, round: &mut Round) -> Result<RoundResult, Failure> {
        let deadline = Worker::deadline(self.args.round_duration);
        let mut last = (Instant::now(), round.before);
        loop {
            let worked = self
                .worker
                .listen(Instant::now() + self.args.polling_interval)?;
            let (now, reading) = (Instant::now(), self.meter.read());
            let sample = Sample {
                seconds: (now - last.0).as_secs_f64(),
                alerts: self.count(round),
                calls_per_s: round::per_second(last.1, reading),
                drops: reading
                    .drops
                    .zip(last.1.drops)
                    .map(|(new, old)| new.saturating_sub(old)),
            };
            round.samples.push(sample);
            last = (now, reading);
            if let Some(worked) = worked {
                return Ok(worked);
            }
            if now > deadline {
                return Err(Failure::new(
                    Exit::Unsupported,
                    "cannot continue: an action hangs",
                ));
            }
        }
    }

    /// Waits for alerts that are on their way.
    fn rest(&mut self, round: &mut Round) -> Result<(), Failure> {
        let end = Instant::now() + self.args.round_duration.max(QUIET);
        let mut quiet_since = Instant::now();
        while Instant::now() < end && quiet_since.elapsed() < QUIET {
            self.worker.listen(Instant::now() + QUIET / 10)?;
            if self.count(round) > 0 {
                quiet_since = Instant::now();
            }
        }
        Ok(())
    }

    /// Counts the alerts that have arrived. Returns the number of expected ones.
    fn count(&mut self, round: &mut Round) -> u64 {
        let mut expected = 0;
        for alert in self.take_alerts() {
            let about = self
                .actions
                .iter()
                .position(|action| action.is_for(&alert.rule));
            if let Some(at) = about {
                round.actions[at].actual += 1;
                round.delays_ns.extend(alert.delay_ns);
                expected += 1;
            }
        }
        expected
    }

    fn take_alerts(&mut self) -> Vec<Alert> {
        match self.alerts {
            Some(alerts) => alerts.take(),
            None => std::mem::take(&mut self.worker.alerts),
        }
    }

    fn record(&self, round: &Round) -> Result<(), Failure> {
        let Some(path) = &self.args.record else {
            return Ok(());
        };
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| writeln!(file, "{}", round.object()))
            .map_err(|error| unwritable(path, &error))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Waits for a value that a detector provides some time after its start.
fn wait_for<T>(what: &str, look: impl Fn() -> Option<T>) -> Result<T, Failure> {
    let deadline = Instant::now() + START;
    while Instant::now() < deadline {
        if let Some(found) = look() {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure::new(
        Exit::Unsupported,
        format!("cannot start the detector: it does not print {what}"),
    )
    .help("`tollgate run -- true` shows what is wrong"))
}

fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(
        Exit::BadInput,
        format!("cannot write {}: {error}", path.display()),
    )
}
