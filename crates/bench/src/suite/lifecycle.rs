//! `tollgate bench lifecycle`: how long containers take to come and go.

use clap::Args;

use super::{Choice, Table, is_installed, own};
use crate::Error;
use crate::command::Out;
use crate::plan::{Plan, Subject, Suite, Workload};

/// Create, start, ask, kill and delete containers with every OCI runtime found
#[derive(Args, Clone, Debug)]
pub struct Lifecycle {
    #[command(flatten)]
    pub(crate) choice: Choice,
    #[command(flatten)]
    pub(crate) out: Out,
}

/// What runs in the containers.
const PROGRAMS: [&str; 3] = ["hello", "pause", "yes"];

/// crun 1.8 refuses a machine with both hierarchies of control groups; in a mount namespace of its own
/// without the second it works. It makes folders in the place of that one and leaves them, so something is
/// mounted there that goes with the namespace. The price, three programs more, is part of its figures.
const HYBRID: &str = "unshare -m sh -c 'umount /sys/fs/cgroup/unified && \
    mount -t tmpfs none /sys/fs/cgroup/unified; exec \"$@\"' --";

/// Name, program, what goes before it on a machine with both hierarchies, arguments.
const RUNTIMES: [(&str, &str, &str, &str); 7] = [
    ("runc", "runc", "", ""),
    ("crun", "crun", HYBRID, ""),
    ("youki", "youki", "", ""),
    (
        "runsc-systrap",
        "runsc",
        "",
        "--platform=systrap --network=none --ignore-cgroups",
    ),
    (
        "runsc-ptrace",
        "runsc",
        "",
        "--platform=ptrace --network=none --ignore-cgroups",
    ),
    // Ours passes commands on to runc, and watches what starts in the containers.
    ("tollgate", "runc", "", OURS),
    ("tollgate-host", "runc", "", OURS_WITH_ONE_AGENT),
];

/// In the place of runc.
const OURS: &str = "{tollgate} runtime";
const OURS_WITH_ONE_AGENT: &str = "{tollgate} runtime --agent host";

impl Lifecycle {
    /// The plan: native is the first runtime that is installed.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let found: Vec<(&str, String)> = RUNTIMES
            .iter()
            .filter(|(_, program, ..)| is_installed(program))
            .map(|(name, program, before, arguments)| (*name, line(program, before, arguments)))
            .collect();
        let Some(((baseline, first), others)) = found.split_first() else {
            return Err(Error::Option {
                option: "bench lifecycle".to_owned(),
                reason: "no OCI runtime is in PATH; install runc or crun".to_owned(),
            });
        };
        let runtime = |line: &str| crate::command_line::join(&[line.to_owned()]);
        let workload = |program: &&str| Workload {
            group: Some(format!("native is {baseline}")),
            ..own(
                program,
                "life",
                &format!(
                    "container --program {program} --runtime {} --operations 1",
                    runtime(first)
                ),
            )
        };
        let subject = |(name, line): &(&str, String)| Subject {
            name: (*name).to_owned(),
            wrapper: format!("env TOLLGATE_BENCH_RUNTIME={} {{}}", runtime(line)),
            divide_operations: None,
            version: Some(match *name {
                "tollgate" | "tollgate-host" => "{tollgate} version".to_owned(),
                _ => format!("{} --version", name.split('-').next().unwrap_or(name)),
            }),
        };
        self.choice.plan(Table {
            suite: Suite::Lifecycle,
            name: "lifecycle",
            workloads: PROGRAMS.iter().map(workload).collect(),
            subjects: others.iter().map(subject).collect(),
            rounds: self.choice.pick(1, 20),
            timeout_seconds: 60,
        })
    }
}

fn line(program: &str, before: &str, arguments: &str) -> String {
    let is_hybrid = std::path::Path::new("/sys/fs/cgroup/unified").exists();
    let before = if is_hybrid { before } else { "" };
    if arguments.starts_with(OURS) {
        return arguments.to_owned();
    }
    [before, program, arguments].join(" ").trim().to_owned()
}
