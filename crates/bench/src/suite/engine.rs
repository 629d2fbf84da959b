//! `tollgate bench engine`: parts of tollgate.

use super::{SuiteOptions, Table, available, own};
use crate::Error;
use crate::plan::{Plan, Subject, Suite, TimeSource, Workload};

/// Options of `tollgate bench engine`.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Options of every suite.
    pub choice: SuiteOptions,
}

/// Parts that no subject wraps: name, unit.
const PARTS: [(&str, &str); 4] = [
    ("replay-rules", "event"),
    ("replay-filter", "event"),
    ("alert-latency", "alert"),
    ("start", "run"),
];

/// Numbers of calls that the rules of the measured filters name.
const FILTERS: [u32; 3] = [1, 20, 60];

/// Opens per second and thread, to find the rate at which events are lost.
const RATES: [u32; 5] = [5_000, 20_000, 50_000, 100_000, 200_000];
const THREADS: u32 = 2;

impl Engine {
    /// Makes the plan.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let seconds = self.choice.pick("0.2", "1");
        let mut workloads: Vec<Workload> = (PARTS.iter())
            .map(|(name, unit)| Workload {
                is_bare: true,
                figure: TimeSource::Json,
                command: format!("{{tollgate}} bench part {name} --seconds {seconds}"),
                ..own(name, unit, "")
            })
            .collect();
        // A call that no filter names, a call that each engine traps, and processes.
        for (name, unit) in [
            ("getppid", "call"),
            ("open_close", "pair"),
            ("fork_exec", "run"),
        ] {
            workloads.push(own(name, unit, &format!("{name} --seconds {seconds}")));
        }
        for rate in RATES {
            workloads.push(Workload {
                group: Some("paced opens".to_owned()),
                ..own(
                    &format!("rate-{}k", rate * THREADS / 1000),
                    "pair",
                    &format!("open_close --threads {THREADS} --rate {rate} --seconds {seconds}"),
                )
            });
        }
        let mut subjects: Vec<Subject> = FILTERS.iter().map(|calls| filter(*calls)).collect();
        subjects.push(Subject {
            name: "every open".to_owned(),
            wrapper: "{tollgate} bench filter opens {}".to_owned(),
            divide_operations: None,
            version: Some("{tollgate} version".to_owned()),
        });
        subjects.extend(available(&["notify", "ebpf"], &self.choice.rules)?);
        // Every open becomes an event, and the losses are plotted over the rate.
        subjects.push(Subject {
            name: "ebpf every open".to_owned(),
            wrapper: "{tollgate} bench beside {tollgate} watch -q --engine ebpf --unfiltered -s {stats} -P %READY -- {}"
                .to_owned(),
            divide_operations: None,
            version: Some("{tollgate} version".to_owned()),
        });
        self.choice.plan(Table {
            suite: Suite::Engine,
            name: "engine",
            workloads,
            subjects,
            rounds: self.choice.pick(1, 8),
            timeout_seconds: 120,
        })
    }
}

fn filter(calls: u32) -> Subject {
    Subject {
        name: format!("filter of {calls}"),
        wrapper: format!("{{tollgate}} bench filter {calls} {{}}"),
        divide_operations: None,
        version: Some("{tollgate} version".to_owned()),
    }
}
