//! From a policy file to what the command is kept from.

use std::path::{Path, PathBuf};

use abi::Capabilities;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::terminal;
use enforce::probe::probe;
use enforce::{Confinement, Line, Target};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Action;
use policy::compile::{MachineFeatures, Unavailable, check};
use policy::{Code, Mode, Policy, RuleAction};
use probe::Support;
use serde::{Deserialize, Serialize};

use crate::journal;
use crate::policy_files::{self as files, exit};
use crate::spec::optional_path;

/// The policy of a command that is watched.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Optional {
    /// Confine CMD by this policy
    #[serde(with = "optional_path")]
    pub policy: Option<PathBuf>,
    /// How strictly it is taken.
    pub how: PolicyStrictness,
}

/// How strictly a policy is taken.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct PolicyStrictness {
    /// Deny nothing, and report what the policy would deny, as far as enforcers can
    pub audit: bool,
    /// Go on although no enforcer that works here carries this rule of the policy at all, which is an
    /// error, or only in part, which is a warning; repeatable
    pub accept_partial: Vec<String>,
}

impl Optional {
    /// Reads and compiles the policy, if there is one, and says how far it is enforced. The calling
    /// process must have one thread.
    pub fn prepare(&self, quiet: bool, place: Target) -> Result<Option<Confinement>, Failure> {
        let Some(path) = &self.policy else {
            return Ok(None);
        };
        let prepared = prepare_at(path, &self.how, place)?;
        prepared.tell(quiet);
        Ok(Some(prepared.confinement))
    }

    /// What tells which failures were denials, for an agent that takes over. A file that is gone or not a
    /// policy any more tells nothing, which is said.
    pub fn witness(&self, place: Target) -> DenialClassifier {
        let Some(path) = &self.policy else {
            return DenialClassifier::default();
        };
        match read(path, &self.how) {
            Ok((mut policy, _)) => {
                restrict_to_available(&mut policy);
                DenialClassifier::compile(&policy, &machine_at(place))
            }
            Err(failure) => {
                journal::warn(&format!(
                    "what Landlock and missing capabilities deny is not reported any more: {}",
                    failure.message()
                ));
                DenialClassifier::default()
            }
        }
    }
}

/// A policy that can be put in force.
#[derive(Debug)]
pub struct PreparedPolicy {
    /// What puts it in force.
    pub confinement: Confinement,
    /// What is wrong with it and was not accepted, in short; and all that is to be said: that at length, what
    /// was accepted, and how far each enforcer goes. Lines for people.
    warned: String,
    said: String,
}

impl PreparedPolicy {
    /// Says what is to be said. Who wants quiet hears of ways past the rules all the same, unless they
    /// were accepted.
    pub fn tell(&self, quiet: bool) {
        terminal::complain(match quiet {
            true => &self.warned,
            false => &self.said,
        });
    }
}

/// Reads and compiles a policy for what works here. The calling process must have one thread.
pub fn prepare(path: &Path, how: &PolicyStrictness) -> Result<PreparedPolicy, Failure> {
    prepare_at(path, how, Target::Here)
}

/// As [`prepare`], for a process that sees files elsewhere, perhaps.
pub fn prepare_at(
    path: &Path,
    how: &PolicyStrictness,
    place: Target,
) -> Result<PreparedPolicy, Failure> {
    let mut machine = machine_at(place);
    let mut file = files::read(path);
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
    let mut unavailable = Vec::new();
    if let [policy] = &mut file.policies[..] {
        unavailable = restrict_to_available(policy);
        machine.unavailable = unavailable.iter().map(reason).collect();
        if how.audit {
            only_report(policy);
        }
        // A container's are looked for when it begins.
        if place == Target::Here {
            machine = files::with_other_names(&machine, policy);
        }
        file.diagnostics
            .extend(problems(policy, how, &machine, place));
    }
    file.diagnostics
        .sort_by_key(|problem| (problem.location.line, problem.location.column));
    let exit = exit(file.diagnostics.iter());
    let [policy] = &file.policies[..] else {
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
    let confinement = Confinement::prepare_at(policy, &machine, place)
        .map_err(|error| Failure::from_error(Exit::Unsupported, &error).help(DOCTOR))?;
    if place == Target::Elsewhere {
        can_be_held(path, &confinement)?;
    }
    let warned = in_short(policy, &file);
    let mut said = file.render();
    for line in confinement.report.iter().chain(&unavailable) {
        said.push_str(&format!("tollgate: policy {}: {line}\n", policy.name));
    }
    Ok(PreparedPolicy {
        confinement,
        warned,
        said,
    })
}

/// The one policy of a file that was prepared before, for what is made of it later. Nothing is tried.
pub fn read(path: &Path, how: &PolicyStrictness) -> Result<(Policy, MachineFeatures), Failure> {
    let mut file = files::read(path);
    let machine = machine_at(Target::Elsewhere);
    match &mut file.policies[..] {
        [policy] if !file.diagnostics.iter().any(policy::Diagnostic::is_error) => {
            if how.audit {
                only_report(policy);
            }
            Ok((policy.clone(), machine))
        }
        _ => Err(unusable(path, &file, Exit::BadInput, &[])),
    }
}

/// Which capabilities a container's programs have its runtime decides: any may be missed, and whether one
/// would be there is known when the first program begins.
fn machine_at(place: Target) -> MachineFeatures {
    let machine = files::machine();
    match place {
        Target::Here => machine,
        Target::Elsewhere => MachineFeatures {
            held: Some(Capabilities::ALL),
            ..machine
        },
    }
}

/// A container's calls are refused by whoever holds them, because its runtime makes the same calls
/// under the same filter and must be let.
fn can_be_held(path: &Path, confinement: &Confinement) -> Result<(), Failure> {
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

/// Leaves the enforcers that work here, and gives a line for each other one.
fn restrict_to_available(policy: &mut Policy) -> Vec<Line> {
    let (works, missing) = enforce::available(policy.enforcers);
    policy.enforcers = works;
    missing
}

/// Which rules are carried in part, in one line, and what else is wrong.
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

/// As if `allowViolations` and `auditViolations` were set.
fn only_report(policy: &mut Policy) {
    for rule in &mut policy.rules {
        if rule.verdict.denies() {
            rule.verdict = RuleAction::Audit;
        }
    }
}

/// What the enforcers that work here do not carry. Where nothing is to be denied, rules that cannot be
/// reported are no reason not to start; that they are not is said.
fn problems(
    policy: &Policy,
    how: &PolicyStrictness,
    machine: &MachineFeatures,
    place: Target,
) -> Vec<policy::Diagnostic> {
    let mut accepted = how.accept_partial.clone();
    if place == Target::Elsewhere {
        // The configuration accepts for all policies of containers.
        accepted.retain(|id| policy.rules.iter().any(|rule| rule.id == *id));
    }
    if how.audit {
        accepted.extend(policy.rules.iter().map(|rule| rule.id.clone()));
    }
    check(policy, &accepted, machine)
}

fn unusable(path: &Path, file: &files::Loaded, exit: Exit, missing: &[Line]) -> Failure {
    let mut message = format!("cannot enforce {}\n{}", path.display(), file.render());
    for line in missing {
        message.push_str(&format!("{line}\n"));
        if let Support::No { fix, .. } = probe(line.enforcer) {
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

/// What engines other than `notify` cannot do.
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
