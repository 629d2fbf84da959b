//! What the loaded rules ask of the engine. Replaced as a whole when rules are loaded anew.

use std::sync::Arc;

use abi::Syscall;
use arc_swap::ArcSwap;
use event::{Judge, Plan, Reason};

use super::Shared;

/// A judge and what follows from its plan for calls that are trapped already. What the filter
/// traps, and the state that is kept to judge later calls by, stay those of the first plan.
pub(crate) struct Ruling<J> {
    pub(crate) judge: Arc<J>,
    /// By call: whether a rule asks for it.
    pub(crate) judged: Vec<bool>,
    /// Whether the file of a program has to be looked at when it starts.
    pub(crate) executable_file: bool,
}

impl<J> Ruling<J> {
    pub(crate) fn new(judge: Arc<J>, plan: &Plan) -> Self {
        let by_rule = |reason: &Reason| matches!(reason, Reason::Rule(_));
        Self {
            judge,
            judged: by_call(plan, |call| call.reasons.iter().any(by_rule)),
            executable_file: plan.executable_file,
        }
    }
}

/// A table of calls, with all variants of each, filled for the calls of a plan.
pub(crate) fn by_call(plan: &Plan, tell: impl Fn(&event::CallPlan) -> bool) -> Vec<bool> {
    let mut table = vec![false; Syscall::all().len()];
    for (syscall, call) in &plan.calls {
        for variant in Syscall::all().filter(|variant| variant.base() == syscall.base()) {
            table[variant.index()] |= tell(call);
        }
    }
    table
}

/// Whatever judges by rules that can be replaced.
pub(crate) trait Ruled<J>: Send + Sync {
    /// Judges by other rules from now on.
    fn replace(&self, judge: Arc<J>, plan: &Plan, paths: &[Vec<u8>]);
    /// The rules in force.
    fn judge(&self) -> Arc<J>;
}

impl<J: Judge> Ruled<J> for Arc<Shared<J>> {
    fn replace(&self, judge: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        self.ruling.store(Arc::new(Ruling::new(judge, plan)));
        super::tripwire::follow_rules(self, paths);
    }

    fn judge(&self) -> Arc<J> {
        Arc::clone(&self.ruling.load().judge)
    }
}

/// Replaces the rules of a running engine.
pub struct Rulings<J: Judge>(Arc<dyn Ruled<J>>);

impl<J: Judge> Rulings<J> {
    pub(crate) fn new(engine: Arc<dyn Ruled<J>>) -> Self {
        Self(engine)
    }

    /// Rules where there is no engine, so that nothing is judged by them.
    pub fn idle(judge: Arc<J>) -> Self
    where
        J: 'static,
    {
        Self(Arc::new(Idle(ArcSwap::new(judge))))
    }

    /// Judges every event from now on by other rules: calls that are being looked at this moment,
    /// too. The rules must need nothing that the installed filter does not trap. `paths`: those that
    /// they name, for the tripwire.
    pub fn replace(&self, judge: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        self.0.replace(judge, plan, paths);
    }

    /// The rules in force.
    pub fn judge(&self) -> Arc<J> {
        self.0.judge()
    }
}

struct Idle<J>(ArcSwap<J>);

impl<J: Judge> Ruled<J> for Idle<J> {
    fn replace(&self, judge: Arc<J>, _plan: &Plan, _paths: &[Vec<u8>]) {
        self.0.store(judge);
    }

    fn judge(&self) -> Arc<J> {
        self.0.load_full()
    }
}

impl<J: Judge> Clone for Rulings<J> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
