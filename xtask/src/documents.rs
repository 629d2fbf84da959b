//! Documents: links and paths must lead somewhere, and no gap may be left.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::tree::{File, Finding, Tree};

/// Mark of a gap that has to be filled with real output before a release. In two parts, so that this file may
/// stand in a document's code block.
const GAP: &str = concat!("<!-- ", "fill");

/// Document with a row for each end-to-end test.
const LIST_OF_TESTS: &str = "tests/README.md";

/// Document with a link to each page of the documentation.
const INDEX: &str = "docs/README.md";

/// The image in which the program is built, and the script that knows the packages that a build needs.
const IMAGE: &str = "docs/howto/deployment/Dockerfile";
const INSTALLER: &str = "x";

/// Documents that a reader reads in one go, and their largest number of lines.
const LENGTHS: [(&str, usize); 2] = [("README.md", 150), ("ARCHITECTURE.md", 200)];

/// Reports broken links and paths, gaps, long documents, and pages and end-to-end tests that are not listed.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    let mut findings: Vec<_> = documents
        .flat_map(|document| in_document(tree, document))
        .collect();
    findings.extend(tests_without_a_row(&tree.files, tree.file(LIST_OF_TESTS)?));
    findings.extend(pages_without_a_link(&tree.files, tree.file(INDEX)?));
    findings.extend(packages_missing(tree.file(IMAGE)?, tree.file(INSTALLER)?));
    for (path, limit) in LENGTHS {
        findings.extend(too_long(tree.file(path)?, limit));
    }
    Ok(findings)
}

/// Returns the packages that a build needs and the image does not install.
fn packages_missing(image: &File, installer: &File) -> Vec<Finding> {
    let finding = |path: &str, message: String| Finding {
        path: path.to_owned(),
        line: 1,
        message,
    };
    let needed = installer
        .text
        .lines()
        .find_map(|line| line.strip_prefix("for_build='"));
    let Some(needed) = needed.and_then(|rest| rest.split('\'').next()) else {
        return vec![finding(
            &installer.path,
            "`for_build` is missing".to_owned(),
        )];
    };
    let installed: BTreeSet<&str> = image.text.split_whitespace().collect();
    let missing = needed
        .split_whitespace()
        .filter(|name| !installed.contains(name));
    let message = |name: &str| format!("a build needs the package `{name}`; install it");
    missing
        .map(|name| finding(&image.path, message(name)))
        .collect()
}

/// Returns a finding if a document has too many lines.
fn too_long(document: &File, limit: usize) -> Option<Finding> {
    let lines = document.text.lines().count();
    (lines > limit).then(|| Finding {
        path: document.path.clone(),
        line: limit + 1,
        message: format!(
            "{lines} lines are more than {limit}; move what few readers need to docs/"
        ),
    })
}

/// Returns the pages below the index's folder that the index does not link to. A folder with an index of its
/// own, such as the decisions, is listed by that.
fn pages_without_a_link(files: &[File], index: &File) -> Vec<Finding> {
    let folder = |path: &str| {
        path.rsplit_once('/')
            .map_or("", |(folder, _)| folder)
            .to_owned()
    };
    let mut linked = BTreeSet::new();
    for list in files
        .iter()
        .filter(|file| file.path.ends_with("/README.md"))
    {
        let targets = list.text.lines().flat_map(link_targets);
        let paths = targets.map(|target| join(&folder(&list.path), target));
        linked.extend(
            paths.filter(|path| list.path == index.path || folder(path) == folder(&list.path)),
        );
    }
    let root = folder(&index.path) + "/";
    let pages = files.iter().filter(|file| {
        file.path.starts_with(&root) && file.path.ends_with(".md") && file.path != index.path
    });
    let lost = pages.filter(|page| !linked.contains(&page.path));
    lost.map(|page| Finding {
        path: index.path.clone(),
        line: 1,
        message: format!(
            "`{}` has no link; put it where a reader looks for it",
            page.path
        ),
    })
    .collect()
}

/// Returns the end-to-end tests that the list does not have.
fn tests_without_a_row<'a>(
    files: &'a [File],
    list: &'a File,
) -> impl Iterator<Item = Finding> + 'a {
    let programs = files.iter().filter(|file| {
        let name = file.path.strip_prefix("tests/tests/").unwrap_or("");
        name.ends_with("/main.rs") || (name.ends_with(".rs") && !name.contains('/'))
    });
    programs.filter_map(|file| {
        let has_row = list.text.contains(&format!("\n| `{}` |", file.path));
        (!has_row).then(|| Finding {
            path: list.path.clone(),
            line: 1,
            message: format!("`{}` has no row; say what it shows", file.path),
        })
    })
}

fn in_document(tree: &Tree, document: &File) -> Vec<Finding> {
    let folder = document
        .path
        .rsplit_once('/')
        .map_or("", |(folder, _)| folder);
    let mut findings = Vec::new();
    let mut in_code_block = false;
    for (index, text) in document.text.lines().enumerate() {
        let mut report = |message: String| {
            findings.push(Finding {
                path: document.path.clone(),
                line: index + 1,
                message,
            });
        };
        if text.contains(GAP) {
            report("a gap is left; put the real output here".to_owned());
        }
        if text.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        }
        if in_code_block {
            continue;
        }
        for target in link_targets(text) {
            if let Err(problem) = follow(tree, document, folder, target) {
                report(problem);
            }
        }
        for path in quoted_paths(tree, text) {
            report(format!(
                "`{path}` is not in the repository; correct the name"
            ));
        }
    }
    findings
}

