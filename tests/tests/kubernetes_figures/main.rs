//! Figures of `tollgate node` with the real containerd, API server and operator: attacks that come first, answers to the
//! runtime, changes of policies, outages.
//!
//! `TOLLGATE_NODE_OUT` is the folder for raw samples. `TOLLGATE_NODE_PODS`, `TOLLGATE_NODE_BURSTS`,
//! `TOLLGATE_NODE_CHANGES` and `TOLLGATE_NODE_LEADERS` are other numbers of repetitions.

mod changes;
mod leaders;
mod one_shots;

use std::fs;
use std::path::Path;
use std::process::Command;

use e2e::cluster::node::is_ready;
use serde_json::Value;

/// Where the agent serves its metrics.
const METRICS: &str = "127.0.0.1:19580";

/// A number from the environment, or the one that fits among other tests.
fn repetitions(variable: &str, usual: usize) -> usize {
    match std::env::var(variable) {
        Ok(text) => {
            let number = text.parse();
            number.unwrap_or_else(|error| panic!("{variable}={text}: {error}"))
        }
        // Nobody asks for figures.
        Err(_) => usual,
    }
}

/// Whether the status of a policy is about this generation, and says of its one container whether it runs with an earlier
/// version: the filter of a running program cannot be changed.
fn tells_the_truth(policy: &Value, generation: &Value, has_earlier: bool) -> bool {
    let status = &policy["status"];
    let (ready, count) = match has_earlier {
        true => ("False", "unprotected"),
        false => ("True", "enforced"),
    };
    status["observedGeneration"] == *generation
        && is_ready(policy, ready)
        && status["coverage"]["containers"] == 1
        && status["coverage"][count] == 1
}

/// Writes raw samples, if somebody asks for them.
fn publish(name: &str, samples: &Value) {
    if let Some(folder) = std::env::var_os("TOLLGATE_NODE_OUT") {
        let file = Path::new(&folder).join(name);
        fs::write(file, format!("{samples:#}\n")).expect("the folder exists");
    }
}

/// Milliseconds with the part of samples that are below: 50 and 99 of 100, and the largest.
fn summary(samples: &[f64]) -> String {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len() - 1;
    let at = |part: usize| sorted[(sorted.len() * part).div_ceil(100).saturating_sub(1)];
    format!(
        "{} samples: median {:.1} ms, 99 % within {:.1} ms, longest {:.1} ms",
        sorted.len(),
        at(50),
        at(99),
        sorted[last]
    )
}

/// The lines of the agent's histogram of answers.
fn answers() -> Vec<String> {
    let mut command = Command::new("curl");
    command.args(["-sf", &format!("http://{METRICS}/metrics")]);
    let done = command.output().expect("curl is installed");
    let text = String::from_utf8_lossy(&done.stdout);
    let lines = text
        .lines()
        .filter(|line| line.starts_with("tollgate_node_answer_microseconds_"));
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    assert!(!lines.is_empty(), "{text}");
    lines
}

/// Upper limits in microseconds within which the part of answers about this event came; nothing if the longest limit did
/// not suffice.
fn within(before: &[String], after: &[String], event: &str, percent: u64) -> Option<u64> {
    let begin = format!("tollgate_node_answer_microseconds_bucket{{event=\"{event}\",le=\"");
    let buckets = |lines: &[String]| -> Vec<(String, u64)> {
        let found = lines.iter().filter_map(|line| line.strip_prefix(&begin));
        let read = |line: &str| {
            let (limit, count) = line.split_once("\"} ").expect("it is a bucket");
            (limit.to_owned(), count.parse().expect("it is a number"))
        };
        found.map(read).collect()
    };
    let counts = buckets(after).into_iter().zip(buckets(before));
    let counts: Vec<_> = counts
        .map(|((limit, after), (_, before))| (limit, after - before))
        .collect();
    let (_, all) = counts.last().expect("there are buckets");
    let enough = (all * percent).div_ceil(100);
    let mut found = counts.iter().filter(|(_, count)| *count >= enough);
    let (limit, _) = found.next()?;
    limit.parse().ok()
}
