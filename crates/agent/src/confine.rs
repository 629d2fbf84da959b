//! Prepares the confinement of a command from a policy file.

use std::path::{Path, PathBuf};

use abi::Capabilities;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use enforce::probe::probe;
use enforce::{Confinement, EnforcedExtent, Line, Target};
use policy::compile::seccomp::Action;
use policy::compile::{MachineFeatures, NarrowedPolicy, Unavailable};
use policy::{Code, Mode, Policy, RuleAction};
use probe::Support;
use serde::{Deserialize, Serialize};
use supervisor::handover_state::PolicyRecord;

use crate::guard::{self, GuardSpec};
use crate::policy_files::{self as files, exit};
use crate::spec::optional_path;

/// The optional policy of a watched command.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Optional {
    /// Confine CMD by this policy
    #[serde(with = "optional_path")]
    pub policy: Option<PathBuf>,
    /// Options of the policy's enforcement.
    pub how: PolicyStrictness,
    /// Set by `tollgate guard`, whose policy is in no file.
    pub guard: Option<GuardSpec>,
}

/// Options of a policy's enforcement.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PolicyStrictness {
    /// Deny nothing, and report what the policy would deny, as far as enforcers can
    pub audit: bool,
    /// Rules of which partial enforcement is accepted. Without this, a rule that no available
    /// enforcer enforces is an error, and one enforced only partially is a warning.
    pub accept_partial: Vec<String>,
}

impl Optional {
    /// Reads and compiles the policy, if there is one, and reports how far it is enforced.
    ///
    /// Preconditions: the process has one thread.
    pub fn prepare(
        &self,
        quiet: bool,
        place: Target,
    ) -> Result<Option<(Confinement, PolicyRecord)>, Failure> {
        let Some(file) = self.read() else {
            return Ok(None);
        };
        let prepared = prepare_file(file, &self.how, place)?;
        prepared.tell(quiet);
        Ok(Some(prepared.into_parts()))
    }

    /// Returns the same for an agent that takes over, which does not have the descriptors of the first.
    pub(crate) fn of_successor(&self) -> Self {
        let guard = self.guard.clone();
        Self {
            guard: guard.map(|guard| GuardSpec {
                report: None,
                ..guard
            }),
            ..self.clone()
        }
    }

    /// Reads the policy, if there is one.
    fn read(&self) -> Option<files::Loaded> {
        match &self.guard {
            Some(guard) => Some(files::parse(guard::POLICY_NAME, &guard.policy)),
            None => self.policy.as_deref().map(files::read),
        }
    }
}

/// A policy that is ready to be applied.
#[derive(Debug)]
pub struct PreparedPolicy {
    /// The compiled confinement.
    pub confinement: Confinement,
    /// What is reported about the policy.
    record: PolicyRecord,
    /// One-line summary of unaccepted warnings.
    warned: String,
    /// The full report, with accepted warnings and the limits of each enforcer.
    said: String,
}

impl PreparedPolicy {
    /// Returns the confinement, and what is reported about the policy.
    pub(crate) fn into_parts(self) -> (Confinement, PolicyRecord) {
        (self.confinement, self.record)
    }

    /// Prints the messages. With `quiet`, only unaccepted ways around the rules are printed.
    pub fn tell(&self, quiet: bool) {
        terminal::complain(match quiet {
            true => &self.warned,
            false => &self.said,
        });
    }
}

/// Reads and compiles a policy for the enforcers available on this host.
///
/// Preconditions: the process has one thread.
pub fn prepare(path: &Path, how: &PolicyStrictness) -> Result<PreparedPolicy, Failure> {
    prepare_at(path, how, Target::Here)
}

/// Like [`prepare`], for a process that may see other files than this one.
pub fn prepare_at(
    path: &Path,
    how: &PolicyStrictness,
    place: Target,
) -> Result<PreparedPolicy, Failure> {
    prepare_file(files::read(path), how, place)
}

