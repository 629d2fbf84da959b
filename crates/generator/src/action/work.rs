//! The process that plays actions repeatedly on several threads, to find the rate at which a detector loses
//! alerts.
//!
//! It reads a [`RoundOrder`] per line, plays for the duration in it, and answers with a [`RoundResult`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use abi::Signal;
use serde::{Deserialize, Serialize};
use workload::Error;

use super::{
    Action, ActionEnvironment, MARK, PerformOptions, Scratch, Stop, address, find, isolate, passwd,
    surroundings,
};

/// Options of the process that plays actions repeatedly.
#[derive(Clone, Debug)]
pub struct WorkOptions {
    /// Number of threads that play.
    pub threads: u16,
    /// Names of further actions.
    pub more: Vec<String>,
    /// Options of the first action, also used for all others.
    pub perform: PerformOptions,
}

/// Order to play one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundOrder {
    /// Nanoseconds that each thread waits before each action.
    pub sleep_ns: u64,
    /// Length of the round, in nanoseconds.
    pub duration_ns: u64,
    /// Number of opens of a file that no rule matches, after each action.
    pub calls: u32,
}

/// Counts of one action in a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionCounts {
    /// Number of times that it was played.
    pub done: u64,
    /// Number of times that it could not be played, or failed.
    pub not_done: u64,
    /// Reason of the last failure.
    pub reason: Option<String>,
}

/// Result of a round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundResult {
    /// Counts by action name.
    pub actions: BTreeMap<String, ActionCounts>,
    /// Duration of the round, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Plays rounds until the end of `orders`. Returns an exit code.
pub fn work(
    args: &WorkOptions,
    program: &Path,
    orders: &mut dyn BufRead,
    out: &mut dyn Write,
) -> u8 {
    let mut answer = |line: String| writeln!(out, "{line}").and_then(|()| out.flush()).is_ok();
    let workers = match prepare(args, program) {
        Ok(workers) => workers,
        Err(Stop::Skipped(reason)) => {
            let _nobody_listens = answer(serde_json::json!({"refused": reason}).to_string());
            return 3;
        }
        Err(Stop::Failed(error)) => {
            let _nobody_listens = answer(serde_json::json!({"refused": error.chain()}).to_string());
            return 4;
        }
    };
    let mut workers = workers;
    for line in orders.lines().map_while(Result::ok) {
        let Ok(order) = serde_json::from_str::<RoundOrder>(&line) else {
            return 2;
        };
        let worked = round(&mut workers, order);
        let line = serde_json::to_string(&worked).expect("it is plain data");
        if !answer(line) {
            return 1;
        }
    }
    0
}

/// State of one thread.
struct Worker {
    scene: ActionEnvironment,
    actions: Vec<&'static Action>,
}

fn prepare(args: &WorkOptions, program: &Path) -> Result<Vec<Worker>, Stop> {
    sys::prctl::set_parent_death_signal(Signal::SIGKILL.0)
        .map_err(Error::call("follow the generator"))?;
    let mut actions = Vec::new();
    for name in [&args.perform.name].into_iter().chain(&args.more) {
        actions.push(find(name).ok_or_else(|| Error::UnknownName {
            hint: "`tollgate generate list --all` shows all actions".to_owned(),
        })?);
    }
    let perform = &args.perform;
    let in_container = perform.container.unwrap_or_else(surroundings::in_container);
    for action in &actions {
        surroundings::check(action, in_container).map_err(|stop| named(action, stop))?;
    }
    address::separate(&actions, &perform.allow_network)?;
    let has_layers = isolate::separate(&actions, &perform.scratch, perform.touch_system)?;
    let scratch = Scratch::of_another(perform.scratch.clone());
    let mut scenes = Vec::new();
    for _ in 0..args.threads {
        let scene = ActionEnvironment::new(&scratch, program, perform.arguments(), None)?;
        scenes.push(scene.with_layers(has_layers));
    }
    if let Some(user) = &perform.user {
        let user = passwd::user(user)?;
        for scene in &scenes {
            scene.give_to(user)?;
        }
        passwd::become_user(user)?;
    }
    debug_assert!(
        std::env::var_os(MARK).is_some(),
        "the janitor finds us by it"
    );
    let worker = |scene| Worker {
        scene,
        actions: actions.clone(),
    };
    Ok(scenes.into_iter().map(worker).collect())
}

fn named(action: &Action, stop: Stop) -> Stop {
    match stop {
        Stop::Skipped(reason) => Stop::Skipped(format!("{}: {reason}", action.name)),
        failed @ Stop::Failed(_) => failed,
    }
}

fn round(workers: &mut [Worker], order: RoundOrder) -> RoundResult {
    let (start, end) = (Barrier::new(workers.len()), AtomicBool::new(false));
    let began = Instant::now();
    let duration = Duration::from_nanos(order.duration_ns);
    let sleep = Duration::from_nanos(order.sleep_ns);
    let mut worked = RoundResult::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let (start, end) = (&start, &end);
                scope.spawn(move || {
                    start.wait();
                    worker.play(sleep, order.calls, began + duration, end)
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(tallies) => worked.add(tallies),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    worked.elapsed_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    worked
}

impl Worker {
    fn play(
        &mut self,
        sleep: Duration,
        calls: u32,
        until: Instant,
        end: &AtomicBool,
    ) -> Vec<(&'static str, ActionCounts)> {
        let mut tallies: Vec<_> = self
            .actions
            .iter()
            .map(|action| (action.name, ActionCounts::default()))
            .collect();
        let uninteresting = self.scene.folder();
        'round: loop {
            for (action, (_, tally)) in self.actions.iter().zip(&mut tallies) {
                if !sleep.is_zero() {
                    std::thread::sleep(sleep.min(until.saturating_duration_since(Instant::now())));
                }
                if end.load(Ordering::Relaxed) || Instant::now() >= until {
                    break 'round;
                }
                // The results are ignored: the opens are only load for the detector.
                let _ = (0..calls).try_for_each(|_| File::open(uninteresting).map(drop));
                match (action.play)(&self.scene) {
                    Ok(()) => tally.done += 1,
                    Err(stop) => {
                        tally.not_done += 1;
                        tally.reason = Some(match stop {
                            Stop::Skipped(reason) => reason,
                            Stop::Failed(error) => error.chain(),
                        });
                    }
                }
            }
        }
        end.store(true, Ordering::Relaxed);
        tallies
    }
}

impl RoundResult {
    fn add(&mut self, tallies: Vec<(&'static str, ActionCounts)>) {
        for (name, tally) in tallies {
            let sum = self.actions.entry(name.to_owned()).or_default();
            sum.done += tally.done;
            sum.not_done += tally.not_done;
            sum.reason = tally.reason.or(sum.reason.take());
        }
    }
}
