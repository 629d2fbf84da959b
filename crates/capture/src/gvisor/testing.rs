//! Entry for fuzzing: a sandbox without its socket.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};

use event::{Evaluator, Event, Pid};

use super::sandbox::Sandbox;
use super::{Counters, GvisorCounters, Shared};
use crate::notify::EngineObserver;

struct Silent;

impl EngineObserver for Silent {
    fn undecided(&self, _event: &Event<'_>, _rules: &[Arc<str>]) {}
    fn read_timed_out(&self, _pid: Pid) {}
}

/// Gives a new sandbox these datagrams, and returns the counters.
pub fn receive<J: Evaluator>(evaluator: Arc<J>, datagrams: &[&[u8]]) -> GvisorCounters {
    let shared = Arc::new(Shared {
        evaluator: arc_swap::ArcSwap::new(evaluator),
        notices: Arc::new(Silent),
        names: arc_swap::ArcSwap::default(),
        counters: Counters::default(),
        events: AtomicU64::new(0),
        host_name: "host".to_owned(),
        state_root: PathBuf::from("/nonexistent"),
        stopping: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        threads: Mutex::default(),
    });
    let mut sandbox = Sandbox::new(Arc::clone(&shared));
    for datagram in datagrams {
        sandbox.receive(datagram);
    }
    shared.snapshot()
}
