//! Rules to what enforcers take, and how good that is.

pub mod apparmor;
pub mod bpf;
pub mod caps;
#[cfg(test)]
mod classes;
pub mod denial_classifier;
pub mod landlock;
pub mod seccomp;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abi::{Capabilities, Syscall};
use yaml::Location;

use crate::builtin::{self, Builtin};
use crate::diagnostic::{Code, Diagnostic};
use crate::policy::{Enforcer, Enforcers, Mode, Policy, Profile, Rule, RuleAction, RuleOrigin};
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

    /// Whether an enforcer denies a file by such a name as by the one that a rule has.
    fn is_covered_by(self, enforcer: Enforcer, policy: &Policy, machine: &MachineFeatures) -> bool {
        match (self, enforcer) {
            // The ruleset is made with all names that were found.
            (Self::Mount | Self::Layer | Self::Link, Enforcer::Landlock) => true,
            // Files are known by their place in their file system, too.
            (Self::Mount | Self::Namespace, Enforcer::Bpf) => true,
            // They know no files.
            (_, Enforcer::Seccomp | Enforcer::Caps) => true,
            (Self::Namespace, _) => !enters_namespaces(policy, machine),
            (_, Enforcer::AppArmor | Enforcer::Bpf | Enforcer::Landlock) => false,
        }
    }
}

/// Whether the workload can enter a mount namespace that it did not make: with CAP_SYS_ADMIN, by setns(2).
fn enters_namespaces(policy: &Policy, machine: &MachineFeatures) -> bool {
    let number = abi::capability::from_name("sys_admin");
    let has = |set: Capabilities| number.is_none_or(|number| set.contains(number));
    let chosen = |enforcer| policy.enforcers.contains(enforcer);
    let dropped = chosen(Enforcer::Caps) && has(caps::Profile::compile(policy).dropped);
    let refused = || {
        let calls = seccomp::Profile::compile(policy);
        let rule = calls.decide(Syscall::SETNS, &[0, CLONE_NEWNS, 0, 0, 0, 0]);
        chosen(Enforcer::Seccomp) && rule.is_some_and(|rule| rule.action.denies())
    };
    machine.held.is_none_or(has) && !dropped && !refused()
}

/// The kind of a mount namespace (include/uapi/linux/sched.h).
const CLONE_NEWNS: u64 = 0x2_0000;

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
    pub enforcer: Enforcer,
    /// Why.
    pub why: String,
}

