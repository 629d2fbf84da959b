//! Violations that an enforcer in the kernel tells of.

use policy::EnforcerKind;

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Who decided.
    pub enforcer: EnforcerKind,
    /// The process.
    pub pid: u32,
    /// Its user; not every record of AppArmor's names one.
    pub uid: Option<u32>,
    /// The rule.
    pub rule: String,
    /// The error that the operation failed with; `None` if it was only reported.
    pub errno: Option<abi::Errno>,
    /// What was done: `open`, `exec`, `capability` and so on.
    pub operation: String,
    /// With what.
    pub detail: String,
    /// The file, if it is about one.
    pub path: Option<String>,
    /// The thread's name.
    pub comm: String,
    /// The program, where the enforcer tells it.
    pub exe: Option<String>,
}
