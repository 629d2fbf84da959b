//! Compilation of rules for each enforcer, and the grade of the result.

pub mod apparmor;
pub mod bpf;
pub mod caps;
#[cfg(test)]
mod classes;
mod compiler;
pub mod denial_classifier;
pub mod landlock;
mod landlock_grants;
mod landlock_rights;
mod looser;
mod machine;
mod narrow;
mod part;
pub mod portable;
pub mod process_files;
pub mod seccomp;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};

use abi::constant::CLONE_NEWNS;
use abi::{Capabilities, Syscall};
use yaml::Location;

use self::compiler::{Request, RuleCompiler};
pub use self::machine::{MachineFeatures, NameKind, OtherName, Unavailable};
pub use self::narrow::NarrowedPolicy;
pub use self::part::{Assessment, CompiledPart, Grade};
use crate::builtin::{self, Builtin};
use crate::diagnostic::{Code, Diagnostic};
use crate::enforcer::{EnforcerKind, Enforcers};
use crate::policy::{Mode, Policy, Profile, Rule, RuleAction, RuleOrigin};
use crate::restriction::{Destination, Restriction};

/// Returns true if the workload can enter a foreign mount namespace: with CAP_SYS_ADMIN, by setns(2).
fn enters_namespaces(policy: &Policy, machine: &MachineFeatures) -> bool {
    let number = abi::capability::from_name("sys_admin");
    let has = |set: Capabilities| number.is_none_or(|number| set.contains(number));
    let chosen = |enforcer| policy.enforcers.contains(enforcer);
    let dropped = chosen(EnforcerKind::Caps) && has(caps::Profile::compile(policy).dropped);
    let refused = || {
        let calls = seccomp::Profile::compile(policy);
        let rule = calls.decide(Syscall::SETNS, &[0, CLONE_NEWNS.u64(), 0, 0, 0, 0]);
        chosen(EnforcerKind::Seccomp) && rule.is_some_and(|rule| rule.action.denies())
    };
    machine.held.is_none_or(has) && !dropped && !refused()
}

/// Returns true if an enforcer of the policy denies every mount.
fn denies_mounts(policy: &Policy, machine: &MachineFeatures) -> bool {
    let is_mount = |restriction: &Restriction| matches!(restriction, Restriction::Operation(operation) if operation.name == "mount");
    let mut rules = policy.rules.iter();
    rules.any(|rule| {
        let is_full = |enforcer| assess(policy, rule, enforcer, machine).grade == Grade::Full;
        let denies = rule.verdict.denies() && rule.targets.is_empty();
        denies && rule.restrictions.iter().all(is_mount) && policy.enforcers.iter().any(is_full)
    })
}

/// Returns true if an allow profile is not among these: another text, or a further one of its enforcer.
fn other_profile(profiles: &[Profile], profile: &Profile) -> bool {
    let of_enforcer = profiles.iter().filter(|it| it.enforcer == profile.enforcer);
    let texts: Vec<_> = of_enforcer.map(|it| (it.is_known, &it.text)).collect();
    texts != [(true, &profile.text)]
}

/// The rule compiler of each enforcer.
fn compiler(enforcer: EnforcerKind) -> &'static dyn RuleCompiler {
    match enforcer {
        EnforcerKind::Seccomp => &seccomp::Compiler,
        EnforcerKind::Landlock => &landlock::Compiler,
        EnforcerKind::Caps => &caps::Compiler,
        EnforcerKind::AppArmor => &apparmor::Compiler,
        EnforcerKind::Bpf => &bpf::Compiler,
    }
}

/// Assesses an enforcer for one rule of a policy.
pub(crate) fn assess(
    policy: &Policy,
    rule: &Rule,
    enforcer: EnforcerKind,
    machine: &MachineFeatures,
) -> Assessment {
    let request = Request {
        policy,
        rule,
        machine,
    };
    let names = other_names(&request, enforcer);
    compiler(enforcer).assess(&request, names)
}

/// Further names of a rule's files that bypass an enforcer.
fn other_names(request: &Request<'_>, enforcer: EnforcerKind) -> Vec<String> {
    let Request {
        policy,
        rule,
        machine,
    } = *request;
    let compiler = compiler(enforcer);
    let is_covered = |kind: NameKind| {
        compiler.covers(kind) || kind == NameKind::Namespace && !enters_namespaces(policy, machine)
    };
    let known = machine.other_names.get(&rule.id).into_iter().flatten();
    let open = known.filter(|name| !is_covered(name.kind));
    let mut names: Vec<String> = open.map(|name| name.text.clone()).collect();
    names.extend(compiler.possible_names(request));
    names
}

/// Assesses an enforcer for a built-in rule, assuming that every enforcer works and that violations are
/// denied.
#[must_use]
pub fn assess_builtin(
    builtin: &'static Builtin,
    enforcer: EnforcerKind,
    machine: &MachineFeatures,
) -> Assessment {
    let (policy, rule) = alone(builtin, Enforcers::ALL);
    assess(&policy, &rule, enforcer, machine)
}

