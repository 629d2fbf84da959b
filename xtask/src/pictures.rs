//! Pictures of a terminal, drawn from sessions that documents show and tests run.
//!
//! `<!-- picture: PATH -->` stands before a block marked `console`. All blocks with the same PATH make one
//! picture, in order. `cargo run -p xtask -- pictures --write` draws it; the check compares.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};

use crate::tree::{Finding, Tree};

const MARK: &str = "<!-- picture: ";
/// Columns of the terminal. A longer line is wrapped.
const COLUMNS: usize = 110;
/// Width of a character in tenths of a pixel, and height of a line in pixels, for a font of 13 pixels.
const CHARACTER: usize = 78;
const LINE: usize = 19;
/// Margin around the text in pixels; above it is the bar of the window.
const MARGIN: usize = 16;
const BAR: usize = 30;

/// Priorities of alerts, and their colours.
const PRIORITIES: [(&str, &str); 8] = [
    ("Emergency", "#ff7b72"),
    ("Alert", "#ff7b72"),
    ("Critical", "#ff7b72"),
    ("Error", "#ff7b72"),
    ("Warning", "#e3b341"),
    ("Notice", "#79c0ff"),
    ("Informational", "#79c0ff"),
    ("Debug", "#8b949e"),
];

/// Reports pictures that differ from their documents.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for (path, picture) in all(tree)? {
        if fs::read_to_string(tree.root.join(&path)).ok().as_ref() != Some(&picture) {
            findings.push(Finding {
                path,
                line: 1,
                message: "the picture is not what its document shows; run `cargo run -p xtask -- pictures --write`"
                    .to_owned(),
            });
        }
    }
    Ok(findings)
}

/// Redraws every picture.
pub(crate) fn write(tree: &Tree) -> Result<()> {
    for (path, picture) in all(tree)? {
        let file = tree.root.join(&path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make {}", folder.display()))?;
        }
        fs::write(&file, picture).with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

/// Returns each picture's path and content.
fn all(tree: &Tree) -> Result<BTreeMap<String, String>> {
    let mut sessions: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for document in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (path, lines) in marked(&document.text).with_context(|| document.path.clone())? {
            sessions.entry(path.to_owned()).or_default().extend(lines);
        }
    }
    Ok(sessions
        .into_iter()
        .map(|(path, lines)| (path, draw(&lines)))
        .collect())
}

/// Returns the marked blocks, each with the path of its picture.
fn marked(text: &str) -> Result<Vec<(&str, Vec<&str>)>> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(path) = line
            .strip_prefix(MARK)
            .and_then(|rest| rest.strip_suffix(" -->"))
        else {
            continue;
        };
        let start = lines.by_ref().find(|line| !line.is_empty());
        ensure!(
            start == Some("```console"),
            "a session has to follow the mark of {path}"
        );
        found.push((
            path,
            lines.by_ref().take_while(|line| *line != "```").collect(),
        ));
    }
    Ok(found)
}

