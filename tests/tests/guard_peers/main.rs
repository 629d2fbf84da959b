//! `tollgate guard` beside bubblewrap, sandbox-runtime and sandlock: thirty ways out of a box, twenty ordinary jobs,
//! and the time of starts and builds.
//!
//! Without a variable set, `guard` alone does all but what is timed: it has to deny and report each way and let
//! each job work. Each way is tried without a box, too; each job is when slow tests are asked for, and else the one that
//! makes cargo's files in the home.
//! `make guard-peers OUT=FOLDER` measures all, and writes tables and samples to the folder.
//! `TOLLGATE_GUARD_PEERS_ROUNDS` (12) is how often is timed. What the folder has already is not done again.
//!
//! All runs in a network namespace of its own without a route, with servers on its loopback device.

mod lab;
mod report;
mod subjects;
mod work;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use e2e::{Finished, Limited, need_root, repository, skip_part, slow};
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::report::Samples;
use crate::subjects::Subject;
use crate::work::{BUILDS, JOBS, UNCOVERED, WAYS};

const FOLDER: &str = "TOLLGATE_GUARD_PEERS";
const ROUNDS: &str = "TOLLGATE_GUARD_PEERS_ROUNDS";
/// Set in the process that runs in the namespace.
const INSIDE: &str = "TOLLGATE_GUARD_PEERS_INSIDE";
const LIMIT: Duration = Duration::from_secs(3600);

#[test]
fn every_way_out_is_reported_and_every_job_works_beside_peers() {
    need_root!();
    match std::env::var_os(INSIDE) {
        Some(_) => {
            let missing = inside();
            if !missing.is_empty() {
                skip_part!("needs the programs of each job", || Ok(missing.join(", ")));
            }
        }
        None => start_inside(),
    }
}

/// Runs this test in a network and mount namespace of its own.
fn start_inside() {
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--propagation", "private"]);
    command.arg(std::env::current_exe().expect("procfs"));
    command
        .args(["--nocapture", "--test-threads=1"])
        .env(INSIDE, "1");
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    println!("{}", finished.stdout);
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
}

/// Does all in the namespace. Returns the jobs that were left out, with what they need.
fn inside() -> Vec<String> {
    let folder = std::env::var_os(FOLDER);
    assert_ne!(
        folder.as_deref(),
        Some("".as_ref()),
        "{FOLDER} names no folder"
    );
    let folder = folder.map(|folder| repository().join(PathBuf::from(folder)));
    let is_measured = folder.is_some();
    let wanted = |subject: &Subject| {
        matches!(subject, Subject::None | Subject::Guard)
            || is_measured && subject.program().is_ok()
    };
    let subjects: Vec<Subject> = Subject::ALL.into_iter().filter(wanted).collect();
    let lab = Lab::new();
    let mut samples = Samples::new(folder.as_deref());
    let mut missing = Vec::new();
    for subject in &subjects {
        if !samples.has("way", *subject) {
            try_ways(&lab, *subject, &mut samples);
        }
        // Without a box the jobs are a control of those in it. Cargo's first job makes files in the home.
        let is_control = *subject == Subject::None && !is_measured && !slow();
        let only = is_control.then_some("cargo build");
        if !samples.has("job", *subject) {
            missing = do_jobs(&lab, *subject, only, &mut samples);
        }
    }
    if let Some(folder) = &folder {
        let rounds = std::env::var(ROUNDS).map_or(12, |text| text.parse().expect("a number"));
        time(&lab, &subjects, rounds, &mut samples);
        report::write(folder, &subjects, rounds, &samples);
    }
    check(&samples);
    missing
}

/// Tries each way out, in a new project each.
fn try_ways(lab: &Lab, subject: Subject, samples: &mut Samples) {
    let script = lab.text("fixtures/ways.py");
    let (home, other) = (lab.text("home"), lab.other());
    let uncovered = UNCOVERED.map(|(way, _)| ("uncovered", way, "?"));
    for (class, way, target) in WAYS.iter().chain(&uncovered) {
        lab.reset();
        let words = ["/usr/bin/python3", &script, way, &home, &lab.name, &other];
        let finished = lab.run(&subject.command(lab, *class == "exec", &words));
        // The last line is the script's; a program that was executed in its place ends with 0 and says nothing.
        let last = finished
            .stdout
            .lines()
            .rev()
            .find(|line| line.starts_with('{'));
        let result: Value = last.map_or_else(
            || json!({"done": null, "error": finished.stderr.lines().last()}),
            |line| serde_json::from_str(line).expect("JSON"),
        );
        let said = said(&finished, &result);
        let target = target.replace('~', &home);
        samples.push(json!({
            "measure": if *class == "uncovered" { "uncovered" } else { "way" }, "subject": subject.name(),
            "class": class, "way": way, "done": result["done"], "error": result["error"],
            "named": said.contains(&target), "line": said.contains("policy line "),
            "said": first_lines(&said, lab),
        }));
    }
}

