//! What the loaded rules ask of the engine. Replaced as a whole when rules are loaded anew.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::Syscall;
use arc_swap::ArcSwap;
use event::{Comm, Evaluator, Plan, Process, Reason};

use super::Shared;

/// A judge and what follows from its plan for calls that are trapped already. What the filter
/// traps, and the state that is kept to judge later calls by, stay those of the first plan.
pub(crate) struct ActiveRules<J> {
    pub(crate) judge: Arc<J>,
    /// By call: whether a rule asks for it.
    pub(crate) judged: Vec<bool>,
    /// By call: whether a rule asks for a text among its arguments.
    pub(crate) strings: Vec<bool>,
    /// Whether the file of a program has to be looked at when it starts.
    pub(crate) executable_file: bool,
    /// Command names that rules compare with.
    pub(crate) names: Arc<BTreeSet<Vec<u8>>>,
}

impl<J> ActiveRules<J> {
    pub(crate) fn new(judge: Arc<J>, plan: &Plan) -> Self {
        let by_rule = |reason: &Reason| matches!(reason, Reason::Rule(_));
        Self {
            judge,
            judged: by_call(plan, |call| call.reasons.iter().any(by_rule)),
            strings: by_call(plan, |call| call.strings),
            executable_file: plan.executable_file,
            names: Arc::new(plan.names.clone()),
        }
    }

    /// Whether a process that has `name` now may pass for another program by it: a rule compares with that
    /// name, and it is not the one at exec.
    pub(crate) fn is_disguise(&self, process: &Process, name: Comm) -> bool {
        is_disguise(&self.names, process.name(), name)
    }
}

/// Whether the present name may make a process pass for another program. `at_exec`: the name at its last
/// exec, if that is known.
pub(crate) fn is_disguise(names: &BTreeSet<Vec<u8>>, at_exec: Option<Comm>, now: Comm) -> bool {
    at_exec.is_some_and(|at_exec| at_exec != now) && names.contains(now.as_bytes())
}

/// A table of calls, with all variants of each, filled for the calls of a plan.
pub(crate) fn by_call(plan: &Plan, tell: impl Fn(&event::CallPlan) -> bool) -> Vec<bool> {
    let mut asked = vec![false; Syscall::all().len()];
    for (syscall, call) in &plan.calls {
        asked[syscall.base().index()] |= tell(call);
    }
    let mut table = vec![false; asked.len()];
    for variant in Syscall::all() {
        table[variant.index()] = asked[variant.base().index()];
    }
    table
}

/// Whatever judges by rules that can be replaced.
pub(crate) trait RulesTarget<J>: Send + Sync {
    /// Judges by other rules from now on.
    fn replace(&self, judge: Arc<J>, plan: &Plan, paths: &[Vec<u8>]);
    /// The rules in force.
    fn judge(&self) -> Arc<J>;
}

impl<J: Evaluator> RulesTarget<J> for Arc<Shared<J>> {
    fn replace(&self, judge: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        self.names.follow(paths, &self.tree.census);
        self.ruling.store(Arc::new(ActiveRules::new(judge, plan)));
        super::tripwire::follow_rules(self, paths);
    }

    fn judge(&self) -> Arc<J> {
        Arc::clone(&self.ruling.load().judge)
    }
}

/// Replaces the rules of a running engine.
pub struct RulesHandle<J: Evaluator>(Arc<dyn RulesTarget<J>>);

impl<J: Evaluator> RulesHandle<J> {
    pub(crate) fn new(engine: Arc<dyn RulesTarget<J>>) -> Self {
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

impl<J: Evaluator> RulesTarget<J> for Idle<J> {
    fn replace(&self, judge: Arc<J>, _plan: &Plan, _paths: &[Vec<u8>]) {
        self.0.store(judge);
    }

    fn judge(&self) -> Arc<J> {
        self.0.load_full()
    }
}

/// Rules by which several engines judge, of which some come and others go.
pub struct CommonRules<J: Evaluator>(Arc<Several<J>>);

/// The rules in force, and what follows from them.
pub struct RulesInForce<J> {
    /// Evaluates events.
    pub judge: Arc<J>,
    /// What the rules ask for.
    pub plan: Plan,
    /// Paths that they name.
    pub paths: Vec<Vec<u8>>,
}

struct Several<J: Evaluator>(Mutex<Members<J>>);

struct Members<J: Evaluator> {
    in_force: Arc<RulesInForce<J>>,
    engines: Vec<(u64, RulesHandle<J>)>,
    /// Number of the next engine.
    next: u64,
}

impl<J: Evaluator + 'static> CommonRules<J> {
    /// Rules by which nobody judges yet.
    pub fn new(in_force: RulesInForce<J>) -> Self {
        Self(Arc::new(Several(Mutex::new(Members {
            in_force: Arc::new(in_force),
            engines: Vec::new(),
            next: 0,
        }))))
    }

    /// The rules that an engine is to start with.
    pub fn in_force(&self) -> Arc<RulesInForce<J>> {
        Arc::clone(&self.0.members().in_force)
    }

    /// Another engine judges by them, which was started with `started_with`. Answers with its number.
    pub fn join(&self, engine: RulesHandle<J>, started_with: &Arc<RulesInForce<J>>) -> u64 {
        let mut members = self.0.members();
        let now = &members.in_force;
        if !Arc::ptr_eq(now, started_with) {
            engine.replace(Arc::clone(&now.judge), &now.plan, &now.paths);
        }
        let number = members.next;
        members.next += 1;
        members.engines.push((number, engine));
        number
    }

    /// An engine has ended.
    pub fn leave(&self, number: u64) {
        self.0
            .members()
            .engines
            .retain(|(other, _)| *other != number);
    }

    /// A handle that replaces the rules of all of them.
    pub fn rulings(&self) -> RulesHandle<J> {
        RulesHandle::new(Arc::clone(&self.0) as Arc<dyn RulesTarget<J>>)
    }
}

impl<J: Evaluator> Several<J> {
    fn members(&self) -> MutexGuard<'_, Members<J>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J: Evaluator> RulesTarget<J> for Several<J> {
    fn replace(&self, judge: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        let mut members = self.members();
        members.in_force = Arc::new(RulesInForce {
            judge: Arc::clone(&judge),
            plan: plan.clone(),
            paths: paths.to_vec(),
        });
        for (_, engine) in &members.engines {
            engine.replace(Arc::clone(&judge), plan, paths);
        }
    }

    fn judge(&self) -> Arc<J> {
        Arc::clone(&self.members().in_force.judge)
    }
}

impl<J: Evaluator> Clone for RulesHandle<J> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
