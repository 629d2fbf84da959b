//! The plan of `tollgate bench quick`: a first result in three minutes.

use regex::Regex;

use crate::Error;
use crate::plan::{Plan, Subject, TimeSource, Workload};

/// Workloads of `quick`: name, unit of an operation, arguments.
///
/// A fifth of a second is long enough for a batch under a slow tracer, and short enough that all subjects run
/// under the same conditions.
const WORKLOADS: &[(&str, &str, &str)] = &[
    ("getppid", "call", "--seconds 0.2"),
    ("read", "call", "--seconds 0.2"),
    ("write", "call", "--seconds 0.2"),
    ("close_dup", "pair", "--seconds 0.2"),
    ("umask", "call", "--seconds 0.2"),
    ("syscall_overhead", "loop", "--seconds 0.2"),
    ("open_close", "pair", "--seconds 0.2"),
    ("stat", "call", "--seconds 0.2"),
    ("pipe", "round trip", "--seconds 0.2"),
    ("fork_exit_wait", "process", "--seconds 0.2"),
    ("fork_exec", "run", "--seconds 0.3"),
    ("shell_tree", "tree", "--seconds 0.5"),
];

/// The subject if the user names none.
const SUBJECT: (&str, &str) = ("tollgate", "{tollgate} run -s {stats} -- {}");

/// Options of the user.
#[derive(Clone, Debug)]
pub(crate) struct QuickOptions {
    pub(crate) rounds: u32,
    pub(crate) seed: u64,
    pub(crate) budget_seconds: u64,
    pub(crate) subjects: Vec<Subject>,
    pub(crate) workload: Option<Regex>,
}

/// Makes the plan for `choice`.
pub(crate) fn plan(choice: QuickOptions) -> Result<Plan, Error> {
    let wanted = |name: &str| {
        choice
            .workload
            .as_ref()
            .is_none_or(|regex| regex.is_match(name))
    };
    let workloads: Vec<Workload> = WORKLOADS
        .iter()
        .filter(|(name, ..)| wanted(name))
        .map(|(name, unit, arguments)| Workload {
            name: (*name).to_owned(),
            command: format!("{{tollgate}} workload {name} {arguments}"),
            figure: TimeSource::Json,
            unit: (*unit).to_owned(),
            operations: None,
            rounds: None,
            around: None,
            group: None,
            is_bare: false,
        })
        .collect();
    if workloads.is_empty() {
        let names: Vec<_> = WORKLOADS.iter().map(|(name, ..)| *name).collect();
        return Err(Error::Option {
            option: "--workload".to_owned(),
            reason: format!("no workload matches; there are {}", names.join(", ")),
        });
    }
    let mut subjects = choice.subjects;
    if subjects.is_empty() {
        let (name, wrapper) = SUBJECT;
        subjects.push(Subject {
            name: name.into(),
            wrapper: wrapper.into(),
            divide_operations: None,
            version: None,
        });
    }
    Plan {
        name: "quick".to_owned(),
        rounds: choice.rounds,
        seed: choice.seed,
        precision: None,
        suite: None,
        setup: None,
        quick: true,
        budget_seconds: Some(choice.budget_seconds),
        timeout_seconds: 60,
        workloads,
        subjects,
    }
    .checked()
}

/// Parses a subject from `NAME=WRAPPER`.
pub(crate) fn subject(option: &str) -> Result<Subject, Error> {
    let Some((name, wrapper)) = option.split_once('=').filter(|(name, _)| !name.is_empty()) else {
        return Err(Error::Option {
            option: format!("--subject {option}"),
            reason: "expected NAME='wrapper {}'".to_owned(),
        });
    };
    Ok(Subject {
        name: name.to_owned(),
        wrapper: wrapper.to_owned(),
        divide_operations: None,
        version: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(workload: &str) -> QuickOptions {
        QuickOptions {
            rounds: 6,
            seed: 1,
            budget_seconds: 60,
            subjects: vec![subject("s=strace -e 'trace=none' {}").unwrap()],
            workload: Some(Regex::new(workload).unwrap()),
        }
    }

    #[test]
    fn every_workload_is_in_the_registry() {
        for (name, ..) in WORKLOADS {
            assert!(workload::find(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn workloads_are_chosen_by_regex() {
        let names = |regex| -> Vec<String> {
            plan(choice(regex))
                .unwrap()
                .workloads
                .into_iter()
                .map(|w| w.name)
                .collect()
        };
        assert_eq!(names("^open|umask"), ["umask", "open_close"]);
        let error = plan(choice("nothing")).unwrap_err().to_string();
        assert!(
            error.contains("no workload matches; there are getppid"),
            "{error}"
        );
    }

    #[test]
    fn a_subject_is_a_name_and_a_wrapper_that_may_hold_an_equals_sign() {
        let plan = plan(choice("umask")).unwrap();
        assert_eq!(plan.subjects[0].wrapper, "strace -e 'trace=none' {}");
        for wrong in ["strace {}", "=x {}"] {
            assert!(
                subject(wrong)
                    .unwrap_err()
                    .to_string()
                    .contains("NAME='wrapper {}'")
            );
        }
    }

    #[test]
    fn without_a_subject_tollgate_itself_is_measured() {
        let plan = plan(QuickOptions {
            subjects: Vec::new(),
            ..choice("umask")
        })
        .unwrap();
        assert_eq!(plan.subjects.len(), 1);
        assert_eq!(plan.subjects[0].name, "tollgate");
    }
}
