//! Rule compiler for `Seccomp`: a filter on system calls.
//!
//! The output is a list of calls with tests on their registers; [`Profile::decide`] defines its meaning.

mod modes;
mod oci;
mod peers;

use std::collections::BTreeSet;
use std::fmt;

use abi::{Errno, RegisterTest, Syscall, TestOp, TestWidth};
use serde_json::{Value, json};

use super::compiler::{Request, RuleCompiler, lines};
use super::machine::{MachineFeatures, NameKind};
use super::part::{Assessment, CompiledPart, lower_rule, supporters};
use crate::enforcer::EnforcerKind;
use crate::operation::Operation;
use crate::policy::{Policy, Rule, RuleAction};
use crate::restriction::{
    AllowedPeer, PtraceScope, Restriction, SocketMatch, SyscallAction, SyscallMatch,
};

/// Action on a system call. Stricter actions compare greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call is made, and inspected after it returns: another enforcer may have denied it.
    Watch,
    /// The call is made and reported.
    Report,
    /// The call fails with this error.
    Refuse(Errno),
    /// The call fails with this error and is reported.
    RefuseAndReport(Errno),
    /// The process receives SIGSYS.
    Trap,
    /// The kernel ends the thread.
    KillThread,
    /// The kernel ends the process.
    KillProcess,
}

impl Action {
    /// Returns true if the action reports the call.
    #[must_use]
    pub fn reports(self) -> bool {
        matches!(self, Self::Report | Self::RefuseAndReport(_))
    }

    /// The error with which the call fails, if the action refuses it.
    #[must_use]
    pub fn errno(self) -> Option<Errno> {
        match self {
            Self::Refuse(errno) | Self::RefuseAndReport(errno) => Some(errno),
            Self::Watch | Self::Report | Self::Trap | Self::KillThread | Self::KillProcess => None,
        }
    }

    /// Returns true if the call is not made.
    #[must_use]
    pub fn denies(self) -> bool {
        !matches!(self, Self::Watch | Self::Report)
    }

    fn rank(self) -> u8 {
        match self {
            Self::Watch => 0,
            Self::Report => 1,
            Self::Refuse(_) => 2,
            Self::RefuseAndReport(_) => 3,
            Self::Trap => 4,
            Self::KillThread => 5,
            Self::KillProcess => 6,
        }
    }

    /// The refusing action for a rule with this action.
    fn refuse(verdict: RuleAction, errno: Errno) -> Option<Self> {
        match verdict {
            RuleAction::Allow => None,
            RuleAction::Audit => Some(Self::Report),
            RuleAction::Deny => Some(Self::Refuse(errno)),
            RuleAction::DenyAudit => Some(Self::RefuseAndReport(errno)),
        }
    }
}

/// One condition under which a call violates a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRule {
    /// Id of the rule; a guard against bypasses of the filter has the name of a mechanism.
    pub rule: String,
    /// The system call. Arguments are in the order of x86-64.
    pub call: Syscall,
    /// Tests on the arguments, all of which must hold.
    pub when: Vec<RegisterTest>,
    /// The action if all tests hold.
    pub action: Action,
}

/// Call rules that refuse io_uring, into which a filter cannot see: creation of a ring, and use of a ring
/// that was created elsewhere.
pub(super) fn without_rings(rule: &str) -> [CallRule; 3] {
    abi::RING_CALLS.map(|call| CallRule {
        rule: rule.to_owned(),
        call,
        when: Vec::new(),
        action: Action::Refuse(Errno::EPERM),
    })
}

/// A filter profile: calls that no rule names are allowed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Call rules in the order of the policy.
    pub rules: Vec<CallRule>,
    /// Set if calls of other architectures (32-bit, x32) fail with EPERM: their arguments differ in meaning,
    /// and some have no registers to test.
    pub refuse_foreign: bool,
    /// The peers to which whoever holds a refused `connect` connects the caller nevertheless.
    pub peers: Option<Vec<AllowedPeer>>,
}

impl Profile {
    /// Compiles the rules of a policy. A profile of the mode `DefenseInDepth` is a rule of its own, unless it is
    /// unknown, which `compile::check` reports.
    #[must_use]
    pub fn compile(policy: &Policy) -> Self {
        let lowered = policy.rules.iter().map(|rule| lower(policy, rule));
        let rules: Vec<CallRule> = lowered.flat_map(|lowered| lowered.entries).collect();
        let mut profile = Self {
            refuse_foreign: rules.iter().any(|rule| rule.action.denies()),
            peers: peers_of(policy),
            rules,
        };
        let by_ring = |rule: &&CallRule| rule.action.denies() && abi::ring_may_do(rule.call);
        if let Some(rule) = profile.rules.iter().find(by_ring) {
            let guard = without_rings(&rule.rule);
            profile.rules.extend(guard);
        }
        profile
    }

