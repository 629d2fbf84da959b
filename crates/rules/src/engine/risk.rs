//! Sums of risk: rules that alert when the weights of other rules, which matched in one process tree, pass a limit.
//!
//! A rule with `risk` is a signal. Its matches go to each rule with `count: {risk_over: ...}` whose condition holds for the
//! event too. The windows are those of [`super::count`]: each signal counts once in a window, by its weight.

use std::sync::Arc;

use event::{Comm, Pid, Process, StartTime};
use serde::{Deserialize, Serialize};

use super::CompiledRule;
use super::count::{Counted, MAX_COUNTED, beginning};
use crate::alert::{Alert, AlertValue};
use crate::ruleset::Risk;

/// Number of ancestors that are followed to the top of a process tree. All deeper trees are summed together, so that a
/// chain of processes cannot hide a signal.
const MAX_DEPTH: usize = 4096;

/// Number of signals that an alert lists.
const MAX_SIGNALS: usize = 64;

/// A match of a rule with a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signal {
    /// Index of the rule.
    pub(super) rule: usize,
    pub(super) weight: u32,
}

impl Signal {
    /// Returns the heavier signal, and the first one of two equals.
    pub(super) fn heavier(self, other: Self) -> Self {
        if other.weight > self.weight {
            other
        } else {
            self
        }
    }
}

/// Which rules are still of interest for an event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Search {
    /// A rule matched that hides all later ones, except for sums of risk.
    pub(super) has_ended: bool,
    /// A rule with a weight matched.
    pub(super) has_signal: bool,
}

impl Search {
    /// Returns whether a rule has to be evaluated. Sums of risk come after all other rules.
    pub(super) fn goes_on(self, rule: &CompiledRule) -> bool {
        match rule.sums_risk() {
            true => self.has_signal,
            false => !self.has_ended,
        }
    }
}

/// How a rule sums the weights of others.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Sum {
    /// Names of programs below which process trees begin.
    below: Vec<String>,
}

/// The process at the top of a process tree. Pid and start time identify it, so a pid that is used again is another tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tree {
    Of {
        pid: Pid,
        start: StartTime,
        program: Comm,
    },
    /// The top is more than [`MAX_DEPTH`] ancestors away.
    Deep,
}

impl Sum {
    pub(super) fn new(below: Vec<String>) -> Self {
        Self { below }
    }

    /// Returns the tree of a process: its topmost ancestor that starts no trees, or the process itself. A process further
    /// down that takes the name of one that starts trees changes nothing. Parentage is the true one, so a process stays in
    /// its tree when its parent ends.
    pub(super) fn tree(&self, process: &Process) -> Tree {
        let of = |process: &Process| Tree::Of {
            pid: process.pid,
            start: process.start,
            program: process.exec_name(),
        };
        let mut top = of(process);
        let ancestors = std::iter::successors(process.parent(), |parent| parent.parent());
        for (depth, ancestor) in ancestors.enumerate() {
            if depth == MAX_DEPTH {
                return Tree::Deep;
            }
            if !self.starts_trees(&ancestor) {
                top = of(&ancestor);
            }
        }
        top
    }

    fn starts_trees(&self, process: &Process) -> bool {
        let name = process.exec_name();
        self.below
            .iter()
            .any(|known| known.as_bytes() == name.as_bytes())
    }
}

impl Tree {
    /// Returns what identifies the tree in a window of a rule that also counts apart by `by`.
    pub(super) fn key(&self, by: &str) -> String {
        match self {
            Self::Of { pid, start, .. } => format!("{} {} {by}", pid.0, start.0),
            Self::Deep => format!("deep {by}"),
        }
    }
}

impl CompiledRule {
    /// Returns true if the rule adds to a risk and never alerts by itself.
    pub(crate) fn is_silent(&self) -> bool {
        self.risk.is_some_and(|risk| risk.is_silent)
    }

    /// Returns the weight of the rule's matches in sums of risk; `None` if it adds nothing.
    pub(crate) fn weight(&self) -> Option<u32> {
        self.risk.map(|risk: Risk| risk.weight)
    }

    /// Returns true if the rule sums the weights of others.
    pub(crate) fn sums_risk(&self) -> bool {
        self.count.as_ref().is_some_and(|count| count.sum.is_some())
    }
}

