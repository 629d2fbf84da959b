//! The stats file: one JSON object a line, at a fixed interval and once at the end.
//!
//! # Meaning
//!
//! `cur` holds totals since the start, `delta` the increase since the previous line, and `drop_pct`
//! the drops of the interval as a percentage of its events. `events` counts every planned call that
//! reached the program, including those that a predicate in user space discarded at once; `counters`
//! breaks them down by result.
//!
//! No process sees a call that the kernel's seccomp filter allows, so it cannot be counted:
//! `filtered_in_kernel` is `null` for such an engine, with the reason beside it. `events` is then
//! not the number of all calls of the workload.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::dispatcher::{Counters, Dispatcher};
use crate::hub::{ChannelCounters, OnProblem};
use crate::json::Object;
use crate::opening::open_without_waiting;
use crate::time;

/// Key under which earlier builds wrote `counters`; written for one more release.
const FORMER_COUNTERS: &str = "pieces";

/// An engine's counters at one moment. No counter ever decreases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Planned calls, whatever their result.
    pub events: u64,
    /// Events that were lost.
    pub drops: u64,
    /// Events lost because the program preempted itself; always 0 for an engine that holds the
    /// caller.
    pub preemptions: u64,
    /// Calls that the kernel discarded according to the plan, if the engine can count them.
    pub filtered_in_kernel: Option<u64>,
    /// Events by result, under the engine's own names.
    pub counters: Vec<(&'static str, u64)>,
    /// Descriptions of how the engine works, under its own names.
    pub notes: Vec<(&'static str, String)>,
}

/// Source of an engine's counters. Called on the stats thread.
pub trait StatsSource: Send + Sync {
    /// Returns the current counters.
    fn snapshot(&self) -> Snapshot;
}

impl<F: Fn() -> Snapshot + Send + Sync> StatsSource for F {
    fn snapshot(&self) -> Snapshot {
        self()
    }
}

/// Reason why `filtered_in_kernel` is `null`.
pub const FILTERED_IN_KERNEL_REASON: &str =
    "calls that the seccomp filter lets pass are not visible to any process";

/// The stats file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StatsError {
    /// The file cannot be opened.
    #[error("cannot open stats file {}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The thread cannot be created.
    #[error("cannot start the stats thread")]
    Start {
        /// The cause.
        source: io::Error,
    },
}

/// An open stats file that has no thread yet: the process can still fork.
#[derive(Debug)]
pub struct StatsFile {
    path: PathBuf,
    file: File,
    /// Number of lines already in the file; `None` for a new file.
    continues: Option<u64>,
}

/// Writes a stats file on a thread of its own.
#[derive(Debug)]
pub struct StatsWriter {
    orders: Sender<Order>,
    thread: JoinHandle<()>,
}

impl StatsFile {
    /// Creates or truncates the file: a file holds one run.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, for example because it is a FIFO without a reader.
    pub fn create(path: &Path) -> Result<Self, StatsError> {
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        Self::open(&mut options, path, None)
    }

    /// Opens the file of a continued run and appends to its lines. If that fails, for example because the reader of a FIFO
    /// has gone, `complain` is told: a process that is watched goes on, and so does the watch, without stats.
    pub fn take_over(path: &Path, complain: impl FnOnce(&StatsError)) -> Option<Self> {
        // A pipe or a terminal cannot be read and has no lines to continue from.
        let lines = std::fs::metadata(path)
            .ok()
            .filter(std::fs::Metadata::is_file)
            .and_then(|_| std::fs::read(path).ok())
            .map_or(0, |text| text.iter().filter(|byte| **byte == b'\n').count());
        let continues = Some(u64::try_from(lines).unwrap_or(u64::MAX));
        let opened = Self::open(File::options().append(true).create(true), path, continues);
        opened.inspect_err(complain).ok()
    }

    fn open(
        options: &mut OpenOptions,
        path: &Path,
        continues: Option<u64>,
    ) -> Result<Self, StatsError> {
        let path = path.to_owned();
        match open_without_waiting(options, &path) {
            Ok(file) => Ok(Self {
                path,
                file,
                continues,
            }),
            Err(source) => Err(StatsError::Open { path, source }),
        }
    }

    /// Starts a thread that writes a line each `interval`.
    ///
    /// # Errors
    ///
    /// The thread cannot be created.
    pub fn start(
        self,
        interval: Duration,
        source: Arc<dyn StatsSource>,
        dispatcher: Dispatcher,
        on_problem: OnProblem,
    ) -> Result<StatsWriter, StatsError> {
        let (orders, ordered) = channel();
        let before = match self.continues {
            Some(_) => (source.snapshot(), dispatcher.counters()),
            None => Default::default(),
        };
        let sampler = Sampler {
            source,
            dispatcher,
            start: Instant::now(),
            sample: self.continues.unwrap_or(0),
            before,
        };
        let task = Task {
            file: self,
            sampler,
            interval,
            on_problem,
        };
        let thread = thread::Builder::new()
            .name("stats".to_owned())
            .spawn(move || task.run(&ordered))
            .map_err(|source| StatsError::Start { source })?;
        Ok(StatsWriter { orders, thread })
    }
}

