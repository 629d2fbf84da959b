//! `process:deny`: has calls of a process and its descendants fail.

use std::sync::Arc;

use event::DenialId;

use crate::act::process::{Immediate, describe, rehearse};
use crate::bound::Bound;
use crate::denials::{Denials, NotDenied, WithheldCalls, names};
use crate::outcome::{Outcome, Status};
use crate::tree::{Selection, Tree};

/// Withholds calls from a process and what it has started or will start, and then spares the descendants that the guard
/// protects.
pub(crate) fn deny(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    denials: &Denials,
    (id, withheld): (DenialId, WithheldCalls<'_>),
    immediate: &Immediate,
) -> Outcome {
    let who = (root.pid, root.stat.start);
    // Before the search, which the processes that are hit could make take long.
    if *immediate != Immediate::Denied {
        match denials.deny(who, id, withheld) {
            Ok(()) => {}
            Err(NotDenied::Ended) => {
                return Outcome::new(Status::Gone, "the process had ended");
            }
            Err(NotDenied::Unwatched) if !root.is_unreaped() => {
                let why = "the process had ended; descendants that it may have are not hit";
                return Outcome::new(Status::Failed, why);
            }
            Err(why) => return Outcome::new(Status::Failed, why.to_string()),
        }
    }
    let mut tree = Tree::look(select, Arc::clone(root));
    // It was hit also if it has ended since.
    tree.keep_root(Arc::clone(root));
    for spared in &tree.spared {
        denials.spare(spared.process, id);
    }
    // Engines also know descendants whose parents have ended. Those of one that is spared are hit no more.
    while let Some(spared) = tree.add_known(select, &denials.descendants(who, id)) {
        denials.spare(spared, id);
    }
    let mut outcome = describe(&verb(withheld), &tree);
    if tree.incomplete.is_some() {
        // Whoever was not found is a descendant all the same. Only the list is not complete, and a protected one may be hit.
        outcome.add("the descendants that are not named are hit, too");
    }
    outcome
}

/// Describes what would have been withheld.
pub(crate) fn dry_run(
    select: &Selection<'_>,
    root: &Arc<Bound>,
    withheld: WithheldCalls<'_>,
    immediate: &Immediate,
) -> Outcome {
    rehearse(select, root, &verb(withheld), immediate)
}

/// What happens, in words: `denied exec for 10 s to`.
pub(crate) fn verb(withheld: WithheldCalls<'_>) -> String {
    let calls = names(withheld.calls);
    match withheld.duration {
        Some(duration) => format!("denied {calls} for {} s to", duration.as_secs()),
        None => format!("denied {calls} to"),
    }
}
