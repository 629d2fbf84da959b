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

use clap::{Args, ValueEnum};
use regex::Regex;

use crate::Error;
use crate::plan::{Plan, Subject, Suite, TimeSource, Workload};

pub(crate) use apps::Apps;
pub(crate) use engine::Engine;
pub(crate) use lifecycle::Lifecycle;
pub(crate) use os::Os;
pub(crate) use published::{Published, published};
pub(crate) use setup::Environment;
pub(crate) use syscalls::Syscalls;
pub(crate) use unix::Unix;

/// Heading of these options in help texts.
pub(crate) const MEASUREMENT: &str = "Measurement options";

/// Options of every suite.
#[derive(Args, Clone, Debug)]
pub(crate) struct SuiteOptions {
    /// Subject to measure: a name that --list shows, or NAME='wrapper {}' with {} in place of the workload;
    /// repeatable [default: those that work here]
    #[arg(help_heading = MEASUREMENT, long = "subject", value_name = "NAME")]
    pub(crate) subjects: Vec<String>,
    /// Measure only workloads whose name matches this regular expression [default: all]
    #[arg(help_heading = MEASUREMENT, long, value_name = "REGEX")]
    pub(crate) workload: Option<Regex>,
    /// Number of runs of each workload under each subject; a verdict needs 6 [default: by suite]
    #[arg(help_heading = MEASUREMENT, long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Add rounds until every ratio is known to PERCENT percent, or --budget is used up
    #[arg(help_heading = MEASUREMENT, long, value_name = "PERCENT")]
    pub(crate) precision: Option<f64>,
    /// Time limit in seconds: start no round that would end later [default: by suite]
    #[arg(help_heading = MEASUREMENT, long, value_name = "SECONDS")]
    pub(crate) budget: Option<u64>,
    /// Take short samples, to check that everything works
    #[arg(help_heading = MEASUREMENT, long)]
    pub(crate) quick: bool,
    /// Environment of all runs, native ones too
    #[arg(help_heading = MEASUREMENT, long, value_enum, default_value_t = Environment::Plain, hide_possible_values = true,
          value_name = "plain|container|quarter-cpu|session")]
    pub(crate) setup: Environment,
    /// Load rules from this file for tollgate subjects; repeatable [default: the built-in rules]
    #[arg(help_heading = MEASUREMENT, short = 'r', long = "rules", value_name = "RULES")]
    pub(crate) rules: Vec<PathBuf>,
    /// Seed of the random order of subjects in each round
    #[arg(help_heading = MEASUREMENT, long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// List workloads and named subjects, and exit
    #[arg(help_heading = MEASUREMENT, long)]
    pub(crate) list: bool,
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
            quick: self.quick,
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

/// Returns true if a program is in PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    // Without PATH no program is found.
    let path = std::env::var_os("PATH").unwrap_or_default();
    program.contains('/') && std::path::Path::new(program).exists()
        || std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
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

/// Returns the name of a value on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;
    use crate::command::OutputOptions;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        choice: SuiteOptions,
    }

    pub(crate) fn choice(line: &str) -> SuiteOptions {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Program::try_parse_from(words).unwrap().choice
    }

    #[test]
    fn every_suite_makes_a_plan_that_can_be_run() {
        let quick = choice("--quick");
        let unix = Unix::for_tests(quick.clone(), false).plan().unwrap();
        assert_eq!(unix.workloads.len(), 24);
        for plan in [
            Os {
                choice: quick.clone(),
                out: OutputOptions::default(),
            }
            .plan()
            .unwrap(),
            Syscalls::for_tests(quick.clone()).plan().unwrap(),
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
        let complaint = |line: &str| {
            Os {
                choice: choice(line),
                out: OutputOptions::default(),
            }
            .plan()
            .unwrap_err()
            .to_string()
        };
        assert!(complaint("--workload create_fles").contains("did you mean `create_files`?"));
        assert!(complaint("--subject strce").contains("did you mean `strace`?"));
        assert!(complaint("-r /no/such.yaml").contains("no such file"));
        assert!(complaint("--precision 0").contains("precision must lie above 0"));
    }

    #[test]
    fn precision_brings_a_budget() {
        let plan = Os {
            choice: choice("--precision 5"),
            out: OutputOptions::default(),
        }
        .plan()
        .unwrap();
        assert_eq!(
            (plan.precision, plan.budget_seconds),
            (Some(0.05), Some(600))
        );
    }
}
