//! Tests that skip: no test may end early without reporting it, and each skip of a run is compared with
//! `tests/skips.txt`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tokens::{Token, tokens};
use crate::tree::{File, Finding, Tree};

/// The skips that are allowed in `.ci/run`: one `TEST: REASON` per line. A test may end in `*`. A line `part TEST:
/// REASON` allows a part of the test to be skipped, not the whole.
pub(crate) const ALLOWED: &str = "tests/skips.txt";

/// Features of the host of `.ci/run`: no reason in the list may name one of these.
const ALWAYS_THERE: [&str; 9] = [
    "Chromium",
    "Landlock",
    "PostgreSQL",
    "QEMU",
    "eBPF",
    "namespace",
    "nats-server",
    "root",
    "seccomp",
];

/// A line of the list.
#[derive(Debug, PartialEq, Eq)]
struct Allowed<'a> {
    line: usize,
    /// `test` or `part`.
    extent: &'a str,
    test: &'a str,
    reason: &'a str,
}

/// A line of the file that `TOLLGATE_SKIPS` names; crate `testing` writes it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Skip<'a> {
    /// `test` or `part`.
    extent: &'a str,
    test: &'a str,
    reason: &'a str,
    found: &'a str,
}

/// Reports tests that end by a plain `return`, tests that print a skip by themselves, and bad lines of the list.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let sources = tree.files.iter().filter(|file| file.path.ends_with(".rs"));
    let mut findings: Vec<Finding> = sources.flat_map(in_source).collect();
    let list = tree.file(ALLOWED)?;
    match parse_list(&list.text) {
        Ok(rows) => findings.extend(rows.iter().filter_map(bad_row)),
        Err(line) => findings.push(finding(
            list,
            line,
            "cannot read the line; write `TEST: REASON`",
        )),
    }
    Ok(findings)
}

/// Returns the names of tests that the list says take long, without their modules. `./x test` skips them.
pub(crate) fn slow(list: &str) -> impl Iterator<Item = &str> {
    let tests = list
        .lines()
        .filter_map(|line| line.strip_suffix(": takes long"));
    tests.filter_map(|test| test.rsplit("::").next())
}

fn finding(file: &File, line: usize, message: &str) -> Finding {
    Finding {
        path: file.path.clone(),
        line,
        message: message.to_owned(),
    }
}

fn bad_row(row: &Allowed) -> Option<Finding> {
    let word = ALWAYS_THERE
        .iter()
        .find(|word| row.reason.contains(*word))?;
    Some(Finding {
        path: ALLOWED.to_owned(),
        line: row.line,
        message: format!("no test may skip for want of {word}; remove the line"),
    })
}

fn in_source(file: &File) -> Vec<Finding> {
    let all = tokens(&file.text);
    let starts = all
        .windows(4)
        .enumerate()
        .filter(|(_, four)| texts(four) == ["#", "[", "test", "]"])
        .map(|(at, _)| at);
    starts
        .flat_map(|at| body(&all[at..]).windows(2))
        .filter(|pair| pair[0].text == "return" && matches!(pair[1].text, ";" | "}"))
        .map(|pair| {
            let message = "the test ends early and passes; call `skip!` with a proof";
            finding(file, pair[0].line, message)
        })
        .collect()
}

fn texts<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    tokens.iter().map(|token| token.text).collect()
}

/// Returns the tokens from the first `{` to the `}` that closes it.
fn body<'a, 'b>(tokens: &'b [Token<'a>]) -> &'b [Token<'a>] {
    let start = tokens.iter().position(|token| token.text == "{");
    let tokens = &tokens[start.unwrap_or(tokens.len())..];
    let mut depth = 0_usize;
    let end = tokens.iter().position(|token| {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        depth == 0
    });
    &tokens[..end.unwrap_or(tokens.len())]
}

/// Parses the list. The error is the number of the first invalid line.
fn parse_list(text: &str) -> std::result::Result<Vec<Allowed<'_>>, usize> {
    let lines = (1..).zip(text.lines());
    let rows = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    rows.map(|(number, row)| {
        let (test, reason) = row.split_once(": ").ok_or(number)?;
        let (extent, test) = match test.strip_prefix("part ") {
            Some(test) => ("part", test),
            None => ("test", test),
        };
        Ok(Allowed {
            line: number,
            extent,
            test: test.trim(),
            reason: reason.trim(),
        })
    })
    .collect()
}

impl Allowed<'_> {
    fn allows(&self, skip: &Skip) -> bool {
        let is_test = match self.test.strip_suffix('*') {
            Some(start) => skip.test.starts_with(start),
            None => skip.test == self.test,
        };
        // Who may skip the whole test may skip a part of it.
        let is_extent = self.extent == "test" || self.extent == skip.extent;
        is_test && is_extent && skip.reason == self.reason
    }
}

