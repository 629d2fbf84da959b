//! `process:terminate`, `process:freeze` and `process:thaw`.

use std::fmt::Write;
use std::sync::Arc;

use event::Pid;

use crate::bound::Bound;
use crate::guard::Refusal;
use crate::outcome::{Outcome, Status};
use crate::tree::{Selection, Tree};

/// What happened to the process of an alert before the threads of the responder had it.
#[derive(Debug, PartialEq)]
pub(crate) enum Immediate {
    /// Nothing.
    None,
    /// Nothing, in a dry run, while the caller waited: what the action would have done.
    Rehearsed(Outcome),
    /// Nothing, in a dry run, and the caller went on, as its descendants could not be found in time. The guard allowed to
    /// hit it, and it was there.
    Allowed,
    /// The guard refused it.
    Refused(Refusal),
    /// Calls are withheld from it and its descendants, protected ones not excepted yet.
    Denied,
    /// It was stopped.
    Stopped,
    /// It was killed, and had neither children nor other threads.
    Killed,
}

/// What happens to processes, in words.
pub(crate) const KILLED: &str = "killed";
pub(crate) const STOPPED: &str = "stopped";

/// Kills a process and its descendants.
pub(crate) fn terminate(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    immediate: &Immediate,
) -> Outcome {
    let is_alone = *immediate == Immediate::Killed;
    let mut tree = match is_alone {
        true => Tree::of_one(Arc::clone(root)),
        false => Tree::stop(select, Arc::clone(root), *immediate == Immediate::Stopped),
    };
    let killed = tree.kill().max(usize::from(is_alone));
    let survivors = tree.wait_for_end();
    if killed == 0 && tree.failed.is_empty() {
        return Outcome::new(Status::Gone, "the process had ended");
    }
    let mut outcome = describe(KILLED, &tree);
    if !survivors.is_empty() {
        outcome.status = Status::Failed;
        outcome.add(&format!("not ended yet: {}", list(&survivors)));
    }
    outcome
}

/// Stops a process and its descendants. Also returns the tree, which can be resumed.
pub(crate) fn freeze(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    immediate: &Immediate,
) -> (Outcome, Option<Tree>) {
    let tree = Tree::stop(select, Arc::clone(root), *immediate == Immediate::Stopped);
    if tree.pids().is_empty() {
        return (Outcome::new(Status::Gone, "the process had ended"), None);
    }
    let mut outcome = describe(STOPPED, &tree);
    let pids = tree.pids().into_iter().map(|pid| pid.0.to_string());
    outcome.undo = Some(format!("kill -CONT {}", pids.collect::<Vec<_>>().join(" ")));
    (outcome, Some(tree))
}

/// Lets stopped trees go on.
pub(crate) fn thaw(trees: Vec<Tree>) -> Outcome {
    if trees.is_empty() {
        return Outcome::new(
            Status::Gone,
            "no process that an action before it has stopped is stopped any more",
        );
    }
    let mut resumed = 0;
    let mut processes = Vec::new();
    let mut failed = Vec::new();
    for mut tree in trees {
        tree.failed.clear();
        resumed += tree.resume();
        processes.extend(tree.pids());
        failed.extend(tree.failed.iter().map(|(pid, _)| *pid));
    }
    let mut outcome = Outcome::new(Status::Done, format!("resumed {}", count(resumed)));
    outcome.processes = processes;
    if !failed.is_empty() {
        outcome.status = Status::Failed;
        outcome.add(&format!("cannot resume {}", list(&failed)));
    }
    outcome
}

/// Describes what an action would do now, or would have done if that was looked at before.
pub(crate) fn rehearse(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    verb: &str,
    immediate: &Immediate,
) -> Outcome {
    if let Immediate::Rehearsed(outcome) = immediate {
        return outcome.clone();
    }
    let mut tree = Tree::look(select, Arc::clone(root));
    if *immediate == Immediate::Allowed {
        // If it has ended since, the action would have hit it before.
        tree.keep_root(Arc::clone(root));
    }
    if tree.pids().is_empty() {
        return Outcome::new(Status::Gone, "the process had ended");
    }
    would_have(verb, &tree)
}

/// Describes what an action would do to a tree.
pub(crate) fn would_have(verb: &str, tree: &Tree) -> Outcome {
    let mut outcome = describe(&format!("would have {verb}"), tree);
    outcome.status = Status::DryRun;
    outcome
}

pub(crate) fn describe(verb: &str, tree: &Tree) -> Outcome {
    let failed: Vec<Pid> = tree.failed.iter().map(|(pid, _)| *pid).collect();
    let mut hit = tree.pids();
    hit.retain(|pid| !failed.contains(pid));
    let mut outcome = Outcome::new(Status::Done, format!("{verb} {}", count(hit.len())));
    if !hit.is_empty() {
        outcome.text += &format!(" ({})", list(&hit));
    }
    outcome.processes = hit;
    for (pid, errno) in &tree.failed {
        outcome.status = Status::Failed;
        let error = std::io::Error::from_raw_os_error(*errno);
        outcome.add(&format!("cannot signal pid {}: {error}", pid.0));
    }
    for spared in &tree.spared {
        let (pid, _) = spared.process;
        outcome.add(&format!("spared pid {}: {}", pid.0, spared.why));
    }
    if let Some(why) = tree.incomplete {
        outcome.status = Status::Failed;
        outcome.add(&format!("descendants may be missing: {why}"));
    }
    outcome
}

impl Outcome {
    /// Adds to what was done.
    pub(crate) fn add(&mut self, text: &str) {
        self.text.push_str("; ");
        self.text.push_str(text);
    }
}

fn count(processes: usize) -> String {
    match processes {
        1 => "1 process".to_owned(),
        many => format!("{many} processes"),
    }
}

/// Number of pids that a message names.
const NAMED: usize = 20;

fn list(pids: &[Pid]) -> String {
    let mut text = String::from("pid ");
    for (at, pid) in pids.iter().take(NAMED).enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        write!(text, "{comma}{}", pid.0).expect("writing to a string cannot fail");
    }
    if pids.len() > NAMED {
        text += ", ...";
    }
    text
}
