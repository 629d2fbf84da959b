//! `tollgate bench lifecycle`: the time that the operations of a container's life take.

use std::path::Path;
use std::process::{Command, Stdio};

use super::{SuiteOptions, Table, own};
use crate::Error;
use crate::host::is_installed;
use crate::plan::{Plan, Subject, Suite, Workload};

/// Options of `tollgate bench lifecycle`.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    /// Options of every suite.
    pub choice: SuiteOptions,
}

/// Programs that run in the containers.
const PROGRAMS: [&str; 3] = ["hello", "pause", "yes"];

/// Wrapper for crun 1.8, which refuses a host with both control group hierarchies; in a mount namespace without
/// the second hierarchy it works. crun makes folders in the place of that hierarchy and leaves them, so a file
/// system that vanishes with the namespace is mounted there. The cost of three more programs is part of its
/// figures.
const HYBRID: &str = "unshare -m sh -c 'umount /sys/fs/cgroup/unified && \
    mount -t tmpfs none /sys/fs/cgroup/unified; exec \"$@\"' --";

/// An OCI runtime to measure.
struct Runtime {
    name: &'static str,
    /// Requirement of the runtime.
    needs: Needs,
    /// Wrapper on a host with both hierarchies.
    before: &'static str,
    line: &'static str,
}

#[derive(Clone, Copy)]
enum Needs {
    Program(&'static str),
    /// The feature `embedded-runtime` of this program.
    Embedded,
}

use Needs::{Embedded, Program};

#[rustfmt::skip]
const RUNTIMES: [Runtime; 9] = [
    Runtime { name: "runc", needs: Program("runc"), before: "", line: "runc" },
    Runtime { name: "crun", needs: Program("crun"), before: HYBRID, line: "crun" },
    Runtime { name: "youki", needs: Program("youki"), before: "", line: "youki" },
    Runtime { name: "runsc-systrap", needs: Program("runsc"), before: "", line: "runsc --platform=systrap --network=none --ignore-cgroups" },
    Runtime { name: "runsc-ptrace", needs: Program("runsc"), before: "", line: "runsc --platform=ptrace --network=none --ignore-cgroups" },
    // No monitor, as with the runtimes above.
    Runtime { name: "embedded", needs: Embedded, before: "", line: "{tollgate} runtime embedded-runtime" },
    // tollgate passes commands on to another runtime, and monitors the containers.
    Runtime { name: "tollgate", needs: Program("runc"), before: "", line: "{tollgate} runtime --runtime runc" },
    Runtime { name: "tollgate-host", needs: Program("runc"), before: "", line: "{tollgate} runtime --runtime runc --agent host" },
    Runtime { name: "tollgate-embedded", needs: Embedded, before: "", line: "{tollgate} runtime --runtime embedded" },
];

impl Lifecycle {
    /// Makes the plan. Native is the first available runtime. Also returns the reasons why others are left out.
    pub(crate) fn plan(&self, program: &Path) -> Result<(Plan, Vec<String>), Error> {
        self.plan_with(&hindrance(program))
    }

    /// Makes the plan. `embedded`: the reason why the program has no embedded runtime, if it has none.
    fn plan_with(&self, embedded: &Option<String>) -> Result<(Plan, Vec<String>), Error> {
        let (found, missing): (Vec<&Runtime>, Vec<&Runtime>) = RUNTIMES
            .iter()
            .partition(|runtime| runtime.hindrance(embedded).is_none());
        let Some((first, others)) = found.split_first() else {
            return Err(Error::Option {
                option: "bench lifecycle".to_owned(),
                reason: "no OCI runtime is in PATH; install runc or crun".to_owned(),
            });
        };
        let workload = |program: &&str| Workload {
            group: Some(format!("native is {}", first.name)),
            ..own(
                program,
                "life",
                &format!(
                    "container --program {program} --runtime {} --operations 1",
                    first.word()
                ),
            )
        };
        let plan = self.choice.plan(Table {
            suite: Suite::Lifecycle,
            name: "lifecycle",
            workloads: PROGRAMS.iter().map(workload).collect(),
            subjects: others.iter().map(|runtime| runtime.subject()).collect(),
            rounds: self.choice.pick(1, 20),
            timeout_seconds: 60,
        })?;
        let tell = |runtime: &&Runtime| {
            let why = runtime.hindrance(embedded)?;
            Some(format!("not supported here: {}: {why}", runtime.name))
        };
        Ok((plan, missing.iter().filter_map(tell).collect()))
    }
}

impl Runtime {
    /// Returns the reason why the runtime cannot be measured.
    fn hindrance(&self, embedded: &Option<String>) -> Option<String> {
        match self.needs {
            Program(program) => {
                (!is_installed(program)).then(|| format!("{program} is not installed"))
            }
            Embedded => embedded.clone(),
        }
    }

