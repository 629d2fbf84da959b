//! What a running engine can be asked and told, whichever it is.

use std::sync::Arc;

use event::{Evaluator, Pid};

use crate::notify::NotifyEngine;
use crate::{ebpf, gvisor};

/// Tells whether a process is watched.
pub type Scope = Arc<dyn Fn(Pid) -> bool + Send + Sync>;

/// A running engine.
pub trait Engine {
    /// Whether the last watched process has ended.
    fn has_ended(&self) -> bool;
    /// Whether it ended because too much was lost.
    fn has_given_up(&self) -> bool {
        false
    }
    /// Receives no more calls; [`Engine::join`] waits for those at hand.
    fn let_go(&self);
    /// What tells whether the kernel knows a process as a watched one, where it knows each of them.
    fn scope(&self) -> Option<Scope> {
        None
    }
    /// Keeps the workload's hands off another process of ours.
    fn protect(&self, pid: Pid);
    /// Waits for the end.
    fn join(self: Box<Self>);
}

/// `notify` and `ptrace`, which hold callers at their calls.
impl<J: Evaluator + 'static> Engine for NotifyEngine<J> {
    fn has_ended(&self) -> bool {
        NotifyEngine::has_ended(self)
    }

    fn let_go(&self) {
        self.hand_over();
    }

    fn protect(&self, pid: Pid) {
        NotifyEngine::protect(self, pid);
    }

    fn join(self: Box<Self>) {
        NotifyEngine::join(*self);
    }
}

impl<J: Evaluator + 'static> Engine for ebpf::Engine<J> {
    fn has_ended(&self) -> bool {
        ebpf::Engine::has_ended(self)
    }

    fn has_given_up(&self) -> bool {
        ebpf::Engine::has_given_up(self)
    }

    fn scope(&self) -> Option<Scope> {
        ebpf::Engine::scope(self)
    }

    fn let_go(&self) {
        self.stop();
    }

    // The engine's own process is never looked at, and holds no call that could be refused.
    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {
        ebpf::Engine::join(*self);
    }
}

impl<J: Evaluator + 'static> Engine for gvisor::Engine<J> {
    /// Another sandbox may always come.
    fn has_ended(&self) -> bool {
        gvisor::Engine::has_ended(self)
    }

    fn let_go(&self) {
        self.stop();
    }

    // A sandbox cannot reach any process of ours.
    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {
        gvisor::Engine::join(*self);
    }
}

/// No engine: no event comes, and it does not end.
#[derive(Clone, Copy, Debug)]
pub struct Idle;

impl Engine for Idle {
    fn has_ended(&self) -> bool {
        false
    }

    fn let_go(&self) {}

    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {}
}