/// Parses the skips of a run, in order.
fn parse_skips(text: &str) -> Vec<Skip<'_>> {
    let mut skips: Vec<Skip> = text
        .lines()
        .map(|line| {
            let mut columns = line.splitn(4, '\t');
            let mut next = || columns.next().unwrap_or_default();
            Skip {
                extent: next(),
                test: next(),
                reason: next(),
                found: next(),
            }
        })
        .collect();
    skips.sort();
    skips
}

/// Prints the skips in the file at `path` and returns how many of them the list does not allow. A missing file
/// is a run without skips.
pub(crate) fn report(tree: &Tree, path: &Path) -> Result<usize> {
    let text = if path.exists() {
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
    } else {
        String::new()
    };
    let list = parse_list(&tree.file(ALLOWED)?.text)
        .map_err(|line| anyhow::anyhow!("cannot read {ALLOWED}, line {line}"))?;
    let (lines, unlisted) = summary(&parse_skips(&text), &list);
    print!("{lines}");
    Ok(unlisted)
}

/// Returns the text that `report` prints, and the number of skips that the list does not allow.
fn summary(skips: &[Skip], list: &[Allowed]) -> (String, usize) {
    let is_allowed = |skip: &&Skip| list.iter().any(|row| row.allows(skip));
    let (allowed, unlisted): (Vec<&Skip>, Vec<&Skip>) = skips.iter().partition(is_allowed);
    let block = |title: &str, mut skips: Vec<&Skip>| {
        // A function that several tests call reports its skip for each of them.
        skips.dedup();
        let line = |skip: &&Skip| format!("    {}: {} ({})\n", skip.test, skip.reason, skip.found);
        format!("{title}:\n") + &skips.iter().map(line).collect::<String>()
    };
    let count = |extent| skips.iter().filter(|skip| skip.extent == extent).count();
    let (tests, parts, bad) = (count("test"), count("part"), unlisted.len());
    let mut text = String::new();
    if !allowed.is_empty() {
        text += &block("skipped, as tests/skips.txt allows", allowed);
    }
    if !unlisted.is_empty() {
        text += &block("skipped, and not allowed by tests/skips.txt", unlisted);
    }
    text += &format!("skips: {tests} tests, {parts} parts of tests, {bad} not allowed\n");
    (text, bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        let file = File {
            path: "a.rs".to_owned(),
            text: text.to_owned(),
        };
        in_source(&file).iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_test_that_ends_early_is_found() {
        let early = "#[test]\nfn t() {\n    if x() {\n        return;\n    }\n}\n";
        assert_eq!(found(early), [4]);
        let at_the_else = "#[test]\nfn t() {\n    let Some(a) = b() else { return };\n}\n";
        assert_eq!(found(at_the_else), [3]);
    }

    #[test]
    fn other_returns_are_no_findings() {
        let elsewhere = "#[test]\nfn t() {\n    f(\"return;\");\n}\nfn f() {\n    return;\n}\n";
        assert_eq!(found(elsewhere), [] as [usize; 0]);
        let with_a_value = "#[test]\nfn t() {\n    let f = || { return 1; };\n}\n";
        assert_eq!(found(with_a_value), [] as [usize; 0]);
    }

    #[test]
    fn the_list_allows_a_test_for_its_reason_only() {
        let list = parse_list("# why\n\na::b: takes long\na::c::*: needs d\n").unwrap();
        let skips = parse_skips(
            "test\ta::b\ttakes long\tunset\ntest\ta::b\ttakes long\tunset\ntest\ta::b\tneeds d\tx\n\
             part\ta::c::e\tneeds d\ty\n",
        );
        let (text, unlisted) = summary(&skips, &list);
        assert_eq!(unlisted, 1);
        assert_eq!(
            text,
            "skipped, as tests/skips.txt allows:\n    a::c::e: needs d (y)\n    \
             a::b: takes long (unset)\nskipped, and not allowed by tests/skips.txt:\n    \
             a::b: needs d (x)\nskips: 3 tests, 1 parts of tests, 1 not allowed\n"
        );
        assert_eq!(
            summary(&[], &list).0,
            "skips: 0 tests, 0 parts of tests, 0 not allowed\n"
        );
    }

    #[test]
    fn a_part_that_may_be_skipped_does_not_allow_the_whole_test() {
        let list = parse_list("part a::b: needs c\n").unwrap();
        let unlisted = |text| summary(&parse_skips(text), &list).1;
        assert_eq!(unlisted("part\ta::b\tneeds c\tx\n"), 0);
        assert_eq!(unlisted("test\ta::b\tneeds c\tx\n"), 1);
    }

    #[test]
    fn bad_lines_of_the_list_are_found() {
        assert_eq!(parse_list("# ok\na: b\nnothing\n"), Err(3));
        let list = parse_list("a::b: needs root\na::c: needs cpio\n").unwrap();
        let lines: Vec<usize> = list.iter().filter_map(bad_row).map(|f| f.line).collect();
        assert_eq!(lines, [1]);
    }
}