    /// The rules on a call.
    pub fn of(&self, call: Syscall) -> impl Iterator<Item = &CallRule> {
        self.rules.iter().filter(move |rule| rule.call == call)
    }

    /// Returns true if the profile neither denies nor reports anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.refuse_foreign
    }

    /// Returns true if a rule reports calls, which needs a listener.
    #[must_use]
    pub fn reports(&self) -> bool {
        let listens = |rule: &CallRule| rule.action.reports() || rule.action == Action::Watch;
        self.rules.iter().any(listens)
    }

    /// The rule that decides a native call: the strictest violated rule, the first among equals.
    #[must_use]
    pub fn decide(&self, call: Syscall, args: &[u64; 6]) -> Option<&CallRule> {
        self.strictest(call, |rule| rule.when.iter().all(|test| test.holds(args)))
    }

    /// The strictest rule on a call for which `holds` returns true, the first among equals.
    pub fn strictest(&self, call: Syscall, holds: impl Fn(&CallRule) -> bool) -> Option<&CallRule> {
        let mut best: Option<&CallRule> = None;
        for rule in self.of(call).filter(|rule| holds(rule)) {
            if best.is_none_or(|best| rule.action.rank() > best.action.rank()) {
                best = Some(rule);
            }
        }
        best
    }
}

/// Returns true if the policy asks for a profile that is not known.
fn is_unknown(policy: &Policy) -> bool {
    let mut profiles = policy.profiles.iter();
    profiles.any(|profile| profile.enforcer == EnforcerKind::Seccomp && !profile.is_known)
}

/// The peers that every list of the policy allows.
fn peers_of(policy: &Policy) -> Option<Vec<AllowedPeer>> {
    let denying = policy.rules.iter().filter(|rule| rule.verdict.denies());
    let mut lists = denying
        .flat_map(|rule| &rule.restrictions)
        .filter_map(|one| match one {
            Restriction::OnlyPeers(peers) => Some(peers),
            _ => None,
        });
    lists.next().cloned()
}

/// Rule compiler for `Seccomp`.
pub(super) struct Compiler;

impl RuleCompiler for Compiler {
    fn assess(&self, request: &Request<'_>, names: Vec<String>) -> Assessment {
        lower(request.policy, request.rule).assess(names, ToString::to_string)
    }

    /// A filter cannot match files.
    fn covers(&self, _kind: NameKind) -> bool {
        true
    }

    fn text(&self, policy: &Policy, _machine: &MachineFeatures) -> String {
        if is_unknown(policy) {
            return "not made\n".to_owned();
        }
        let profile = Profile::compile(policy);
        let foreign = match profile.refuse_foreign {
            true => "calls of other architectures -> EPERM\n",
            false => "",
        };
        format!("{foreign}{}all else -> allow\n", lines(&profile.rules))
    }

    fn json(&self, policy: &Policy, _machine: &MachineFeatures) -> Value {
        if is_unknown(policy) {
            return Value::Null;
        }
        let profile = Profile::compile(policy);
        let rules: Vec<_> = profile.rules.iter().map(oci::call).collect();
        json!({
            "defaultAction": "SCMP_ACT_ALLOW",
            "refuse_other_architectures": profile.refuse_foreign,
            "syscalls": rules,
        })
    }
}

/// Lowers a rule.
#[must_use]
pub fn lower(policy: &Policy, rule: &Rule) -> CompiledPart<CallRule> {
    let mut lowered = lower_rule(rule, EnforcerKind::Seccomp, |restriction| {
        lower_one(policy, rule, restriction)
    });
    let mut denied = lowered.entries.iter().filter(|call| call.action.denies());
    if denied.clone().next().is_some() {
        let by_ring = denied.any(|call| abi::ring_may_do(call.call));
        lowered.breaks.push(FOREIGN_BREAKS.to_owned());
        lowered
            .breaks
            .extend(by_ring.then(|| RING_BREAKS.to_owned()));
    }
    lowered.breaks.extend(missing_calls(&lowered.entries));
    lowered
}

/// What any filter that denies a call stops.
pub(super) const FOREIGN_BREAKS: &str = "calls of other architectures (32-bit, x32)";

/// What a filter stops that denies a call which a ring could make in its place.
pub(super) const RING_BREAKS: &str = "io_uring, which could make the denied calls";

/// The calls that fail as if the kernel did not have them, because a filter cannot see their flags.
fn missing_calls(rules: &[CallRule]) -> Option<String> {
    let missing = rules
        .iter()
        .filter(|rule| rule.action == Action::Refuse(Errno::ENOSYS));
    let names: BTreeSet<String> = missing.map(|rule| format!("{}(2)", rule.call)).collect();
    let names: Vec<_> = names.into_iter().collect();
    let text = "with ENOSYS, so that callers take an older call";
    (!names.is_empty()).then(|| format!("{}: fails {text}", names.join(", ")))
}

