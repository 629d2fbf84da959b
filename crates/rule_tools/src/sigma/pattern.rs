//! Texts of Sigma with wildcards, as comparisons of this program.

use std::fmt::Write as _;

use super::selection::Expr;

/// A text in which `*` stands for any characters and `?` for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Vec<Part>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    Any,
    One,
}

/// Where a text is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// The text is the whole value.
    #[default]
    Whole,
    Anywhere,
    Start,
    End,
}

impl Pattern {
    /// Reads a text as Sigma writes it: a backslash before `*`, `?` or a backslash makes that ordinary.
    pub(super) fn read(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let part = match c {
                '\\' => match chars.next_if(|next| matches!(next, '*' | '?' | '\\')) {
                    Some(next) => Part::Char(next),
                    None => Part::Char('\\'),
                },
                '*' => Part::Any,
                '?' => Part::One,
                c => Part::Char(c),
            };
            if part != Part::Any || parts.last() != Some(&Part::Any) {
                parts.push(part);
            }
        }
        Self(parts)
    }

    /// Looks for the text in a part of the value.
    pub(super) fn at(mut self, place: Place) -> Self {
        if matches!(place, Place::Anywhere | Place::End) && self.0.first() != Some(&Part::Any) {
            self.0.insert(0, Part::Any);
        }
        if matches!(place, Place::Anywhere | Place::Start) && self.0.last() != Some(&Part::Any) {
            self.0.push(Part::Any);
        }
        self
    }

    /// Appends what the field has at its end and Sigma's has not, unless the pattern lets the end open.
    pub(super) fn ending_in(mut self, end: char) -> Self {
        if !matches!(self.0.last(), None | Some(Part::Any))
            && self.0.last() != Some(&Part::Char(end))
        {
            self.0.push(Part::Char(end));
        }
        self
    }

    /// Returns the text if it has no wildcards.
    pub(super) fn plain(&self) -> Option<String> {
        literal(&self.0)
    }

    /// Writes the comparison of a field; with `cased`, letters of another case are others.
    pub(super) fn test(&self, field: &'static str, cased: bool) -> Expr {
        let (open_start, inner) = match self.0.split_first() {
            Some((Part::Any, rest)) => (true, rest),
            _ => (false, &self.0[..]),
        };
        let (open_end, inner) = match inner.split_last() {
            Some((Part::Any, rest)) => (true, rest),
            _ => (false, inner),
        };
        if open_start && inner.is_empty() {
            return Expr::Test(format!("{field} exists"));
        }
        let Some(text) = literal(inner) else {
            return Expr::Test(self.glob(field, cased));
        };
        let cased = cased || !has_case(&text);
        let text = quoted(&text);
        let word = match (open_start, open_end, cased) {
            (false, false, true) => return Expr::Equal(field, text),
            (true, true, true) => "contains",
            (true, true, false) => "icontains",
            (false, true, true) => "startswith",
            (true, false, true) => "endswith",
            _ => return Expr::Test(self.glob(field, cased)),
        };
        Expr::Test(format!("{field} {word} {text}"))
    }

    fn glob(&self, field: &str, cased: bool) -> String {
        let mut text = String::new();
        for part in &self.0 {
            match part {
                Part::Any => text.push('*'),
                Part::One => text.push('?'),
                Part::Char(c) => {
                    if matches!(c, '*' | '?' | '[' | ']' | '\\') {
                        text.push('\\');
                    }
                    text.push(*c);
                }
            }
        }
        let word = if cased { "glob" } else { "iglob" };
        format!("{field} {word} {}", quoted(&text))
    }
}

fn literal(parts: &[Part]) -> Option<String> {
    let letter = |part: &Part| match part {
        Part::Char(c) => Some(*c),
        Part::Any | Part::One => None,
    };
    parts.iter().map(letter).collect()
}

fn has_case(text: &str) -> bool {
    text.chars().any(|c| !c.to_lowercase().eq(c.to_uppercase()))
}

/// Quotes a text for a condition. The last character must not be a backslash, which would keep the quote open.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        // Writing to a text cannot fail.
        let _ = match c {
            '\\' if chars.peek().is_none() => write!(out, "\\x5c"),
            '"' | '\\' => write!(out, "\\{c}"),
            '\n' => write!(out, "\\n"),
            '\r' => write!(out, "\\r"),
            '\t' => write!(out, "\\t"),
            c if c.is_ascii_control() => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "{c}"),
        };
    }
    out.push('"');
    out
}
