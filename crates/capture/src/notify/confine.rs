//! Policy decisions about calls that the filter traps.
//!
//! Arguments in registers cannot change any more, so the filter's decision is repeated here, to learn which
//! rule decided, and for calls that were trapped because a rule watches them.

use abi::{Arch, Errno, RegisterTest, Syscall};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::{Action, CallRule, Profile};
use policy::{AllowedPeer, EnforcerKind};

use decoder::call::Call;
use seccomp::adapt;

/// Call that a policy denies or watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation<'a> {
    /// The policy's rule.
    pub rule: &'a str,
    /// The enforcer that denied it.
    pub enforcer: EnforcerKind,
    /// Error that the call fails with; `None` if it is only reported.
    pub errno: Option<Errno>,
    /// The system call.
    pub call: Syscall,
    /// Arguments in registers.
    pub args: [u64; 6],
    /// The file or peer that was denied, if it is known.
    pub object: Option<&'a str>,
    /// What was wanted of it: `read`, `write`, `exec` or `connect`.
    pub access: Option<&'static str>,
    /// Why a peer may be denied although the policy means it: allowed names that could not be looked up.
    pub note: Option<&'a str>,
}

/// Name of the rule for calls of architectures that the policy's rules do not cover.
pub const OTHER_ARCHITECTURE: &str = "other-architecture";

/// The policy's decision on a call.
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
    classifier: DenialClassifier,
}

impl ActivePolicy {
    /// Creates the policy from what it says about calls.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self::with_classifier(profile, DenialClassifier::default())
    }

    /// As [`ActivePolicy::new`], with a classifier for denials by other enforcers.
    pub(crate) fn with_classifier(profile: Profile, classifier: DenialClassifier) -> Self {
        Self {
            profile,
            native: Arch::native(),
            classifier,
        }
    }

    /// Returns the classifier of failures as denials.
    pub(crate) fn classifier(&self) -> &DenialClassifier {
        &self.classifier
    }

    /// Returns whether a call has to be inspected when it has returned, because another enforcer may deny it.
    pub(crate) fn watches(&self, call: &Call) -> bool {
        !self.classifier.is_empty()
            && self.profile.of(call.syscall).any(|rule| {
                rule.action == Action::Watch
                    && adapt(&rule.when, call.arch, call.syscall)
                        .iter()
                        .all(|test| test.holds(&call.args))
            })
    }

    /// Returns the peers to which callers are connected, if the policy lists them.
    pub(crate) fn peers(&self) -> Option<&[AllowedPeer]> {
        self.profile.peers.as_deref()
    }

    /// Returns the rule with the list of peers.
    pub(crate) fn mediating_rule(&self) -> Option<&str> {
        self.peers()?;
        let mut rules = self.profile.of(Syscall::CONNECT);
        let is_list = |rule: &&CallRule| rule.when.is_empty() && rule.action.errno().is_some();
        rules.find(is_list).map(|rule| rule.rule.as_str())
    }

    /// Returns whether a refused call is made in the caller's place if the list has its peer: no other rule
    /// refuses it.
    pub(crate) fn mediates(&self, call: &Call) -> bool {
        let Some(list) = self
            .mediating_rule()
            .filter(|_| call.syscall == Syscall::CONNECT)
        else {
            return false;
        };
        let is_native = Some(call.arch) == self.native;
        let mut refusing = self
            .profile
            .of(call.syscall)
            .filter(|rule| rule.action.denies());
        is_native && refusing.all(|rule| rule.rule == list)
    }

    /// Returns whether a call number that no table has is refused.
    pub(crate) fn refuses_unknown(&self) -> bool {
        self.profile.refuse_foreign
    }

    /// Returns the error that a call is refused with, for a caller that answers it without further
    /// inspection. Without known registers, the error that some values of them would give.
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

    /// Returns the error for a call of which only is known that the filter trapped it.
    #[must_use]
    pub fn refusal_of_unknown(&self) -> Option<Errno> {
        let mut rules = self.profile.rules.iter();
        rules
            .any(|rule| rule.action.errno().is_some())
            .then_some(Errno::EPERM)
    }

    /// Returns the policy's decision on a call.
    pub(crate) fn decide(&self, call: &Call) -> Option<Decision<'_>> {
        if self.profile.refuse_foreign && Some(call.arch) != self.native {
            return Some(Decision {
                violation: Violation {
                    rule: OTHER_ARCHITECTURE,
                    enforcer: EnforcerKind::Seccomp,
                    errno: Some(Errno::EPERM),
                    call: call.syscall,
                    args: call.args,
                    object: None,
                    access: None,
                    note: None,
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
                enforcer: EnforcerKind::Seccomp,
                errno: rule.action.errno(),
                call: call.syscall,
                args: call.args,
                object: None,
                access: None,
                note: None,
            },
            is_reported: rule.action.reports(),
        })
    }
}