/// Like [`prepare_at`], for a policy that has been read.
///
/// Preconditions: the process has one thread.
pub fn prepare_file(
    mut file: files::Loaded,
    how: &PolicyStrictness,
    place: Target,
) -> Result<PreparedPolicy, Failure> {
    let mut machine = machine_at(place);
    let path = &PathBuf::from(&file.name);
    check_is_single(path, &file)?;
    let mut unavailable = Vec::new();
    let mut narrowed = None;
    if let [policy] = &mut file.policies[..] {
        unavailable = restrict_to_available(policy);
        machine.unavailable = unavailable.iter().map(reason).collect();
        if how.audit {
            only_report(policy);
        }
        machine = files::with_hooks(machine, policy);
        // Those of a container are looked up when it starts.
        if place == Target::Here {
            machine = files::with_other_names(machine, policy);
        }
        let policy = narrowed.insert(NarrowedPolicy::new(policy, &machine));
        file.diagnostics.extend(problems(policy, how, place));
    }
    file.diagnostics
        .sort_by_key(|problem| (problem.location.line, problem.location.column));
    let exit = exit(file.diagnostics.iter());
    let Some(policy) = &narrowed else {
        return Err(unusable(path, &file, exit, &unavailable));
    };
    if exit != Exit::Ok {
        return Err(unusable(path, &file, exit, &unavailable));
    }
    if policy.mode == Mode::BehaviorModeling {
        let message = format!(
            "cannot enforce {}: its mode records behaviour",
            path.display()
        );
        return Err(Failure::new(Exit::BadInput, message)
            .help("`tollgate learn -o POLICY.yaml -- CMD` does, and writes a policy to enforce"));
    }
    let confinement = Confinement::prepare_at(policy, place)
        .map_err(|error| Failure::from_error(Exit::Unsupported, &error).help(DOCTOR))?;
    if place == Target::Elsewhere {
        can_be_held(path, &confinement)?;
    }
    let lines: Vec<&Line> = confinement.report.iter().chain(&unavailable).collect();
    let record = record(policy, &file, how, &lines);
    let warned = in_short(policy, &file);
    let mut said = file.render();
    for line in lines {
        said.push_str(&format!("tollgate: policy {}: {line}\n", policy.name));
    }
    Ok(PreparedPolicy {
        confinement,
        record,
        warned,
        said,
    })
}

/// Returns what is reported about a policy.
fn record(
    policy: &NarrowedPolicy,
    file: &files::Loaded,
    how: &PolicyStrictness,
    lines: &[&Line],
) -> PolicyRecord {
    let extent = |line: &&Line| (line.enforcer.to_string(), line.reach.to_string());
    let is_less = |line: &&&Line| line.reach != EnforcedExtent::Fully;
    let reason = |line: &&Line| (line.enforcer.to_string(), line.detail.clone());
    PolicyRecord {
        name: policy.name.clone(),
        digest: file.digest(),
        audits: how.audit || !denies(policy),
        enforcers: lines.iter().map(extent).collect(),
        reasons: lines.iter().filter(is_less).map(reason).collect(),
        gaps: Some(gaps(policy, file)),
    }
}

/// Returns the rules that are not enforced in full, each as a sentence with the reason.
fn gaps(policy: &NarrowedPolicy, file: &files::Loaded) -> Vec<String> {
    let problems = file.diagnostics.iter();
    let problems = problems.filter(|it| matches!(it.code, Code::Partial | Code::Accepted));
    let mut gaps: Vec<String> = problems.map(|problem| problem.message.clone()).collect();
    // The policy accepts these itself, so nothing was said about them.
    for rule in policy.partial_rules() {
        let name = format!("`{rule}`");
        if !gaps.iter().any(|gap| gap.contains(&name)) {
            gaps.push(format!(
                "{name} is enforced only partially, which the policy accepts"
            ));
        }
    }
    gaps
}

/// Returns true if the policy denies anything: by a rule, or everything that it does not allow.
fn denies(policy: &Policy) -> bool {
    policy.mode == Mode::DefenseInDepth || policy.rules.iter().any(|rule| rule.verdict.denies())
}

/// Refuses a file without errors that has several policies.
fn check_is_single(path: &Path, file: &files::Loaded) -> Result<(), Failure> {
    if file.policies.len() > 1 && !file.diagnostics.iter().any(policy::Diagnostic::is_error) {
        let message = format!(
            "cannot use {}: it has {} policies, and a command is confined by one",
            path.display(),
            file.policies.len()
        );
        return Err(
            Failure::new(Exit::BadInput, message).help("put each policy in a separate file")
        );
    }
    Ok(())
}

/// Returns the policy of a container, whose file was prepared before. Tests no enforcer: which of them work does not
/// affect the choice for a container.
pub fn read(path: &Path, how: &PolicyStrictness) -> Result<NarrowedPolicy, Failure> {
    let mut file = files::read(path);
    match &mut file.policies[..] {
        [policy] if !file.diagnostics.iter().any(policy::Diagnostic::is_error) => {
            if how.audit {
                only_report(policy);
            }
            let machine = files::with_hooks(machine_at(Target::Elsewhere), policy);
            Ok(NarrowedPolicy::new(policy, &machine))
        }
        _ => Err(unusable(path, &file, Exit::BadInput, &[])),
    }
}

/// Returns the features of the target's machine. A container's runtime decides on its programs'
/// capabilities, so any may be missing; the actual set is known when the first program starts.
fn machine_at(place: Target) -> MachineFeatures {
    let machine = files::machine();
    match place {
        Target::Here => machine,
        Target::Elsewhere => MachineFeatures {
            held: Some(Capabilities::ALL),
            is_elsewhere: true,
            ..machine
        },
    }
}

