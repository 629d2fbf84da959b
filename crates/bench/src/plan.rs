//! Plans: workloads, subjects and rounds.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::command_line::{self, HOLE};

/// Name of the baseline: the workload's command line without a wrapper.
pub const NATIVE: &str = "native";

/// Name of the A/A control: the baseline once more, as a subject of its own.
pub const NATIVE_AGAIN: &str = "native-again";

/// Placeholder in command lines of workloads and subjects: the path of the running program.
const OWN_PROGRAM: &str = "{tollgate}";

/// Placeholder in a subject's wrapper: a new file into which the subject writes its counters.
pub(crate) const STATS_FILE: &str = "{stats}";

/// A repeatable measurement: everything that decides which commands run in which order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Name of the plan, used in the name of the results folder.
    pub name: String,
    /// Number of rounds. Each runs every workload under every subject once.
    #[serde(default = "default_rounds")]
    pub rounds: u32,
    /// Seed of the order, and of the size of the environment of each command.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Wanted precision: half the width of a ratio's interval divided by its estimate. After `rounds`,
    /// workloads with a ratio that is less precise are repeated. Needs `budget_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<f64>,
    /// The suite that the plan belongs to, which selects additional parts of its report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suite: Option<Suite>,
    /// Set if samples are shorter than figures that are cited need.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub quick: bool,
    /// Wrapper around every command line, native ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<Setup>,
    /// Time limit: no round is started that would probably end later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_seconds: Option<u64>,
    /// Time limit of one command. A command that takes longer is killed and its sample is invalid.
    #[serde(default = "default_timeout")]
    pub timeout_seconds: u64,
    /// Workloads to run.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
    /// Subjects to run the workloads under. `native` and `native-again` are always added.
    #[serde(default, rename = "subject")]
    pub subjects: Vec<Subject>,
}

/// The suites of `tollgate bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Suite {
    /// Real servers and jobs.
    Apps,
    /// Parts of tollgate.
    Engine,
    /// Container life cycle.
    Lifecycle,
    /// The five operations of OSBench.
    Os,
    /// Single system calls.
    Syscalls,
    /// The twelve tests of UnixBench.
    Unix,
}

/// The environment of all commands of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Name in the report.
    pub name: String,
    /// The command line, with `{}` for the subject and the workload.
    pub wrapper: String,
}

/// A command that does countable work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name in the results.
    pub name: String,
    /// The command line; `{tollgate}` stands for the running program.
    pub command: String,
    /// Source of the measured time.
    pub figure: TimeSource,
    /// One operation, in one word; times are given per operation.
    #[serde(default = "default_unit")]
    pub unit: String,
    /// Number of operations that the command must report (or, for the wall time, consists of).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations: Option<u64>,
    /// Number of rounds in which this workload runs; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<u32>,
    /// Group of the workload. Each group has an index of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// True if the workload runs natively only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_bare: bool,
    /// A command line around the subject, which the subject does not wrap; `{}` stands for both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<String>,
}

/// Source of a workload's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimeSource {
    /// The fastest of the `windows` in the line that [`TimeSource::Json`] reads.
    Fastest,
    /// A line `{"operations":N,"elapsed_ns":N}` that the command prints. Excludes the start of the process and
    /// of the subject around it.
    Json,
    /// Wall time from start to end of the command, including the start of the subject.
    Wall,
}

/// A command line around a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Name in the results.
    pub name: String,
    /// The command line; `{}` stands for the workload, `{tollgate}` for the running program, `{stats}` for a
    /// file to which the subject appends its counters as lines of JSON.
    pub wrapper: String,
    /// Divisor of a workload's `--operations`, for subjects under which the full number would take hours. Times
    /// are per operation, so they stay comparable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divide_operations: Option<u64>,
    /// A command that prints the subject's version; the wrapper's first word with `--version` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

fn default_rounds() -> u32 {
    12
}

fn default_seed() -> u64 {
    1
}

