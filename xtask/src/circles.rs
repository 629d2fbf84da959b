//! Circles of files across folders: files of one crate that use each other, directly or through others, and lie in
//! different folders.
//!
//! A file uses another if a path in it leads there: `use crate::a::B`, `super::a::b()`, a name from `use super::*`.
//! `mod` and `pub use` state where things are, so they are no use; a path through them leads to the defining file.
//! Calls of methods and what macros write are not followed.
//!
//! `xtask/circles.tsv` lists the circles that stay, each with its reason; it only gets shorter.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};

use crate::modules::{Crate, Dependencies};
use crate::tree::{Finding, Tree};

/// Circles that stay: crate, the folders that they cross with a space between them (`.` is `src`), the number of files
/// in all circles across these, reason; tabs between the columns.
const KEPT: &str = "xtask/circles.tsv";

/// A finding shows so many of the files, and of the uses that make the circle.
const SHOWN: usize = 20;

/// A circle across folders.
#[derive(Debug, PartialEq, Eq)]
struct Circle {
    /// Files, from the folder `src` of the crate.
    files: BTreeSet<String>,
    folders: BTreeSet<String>,
    /// Uses that cross folders: "file:line uses names of file".
    uses: Vec<String>,
}

/// A crate, and the folders that its circles cross.
type Across = (String, BTreeSet<String>);

/// Reports circles that the list does not have, with as many files, and rows of the list with fewer.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let kept = parse(&tree.file(KEPT)?.text)?;
    let mut found: BTreeMap<Across, Vec<Circle>> = BTreeMap::new();
    for source in sources(tree) {
        for circle in circles(&Crate::read(tree, &source)) {
            let across = (source.clone(), circle.folders.clone());
            found.entry(across).or_default().push(circle);
        }
    }
    let count = |across| -> usize {
        let circles = found.get(across).into_iter().flatten();
        circles.map(|circle| circle.files.len()).sum()
    };
    let mut findings = Vec::new();
    for (across, circles) in &found {
        let allowed = kept.get(across).copied().unwrap_or_default();
        if count(across) > allowed {
            findings.extend(
                circles
                    .iter()
                    .map(|circle| finding(&across.0, circle, allowed)),
            );
        }
    }
    let shrunk = kept
        .iter()
        .filter(|(across, allowed)| count(across) < **allowed);
    findings.extend(shrunk.map(|(across, allowed)| Finding {
        path: KEPT.to_owned(),
        line: 1,
        message: format!(
            "{} has {} files in circles across just {}, and the row says {allowed}; {} the row",
            across.0,
            count(across),
            shown(across.1.iter(), " "),
            if count(across) == 0 {
                "remove"
            } else {
                "lower"
            }
        ),
    }));
    Ok(findings)
}

/// Returns the folders `src` of all crates.
fn sources(tree: &Tree) -> BTreeSet<String> {
    let roots = tree.files.iter().filter_map(|file| {
        let source =
            (file.path.strip_suffix("/lib.rs")).or_else(|| file.path.strip_suffix("/main.rs"))?;
        source.ends_with("/src").then(|| source.to_owned())
    });
    roots.collect()
}

fn parse(text: &str) -> Result<BTreeMap<Across, usize>> {
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    rows.map(|line| {
        let mut columns = line.split('\t');
        let mut column = || columns.next();
        let row = (column(), column(), column(), column());
        let (Some(source), Some(folders), Some(files), Some(reason)) = row else {
            bail!(
                "{KEPT}: expected a crate, folders, a number of files and a reason, with tabs between them, in `{line}`"
            );
        };
        let files = files.parse().with_context(|| format!("{KEPT}: no number of files in `{line}`"))?;
        ensure!(!reason.trim().is_empty(), "{KEPT}: no reason in `{line}`");
        let folders = folders.split(' ').map(str::to_owned).collect();
        Ok(((source.to_owned(), folders), files))
    })
    .collect()
}

