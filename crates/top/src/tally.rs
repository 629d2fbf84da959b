//! Counts of processes and calls, within fixed bounds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::alerts::Alerts;
use crate::escaped;

/// Most processes with a row of their own; further ones are counted together.
const MOST_PROCESSES: usize = 4096;
/// A process without an event for this long loses its row; its counts go to the others.
const FORGET: Duration = Duration::from_secs(120);
/// Shortest time over which a rate is computed.
const RATE_OVER: Duration = Duration::from_millis(900);
/// Pid of the row of processes that have none of their own.
const OTHERS: i32 = 0;

/// Number of events and time of their evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Number of events.
    pub events: u64,
    /// Time that the rules took for them, in nanoseconds.
    pub ns: u64,
    /// Events in the last second.
    pub events_rate: f64,
    /// Nanoseconds of evaluation in the last second.
    pub ns_rate: f64,
    /// Values at the last tick.
    before: (u64, u64),
}

impl Costs {
    fn add(&mut self, events: u64, ns: u64) {
        self.events += events;
        self.ns += ns;
    }

    fn tick(&mut self, seconds: f64) {
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        self.events_rate = rate(self.events, self.before.0);
        self.ns_rate = rate(self.ns, self.before.1);
        self.before = (self.events, self.ns);
    }
}

/// A look of the rules at an event. They may look more than once, while more of it becomes known.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The calling process.
    pub pid: i32,
    /// The system call.
    pub call: &'static str,
    /// Time that it took, in nanoseconds.
    pub ns: u64,
    /// True for the first look.
    pub is_new: bool,
}

/// A process in the table.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Process id.
    pub pid: i32,
    /// Name, escaped.
    pub name: String,
    /// Name of the parent, escaped.
    pub parent: String,
    /// Its events.
    pub costs: Costs,
    /// Number of its alerts.
    pub alerts: u64,
    last: Instant,
}

/// What a feed reported so far.
#[derive(Debug)]
pub struct Tally {
    processes: HashMap<i32, Caller>,
    calls: HashMap<&'static str, Costs>,
    /// Alerts.
    pub alerts: Alerts,
    /// All events.
    pub all: Costs,
    ticked: Instant,
}