/// What the box says: on the standard error, which the script does not use, or to a client of its proxy.
fn said(finished: &Finished, result: &Value) -> String {
    let error = result["error"]
        .as_str()
        .filter(|text| text.contains("HTTP Error"));
    format!("{}{}", finished.stderr, error.unwrap_or_default())
}

fn first_lines(text: &str, lab: &Lab) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with('{'))
        .take(2)
        .collect();
    let folder = lab.path("").display().to_string();
    let text = lines.join("\n").replace(&folder, "/lab/");
    text.chars().take(300).collect()
}

/// Returns true if a program, or a module of the system's Python (`python:NAME`), is installed.
fn is_there(name: &str) -> bool {
    let Some(module) = name.strip_prefix("python:") else {
        return e2e::installed(name);
    };
    let import = format!("import {module}");
    let found = Command::new("/usr/bin/python3")
        .args(["-c", &import])
        .output();
    found.is_ok_and(|output| output.status.success())
}

/// Does each job whose programs are installed, in a new project each. Returns the others, with what they need.
/// `only`: the one to do.
fn do_jobs(lab: &Lab, subject: Subject, only: Option<&str>, samples: &mut Samples) -> Vec<String> {
    let mut missing = Vec::new();
    let is_wanted = |job: &str| only.is_none_or(|only| only == job);
    for (job, programs, script) in JOBS.into_iter().filter(|(job, ..)| is_wanted(job)) {
        if let Some(lacked) = programs.split_whitespace().find(|name| !is_there(name)) {
            missing.push(format!("{job}: no {lacked}"));
            continue;
        }
        lab.reset();
        let started = Instant::now();
        let finished = lab.run(&subject.command(lab, false, &["sh", "-ec", script]));
        let denials = finished
            .stderr
            .lines()
            .filter(|line| line.starts_with("{\"") && line.contains("\"event\":\"denied\""));
        let denials: Vec<&str> = denials.collect();
        let why = match finished.code() {
            0 => String::new(),
            _ => finished.stderr.replace(&lab.text(""), "/lab/"),
        };
        let why: Vec<&str> = why.lines().filter(|line| !line.starts_with('{')).collect();
        samples.push(json!({
            "measure": "job", "subject": subject.name(), "job": job, "code": finished.code(),
            "denials": denials.len(), "ms": u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            "why": why[why.len().saturating_sub(6)..].join("\n"),
            "denied": denials.iter().map(|line| serde_json::from_str::<Value>(line).map_or(Value::Null, |line| line["message"].clone())).collect::<Vec<_>>(),
        }));
    }
    missing
}

/// What holds wherever this runs: nothing is denied without a box, and guard reports all and lets all jobs work.
fn check(samples: &Samples) {
    for sample in samples.of("way", Subject::None) {
        assert_eq!(sample["done"], true, "without a box: {sample}");
    }
    for sample in samples.of("way", Subject::Guard) {
        assert_eq!(sample["done"], false, "{sample}");
        assert_eq!(
            (&sample["named"], &sample["line"]),
            (&json!(true), &json!(true)),
            "{sample}"
        );
    }
    for subject in [Subject::None, Subject::Guard] {
        let jobs = samples.of("job", subject);
        let least = if subject == Subject::None && !slow() {
            1
        } else {
            8
        };
        assert!(
            jobs.len() >= least,
            "too few programs are installed: {jobs:?}"
        );
        for sample in jobs {
            assert_eq!(
                (&sample["code"], &sample["denials"]),
                (&json!(0), &json!(0)),
                "{sample}"
            );
        }
    }
}

/// Times starts and builds, one subject after the other in each round, in an order that changes.
fn time(lab: &Lab, subjects: &[Subject], rounds: usize, samples: &mut Samples) {
    let mut run = |subject: Subject, measure: &str, round: Option<usize>, words: &[&str]| {
        let words = subject.command(lab, false, words);
        let started = Instant::now();
        let finished = lab.run(&words);
        let ms = started.elapsed().as_secs_f64() * 1e3;
        assert_eq!(finished.code(), 0, "{subject:?} {measure}: {finished:?}");
        if let Some(round) = round {
            samples.push(json!({"measure": measure, "subject": subject.name(), "round": round, "ms": (ms * 10.0).round() / 10.0}));
        }
    };
    let turns = |round: usize| {
        let count = subjects.len();
        (0..count).map(move |turn| (turn + round) % count)
    };
    // Two in a row of the same subject in the first round read all files once.
    for (measure, prepare, build) in BUILDS {
        lab.reset();
        run(Subject::None, measure, None, &["sh", "-ec", prepare]);
        run(Subject::None, measure, None, &["sh", "-ec", build]);
        for round in 0..rounds {
            for turn in turns(round) {
                run(subjects[turn], measure, Some(round), &["sh", "-ec", build]);
            }
        }
    }
    for round in 0..rounds * 3 {
        for turn in turns(round) {
            run(subjects[turn], "start", Some(round), &["true"]);
        }
    }
}

/// Text of a file, without the end of its line.
fn read(path: impl AsRef<Path>) -> String {
    let text = std::fs::read_to_string(path).expect("procfs");
    text.trim().to_owned()
}
