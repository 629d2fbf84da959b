//! Measured cost of trapping calls.
//!
//! Figures are medians of a run of `tollgate bench`: of the published run, which is part of this program, or of
//! a run on the user's host, computed from its samples.

use std::path::Path;

use config::Choice;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use serde::Deserialize;

/// A published run: its folder, and the medians that prices are computed from. A test compares them with the
/// run's samples.
const PUBLISHED: (&str, &str) = ("results/2026-11-21-engine", include_str!("published.json"));

/// Name of the subject without a monitor.
const NATIVE: &str = "native";

/// How processes are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchMode {
    /// By seccomp's listener.
    Notify,
    /// From within the kernel.
    Ebpf,
}

impl Choice for WatchMode {
    const CHOICES: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Notify, "notify", "By seccomp's listener"),
        (Self::Ebpf, "ebpf", "From within the kernel"),
    ];
}

impl WatchMode {
    /// Returns the engine's name, which is also a subject of runs.
    pub(super) fn name(self) -> &'static str {
        self.word()
    }

    /// Returns the names of the engine's subjects; the first that a run has is used.
    fn subjects(self) -> &'static [&'static str] {
        match self {
            Self::Notify => &["notify", "tollgate"],
            Self::Ebpf => &["ebpf"],
        }
    }
}

/// Additional time that a monitor costs a workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WorkloadPrice {
    /// The time, in nanoseconds.
    pub(super) ns: f64,
    /// Name of the workload.
    pub(super) workload: &'static str,
    /// Number of samples.
    pub(super) samples: usize,
}

/// Prices of one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    /// Source of the figures.
    pub(super) origin: String,
    /// Price of a call that no rule needs.
    pub(super) untouched: WorkloadPrice,
    /// Price of a trapped call.
    pub(super) looked_at: WorkloadPrice,
    /// Price of starting a program.
    pub(super) started: WorkloadPrice,
}

/// The median time of a workload under a subject.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Median {
    workload: String,
    subject: String,
    /// Number of samples.
    n: usize,
    median_ns: Option<f64>,
}

/// Computes the medians of a results folder from its samples.
#[cfg(feature = "bench")]
fn measured(folder: &Path) -> Result<Vec<Median>, String> {
    let recording = bench::record::Recording::load(folder).map_err(|error| with_causes(&error))?;
    let summary = bench::summary::summarise(&recording);
    let rows = summary.rows.into_iter().map(|row| Median {
        workload: row.workload,
        subject: row.subject,
        n: row.n,
        median_ns: row.median_ns,
    });
    Ok(rows.collect())
}

/// Refuses: this build does not read results.
#[cfg(not(feature = "bench"))]
fn measured(_folder: &Path) -> Result<Vec<Median>, String> {
    Err("this build reads no results; build with the feature `bench`".to_owned())
}

/// Returns the medians of the published run.
fn published() -> Result<Vec<Median>, String> {
    serde_json::from_str(PUBLISHED.1).map_err(|error| error.to_string())
}

impl Figures {
    /// Returns the figures of a results folder, or the published ones.
    pub(super) fn of(folder: Option<&Path>, by: WatchMode) -> Result<Self, Failure> {
        let (origin, medians) = match folder {
            None => (PUBLISHED.0.to_owned(), published()),
            Some(folder) => (folder.display().to_string(), measured(folder)),
        };
        medians
            .and_then(|medians| Self::read(&origin, &medians, by))
            .map_err(|why| unusable(&origin, &why))
    }

    fn read(origin: &str, medians: &[Median], by: WatchMode) -> Result<Self, String> {
        let price = |workload: &'static str| {
            let row = |subjects: &[&str]| {
                let of_subject = |subject: &&str| {
                    let mut rows = medians.iter();
                    let row = rows.find(|row| row.workload == workload && row.subject == *subject);
                    row.and_then(|row| Some((row.median_ns?, row.n)))
                };
                subjects
                    .iter()
                    .find_map(of_subject)
                    .ok_or_else(|| format!("it has no figure for {workload} of {}", subjects[0]))
            };
            let ((native, _), (watched, samples)) = (row(&[NATIVE])?, row(by.subjects())?);
            Ok::<_, String>(WorkloadPrice {
                ns: (watched - native).max(0.0),
                workload,
                samples,
            })
        };
        let untouched = price("getppid")?;
        let pair = price("open_close")?;
        Ok(Self {
            origin: origin.to_owned(),
            // The close after the open is a call that no rule needs.
            looked_at: WorkloadPrice {
                ns: (pair.ns - untouched.ns).max(0.0),
                ..pair
            },
            started: price("fork_exec")?,
            untouched,
        })
    }
}

/// Formats an error and its causes on one line.
#[cfg(feature = "bench")]
fn with_causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |error| error.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn unusable(origin: &str, why: &str) -> Failure {
    Failure::new(Exit::BadInput, format!("cannot use the figures of {origin}: {why}")).help(
        "name the folder of a run of `tollgate bench compare` with getppid, open_close and fork_exec",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_figures_are_differences_of_medians() {
        for by in [WatchMode::Notify, WatchMode::Ebpf] {
            let figures = Figures::of(None, by).expect("they are part of the program");
            check(&figures, by);
        }
    }

    #[test]
    fn published_figures_are_those_of_the_runs_samples() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .join(PUBLISHED.0);
        let measured = measured(&folder).expect("the repository has its samples");
        for told in published().expect("it is JSON") {
            let is_same = |row: &Median| {
                let distance = row
                    .median_ns
                    .zip(told.median_ns)
                    .map(|(is, told)| (is / told - 1.0).abs());
                // The JSON parser may be off in the last bit.
                (&row.workload, &row.subject, row.n) == (&told.workload, &told.subject, told.n)
                    && distance.is_some_and(|distance| distance < 1e-12)
            };
            assert!(
                measured.iter().any(is_same),
                "{told:?} is not in {measured:?}"
            );
        }
    }

    fn check(figures: &Figures, by: WatchMode) {
        let medians = published().expect("it is JSON");
        let median = |workload: &str, subject: &str| {
            let mut rows = medians.iter();
            let row = rows.find(|row| row.workload == workload && row.subject == subject);
            row.and_then(|row| row.median_ns).expect("it was measured")
        };
        let started = median("fork_exec", by.name()) - median("fork_exec", "native");
        assert!((figures.started.ns - started).abs() < 1.0, "{figures:?}");
        // Orders of magnitude; no run was far from them.
        assert!((5.0..200.0).contains(&figures.untouched.ns), "{figures:?}");
        assert!((5e2..5e4).contains(&figures.looked_at.ns), "{figures:?}");
        assert!((5e4..2e6).contains(&figures.started.ns), "{figures:?}");
    }

    #[test]
    fn a_run_without_a_workload_is_refused() {
        let row = |subject: &str, ns: f64| Median {
            workload: "getppid".to_owned(),
            subject: subject.to_owned(),
            n: 3,
            median_ns: Some(ns),
        };
        let medians = [row("native", 1.0), row("tollgate", 2.0)];
        let read = Figures::read("X", &medians, WatchMode::Notify);
        let why = read.expect_err("open_close is missing");
        assert_eq!(why, "it has no figure for open_close of native");
    }
}
