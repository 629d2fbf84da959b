//! Rules to what enforcers take, and how good that is.

pub mod apparmor;
pub mod bpf;
pub mod caps;
#[cfg(test)]
mod classes;
mod compiler;
pub mod denial_classifier;
pub mod landlock;
pub mod seccomp;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abi::constant::CLONE_NEWNS;
use abi::{Capabilities, Syscall};
use serde_json::Value;
use yaml::Location;

use self::compiler::RuleCompiler;
use crate::builtin::{self, Builtin};
use crate::diagnostic::{Code, Diagnostic};
use crate::enforcer::{EnforcerKind, Enforcers};
use crate::policy::{Mode, Policy, Profile, Rule, RuleAction, RuleOrigin};
use crate::restriction::Restriction;

/// What the caller has found out about the machine.
#[derive(Clone, Debug, Default)]
pub struct MachineFeatures {
    /// Names of disks and their partitions, as `/proc/partitions` has them.
    pub disks: Vec<String>,
    /// Whether calls can be watched for denials that the kernel tells nobody of.
    pub watches: bool,
    /// The capabilities that the command would have; `None`: nobody knows.
    pub held: Option<Capabilities>,
    /// Whether it has them because it is root.
    pub is_root: bool,
    /// Enforcers that were asked for and cannot be used there.
    pub unavailable: Vec<Unavailable>,
    /// Other names that the files of a rule have there, by rule.
    pub other_names: BTreeMap<String, BTreeSet<OtherName>>,
}

/// Another name of a file that a rule is about, or a reason why there may be one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherName {
    /// How it comes about.
    pub kind: NameKind,
    /// What is said of it.
    pub text: String,
}

/// How a file has another name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKind {
    /// Its file system is mounted a second time, as a whole or in part.
    Mount,
    /// An overlay shows it, or it is shown by one.
    Layer,
    /// A hard link.
    Link,
    /// It is mounted elsewhere in another mount namespace, which CAP_SYS_ADMIN enters.
    Namespace,
    /// Whether there is one cannot be found out.
    Unknown,
}

impl NameKind {
    /// What a file of this path is said to be.
    #[must_use]
    pub fn of(self, path: &str) -> String {
        match self {
            Self::Mount => format!("a second mount of {path}"),
            Self::Layer => format!("{path} in another layer of an overlay"),
            Self::Link => format!("a hard link of {path}"),
            Self::Namespace => format!("{path} in another mount namespace"),
            Self::Unknown => format!("{path}, perhaps"),
        }
    }
}

/// Whether the workload can enter a mount namespace that it did not make: with CAP_SYS_ADMIN, by setns(2).
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

/// Whether some enforcer of the policy denies every mount.
fn denies_mounts(policy: &Policy, machine: &MachineFeatures) -> bool {
    let is_mount = |restriction: &Restriction| matches!(restriction, Restriction::Operation(operation) if operation.name == "mount");
    let mut rules = policy.rules.iter();
    rules.any(|rule| {
        let is_full = |enforcer| assess(policy, rule, enforcer, machine).grade == Grade::Full;
        let denies = rule.verdict.denies() && rule.targets.is_empty();
        denies && rule.restrictions.iter().all(is_mount) && policy.enforcers.iter().any(is_full)
    })
}

/// An enforcer that does not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// Which.
    pub enforcer: EnforcerKind,
    /// Why.
    pub why: String,
}

impl MachineFeatures {
    fn lacks(&self, enforcer: EnforcerKind) -> Option<&Unavailable> {
        self.unavailable
            .iter()
            .find(|lacking| lacking.enforcer == enforcer)
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: it cannot be used here: {}", self.enforcer, self.why)
    }
}

/// How well an enforcer carries a rule; the best is the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Not at all.
    None,
    /// With a way past it that is known.
    Partial,
    /// Without one.
    Full,
}

impl Grade {
    /// In a word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Partial => "partial",
            Self::Full => "full",
        }
    }
}

impl fmt::Display for Grade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A rule or restriction as an enforcer takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct CompiledPart<T> {
    /// What it compiles to.
    pub entries: Vec<T>,
    /// Ways past it.
    pub gaps: Vec<String>,
    /// What the enforcer cannot do at all.
    pub missing: Vec<String>,
    /// What it stops besides.
    pub breaks: Vec<String>,
}

impl<T> Default for CompiledPart<T> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            gaps: Vec::new(),
            missing: Vec::new(),
            breaks: Vec::new(),
        }
    }
}