/// Returns the targets of the inline links in a line that lead to files of the repository.
fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .filter(|target| !target.contains("://") && !target.starts_with("mailto:"))
}

fn follow(tree: &Tree, document: &File, folder: &str, target: &str) -> Result<(), String> {
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let joined = if path.is_empty() {
        document.path.clone()
    } else {
        join(folder, path)
    };
    if !tree.root.join(&joined).exists() {
        return Err(format!(
            "the link to `{target}` leads nowhere; correct or remove it"
        ));
    }
    if anchor.is_empty() {
        return Ok(());
    }
    let headings = tree
        .files
        .iter()
        .find(|file| file.path == joined)
        .map(|file| anchors(&file.text));
    if headings.is_some_and(|headings| headings.contains(anchor)) {
        return Ok(());
    }
    Err(format!(
        "the link to `{target}` names no heading there; correct the part after #"
    ))
}

/// Joins `folder` and a relative `path` to a path from the root.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors of a document's headings, as the usual renderers spell them.
fn anchors(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Returns paths in backquotes that begin with a folder of this repository and do not exist. A path with a
/// placeholder such as `<name>` or `*` names no file.
fn quoted_paths<'a>(tree: &'a Tree, text: &'a str) -> impl Iterator<Item = &'a str> {
    text.split('`').skip(1).step_by(2).filter(move |quoted| {
        let Some((first, _)) = quoted.split_once('/') else {
            return false;
        };
        let is_path = quoted
            .chars()
            .all(|c| c.is_alphanumeric() || "/._-".contains(c));
        // Build products may or may not exist.
        let is_ours = first != "target" && !first.is_empty() && tree.root.join(first).is_dir();
        is_path && is_ours && !Path::new(&tree.root).join(quoted).exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .unwrap()
            .to_path_buf();
        let other = File {
            path: "xtask/other.md".to_owned(),
            text: "# One `two`, three\n".to_owned(),
        };
        let document = File {
            path: "xtask/a.md".to_owned(),
            text: text.to_owned(),
        };
        let findings = in_document(
            &Tree {
                root,
                files: vec![other],
            },
            &document,
        );
        findings
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn links_to_files_that_exist_are_good() {
        assert_eq!(messages("[a](src/main.rs) and [b](../Cargo.toml)"), [""; 0]);
    }

    #[test]
    fn links_to_files_that_do_not_exist_are_found() {
        assert_eq!(messages("[a](src/absent.rs) [b](../absent.toml)").len(), 2);
    }

    #[test]
    fn anchors_are_compared_with_headings() {
        assert!(anchors("# One `two`, three").contains("one-two-three"));
        assert_eq!(messages("[a](Cargo.toml#nothing)").len(), 1);
    }

    #[test]
    fn quoted_paths_must_exist_unless_they_are_patterns() {
        assert_eq!(
            messages("see `xtask/src/main.rs` and `xtask/src/<name>.rs`"),
            [""; 0]
        );
        assert_eq!(messages("see `xtask/src/absent.rs`").len(), 1);
        assert_eq!(messages("`proc/name` and `/etc/shadow`"), [""; 0]);
    }

    #[test]
    fn code_blocks_are_not_read_for_links() {
        assert_eq!(messages("```\n[a](absent.md)\n```"), [""; 0]);
    }

    #[test]
    fn tests_that_are_not_listed_are_found() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let list = file(LIST_OF_TESTS, "| file |\n| `tests/tests/a.rs` | a |\n");
        let paths = ["a.rs", "b.rs", "c/main.rs", "c/other.rs"];
        let files = paths.map(|name| file(&format!("tests/tests/{name}"), ""));
        let found = tests_without_a_row(&files, &list);
        let found: Vec<String> = found.map(|finding| finding.message).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("b.rs") && found[1].contains("c/main.rs"));
    }

    #[test]
    fn pages_that_no_index_links_to_are_found() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let index = || file(INDEX, "[a](howto/a.md), [decisions](adr/README.md)");
        let files = [
            index(),
            file(
                "docs/adr/README.md",
                "[one](0001-one.md) [b](../howto/b.md)",
            ),
            file("docs/adr/0001-one.md", ""),
            file("docs/howto/a.md", "[b](b.md)"),
            file("docs/howto/b.md", ""),
            file("crates/c.md", ""),
        ];
        let found = pages_without_a_link(&files, &index());
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("docs/howto/b.md"));
    }

    #[test]
    fn packages_that_the_image_lacks_are_found() {
        let file = |text: &str| File {
            path: "a".to_owned(),
            text: text.to_owned(),
        };
        let image = file("RUN apt-get install make clang-19 \\\n    gcc\n");
        assert_eq!(
            packages_missing(&image, &file("for_build='make gcc'\n")),
            []
        );
        let found = packages_missing(&image, &file("for_build='make clang gcc'\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].message.contains("`clang`"));
        assert_eq!(packages_missing(&image, &file("")).len(), 1);
    }

    #[test]
    fn documents_that_are_too_long_are_found() {
        let document = File {
            path: "README.md".to_owned(),
            text: "line\n".repeat(3),
        };
        assert!(too_long(&document, 3).is_none());
        assert!(too_long(&document, 2).is_some_and(|finding| finding.line == 3));
    }

    #[test]
    fn gaps_are_found() {
        assert_eq!(messages(&format!("text {GAP}: output -->")).len(), 1);
    }
}
