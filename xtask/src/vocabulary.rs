//! Retired words: names and phrases that were replaced by standard terms. `xtask/vocabulary.tsv` lists them.
//!
//! A retired *name* may not be a word of Rust code again. A retired *phrase* may not stand in a document, a
//! comment or a message. Each entry says what to write instead.

use anyhow::{Context, Result, bail};

use crate::tokens::tokens;
use crate::tree::{File, Finding, Tree};

/// The list. The check ignores its own lines.
const LIST: &str = "xtask/vocabulary.tsv";

/// Folders whose files quote other sources, or hold results of earlier versions.
const QUOTING: [&str; 3] = ["results/", "docs/adr/", "tests/tests/captures/"];

/// A word that is no longer used, and its replacement.
#[derive(Debug, PartialEq, Eq)]
struct Retired {
    kind: Kind,
    /// Folder or file where the word is retired; empty: everywhere.
    scope: String,
    word: String,
    standard: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Name,
    Phrase,
}

/// Reports every retired word.
pub(crate) fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let list = parse(&tree.file(LIST)?.text)?;
    let files = tree.files.iter().filter(|file| {
        file.path != LIST && !QUOTING.iter().any(|folder| file.path.starts_with(folder))
    });
    Ok(files.flat_map(|file| in_file(file, &list)).collect())
}

fn parse(text: &str) -> Result<Vec<Retired>> {
    let mut list = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let retired = line_of(line).with_context(|| {
            format!(
                "{LIST}:{}: expected KIND, SCOPE, WORD and STANDARD, separated by tabs",
                index + 1
            )
        })?;
        list.push(retired);
    }
    Ok(list)
}

fn line_of(line: &str) -> Result<Retired> {
    let parts: Vec<&str> = line.split('\t').collect();
    let [kind, scope, word, standard] = parts[..] else {
        bail!("found {} parts", parts.len());
    };
    let kind = match kind {
        "name" => Kind::Name,
        "phrase" => Kind::Phrase,
        other => bail!("unknown kind `{other}`: write `name` or `phrase`"),
    };
    Ok(Retired {
        kind,
        scope: scope.trim_start_matches('*').to_owned(),
        word: word.to_owned(),
        standard: standard.to_owned(),
    })
}

fn in_file(file: &File, list: &[Retired]) -> Vec<Finding> {
    let here: Vec<&Retired> = list
        .iter()
        .filter(|retired| file.path.starts_with(&retired.scope))
        .collect();
    let mut findings = Vec::new();
    let mut report = |line: usize, retired: &Retired| {
        findings.push(Finding {
            path: file.path.clone(),
            line,
            message: format!(
                "`{}` is retired; write `{}`",
                retired.word, retired.standard
            ),
        });
    };
    if file.path.ends_with(".rs") {
        for token in tokens(&file.text) {
            for retired in &here {
                if retired.kind == Kind::Name && token.text == retired.word {
                    report(token.line, retired);
                }
            }
        }
    }
    if file.path.ends_with(".rs") || file.path.ends_with(".md") {
        for (index, line) in file.text.lines().enumerate() {
            for retired in &here {
                if retired.kind == Kind::Phrase && has_phrase(line, &retired.word) {
                    report(index + 1, retired);
                }
            }
        }
    }
    findings
}

/// Returns true if `line` contains `phrase` at word boundaries, ignoring case.
fn has_phrase(line: &str, phrase: &str) -> bool {
    let line = line.to_lowercase();
    line.match_indices(&phrase.to_lowercase())
        .any(|(at, found)| {
            let is_letter = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
            !is_letter(line[..at].chars().next_back())
                && !is_letter(line[at + found.len()..].chars().next())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let list =
            "# A comment\nname\t*\tErrand\tAgentHandoff\nphrase\tdocs/\tcomes to\tcompiles to\n";
        let file = File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        in_file(&file, &parse(list).expect("it is a list"))
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn retired_names_are_found_in_code_alone() {
        let text = "// Errand\nstruct Errand;\nstruct Errands;\n";
        assert_eq!(
            found("crates/a/src/lib.rs", text),
            ["crates/a/src/lib.rs:2: `Errand` is retired; write `AgentHandoff`"]
        );
    }

    #[test]
    fn retired_phrases_are_found_where_they_are_retired() {
        let text = "A rule Comes to a filter.\nIt becomes to.\n";
        assert_eq!(
            found("docs/a.md", text),
            ["docs/a.md:1: `comes to` is retired; write `compiles to`"]
        );
        assert!(found("README.md", text).is_empty());
    }

    #[test]
    fn a_broken_list_is_an_error() {
        let error = parse("name\tErrand\n").expect_err("a part is missing");
        assert!(format!("{error:#}").starts_with("xtask/vocabulary.tsv:1: expected KIND"));
    }
}
