//! Limits and promises in documents: each names the tests that show it, and says which of them are slow; the index of limits
//! has each page.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::skips;
use crate::tree::{File, Finding, Tree};

/// Document with a link to the limits of each page.
const INDEX: &str = "docs/reference/limits.md";
const HEADING: &str = "## Limits";
/// Document whose list items are promises.
const PROMISES: &str = "docs/reference/reliability.md";

/// An item of a list: the line where it starts, and its text on one line.
#[derive(Debug, PartialEq, Eq)]
struct Item {
    line: usize,
    text: String,
}

/// Reports limits and promises that name no test and give no reason, tests that do not exist, sections that the index
/// lacks, and slow tests that are not marked as such.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = findings(&tree.files, tree.file(INDEX)?);
    findings.extend(unmarked(&tree.files, &tree.file(skips::ALLOWED)?.text));
    Ok(findings)
}

/// Returns the slow tests that pages name without `(slow)` behind the name. `skipped` is the list of tests that may skip.
fn unmarked(files: &[File], skipped: &str) -> Vec<Finding> {
    let slow: BTreeSet<&str> = skips::slow(skipped).collect();
    let is_page = |file: &&File| file.path.starts_with("docs/") && file.path.ends_with(".md");
    let mut findings = Vec::new();
    for page in files.iter().filter(is_page) {
        // A name is between two marks; what is behind it may begin on the next line.
        let parts: Vec<&str> = page.text.split('`').collect();
        let mut line = 1;
        for pair in parts.windows(2) {
            let (name, behind) = (pair[0], pair[1].trim_start());
            if slow.contains(name) && !behind.starts_with("(slow)") {
                findings.push(Finding {
                    path: page.path.clone(),
                    line,
                    message: format!("`./x test` skips `{name}`; write `(slow)` behind the name"),
                });
            }
            line += name.matches('\n').count();
        }
    }
    findings
}

fn findings(files: &[File], index: &File) -> Vec<Finding> {
    let names = names(files);
    let mut findings = Vec::new();
    for page in files.iter().filter(|file| file.path.ends_with(".md")) {
        if !page.text.lines().any(|line| line == HEADING) {
            continue;
        }
        let link = format!("{}#limits)", page.path.trim_start_matches("docs/"));
        let beside = link.trim_start_matches("reference/");
        if ![link.as_str(), beside]
            .iter()
            .any(|link| index.text.contains(link))
        {
            findings.push(Finding {
                path: index.path.clone(),
                line: 1,
                message: format!("`{}` has limits and no link; add a row", page.path),
            });
        }
        let limits = items(&page.text, HEADING);
        findings.extend(wrong(page, &limits, &names));
    }
    for page in files.iter().filter(|file| file.path == PROMISES) {
        findings.extend(wrong(page, &items(&page.text, "## "), &names));
    }
    findings
}

fn wrong(page: &File, items: &[Item], names: &BTreeSet<String>) -> Vec<Finding> {
    let of_item = |item: &Item| {
        let finding = |message| Finding {
            path: page.path.clone(),
            line: item.line,
            message,
        };
        problems(&item.text, names)
            .into_iter()
            .map(finding)
            .collect::<Vec<_>>()
    };
    items.iter().flat_map(of_item).collect()
}

/// Returns the list items of the sections whose headings begin with `heading`.
fn items(text: &str, heading: &str) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let mut is_inside = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("## ") {
            is_inside = line.starts_with(heading);
        } else if !is_inside {
            continue;
        } else if let Some(text) = line.strip_prefix("- ") {
            items.push(Item {
                line: index + 1,
                text: text.to_owned(),
            });
        } else if let (Some(text), Some(item)) = (line.strip_prefix("  "), items.last_mut()) {
            item.text += " ";
            item.text += text;
        }
    }
    items
}

fn problems(text: &str, names: &BTreeSet<String>) -> Vec<String> {
    let shown = ["Test: ", "Tests: ", "No test"]
        .iter()
        .find_map(|word| text.rfind(word));
    let Some(at) = shown else {
        return vec![
            "the item names no test; end it with `Test: ...` or `No test: reason`".to_owned(),
        ];
    };
    let quoted = text[at..].split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.contains('_')
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
    };
    quoted
        .filter(is_name)
        .filter(|name| !names.contains(*name))
        .map(|name| format!("there is no test `{name}`; correct the name"))
        .collect()
}

/// Returns the names of functions of Rust files, cases of a macro (`name => Case`), and functions of the
/// programs that tests run.
fn names(files: &[File]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files {
        if file.path.ends_with(".rs") {
            let functions = file.text.split("fn ").skip(1);
            names.extend(functions.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
            let cases = file
                .text
                .lines()
                .filter_map(|line| line.split_once(" => Case "));
            names.extend(cases.map(|(name, _)| name.trim().to_owned()));
        } else if file.path.starts_with("tests/fixtures/") && file.path.ends_with(".c") {
            let functions = file.text.split("static int ").skip(1);
            names.extend(functions.filter_map(|rest| Some(rest.split_once('(')?.0.to_owned())));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(page: &str, index: &str) -> Vec<String> {
        let files = [
            File::new("docs/howto/a.md", page),
            File::new("crates/x/src/lib.rs", "fn it_fails() {}"),
            File::new(
                "tests/fixtures/ways.c",
                "static int o_way(void) { return 0; }",
            ),
        ];
        findings(&files, &File::new(INDEX, index))
            .iter()
            .map(Finding::to_string)
            .collect()
    }

    #[test]
    fn limits_with_tests_or_reasons_are_fine() {
        let page = "# A\n\n## Limits\n\n### Part\n\n- It is\n  slow. Test: `it_fails`.\n- Way. Test: the way `o_way`.\n\
                    - It is long. No test: a race.\n\n## More\n\n- anything\n";
        assert_eq!(said(page, "[a](../howto/a.md#limits)"), [""; 0]);
    }

    #[test]
    fn promises_without_a_test_are_reported() {
        let page = "# R\n\n## Agent\n\n- It lives. Test: `it_fails`.\n- It works. Test: `it_works`.\n\n## More\n\n- It is.\n";
        let files = [
            File::new(PROMISES, page),
            File::new("crates/x/src/lib.rs", "fn it_fails() {}"),
        ];
        let found = findings(&files, &File::new(INDEX, ""));
        let lines: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [6, 10]);
    }

    #[test]
    fn slow_tests_that_are_not_marked_are_reported() {
        let page = "- It is. Tests: `it_fails`,\n  `it_waits`\n  (slow), `it_sleeps` (slow).\n- Test: `it_sleeps`.\n";
        let files = [File::new("docs/howto/a.md", page), File::new("A.md", page)];
        let skipped =
            "x::it_waits: takes long\nx::y::it_sleeps: takes long\nx::it_fails: needs root\n";
        let found: Vec<_> = unmarked(&files, skipped)
            .iter()
            .map(Finding::to_string)
            .collect();
        assert_eq!(
            found,
            ["docs/howto/a.md:4: `./x test` skips `it_sleeps`; write `(slow)` behind the name"]
        );
    }

    #[test]
    fn limits_without_a_test_wrong_names_and_lost_pages_are_reported() {
        let page = "## Limits\n\n- It is slow.\n- It is\n  long. Test: `it_works`.\n";
        assert_eq!(
            said(page, ""),
            [
                "docs/reference/limits.md:1: `docs/howto/a.md` has limits and no link; add a row",
                "docs/howto/a.md:3: the item names no test; end it with `Test: ...` or `No test: reason`",
                "docs/howto/a.md:4: there is no test `it_works`; correct the name",
            ]
        );
    }
}
