//! The timed loop around an operation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::latency::Latencies;
use crate::{Error, LoadOptions};

/// Function that makes the given number of operations.
pub(crate) type Batch = Box<dyn FnMut(u64) -> Result<(), Error>>;

/// Name in [`LoadResult::extra`] of the operations per second that a load with a rate achieved.
pub(crate) const EVENT_RATE: &str = "events_per_second";

/// Number of slices of a run that are reported.
const WINDOWS: usize = 20;

/// Arguments and resources of a load.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) options: LoadOptions,
    /// Path of the running program, for loads that start themselves in another role.
    pub(crate) program: PathBuf,
    scratch: TempDir,
}

impl Setup {
    /// Makes a folder for the load, removed when this is dropped.
    pub(crate) fn new(options: &LoadOptions, program: &Path) -> Result<Self, Error> {
        let scratch = tempfile::Builder::new()
            .prefix("tollgate-workload-")
            .tempdir()
            .map_err(Error::call("make a temporary folder"))?;
        Ok(Self {
            options: options.clone(),
            program: program.into(),
            scratch,
        })
    }

    /// Returns the load's own folder, an absolute path.
    pub(crate) fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns `--path`, or a new file that no rule matches.
    pub(crate) fn file(&self) -> Result<PathBuf, Error> {
        if let Some(path) = &self.options.path {
            return Ok(path.clone());
        }
        let path = self.scratch().join("uninteresting");
        std::fs::write(&path, b"nothing\n").map_err(|source| Error::File {
            action: "write",
            path: path.clone(),
            source,
        })?;
        Ok(path)
    }

    fn limit(&self) -> Limit {
        match self.options.operations {
            Some(operations) => Limit::Operations(operations),
            None => Limit::Time(Duration::from_secs_f64(self.options.seconds)),
        }
    }
}

/// Operations and duration of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadResult {
    /// Number of operations of all threads.
    pub operations: u64,
    /// Time from the common start to the end of the last thread.
    pub elapsed: Duration,
    /// Fastest batch of each slice of the run, in nanoseconds per operation of one thread.
    pub windows: Vec<f64>,
    /// Other figures by name. A name ends with its unit.
    pub extra: BTreeMap<String, f64>,
}

impl LoadResult {
    /// Parses the last line of `text` that [`LoadResult::json`] wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            operations: u64,
            elapsed_ns: u64,
            windows: Vec<f64>,
            #[serde(default)]
            extra: BTreeMap<String, f64>,
        }
        let line: Line = text
            .lines()
            .rev()
            .find_map(|line| serde_json::from_str(line).ok())?;
        Some(Self {
            operations: line.operations,
            elapsed: Duration::from_nanos(line.elapsed_ns),
            windows: line.windows,
            extra: line.extra,
        })
    }

    /// Formats the line that the runner reads.
    pub(crate) fn json(&self, workload: &str) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            workload: &'a str,
            operations: u64,
            elapsed_ns: u64,
            windows: Vec<f64>,
            #[serde(skip_serializing_if = "BTreeMap::is_empty")]
            extra: &'a BTreeMap<String, f64>,
        }
        let line = Line {
            workload,
            operations: self.operations,
            elapsed_ns: u64::try_from(self.elapsed.as_nanos()).unwrap_or(u64::MAX),
            windows: self
                .windows
                .iter()
                .map(|ns| (ns * 10.0).round() / 10.0)
                .collect(),
            extra: &self.extra,
        };
        serde_json::to_string(&line).expect("numbers and a name serialise")
    }
}

/// Prepares a measurement as UnixBench does: writes caches back, waits, and does both again.
pub(crate) fn settle(first_seconds: u64, second_seconds: u64) {
    for seconds in [first_seconds, second_seconds] {
        rustix::fs::sync();
        std::thread::sleep(Duration::from_secs(seconds));
    }
}

/// Condition for the end of a run.
#[derive(Clone, Copy, Debug)]
enum Limit {
    Operations(u64),
    Time(Duration),
}

/// Pace of a thread's operations.
#[derive(Clone, Copy)]
struct Pace {
    /// True if each operation is timed.
    is_timed: bool,
    /// Operations per second; 0 for as many as possible.
    rate: u64,
}

impl Pace {
    /// Waits until the rate allows `operations`.
    fn wait(self, start: Instant, operations: u64) {
        if self.rate == 0 {
            return;
        }
        let due = Duration::from_secs_f64(operations as f64 / self.rate as f64);
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

/// Result of one thread.
struct Lap {
    operations: u64,
    elapsed: Duration,
    windows: Vec<Option<f64>>,
    latencies: Latencies,
}

/// Repeats the operation in the requested number of threads, which start together.
pub(crate) fn repeat(
    setup: &Setup,
    batch: u64,
    prepare: fn(&Setup) -> Result<Batch, Error>,
) -> Result<LoadResult, Error> {
    let threads = usize::from(setup.options.threads);
    let barrier = Barrier::new(threads);
    let lap = || {
        // A thread that fails to prepare must not keep the others waiting.
        let prepared = prepare(setup);
        barrier.wait();
        let batch = if setup.options.latency { 1 } else { batch };
        let pace = Pace {
            is_timed: setup.options.latency,
            rate: setup.options.rate,
        };
        lap(setup.limit(), batch, pace, &mut *prepared?)
    };
    let clock = cpu_time()?;
    let laps = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(lap)).collect();
        let mut laps = vec![lap()];
        laps.extend(others.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        }));
        laps.into_iter().collect::<Result<Vec<_>, _>>()
    })?;
    let clock = cpu_time()?.saturating_sub(clock);
    let mut latencies = Latencies::default();
    laps.iter().for_each(|lap| latencies.merge(&lap.latencies));
    let mut extra: BTreeMap<String, f64> = latencies.figures().into_iter().collect();
    extra.insert("clock_ms".to_owned(), clock.as_secs_f64() * 1e3);
    if setup.options.rate > 0 {
        let all: u64 = laps.iter().map(|lap| lap.operations).sum();
        let longest = laps.iter().map(|lap| lap.elapsed).max().unwrap_or_default();
        extra.insert(EVENT_RATE.to_owned(), all as f64 / longest.as_secs_f64());
    }
    let fastest = |window: usize| {
        laps.iter()
            .filter_map(|lap| lap.windows[window])
            .reduce(f64::min)
    };
    Ok(LoadResult {
        operations: laps.iter().map(|lap| lap.operations).sum(),
        elapsed: laps.iter().map(|lap| lap.elapsed).max().unwrap_or_default(),
        windows: (0..WINDOWS).filter_map(fastest).collect(),
        extra,
    })
}

