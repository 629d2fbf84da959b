//! The policy model that the loader produces.

use std::collections::BTreeMap;
use std::fmt;

use yaml::Location;

use crate::builtin::Builtin;
use crate::enforcer::{EnforcerKind, Enforcers};
use crate::restriction::Restriction;

/// Mode of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Denies nothing.
    AlwaysAllow,
    /// Applies the restrictions that container runtimes apply by default.
    RuntimeDefault,
    /// Applies rules on top of the default, or on top of nothing for a privileged workload.
    EnhanceProtect,
    /// Denies nothing and records the behaviour of the workload.
    BehaviorModeling,
    /// Allows only what a profile allows.
    DefenseInDepth,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 5] = [
        Self::AlwaysAllow,
        Self::RuntimeDefault,
        Self::EnhanceProtect,
        Self::BehaviorModeling,
        Self::DefenseInDepth,
    ];

    /// The name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::RuntimeDefault => "RuntimeDefault",
            Self::EnhanceProtect => "EnhanceProtect",
            Self::BehaviorModeling => "BehaviorModeling",
            Self::DefenseInDepth => "DefenseInDepth",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Action on an access that matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleAction {
    /// Allow without a report.
    Allow,
    /// Allow and report.
    Audit,
    /// Deny without a report.
    Deny,
    /// Deny and report.
    DenyAudit,
}

impl RuleAction {
    /// Combines the switches `allowViolations` and `auditViolations`.
    #[must_use]
    pub fn from_switches(allow: bool, audit: bool) -> Self {
        match (allow, audit) {
            (false, false) => Self::Deny,
            (false, true) => Self::DenyAudit,
            (true, true) => Self::Audit,
            (true, false) => Self::Allow,
        }
    }

    /// Returns true if the action denies.
    #[must_use]
    pub fn denies(self) -> bool {
        matches!(self, Self::Deny | Self::DenyAudit)
    }

    /// Returns true if the action reports.
    #[must_use]
    pub fn audits(self) -> bool {
        matches!(self, Self::Audit | Self::DenyAudit)
    }

    /// The action in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Audit => "audit",
            Self::Deny => "deny",
            Self::DenyAudit => "deny and audit",
        }
    }
}

/// Origin of a rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RuleOrigin {
    /// A built-in rule that the policy names.
    Builtin(&'static Builtin),
    /// A built-in rule that container runtimes apply by default.
    Base(&'static Builtin),
    /// A raw rule, written out in the policy.
    Raw,
}

/// One rule, independent of enforcers.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Name of a built-in rule, or location of a raw one, such as `bpfRawRules.files[0]`. Reports of
    /// violations contain it.
    pub id: String,
    /// Origin of the rule.
    pub origin: RuleOrigin,
    /// Location of the rule in the policy file.
    pub location: Location,
    /// Action on a violation.
    pub verdict: RuleAction,
    /// The accesses that the rule denies or reports.
    pub restrictions: Vec<Restriction>,
    /// Full paths of the programs to which the rule applies; empty means all.
    pub targets: Vec<String>,
    /// Enforcers that do not enforce the rule, because another one does so in full and stops less besides
    /// (`compile::NarrowedPolicy`).
    pub left_to: BTreeMap<EnforcerKind, EnforcerKind>,
}

impl Rule {
    /// The entry of the data file, unless the rule is raw.
    #[must_use]
    pub fn builtin(&self) -> Option<&'static Builtin> {
        match self.origin {
            RuleOrigin::Builtin(builtin) | RuleOrigin::Base(builtin) => Some(builtin),
            RuleOrigin::Raw => None,
        }
    }
}

/// A confinement policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `metadata.name`, or the stem of the file name.
    pub name: String,
    /// Location of the policy in its file.
    pub location: Location,
    /// Mode of the policy.
    pub mode: Mode,
    /// Enforcers that the policy asks for.
    pub enforcers: Enforcers,
    /// Set if the workload has more than the default privileges; the default rules are left out then.
    pub privileged: bool,
    /// The rules, default rules first.
    pub rules: Vec<Rule>,
    /// `acceptPartial`: rules whose partial enforcement is accepted, with their places in the file.
    pub accepted: Vec<(String, Location)>,
    /// Duration of behaviour recording in minutes.
    pub modeling_minutes: Option<u64>,
    /// Allow profiles of the mode `DefenseInDepth`.
    pub profiles: Vec<Profile>,
}

/// An allow profile: it denies everything that it does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The enforcer in whose language the profile is written.
    pub enforcer: EnforcerKind,
    /// Set if the profile comes from behaviour modelling: from an `ArmorProfileModel` in the same file.
    pub is_recorded: bool,
    /// Set if the profile is known: it is written out, or the file has its model.
    pub is_known: bool,
    /// Text of the profile; `None` if it is unknown or only a list of recorded calls.
    pub text: Option<String>,
    /// Location of the request in the policy file.
    pub location: Location,
}
