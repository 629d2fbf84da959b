//! `tollgate bench os`: OSBench's five operations.

use super::{SuiteOptions, Table, available, own};
use crate::Error;
use crate::plan::{Plan, Suite, TimeSource, Workload};

/// Options of `tollgate bench os`.
#[derive(Clone, Debug)]
pub struct Os {
    /// Options of every suite.
    pub choice: SuiteOptions,
}

/// Name, load, unit of one operation, operations of one pass.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("create_files", "os_create_files", "file"),
    ("create_threads", "os_create_threads", "thread"),
    ("create_processes", "os_create_processes", "process"),
    ("launch_programs", "os_launch_programs", "program"),
    ("mem_alloc", "os_mem_alloc", "chunk"),
];

impl Os {
    /// Makes the plan. As in OSBench the fastest pass within five seconds counts.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let seconds = self.choice.pick("0.2", "5");
        let workload = |(name, load, unit): &(&str, &str, &str)| Workload {
            figure: TimeSource::Fastest,
            ..own(name, unit, &format!("{load} --seconds {seconds}"))
        };
        self.choice.plan(Table {
            suite: Suite::Os,
            name: "os",
            workloads: OPERATIONS.iter().map(workload).collect(),
            subjects: available(&["notify"], &self.choice.rules)?,
            rounds: self.choice.pick(1, 6),
            timeout_seconds: 120,
        })
    }
}