fn default_timeout() -> u64 {
    120
}

fn default_unit() -> String {
    "run".to_owned()
}

impl Plan {
    /// Reads a plan file: JSON if its name ends in `.json`, TOML otherwise.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or parsed, or the plan cannot be run.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File {
            action: "read the plan",
            path: path.into(),
            source,
        })?;
        let plan: Result<Self, Box<dyn std::error::Error + Send + Sync>> = if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            serde_json::from_str(&text).map_err(Into::into)
        } else {
            toml::from_str(&text).map_err(Into::into)
        };
        let plan = plan.map_err(|source| Error::PlanSyntax {
            path: path.into(),
            source,
        })?;
        plan.checked()
    }

    /// Checks the plan and returns it.
    ///
    /// # Errors
    ///
    /// If the plan cannot be run: nothing to run, a name used twice or reserved, a wrapper without `{}`, or a
    /// command line that does not split. The error names the first problem.
    pub fn checked(self) -> Result<Self, Error> {
        let refuse = |reason: String| Err(Error::PlanContent { reason });
        if self.workloads.is_empty() {
            return refuse("it has no workload; add a [[workload]]".to_owned());
        }
        if self.rounds == 0 {
            return refuse("rounds is 0; at least 6 are needed for a verdict".to_owned());
        }
        if self
            .precision
            .is_some_and(|share| !(share > 0.0 && share < 10.0))
        {
            return refuse("precision must lie above 0 and below 10; 0.05 is 5 %".to_owned());
        }
        if self.precision.is_some() && self.budget_seconds.is_none() {
            return refuse("precision needs budget_seconds to limit the run".to_owned());
        }
        if let Some(setup) = &self.setup {
            has_hole("set-up", &setup.name, &setup.wrapper)?;
        }
        self.check_workloads()?;
        self.check_subjects()?;
        Ok(self)
    }

    fn check_workloads(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::PlanContent { reason });
        let mut names = BTreeSet::new();
        for workload in &self.workloads {
            command_line::split(&workload.command)?;
            if let Some(around) = &workload.around {
                has_hole("workload", &workload.name, around)?;
            }
            if workload.rounds == Some(0) {
                return refuse(format!("workload `{}` has 0 rounds", workload.name));
            }
            if !names.insert(&workload.name) {
                return refuse(format!("two workloads are called `{}`", workload.name));
            }
            if workload.operations == Some(0) {
                return refuse(format!("workload `{}` has 0 operations", workload.name));
            }
        }
        Ok(())
    }

    fn check_subjects(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::PlanContent { reason });
        let mut names = BTreeSet::new();
        for Subject {
            name,
            wrapper,
            divide_operations,
            ..
        } in &self.subjects
        {
            if [NATIVE, NATIVE_AGAIN].contains(&name.as_str()) {
                return refuse(format!(
                    "the subject name `{name}` is reserved; it always runs"
                ));
            }
            if !names.insert(name) {
                return refuse(format!("two subjects are called `{name}`"));
            }
            if *divide_operations == Some(0) {
                return refuse(format!("subject `{name}` divides operations by 0"));
            }
            has_hole("subject", name, wrapper)?;
        }
        Ok(())
    }

    /// Returns the subjects in the order of the report: the baseline, its control, the plan's own.
    pub fn all_subjects(&self) -> Vec<Subject> {
        let bare = |name: &str| Subject {
            name: name.into(),
            wrapper: HOLE.into(),
            divide_operations: None,
            version: None,
        };
        let mut all = vec![bare(NATIVE), bare(NATIVE_AGAIN)];
        all.extend_from_slice(&self.subjects);
        all
    }

    /// Replaces `{tollgate}` in all command lines by the path of the running program.
    pub fn with_program(mut self, program: &Path) -> Self {
        let program = command_line::join(&[program.to_string_lossy().into_owned()]);
        let fill = |line: &mut String| *line = line.replace(OWN_PROGRAM, &program);
        for workload in &mut self.workloads {
            fill(&mut workload.command);
            workload.around.iter_mut().for_each(fill);
        }
        self.setup
            .iter_mut()
            .for_each(|setup| fill(&mut setup.wrapper));
        for subject in &mut self.subjects {
            fill(&mut subject.wrapper);
            subject.version.iter_mut().for_each(fill);
        }
        self
    }
}

