//! The kinds of enforcers and sets of them.

use std::fmt;

/// A kernel mechanism that enforces a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EnforcerKind {
    /// A seccomp filter on system calls and their register arguments.
    Seccomp,
    /// A Landlock ruleset: the process restricts itself by paths, ports and scopes.
    Landlock,
    /// Capabilities are dropped before the command starts.
    Caps,
    /// An AppArmor profile.
    AppArmor,
    /// BPF programs at the hooks of the Linux security modules (BPF LSM).
    Bpf,
}

impl EnforcerKind {
    /// All kinds, those that need no privilege first.
    pub const ALL: [Self; 5] = [
        Self::Seccomp,
        Self::Landlock,
        Self::Caps,
        Self::AppArmor,
        Self::Bpf,
    ];

    /// The name in policies.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.words().0
    }

    /// The name in command lines and data files.
    #[must_use]
    pub fn id(self) -> &'static str {
        self.words().1
    }

    /// One-line description for help texts.
    #[must_use]
    pub fn about(self) -> &'static str {
        self.words().2
    }

    /// Name, id and description.
    fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Seccomp => ("Seccomp", "seccomp", "A filter on system calls"),
            Self::Landlock => (
                "Landlock",
                "landlock",
                "Restrictions by path and port that need no privilege",
            ),
            Self::Caps => ("Caps", "caps", "Capabilities that are dropped"),
            Self::AppArmor => ("AppArmor", "apparmor", "A profile of AppArmor"),
            Self::Bpf => (
                "BPF",
                "bpf",
                "BPF programs at the hooks of the security modules",
            ),
        }
    }

    /// The enforcer with this [`EnforcerKind::id`].
    #[must_use]
    pub fn from_id(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|enforcer| enforcer.id() == id)
    }
}

impl fmt::Display for EnforcerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of enforcers, in the order of [`EnforcerKind::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcers(u8);

impl Enforcers {
    /// Every enforcer.
    pub const ALL: Self = Self((1 << EnforcerKind::ALL.len()) - 1);

    /// Parses concatenated names as vArmor writes them (`AppArmorBPFSeccomp`), or `Auto` for all. Anything but
    /// letters and digits separates, separators are optional and case is ignored. Returns `None` for an empty text or an unknown name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.to_lowercase();
        let mut found = Self::default();
        loop {
            let word = rest.trim_start_matches(|c: char| !c.is_alphanumeric());
            if word.is_empty() {
                return (found != Self::default()).then_some(found);
            }
            let (more, length) = match EnforcerKind::ALL.iter().find(|e| word.starts_with(e.id())) {
                Some(enforcer) => (found.with(*enforcer), enforcer.id().len()),
                None if word.starts_with("auto") => (Self::ALL, "auto".len()),
                None => return None,
            };
            found = more;
            rest = word[length..].to_owned();
        }
    }

    /// The names in the form that [`Enforcers::parse`] reads.
    #[must_use]
    pub fn joined(self) -> String {
        self.iter().map(EnforcerKind::name).collect()
    }

    /// This set with `enforcer` added.
    #[must_use]
    pub fn with(self, enforcer: EnforcerKind) -> Self {
        Self(self.0 | Self::bit(enforcer))
    }

    /// This set with `enforcer` removed.
    #[must_use]
    pub fn without(self, enforcer: EnforcerKind) -> Self {
        Self(self.0 & !Self::bit(enforcer))
    }

    /// Returns true if the set contains `enforcer`.
    #[must_use]
    pub fn contains(self, enforcer: EnforcerKind) -> bool {
        self.0 & Self::bit(enforcer) != 0
    }

    /// Iterates over the enforcers in the set.
    pub fn iter(self) -> impl Iterator<Item = EnforcerKind> {
        EnforcerKind::ALL
            .into_iter()
            .filter(move |e| self.contains(*e))
    }

    fn bit(enforcer: EnforcerKind) -> u8 {
        1 << enforcer as u8
    }
}

impl fmt::Display for Enforcers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.iter().map(EnforcerKind::name).collect();
        f.write_str(&names.join(", "))
    }
}
