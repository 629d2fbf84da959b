//! Checks of the repository that neither the compiler nor clippy makes.
//!
//! `cargo run -p xtask -- check` runs all of them; `make check` does, too. Each prints one line per finding,
//! `file:line: problem; what to do`, and any finding fails the run. `cargo run -p xtask -- skips FILE` compares
//! the skips of a test run with the allowed ones. `sbom PROGRAM ARTEFACT...` and `notices PROGRAM FILE` write what
//! a release says about the code in it. `tiers TARGET...` runs tiers of tests one after the other and prints a table;
//! `limit SECONDS PROGRAM` runs one test program.

mod circles;
mod dependencies;
mod descendants;
mod documents;
mod figures;
mod limit;
mod limits;
mod lockfile;
mod modules;
mod pictures;
mod release;
mod results;
mod size;
mod skips;
mod source;
mod tiers;
mod tokens;
mod tree;
mod vocabulary;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use tree::{Finding, Tree};

/// A check: name on the command line, description, and function.
type Check = (
    &'static str,
    &'static str,
    fn(&Tree) -> Result<Vec<Finding>>,
);

const CHECKS: [Check; 14] = [
    (
        "deps",
        "crates depend on each other as ARCHITECTURE.md allows",
        dependencies::check,
    ),
    (
        "circles",
        "no files of different folders use each other in a circle",
        circles::check,
    ),
    (
        "source",
        "pure crates do no I/O; unsafe code is in `sys` alone",
        source::check,
    ),
    (
        "words",
        "no machine paths, registry hosts or unfinished work",
        words::check,
    ),
    (
        "docs",
        "links and paths in documents lead somewhere",
        documents::check,
    ),
    (
        "limits",
        "limits in documents name the tests that show them",
        limits::check,
    ),
    (
        "figures",
        "tables of figures in documents are what their results say",
        figures::check,
    ),
    (
        "results",
        "runs in results/ are complete, and a document links to each",
        results::check,
    ),
    (
        "pictures",
        "pictures of a terminal are what their documents show",
        pictures::check,
    ),
    (
        "vocabulary",
        "retired names and phrases are not used again",
        vocabulary::check,
    ),
    (
        "size",
        "lengths of functions and files, and parameter lists, only go down",
        size::check,
    ),
    (
        "early",
        "no test ends early; tests/skips.txt lists what may skip",
        skips::check,
    ),
    (
        "licences",
        "everything that is linked into the program has an allowed licence and its text",
        release::check,
    ),
    (
        "lockfile",
        "crates come from the registry; those in several versions have a reason",
        lockfile::check,
    ),
];

fn main() -> ExitCode {
    // Without an argument the usage is printed.
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let writer: Option<fn(&Tree) -> Result<()>> = match wanted.as_str() {
        "figures" => Some(figures::write),
        "pictures" => Some(pictures::write),
        _ => None,
    };
    if let Some(write) = writer.filter(|_| std::env::args().nth(2).as_deref() == Some("--write")) {
        return match Tree::read().and_then(|tree| write(&tree)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("xtask: {error:#}");
                ExitCode::from(2)
            }
        };
    }
    if let ("skips", Some(file)) = (wanted.as_str(), std::env::args_os().nth(2)) {
        return match Tree::read().and_then(|tree| skips::report(&tree, file.as_ref())) {
            Ok(0) => ExitCode::SUCCESS,
            Ok(_) => ExitCode::from(1),
            Err(error) => {
                eprintln!("xtask: {error:#}");
                ExitCode::from(4)
            }
        };
    }
    if let Some(code) = run_tests(&wanted) {
        return code;
    }
    let words: Vec<_> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    match release::run(&words) {
        Ok(true) => return ExitCode::SUCCESS,
        Ok(false) => {}
        Err(error) => {
            eprintln!("xtask: {error:#}");
            return ExitCode::from(2);
        }
    }
    let chosen: Vec<&Check> = CHECKS
        .iter()
        .filter(|(name, ..)| wanted == "check" || wanted == *name)
        .collect();
    if chosen.is_empty() {
        return usage(&wanted);
    }
    match run(&chosen) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(4)
        }
    }
}

/// Runs tests, if that is wanted.
fn run_tests(wanted: &str) -> Option<ExitCode> {
    let words: Vec<_> = std::env::args_os().skip(2).collect();
    let ended = match wanted {
        "limit" => limit::run(&words),
        "tiers" => tiers::run(&words),
        _ => return None,
    };
    Some(ended.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(2)
    }))
}

fn usage(wanted: &str) -> ExitCode {
    eprintln!("xtask: unknown check `{wanted}`; choose one of:");
    eprintln!("    check      all of these");
    for (name, purpose, _) in CHECKS {
        eprintln!("    {name:<10} {purpose}");
    }
    eprintln!("or run tests: `tiers TARGET...`, `limit SECONDS PROGRAM ARGUMENT...`");
    eprintln!("or write files of a release: `sbom PROGRAM ARTEFACT...`, `notices PROGRAM FILE`");
    ExitCode::from(2)
}

/// Runs the checks and returns the number of findings.
fn run(checks: &[&Check]) -> Result<usize> {
    let tree = Tree::read()?;
    let mut total = 0;
    for (name, purpose, check) in checks {
        let findings = check(&tree).with_context(|| format!("cannot run the check `{name}`"))?;
        for finding in &findings {
            println!("{finding}");
        }
        println!("{name}: {} findings ({purpose})", findings.len());
        total += findings.len();
    }
    Ok(total)
}