impl Tally {
    /// Creates an empty tally.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            processes: HashMap::new(),
            calls: HashMap::new(),
            alerts: Alerts::default(),
            all: Costs::default(),
            ticked: now,
        }
    }

    /// Counts what was seen of an event. `names` returns the names of the process and its parent; it is called for the first event
    /// of a process only. The number of calls is bounded by the system-call table.
    pub fn count(&mut self, seen: Seen, now: Instant, names: impl FnOnce() -> (String, String)) {
        let (events, ns) = (u64::from(seen.is_new), seen.ns);
        self.all.add(events, ns);
        self.calls.entry(seen.call).or_default().add(events, ns);
        let caller = self.caller(seen.pid, now, names);
        caller.costs.add(events, ns);
        caller.last = now;
    }

    /// Counts an alert of a process.
    pub fn alert_of(&mut self, pid: i32) {
        let known = if self.processes.contains_key(&pid) {
            pid
        } else {
            OTHERS
        };
        if let Some(caller) = self.processes.get_mut(&known) {
            caller.alerts += 1;
        }
    }

    /// Forgets the name of a process, which executed another program.
    pub fn renamed(&mut self, pid: i32, name: &str) {
        if let Some(caller) = self.processes.get_mut(&pid) {
            caller.name = escaped(name);
        }
    }

    fn caller(
        &mut self,
        pid: i32,
        now: Instant,
        names: impl FnOnce() -> (String, String),
    ) -> &mut Caller {
        let is_full = self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&pid);
        let pid = if is_full { OTHERS } else { pid };
        self.processes.entry(pid).or_insert_with(|| {
            let (name, parent) = match pid {
                OTHERS => ("(others)".to_owned(), String::new()),
                _ => names(),
            };
            Caller {
                pid,
                name: escaped(&name),
                parent: escaped(&parent),
                costs: Costs::default(),
                alerts: 0,
                last: now,
            }
        })
    }

    /// Computes rates, and folds processes that were quiet for long into one row. Does nothing if the last tick
    /// was less than a second ago.
    pub fn tick(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.ticked);
        if passed < RATE_OVER {
            return;
        }
        self.ticked = now;
        let seconds = passed.as_secs_f64();
        self.all.tick(seconds);
        self.calls
            .values_mut()
            .for_each(|costs| costs.tick(seconds));
        self.processes
            .values_mut()
            .for_each(|caller| caller.costs.tick(seconds));
        let is_quiet = |caller: &Caller| now.saturating_duration_since(caller.last) > FORGET;
        let quiet: Vec<i32> = self
            .processes
            .values()
            .filter(|caller| caller.pid != OTHERS && is_quiet(caller))
            .map(|caller| caller.pid)
            .collect();
        for pid in quiet {
            let Some(gone) = self.processes.remove(&pid) else {
                continue;
            };
            let others = self.caller(OTHERS, now, Default::default);
            others.costs.add(gone.costs.events, gone.costs.ns);
            // What was counted before is no event of the last second.
            others.costs.before.0 += gone.costs.events;
            others.costs.before.1 += gone.costs.ns;
            others.alerts += gone.alerts;
        }
    }

    /// Returns the processes, in no order.
    pub fn processes(&self) -> impl Iterator<Item = &Caller> {
        self.processes.values()
    }

    /// Returns the calls with their costs, in no order.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, &Costs)> {
        self.calls.iter().map(|(call, costs)| (*call, costs))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn seen(pid: i32, call: &'static str, ns: u64) -> Seen {
        Seen {
            pid,
            call,
            ns,
            is_new: true,
        }
    }

    fn named(name: &str) -> impl FnOnce() -> (String, String) {
        let name = name.to_owned();
        || (name, "sh".to_owned())
    }

    #[test]
    fn events_are_counted_by_process_and_call_and_become_rates() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        for _ in 0..10 {
            tally.count(seen(7, "openat", 100), start, named("cat"));
        }
        tally.count(seen(8, "execve", 900), start, named("sh\u{1b}[2J"));
        tally.tick(start + Duration::from_secs(2));
        let cat = tally.processes().find(|caller| caller.pid == 7).unwrap();
        assert_eq!((cat.costs.events, cat.costs.ns), (10, 1000));
        assert!((cat.costs.events_rate - 5.0).abs() < 1e-9);
        let sh = tally.processes().find(|caller| caller.pid == 8).unwrap();
        assert_eq!(sh.name, "sh\\u{1b}[2J");
        let (_, openat) = tally.calls().find(|(call, _)| *call == "openat").unwrap();
        assert!((openat.ns_rate - 500.0).abs() < 1e-9);
        tally.tick(start + Duration::from_secs(4));
        assert!(tally.all.events_rate.abs() < 1e-9, "nothing happened since");
    }

    #[test]
    fn memory_is_bounded_and_no_event_is_lost() {
        let start = Instant::now();
        let mut tally = Tally::new(start);
        let count = i32::try_from(MOST_PROCESSES).unwrap() + 500;
        for pid in 1..=count {
            tally.count(seen(pid, "openat", 1), start, named("p"));
        }
        assert!(tally.processes().count() <= MOST_PROCESSES + 1);
        let sum = |tally: &Tally| {
            tally
                .processes()
                .map(|caller| caller.costs.events)
                .sum::<u64>()
        };
        assert_eq!(sum(&tally), u64::try_from(count).unwrap());
        tally.tick(start + FORGET + Duration::from_secs(1));
        assert_eq!(tally.processes().count(), 1, "all are quiet");
        assert_eq!(sum(&tally), u64::try_from(count).unwrap());
    }
}
