//! The thread that compares what the file system tells with what the engine saw.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use event::Judge;
use sys::time::{Clock, now_ns};

use super::Shared;
use crate::tripwire::{Found, Tripwire};

/// How long a process that could open files past the engine is remembered: it may have ended when
/// the file system tells.
const MEMORY_NS: u64 = 1_000_000_000;

/// Starts the thread, if there is a tripwire. It ends with the engine.
pub(crate) fn start<J: Judge + 'static>(
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
                follow(&shared, tripwire);
            }
        })
        .map(Some)
}

fn follow<J: Judge>(shared: &Shared<J>, tripwire: &Tripwire) {
    let is_alone = shared.tree.is_whole_namespace();
    let mut evaded_until = 0;
    loop {
        tripwire.wait();
        let last = shared.has_ended();
        let now = now_ns(Clock::Monotonic);
        if shared.verifier.may_be_evaded() {
            evaded_until = now + MEMORY_NS;
        }
        let found = tripwire.look(last);
        if found.is_suspicious && shared.verifier.is_active() {
            shared.verifier.alarm(now);
        }
        account(shared, tripwire, &found, is_alone || now < evaded_until);
        if last {
            return;
        }
    }
}

fn account<J: Judge>(shared: &Shared<J>, tripwire: &Tripwire, found: &Found, ours: bool) {
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
        for path in &found.unseen {
            shared.notices.opened_unseen(path);
        }
    }
    if found.overflowed {
        shared.notices.tripwire_overflowed();
    }
}