/// Builds a policy for `enforcers` with one built-in rule, and returns both.
pub(crate) fn alone(builtin: &'static Builtin, enforcers: Enforcers) -> (Policy, Rule) {
    let location = Location {
        file: "built in".into(),
        line: 0,
        column: 0,
    };
    let rule = Rule {
        id: builtin.name.clone(),
        origin: RuleOrigin::Builtin(builtin),
        location: location.clone(),
        verdict: RuleAction::Deny,
        restrictions: builtin.restrictions.clone(),
        targets: Vec::new(),
        left_to: BTreeMap::new(),
    };
    let policy = Policy {
        name: builtin.name.clone(),
        location,
        mode: Mode::EnhanceProtect,
        enforcers,
        privileged: true,
        rules: Vec::new(),
        accepted: Vec::new(),
        modeling_minutes: None,
        profiles: Vec::new(),
    };
    (policy, rule)
}

/// [`NarrowedPolicy::check`]
fn check(policy: &NarrowedPolicy, accepted: &[String]) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let accepted: Vec<String> = accepted.iter().map(|name| canonical(name)).collect();
    let by_policy = policy.accepted.iter().map(|(name, _)| canonical(name));
    let by_policy: Vec<String> = by_policy.collect();
    let profiles = policy.profiles.iter();
    diagnostics.extend(profiles.filter_map(|profile| check_profile(policy, profile)));
    for rule in &policy.rules {
        // The defaults of runtimes differ by enforcer, and the policy asks for no more than those.
        let is_base = matches!(rule.origin, RuleOrigin::Base(_));
        // Raw rules of an allow profile belong to that profile.
        let in_profile =
            policy.mode == Mode::DefenseInDepth && !rule.id.starts_with("networkProxy");
        if is_base || rule.verdict == RuleAction::Allow || in_profile {
            continue;
        }
        let is_accepted = accepted.contains(&rule.id);
        let problem = check_rule(policy, rule)
            .filter(|problem| problem.code != Code::Partial || !by_policy.contains(&rule.id));
        diagnostics.extend(problem.map(|problem| match is_accepted {
            false => problem,
            true => Diagnostic {
                help: None,
                ..Diagnostic::new(Code::Accepted, problem.location, problem.message)
            },
        }));
    }
    let places = policy.accepted.iter().map(|(_, place)| place);
    let unplaced = accepted.iter().map(|name| (name, &policy.location));
    for (name, place) in by_policy.iter().zip(places).chain(unplaced) {
        if !policy.rules.iter().any(|rule| rule.id == *name) {
            let message = format!("cannot accept less for `{name}`: the policy has no such rule");
            diagnostics.push(Diagnostic::new(Code::NotAccepted, place.clone(), message));
        }
    }
    diagnostics
}

/// Returns the name of a built-in rule for one of its aliases; other names as they are.
fn canonical(name: &str) -> String {
    builtin::find(name).map_or_else(|| name.to_owned(), |builtin| builtin.name.clone())
}

/// [`NarrowedPolicy::partial_rules`]
fn partial_rules(policy: &NarrowedPolicy) -> BTreeSet<String> {
    let problem = |rule: &&Rule| check_rule(policy, rule);
    let is_base = |rule: &&Rule| matches!(rule.origin, RuleOrigin::Base(_));
    let rules = policy.rules.iter().filter(|rule| !is_base(rule));
    let partial = rules.filter(|rule| problem(rule).is_some_and(|p| p.code == Code::Partial));
    partial.map(|rule| rule.id.clone()).collect()
}

/// Formats rules as a value of `acceptPartial`.
#[must_use]
pub fn accept_list(rules: &BTreeSet<String>) -> String {
    let quoted = rules.iter().map(|rule| match rule.contains('[') {
        true => format!("\"{rule}\""),
        false => rule.clone(),
    });
    format!("[{}]", quoted.collect::<Vec<_>>().join(", "))
}

/// Checks an allow profile: it must be known, and its enforcer must work.
fn check_profile(policy: &NarrowedPolicy, profile: &Profile) -> Option<Diagnostic> {
    let kind = profile.enforcer;
    let lacking = policy.machine().lacks(kind);
    let (reason, help) = match lacking {
        None if profile.is_known => return None,
        None => (
            "the file has no recording of it".to_owned(),
            "add the ArmorProfileModel to the file as a document of its own; or record CMD by `tollgate learn -o \
             POLICY.yaml -- CMD`, which writes what it does as rules of `mode: EnhanceProtect`",
        ),
        Some(lacking) => (
            format!("it cannot be used here: {}", lacking.why),
            "`tollgate doctor` shows which enforcers work here",
        ),
    };
    let message = format!("cannot make the profile for {kind}: {reason}");
    let problem = Diagnostic::new(Code::NoEnforcer, profile.location.clone(), message);
    Some(problem.with_help(help))
}

