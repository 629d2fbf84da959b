//! Samples of the comparison, and the tables made of them.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use e2e::repository;
use serde_json::{Value, json};

use crate::subjects::Subject;
use crate::work::{BUILDS, JOBS, UNCOVERED, WAYS};

/// Says whether a sample counts.
type Check = fn(&Value) -> bool;

/// All samples, which are written as they come.
pub(crate) struct Samples {
    all: Vec<Value>,
    file: Option<File>,
    load: String,
}

impl Samples {
    pub(crate) fn new(folder: Option<&Path>) -> Self {
        let path = folder.map(|folder| {
            fs::create_dir_all(folder).expect("the folder can be made");
            folder.join("samples.jsonl")
        });
        // A run that was interrupted goes on.
        let before = path.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let before = before.unwrap_or_default();
        let all = before
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let all = all.collect();
        let file = path.map(|path| {
            let file = File::options().append(true).create(true).open(path);
            file.expect("the folder can be written to")
        });
        Self {
            all,
            file,
            load: crate::read("/proc/loadavg"),
        }
    }

    pub(crate) fn push(&mut self, sample: Value) {
        if let Some(file) = &mut self.file {
            writeln!(file, "{sample}").expect("the file can be written to");
        }
        self.all.push(sample);
    }

    /// Returns true if samples of a measure and subject are there already.
    pub(crate) fn has(&self, measure: &str, subject: Subject) -> bool {
        !self.of(measure, subject).is_empty()
    }

    /// Returns the samples of one measure and subject.
    pub(crate) fn of(&self, measure: &str, subject: Subject) -> Vec<&Value> {
        let is_it =
            |sample: &&Value| sample["measure"] == measure && sample["subject"] == subject.name();
        self.all.iter().filter(is_it).collect()
    }

    fn times(&self, measure: &str, subject: Subject) -> Vec<f64> {
        let samples = self.of(measure, subject);
        samples
            .iter()
            .filter_map(|sample| sample["ms"].as_f64())
            .collect()
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
        _ => sorted[middle],
    }
}

/// Writes the tables and what is known of the host.
pub(crate) fn write(folder: &Path, subjects: &[Subject], rounds: usize, samples: &Samples) {
    let tables = [
        summary(subjects, samples),
        times(subjects, samples),
        ways(subjects, samples),
        uncovered(subjects, samples),
        jobs(subjects, samples),
    ];
    let host = serde_json::to_string_pretty(&host(rounds, samples)).expect("JSON") + "\n";
    for (name, text) in [("host.json", host), ("summary.md", tables.join("\n"))] {
        println!("{text}");
        fs::write(folder.join(name), text).expect("the folder can be written to");
    }
}

fn header(first: &str, subjects: &[Subject]) -> String {
    let names: Vec<_> = subjects
        .iter()
        .map(|subject| format!(" {} |", subject.name()))
        .collect();
    format!(
        "| {first} |{}\n|---|{}\n",
        names.concat(),
        "---|".repeat(names.len())
    )
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<_> = cells.map(|cell| format!(" {cell} |")).collect();
    format!("| {first} |{}\n", cells.concat())
}

fn summary(subjects: &[Subject], samples: &Samples) -> String {
    let mut table = header("of 30 ways out, 20 jobs", subjects);
    let count = |subject: Subject, holds: Check| {
        let ways = samples.of("way", subject);
        ways.iter()
            .filter(|sample| holds(sample))
            .count()
            .to_string()
    };
    let rows: [(&str, Check); 3] = [
        ("denied", |sample| sample["done"] == false),
        ("denied, and reported by name", |sample| {
            sample["done"] == false && sample["named"] == true
        }),
        ("reported with the line of the policy", |sample| {
            sample["done"] == false && sample["named"] == true && sample["line"] == true
        }),
    ];
    for (name, holds) in rows {
        table += &row(name, subjects.iter().map(|subject| count(*subject, holds)));
    }
    for class in ["read", "write", "exec", "connect", "unix"] {
        let cells = subjects.iter().map(|subject| {
            let ways = samples.of("way", *subject);
            let of: Vec<_> = ways
                .iter()
                .filter(|sample| sample["class"] == class)
                .collect();
            let denied = of.iter().filter(|sample| sample["done"] == false).count();
            format!("{denied} of {}", of.len())
        });
        table += &row(&format!("denied: {class}"), cells);
    }
    let worked = |subject: Subject| {
        let jobs = samples.of("job", subject);
        let worked = jobs.iter().filter(|sample| sample["code"] == 0).count();
        format!("{worked} of {}", jobs.len())
    };
    let without_denial = |subject: Subject| {
        let jobs = samples.of("job", subject);
        let clean = jobs
            .iter()
            .filter(|sample| sample["code"] == 0 && sample["denials"] == 0);
        format!("{} of {}", clean.count(), jobs.len())
    };
    table += &row(
        "jobs that work, and report no denial",
        subjects.iter().map(|subject| without_denial(*subject)),
    );
    table
        + &row(
            "jobs that work",
            subjects.iter().map(|subject| worked(*subject)),
        )
}

