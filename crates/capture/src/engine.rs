//! The [`Engine`] trait: the interface of a running engine of any kind.

use std::sync::Arc;
use std::time::Instant;

use event::{Evaluator, Pid};

use crate::notify::NotifyEngine;
use crate::{ebpf, gvisor};

/// Predicate that returns true for watched processes.
pub type Scope = Arc<dyn Fn(Pid) -> bool + Send + Sync>;

/// A running engine.
pub trait Engine {
    /// Returns whether the last watched process has ended.
    fn has_ended(&self) -> bool;
    /// Returns whether the engine stopped because it lost too many events.
    fn has_given_up(&self) -> bool {
        false
    }
    /// Waits until everything that processes have done so far is evaluated, or `deadline` is reached. Engines that hold
    /// callers at their calls evaluate before a call goes on.
    fn settle(&self, _deadline: Instant) {}
    /// Stops receiving calls; [`Engine::join`] waits for the calls in progress.
    fn let_go(&self);
    /// Returns a predicate for the processes that the kernel watches, if the engine's kernel side knows each of them.
    fn scope(&self) -> Option<Scope> {
        None
    }
    /// Protects another process of this program from the workload.
    fn protect(&self, pid: Pid);
    /// Waits until the engine ends.
    fn join(self: Box<Self>);
}

/// The engines `notify` and `ptrace`, which hold callers at their calls.
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

    fn settle(&self, deadline: Instant) {
        ebpf::Engine::settle(self, deadline);
    }

    fn scope(&self) -> Option<Scope> {
        ebpf::Engine::scope(self)
    }

    fn let_go(&self) {
        self.stop();
    }

    // No call of the engine's own process is trapped or held, so none could be refused.
    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {
        ebpf::Engine::join(*self);
    }
}

impl<J: Evaluator + 'static> Engine for gvisor::Engine<J> {
    /// Another sandbox may connect at any time.
    fn has_ended(&self) -> bool {
        gvisor::Engine::has_ended(self)
    }

    fn let_go(&self) {
        self.stop();
    }

    // A sandbox cannot reach any process of this program.
    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {
        gvisor::Engine::join(*self);
    }
}

/// Engine without events, which never ends.
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