fn check_rule(policy: &NarrowedPolicy, rule: &Rule) -> Option<Diagnostic> {
    let machine = policy.machine();
    let at = || rule.location.clone();
    if !rule.targets.is_empty() && !policy.enforcers.contains(EnforcerKind::AppArmor) {
        return Some(ignored_targets(policy, rule, machine));
    }
    let chosen: Vec<_> = policy
        .enforcers
        .iter()
        .map(|enforcer| (enforcer, policy.assess(rule, enforcer)))
        .collect();
    let best = chosen
        .iter()
        .map(|(_, a)| a.grade)
        .max()
        .unwrap_or(Grade::None);
    if best == Grade::Full {
        return None;
    }
    let best_of: Vec<_> = chosen
        .iter()
        .filter(|(_, assessment)| assessment.grade == best)
        .map(|(enforcer, a)| (*enforcer, a.notes.join("; ")))
        .collect();
    let (code, message) = match best {
        Grade::None => (
            Code::NoEnforcer,
            not_enforced(&rule.id, &best_of, &machine.unavailable),
        ),
        _ => (Code::Partial, only_partially(&rule.id, &best_of)),
    };
    Some(Diagnostic::new(code, at(), message).with_help(help(policy, rule, best, machine)))
}

/// The message for a rule that no chosen enforcer supports, with each enforcer's reason.
fn not_enforced(
    rule: &str,
    reasons: &[(EnforcerKind, String)],
    unavailable: &[Unavailable],
) -> String {
    let reasons = reasons
        .iter()
        .map(|(enforcer, reason)| format!("{enforcer}: {reason}"));
    let all: Vec<_> = reasons
        .chain(unavailable.iter().map(ToString::to_string))
        .collect();
    format!("cannot enforce `{rule}`: {}", all.join(". "))
}

/// The message for a rule that the best chosen enforcers enforce partially, with the gaps of each.
fn only_partially(rule: &str, gaps: &[(EnforcerKind, String)]) -> String {
    let [(enforcer, gaps)] = gaps else {
        let names: Vec<_> = gaps.iter().map(|(name, _)| name.to_string()).collect();
        let each: Vec<_> = gaps
            .iter()
            .map(|(enforcer, gaps)| format!("Gaps of {enforcer}: {gaps}"))
            .collect();
        return format!(
            "{} enforce `{rule}` only partially. {}",
            names.join(" and "),
            each.join(". ")
        );
    };
    format!("{enforcer} enforces `{rule}` only partially. Gaps: {gaps}")
}

fn ignored_targets(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> Diagnostic {
    let is_for = format!("`{}` is for single programs (targets), which", rule.id);
    let (message, help) = match machine.lacks(EnforcerKind::AppArmor) {
        None => (
            format!("{is_for} {} ignores", policy.enforcers),
            "add AppArmor to `enforcer`, or remove the targets",
        ),
        Some(lacking) => (
            format!("{is_for} needs {lacking}"),
            "enable AppArmor, or remove the targets",
        ),
    };
    Diagnostic::new(Code::TargetsIgnored, rule.location.clone(), message).with_help(help)
}

/// Returns true for traffic to an address that only a Kubernetes cluster knows.
fn is_in_cluster(restriction: &Restriction) -> bool {
    match restriction {
        Restriction::Egress { to, .. } => !matches!(to, Destination::Network(_)),
        _ => false,
    }
}

/// The help text: enforcers with a better grade, and the way to accept less.
fn help(policy: &Policy, rule: &Rule, best: Grade, machine: &MachineFeatures) -> String {
    let others = EnforcerKind::ALL
        .into_iter()
        .filter(|e| !policy.enforcers.contains(*e) && machine.lacks(*e).is_none());
    let better: Vec<String> = others
        .map(|enforcer| {
            let with = Policy {
                enforcers: policy.enforcers.with(enforcer),
                ..policy.clone()
            };
            (enforcer, assess(&with, rule, enforcer, machine).grade)
        })
        .filter(|(_, grade)| *grade > best)
        .map(|(enforcer, grade)| format!("{enforcer} ({grade})"))
        .collect();
    let hint = match rule.restrictions.iter().any(is_in_cluster) {
        true => {
            "toServices, toPods and pod-self work only where an agent asks the API of a Kubernetes cluster; \
                 outside of one write their addresses under `toDestinations`, or "
        }
        false => "",
    };
    let accept = format!(
        "{hint}accept it: --accept-partial {0}, or `acceptPartial: [{0}]` in the policy",
        rule.id
    );
    match better.is_empty() {
        true => accept,
        false => format!("add to `enforcer`: {}; or {accept}", better.join(", ")),
    }
}