impl StatsWriter {
    /// Writes a line now and waits for it, unless nothing has changed since the last one.
    pub fn sample(&self) {
        let (written, wait) = channel();
        if self.orders.send(Order::Sample(written)).is_ok() {
            // An error means that the thread has ended because it could not write, and has reported
            // so.
            let _ = wait.recv();
        }
    }

    /// Writes the last line, unless nothing has changed since the previous one, and ends the
    /// thread.
    pub fn stop(self) {
        // The receiver is gone only if the thread has already ended.
        let _ = self.orders.send(Order::Stop);
        let _ = self.thread.join();
    }
}

/// Messages to the stats thread.
#[derive(Debug)]
enum Order {
    /// Write a line and acknowledge it.
    Sample(Sender<()>),
    /// Write the last line.
    Stop,
}

struct Task {
    file: StatsFile,
    sampler: Sampler,
    interval: Duration,
    on_problem: OnProblem,
}

impl Task {
    fn run(mut self, orders: &Receiver<Order>) {
        let mut due = Instant::now() + self.interval;
        loop {
            let wait = due.saturating_duration_since(Instant::now());
            let order = orders.recv_timeout(wait);
            let is_due = matches!(order, Err(RecvTimeoutError::Timeout));
            let line = self.sampler.next_line(is_due);
            if let Err(error) = self.file.file.write_all(line.as_bytes()) {
                let path = self.file.path.display();
                (self.on_problem)(&format!("cannot write stats file {path}: {error}"));
                return;
            }
            match order {
                // A late sample does not shift the ones after it.
                Err(RecvTimeoutError::Timeout) => {
                    due = (due + self.interval).max(Instant::now());
                }
                Ok(Order::Sample(written)) => {
                    // The caller may have stopped waiting.
                    let _ = written.send(());
                }
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

struct Sampler {
    source: Arc<dyn StatsSource>,
    dispatcher: Dispatcher,
    start: Instant,
    sample: u64,
    before: (Snapshot, Counters),
}

impl Sampler {
    /// Returns the next line; empty if none is due and nothing has changed since the last one.
    fn next_line(&mut self, is_due: bool) -> String {
        let after = (self.source.snapshot(), self.dispatcher.counters());
        if !is_due && self.sample > 0 && after == self.before {
            return String::new();
        }
        self.sample += 1;
        let (now, alerts) = after.clone();
        let (before, _) = std::mem::replace(&mut self.before, after);
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut line = String::new();
        let mut object = Object::open(&mut line);
        object.number("sample", self.sample);
        object.string("time", &time::rfc_3339(time::now_ns()));
        object.number("elapsed_ms", elapsed);
        object.object("cur", |cur| write_totals(cur, &now, &Snapshot::default()));
        object.object("delta", |delta| write_totals(delta, &now, &before));
        object.member("drop_pct", |out| out.push_str(&drop_percent(&now, &before)));
        object.number_or_null("filtered_in_kernel", now.filtered_in_kernel);
        if now.filtered_in_kernel.is_none() {
            object.string("filtered_in_kernel_reason", FILTERED_IN_KERNEL_REASON);
        }
        for key in ["counters", FORMER_COUNTERS] {
            object.object(key, |counters| {
                for (name, value) in &now.counters {
                    counters.number(name, *value);
                }
            });
        }
        for (name, text) in &now.notes {
            object.string(name, text);
        }
        object.object("alerts", |object| write_alerts(object, &alerts));
        object.close();
        line.push('\n');
        line
    }
}

fn write_totals(object: &mut Object<'_>, now: &Snapshot, before: &Snapshot) {
    object
        .number("events", now.events.saturating_sub(before.events))
        .number("drops", now.drops.saturating_sub(before.drops))
        .number(
            "preemptions",
            now.preemptions.saturating_sub(before.preemptions),
        );
}

#[expect(clippy::cast_precision_loss, reason = "a percentage needs no 53 bits")]
fn drop_percent(now: &Snapshot, before: &Snapshot) -> String {
    let events = now.events.saturating_sub(before.events);
    let drops = now.drops.saturating_sub(before.drops);
    if events == 0 {
        return "0".to_owned();
    }
    format!("{}", 100.0 * drops as f64 / events as f64)
}

fn write_alerts(object: &mut Object<'_>, counters: &Counters) {
    object
        .number("emitted", counters.emitted)
        .number("suppressed", counters.suppressed)
        .number("internal", counters.internal)
        .object("channels", |channels| {
            for channel in &counters.channels {
                channels.object(&channel.channel, |object| write_channel(object, channel));
            }
        });
}

fn write_channel(object: &mut Object<'_>, channel: &ChannelCounters) {
    let pending = u64::try_from(channel.pending).unwrap_or(u64::MAX);
    object
        .number("queued", channel.queued)
        .number("delivered", channel.delivered)
        .number("lost_queue_full", channel.lost_queue_full)
        .number("lost_write_failed", channel.lost_write_failed)
        .number("lost_rejected", channel.lost_rejected)
        .number("lost_no_receiver", channel.lost_no_receiver)
        .number("pending", pending)
        .number("timeouts", channel.timeouts)
        .number("restarts", channel.restarts);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::dispatcher::Settings;

    fn dispatcher() -> Dispatcher {
        let settings = Settings::new("box".into(), Arc::new(|_| ()));
        Dispatcher::prepare(settings, Vec::new()).start().unwrap()
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(path).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn a_file_that_goes_on_keeps_its_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let mut events = 0;
        for is_first in [true, false] {
            events += 100;
            let source = move || Snapshot {
                events,
                ..Snapshot::default()
            };
            let interval = Duration::from_secs(60);
            let file = match is_first {
                true => StatsFile::create(&path).unwrap(),
                false => StatsFile::take_over(&path, |error| panic!("{error}")).unwrap(),
            };
            let writer = file.start(interval, Arc::new(source), dispatcher(), Arc::new(|_| ()));
            let writer = writer.unwrap();
            if events == 200 {
                // Nothing has happened since the one before took over.
                writer.sample();
            }
            writer.stop();
        }
        let lines = lines(&path);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert_eq!(lines[0]["cur"]["events"], 100);
    }

    #[test]
    fn samples_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let calls = AtomicU64::new(0);
        let source = move || {
            let n = calls.fetch_add(1, Ordering::Relaxed) + 1;
            let counters = vec![("trapped", 200 * n), ("rejected_at_strings", 190 * n)];
            Snapshot {
                events: 200 * n,
                drops: n,
                counters,
                ..Snapshot::default()
            }
        };
        let writer = StatsFile::create(&path)
            .unwrap()
            .start(
                Duration::from_millis(5),
                Arc::new(source),
                dispatcher(),
                Arc::new(|_| ()),
            )
            .unwrap();
        std::thread::sleep(Duration::from_millis(60));
        writer.stop();

        let lines = lines(&path);
        assert!(lines.len() >= 3, "{} lines", lines.len());
        for (at, line) in lines.iter().enumerate() {
            let n = at as u64 + 1;
            assert_eq!(line["sample"], n);
            assert_eq!(line["cur"]["events"], 200 * n);
            assert_eq!(line["delta"]["events"], 200);
            assert_eq!(line["delta"]["drops"], 1);
            assert_eq!(line["drop_pct"], 0.5);
            assert_eq!(line["counters"]["rejected_at_strings"], 190 * n);
            assert!(line["filtered_in_kernel"].is_null());
            assert_eq!(line["filtered_in_kernel_reason"], FILTERED_IN_KERNEL_REASON);
        }
    }

    #[test]
    fn asking_writes_a_line_long_before_the_interval_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stats");
        let source = || Snapshot {
            events: 7,
            filtered_in_kernel: Some(9),
            ..Snapshot::default()
        };
        let writer = StatsFile::create(&path)
            .unwrap()
            .start(
                Duration::from_secs(3600),
                Arc::new(source),
                dispatcher(),
                Arc::new(|_| ()),
            )
            .unwrap();
        writer.sample();
        // Nothing happens in between, so the last line is the one that is there.
        assert_eq!(lines(&path).len(), 1);
        writer.stop();
        let lines = lines(&path);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["cur"]["events"], 7);
        assert_eq!(lines[0]["filtered_in_kernel"], 9);
        assert!(lines[0].get("filtered_in_kernel_reason").is_none());
    }

    #[test]
    fn a_fifo_without_a_reader_is_an_error_at_once() {
        let (_folder, path) = crate::opening::testing::fifo();
        let begin = "cannot open stats file ";
        let error = StatsFile::create(&path).unwrap_err();
        assert!(error.to_string().starts_with(begin));
        // Whoever takes over goes on without it.
        let mut complaint = String::new();
        let taken = StatsFile::take_over(&path, |error| complaint = error.to_string());
        assert!(taken.is_none() && complaint.starts_with(begin));
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let problems = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = Arc::clone(&problems);
        let writer = StatsFile::create(Path::new("/dev/full"))
            .unwrap()
            .start(
                Duration::from_millis(1),
                Arc::new(Snapshot::default),
                dispatcher(),
                Arc::new(move |problem: &str| seen.lock().unwrap().push(problem.to_owned())),
            )
            .unwrap();
        std::thread::sleep(Duration::from_millis(30));
        writer.stop();
        let problems = problems.lock().unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(
            problems[0].starts_with("cannot write stats file /dev/full: "),
            "{problems:?}"
        );
    }
}