/// Checks that a wrapper contains `{}`; without it the wrapped command would not run.
fn has_hole(what: &str, name: &str, wrapper: &str) -> Result<(), Error> {
    if command_line::split(wrapper)?
        .iter()
        .any(|word| word.contains(HOLE))
    {
        return Ok(());
    }
    Err(Error::PlanContent {
        reason: format!("the wrapper of {what} `{name}` has no {{}} for the workload"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: &str = r#"
        name = "hot"
        rounds = 8

        [[workload]]
        name = "getppid"
        command = "{tollgate} workload getppid --seconds 0.2"
        figure = "json"
        unit = "call"

        [[workload]]
        name = "true"
        command = "true"
        figure = "wall"

        [[subject]]
        name = "strace"
        wrapper = "strace -f -o /dev/null {}"
    "#;

    fn load(name: &str, text: &str) -> Result<Plan, Error> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        Plan::load(&path)
    }

    fn complaint(text: &str) -> String {
        let error = load("plan.toml", text).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    }

    #[test]
    fn a_toml_plan_and_its_json_form_are_the_same_plan() {
        let plan = load("plan.toml", PLAN).unwrap();
        assert_eq!((plan.rounds, plan.seed, plan.workloads.len()), (8, 1, 2));
        assert_eq!(plan.workloads[1].unit, "run");
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(load("plan.json", &json).unwrap(), plan);
    }

    #[test]
    fn native_comes_first_and_twice() {
        let names: Vec<_> = load("plan.toml", PLAN)
            .unwrap()
            .all_subjects()
            .into_iter()
            .map(|subject| subject.name)
            .collect();
        assert_eq!(names, ["native", "native-again", "strace"]);
    }

    #[test]
    fn the_program_is_put_in_as_one_word() {
        let plan = load("plan.toml", PLAN)
            .unwrap()
            .with_program(Path::new("/a b/tollgate"));
        let words = command_line::split(&plan.workloads[0].command).unwrap();
        assert_eq!(words[..2], ["/a b/tollgate", "workload"]);
    }

    #[test]
    fn each_mistake_is_named() {
        for (old, new, expected) in [
            ("rounds = 8", "round = 8", "unknown field `round`"),
            ("rounds = 8", "rounds = 0", "rounds is 0"),
            (
                "figure = \"wall\"",
                "figure = \"wal\"",
                "unknown variant `wal`",
            ),
            (
                "name = \"true\"",
                "name = \"getppid\"",
                "two workloads are called `getppid`",
            ),
            (
                "name = \"strace\"",
                "name = \"native\"",
                "`native` is reserved",
            ),
            ("/dev/null {}", "/dev/null", "has no {}"),
            (
                "rounds = 8",
                "precision = 0.05",
                "precision needs budget_seconds",
            ),
            (
                "rounds = 8",
                "precision = 0\nbudget_seconds = 1",
                "precision must lie above 0",
            ),
            (
                "rounds = 8",
                "setup = { name = \"box\", wrapper = \"unshare\" }",
                "set-up `box` has no {}",
            ),
            (
                "unit = \"call\"",
                "around = \"nice\"",
                "workload `getppid` has no {}",
            ),
            ("unit = \"call\"", "rounds = 0", "has 0 rounds"),
            (
                "command = \"true\"",
                "command = \"'true\"",
                "a ' is not closed",
            ),
        ] {
            let complaint = complaint(&PLAN.replace(old, new));
            assert!(complaint.contains(expected), "{complaint}");
        }
        assert!(complaint("rounds = [").contains("line 1"));
    }
}
