//! Events that an engine has lost, as it reports them.

use std::collections::BTreeMap;
use std::fmt;

use event::Pid;

/// Records that found no room since the last look, a second ago.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// How many since the last look.
    pub dropped: u64,
    /// How many went through meanwhile.
    pub sent: u64,
    /// All that were ever lost, by call.
    pub by_call: BTreeMap<String, u64>,
    /// The same by process, lane and cause, the most first.
    pub by_process: Vec<ProcessLoss>,
}

/// Records of one process that were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessLoss {
    /// The process.
    pub pid: Pid,
    /// Its name when it lost the first record.
    pub name: String,
    /// The lane by which the records were to go.
    pub lane: &'static str,
    /// `full`: the lane had no room. `share`: the process, or its user in its control group, had more of the
    /// lane than was free.
    pub cause: &'static str,
    /// How many.
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