const IN_MEMORY: &str = "is in memory, where a filter cannot look";

fn lower_one(policy: &Policy, rule: &Rule, restriction: &Restriction) -> CompiledPart<CallRule> {
    match restriction {
        Restriction::File { .. } | Restriction::Exec { .. } | Restriction::Disk { .. } => {
            CompiledPart::missing(format!("the path of a file {IN_MEMORY}"))
        }
        Restriction::Connect { .. } => {
            CompiledPart::missing(format!("the path of a socket {IN_MEMORY}"))
        }
        Restriction::Egress { .. } => CompiledPart::missing(format!("an address {IN_MEMORY}")),
        Restriction::Mount(_) => CompiledPart::missing(format!(
            "what is mounted {IN_MEMORY}; disallow-mount denies all mounts"
        )),
        Restriction::Ptrace { access, scope } => match scope {
            PtraceScope::Any if access.trace || access.read => {
                CompiledPart::many(trace_calls(rule))
                    .gap("the files of /proc/PID are opened by path, which a filter cannot see")
            }
            PtraceScope::Any => {
                CompiledPart::missing("a filter on the tracer's side would be needed")
            }
            PtraceScope::Outside => {
                CompiledPart::missing("a filter cannot determine the owner of a PID")
            }
        },
        Restriction::Capabilities(_) => lower_capabilities(policy, rule),
        Restriction::Socket(socket) => CompiledPart::many(sockets(rule, socket)),
        Restriction::Mode { bits } => CompiledPart::many(modes::lower(rule, *bits)),
        Restriction::Operation(operation) => lower_operation(rule, operation),
        Restriction::Syscall(syscall) => CompiledPart::many(syscalls(rule, syscall)),
        Restriction::InsideConnections => CompiledPart::missing(super::part::NEEDS_PROXY),
        Restriction::OnlyFiles(_) => CompiledPart::missing(supporters(restriction)),
        Restriction::OnlyPeers(peers) => peers::lower(rule, peers),
        Restriction::AppArmorText(_) => {
            CompiledPart::missing("the rule is in the language of AppArmor")
        }
    }
}

fn refused(rule: &Rule, call: Syscall, when: Vec<RegisterTest>, errno: Errno) -> Option<CallRule> {
    Some(CallRule {
        rule: rule.id.clone(),
        call,
        when,
        action: Action::refuse(rule.verdict, errno)?,
    })
}

/// Lowers a rule on capabilities: a filter cannot drop them, but it keeps processes from regaining them.
fn lower_capabilities(policy: &Policy, rule: &Rule) -> CompiledPart<CallRule> {
    let reason = "a filter cannot check capabilities";
    if !policy.enforcers.contains(EnforcerKind::Caps) || !rule.verdict.denies() {
        return CompiledPart::missing(reason);
    }
    let namespaces = Operation::find("user-namespace").expect("the table of operations has it");
    let mut lowered = lower_operation(rule, namespaces).breaks("new user namespaces");
    lowered.add(CompiledPart::missing(format!(
        "{reason}; a new user namespace would restore what Caps drops, so it is denied"
    )));
    lowered
}

fn lower_operation(rule: &Rule, operation: &Operation) -> CompiledPart<CallRule> {
    let enforcer = EnforcerKind::Seccomp;
    if let Some(reason) = operation.none.get(&enforcer) {
        return CompiledPart::missing(reason.clone());
    }
    let calls = operation
        .calls
        .iter()
        .filter_map(|entry| match entry.diverted {
            // A caller that falls back to another call has violated nothing, and is not reported.
            Some(errno) => rule.verdict.denies().then(|| CallRule {
                rule: rule.id.clone(),
                call: entry.call,
                when: entry.tests.clone(),
                action: Action::Refuse(errno),
            }),
            None => refused(rule, entry.call, entry.tests.clone(), Errno::EPERM),
        });
    let unseen = operation.ways.iter().map(|way| way.text.clone());
    let others = operation.calls.iter().filter(|entry| !entry.is_way);
    let others: BTreeSet<_> = others.map(|entry| entry.call).collect();
    let others = others.into_iter().filter(|_| rule.verdict.denies());
    CompiledPart {
        gaps: unseen.chain(operation.weak(enforcer)).collect(),
        breaks: others
            .map(|call| format!("{call}(2) with arguments that could be about it"))
            .collect(),
        ..CompiledPart::many(calls)
    }
}

