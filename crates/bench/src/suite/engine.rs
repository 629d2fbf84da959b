//! `tollgate bench engine`: our own parts by themselves.

use clap::Args;

use super::{Choice, Table, available, own};
use crate::Error;
use crate::command::Out;
use crate::plan::{Figure, Plan, Subject, Suite, Workload};

/// Measure parts of tollgate: events replayed, traps, filters by size, alerts, starts
#[derive(Args, Clone, Debug)]
pub struct Engine {
    #[command(flatten)]
    pub(crate) choice: Choice,
    #[command(flatten)]
    pub(crate) out: Out,
}

/// Parts that no subject is put around: name, unit.
const PARTS: [(&str, &str); 4] = [
    ("replay-rules", "event"),
    ("replay-filter", "event"),
    ("alert-latency", "alert"),
    ("start", "run"),
];

/// How many calls the rules of the measured filters name.
const FILTERS: [u32; 3] = [1, 20, 60];

impl Engine {
    /// The plan.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let seconds = self.choice.pick("0.2", "1");
        let mut workloads: Vec<Workload> = (PARTS.iter())
            .map(|(name, unit)| Workload {
                is_bare: true,
                figure: Figure::Json,
                command: format!("{{tollgate}} bench part {name} --seconds {seconds}"),
                ..own(name, unit, "")
            })
            .collect();
        // A call that no filter names, one that each engine looks at, and processes.
        for (name, unit) in [
            ("getppid", "call"),
            ("open_close", "pair"),
            ("fork_exec", "run"),
        ] {
            workloads.push(own(name, unit, &format!("{name} --seconds {seconds}")));
        }
        let mut subjects: Vec<Subject> = FILTERS.iter().map(|calls| filter(*calls)).collect();
        subjects.push(Subject {
            name: "every open".to_owned(),
            wrapper: "{tollgate} bench filter opens {}".to_owned(),
            version: Some("{tollgate} version".to_owned()),
        });
        subjects.extend(available(&["notify", "ebpf"], &self.choice.rules)?);
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
        version: Some("{tollgate} version".to_owned()),
    }
}