/// Adds to an alert the signals that its rule has summed. `name` returns the name of a rule.
pub(super) fn add_sum(
    alert: &mut Alert,
    counted: &Counted,
    tree: &Tree,
    name: impl Fn(usize) -> Arc<str>,
) {
    let (risk, now_ns) = (counted.number, alert.time_ns);
    let mut signals: Vec<_> = counted.values.iter().collect();
    signals.sort_by_key(|signal| signal.last_ns);
    let of_rule = |rule: Option<usize>| name(rule.expect("a signal has a rule"));
    let shown = signals.iter().map(|signal| {
        let seconds = now_ns.abs_diff(signal.last_ns) / 1_000_000_000;
        let (rule, program) = (of_rule(signal.rule), &signal.shown);
        format!("{} {rule} ({program}, {seconds} s before)", signal.weight)
    });
    let shown = shown.collect::<Vec<_>>().join("; ");
    let seconds = counted.within_ns / 1_000_000_000;
    alert.message += &format!(
        " risk={risk} in {seconds} s: {}",
        beginning(&shown, MAX_COUNTED)
    );
    let listed = &signals[..signals.len().min(MAX_SIGNALS)];
    let text = |text: &str| AlertValue::Text(text.to_owned());
    let number = |length: usize| u64::try_from(length).expect("64 bits hold any length");
    let rules = listed.iter().map(|signal| text(&of_rule(signal.rule)));
    let programs = listed.iter().map(|signal| text(&signal.shown));
    let weights = listed
        .iter()
        .map(|signal| AlertValue::Uint(signal.weight.into()));
    let times = listed.iter().map(|signal| AlertValue::Uint(signal.last_ns));
    let (pid, program) = match tree {
        Tree::Of { pid, program, .. } => {
            let program = String::from_utf8_lossy(program.as_bytes());
            (AlertValue::Int(pid.0.into()), text(&program))
        }
        Tree::Deep => (AlertValue::Absent, AlertValue::Absent),
    };
    let fields = [
        ("risk.sum", AlertValue::Uint(risk)),
        ("risk.within_ns", AlertValue::Uint(counted.within_ns)),
        ("risk.tree.pid", pid),
        ("risk.tree.program", program),
        ("risk.number", AlertValue::Uint(number(signals.len()))),
        ("risk.signals", AlertValue::List(rules.collect())),
        ("risk.programs", AlertValue::List(programs.collect())),
        ("risk.weights", AlertValue::List(weights.collect())),
        ("risk.times_ns", AlertValue::List(times.collect())),
    ];
    let fields = fields.into_iter().map(|(name, value)| (name.into(), value));
    alert.fields.extend(fields);
}

#[cfg(test)]
mod tests {
    use event::Image;

    use super::*;
    use crate::engine::count::{Counting, Match};
    use crate::output::Template;

    const SECOND: u64 = 1_000_000_000;

    fn child(pid: i32, start: u64, name: &str, parent: Option<&Arc<Process>>) -> Arc<Process> {
        Arc::new(Process::new(
            Pid(pid),
            StartTime(start),
            0,
            parent.cloned(),
            Arc::new(Image::default()),
            Comm::new(name.as_bytes()),
        ))
    }

    fn sum() -> Sum {
        Sum::new(["init", "sshd"].map(str::to_owned).to_vec())
    }

    fn top(process: &Process) -> (i32, u64) {
        match sum().tree(process) {
            Tree::Of { pid, start, .. } => (pid.0, start.0),
            Tree::Deep => (-1, 0),
        }
    }

    #[test]
    fn a_tree_begins_below_the_programs_that_start_trees() {
        let init = child(1, 1, "init", None);
        let daemon = child(20, 2, "sshd", Some(&init));
        let session = child(30, 3, "sshd", Some(&daemon));
        let shell = child(40, 4, "bash", Some(&session));
        let tool = child(50, 5, "tar", Some(&shell));
        assert_eq!(top(&tool), (40, 4));
        assert_eq!(top(&shell), (40, 4));
        // Another session is another tree, and one that took the pid of the first as well.
        let other = child(41, 6, "bash", Some(&session));
        let later = child(40, 7, "bash", Some(&session));
        assert_eq!((top(&other), top(&later)), ((41, 6), (40, 7)));
        assert_ne!(sum().tree(&shell).key(""), sum().tree(&later).key(""));
        // A process does not leave its tree by taking the name of a program that starts trees.
        let disguised = child(60, 8, "sshd", Some(&tool));
        let below = child(70, 9, "curl", Some(&disguised));
        assert_eq!((top(&disguised), top(&below)), ((40, 4), (40, 4)));
        // A daemon is a tree by itself, and so is a process whose ancestors are not known.
        assert_eq!(top(&daemon), (20, 2));
        assert_eq!(top(&child(80, 10, "tar", None)), (80, 10));
    }

    #[test]
    fn a_chain_of_processes_hides_nothing() {
        let mut last = child(1, 1, "bash", None);
        let mut keys = Vec::new();
        for pid in 2..10_000 {
            last = child(pid, 1, "bash", Some(&last));
            if pid > 9_990 {
                keys.push(sum().tree(&last).key("by"));
            }
        }
        assert!(keys.iter().all(|key| key == "deep by"), "{keys:?}");
        // Processes are dropped from the last to the first, without recursion.
        while let Some(parent) = last.parent() {
            last.set_parent(None);
            last = parent;
        }
    }

    #[test]
    fn weights_of_distinct_signals_add_up_within_the_time() {
        let counting = Counting::new(59, 60 * SECOND, Template::default(), None, Some(sum()));
        let add = |tree: &str, rule: usize, weight: u32, second: u64| {
            let one = Match {
                hash: Some(u128::try_from(rule).unwrap()),
                shown: "tar".into(),
                last_ns: second * SECOND,
                weight,
                rule: Some(rule),
            };
            counting.add_match(tree, one).map(|counted| counted.number)
        };
        for second in 0..50 {
            assert_eq!(add("a", 1, 30, second), None, "one signal, many times");
        }
        assert_eq!(add("a", 2, 20, 50), None);
        assert_eq!(add("b", 3, 30, 51), None, "another tree");
        assert_eq!(add("a", 3, 30, 110), None, "the first is too long ago");
        assert_eq!(add("a", 1, 30, 111), Some(60), "the second is too");
        assert_eq!(add("a", 2, 30, 112), None, "what goes on is one alert");
    }
}