/// Rejects rules that kill or signal the caller, and lists of peers. In a container, calls are refused by the process
/// that holds them, because the container's runtime makes the same calls under the same filter and
/// must be allowed to.
fn can_be_held(path: &Path, confinement: &Confinement) -> Result<(), Failure> {
    if confinement.calls.peers.is_some() {
        let message = format!(
            "cannot enforce {} in a container: the supervisor would connect its peers outside of the container",
            path.display(),
        );
        return Err(Failure::new(Exit::Unsupported, message)
            .help("use connectRawRules with `tollgate enforce` or `run`, in the container"));
    }
    let is_fatal = |action| {
        matches!(
            action,
            Action::KillProcess | Action::KillThread | Action::Trap
        )
    };
    let mut rules = confinement.calls.rules.iter();
    let Some(rule) = rules.find(|rule| is_fatal(rule.action)) else {
        return Ok(());
    };
    let message = format!(
        "cannot enforce {} in a container: its rule `{}` kills or signals the caller of `{}`, and the \
        container runtime calls it, too",
        path.display(),
        rule.rule,
        rule.call.name(),
    );
    Err(Failure::new(Exit::Unsupported, message).help("have the call fail: SCMP_ACT_ERRNO"))
}

const DOCTOR: &str = "`tollgate doctor` shows which enforcers work here";

/// Removes unavailable enforcers from the policy and returns a line for each.
fn restrict_to_available(policy: &mut Policy) -> Vec<Line> {
    let (works, missing) = enforce::available(policy.enforcers);
    policy.enforcers = works;
    missing
}

/// Returns a one-line summary of partially enforced rules and other problems.
fn in_short(policy: &Policy, file: &files::Loaded) -> String {
    let others = file.render_if(|problem| !matches!(problem.code, Code::Accepted | Code::Partial));
    let problems = file.diagnostics.iter();
    let partial: Vec<_> = problems
        .filter(|problem| problem.code == Code::Partial)
        .map(|problem| &problem.location)
        .collect();
    let rules = policy.rules.iter();
    let names: Vec<String> = rules
        .filter(|rule| partial.contains(&&rule.location))
        .map(|rule| format!("`{}`", rule.id))
        .collect();
    match names.is_empty() {
        true => others,
        false => format!(
            "{others}tollgate: policy {}: warning[{}]: enforced only partially: {}; run without -q for \
            details\n",
            policy.name,
            yaml::Code::name(Code::Partial),
            names.join(", "),
        ),
    }
}

fn reason(line: &Line) -> Unavailable {
    Unavailable {
        enforcer: line.enforcer,
        why: line.detail.clone(),
    }
}

/// Sets `allowViolations` and `auditViolations`.
fn only_report(policy: &mut Policy) {
    for rule in &mut policy.rules {
        if rule.verdict.denies() {
            rule.verdict = RuleAction::Audit;
        }
    }
}

/// Returns the rules that available enforcers do not enforce. In audit mode, rules that cannot be
/// reported do not prevent the start and only cause a message.
fn problems(
    policy: &NarrowedPolicy,
    how: &PolicyStrictness,
    place: Target,
) -> Vec<policy::Diagnostic> {
    let mut accepted = how.accept_partial.clone();
    if place == Target::Elsewhere {
        // The configuration accepts rules for all policies of containers.
        accepted.retain(|id| policy.rules.iter().any(|rule| rule.id == *id));
    }
    if how.audit {
        accepted.extend(policy.rules.iter().map(|rule| rule.id.clone()));
    }
    policy.check(&accepted)
}

fn unusable(path: &Path, file: &files::Loaded, exit: Exit, missing: &[Line]) -> Failure {
    let mut message = format!("cannot enforce {}\n{}", path.display(), file.render());
    for line in missing {
        message.push_str(&format!("{line}\n"));
        if let Support::No { fix: Some(fix), .. } = probe(line.enforcer) {
            message.push_str(&format!("  fix: {fix}\n"));
        }
    }
    let exit = match exit {
        Exit::Ok => Exit::BadInput,
        exit => exit,
    };
    let help = match exit {
        Exit::Unsupported => DOCTOR,
        _ => "correct it; `tollgate policy check FILE` shows the same",
    };
    Failure::new(exit, message.trim_end()).help(help)
}

/// Rejects policies that only the engine `notify` supports.
pub fn needs_listener(confinement: &Confinement, engine: &str) -> Result<(), Failure> {
    if !confinement.calls.reports() {
        return Ok(());
    }
    let message = format!(
        "cannot report violations of the policy with the engine {engine}: only notify can report denied calls"
    );
    Err(Failure::new(Exit::Unsupported, message)
        .help("use --engine notify, or a policy with `auditViolations: false`"))
}
