//! Derivation of the interest plan from rules: the calls that matter, and the register arguments they matter
//! with.
//!
//! For each call, the conditions that can match its kind of event are projected onto its registers; parts
//! that registers cannot decide count as true. So the plan may let too much through, never too little. The
//! always-trapped security calls, and the calls that engines keep state by, are added.

mod coverage;
mod explain;
mod groups;
mod interest;
mod register;
mod stdio;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use abi::Syscall;
use event::{CallPlan, EventKind, Interest, Need, Plan, Reason, Stage, StdioWatch};

use self::register::Groups;
use crate::compile::program::{Entry, Node, NodeId, Program};
use crate::diagnostic::{Code, Diagnostic};
use crate::engine::Engine;

pub use self::coverage::UncoveredRule;
pub use self::explain::{CallExplanation, Explanation, RuleExplanation};
pub use self::groups::MAX_GROUPS;

/// Cost of one more trapped call with seccomp user notification, in nanoseconds (measured: round trip without
/// a change of CPU).
pub const NOTIFY_COST_NS: u64 = 2_500;

/// Calls that ordinary programs make so often that trapping each is noticeable: rules that need every call of
/// one cause a warning.
pub const HOT_CALLS: &[Syscall] = &[
    Syscall::BRK,
    Syscall::CLOCK_GETTIME,
    Syscall::CLOSE,
    Syscall::DUP,
    Syscall::EPOLL_CTL,
    Syscall::EPOLL_PWAIT,
    Syscall::EPOLL_WAIT,
    Syscall::FCNTL,
    Syscall::FSTAT,
    Syscall::FUTEX,
    Syscall::GETDENTS64,
    Syscall::GETPID,
    Syscall::GETTIMEOFDAY,
    Syscall::IOCTL,
    Syscall::LSEEK,
    Syscall::LSTAT,
    Syscall::MADVISE,
    Syscall::MMAP,
    Syscall::MPROTECT,
    Syscall::MUNMAP,
    Syscall::NEWFSTATAT,
    Syscall::POLL,
    Syscall::PREAD64,
    Syscall::PWRITE64,
    Syscall::READ,
    Syscall::READLINK,
    Syscall::READV,
    Syscall::RECVFROM,
    Syscall::RECVMSG,
    Syscall::RT_SIGACTION,
    Syscall::RT_SIGPROCMASK,
    Syscall::SENDTO,
    Syscall::STAT,
    Syscall::STATX,
    Syscall::WRITE,
    Syscall::WRITEV,
];

/// Calls that only some programs make often. A rule about datagrams needs each of them, because the address
/// is in memory: this causes a note, not a warning at each start.
pub const BUSY_CALLS: &[Syscall] = &[Syscall::SENDMMSG, Syscall::SENDMSG];

impl Engine {
    /// Returns the plan for the rules, the always-trapped security calls and the calls that engines keep
    /// state by, with warnings about rules that make it expensive.
    #[must_use]
    pub fn plan(&self) -> (Plan, Vec<Diagnostic>) {
        let mut planner = Planner::new(self);
        planner.rules();
        planner.watch_stdio();
        planner.traps(abi::FLOOR, Reason::Floor);
        planner.traps(abi::STATE, Reason::State);
        planner.finish()
    }

    /// Returns the part of [`Engine::plan`] that the rules alone need, as the basis for a cost estimate of
    /// the rules.
    #[must_use]
    pub fn plan_for_rules(&self) -> (Plan, Vec<Diagnostic>) {
        let mut planner = Planner::new(self);
        planner.rules();
        planner.watch_stdio();
        planner.finish()
    }

    /// Returns the plan for an engine that sees the result of every call: without the calls after which `dup`
    /// can create a standard descriptor. One of them is `socket`, which a port scanner calls as often as
    /// `connect`.
    #[must_use]
    pub fn plan_for_results(&self) -> Plan {
        let mut planner = Planner::new(self);
        planner.rules();
        planner.finish().0
    }
}

struct Planner<'a> {
    engine: &'a Engine,
    plan: Plan,
    /// Hot calls by rule of which the rule needs every call.
    hot: BTreeMap<usize, BTreeSet<Syscall>>,
}

impl<'a> Planner<'a> {
    fn new(engine: &'a Engine) -> Self {
        Self {
            engine,
            plan: Plan::default(),
            hot: BTreeMap::new(),
        }
    }

    fn rules(&mut self) {
        for call in Syscall::all() {
            self.rules_of(call);
        }
        for kind in EventKind::all() {
            self.facts_of(kind);
        }
    }

    fn finish(mut self) -> (Plan, Vec<Diagnostic>) {
        for planned in self.plan.calls.values_mut() {
            planned.any_of = groups::simplify(std::mem::take(&mut planned.any_of));
            planned.reasons.sort();
            planned.reasons.dedup();
        }
        let warnings = self.warnings();
        (self.plan, warnings)
    }

