//! The suites: built-in plans.
//!
//! A suite is a table of workloads and a choice of subjects. Running, recording and evaluation are those of
//! every plan. [`crate::plan::Suite`] selects the additional parts of its report.

mod apps;
mod engine;
mod lifecycle;
mod os;
mod published;
mod setup;
pub(crate) mod subjects;
mod syscalls;
pub(crate) mod unix;

use std::path::PathBuf;

use regex::Regex;

use crate::Error;
use crate::host::is_installed;
use crate::plan::{Plan, Subject, Suite, TimeSource, Workload};

pub use apps::Apps;
pub use engine::Engine;
pub use lifecycle::Lifecycle;
pub use os::Os;
pub(crate) use published::{Published, published};
pub use setup::Environment;
pub use syscalls::Syscalls;
pub use unix::Unix;

/// Options of every suite.
#[derive(Clone, Debug)]
pub struct SuiteOptions {
    /// Subjects to measure: names, or `NAME='wrapper {}'`. Empty: those that work here.
    pub subjects: Vec<String>,
    /// Measures only workloads whose name matches. `None`: all.
    pub workload: Option<Regex>,
    /// Number of runs of each workload under each subject. Not 0; a verdict needs 6. `None`: by suite.
    pub rounds: Option<u32>,
    /// Adds rounds until every ratio is known to so many percent, or `budget` is used up.
    pub precision: Option<f64>,
    /// Time limit in seconds: no round starts that would end later. `None`: by suite.
    pub budget: Option<u64>,
    /// Take short samples, to check that everything works.
    pub quick: bool,
    /// Environment of all runs, native ones too.
    pub setup: Environment,
    /// Rule files of tollgate subjects. Empty: the built-in rules.
    pub rules: Vec<PathBuf>,
    /// Seed of the random order of subjects in each round.
    pub seed: u64,
    /// Only list workloads and named subjects.
    pub list: bool,
}

impl Default for SuiteOptions {
    fn default() -> Self {
        Self {
            subjects: Vec::new(),
            workload: None,
            rounds: None,
            precision: None,
            budget: None,
            quick: false,
            setup: Environment::Plain,
            rules: Vec::new(),
            seed: 1,
            list: false,
        }
    }
}

/// The plan's parts that depend on the suite.
pub(crate) struct Table {
    pub(crate) suite: Suite,
    pub(crate) name: &'static str,
    pub(crate) workloads: Vec<Workload>,
    /// Subjects if the user names none.
    pub(crate) subjects: Vec<Subject>,
    pub(crate) rounds: u32,
    pub(crate) timeout_seconds: u64,
}

impl SuiteOptions {
    /// Makes the plan from these options and a suite's table.
    pub(crate) fn plan(&self, table: Table) -> Result<Plan, Error> {
        let workloads = self.wanted(table.workloads)?;
        let subjects = match self.subjects.as_slice() {
            [] => table.subjects,
            names => self.named(names, &table.subjects)?,
        };
        for file in &self.rules {
            if !file.exists() {
                return Err(Error::Option {
                    option: format!("--rules {}", file.display()),
                    reason: "no such file or folder".to_owned(),
                });
            }
        }
        let default_budget = self.precision.map(|_| 600);
        Plan {
            name: table.name.to_owned(),
            rounds: self.rounds.unwrap_or(table.rounds),
            seed: self.seed,
            precision: self.precision.map(|percent| percent / 100.0),
            suite: Some(table.suite),
            setup: self.setup.setup(),
            budget_seconds: self.budget.or(default_budget),
            timeout_seconds: table.timeout_seconds,
            workloads,
            subjects,
        }
        .checked()
    }

    /// Looks subjects up by name, also among the suite's own.
    fn named(&self, names: &[String], own: &[Subject]) -> Result<Vec<Subject>, Error> {
        let find = |name: &String| own.iter().find(|subject| subject.name == *name);
        names
            .iter()
            .map(|name| match find(name) {
                Some(subject) => Ok(subject.clone()),
                None => subjects::subject_beside(own, name, &self.rules),
            })
            .collect()
    }

    fn wanted(&self, all: Vec<Workload>) -> Result<Vec<Workload>, Error> {
        let Some(regex) = &self.workload else {
            return Ok(all);
        };
        let names: Vec<String> = all.iter().map(|workload| workload.name.clone()).collect();
        let wanted: Vec<Workload> = all
            .into_iter()
            .filter(|workload| regex.is_match(&workload.name))
            .collect();
        if wanted.is_empty() {
            let near = workload::nearest(regex.as_str(), names.iter().map(String::as_str));
            let hint = near.map_or_else(String::new, |near| format!("did you mean `{near}`? "));
            return Err(Error::Option {
                option: format!("--workload {regex}"),
                reason: format!("no workload matches; {hint}There are {}", names.join(", ")),
            });
        }
        Ok(wanted)
    }