fn finding(source: &str, circle: &Circle, allowed: usize) -> Finding {
    let first = circle.files.first().map_or("", String::as_str);
    let allowed = match allowed {
        0 => String::new(),
        files => format!(" (the list allows {files} files)"),
    };
    Finding {
        path: format!("{source}/{first}"),
        line: 1,
        message: format!(
            "a circle of files across folders{allowed}: {}; move what they share: {}",
            shown(circle.files.iter(), " "),
            shown(circle.uses.iter(), "; ")
        ),
    }
}

/// Joins the first texts, and says how many more there are.
fn shown<'a>(all: impl ExactSizeIterator<Item = &'a String>, between: &str) -> String {
    let more = all.len().saturating_sub(SHOWN);
    let mut texts: Vec<&str> = all.take(SHOWN).map(String::as_str).collect();
    let rest = format!("and {more} more");
    if more > 0 {
        texts.push(&rest);
    }
    texts.join(between)
}

/// Returns the circles of a crate whose files lie in more than one folder.
fn circles(found: &Crate<'_>) -> Vec<Circle> {
    let uses = found.uses();
    let mut reached = BTreeMap::new();
    for file in uses.keys() {
        reached.insert(*file, reachable(&uses, file));
    }
    let mut circles = Vec::new();
    let mut done = BTreeSet::new();
    for (file, others) in &reached {
        if done.contains(file) || !others.contains(file) {
            continue;
        }
        let members: BTreeSet<&str> = others
            .iter()
            .copied()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(file)))
            .collect();
        done.extend(members.iter().copied());
        let folders: BTreeSet<&str> = members.iter().map(|file| found.folder(file)).collect();
        if folders.len() > 1 {
            circles.push(circle(found, &uses, &members));
        }
    }
    circles
}

fn circle(found: &Crate<'_>, uses: &Dependencies<'_>, members: &BTreeSet<&str>) -> Circle {
    let mut crossing = Vec::new();
    for file in members {
        for (other, taken) in &uses[file] {
            if members.contains(other) && found.folder(file) != found.folder(other) {
                let names: Vec<&str> = taken.names.iter().copied().collect();
                crossing.push(format!(
                    "{file}:{} uses {} of {other}",
                    taken.line,
                    names.join(", ")
                ));
            }
        }
    }
    Circle {
        files: members.iter().map(|file| (*file).to_owned()).collect(),
        folders: members
            .iter()
            .map(|file| name(found.folder(file)))
            .collect(),
        uses: crossing,
    }
}

/// Returns how the list names a folder.
fn name(folder: &str) -> String {
    let name = if folder.is_empty() { "." } else { folder };
    name.to_owned()
}

