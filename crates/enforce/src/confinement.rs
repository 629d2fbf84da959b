//! What a policy comes to on this machine.

use std::collections::BTreeMap;
use std::fmt;

use ::probe::Support;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::{self, Grade, MachineFeatures, seccomp};
use policy::{EnforcerKind, Enforcers, Policy};
use sys::SyscallError;

use crate::enforcer::{Enforcer, REGISTRY, Report, Reporter, Request, Shared, registered};
use crate::{DeferredConfinement, Error};

/// How much of its part an enforcer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnforcedExtent {
    /// Nothing.
    Not,
    /// Some of it, or with a way past it.
    Partially,
    /// All.
    Fully,
}

impl fmt::Display for EnforcedExtent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Not => "not enforced",
            Self::Partially => "partially enforced",
            Self::Fully => "fully enforced",
        })
    }
}

/// What is reported of an enforcer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Which.
    pub enforcer: EnforcerKind,
    /// How far it goes.
    pub reach: EnforcedExtent,
    /// What it was given, or why it does less.
    pub detail: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.enforcer, self.reach, self.detail)
    }
}

/// A policy, ready to be applied.
#[derive(Debug)]
pub struct Confinement {
    /// What becomes of system calls; for the filter, which whoever starts the command installs.
    pub calls: seccomp::Profile,
    /// What tells which failures were denials by others than the filter.
    pub witness: DenialClassifier,
    /// What each chosen enforcer does.
    pub report: Vec<Line>,
    /// In the order in which they are applied.
    parts: Vec<Part>,
    /// Whether the kernel is to tell of violations.
    tells: bool,
}

/// What one enforcer compiled.
#[derive(Debug)]
struct Part {
    kind: EnforcerKind,
    enforcer: Box<dyn Enforcer>,
}

/// Where a policy is to be in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// In this process, which becomes the command.
    Here,
    /// In a process that has other mounts.
    Elsewhere,
}

/// What of a policy is in the kernel and tells of violations, for whoever reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedPolicy {
    /// Where each enforcer tells of them.
    pub known: BTreeMap<EnforcerKind, String>,
    /// The enforcer for which that is known only when a container's first program begins.
    pub later: Option<EnforcerKind>,
}

impl LoadedPolicy {
    /// What all containers of one policy have to be listened for, each by itself. What is known already is
    /// the same for all of them.
    #[must_use]
    pub fn of_each_container(&self) -> Self {
        Self {
            known: BTreeMap::new(),
            later: self.later,
        }
    }
}

/// A step of [`Confinement::apply`]: that of an enforcer. Shown as what the process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step(pub EnforcerKind);

impl Step {
    /// A number for it, for memory that is shared with the process.
    #[must_use]
    pub fn index(self) -> usize {
        let position = EnforcerKind::ALL.iter().position(|kind| *kind == self.0);
        position.unwrap_or(0)
    }

    /// The step with this [`Step::index`].
    #[must_use]
    pub fn from_index(index: usize) -> Option<Self> {
        EnforcerKind::ALL.get(index).copied().map(Self)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(registered(self.0).about.step)
    }
}

/// A step that failed: the command must not run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct ApplyError {
    /// Which.
    pub step: Step,
    /// Why.
    #[source]
    pub cause: SyscallError,
}

/// The enforcers that this crate knows how to use and that work here. The calling process must have one
/// thread, because this forks.
#[must_use]
pub fn available(chosen: Enforcers) -> (Enforcers, Vec<Line>) {
    let mut works = Enforcers::default();
    let mut missing = Vec::new();
    for enforcer in chosen.iter() {
        match (registered(enforcer).probe)() {
            Support::No { why, .. } => missing.push(Line {
                enforcer,
                reach: EnforcedExtent::Not,
                detail: why,
            }),
            _ => works = works.with(enforcer),
        }
    }
    (works, missing)
}

impl Confinement {
    /// Compiles a policy for the enforcers that it names, which must be available.
    ///
    /// # Errors
    /// If something that the policy needs cannot be made.
    pub fn prepare(policy: &Policy, machine: &MachineFeatures) -> Result<Self, Error> {
        Self::prepare_at(policy, machine, Target::Here)
    }