/// Returns the processor time of all threads of this process, as clock(3) does.
fn cpu_time() -> Result<Duration, Error> {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .map(Duration::from)
        .map_err(Error::call("read the clock of this process"))
}

fn lap(
    limit: Limit,
    batch: u64,
    pace: Pace,
    operation: &mut dyn FnMut(u64) -> Result<(), Error>,
) -> Result<Lap, Error> {
    let mut windows = vec![None; WINDOWS];
    let start = Instant::now();
    let mut latencies = Latencies::default();
    let (mut operations, mut elapsed) = (0, Duration::ZERO);
    loop {
        let (window, size) = match limit {
            Limit::Operations(all) if operations >= all => break,
            Limit::Operations(all) => (
                share(operations.into(), all.into()),
                batch.min(all - operations),
            ),
            Limit::Time(all) if elapsed >= all => break,
            Limit::Time(all) => (share(elapsed.as_nanos(), all.as_nanos()), batch),
        };
        operation(size)?;
        pace.wait(start, operations + size);
        let now = start.elapsed();
        operations += size;
        if pace.is_timed {
            latencies.note(now - elapsed);
        }
        let per_operation = (now - elapsed).as_nanos() as f64 / size as f64;
        elapsed = now;
        let slot: &mut Option<f64> = &mut windows[window];
        *slot = Some(slot.map_or(per_operation, |fastest| fastest.min(per_operation)));
    }
    Ok(Lap {
        operations,
        elapsed,
        windows,
        latencies,
    })
}

/// Returns the index of the window of a run that has done `part` of `all`.
fn share(part: u128, all: u128) -> usize {
    usize::try_from(part * WINDOWS as u128 / all).map_or(WINDOWS - 1, |w| w.min(WINDOWS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(limit: Limit, batch: u64) -> (Lap, Vec<u64>) {
        let mut sizes = Vec::new();
        let mut operation = |size| {
            sizes.push(size);
            std::thread::sleep(Duration::from_micros(200));
            Ok(())
        };
        let lap = {
            let pace = Pace {
                is_timed: true,
                rate: 0,
            };
            lap(limit, batch, pace, &mut operation)
        }
        .unwrap();
        (lap, sizes)
    }

    #[test]
    fn the_last_batch_is_cut_to_the_number_asked() {
        let (lap, sizes) = count(Limit::Operations(25), 10);
        assert_eq!((lap.operations, sizes), (25, vec![10, 10, 5]));
        assert!(
            lap.latencies.figures()[0].1 >= 190_000.0,
            "a batch sleeps for 200 us"
        );
        assert_eq!(lap.windows.iter().flatten().count(), 3);
    }

    #[test]
    fn a_timed_run_lasts_as_long_and_fills_the_windows() {
        let (lap, sizes) = count(Limit::Time(Duration::from_millis(200)), 10);
        assert!(lap.elapsed >= Duration::from_millis(200));
        assert_eq!(lap.operations, sizes.iter().sum::<u64>());
        assert!(lap.windows.iter().flatten().count() > 10);
        // A batch of ten sleeps for at least 200 us.
        assert!(lap.windows.iter().flatten().all(|ns| *ns >= 20_000.0));
    }

    #[test]
    fn a_rate_is_kept() {
        let pace = Pace {
            is_timed: false,
            rate: 1000,
        };
        let lap = lap(Limit::Operations(200), 10, pace, &mut |_| Ok(())).unwrap();
        assert!(
            lap.elapsed >= Duration::from_millis(190),
            "{:?}",
            lap.elapsed
        );
    }

    #[test]
    fn the_line_is_what_the_runner_reads() {
        let measured = LoadResult {
            operations: 2,
            elapsed: Duration::from_nanos(186),
            windows: vec![92.96, 93.0],
            extra: BTreeMap::new(),
        };
        let line = measured.json("getppid");
        let expected =
            r#"{"workload":"getppid","operations":2,"elapsed_ns":186,"windows":[93.0,93.0]}"#;
        assert_eq!(line, expected);
        let back = LoadResult::parse(&format!("noise\n{line}\n{{}}\n")).unwrap();
        assert_eq!((back.operations, back.elapsed), (2, measured.elapsed));
        assert_eq!(LoadResult::parse("noise"), None);
    }
}