/// Returns the files that `from` uses, directly or through others. Holds `from` itself only in a circle.
fn reachable<'a>(uses: &Dependencies<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(file) = open.pop() {
        for other in uses.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(*other) {
                open.push(other);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::tree::File;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| File::new(path, text));
        Tree {
            root: PathBuf::new(),
            files: files.collect(),
        }
    }

    fn said(files: &[(&str, &str)]) -> Vec<String> {
        let findings = check(&tree(files)).expect("the list can be read");
        findings.iter().map(ToString::to_string).collect()
    }

    /// A crate in which `a/one.rs` uses what `shape` says, and `b.rs` uses `a`.
    const LIB: (&str, &str) = ("c/src/lib.rs", "mod a; mod b;");
    const FOLDER: (&str, &str) = ("c/src/a/mod.rs", "mod one; pub use one::One;");
    const USER: (&str, &str) = (
        "c/src/b.rs",
        "use crate::a::One; pub struct B; fn f() { One; }",
    );
    const NONE: (&str, &str) = ("xtask/circles.tsv", "# crate\tfolders\treason\n");

    #[test]
    fn a_circle_through_a_re_export_is_reported_with_its_uses() {
        let one = (
            "c/src/a/one.rs",
            "// x\npub struct One; fn g() -> crate::b::B {}",
        );
        assert_eq!(
            said(&[LIB, FOLDER, one, USER, NONE]),
            [
                "c/src/a/one.rs:1: a circle of files across folders: a/one.rs b.rs; move what they share: \
                 a/one.rs:2 uses B of b.rs; b.rs:1 uses One of a/one.rs"
            ]
        );
    }

    #[test]
    fn a_circle_that_the_list_has_is_fine_and_a_row_without_one_is_not() {
        let one = (
            "c/src/a/one.rs",
            "use super::super::b::*; pub struct One(B);",
        );
        let list = ("xtask/circles.tsv", "c/src\t. a\t2\tthey own each other\n");
        assert_eq!(said(&[LIB, FOLDER, one, USER, list]), [""; 0]);
        let one = ("c/src/a/one.rs", "pub struct One;");
        assert_eq!(
            said(&[LIB, FOLDER, one, USER, list]),
            [
                "xtask/circles.tsv:1: c/src has 0 files in circles across just . a, and the row says 2; remove the row"
            ]
        );
    }

    #[test]
    fn a_row_does_not_excuse_another_circle_or_a_larger_one_across_the_same_folders() {
        let one = (
            "c/src/a/one.rs",
            "use super::super::b::*; pub struct One(B);",
        );
        let lib = ("c/src/lib.rs", "mod a; mod b; mod d;");
        let folder = (
            "c/src/a/mod.rs",
            "mod one; mod two; pub use one::One; pub use two::Two;",
        );
        let two = ("c/src/a/two.rs", "pub struct Two(crate::d::D);");
        let other = ("c/src/d.rs", "pub struct D(crate::a::Two);");
        let list = ("xtask/circles.tsv", "c/src\t. a\t2\tthey own each other\n");
        let found = said(&[lib, folder, one, two, USER, other, list]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(
            found[1].contains("folders (the list allows 2 files): a/two.rs d.rs;"),
            "{found:?}"
        );
        let more = ("xtask/circles.tsv", "c/src\t. a\t5\tthey own each other\n");
        let found = said(&[lib, folder, one, two, USER, other, more]);
        let lower = "xtask/circles.tsv:1: c/src has 4 files in circles across just . a, and the row says 5; lower the row";
        assert_eq!(found, [lower]);
    }

    #[test]
    fn uses_in_one_direction_tests_and_circles_in_a_folder_are_fine() {
        let one = (
            "c/src/a/one.rs",
            "use super::two::Two; pub struct One(Two); #[cfg(test)] mod tests { use crate::b::B; }",
        );
        let two = ("c/src/a/two.rs", "pub struct Two(super::One);");
        assert_eq!(said(&[LIB, FOLDER, one, two, USER, NONE]), [""; 0]);
    }

    #[test]
    fn a_folder_and_the_file_named_like_it_are_one_folder() {
        let lib = ("c/src/lib.rs", "mod a;");
        let folder = ("c/src/a.rs", "mod one; use one::One; pub struct A(One);");
        let one = ("c/src/a/one.rs", "pub struct One(super::A);");
        assert_eq!(said(&[lib, folder, one, NONE]), [""; 0]);
        let outer = ("c/src/lib.rs", "mod a; struct Lib(a::A);");
        let one = ("c/src/a/one.rs", "pub struct One(crate::Lib);");
        assert_eq!(
            said(&[outer, folder, one, NONE]),
            [
                "c/src/a.rs:1: a circle of files across folders: a.rs a/one.rs lib.rs; move what they share: \
                 a/one.rs:1 uses Lib of lib.rs; lib.rs:1 uses A of a.rs"
            ]
        );
    }

    #[test]
    fn a_row_without_a_reason_is_an_error() {
        let list = ("xtask/circles.tsv", "c/src\t. b\t \n");
        assert!(check(&tree(&[LIB, list])).is_err());
    }
}
