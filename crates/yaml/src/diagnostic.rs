//! Diagnostics: an error or a warning about a file, with its position and a suggested fix.

use std::fmt::{self, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use strsim::osa_distance;

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    /// The file can still be used.
    Warning,
    /// The file cannot be used.
    Error,
}

/// A position in a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub struct Location {
    /// Name of the file, as the user passed it.
    pub file: Arc<str>,
    /// Line, counted from 1; 0 for the file as a whole.
    pub line: u32,
    /// Column in characters, counted from 1.
    pub column: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            return write!(f, "{}", self.file);
        }
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The error and warning codes of a language.
pub trait Code: Copy {
    /// Returns the stable name, e.g. `LOAD_ERR_VALIDATE`.
    fn name(self) -> &'static str;

    /// Returns the default severity of diagnostics with this code.
    fn severity(self) -> Severity;
}

/// One error or warning about a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic<C> {
    /// Code of the diagnostic.
    pub code: C,
    /// Severity of the diagnostic.
    pub severity: Severity,
    /// Position in the file.
    pub location: Location,
    /// Enclosing item, e.g. `rule NAME`; empty for the file as a whole.
    pub context: String,
    /// Description of the error.
    pub message: String,
    /// Suggested fix, if one is known.
    pub help: Option<String>,
}

impl<C: Code> Diagnostic<C> {
    /// Creates a diagnostic with the default severity of `code`.
    #[must_use]
    pub fn new(code: C, location: Location, message: impl Into<String>) -> Self {
        Self {
            code,
            severity: code.severity(),
            location,
            context: String::new(),
            message: message.into(),
            help: None,
        }
    }

    /// Sets the enclosing item.
    #[must_use]
    pub fn in_item(self, context: impl Into<String>) -> Self {
        Self {
            context: context.into(),
            ..self
        }
    }

    /// Sets the suggested fix.
    #[must_use]
    pub fn with_help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }

    /// Returns true if the diagnostic makes the file unusable.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }

    /// Formats the message for a terminal, with the line of `text` (the whole file) that it refers to.
    #[must_use]
    pub fn render(&self, text: Option<&str>) -> String {
        let mut out = self.to_string();
        let line = usize::try_from(self.location.line)
            .ok()
            .and_then(|line| line.checked_sub(1));
        if let Some(source) = text
            .zip(line)
            .and_then(|(text, line)| text.lines().nth(line))
        {
            push_snippet(&mut out, source, &self.location);
        }
        if let Some(help) = &self.help {
            push(&mut out, format_args!("\n  help: {help}"));
        }
        out
    }
}

/// Formats as `file:line:column: error[CODE]: rule NAME: message`.
impl<C: Code> fmt::Display for Diagnostic<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{}: {severity}[{}]: ", self.location, self.code.name())?;
        if !self.context.is_empty() {
            write!(f, "{}: ", self.context)?;
        }
        f.write_str(&self.message)
    }
}

/// Maximum number of source columns in a snippet; longer lines are cut around the caret.
const SNIPPET_WIDTH: usize = 100;

fn push_snippet(out: &mut String, line: &str, location: &Location) {
    let column = usize::try_from(location.column).unwrap_or(1).max(1) - 1;
    // Cuts so that a third of the width precedes the caret.
    let skip = if line.chars().count() > SNIPPET_WIDTH {
        column.saturating_sub(SNIPPET_WIDTH / 3)
    } else {
        0
    };
    let shown: String = line
        .chars()
        .skip(skip)
        .take(SNIPPET_WIDTH)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let number = location.line.to_string();
    let gutter = " ".repeat(number.len());
    let caret = " ".repeat(column - skip);
    push(
        out,
        format_args!("\n {number} | {}\n {gutter} | {caret}^", shown.trim_end()),
    );
}

fn push(out: &mut String, args: fmt::Arguments<'_>) {
    out.write_fmt(args)
        .expect("writing to a string cannot fail");
}

/// Returns the candidate that `word` most likely misspells, or `None` if no candidate is near enough.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One edit for short words, up to three for long ones: more suggests nonsense.
    let limit = match word.chars().count() {
        0 | 1 => return None,
        2..=4 => 1,
        5..=8 => 2,
        _ => 3,
    };
    let is_word = |text: &str| text.len() <= MAX_WORD;
    candidates
        .into_iter()
        .filter(|candidate| is_word(word) && is_word(candidate))
        .map(|candidate| (osa_distance(word, candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

/// Longest word that is compared, in characters; a longer name is not treated as a misspelling.
const MAX_WORD: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, Copy)]
    struct Only;

    impl Code for Only {
        fn name(self) -> &'static str {
            "LOAD_ERR_COMPILE_CONDITION"
        }

        fn severity(self) -> Severity {
            Severity::Error
        }
    }

    fn sample(line: u32, column: u32) -> Diagnostic<Only> {
        let location = Location {
            file: "a.yaml".into(),
            line,
            column,
        };
        Diagnostic::new(Only, location, "expected an operator")
            .in_item("rule Shell")
            .with_help("did you mean `contains`?")
    }

    #[test]
    fn render_points_at_the_column() {
        let text = "- rule: Shell\n  condition: proc.name contaisn x\n";
        assert_eq!(
            sample(2, 24).render(Some(text)),
            "a.yaml:2:24: error[LOAD_ERR_COMPILE_CONDITION]: rule Shell: expected an operator\n \
             2 |   condition: proc.name contaisn x\n   \
             |                        ^\n  help: did you mean `contains`?"
        );
    }

    #[test]
    fn render_cuts_long_lines_around_the_caret() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let out = sample(1, 501).render(Some(&text));
        let lines: Vec<&str> = out.lines().collect();
        let caret = lines[2].find('^').expect("there is a caret");
        assert_eq!(lines[1].as_bytes()[caret], b'X');
        assert!(lines[1].len() < 120);
    }

    #[test]
    fn render_without_the_line_leaves_the_snippet_out() {
        assert_eq!(sample(9, 1).render(Some("one line")).lines().count(), 2);
        assert_eq!(sample(9, 1).render(None).lines().count(), 2);
        assert_eq!(sample(0, 0).render(Some("one line")).lines().count(), 2);
    }

    #[test]
    fn closest_is_silent_when_nothing_is_near() {
        assert_eq!(
            closest("contians", ["startswith", "contains"]),
            Some("contains")
        );
        assert_eq!(closest("zzz", ["startswith", "contains"]), None);
        assert_eq!(closest("", ["a"]), None);
        assert_eq!(closest(&"a".repeat(100), [&*"a".repeat(99)]), None);
    }
}