/// A piece of a line in one colour.
type Piece = (String, &'static str);

/// Splits a line into coloured pieces.
fn pieces(line: &str) -> Vec<Piece> {
    const PLAIN: &str = "#c9d1d9";
    const DIM: &str = "#8b949e";
    let piece = |text: &str, colour| (text.to_owned(), colour);
    if let Some(command) = line.strip_prefix("$ ") {
        return vec![piece("$ ", "#7ee787"), piece(command, "#ffffff")];
    }
    let words: Vec<&str> = line.splitn(3, ' ').collect();
    if let [time, priority, rest] = words[..]
        && let Some((_, colour)) = PRIORITIES.iter().find(|(name, _)| *name == priority)
    {
        return vec![
            piece(&format!("{time} "), DIM),
            piece(priority, colour),
            piece(&format!(" {rest}"), PLAIN),
        ];
    }
    vec![piece(line, PLAIN)]
}

/// Wraps pieces at the width of the terminal.
fn rows(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut rows = vec![Vec::new()];
    let mut column = 0;
    for (text, colour) in pieces {
        let mut text: Vec<char> = text.chars().collect();
        while !text.is_empty() {
            if column == COLUMNS {
                rows.push(Vec::new());
                column = 0;
            }
            let rest = text.split_off(text.len().min(COLUMNS - column));
            column += text.len();
            if let Some(row) = rows.last_mut() {
                row.push((text.into_iter().collect(), colour));
            }
            text = rest;
        }
    }
    rows
}

/// Formats tenths of a pixel as pixels.
fn tenths(number: usize) -> String {
    format!("{}.{}", number / 10, number % 10)
}

fn draw(lines: &[&str]) -> String {
    let rows: Vec<_> = lines.iter().flat_map(|line| rows(pieces(line))).collect();
    let width = (CHARACTER * COLUMNS).div_ceil(10) + 2 * MARGIN;
    let height = BAR + LINE * rows.len() + MARGIN;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"A terminal with the session that the document shows\">\n\
         <!-- Drawn by the command `pictures` of xtask. -->\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (x, colour) in [(18, "#ff5f57"), (38, "#febc2e"), (58, "#28c840")] {
        let _ = writeln!(
            out,
            "<circle cx=\"{x}\" cy=\"15\" r=\"6\" fill=\"{colour}\"/>"
        );
    }
    out += "<g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, monospace\" font-size=\"13\">\n";
    for (number, row) in rows.iter().enumerate() {
        let y = BAR + LINE * number + 14;
        let mut column = 0;
        for (text, colour) in row {
            let x = tenths(10 * MARGIN + CHARACTER * column);
            let length = text.chars().count();
            let _ = writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\" textLength=\"{}\" xml:space=\"preserve\">{}</text>",
                tenths(CHARACTER * length),
                text.replace('&', "&amp;")
                    .replace('<', "&lt;")
                    .replace('>', "&gt;")
            );
            column += length;
        }
    }
    out + "</g>\n</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::File;

    fn tree(text: &str) -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().unwrap();
        let file = File {
            path: "a.md".to_owned(),
            text: text.to_owned(),
        };
        let root = folder.path().to_path_buf();
        (
            folder,
            Tree {
                root,
                files: vec![file],
            },
        )
    }

    const DOCUMENT: &str = "<!-- picture: images/a.svg -->\n\n```console\n$ cat <x\n1:2: Warning a & b\n```\n\
        ```console\n$ not drawn\n```\n<!-- picture: images/a.svg -->\n```console\n$ second\n```\n";

    #[test]
    fn a_picture_is_drawn_from_marked_sessions_and_then_stays() {
        let (folder, tree) = tree(DOCUMENT);
        assert_eq!(check(&tree).unwrap().len(), 1, "it is not there");
        write(&tree).unwrap();
        assert_eq!(check(&tree).unwrap(), []);
        let path = folder.path().join("images/a.svg");
        let picture = fs::read_to_string(&path).unwrap();
        for part in [">cat &lt;x<", ">Warning<", "> a &amp; b<", ">second<"] {
            assert!(picture.contains(part), "{part}: {picture}");
        }
        assert!(!picture.contains("not drawn"));
        // XML does not allow two hyphens in a comment.
        let comment = picture
            .split("<!--")
            .nth(1)
            .and_then(|rest| rest.split("-->").next());
        assert!(
            comment.is_some_and(|text| !text.contains("--")),
            "{picture}"
        );
        fs::write(&path, picture.replace("second", "third")).unwrap();
        assert_eq!(check(&tree).unwrap().len(), 1, "it was changed");
    }

    #[test]
    fn a_mark_without_a_session_is_refused() {
        let (_folder, tree) = tree("<!-- picture: a.svg -->\n\ntext\n");
        assert!(check(&tree).is_err());
    }

    #[test]
    fn long_lines_go_on_in_the_next_row() {
        let line = "x".repeat(COLUMNS + 1);
        let rows = rows_of(&line);
        let lengths: Vec<_> = rows.iter().map(|row| row[0].0.len()).collect();
        assert_eq!(lengths, [COLUMNS, 1]);
        assert_eq!(rows_of("x").len(), 1);
    }

    fn rows_of(line: &str) -> Vec<Vec<Piece>> {
        rows(pieces(line))
    }
}