impl MachineFeatures {
    fn lacks(&self, enforcer: Enforcer) -> Option<&Unavailable> {
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

/// What an enforcer makes of a rule of a policy.
#[must_use]
pub fn assess(
    policy: &Policy,
    rule: &Rule,
    enforcer: Enforcer,
    machine: &MachineFeatures,
) -> Assessment {
    let names = other_names(policy, rule, enforcer, machine);
    match enforcer {
        Enforcer::Seccomp => seccomp::lower(policy, rule).assess(names, ToString::to_string),
        Enforcer::Landlock => {
            landlock::lower(policy, rule, machine).assess(names, ToString::to_string)
        }
        Enforcer::Caps => caps::lower(policy, rule, machine).assess(names, ToString::to_string),
        Enforcer::AppArmor => apparmor::lower(rule, machine).assess(names, |line| line.clone()),
        Enforcer::Bpf => bpf::lower(rule).assess(names, ToString::to_string),
    }
}

/// Names of a rule's files that lead past an enforcer.
fn other_names(
    policy: &Policy,
    rule: &Rule,
    enforcer: Enforcer,
    machine: &MachineFeatures,
) -> Vec<String> {
    let known = machine.other_names.get(&rule.id).into_iter().flatten();
    let open = known.filter(|name| !name.kind.is_covered_by(enforcer, policy, machine));
    let mut names: Vec<String> = open.map(|name| name.text.clone()).collect();
    let by_path = |restriction: &Restriction| {
        matches!(
            restriction,
            Restriction::File { .. } | Restriction::Exec { .. } | Restriction::Disk { .. }
        )
    };
    // Of what a pattern means nobody has looked for links; what the kernel makes up has none.
    let may_be_linked = |restriction: &Restriction| match restriction {
        Restriction::File { path, .. } => {
            let prefix = path.fixed_prefix();
            let is_made_up = prefix.starts_with("/proc/") || prefix.starts_with("/sys/");
            path.literal().or_else(|| path.subtree()).is_none() && !is_made_up
        }
        _ => false,
    };
    if matches!(enforcer, Enforcer::AppArmor | Enforcer::Bpf)
        && rule.restrictions.iter().any(may_be_linked)
    {
        names.push("a hard link of such a file that exists already has another name".to_owned());
    }
    if enforcer == Enforcer::AppArmor
        && rule.restrictions.iter().any(by_path)
        && !denies_mounts(policy, machine)
    {
        names.push(
            "a mount that the workload makes gives a file another path; add disallow-mount, and Seccomp \
             or Caps to carry it"
                .to_owned(),
        );
    }
    names
}

/// What an enforcer makes of a built-in rule, if every enforcer is there and violations are denied.
#[must_use]
pub fn assess_builtin(
    builtin: &'static Builtin,
    enforcer: Enforcer,
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
    enforcer: Enforcer,
    each: impl Fn(&Restriction) -> CompiledPart<T>,
) -> CompiledPart<T> {
    let mut sum = CompiledPart::default();
    if rule.verdict == RuleAction::Allow {
        return sum;
    }
    if !rule.targets.is_empty() && enforcer != Enforcer::AppArmor {
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
        (Some(_), Enforcer::AppArmor) => return None,
        (Some(_), _) => "a profile of the OCI runtime specification is not compiled yet",
        (None, _) => "there is no behaviour model: nothing records one yet",
    };
    let message = format!(
        "the profile for {} cannot be made: {reason}",
        profile.enforcer
    );
    Some(
        Diagnostic::new(Code::NoEnforcer, profile.location.clone(), message)
            .with_help("use `mode: EnhanceProtect` with rules"),
    )
}

fn check_rule(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> Option<Diagnostic> {
    let at = || rule.location.clone();
    if !rule.targets.is_empty() && !policy.enforcers.contains(Enforcer::AppArmor) {
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
    let mut notes: Vec<String> = chosen
        .iter()
        .filter(|(_, assessment)| assessment.grade == best)
        .map(|(enforcer, a)| format!("{enforcer}: {}", a.notes.join("; ")))
        .collect();
    let (code, what) = match best {
        Grade::None => (Code::NoEnforcer, "cannot be carried by"),
        _ => (Code::Partial, "is carried in part by"),
    };
    if best == Grade::None {
        notes.extend(machine.unavailable.iter().map(ToString::to_string));
    }
    let message = format!("`{}` {what} {}", rule.id, notes.join(". "));
    Some(Diagnostic::new(code, at(), message).with_help(help(policy, rule, best, machine)))
}

fn ignored_targets(policy: &Policy, rule: &Rule, machine: &MachineFeatures) -> Diagnostic {
    let is_for = format!("`{}` is for single programs (targets), which", rule.id);
    let (message, help) = match machine.lacks(Enforcer::AppArmor) {
        None => (
            format!("{is_for} {} would ignore", policy.enforcers),
            "add AppArmor to `enforcer`, or remove the targets",
        ),
        Some(lacking) => (
            format!("{is_for} are for {lacking}"),
            "make AppArmor work, or remove the targets",
        ),
    };
    Diagnostic::new(Code::TargetsIgnored, rule.location.clone(), message).with_help(help)
}

/// Enforcers that would do better, and how to do without.
fn help(policy: &Policy, rule: &Rule, best: Grade, machine: &MachineFeatures) -> String {
    let others = Enforcer::ALL
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
