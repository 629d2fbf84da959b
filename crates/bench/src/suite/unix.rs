//! `tollgate bench unix`: UnixBench's twelve tests, its units, its index.

use std::path::{Path, PathBuf};

use workload::unixbench::{TESTS, Test};

use super::{SuiteOptions, Table, available, own};
use crate::plan::{Plan, Suite, TimeSource, Workload};
use crate::{Error, command_line};

/// Options of `tollgate bench unix`.
#[derive(Clone, Debug)]
pub struct Unix {
    /// Options of every suite.
    pub choice: SuiteOptions,
    /// Number of parallel copies of each test. Empty: 1 and the number of CPUs.
    pub copies: Vec<u16>,
    /// Measure as UnixBench does: three or ten passes of 10 to 60 seconds each, without the worst third. Takes
    /// hours.
    pub classic: bool,
    /// With `classic`: number of passes of the long tests. Other tests make a third of them. `None`: 10.
    pub passes: Option<u32>,
    /// Length of one sample in seconds.
    pub seconds: f64,
    /// Folder with `pgms`, where UnixBench is built: its original programs are measured, too.
    pub unixbench: Option<PathBuf>,
}

/// Suffix of workloads that are UnixBench's own programs, after the test's name.
pub(crate) const ORIGINAL: &str = "@unixbench";

impl Unix {
    /// Makes the plan.
    pub(crate) fn plan(&self) -> Result<Plan, Error> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut copies = self.copies.clone();
        if copies.is_empty() {
            copies = vec![1, u16::try_from(processors).unwrap_or(1)];
        }
        copies.sort_unstable();
        copies.dedup();
        let mut workloads = Vec::new();
        for copies in copies {
            workloads.extend(TESTS.iter().map(|test| self.workload(test, copies)));
            if let Some(folder) = &self.unixbench {
                let folder = checked(folder)?;
                workloads.extend(
                    TESTS
                        .iter()
                        .map(|test| self.original(test, copies, &folder)),
                );
            }
        }
        let rules = &self.choice.rules;
        self.choice.plan(Table {
            suite: Suite::Unix,
            name: if self.classic { "unix-classic" } else { "unix" },
            workloads,
            subjects: available(&["notify"], rules)?,
            rounds: if self.classic {
                self.passes(true)
            } else {
                self.choice.pick(2, 8)
            },
            timeout_seconds: 600,
        })
    }

    fn passes(&self, is_long: bool) -> u32 {
        match (self.passes, is_long) {
            (None, true) => 10,
            (None, false) => 3,
            (Some(passes), true) => passes,
            (Some(passes), false) => (passes.saturating_add(1) / 3).max(1),
        }
    }

    fn seconds(&self, test: &Test) -> f64 {
        match (self.classic, self.choice.quick) {
            (true, _) => f64::from(test.seconds),
            (_, true) => 0.3,
            _ => self.seconds,
        }
    }

    fn workload(&self, test: &Test, copies: u16) -> Workload {
        let classic = if self.classic { " --classic" } else { "" };
        let arguments = format!(
            "{} --seconds {} --copies {copies}{classic}",
            test.load,
            self.seconds(test)
        );
        self.finished(
            test,
            copies,
            own(&name(test, copies), "operation", &arguments),
        )
    }

    /// Makes a workload of UnixBench's own program. It runs natively only: a subject would only repeat what our
    /// test shows.
    fn original(&self, test: &Test, copies: u16, folder: &str) -> Workload {
        let seconds = self.seconds(test).ceil().max(1.0);
        let workload = Workload {
            is_bare: true,
            command: format!(
                "{{tollgate}} bench original {} --seconds {seconds} --copies {copies} {folder}",
                test.name
            ),
            ..own(&(name(test, copies) + ORIGINAL), "operation", "")
        };
        self.finished(test, copies, workload)
    }

    fn finished(&self, test: &Test, copies: u16, workload: Workload) -> Workload {
        Workload {
            figure: TimeSource::Json,
            rounds: self.classic.then(|| self.passes(test.is_long)),
            group: Some(if copies == 1 {
                "1 copy".to_owned()
            } else {
                format!("{copies} copies")
            }),
            ..workload
        }
    }
}

fn name(test: &Test, copies: u16) -> String {
    if copies == 1 {
        test.name.to_owned()
    } else {
        format!("{}-x{copies}", test.name)
    }
}

/// Returns the test of a workload of this suite, and whether the workload is UnixBench's own program.
pub(crate) fn test_of(workload: &str) -> Option<(&'static Test, bool)> {
    let (name, is_original) = match workload.strip_suffix(ORIGINAL) {
        Some(name) => (name, true),
        None => (workload, false),
    };
    let stem = name.rsplit_once("-x").map_or(name, |(stem, copies)| {
        if copies.parse::<u16>().is_ok() {
            stem
        } else {
            name
        }
    });
    let test = TESTS.iter().find(|test| test.name == stem)?;
    Some((test, is_original))
}

/// Returns the folder, quoted for command lines, if UnixBench is built there.
fn checked(folder: &Path) -> Result<String, Error> {
    let program = folder.join("pgms/syscall");
    if !program.exists() {
        return Err(Error::Option {
            option: format!("--unixbench {}", folder.display()),
            reason: format!(
                "no such file: {}; name the folder in which `make` was run",
                program.display()
            ),
        });
    }
    let folder = folder.canonicalize().map_err(Error::file("find", folder))?;
    Ok(command_line::join(&[folder.to_string_lossy().into_owned()]))
}

#[cfg(test)]
impl Unix {
    pub(crate) fn for_tests(choice: SuiteOptions, classic: bool) -> Self {
        Self {
            choice,
            copies: vec![2, 1],
            classic,
            passes: None,
            seconds: 2.0,
            unixbench: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classic_passes_are_unixbenchs() {
        let mut unix = Unix::for_tests(SuiteOptions::default(), true);
        let plan = unix.plan().unwrap();
        let of = |name: &str| {
            plan.workloads
                .iter()
                .find(|w| w.name == name)
                .unwrap()
                .clone()
        };
        assert_eq!(
            (plan.rounds, of("syscall").rounds, of("shell8").rounds),
            (10, Some(10), Some(3))
        );
        assert!(
            of("shell8-x2")
                .command
                .ends_with("ub_shell8 --seconds 60 --copies 2 --classic")
        );
        unix.passes = Some(4);
        assert_eq!((unix.passes(true), unix.passes(false)), (4, 1));
    }

    #[test]
    fn names_lead_back_to_tests() {
        let found = |name| test_of(name).map(|(test, original)| (test.name, original));
        assert_eq!(found("syscall"), Some(("syscall", false)));
        assert_eq!(found("dhry2reg-x16"), Some(("dhry2reg", false)));
        assert_eq!(
            found("whetstone-double@unixbench"),
            Some(("whetstone-double", true))
        );
        assert_eq!(found("other"), None);
    }

    #[test]
    fn a_folder_without_unixbench_is_refused() {
        let unix = Unix {
            unixbench: Some("/etc".into()),
            ..Unix::for_tests(SuiteOptions::default(), false)
        };
        assert!(
            unix.plan()
                .unwrap_err()
                .to_string()
                .contains("/etc/pgms/syscall")
        );
    }
}
