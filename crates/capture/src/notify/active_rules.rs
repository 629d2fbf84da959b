//! The loaded rules and what they ask of the engine. Replaced as a whole when rules are reloaded.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::Syscall;
use arc_swap::ArcSwap;
use event::{Comm, Evaluator, Plan, Process, Reason};

use super::Shared;

/// An evaluator and what follows from its plan for calls that are trapped already. The calls that the filter
/// traps, and the state that is kept to evaluate later calls, stay those of the first plan.
pub(crate) struct ActiveRules<J> {
    pub(crate) evaluator: Arc<J>,
    /// By call: true if a rule asks for it.
    pub(crate) evaluated: Vec<bool>,
    /// By call: true if a rule asks for a text among its arguments.
    pub(crate) strings: Vec<bool>,
    /// True if a program's file must be inspected when it starts.
    pub(crate) executable_file: bool,
    /// Command names that rules compare with.
    pub(crate) names: Arc<BTreeSet<Vec<u8>>>,
}

impl<J> ActiveRules<J> {
    pub(crate) fn new(evaluator: Arc<J>, plan: &Plan) -> Self {
        let by_rule = |reason: &Reason| matches!(reason, Reason::Rule(_));
        Self {
            evaluator,
            evaluated: by_call(plan, |call| call.reasons.iter().any(by_rule)),
            strings: by_call(plan, |call| call.strings),
            executable_file: plan.executable_file,
            names: Arc::new(plan.names.clone()),
        }
    }

    /// Returns whether a process named `name` now may pass for another program: a rule compares with that
    /// name, and it is not the one at exec.
    pub(crate) fn is_disguise(&self, process: &Process, name: Comm) -> bool {
        is_disguise(&self.names, process.name(), name)
    }
}

/// Returns whether the present name may make a process pass for another program. `at_exec`: the name at its
/// last exec, if that is known. A name that adds what the process does (`runc:[2:INIT]`, `nginx: worker`) is still
/// that of the program.
pub(crate) fn is_disguise(names: &BTreeSet<Vec<u8>>, at_exec: Option<Comm>, now: Comm) -> bool {
    let is_other = |at_exec: Comm| {
        let rest = now.as_bytes().strip_prefix(at_exec.as_bytes());
        rest.is_none_or(|rest| !rest.is_empty() && !rest.starts_with(b":"))
    };
    at_exec.is_some_and(is_other) && names.contains(now.as_bytes())
}

/// Builds a table of calls, including all variants of each, from the calls of a plan for which `tell` is true.
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

/// Target of a replacement of rules.
pub(crate) trait RulesTarget<J>: Send + Sync {
    /// Replaces the rules.
    fn replace(&self, evaluator: Arc<J>, plan: &Plan, paths: &[Vec<u8>]);
    /// Returns the rules in force.
    fn evaluator(&self) -> Arc<J>;
}

impl<J: Evaluator> RulesTarget<J> for Arc<Shared<J>> {
    fn replace(&self, evaluator: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        self.names.follow(paths, &self.tree.inspector);
        self.ruling
            .store(Arc::new(ActiveRules::new(evaluator, plan)));
        super::tripwire::follow_rules(self, paths);
    }

    fn evaluator(&self) -> Arc<J> {
        Arc::clone(&self.ruling.load().evaluator)
    }
}

/// Replaces the rules of a running engine.
pub struct RulesHandle<J: Evaluator>(Arc<dyn RulesTarget<J>>);

impl<J: Evaluator> RulesHandle<J> {
    pub(crate) fn new(engine: Arc<dyn RulesTarget<J>>) -> Self {
        Self(engine)
    }

    /// Creates a handle on rules without an engine: nothing is evaluated.
    pub fn idle(evaluator: Arc<J>) -> Self
    where
        J: 'static,
    {
        Self(Arc::new(Idle(ArcSwap::new(evaluator))))
    }

    /// Replaces the rules for every event from now on, including calls that are being inspected. The rules
    /// must need nothing that the installed filter does not trap. `paths`: the paths that they name, for the
    /// tripwire.
    pub fn replace(&self, evaluator: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        self.0.replace(evaluator, plan, paths);
    }

    /// Returns the rules in force.
    pub fn evaluator(&self) -> Arc<J> {
        self.0.evaluator()
    }
}

struct Idle<J>(ArcSwap<J>);

impl<J: Evaluator> RulesTarget<J> for Idle<J> {
    fn replace(&self, evaluator: Arc<J>, _plan: &Plan, _paths: &[Vec<u8>]) {
        self.0.store(evaluator);
    }

    fn evaluator(&self) -> Arc<J> {
        self.0.load_full()
    }
}

/// Rules shared by several engines, which may start and end at any time.
pub struct CommonRules<J: Evaluator>(Arc<Several<J>>);

/// The rules in force, with their plan and paths.
pub struct RulesInForce<J> {
    /// Evaluates events.
    pub evaluator: Arc<J>,
    /// Calls that the rules ask for.
    pub plan: Plan,
    /// Paths that the rules name.
    pub paths: Vec<Vec<u8>>,
}

struct Several<J: Evaluator>(Mutex<Members<J>>);

struct Members<J: Evaluator> {
    in_force: Arc<RulesInForce<J>>,
    engines: Vec<(u64, RulesHandle<J>)>,
    /// Number for the next engine.
    next: u64,
}

impl<J: Evaluator + 'static> CommonRules<J> {
    /// Creates common rules that no engine uses yet.
    pub fn new(in_force: RulesInForce<J>) -> Self {
        Self(Arc::new(Several(Mutex::new(Members {
            in_force: Arc::new(in_force),
            engines: Vec::new(),
            next: 0,
        }))))
    }

    /// Returns the rules that an engine is to start with.
    pub fn in_force(&self) -> Arc<RulesInForce<J>> {
        Arc::clone(&self.0.members().in_force)
    }

    /// Adds an engine, which was started with `started_with`. Returns its number.
    pub fn join(&self, engine: RulesHandle<J>, started_with: &Arc<RulesInForce<J>>) -> u64 {
        let mut members = self.0.members();
        let now = &members.in_force;
        if !Arc::ptr_eq(now, started_with) {
            engine.replace(Arc::clone(&now.evaluator), &now.plan, &now.paths);
        }
        let number = members.next;
        members.next += 1;
        members.engines.push((number, engine));
        number
    }

    /// Removes an engine that has ended.
    pub fn leave(&self, number: u64) {
        self.0
            .members()
            .engines
            .retain(|(other, _)| *other != number);
    }

    /// Returns a handle that replaces the rules of all engines.
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
    fn replace(&self, evaluator: Arc<J>, plan: &Plan, paths: &[Vec<u8>]) {
        let mut members = self.members();
        members.in_force = Arc::new(RulesInForce {
            evaluator: Arc::clone(&evaluator),
            plan: plan.clone(),
            paths: paths.to_vec(),
        });
        for (_, engine) in &members.engines {
            engine.replace(Arc::clone(&evaluator), plan, paths);
        }
    }

    fn evaluator(&self) -> Arc<J> {
        Arc::clone(&self.members().in_force.evaluator)
    }
}

impl<J: Evaluator> Clone for RulesHandle<J> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