    /// Returns the command line as one word.
    fn word(&self) -> String {
        let is_hybrid = Path::new("/sys/fs/cgroup/unified").exists();
        let before = if is_hybrid { self.before } else { "" };
        let line = [before, self.line].join(" ");
        crate::command_line::join(&[line.trim().to_owned()])
    }

    fn subject(&self) -> Subject {
        let version = match self.line.strip_prefix("{tollgate}") {
            Some(_) => "{tollgate} version".to_owned(),
            None => format!(
                "{} --version",
                self.line.split(' ').next().unwrap_or(self.line)
            ),
        };
        Subject {
            name: self.name.to_owned(),
            wrapper: format!("env TOLLGATE_BENCH_RUNTIME={} {{}}", self.word()),
            divide_operations: None,
            version: Some(version),
        }
    }
}

/// Returns the program's message if it has no embedded runtime.
fn hindrance(program: &Path) -> Option<String> {
    let asked = Command::new(program)
        .args(["runtime", "--runtime", "embedded", "--version"])
        .stdin(Stdio::null())
        .output();
    match asked {
        Ok(answer) if answer.status.success() => None,
        Ok(answer) => {
            let text = String::from_utf8_lossy(&answer.stderr);
            Some(match text.lines().next() {
                Some(line) => line.trim_start_matches("tollgate: ").to_owned(),
                None => format!("it prints nothing and exits with {}", answer.status),
            })
        }
        Err(cause) => Some(format!("cannot start {}: {cause}", program.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::quick;
    use super::*;

    #[test]
    fn the_embedded_runtime_is_measured_where_there_is_one_and_else_the_reason_is_reported() {
        let lifecycle = Lifecycle { choice: quick() };
        let embedded = |runtime: &&Runtime| matches!(runtime.needs, Embedded);
        let names: Vec<_> = RUNTIMES.iter().filter(embedded).map(|it| it.name).collect();
        let (with, messages) = lifecycle.plan_with(&None).unwrap();
        let with = format!("{with:?}");
        assert!(with.contains("runtime embedded-runtime"), "{with}");
        assert!(with.contains("runtime --runtime embedded"), "{with}");
        assert!(
            !messages.iter().any(|line| line.contains("embedded")),
            "{messages:?}"
        );
        // Without any other runtime there is nothing to measure.
        match lifecycle.plan_with(&Some("it is not built in".to_owned())) {
            Ok((without, messages)) => {
                assert!(!format!("{without:?}").contains("embedded"), "{without:?}");
                for name in names {
                    let line = format!("not supported here: {name}: it is not built in");
                    assert!(messages.contains(&line), "{messages:?}");
                }
            }
            Err(error) => assert!(error.to_string().contains("no OCI runtime"), "{error}"),
        }
    }

    #[test]
    fn runtimes_can_be_chosen_by_their_names() {
        let chosen = |subjects: &[&str]| {
            let choice = SuiteOptions {
                subjects: subjects.iter().map(ToString::to_string).collect(),
                ..SuiteOptions::default()
            };
            let (plan, _) = Lifecycle { choice }.plan_with(&None)?;
            let names = plan.subjects.into_iter().map(|subject| subject.name);
            Ok::<Vec<String>, Error>(names.collect())
        };
        assert_eq!(
            chosen(&["tollgate-embedded", "mine={}"]).unwrap(),
            ["tollgate-embedded", "mine"]
        );
        let error = chosen(&["no-such"]).unwrap_err();
        assert!(error.to_string().contains("no such subject"), "{error}");
    }
}
