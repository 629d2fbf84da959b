//! `tollgate bench syscalls`: the cost of tracing one cheap call, for the traced process and its neighbours.

use super::{SuiteOptions, Table, available, own};
use crate::Error;
use crate::host::is_installed;
use crate::plan::{Plan, Subject, Suite, Workload};

/// Options of `tollgate bench syscalls`.
#[derive(Clone, Debug)]
pub struct Syscalls {
    /// Options of every suite.
    pub choice: SuiteOptions,
    /// Number of calls in a sample. `None`: 50 million, or 200,000 with `quick`.
    pub calls: Option<u64>,
}

/// The calls of the published study.
const CALLS: [&str; 5] = ["gettimeofday", "getuid", "getpid", "getppid", "times"];

/// Loads of an untraced neighbour.
const NEIGHBOURS: [(&str, &str, &str); 2] = [
    ("getppid", "getppid", "call"),
    ("dhrystone", "ub_dhry2reg", "loop"),
];

/// Subjects that stop at every call, which takes a hundred times as long as the call, and the divisor of their
/// number of calls.
const SLOW: [&str; 2] = ["ptrace-every-call", "strace"];
const SLOWER: u64 = 200;

impl Syscalls {
    /// Makes the plan.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let calls = self.calls.unwrap_or(self.choice.pick(200_000, 50_000_000));
        let seconds = self.choice.pick("0.2", "1");
        let mut workloads: Vec<Workload> = (CALLS.iter())
            .map(|call| {
                own(
                    call,
                    "call",
                    &format!("study --call {call} --operations {calls}"),
                )
            })
            .collect();
        workloads.extend(CALLS.iter().map(|call| {
            let name = format!("latency-{call}");
            own(
                &name,
                "call",
                &format!("raw_{call} --latency --seconds {seconds}"),
            )
        }));
        workloads.extend(NEIGHBOURS.iter().map(|(name, load, unit)| Workload {
            around: Some(format!(
                "{{tollgate}} bench neighbour --load {load} --seconds {seconds} {{}}"
            )),
            ..own(
                &format!("neighbour-{name}"),
                unit,
                "raw_getpid --seconds 600 --started %STARTED",
            )
        }));
        workloads.push(own(
            "delay-open",
            "pair",
            &format!("open_close --seconds {seconds} --attackers 4 --latency"),
        ));
        let mut plan = self.choice.plan(Table {
            suite: Suite::Syscalls,
            name: "syscalls",
            workloads,
            subjects: self.subjects()?,
            rounds: self.choice.pick(1, 6),
            timeout_seconds: 3600,
        })?;
        for subject in &mut plan.subjects {
            if SLOW.contains(&subject.name.as_str()) {
                subject.divide_operations = Some(SLOWER);
            }
        }
        Ok(plan)
    }

    fn subjects(&self) -> Result<Vec<Subject>, Error> {
        let mut all = Vec::new();
        if is_installed("bpftrace") {
            all.push(probes("tracepoint", &own_probe()));
            for further in [1, 2, 4, 8] {
                let same = own_probe().repeat(further + 1);
                all.push(probes(&format!("+{further} same"), &same));
                let others: String = OTHERS
                    .iter()
                    .take(further)
                    .map(|event| probe(event))
                    .collect();
                all.push(probes(
                    &format!("+{further} other"),
                    &(own_probe() + &others),
                ));
            }
        }
        let ours = ["notify", "ebpf", "ptrace", "ptrace-every-call", "strace"];
        all.extend(available(&ours, &self.choice.rules)?);
        Ok(all)
    }
}

/// Events that the loop does not cause, to measure whether the number of probes alone has a cost.
const OTHERS: [&str; 8] = [
    "sched:sched_process_fork",
    "sched:sched_process_exit",
    "sched:sched_process_exec",
    "sched:sched_wait_task",
    "signal:signal_generate",
    "signal:signal_deliver",
    "task:task_newtask",
    "task:task_rename",
];

/// Returns a probe on each of the five calls, of which a loop causes one.
fn own_probe() -> String {
    CALLS
        .iter()
        .map(|call| probe(&format!("syscalls:sys_enter_{call}")))
        .collect()
}

fn probe(event: &str) -> String {
    format!(" tracepoint:{event} {{ @ = count(); }}")
}

fn probes(name: &str, program: &str) -> Subject {
    Subject {
        name: format!("bpftrace {name}"),
        wrapper: format!(
            "{{tollgate}} bench beside bpftrace -e 'BEGIN {{ printf(\"ready\\n\"); }}{program}' -- {{}}"
        ),
        divide_operations: None,
        version: Some("bpftrace --version".to_owned()),
    }
}