    /// Plans a call for the rules that can match it.
    fn rules_of(&mut self, call: Syscall) {
        let kind = EventKind::of_syscall(call);
        let program = &self.engine.program;
        let entries = &program.kind(kind).entries;
        for entry in entries {
            let any_of = match entry.root {
                Some(root) => project(program, root, kind, call),
                None => register::always(),
            };
            // The registers exclude the condition.
            if any_of.is_empty() {
                continue;
            }
            if call == Syscall::DUP
                && let Some(watch) = stdio::watch(program, entry, kind)
            {
                self.plan.stdio = self.plan.stdio.max(watch);
                // The interest is for engines that see every call anyway.
                let interest = interest::interest(program, entry.root, kind, any_of);
                self.plan.interests.entry(call).or_default().push(interest);
                continue;
            }
            if any_of.iter().any(Vec::is_empty) && HOT_CALLS.contains(&call) {
                self.hot.entry(entry.rule).or_default().insert(call);
            }
            let interest = interest::interest(program, entry.root, kind, any_of.clone());
            self.plan.interests.entry(call).or_default().push(interest);
            let stages = stages(program, entry, kind);
            self.plan.executable_file |= entry.asks.executable_file && !kind.changes().image;
            let planned = self.call(call);
            planned.any_of.extend(any_of);
            planned.strings |= stages.strings;
            planned.result = planned.result.max(stages.result);
            let name = self.engine.rules[entry.rule].name.to_string();
            self.call(call).reasons.push(Reason::Rule(name));
        }
    }

    /// Records the facts that rules use at events of a kind and that may be gone when the event is evaluated.
    fn facts_of(&mut self, kind: EventKind) {
        for entry in &self.engine.program.kind(kind).entries {
            self.plan.environment |= entry.asks.environment;
            if entry.asks.descriptors {
                self.plan.descriptors.insert(kind);
            }
            if let Some(root) = entry.root {
                let names = interest::compared_names(&self.engine.program, root);
                self.plan.names.extend(names);
            }
        }
    }

    /// Plans the calls after which `dup` can create a standard descriptor.
    fn watch_stdio(&mut self) {
        let sockets = match self.plan.stdio {
            StdioWatch::Off => return,
            StdioWatch::Sockets => stdio::SOCKETS,
            StdioWatch::Any => &[],
        };
        self.traps(stdio::CLOSING, Reason::State);
        self.traps(sockets, Reason::State);
    }

    fn traps(&mut self, traps: &[abi::TrappedCall], reason: fn(Cow<'static, str>) -> Reason) {
        for trap in traps {
            let changes_image = EventKind::of_syscall(trap.call).changes().image;
            let planned = self.call(trap.call);
            if trap.any_of.is_empty() {
                planned.any_of.push(Vec::new());
            }
            let groups = trap.any_of.iter().map(|group| group.to_vec());
            planned.any_of.extend(groups.clone());
            // A trapped call is needed whatever its path and result.
            let any_of: Vec<_> = groups.collect();
            let interest = Interest::in_any(if any_of.is_empty() {
                register::always()
            } else {
                any_of
            });
            planned.reasons.push(reason(trap.reason.into()));
            if changes_image {
                planned.result = Need::Always;
            }
            let interests = self.plan.interests.entry(trap.call);
            interests.or_default().push(interest);
        }
    }

    fn call(&mut self, call: Syscall) -> &mut CallPlan {
        self.plan.calls.entry(call).or_insert_with(|| CallPlan {
            any_of: Vec::new(),
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        })
    }

    fn warnings(&self) -> Vec<Diagnostic> {
        let warn = |(rule, calls): (&usize, &BTreeSet<Syscall>)| {
            let rule = &self.engine.rules[*rule];
            let names: Vec<&str> = calls.iter().map(|call| call.name()).collect();
            let message = format!("expensive: {}", explain::every(&names.join(", ")));
            Diagnostic::new(Code::DoubtfulCondition, rule.location.clone(), message)
                .in_item(format!("rule {}", rule.name))
                .with_help("restrict the rule to rarer calls or to arguments passed in registers")
        };
        self.hot.iter().map(warn).collect()
    }
}

/// Projects a condition onto the registers of a call.
fn project(program: &Program, root: NodeId, kind: EventKind, call: Syscall) -> Groups {
    match program.node(root) {
        Node::Literal { atom, negated } => {
            let atom = program.atoms.get(atom);
            let field = program.operands.as_field(atom.key.operand);
            groups::bounded(register::project(atom, field, negated, kind, call))
        }
        Node::All { children, .. } => {
            let children = program.children(children).iter();
            children.fold(register::always(), |all, child| {
                // A false operand makes the conjunction false.
                if all.is_empty() {
                    all
                } else {
                    groups::and(all, project(program, *child, kind, call))
                }
            })
        }
        Node::Any { children, .. } => {
            let children = program.children(children).iter();
            children.fold(Groups::new(), |any, child| {
                // A true operand makes the disjunction true.
                if any.iter().any(Vec::is_empty) {
                    return any;
                }
                groups::or(any, project(program, *child, kind, call))
            })
        }
    }
}

struct Stages {
    strings: bool,
    result: Need,
}

/// Returns how much of an event a rule may need.
fn stages(program: &Program, entry: &Entry, kind: EventKind) -> Stages {
    let (mut strings, mut exit) = (false, entry.output_stage == Stage::Exit);
    if let Some(root) = entry.root {
        program.each_atom(root, &mut |atom| {
            let stage = program.atom_stage(atom, kind);
            strings |= stage == Stage::Strings;
            exit |= stage == Stage::Exit;
        });
    }
    let result = match (kind.changes().image, exit) {
        (true, _) => Need::Always,
        (false, true) => Need::IfUndecided,
        (false, false) => Need::Never,
    };
    Stages { strings, result }
}