fn times(subjects: &[Subject], samples: &Samples) -> String {
    let mut table = header("time", subjects);
    let start = |subject: &Subject| format!("{:.1}", median(&samples.times("start", *subject)));
    table += &row("`true`, ms, median", subjects.iter().map(start));
    for (build, ..) in BUILDS {
        let none = samples.times(build, Subject::None);
        let cells = subjects.iter().map(|subject| {
            let times = samples.times(build, *subject);
            // Rounds are pairs: what disturbs one side mostly disturbs both.
            let mut ratios: Vec<f64> = times
                .iter()
                .zip(&none)
                .map(|(time, none)| time / none)
                .collect();
            ratios.sort_by(f64::total_cmp);
            let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
            format!("{:.2} ({least:.2} to {most:.2})", median(&ratios))
        });
        let first = format!("`{build}`, over none, median of rounds (least to most)");
        table += &row(&first, cells);
        let plain = subjects
            .iter()
            .map(|subject| format!("{:.0}", median(&samples.times(build, *subject))));
        table += &row(&format!("`{build}`, ms, median"), plain);
    }
    table
}

fn way_cell(sample: &Value) -> String {
    let text = match (sample["done"].as_bool(), sample["named"] == true) {
        (Some(false), true) => "denied, reported",
        (Some(false), false) => "denied",
        (Some(true), _) => "done",
        (None, _) => "?",
    };
    text.to_owned()
}

fn ways(subjects: &[Subject], samples: &Samples) -> String {
    let mut table = header("way out", subjects);
    for (_, way, _) in WAYS {
        let cells = subjects.iter().map(|subject| {
            let ways = samples.of("way", *subject);
            let sample = ways.iter().find(|sample| sample["way"] == way);
            sample.map_or_else(|| "-".to_owned(), |sample| way_cell(sample))
        });
        table += &row(&format!("`{way}`"), cells);
    }
    table
}

fn uncovered(subjects: &[Subject], samples: &Samples) -> String {
    let mut table = header("beside those", subjects);
    for (way, text) in UNCOVERED {
        let cells = subjects.iter().map(|subject| {
            let ways = samples.of("uncovered", *subject);
            let sample = ways.iter().find(|sample| sample["way"] == way);
            sample.map_or_else(
                || "-".to_owned(),
                |sample| match sample["done"] == true {
                    true => "done".to_owned(),
                    false => "denied".to_owned(),
                },
            )
        });
        table += &row(text, cells);
    }
    table
}

fn jobs(subjects: &[Subject], samples: &Samples) -> String {
    let mut table = header("job", subjects);
    for (job, ..) in JOBS {
        let cells = subjects.iter().map(|subject| {
            let jobs = samples.of("job", *subject);
            let sample = jobs.iter().find(|sample| sample["job"] == job);
            sample.map_or_else(
                || "-".to_owned(),
                |sample| match sample["code"].as_i64() {
                    Some(0) => "works".to_owned(),
                    code => format!("fails ({})", code.unwrap_or_default()),
                },
            )
        });
        let mut first = String::new();
        // Writing to a String cannot fail.
        let _ = write!(first, "{job}");
        table += &row(&first, cells);
    }
    table
}

fn host(rounds: usize, samples: &Samples) -> Value {
    let cpus = crate::read("/proc/cpuinfo");
    let models: Vec<_> = cpus
        .lines()
        .filter_map(|line| line.strip_prefix("model name"))
        .collect();
    let commit = Command::new("git")
        .args(["rev-parse", "HEAD"])
        .current_dir(repository())
        .output();
    let commit = commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let versions: serde_json::Map<String, Value> = Subject::ALL[1..]
        .iter()
        .map(|subject| (subject.name().to_owned(), json!(subject.version())))
        .collect();
    json!({
        "command": "make guard-peers OUT=FOLDER",
        "rounds": rounds,
        "kernel": crate::read("/proc/sys/kernel/osrelease"),
        "cpu_model": models.first().map(|model| model.trim_start_matches(['\t', ' ', ':'])),
        "cpus": models.len(),
        "commit": commit.ok(),
        "versions": versions,
        "load_before": samples.load,
        "load_after": crate::read("/proc/loadavg"),
    })
}
