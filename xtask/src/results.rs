//! Runs in `results/`: each must be complete and cited by a document.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::tree::{File, Finding, Tree};

const FOLDER: &str = "results/";

/// Files from which `tollgate bench report` computes all others.
const RECORDING: [&str; 4] = ["README.md", "plan.json", "host.json", "samples.jsonl"];

/// Runs of end-to-end tests, which `tollgate bench report` does not read, and the files that they must have.
const OF_TESTS: [(&str, &[&str]); 18] = [
    (
        "2026-11-22-enforce-instructions",
        &["README.md", "samples.txt", "summary.md"],
    ),
    (
        "2026-11-22-enforce-lsm-instructions",
        &["README.md", "samples.txt", "summary.md"],
    ),
    (
        "2026-11-22-isolation",
        &["README.md", "host.json", "samples.jsonl", "summary.md"],
    ),
    (
        "2026-11-26-guard-peers",
        &["README.md", "host.json", "samples.jsonl", "summary.md"],
    ),
    // Short runs by hand, whose README says how they were made.
    ("2026-11-27-guard-build", &["README.md", "samples.json"]),
    ("2026-11-27-ebpf-parts", &["README.md", "samples.json"]),
    ("2026-11-27-watch-start", &["README.md", "samples.json"]),
    (
        "2026-11-27-parallel-cycles",
        &["README.md", "cycles.py", "samples.json"],
    ),
    ("2026-11-28-evasions", &["README.md", "tables.md"]),
    ("2026-11-28-kernels", &["README.md", "tables.md"]),
    ("2026-11-30-kernels-arm64", &["README.md", "tables.md"]),
    (
        "2026-11-28-soak",
        &["README.md", "final.json", "samples.jsonl"],
    ),
    (
        "2026-11-29-collector-scale",
        &[
            "README.md",
            "idle.jsonl",
            "load.jsonl",
            "postgresql.jsonl",
            "sqlite.jsonl",
        ],
    ),
    (
        "2026-11-29-kubernetes-node",
        &[
            "README.md",
            "bursts.json",
            "changes.json",
            "leaders.json",
            "one-shots.json",
        ],
    ),
    (
        "2026-11-29-node-bpf-scale",
        &["README.md", "changes.tsv", "one-policy.tsv"],
    ),
    (
        "2026-11-29-node-memory",
        &["README.md", "detect.tsv", "policies.tsv"],
    ),
    (
        "2026-11-29-operator-scale",
        &[
            "README.md",
            "memory-10000x20x10.json",
            "memory-400x1x32.json",
        ],
    ),
    (
        "2026-11-29-starts",
        &[
            "README.md",
            "agent.json",
            "floor.json",
            "fork_exec.json",
            "hazards.md",
        ],
    ),
];

/// Reports runs that lack a file and runs that no document links to.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    Ok(findings(&tree.files))
}

fn findings(files: &[File]) -> Vec<Finding> {
    let mut runs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files {
        let run = file.path.strip_prefix(FOLDER);
        if let Some((run, name)) = run.and_then(|rest| rest.split_once('/')) {
            runs.entry(run).or_default().insert(name);
        }
    }
    let mut findings = Vec::new();
    for (run, has) in runs {
        let mut report = |message: String| {
            findings.push(Finding {
                path: format!("{FOLDER}{run}"),
                line: 1,
                message,
            });
        };
        let of_test = OF_TESTS.iter().find(|(name, _)| *name == run);
        let needed = of_test.map_or(&RECORDING[..], |(_, needed)| *needed);
        for name in needed.iter().filter(|name| !has.contains(*name)) {
            report(format!(
                "`{name}` is missing; a run without it cannot be checked"
            ));
        }
        let link = format!("{FOLDER}{run}/README.md)");
        let is_cited = files
            .iter()
            .any(|file| is_document(&file.path) && file.text.contains(&link));
        if !is_cited {
            report("no document links to this run; remove it".to_owned());
        }
    }
    findings
}

/// Returns true if citations in this file count. Citations in other runs and in the history do not.
fn is_document(path: &str) -> bool {
    path.ends_with(".md") && !path.starts_with(FOLDER) && path != "CHANGELOG.md"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str) -> Vec<File> {
        RECORDING
            .iter()
            .map(|part| File::new(&format!("results/{name}/{part}"), ""))
            .collect()
    }

    #[test]
    fn a_complete_run_that_a_document_links_to_is_fine() {
        let mut files = run("a");
        files.push(File::new("docs/x.md", "[1.2](../results/a/README.md)"));
        assert_eq!(findings(&files), []);
    }

    #[test]
    fn runs_that_are_incomplete_or_not_cited_are_reported() {
        let mut files = run("a");
        files.extend(run("a-2"));
        files.retain(|file| file.path != "results/a/samples.jsonl");
        files.push(File::new("README.md", "[1.2](results/a/README.md)"));
        files.push(File::new("CHANGELOG.md", "[1.2](results/a-2/README.md)"));
        files.push(File::new(
            "results/a/README.md",
            "[1.2](results/a-2/README.md)",
        ));
        let said: Vec<String> = findings(&files).iter().map(Finding::to_string).collect();
        assert_eq!(
            said,
            [
                "results/a:1: `samples.jsonl` is missing; a run without it cannot be checked",
                "results/a-2:1: no document links to this run; remove it",
            ]
        );
    }
}
