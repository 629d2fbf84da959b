//! Command lines as text: splitting into words, wrapping, and quoting.

use diagnostics::shell::quoted;

use crate::Error;

/// Placeholder in a wrapper for the workload's command line.
pub(crate) const HOLE: &str = "{}";

/// Splits `line` at blanks. Quotes and backslashes work as in the POSIX shell; expansions are not supported.
pub(crate) fn split(line: &str) -> Result<Vec<String>, Error> {
    let fail = |reason| Error::CommandLine {
        line: line.to_owned(),
        reason,
    };
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            c if c.is_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(|| fail("a ' is not closed"))? {
                        '\'' => break,
                        c => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next().ok_or_else(|| fail("a \" is not closed"))? {
                        '"' => break,
                        '\\' => match chars.next().ok_or_else(|| fail("a \" is not closed"))? {
                            c @ ('"' | '\\' | '$' | '`') => word.push(c),
                            c => word.extend(['\\', c]),
                        },
                        c => word.push(c),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(
                chars
                    .next()
                    .ok_or_else(|| fail("nothing follows the last \\"))?,
            ),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    if words.is_empty() {
        return Err(fail("it is empty"));
    }
    Ok(words)
}

/// Replaces the placeholder in `wrapper` by the words of `inner`: by separate words where it stands alone, by
/// one quoted text where it is part of a word (`sh -c '{}; true'`).
pub(crate) fn wrap(wrapper: &[String], inner: &[String]) -> Vec<String> {
    let mut words = Vec::with_capacity(wrapper.len() + inner.len());
    for word in wrapper {
        if word == HOLE {
            words.extend_from_slice(inner);
        } else if word.contains(HOLE) {
            words.push(word.replace(HOLE, &join(inner)));
        } else {
            words.push(word.clone());
        }
    }
    words
}

/// Joins `words` into one line that [`split`] and the shell split into the same words.
pub(crate) fn join(words: &[String]) -> String {
    words
        .iter()
        .map(|word| quoted(word))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_split_as_the_shell_splits_them() {
        let line = r#"a  b\ c 'd e' "f \"g\" \h" i'j'"k" ''"#;
        assert_eq!(
            split(line).unwrap(),
            ["a", "b c", "d e", r#"f "g" \h"#, "ijk", ""]
        );
    }

    #[test]
    fn unfinished_lines_are_refused() {
        for line in ["", "  ", "a 'b", "a \"b", "a \\"] {
            assert!(split(line).is_err(), "{line}");
        }
    }

    #[test]
    fn joined_words_split_into_the_same_words() {
        let words = ["plain", "two words", "it's", "", "$HOME", "a\\b", "\"q\""].map(str::to_owned);
        assert_eq!(split(&join(&words)).unwrap(), words);
    }

    #[test]
    fn the_hole_takes_words_or_one_quoted_text() {
        let inner = ["echo", "a b"].map(str::to_owned);
        let wrapped = |wrapper| wrap(&split(wrapper).unwrap(), &inner);
        assert_eq!(wrapped("strace -f {}"), ["strace", "-f", "echo", "a b"]);
        assert_eq!(
            wrapped("sh -c '{}; true'"),
            ["sh", "-c", "echo 'a b'; true"]
        );
    }
}
