//! What a policy comes to on this machine.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use ::probe::Support;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::{
    self, Grade, MachineFeatures, bpf as hooks, caps, landlock as holes, seccomp,
};
use policy::{Enforcer, Enforcers, Policy};
use sys::SyscallError;

use crate::bpf::BpfPolicyHandle;
use crate::{DeferredConfinement, Error, apparmor, caps as dropping, landlock, probe};

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
    pub enforcer: Enforcer,
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
    ruleset: Option<OwnedFd>,
    caps: caps::Profile,
    /// They are made in the place that they are about.
    needs_ruleset: bool,
    needs_tenant: bool,
    tenancy: Option<BpfPolicyHandle>,
    profile: Option<apparmor::Profile>,
    /// Whether the kernel is to tell of violations.
    tells: bool,
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
    /// The number of the policy that BPF carries.
    pub bpf: Option<u32>,
    /// Whether that is known only when a container's first program begins.
    pub bpf_later: bool,
    /// The name of the profile of AppArmor.
    pub apparmor: Option<String>,
}

/// A step of [`Confinement::apply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Dropping capabilities.
    Capabilities,
    /// Restricting itself by the ruleset.
    Landlock,
    /// Asking for the profile of AppArmor.
    AppArmor,
    /// Becoming subject to the policy at the hooks.
    Bpf,
}

impl Step {
    /// All.
    pub const ALL: [Self; 4] = [
        Self::Capabilities,
        Self::Landlock,
        Self::AppArmor,
        Self::Bpf,
    ];
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Capabilities => "drop capabilities",
            Self::Landlock => "restrict itself by Landlock",
            Self::AppArmor => "ask for its AppArmor profile",
            Self::Bpf => "become subject to the policy at the hooks of BPF LSM",
        })
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
        match probe::probe(enforcer) {
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
        let has = |enforcer| policy.enforcers.contains(enforcer);
        let mut calls = match has(Enforcer::Seccomp) {
            true => seccomp::Profile::compile(policy),
            false => seccomp::Profile::default(),
        };
        let caps = match has(Enforcer::Caps) {
            true => caps::Profile::compile(policy),
            false => caps::Profile::default(),
        };
        let holes = match has(Enforcer::Landlock) {
            true => holes::Profile::compile(policy, machine),
            false => holes::Profile::default(),
        };
        let is_here = place == Target::Here;
        let mut made = match place {
            Target::Here => landlock::make(&holes)?,
            Target::Elsewhere => None,
        };
        let later = place == Target::Elsewhere && !holes.entries.is_empty();
        let entries = match has(Enforcer::Bpf) {
            true => hooks::Profile::compile(policy),
            false => hooks::Profile::default(),
        };
        let needs_tenant = !is_here && !entries.entries.is_empty();
        let tenancy = match entries.entries.is_empty() || needs_tenant {
            true => None,
            false => Some(BpfPolicyHandle::load(&entries, &policy.name)?),
        };
        let profile = match has(Enforcer::AppArmor) {
            true => {
                let loaded = apparmor::Profile::load(policy, machine);
                if let (Err(_), Some(tenancy)) = (&loaded, &tenancy) {
                    tenancy.discard();
                }
                Some(loaded?)
            }
            false => None,
        };
        let report = policy.enforcers.iter().map(|enforcer| {
            let (given, lacks) = match enforcer {
                Enforcer::Seccomp => (count(calls.rules.len(), "call rule"), Vec::new()),
                Enforcer::Landlock => match &made {
                    Some(made) => (count(made.rules, "rule"), made.lacks.clone()),
                    None if later => ("rules are made when it begins".to_owned(), Vec::new()),
                    None => (count(0, "rule"), Vec::new()),
                },
                Enforcer::Caps => {
                    let dropped = usize::try_from(caps.dropped.0.count_ones());
                    (
                        count(dropped.unwrap_or(0), "capability dropped"),
                        Vec::new(),
                    )
                }
                Enforcer::AppArmor => (
                    format!("profile {}", profile.as_ref().map_or("", |made| &made.name)),
                    Vec::new(),
                ),
                Enforcer::Bpf => (
                    count(entries.entries.len(), "entry"),
                    tenancy
                        .as_ref()
                        .map_or_else(Vec::new, |made| made.lacks.clone()),
                ),
            };
            line(policy, machine, enforcer, given, lacks)
        });
        let report = report.collect();
        let mut witness = DenialClassifier::compile(policy, machine);
        if let Some(made) = &mut made {
            let (denied, granted) = (std::mem::take(&mut made.denied), &made.granted);
            witness = witness.with_ruleset(denied, granted);
        }
        calls.rules.extend(witness.calls());
        Ok(Self {
            report,
            ruleset: made.map(|made| made.ruleset),
            calls,
            witness,
            caps,
            needs_ruleset: later,
            needs_tenant,
            tenancy,
            profile,
            tells: policy.rules.iter().any(|rule| rule.verdict.audits()),
        })
    }

    /// What has to be done to a process that sees files elsewhere; `None` if that is nothing.
    #[must_use]
    pub fn elsewhere(&self) -> Option<DeferredConfinement> {
        let nothing = self.caps == caps::Profile::default()
            && !self.needs_ruleset
            && !self.needs_tenant
            && self.profile.is_none();
        (!nothing).then(|| DeferredConfinement {
            caps: self.caps,
            needs_ruleset: self.needs_ruleset,
            needs_tenant: self.needs_tenant,
            profile: self.profile.as_ref().map(|profile| profile.name.clone()),
        })
    }

    /// Whether somebody has to listen for violations.
    #[must_use]
    pub fn reports(&self) -> bool {
        let in_kernel = self.tenancy.is_some() || self.profile.is_some();
        self.calls.reports() || self.tells && in_kernel
    }

    /// Takes back what was loaded into the kernel: nobody is to be confined by this.
    pub fn discard(self) {
        if let Some(tenancy) = self.tenancy {
            tenancy.discard();
        }
    }

    /// Where violations are told that no filter sees; nothing if none is to be told.
    #[must_use]
    pub fn resident(&self) -> LoadedPolicy {
        let tenancy = self.tenancy.as_ref().filter(|_| self.tells);
        let profile = self.profile.as_ref().filter(|_| self.tells);
        LoadedPolicy {
            bpf: tenancy.map(BpfPolicyHandle::number),
            bpf_later: self.needs_tenant && self.tells,
            apparmor: profile.map(|profile| profile.name.clone()),
        }
    }

    /// Restricts the calling process, which has one thread and is about to install the filter and to
    /// execute the command. Makes only system calls and allocates nothing.
    ///
    /// # Errors
    /// The step that failed. What was applied before stays.
    pub fn apply(&self) -> Result<(), ApplyError> {
        let failed = |step| move |cause| ApplyError { step, cause };
        // Both hold from the next exec on, and hinder none of the steps after them.
        if let Some(tenancy) = &self.tenancy {
            tenancy.confine().map_err(failed(Step::Bpf))?;
        }
        if let Some(profile) = &self.profile {
            profile.take().map_err(failed(Step::AppArmor))?;
        }
        dropping::drop(self.caps).map_err(failed(Step::Capabilities))?;
        if let Some(ruleset) = &self.ruleset {
            restrict(ruleset).map_err(failed(Step::Landlock))?;
        }
        Ok(())
    }
}