/// Calls that inspect or change other processes: the class `trace` of data/classes.txt.
const TRACES: [Syscall; 10] = [
    Syscall::PTRACE,
    Syscall::PROCESS_VM_READV,
    Syscall::PROCESS_VM_WRITEV,
    Syscall::PIDFD_GETFD,
    Syscall::KCMP,
    Syscall::PROCESS_MADVISE,
    Syscall::GET_ROBUST_LIST,
    Syscall::MOVE_PAGES,
    Syscall::MIGRATE_PAGES,
    Syscall::PERF_EVENT_OPEN,
];

fn trace_calls(rule: &Rule) -> Vec<CallRule> {
    let each = TRACES.into_iter();
    each.filter_map(|call| refused(rule, call, Vec::new(), Errno::EPERM))
        .collect()
}

/// Mask of the socket type, which shares its register with flags (`SOCK_TYPE_MASK`, include/linux/net.h).
const TYPE_MASK: u64 = 0xf;

fn sockets(rule: &Rule, socket: &SocketMatch) -> Vec<CallRule> {
    let options = |list: &Option<Vec<u16>>, test: &dyn Fn(u64) -> RegisterTest| match list {
        None => vec![None],
        Some(list) => list.iter().map(|n| Some(test(u64::from(*n)))).collect(),
    };
    let domains = options(&socket.domains, &|n| RegisterTest::low(0, TestOp::Eq, n));
    let types = options(&socket.types, &|n| {
        RegisterTest::low(1, TestOp::MaskedEq { mask: TYPE_MASK }, n)
    });
    let protocols = options(&socket.protocols, &|n| RegisterTest::low(2, TestOp::Eq, n));
    let mut rules = Vec::new();
    for call in [Syscall::SOCKET, Syscall::SOCKETPAIR] {
        for domain in &domains {
            for kind in &types {
                for protocol in &protocols {
                    let when = [domain, kind, protocol]
                        .into_iter()
                        .copied()
                        .flatten()
                        .collect();
                    rules.extend(refused(rule, call, when, Errno::EPERM));
                }
            }
        }
    }
    rules
}

fn syscalls(rule: &Rule, syscall: &SyscallMatch) -> Vec<CallRule> {
    let denied = |action: Action| match rule.verdict {
        RuleAction::Allow => None,
        RuleAction::Audit => Some(Action::Report),
        RuleAction::Deny | RuleAction::DenyAudit => Some(action),
    };
    let action = match syscall.action {
        SyscallAction::Errno(errno) => Action::refuse(rule.verdict, errno),
        SyscallAction::Trap => denied(Action::Trap),
        SyscallAction::KillThread => denied(Action::KillThread),
        SyscallAction::KillProcess => denied(Action::KillProcess),
        SyscallAction::Log => Some(Action::Report),
        // Allow rules belong to an allow profile, which does not consist of rules.
        SyscallAction::Allow => None,
    };
    let Some(action) = action else {
        return Vec::new();
    };
    let groups = syscall.any_of.iter().cloned();
    groups
        .map(|when| CallRule {
            rule: rule.id.clone(),
            call: syscall.call,
            when,
            action,
        })
        .collect()
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |errno: Errno| {
            errno
                .name()
                .map_or_else(|| errno.0.to_string(), str::to_owned)
        };
        match self {
            Self::Watch => f.write_str("watch"),
            Self::Report => f.write_str("report"),
            Self::Refuse(errno) => f.write_str(&name(*errno)),
            Self::RefuseAndReport(errno) => write!(f, "{} and report", name(*errno)),
            Self::Trap => f.write_str("SIGSYS"),
            Self::KillThread => f.write_str("kill the thread"),
            Self::KillProcess => f.write_str("kill the process"),
        }
    }
}

/// Formats `call(argument test, ...) -> action`.
impl fmt::Display for CallRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.call)?;
        for (at, test) in self.when.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            let spec = self.call.args().get(usize::from(test.arg));
            let name = spec.map_or_else(|| format!("arg{}", test.arg), |arg| arg.name.to_owned());
            let value = test.value;
            let wide = match test.width {
                TestWidth::Full64 => ":64",
                TestWidth::Low32 => "",
            };
            let text = match test.op {
                TestOp::AllBits => format!("{name}{wide} & {value:#x} == {value:#x}"),
                TestOp::AnyBit => format!("{name}{wide} & {value:#x}"),
                TestOp::Eq => format!("{name}{wide} == {value}"),
                TestOp::Ge => format!("{name}{wide} >= {value}"),
                TestOp::Le => format!("{name}{wide} <= {value}"),
                TestOp::MaskedEq { mask } => format!("{name}{wide} & {mask:#x} == {value:#x}"),
                TestOp::Ne => format!("{name}{wide} != {value}"),
                TestOp::NoBit => format!("{name}{wide} & {value:#x} == 0"),
            };
            write!(f, "{separator}{text}")?;
        }
        write!(f, ") -> {}", self.action)
    }
}
