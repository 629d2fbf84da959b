//! A policy as it was understood.

use std::fmt;

use yaml::Location;

use crate::builtin::Builtin;
use crate::enforcer::{EnforcerKind, Enforcers};
use crate::restriction::Restriction;

/// What a policy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing is denied.
    AlwaysAllow,
    /// What container runtimes deny by default.
    RuntimeDefault,
    /// Rules on top of the default, or of nothing for a privileged workload.
    EnhanceProtect,
    /// Nothing is denied; what the workload does is recorded.
    BehaviorModeling,
    /// Only what a profile allows is possible.
    DefenseInDepth,
}

impl Mode {
    /// All.
    pub const ALL: [Self; 5] = [
        Self::AlwaysAllow,
        Self::RuntimeDefault,
        Self::EnhanceProtect,
        Self::BehaviorModeling,
        Self::DefenseInDepth,
    ];

    /// As policies write it.
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

/// What becomes of that which a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleAction {
    /// It happens, and nobody hears of it.
    Allow,
    /// It happens and is reported.
    Audit,
    /// It fails, and nobody hears of it.
    Deny,
    /// It fails and is reported.
    DenyAudit,
}

impl RuleAction {
    /// What the switches `allowViolations` and `auditViolations` mean together.
    #[must_use]
    pub fn from_switches(allow: bool, audit: bool) -> Self {
        match (allow, audit) {
            (false, false) => Self::Deny,
            (false, true) => Self::DenyAudit,
            (true, true) => Self::Audit,
            (true, false) => Self::Allow,
        }
    }

    /// Whether it fails.
    #[must_use]
    pub fn denies(self) -> bool {
        matches!(self, Self::Deny | Self::DenyAudit)
    }

    /// Whether it is reported.
    #[must_use]
    pub fn audits(self) -> bool {
        matches!(self, Self::Audit | Self::DenyAudit)
    }

    /// In words.
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

/// Where a rule comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RuleOrigin {
    /// Named in the policy.
    Builtin(&'static Builtin),
    /// Part of what runtimes deny by default.
    Base(&'static Builtin),
    /// Written out in the policy.
    Raw,
}

/// One rule, in terms that no enforcer owns.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The name of a built-in rule, or the place of a raw one, such as `bpfRawRules.files[0]`. Reports
    /// of violations carry it.
    pub id: String,
    /// Where it comes from.
    pub origin: RuleOrigin,
    /// Where the policy names it.
    pub location: Location,
    /// What becomes of a violation.
    pub verdict: RuleAction,
    /// Everything that is denied, or reported.
    pub restrictions: Vec<Restriction>,
    /// Full paths of the programs that it is for; empty means all.
    pub targets: Vec<String>,
}

impl Rule {
    /// What the data file says of a rule that is not raw.
    #[must_use]
    pub fn builtin(&self) -> Option<&'static Builtin> {
        match self.origin {
            RuleOrigin::Builtin(builtin) | RuleOrigin::Base(builtin) => Some(builtin),
            RuleOrigin::Raw => None,
        }
    }
}

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// `metadata.name`, or the name of the file.
    pub name: String,
    /// Where it begins.
    pub location: Location,
    /// What it is for.
    pub mode: Mode,
    /// What is to carry it out.
    pub enforcers: Enforcers,
    /// Whether the workload has more than the default privileges; the base is left out then.
    pub privileged: bool,
    /// The rules, the base first.
    pub rules: Vec<Rule>,
    /// For how many minutes behaviour is recorded.
    pub modeling_minutes: Option<u64>,
    /// The profiles of the mode `DefenseInDepth`.
    pub profiles: Vec<Profile>,
}

/// A profile that allows: all else is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Whose language it is in.
    pub enforcer: EnforcerKind,
    /// The text of a custom profile; without one it is what behaviour modelling recorded.
    pub custom: Option<String>,
    /// Where the policy asks for it.
    pub location: Location,
}
