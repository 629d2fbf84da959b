//! Confinement: a policy compiled for the enforcers of this host.

use std::collections::BTreeMap;
use std::fmt;

use ::probe::Support;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::{Grade, NarrowedPolicy, seccomp};
use policy::{EnforcerKind, Enforcers};
use sys::SyscallError;

use crate::enforcer::{Enforcer, REGISTRY, Report, Reporter, Request, Shared, Target, registered};
use crate::{DeferredConfinement, Error};

/// The extent to which an enforcer enforces its part of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EnforcedExtent {
    /// The enforcer enforces nothing.
    Not,
    /// The enforcer enforces some of the policy, or all with known gaps.
    Partially,
    /// The enforcer enforces everything.
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

/// One enforcer's line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The enforcer.
    pub enforcer: EnforcerKind,
    /// The extent of enforcement.
    pub reach: EnforcedExtent,
    /// The compiled parts, or the reason for less than full enforcement.
    pub detail: String,
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.enforcer, self.reach, self.detail)
    }
}

/// A compiled policy, ready to be applied.
#[derive(Debug)]
pub struct Confinement {
    /// The actions on system calls, for the filter that the starter of the command installs.
    pub calls: seccomp::Profile,
    /// Classifier of failed calls as denials by enforcers other than the filter.
    pub classifier: DenialClassifier,
    /// The report lines of the chosen enforcers.
    pub report: Vec<Line>,
    /// Compiled parts, in the order in which they are applied.
    parts: Vec<Part>,
    /// Set if the kernel has to report violations.
    tells: bool,
}

/// The compiled part of one enforcer.
#[derive(Debug)]
struct Part {
    kind: EnforcerKind,
    enforcer: Box<dyn Enforcer>,
}

/// The reporters of a loaded policy, for the process that reports violations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedPolicy {
    /// Name of each enforcer's reporter.
    pub known: BTreeMap<EnforcerKind, String>,
    /// The enforcer whose reporter is known only when a container's first program starts.
    pub later: Option<EnforcerKind>,
}

impl LoadedPolicy {
    /// The reporters to listen to for each single container of a policy. Reporters that are known already are
    /// shared by all containers.
    #[must_use]
    pub fn of_each_container(&self) -> Self {
        Self {
            known: BTreeMap::new(),
            later: self.later,
        }
    }
}

/// The step of an enforcer in [`Confinement::apply`]. Displayed as the action of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step(pub EnforcerKind);

impl Step {
    /// Index of the step, for memory that is shared with the process.
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

/// A step failed: the command must not run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cannot {step}")]
pub struct ApplyError {
    /// The step.
    pub step: Step,
    /// The cause.
    #[source]
    pub cause: SyscallError,
}

/// The enforcers among `chosen` that work on this host, and report lines for the others. The calling process
/// must have one thread, because the function forks.
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
    /// Fails if a part of the policy cannot be created.
    pub fn prepare(policy: &NarrowedPolicy) -> Result<Self, Error> {
        Self::prepare_at(policy, Target::Here)
    }

    /// Compiles a policy as [`Confinement::prepare`] does, for a process in another mount namespace.
    ///
    /// # Errors
    /// Same as [`Confinement::prepare`].
    pub fn prepare_at(policy: &NarrowedPolicy, place: Target) -> Result<Self, Error> {
        let request = Request { policy, place };
        let mut shared = Shared {
            calls: seccomp::Profile::default(),
            classifier: policy.classifier(),
        };
        let parts = compile_parts(&request, &mut shared)?;
        let report = policy.enforcers.iter().filter_map(|kind| {
            let part = parts.iter().find(|part| part.kind == kind)?;
            Some(line(policy, kind, part.enforcer.report()))
        });
        let report = report.collect();
        let Shared {
            mut calls,
            classifier,
        } = shared;
        calls.rules.extend(classifier.calls());
        Ok(Self {
            calls,
            classifier,
            report,
            parts,
            tells: policy.rules.iter().any(|rule| rule.verdict.audits()),
        })
    }

    /// The steps that a process in another mount namespace needs; `None` if there are none.
    #[must_use]
    pub fn elsewhere(&self) -> Option<DeferredConfinement> {
        let deferred = |part: &Part| Some((part.kind, part.enforcer.deferred()?));
        let deferred: BTreeMap<_, _> = self.parts.iter().filter_map(deferred).collect();
        (!deferred.is_empty()).then_some(DeferredConfinement(deferred))
    }

    /// Returns true if violations are reported, which needs a listener.
    #[must_use]
    pub fn reports(&self) -> bool {
        let is_named = |part: &Part| matches!(part.enforcer.reporter(), Some(Reporter::Named(_)));
        self.calls.reports() || self.tells && self.parts.iter().any(is_named)
    }

    /// Unloads everything from the kernel: the confinement will not be applied.
    pub fn discard(self) {
        discard(&self.parts);
    }

    /// The reporters of violations that no filter traps; empty if the policy reports none.
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

    /// Restricts the calling process, which has one thread and is about to install the filter and to execute
    /// the command. Makes only system calls and allocates nothing.
    ///
    /// # Errors
    /// Returns the step that failed. Steps applied before it stay in force.
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

/// Compiles the part of each enforcer. If one fails, the parts that others loaded are unloaded.
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

/// The report line of an enforcer. The extent is full if every rule that the enforcer supports is enforced in
/// full, and there is at least one such rule.
fn line(policy: &NarrowedPolicy, enforcer: EnforcerKind, report: Report) -> Line {
    let assess = |rule| policy.assess(rule, enforcer);
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
    use policy::compile::MachineFeatures;

    use super::*;

    #[test]
    fn what_an_enforcer_carries_in_part_is_said() {
        let text = "policy:\n  enforcer: SeccompLandlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                    privileged: true\n    hardeningRules: [disallow-umount, disallow-insmod]\n";
        let (policies, problems) = policy::load("p.yaml", text);
        assert!(problems.is_empty(), "{problems:?}");
        let policy = NarrowedPolicy::wide(&policies[0], &MachineFeatures::default());
        let report = |lacks| Report {
            given: "x".to_owned(),
            lacks,
        };
        let of = |enforcer| line(&policy, enforcer, report(Vec::new()));
        assert_eq!(of(EnforcerKind::Landlock).reach, EnforcedExtent::Fully);
        let seccomp = of(EnforcerKind::Seccomp);
        assert_eq!(seccomp.reach, EnforcedExtent::Partially);
        assert_eq!(seccomp.detail, "x; 1 of 2 policy rules only partially");
        assert_eq!(of(EnforcerKind::AppArmor).reach, EnforcedExtent::Partially);
        let lacking = line(
            &policy,
            EnforcerKind::Landlock,
            report(vec!["y".to_owned()]),
        );
        assert_eq!(lacking.reach, EnforcedExtent::Partially);
    }
}
