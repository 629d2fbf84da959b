//! Violations that an enforcer in the kernel reports.

use policy::EnforcerKind;

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The enforcer that decided.
    pub enforcer: EnforcerKind,
    /// Process id.
    pub pid: u32,
    /// User id of the process; some AppArmor records lack it.
    pub uid: Option<u32>,
    /// Id of the violated rule.
    pub rule: String,
    /// The error that the operation failed with; `None` if it was only reported.
    pub errno: Option<abi::Errno>,
    /// The operation: `open`, `exec`, `capability` and so on.
    pub operation: String,
    /// Details of the operation.
    pub detail: String,
    /// The file concerned, if any.
    pub path: Option<String>,
    /// Name of the thread.
    pub comm: String,
    /// The program, if the enforcer reports it.
    pub exe: Option<String>,
}