    /// As [`Confinement::prepare`], for a process that sees files elsewhere.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_at(
        policy: &Policy,
        machine: &MachineFeatures,
        place: Target,
    ) -> Result<Self, Error> {
        let request = Request {
            policy,
            machine,
            place,
        };
        let mut shared = Shared {
            calls: seccomp::Profile::default(),
            witness: DenialClassifier::compile(policy, machine),
        };
        let parts = compile_parts(&request, &mut shared)?;
        let report = policy.enforcers.iter().filter_map(|kind| {
            let part = parts.iter().find(|part| part.kind == kind)?;
            Some(line(policy, machine, kind, part.enforcer.report()))
        });
        let report = report.collect();
        let Shared { mut calls, witness } = shared;
        calls.rules.extend(witness.calls());
        Ok(Self {
            calls,
            witness,
            report,
            parts,
            tells: policy.rules.iter().any(|rule| rule.verdict.audits()),
        })
    }

    /// What has to be done to a process that sees files elsewhere; `None` if that is nothing.
    #[must_use]
    pub fn elsewhere(&self) -> Option<DeferredConfinement> {
        let deferred = |part: &Part| Some((part.kind, part.enforcer.deferred()?));
        let deferred: BTreeMap<_, _> = self.parts.iter().filter_map(deferred).collect();
        (!deferred.is_empty()).then_some(DeferredConfinement(deferred))
    }

    /// Whether somebody has to listen for violations.
    #[must_use]
    pub fn reports(&self) -> bool {
        let is_named = |part: &Part| matches!(part.enforcer.reporter(), Some(Reporter::Named(_)));
        self.calls.reports() || self.tells && self.parts.iter().any(is_named)
    }

    /// Takes back what was loaded into the kernel: nobody is to be confined by this.
    pub fn discard(self) {
        discard(&self.parts);
    }

    /// Where violations are told that no filter sees; nothing if none is to be told.
    #[must_use]
    pub fn resident(&self) -> LoadedPolicy {
        let mut resident = LoadedPolicy::default();
        for part in self.parts.iter().filter(|_| self.tells) {
            match part.enforcer.reporter() {
                Some(Reporter::Named(name)) => drop(resident.known.insert(part.kind, name)),
                Some(Reporter::Later) => resident.later = Some(part.kind),
                None => {}
            }
        }
        resident
    }

    /// Restricts the calling process, which has one thread and is about to install the filter and to
    /// execute the command. Makes only system calls and allocates nothing.
    ///
    /// # Errors
    /// The step that failed. What was applied before stays.
    pub fn apply(&self) -> Result<(), ApplyError> {
        for part in &self.parts {
            part.enforcer.apply().map_err(|cause| ApplyError {
                step: Step(part.kind),
                cause,
            })?;
        }
        Ok(())
    }
}

/// What each enforcer of the policy compiles. If one cannot, what the others loaded is taken back.
fn compile_parts(request: &Request<'_>, shared: &mut Shared) -> Result<Vec<Part>, Error> {
    let mut parts = Vec::new();
    for registered in &REGISTRY {
        let kind = registered.about.kind;
        if !request.policy.enforcers.contains(kind) {
            continue;
        }
        match (registered.compile)(request, shared) {
            Ok(enforcer) => parts.push(Part { kind, enforcer }),
            Err(error) => {
                discard(&parts);
                return Err(error);
            }
        }
    }
    Ok(parts)
}

fn discard(parts: &[Part]) {
    for part in parts {
        part.enforcer.discard();
    }
}

/// How far an enforcer goes with a policy: fully if it carries in full whatever it carries, and there is
/// something.
fn line(
    policy: &Policy,
    machine: &MachineFeatures,
    enforcer: EnforcerKind,
    report: Report,
) -> Line {
    let assess = |rule| compile::assess(policy, rule, enforcer, machine);
    let assessed = policy.rules.iter().map(assess);
    let carried: Vec<_> = assessed.filter(|a| !a.output.is_empty()).collect();
    let partial = carried.iter().filter(|a| a.grade != Grade::Full).count();
    let Report {
        given: mut detail,
        lacks,
    } = report;
    if partial > 0 {
        detail.push_str(&format!(
            "; {partial} of {} policy rules only partially",
            carried.len()
        ));
    }
    for lack in &lacks {
        detail.push_str("; ");
        detail.push_str(lack);
    }
    let reach = match (carried.is_empty(), partial + lacks.len()) {
        (true, _) => EnforcedExtent::Not,
        (false, 0) => EnforcedExtent::Fully,
        (false, _) => EnforcedExtent::Partially,
    };
    Line {
        enforcer,
        reach,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_enforcer_carries_in_part_is_said() {
        let text = "policy:\n  enforcer: SeccompLandlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                    privileged: true\n    hardeningRules: [disallow-umount, disallow-insmod]\n";
        let (policies, problems) = policy::load("p.yaml", text);
        assert!(problems.is_empty(), "{problems:?}");
        let machine = MachineFeatures::default();
        let report = |lacks| Report {
            given: "x".to_owned(),
            lacks,
        };
        let of = |enforcer| line(&policies[0], &machine, enforcer, report(Vec::new()));
        assert_eq!(of(EnforcerKind::Landlock).reach, EnforcedExtent::Fully);
        let seccomp = of(EnforcerKind::Seccomp);
        assert_eq!(seccomp.reach, EnforcedExtent::Partially);
        assert_eq!(seccomp.detail, "x; 1 of 2 policy rules only partially");
        assert_eq!(of(EnforcerKind::AppArmor).reach, EnforcedExtent::Partially);
        let lacking = line(
            &policies[0],
            &machine,
            EnforcerKind::Landlock,
            report(vec!["y".to_owned()]),
        );
        assert_eq!(lacking.reach, EnforcedExtent::Partially);
    }
}