/// With CAP_SYS_ADMIN a process may restrict itself and still gain privileges.
fn restrict(ruleset: &OwnedFd) -> sys::Result<()> {
    const EPERM: i32 = 1;
    match sys::landlock::restrict_self(ruleset.as_fd()) {
        Err(error) if error.is(EPERM) => {
            sys::seccomp::set_no_new_privs()?;
            sys::landlock::restrict_self(ruleset.as_fd())
        }
        outcome => outcome,
    }
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    match what.split_once(' ') {
        None if what == "entry" && number != 1 => format!("{number} entries"),
        Some(("capability", rest)) => match number {
            1 => format!("1 capability {rest}"),
            _ => format!("{number} capabilities {rest}"),
        },
        _ => format!("{number} {what}{plural}"),
    }
}

/// How far an enforcer goes with a policy: fully if it carries in full whatever it carries, and there is
/// something.
fn line(
    policy: &Policy,
    machine: &MachineFeatures,
    enforcer: Enforcer,
    given: String,
    lacks: Vec<String>,
) -> Line {
    let assess = |rule| compile::assess(policy, rule, enforcer, machine);
    let assessed = policy.rules.iter().map(assess);
    let carried: Vec<_> = assessed.filter(|a| !a.output.is_empty()).collect();
    let partial = carried.iter().filter(|a| a.grade != Grade::Full).count();
    let mut detail = given;
    if partial > 0 {
        detail.push_str(&format!(
            "; {partial} of {} policy rules in part",
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
    fn numbers_of_things_read_as_words() {
        assert_eq!(count(1, "rule"), "1 rule");
        assert_eq!(count(0, "call rule"), "0 call rules");
        assert_eq!(count(3, "capability dropped"), "3 capabilities dropped");
    }

    #[test]
    fn what_an_enforcer_carries_in_part_is_said() {
        let text = "policy:\n  enforcer: SeccompLandlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                    privileged: true\n    hardeningRules: [disallow-umount, disallow-insmod]\n";
        let (policies, problems) = policy::load("p.yaml", text);
        assert!(problems.is_empty(), "{problems:?}");
        let machine = MachineFeatures::default();
        let given = || "x".to_owned();
        let of = |enforcer| line(&policies[0], &machine, enforcer, given(), Vec::new());
        assert_eq!(of(Enforcer::Landlock).reach, EnforcedExtent::Fully);
        let seccomp = of(Enforcer::Seccomp);
        assert_eq!(seccomp.reach, EnforcedExtent::Partially);
        assert_eq!(seccomp.detail, "x; 1 of 2 policy rules in part");
        assert_eq!(of(Enforcer::AppArmor).reach, EnforcedExtent::Partially);
        let lacking = line(
            &policies[0],
            &machine,
            Enforcer::Landlock,
            given(),
            vec!["y".to_owned()],
        );
        assert_eq!(lacking.reach, EnforcedExtent::Partially);
    }
}
