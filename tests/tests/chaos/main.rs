//! Faults at random moments: agent and keeper of `run` are killed, crashed, stopped, starved, and have no memory,
//! descriptors or disk left. After each the same holds: the workload goes on, or ends as `--on-agent-death` says; each
//! sensitive open is an alert or counted; nothing is left; what is opened next is seen.
//!
//! `TOLLGATE_CHAOS` is the number of rounds of each kind; six have each target meet each answer. `SEED` repeats a run.

mod fault;
#[path = "../small_disk/mod.rs"]
mod small_disk;
mod workload;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::runtime_fixture::random_numbers;
use e2e::{Fixture, need_root, skip};

use fault::Fault;
use workload::{PATIENCE, Watched};

/// Opens of an order: so many in each of so many processes.
const TIMES: u64 = 100;
const PROCESSES: u64 = 3;

/// How long an order may take until a fault strikes, in milliseconds: about as long as an order takes.
const MOMENT: u64 = 120;

/// Who waits for calls to be answered waits so long until an agent that does not move is replaced.
const TIMEOUT: [&str; 2] = ["--agent-timeout", "500"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Agent,
    Keeper,
}

/// What a round does.
#[derive(Clone, Copy, Debug)]
struct Round {
    fault: Fault,
    target: Target,
    death: &'static str,
    after: Duration,
}

fn rounds() -> u64 {
    std::env::var("TOLLGATE_CHAOS")
        .map_or(6, |text| text.parse().expect("TOLLGATE_CHAOS is a number"))
}

impl Round {
    fn play(self, fixture: &Fixture) -> u64 {
        let options = [&["--on-agent-death", self.death], &TIMEOUT[..]].concat();
        let mut watched = Watched::start(fixture, &options, None);
        watched.sees_again();
        watched.order(TIMES, PROCESSES);
        thread::sleep(self.after);
        let target = match self.target {
            Target::Agent => watched.agent(),
            Target::Keeper => watched.keeper(),
        };
        let target =
            target.unwrap_or_else(|| panic!("{self:?}: nobody is there: {}", watched.story()));
        self.fault.strike(&watched, &target);
        if self.ends_the_workload() {
            return self.has_ended(&mut watched);
        }
        let sums = watched
            .answer()
            .unwrap_or_else(|| panic!("{self:?}: {}", watched.story()));
        assert_eq!(
            sums.ok + sums.refused,
            TIMES * PROCESSES,
            "{self:?}: {}",
            watched.story()
        );
        assert!(
            self.death == "deny" || sums.refused == 0,
            "{self:?}: {}",
            watched.story()
        );
        watched.sees_again();
        let (status, stats) = watched.end();
        assert_eq!(status, Some(0), "{self:?}: {}", watched.story());
        let unseen = watched.assert_accounted(&stats);
        watched.assert_nothing_left();
        unseen
    }

    fn ends_the_workload(self) -> bool {
        self.death == "kill" && self.target == Target::Agent && self.fault.is_fatal()
    }

    /// The workload ends with the agent: a stopped one is replaced only if calls wait for it, so it is given some.
    /// Returns how many opens were no alerts.
    fn has_ended(self, watched: &mut Watched) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        while watched.goes_on() {
            assert!(
                Instant::now() < deadline,
                "{self:?}: the workload goes on: {}",
                watched.story()
            );
            // The keeper kills whoever makes calls as long as there are calls, before it looks for their parent.
            thread::sleep(Duration::from_millis(20));
            watched.try_order();
        }
        let (status, _) = watched.end();
        assert_eq!(status, Some(4), "{self:?}: {}", watched.story());
        let unseen = watched.assert_said();
        watched.assert_nothing_left();
        unseen
    }
}

/// Plays the rounds of a kind, some at a time, and prints how many opens were no alerts.
fn play(fault: Fault, targets: &[Target], deaths: &[&'static str]) {
    let fixture = Fixture::compile("orders");
    let (next, unseen, killed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let random = Mutex::new(random_numbers());
    let (count, workers) = (rounds(), 2);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        break;
                    }
                    let after = {
                        let mut random = random.lock().expect("nobody panics with it");
                        Duration::from_millis(random(MOMENT))
                    };
                    let at = usize::try_from(number).expect("few");
                    let target = targets[at % targets.len()];
                    let death = deaths[at / targets.len() % deaths.len()];
                    let round = Round {
                        fault,
                        target,
                        death,
                        after,
                    };
                    unseen.fetch_add(round.play(&fixture), Ordering::Relaxed);
                    let is_killed = u64::from(round.ends_the_workload());
                    killed.fetch_add(is_killed, Ordering::Relaxed);
                }
            });
        }
    });
    let (unseen, killed) = (unseen.into_inner(), killed.into_inner());
    println!(
        "{fault:?}: {count} rounds, of which {killed} ended the workload; {unseen} opens were counted as unseen"
    );
}

const BOTH: [Target; 2] = [Target::Agent, Target::Keeper];
const EACH: [&str; 3] = ["continue", "deny", "kill"];

#[test]
fn whoever_is_killed_at_any_moment_no_open_is_unsaid() {
    need_root!();
    play(Fault::Kill, &BOTH, &EACH);
}

#[test]
fn whoever_crashes_at_any_moment_no_open_is_unsaid() {
    need_root!();
    play(Fault::Crash, &BOTH, &EACH);
}

#[test]
fn whoever_is_stopped_at_any_moment_no_open_is_unsaid() {
    need_root!();
    play(Fault::Stop, &[Target::Agent], &EACH);
}

/// Ends a test if the control groups of the first version that its fault needs are not there.
macro_rules! need_controller {
    ($fault:expr) => {
        if let Some(path) = $fault.controller().filter(|path| !path.exists()) {
            skip!("needs control groups of the first version", || Ok(format!(
                "{} is not there",
                path.display()
            )));
        }
    };
}

#[test]
fn whoever_gets_no_processor_at_any_moment_no_open_is_unsaid() {
    need_root!();
    need_controller!(Fault::Starve);
    play(Fault::Starve, &BOTH, &["continue", "deny"]);
}

#[test]
fn whoever_gets_no_memory_at_any_moment_no_open_is_unsaid() {
    need_root!();
    need_controller!(Fault::OutOfMemory);
    play(Fault::OutOfMemory, &BOTH, &["continue", "deny"]);
}

#[test]
fn whoever_gets_no_descriptor_at_any_moment_no_open_is_unsaid() {
    need_root!();
    play(Fault::OutOfDescriptors, &BOTH, &["continue", "deny"]);
}

#[test]
fn a_disk_that_is_full_at_any_moment_loses_no_alert_unsaid() {
    need_root!();
    play(Fault::OutOfSpace, &[Target::Agent], &["continue"]);
}

/// Each write to a process's own memory at an address that it does not have fails with EIO.
#[test]
fn a_disk_that_fails_loses_no_alert_unsaid() {
    need_root!();
    let fixture = Fixture::compile("orders");
    for _ in 0..rounds().div_ceil(2) {
        let mut watched = Watched::start(&fixture, &TIMEOUT, Some("/proc/self/mem"));
        watched.order(TIMES, PROCESSES);
        let sums = watched.answer().expect("it goes on");
        assert_eq!((sums.ok, sums.refused), (TIMES * PROCESSES, 0));
        let (status, stats) = watched.end();
        assert_eq!(status, Some(0), "{}", watched.story());
        let unseen = watched.assert_accounted(&stats);
        assert!(unseen >= sums.ok, "each was lost: {stats}");
        watched.assert_nothing_left();
    }
}
