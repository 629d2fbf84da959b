//! Verdicts of the real RE2, which `tests/re2/corpus.py` writes.

use std::io::{BufRead, BufReader};

use serde::Deserialize;

use super::super::literal::regex;

#[derive(Deserialize)]
struct Line {
    pattern: String,
    valid: bool,
    subjects: Vec<(String, bool)>,
}

/// Compares every line with what this crate says, and returns what differs.
fn differences(corpus: impl BufRead) -> (usize, Vec<String>) {
    let mut lines = 0;
    let mut differences = Vec::new();
    for line in corpus.lines() {
        let line: Line = serde_json::from_str(&line.expect("a line")).expect("an object");
        lines += 1;
        let compiled = regex(&line.pattern);
        match (&compiled, line.valid) {
            (Err(error), true) => {
                differences.push(format!("{:?} is refused: {error}", line.pattern));
            }
            (Ok(_), false) => differences.push(format!("{:?} is accepted", line.pattern)),
            _ => {}
        }
        let Ok(compiled) = compiled else { continue };
        for (subject, matches) in line.subjects {
            if compiled.is_match(&subject) != matches {
                let pattern = &line.pattern;
                differences.push(format!("{pattern:?} matches {subject:?}: {matches}"));
            }
        }
    }
    (lines, differences)
}

#[test]
fn a_recorded_corpus_has_the_verdicts_of_re2() {
    let corpus = include_bytes!("corpus.jsonl");
    let (lines, differences) = differences(&corpus[..]);
    assert!(lines > 1000, "{lines}");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// `make test-re2` makes the corpus.
#[test]
fn a_large_corpus_has_the_verdicts_of_re2() {
    let Some(path) = std::env::var_os("TOLLGATE_RE2_CORPUS") else {
        testing::skip!("needs a corpus that `make test-re2` makes", || Ok(
            "TOLLGATE_RE2_CORPUS is not set".to_owned()
        ));
    };
    let corpus = std::fs::File::open(path).expect("the corpus");
    let (lines, differences) = differences(BufReader::new(corpus));
    assert!(lines >= 50_000, "{lines}");
    let shown = differences[..differences.len().min(200)].join("\n");
    assert!(differences.is_empty(), "{}:\n{shown}", differences.len());
}