    /// Returns `quick` with `--quick`, otherwise `full`.
    pub(crate) fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Formats the output of `--list`.
pub(crate) fn list(plan: &Plan) -> String {
    let workloads: String = (plan.workloads.iter())
        .map(|workload| format!("{:18} {}\n", workload.name, workload.command))
        .collect();
    let own: String = (plan.subjects.iter())
        .filter(|subject| !subjects::is_known(&subject.name))
        .map(|subject| format!("{:18} {}\n", subject.name, subject.wrapper))
        .collect();
    format!(
        "workloads\n{workloads}\nsubjects that have a name (others: NAME='wrapper {{}}')\n{own}{}",
        subjects::list()
    )
}

/// Makes a workload of this program, which times itself.
pub(crate) fn own(name: &str, unit: &str, arguments: &str) -> Workload {
    Workload {
        name: name.to_owned(),
        command: format!("{{tollgate}} workload {arguments}"),
        figure: TimeSource::Json,
        unit: unit.to_owned(),
        operations: None,
        rounds: None,
        around: None,
        group: None,
        is_bare: false,
    }
}

/// Returns the named subjects whose peer program is installed.
pub(crate) fn available(names: &[&str], rules: &[PathBuf]) -> Result<Vec<Subject>, Error> {
    let names: Vec<String> = names
        .iter()
        .filter(|name| {
            let peer = name.split('-').next().unwrap_or(name);
            !["strace", "bpftrace", "runsc"].contains(&peer) || is_installed(peer)
        })
        .map(|name| (*name).to_owned())
        .collect();
    subjects::subjects(&names, rules)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn quick() -> SuiteOptions {
        SuiteOptions {
            quick: true,
            ..SuiteOptions::default()
        }
    }

    #[test]
    fn every_suite_makes_a_plan_that_can_be_run() {
        let quick = quick();
        let unix = Unix::for_tests(quick.clone(), false).plan().unwrap();
        assert_eq!(unix.workloads.len(), 24);
        for plan in [
            Os {
                choice: quick.clone(),
            }
            .plan()
            .unwrap(),
            Syscalls {
                choice: quick,
                calls: None,
            }
            .plan()
            .unwrap(),
        ] {
            assert!(
                !plan.workloads.is_empty() && !plan.subjects.is_empty(),
                "{}",
                plan.name
            );
            assert!(list(&plan).contains("notify"));
            // Every load that a plan names is in the registry.
            for load in &plan.workloads {
                let mut words = load.command.split(' ');
                if words.next() == Some("{tollgate}") && words.next() == Some("workload") {
                    assert!(
                        workload::find(words.next().unwrap()).is_ok(),
                        "{}",
                        load.command
                    );
                }
            }
        }
    }

    #[test]
    fn mistakes_are_named_with_what_there_is() {
        let complaint = |choice: SuiteOptions| Os { choice }.plan().unwrap_err().to_string();
        let default = SuiteOptions::default;
        let no_workload = complaint(SuiteOptions {
            workload: Some(Regex::new("create_fles").unwrap()),
            ..default()
        });
        assert!(
            no_workload.contains("did you mean `create_files`?"),
            "{no_workload}"
        );
        let no_subject = complaint(SuiteOptions {
            subjects: vec!["strce".to_owned()],
            ..default()
        });
        assert!(
            no_subject.contains("did you mean `strace`?"),
            "{no_subject}"
        );
        let no_rules = complaint(SuiteOptions {
            rules: vec!["/no/such.yaml".into()],
            ..default()
        });
        assert!(no_rules.contains("no such file"), "{no_rules}");
        let no_precision = complaint(SuiteOptions {
            precision: Some(0.0),
            ..default()
        });
        assert!(
            no_precision.contains("precision must lie above 0"),
            "{no_precision}"
        );
    }

    #[test]
    fn precision_brings_a_budget() {
        let choice = SuiteOptions {
            precision: Some(5.0),
            ..SuiteOptions::default()
        };
        let plan = Os { choice }.plan().unwrap();
        assert_eq!(
            (plan.precision, plan.budget_seconds),
            (Some(0.05), Some(600))
        );
    }
}
