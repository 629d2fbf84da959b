//! What looking at calls has been measured to cost.
//!
//! Figures are taken from the summary of a run of `tollgate bench compare`: one that is published with
//! this program, or one of the user's machine.

use std::fs;
use std::path::Path;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use serde::Deserialize;

/// A published run: its folder and its summary.
const PUBLISHED: (&str, &str) = (
    "results/2026-11-21-engine",
    include_str!("../../../../../../results/2026-11-21-engine/summary.json"),
);

/// Who is watched by nobody.
const NATIVE: &str = "native";

/// How processes are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Watched {
    /// By seccomp's listener
    Notify,
    /// From within the kernel
    Ebpf,
}

impl Watched {
    /// Its word, also among the subjects of runs.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Notify => "notify",
            Self::Ebpf => "ebpf",
        }
    }

    /// What runs call it: the first that they have.
    fn subjects(self) -> &'static [&'static str] {
        match self {
            Self::Notify => &["notify", "tollgate"],
            Self::Ebpf => &["ebpf"],
        }
    }
}

/// The difference that watching makes to a workload.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Price {
    /// Nanoseconds.
    pub(super) ns: f64,
    /// The workload.
    pub(super) workload: &'static str,
    /// How often it was measured.
    pub(super) samples: u64,
}

/// Prices of one run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    /// Where they are from.
    pub(super) origin: String,
    /// A call that no rule needs.
    pub(super) untouched: Price,
    /// A call that is looked at.
    pub(super) looked_at: Price,
    /// A program that is started.
    pub(super) started: Price,
}

#[derive(Deserialize)]
struct Summary {
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    workload: String,
    subject: String,
    n: u64,
    median_ns: Option<f64>,
}

impl Figures {
    /// Those of a folder of results, or the published ones.
    pub(super) fn of(folder: Option<&Path>, by: Watched) -> Result<Self, Failure> {
        let Some(folder) = folder else {
            let (origin, text) = PUBLISHED;
            return Self::read(origin, text, by).map_err(|why| unusable(origin, &why));
        };
        let origin = folder.display().to_string();
        let text = fs::read_to_string(folder.join("summary.json")).map_err(|error| {
            unusable(&origin, &format!("cannot read its summary.json: {error}"))
        })?;
        Self::read(&origin, &text, by).map_err(|why| unusable(&origin, &why))
    }

    fn read(origin: &str, text: &str, by: Watched) -> Result<Self, String> {
        let summary: Summary = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let price = |workload: &'static str| {
            let row = |subjects: &[&str]| {
                let of_subject = |subject: &&str| {
                    let mut rows = summary.rows.iter();
                    let row = rows.find(|row| row.workload == workload && row.subject == *subject);
                    row.and_then(|row| Some((row.median_ns?, row.n)))
                };
                subjects
                    .iter()
                    .find_map(of_subject)
                    .ok_or_else(|| format!("it has no figure for {workload} of {}", subjects[0]))
            };
            let ((native, _), (watched, samples)) = (row(&[NATIVE])?, row(by.subjects())?);
            Ok::<_, String>(Price {
                ns: (watched - native).max(0.0),
                workload,
                samples,
            })
        };
        let untouched = price("getppid")?;
        let pair = price("open_close")?;
        Ok(Self {
            origin: origin.to_owned(),
            // The close that belongs to it is a call that no rule needs.
            looked_at: Price {
                ns: (pair.ns - untouched.ns).max(0.0),
                ..pair
            },
            started: price("fork_exec")?,
            untouched,
        })
    }
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
        for by in [Watched::Notify, Watched::Ebpf] {
            let figures = Figures::of(None, by).expect("they are part of the program");
            check(&figures, by);
        }
    }

    fn check(figures: &Figures, by: Watched) {
        let summary: Summary = serde_json::from_str(PUBLISHED.1).expect("it is JSON");
        let median = |workload: &str, subject: &str| {
            let mut rows = summary.rows.iter();
            let row = rows.find(|row| row.workload == workload && row.subject == subject);
            row.and_then(|row| row.median_ns).expect("it was measured")
        };
        let started = median("fork_exec", by.name()) - median("fork_exec", "native");
        assert!((figures.started.ns - started).abs() < 1.0, "{figures:?}");
        // Orders of magnitude that no run has been far from.
        assert!((5.0..200.0).contains(&figures.untouched.ns), "{figures:?}");
        assert!((5e2..5e4).contains(&figures.looked_at.ns), "{figures:?}");
        assert!((5e4..2e6).contains(&figures.started.ns), "{figures:?}");
    }

    #[test]
    fn a_run_without_a_workload_is_refused() {
        let row = |subject: &str, ns: f64| {
            format!(r#"{{"workload":"getppid","subject":"{subject}","n":3,"median_ns":{ns}}}"#)
        };
        let text = format!(
            r#"{{"rows":[{},{}]}}"#,
            row("native", 1.0),
            row("tollgate", 2.0)
        );
        let read = Figures::read("X", &text, Watched::Notify);
        let why = read.expect_err("open_close is missing");
        assert_eq!(why, "it has no figure for open_close of native");
    }
}