impl<T> CompiledPart<T> {
    fn one(entry: T) -> Self {
        Self::many([entry])
    }

    fn many(entries: impl IntoIterator<Item = T>) -> Self {
        Self {
            entries: entries.into_iter().collect(),
            ..Self::default()
        }
    }

    fn missing(reason: impl Into<String>) -> Self {
        Self {
            missing: vec![reason.into()],
            ..Self::default()
        }
    }

    fn gap(mut self, text: impl Into<String>) -> Self {
        self.gaps.push(text.into());
        self
    }

    fn breaks(mut self, text: impl Into<String>) -> Self {
        self.breaks.push(text.into());
        self
    }

    fn add(&mut self, other: Self) {
        let extend = |own: &mut Vec<String>, more: Vec<String>| {
            for text in more {
                if !own.contains(&text) {
                    own.push(text);
                }
            }
        };
        self.entries.extend(other.entries);
        extend(&mut self.gaps, other.gaps);
        extend(&mut self.missing, other.missing);
        extend(&mut self.breaks, other.breaks);
    }

    fn grade(&self) -> Grade {
        match (
            self.entries.is_empty(),
            self.gaps.len() + self.missing.len(),
        ) {
            (_, 0) => Grade::Full,
            (false, _) => Grade::Partial,
            (true, _) => Grade::None,
        }
    }

    /// `names`: other names of the files, which lead past whatever there is.
    fn assess(mut self, names: Vec<String>, text: impl Fn(&T) -> String) -> Assessment {
        if !self.entries.is_empty() {
            self.gaps.extend(names);
        }
        Assessment {
            grade: self.grade(),
            notes: self.missing.into_iter().chain(self.gaps).collect(),
            breaks: self.breaks,
            output: self.entries.iter().map(text).collect(),
        }
    }
}

/// What one enforcer makes of one rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Assessment {
    /// How good it is.
    pub grade: Grade,
    /// What is not covered, and ways past it.
    pub notes: Vec<String>,
    /// What it stops besides.
    pub breaks: Vec<String>,
    /// What it compiles to, line by line.
    pub output: Vec<String>,
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

/// What an enforcer makes of a rule of a policy.
#[must_use]
pub fn assess(
    policy: &Policy,
    rule: &Rule,
    enforcer: EnforcerKind,
    machine: &MachineFeatures,
) -> Assessment {
    let names = other_names(policy, rule, enforcer, machine);
    compiler(enforcer).assess(policy, rule, machine, names)
}

/// What a whole policy compiles to for an enforcer, for people.
#[must_use]
pub fn text(policy: &Policy, enforcer: EnforcerKind, machine: &MachineFeatures) -> String {
    compiler(enforcer).text(policy, machine)
}

/// As [`text`], for programs.
#[must_use]
pub fn json(policy: &Policy, enforcer: EnforcerKind, machine: &MachineFeatures) -> Value {
    compiler(enforcer).json(policy, machine)
}

/// Names of a rule's files that lead past an enforcer.
fn other_names(
    policy: &Policy,
    rule: &Rule,
    enforcer: EnforcerKind,
    machine: &MachineFeatures,
) -> Vec<String> {
    let compiler = compiler(enforcer);
    let is_covered = |kind: NameKind| {
        compiler.covers(kind) || kind == NameKind::Namespace && !enters_namespaces(policy, machine)
    };
    let known = machine.other_names.get(&rule.id).into_iter().flatten();
    let open = known.filter(|name| !is_covered(name.kind));
    let mut names: Vec<String> = open.map(|name| name.text.clone()).collect();
    names.extend(compiler.possible_names(policy, rule, machine));
    names
}

/// What is said of a rule with patterns if the enforcer goes by paths: of what a pattern means nobody has
/// looked for links. What the kernel makes up has none.
fn possible_links(rule: &Rule) -> Option<String> {
    let may_be_linked = |restriction: &Restriction| match restriction {
        Restriction::File { path, .. } => {
            let prefix = path.fixed_prefix();
            let is_made_up = prefix.starts_with("/proc/") || prefix.starts_with("/sys/");
            path.literal().or_else(|| path.subtree()).is_none() && !is_made_up
        }
        _ => false,
    };
    let text = "a hard link of such a file that exists already has another name";
    let is_about_some = rule.restrictions.iter().any(may_be_linked);
    is_about_some.then(|| text.to_owned())
}

/// What an enforcer makes of a built-in rule, if every enforcer is there and violations are denied.
#[must_use]
pub fn assess_builtin(
    builtin: &'static Builtin,
    enforcer: EnforcerKind,
    machine: &MachineFeatures,
) -> Assessment {
    let (policy, rule) = alone(builtin, Enforcers::ALL);
    assess(&policy, &rule, enforcer, machine)
}

