//! Reports of events that an engine has lost.

use std::collections::BTreeMap;
use std::fmt;

use event::Pid;

/// Records dropped since the last report, a second ago.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Number of records dropped since the last report.
    pub dropped: u64,
    /// Number of records sent meanwhile.
    pub sent: u64,
    /// All records ever lost, by call.
    pub by_call: BTreeMap<String, u64>,
    /// All records ever lost, by process, lane and cause, the most first.
    pub by_process: Vec<ProcessLoss>,
}

/// Lost records of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLoss {
    /// Pid of the process.
    pub pid: Pid,
    /// Name of the process when it lost the first record.
    pub name: String,
    /// The lane of the records.
    pub lane: &'static str,
    /// `full`: the lane had no room. `share`: the process, or its user in its control group, had more of the
    /// lane than was free.
    pub cause: &'static str,
    /// Number of records.
    pub count: u64,
}

impl fmt::Display for ProcessLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            pid,
            name,
            lane,
            cause,
            count,
        } = self;
        write!(f, "{name}[{}]/{lane}/{cause}={count}", pid.0)
    }
}
