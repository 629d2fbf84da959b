//! The host that rules are compiled for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use abi::Capabilities;

use crate::enforcer::EnforcerKind;

/// First version of Landlock's interface with scopes: Linux 6.12.
pub const LANDLOCK_SCOPES: i32 = 6;

/// Features of the host and of the launch context that affect compilation.
#[derive(Clone, Debug, Default)]
pub struct MachineFeatures {
    /// Names of disks and their partitions, as in `/proc/partitions`.
    pub disks: Vec<String>,
    /// Set if failed calls can be observed to detect denials that the kernel does not report.
    pub watches: bool,
    /// The capabilities that the command would have; `None` if unknown.
    pub held: Option<Capabilities>,
    /// Set if the command has its capabilities because it runs as root.
    pub is_root: bool,
    /// Set if several processes compile the policy, of which some do not know which enforcers work. Rules are
    /// left only to Seccomp then: without it, no container is confined.
    pub is_elsewhere: bool,
    /// Requested enforcers that do not work on this host.
    pub unavailable: Vec<Unavailable>,
    /// Hooks of the security modules to which no BPF program can be attached on this kernel, of those that the
    /// rules need.
    pub missing_hooks: BTreeSet<String>,
    /// Version of Landlock's interface; `None` without Landlock, which is described as the newest then.
    pub landlock_version: Option<i32>,
    /// Further names of the files of a rule, by rule.
    pub other_names: BTreeMap<String, BTreeSet<OtherName>>,
}

/// A further name of a file that a rule covers, or a reason why such a name may exist.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OtherName {
    /// The kind of name.
    pub kind: NameKind,
    /// The text for reports.
    pub text: String,
}

/// The kinds of further names of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NameKind {
    /// The file system is mounted a second time, as a whole or in part.
    Mount,
    /// An overlay exposes the file, or the file lies in an overlay whose layers expose it.
    Layer,
    /// A hard link.
    Link,
    /// The file is mounted elsewhere in another mount namespace, which CAP_SYS_ADMIN allows to enter.
    Namespace,
    /// The path is a folder, and listing it is no access to a file.
    Listing,
    /// The existence of further names cannot be determined.
    Unknown,
}

impl NameKind {
    /// Describes the file at `path` under this kind of name.
    #[must_use]
    pub fn of(self, path: &str) -> String {
        match self {
            Self::Mount => format!("a second mount of {path}"),
            Self::Layer => format!("{path} in another layer of an overlay"),
            Self::Link => format!("a hard link of {path}"),
            Self::Namespace => format!("{path} in another mount namespace"),
            Self::Listing => format!("the names of the files in {path}"),
            Self::Unknown => format!("{path}, perhaps"),
        }
    }
}

/// An enforcer that does not work on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The enforcer.
    pub enforcer: EnforcerKind,
    /// The reason.
    pub why: String,
}

impl MachineFeatures {
    pub(super) fn lacks(&self, enforcer: EnforcerKind) -> Option<&Unavailable> {
        self.unavailable
            .iter()
            .find(|lacking| lacking.enforcer == enforcer)
    }

    /// Returns true if a Landlock domain can exist without a ruleset on files: it scopes signals then.
    pub(super) fn scopes_signals(&self) -> bool {
        let version = self.landlock_version;
        version.is_none_or(|version| version >= LANDLOCK_SCOPES)
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: it cannot be used here: {}", self.enforcer, self.why)
    }
}