/// A policy for these enforcers, and the one rule that is in it.
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
    };
    let policy = Policy {
        name: builtin.name.clone(),
        location,
        mode: Mode::EnhanceProtect,
        enforcers,
        privileged: true,
        rules: Vec::new(),
        modeling_minutes: None,
        profiles: Vec::new(),
    };
    (policy, rule)
}

/// Lowers a rule restriction by restriction, and adds what holds for every enforcer.
fn lower_rule<T>(
    rule: &Rule,
    enforcer: EnforcerKind,
    each: impl Fn(&Restriction) -> CompiledPart<T>,
) -> CompiledPart<T> {
    let mut sum = CompiledPart::default();
    if rule.verdict == RuleAction::Allow {
        return sum;
    }
    if !rule.targets.is_empty() && enforcer != EnforcerKind::AppArmor {
        return CompiledPart::missing("rules for single programs are for AppArmor alone");
    }
    for restriction in &rule.restrictions {
        sum.add(each(restriction));
    }
    if let Some(builtin) = rule.builtin().filter(|_| !sum.entries.is_empty()) {
        let weak = builtin.weak.get(&enforcer).into_iter().flatten().cloned();
        let notes = CompiledPart {
            gaps: weak.collect(),
            breaks: builtin.breaks.clone(),
            ..CompiledPart::default()
        };
        sum.add(notes);
    }
    sum
}

/// Finds rules that the chosen enforcers do not carry in full. `accepted` names those for which
/// less will do.
#[must_use]
pub fn check(policy: &Policy, accepted: &[String], machine: &MachineFeatures) -> Vec<Diagnostic> {
    let mut diagnostics = Vec::new();
    let canonical = |name: &str| {
        builtin::find(name).map_or_else(|| name.to_owned(), |builtin| builtin.name.clone())
    };
    let accepted: Vec<String> = accepted.iter().map(|name| canonical(name)).collect();
    diagnostics.extend(policy.profiles.iter().filter_map(check_profile));
    for rule in &policy.rules {
        // What runtimes deny is another thing for each of them; nobody asked for the rest.
        let is_base = matches!(rule.origin, RuleOrigin::Base(_));
        // Raw rules of an allowing profile stand and fall with it.
        if is_base || rule.verdict == RuleAction::Allow || policy.mode == Mode::DefenseInDepth {
            continue;
        }
        let is_accepted = accepted.contains(&rule.id);
        diagnostics.extend(
            check_rule(policy, rule, machine).map(|problem| match is_accepted {
                false => problem,
                true => Diagnostic {
                    help: None,
                    ..Diagnostic::new(Code::Accepted, problem.location, problem.message)
                },
            }),
        );
    }
    for name in &accepted {
        if !policy.rules.iter().any(|rule| rule.id == *name) {
            let message = format!("cannot accept less for `{name}`: the policy has no such rule");
            let problem = Diagnostic::new(Code::NotAccepted, policy.location.clone(), message);
            diagnostics.push(problem);
        }
    }
    diagnostics
}

/// Profiles that allow are taken as they are written, or come from behaviour modelling.
fn check_profile(profile: &Profile) -> Option<Diagnostic> {
    let reason = match (&profile.custom, profile.enforcer) {
        (Some(_), EnforcerKind::AppArmor) => return None,
        (Some(_), _) => "custom seccomp profiles are not supported",
        (None, _) => "no behaviour model recorded",
    };
    let message = format!("cannot make the profile for {}: {reason}", profile.enforcer);
    Some(
        Diagnostic::new(Code::NoEnforcer, profile.location.clone(), message)
            .with_help("use `mode: EnhanceProtect` with rules"),
    )
}

fn check_rule(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> Option<Diagnostic> {
    let at = || rule.location.clone();
    if !rule.targets.is_empty() && !policy.enforcers.contains(EnforcerKind::AppArmor) {
        return Some(ignored_targets(policy, rule, machine));
    }
    let chosen: Vec<_> = policy
        .enforcers
        .iter()
        .map(|enforcer| (enforcer, assess(policy, rule, enforcer, machine)))
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

/// Enforcers that would do better, and how to do without.
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
    let accept = format!("accept it: --accept-partial {}", rule.id);
    match better.is_empty() {
        true => accept,
        false => format!("add to `enforcer`: {}; or {accept}", better.join(", ")),
    }
}
