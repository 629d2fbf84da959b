//! The tripwire thread: compares what the file system reports with what the engine saw.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use event::Evaluator;
use sys::time::{Clock, now_ns};

use super::Shared;
use super::verify::Verify;
use super::worker::CallEvaluator;
use crate::tripwire::{OpenedFile, Tripwire, TripwireReport};
use decoder::counters::Counters;

/// Creates the tripwire, unless nothing is to be verified.
pub(crate) fn prepare<J: Evaluator>(
    shared: &mut Arc<Shared<J>>,
    paths: &[Vec<u8>],
    verify: Verify,
) {
    if verify == Verify::Off {
        return;
    }
    // A container has a root of its own, and other processes' use of the host's files does not matter to it.
    // Walking folders such as /usr/bin takes longer than everything else before an engine works.
    let has_own_root = !shared.tree.has_setup();
    let mut rules = CallEvaluator::new(Arc::clone(shared));
    let tripwire = Tripwire::new(paths, has_own_root, sensitive(&mut rules));
    drop(rules);
    let shared = Arc::get_mut(shared).expect("the worker was the other owner");
    match tripwire {
        Ok(tripwire) => shared.tripwire = Some(tripwire),
        Err(_) => Counters::add(&shared.counters.tripwire_refused),
    }
}

/// Adapts the tripwire to new rules.
pub(crate) fn follow_rules<J: Evaluator>(shared: &Arc<Shared<J>>, paths: &[Vec<u8>]) {
    if let Some(tripwire) = &shared.tripwire {
        tripwire.extend(
            paths,
            sensitive(&mut CallEvaluator::new(Arc::clone(shared))),
        );
    }
}

/// Returns a predicate for paths whose opens the rules may match.
fn sensitive<J: Evaluator>(rules: &mut CallEvaluator<J>) -> impl FnMut(&[u8], bool) -> bool {
    |path, writes| rules.is_sensitive(path, writes)
}

/// Starts the thread, if there is a tripwire. It ends with the engine.
pub(crate) fn start<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
) -> std::io::Result<Option<JoinHandle<()>>> {
    if shared.tripwire.is_none() {
        return Ok(None);
    }
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("tripwire".to_owned())
        .spawn(move || {
            if let Some(tripwire) = &shared.tripwire {
                let mut rules = CallEvaluator::new(Arc::clone(&shared));
                follow(&shared, tripwire, &mut rules);
            }
        })
        .map(Some)
}

fn follow<J: Evaluator>(shared: &Shared<J>, tripwire: &Tripwire, rules: &mut CallEvaluator<J>) {
    let is_alone = shared.tree.is_whole_namespace();
    loop {
        tripwire.wait();
        let last = shared.has_ended();
        let now = now_ns(Clock::Monotonic);
        let mut found = tripwire.look(last);
        // A folder is watched for what rules ask of any file in it; they exclude some.
        let mut matters = |opened: &OpenedFile| rules.is_sensitive(&opened.path, opened.writes);
        if shared.verifier.is_active() && found.suspicious.iter().any(&mut matters) {
            shared.verifier.alarm(now);
        }
        found.unseen.retain(&mut matters);
        account(
            shared,
            tripwire,
            &found,
            is_alone || shared.verifier.has_rings(),
        );
        if last {
            return;
        }
    }
}

fn account<J: Evaluator>(
    shared: &Shared<J>,
    tripwire: &Tripwire,
    found: &TripwireReport,
    ours: bool,
) {
    let counters = &shared.counters;
    let (watches, refused) = tripwire.watches();
    counters.tripwire_watches.store(watches, Ordering::Relaxed);
    counters.tripwire_refused.store(refused, Ordering::Relaxed);
    counters
        .tripwire_opens
        .fetch_add(found.opens, Ordering::Relaxed);
    let past = found.unseen.len() as u64;
    let counter = if ours {
        &counters.tripwire_unseen
    } else {
        &counters.tripwire_foreign
    };
    counter.fetch_add(past, Ordering::Relaxed);
    if ours {
        for opened in &found.unseen {
            shared.notices.opened_unseen(&opened.path);
        }
    }
    if found.overflowed {
        shared.notices.tripwire_overflowed();
    }
}
