//! A policy as it was understood.

use std::fmt;

use yaml::Location;

use crate::builtin::Builtin;
use crate::restriction::Restriction;

/// What carries out a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Enforcer {
    /// A filter on system calls and their register arguments.
    Seccomp,
    /// The process restricts itself, by paths, ports and scopes.
    Landlock,
    /// Capabilities are dropped before the command starts.
    Caps,
    /// A profile of AppArmor.
    AppArmor,
    /// Programs at the hooks of the Linux security modules.
    Bpf,
}

impl Enforcer {
    /// All, those that need no privilege first.
    pub const ALL: [Self; 5] = [
        Self::Seccomp,
        Self::Landlock,
        Self::Caps,
        Self::AppArmor,
        Self::Bpf,
    ];

    /// As policies write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Seccomp => "Seccomp",
            Self::Landlock => "Landlock",
            Self::Caps => "Caps",
            Self::AppArmor => "AppArmor",
            Self::Bpf => "BPF",
        }
    }

    /// As command lines and data files write it.
    #[must_use]
    pub fn id(self) -> &'static str {
        match self {
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
            Self::Caps => "caps",
            Self::AppArmor => "apparmor",
            Self::Bpf => "bpf",
        }
    }

    /// The enforcer with this [`Enforcer::id`].
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|enforcer| enforcer.id() == id)
    }
}

impl fmt::Display for Enforcer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of enforcers, in the order of [`Enforcer::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcers(u8);

impl Enforcers {
    /// Every enforcer.
    pub const ALL: Self = Self(0b1_1111);

    /// Names one after another, as vArmor has them (`AppArmorBPFSeccomp`), or `Auto` for all; with or without
    /// separators, in any case. `None` if there is something else, or nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.to_lowercase();
        let mut found = Self::default();
        loop {
            let word = rest.trim_start_matches([',', '|', '+', ' ']);
            if word.is_empty() {
                return (found != Self::default()).then_some(found);
            }
            let (more, length) = match Enforcer::ALL.iter().find(|e| word.starts_with(e.id())) {
                Some(enforcer) => (found.with(*enforcer), enforcer.id().len()),
                None if word.starts_with("auto") => (Self::ALL, "auto".len()),
                None => return None,
            };
            found = more;
            rest = word[length..].to_owned();
        }
    }

    /// The names as [`Enforcers::parse`] reads them.
    #[must_use]
    pub fn joined(self) -> String {
        self.iter().map(Enforcer::name).collect()
    }

    /// The same set with one more.
    #[must_use]
    pub fn with(self, enforcer: Enforcer) -> Self {
        Self(self.0 | Self::bit(enforcer))
    }

    /// The same set with one less.
    #[must_use]
    pub fn without(self, enforcer: Enforcer) -> Self {
        Self(self.0 & !Self::bit(enforcer))
    }

    /// Whether it is in the set.
    #[must_use]
    pub fn contains(self, enforcer: Enforcer) -> bool {
        self.0 & Self::bit(enforcer) != 0
    }

    /// Those in the set.
    pub fn iter(self) -> impl Iterator<Item = Enforcer> {
        Enforcer::ALL.into_iter().filter(move |e| self.contains(*e))
    }

    fn bit(enforcer: Enforcer) -> u8 {
        match enforcer {
            Enforcer::Seccomp => 1,
            Enforcer::Landlock => 1 << 1,
            Enforcer::Caps => 1 << 2,
            Enforcer::AppArmor => 1 << 3,
            Enforcer::Bpf => 1 << 4,
        }
    }
}

impl fmt::Display for Enforcers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(Enforcer::name).collect();
        f.write_str(&names.join(", "))
    }
}

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
    pub enforcer: Enforcer,
    /// The text of a custom profile; without one it is what behaviour modelling recorded.
    pub custom: Option<String>,
    /// Where the policy asks for it.
    pub location: Location,
}
