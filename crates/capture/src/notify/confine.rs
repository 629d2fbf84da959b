//! What a policy says of the calls that the filter hands over.
//!
//! Arguments in registers cannot change any more, so the decision that the filter took is taken here
//! again, to learn which rule it was, and for calls that were handed over because a rule watches them.

use abi::{Arch, Errno, RegisterTest, Syscall};
use policy::Enforcer;
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::{Action, CallRule, Profile};

use decoder::call::Call;
use seccomp::adapt;

/// A call that a policy is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation<'a> {
    /// The policy's rule.
    pub rule: &'a str,
    /// What denied it.
    pub enforcer: Enforcer,
    /// What the call fails with; `None`: it is only reported.
    pub errno: Option<Errno>,
    /// The call.
    pub call: Syscall,
    /// Its registers.
    pub args: [u64; 6],
}

/// The rule for calls of architectures that the policy's rules cannot look into.
pub const OTHER_ARCHITECTURE: &str = "other-architecture";

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision<'a> {
    pub(crate) violation: Violation<'a>,
    pub(crate) is_reported: bool,
}

/// The policy in force.
#[derive(Debug)]
pub struct ActivePolicy {
    profile: Profile,
    native: Option<Arch>,
    witness: DenialClassifier,
}

impl ActivePolicy {
    /// What a policy says of calls.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self::with_witness(profile, DenialClassifier::default())
    }

    /// As [`ActivePolicy::new`], and what others deny.
    pub(crate) fn with_witness(profile: Profile, witness: DenialClassifier) -> Self {
        Self {
            profile,
            native: Arch::native(),
            witness,
        }
    }

    /// What tells which failures were denials.
    pub(crate) fn witness(&self) -> &DenialClassifier {
        &self.witness
    }

    /// Whether a call has to be looked at when it has returned, because another enforcer may deny it.
    pub(crate) fn watches(&self, call: &Call) -> bool {
        !self.witness.is_empty()
            && self.profile.of(call.syscall).any(|rule| {
                rule.action == Action::Watch
                    && adapt(&rule.when, call.arch, call.syscall)
                        .iter()
                        .all(|test| test.holds(&call.args))
            })
    }

    /// Whether a call that no table has is refused.
    pub(crate) fn refuses_unknown(&self) -> bool {
        self.profile.refuse_foreign
    }

    /// The error that a call is refused with, for whoever answers it without looking any further. Where
    /// the registers are not known, whatever some of them would be refused with.
    #[must_use]
    pub fn refusal(&self, audit: u32, number: u32, args: Option<&[u64; 6]>) -> Option<Errno> {
        let (arch, call) = match abi::arch::decode(audit, number) {
            Some((arch, call)) if Some(arch) == self.native => (arch, call?),
            _ if self.profile.refuse_foreign => return Some(Errno::EPERM),
            Some((arch, call)) => (arch, call?),
            None => return None,
        };
        let holds = |rule: &CallRule| {
            let tests = adapt(&rule.when, arch, call);
            args.is_none_or(|args| tests.iter().all(|test| test.holds(args)))
        };
        self.profile.strictest(call, holds)?.action.errno()
    }

    /// The error for a call of which nothing is known but that the filter handed it over.
    #[must_use]
    pub fn refusal_of_unknown(&self) -> Option<Errno> {
        let mut rules = self.profile.rules.iter();
        rules
            .any(|rule| rule.action.errno().is_some())
            .then_some(Errno::EPERM)
    }

    /// What the policy says of a call.
    pub(crate) fn decide(&self, call: &Call) -> Option<Decision<'_>> {
        if self.profile.refuse_foreign && Some(call.arch) != self.native {
            return Some(Decision {
                violation: Violation {
                    rule: OTHER_ARCHITECTURE,
                    enforcer: Enforcer::Seccomp,
                    errno: Some(Errno::EPERM),
                    call: call.syscall,
                    args: call.args,
                },
                is_reported: self.profile.reports(),
            });
        }
        if self.profile.rules.is_empty() {
            return None;
        }
        let holds = |rule: &CallRule| {
            let tests: Vec<RegisterTest> = adapt(&rule.when, call.arch, call.syscall);
            tests.iter().all(|test| test.holds(&call.args))
        };
        let rule = self.profile.strictest(call.syscall, holds)?;
        Some(Decision {
            violation: Violation {
                rule: &rule.rule,
                enforcer: Enforcer::Seccomp,
                errno: rule.action.errno(),
                call: call.syscall,
                args: call.args,
            },
            is_reported: rule.action.reports(),
        })
    }
}
