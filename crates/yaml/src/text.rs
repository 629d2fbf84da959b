//! Mapping from the characters of a text to their positions in its file.
//!
//! A text is often a folded YAML block, and may be assembled from several blocks of several files. Anchors
//! map positions in the text that the parser sees back to the file: from an anchor's offset to the next
//! anchor, text and file run in parallel.

use std::sync::Arc;

use crate::diagnostic::Location;

/// A text with its source positions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceText {
    text: String,
    /// Anchors in ascending order of offset; the first is at 0.
    anchors: Vec<Anchor>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Anchor {
    offset: usize,
    location: Location,
}

impl SourceText {
    /// Creates a text that stands at `location` verbatim.
    #[must_use]
    pub fn new(text: String, location: Location) -> Self {
        Self {
            text,
            anchors: vec![Anchor {
                offset: 0,
                location,
            }],
        }
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the position of the first character.
    #[must_use]
    pub fn start(&self) -> &Location {
        &self.anchors[0].location
    }

    /// Returns the position of the character at `offset`.
    #[must_use]
    pub fn locate(&self, offset: usize) -> Location {
        let after = self
            .anchors
            .partition_point(|anchor| anchor.offset <= offset);
        let anchor = &self.anchors[after.saturating_sub(1)];
        let between = self.text.get(anchor.offset..offset).unwrap_or("");
        let columns = u32::try_from(between.chars().count()).unwrap_or(u32::MAX);
        let column = anchor.location.column.saturating_add(columns);
        Location {
            column,
            ..anchor.location.clone()
        }
    }

    /// Appends `glue` and another text.
    pub fn append(&mut self, glue: &str, other: &SourceText) {
        self.text.push_str(glue);
        let base = self.text.len();
        self.text.push_str(&other.text);
        self.anchors
            .extend(other.anchors.iter().map(|anchor| Anchor {
                offset: base + anchor.offset,
                ..anchor.clone()
            }));
    }

    /// Returns the text between `open` and `close`.
    #[must_use]
    pub fn wrapped(&self, open: &str, close: &str) -> Self {
        let mut wrapped = Self::new(open.to_owned(), self.start().clone());
        wrapped.append("", self);
        wrapped.text.push_str(close);
        wrapped
    }

    /// Returns the text without surrounding blanks.
    #[must_use]
    pub fn trimmed(mut self) -> Self {
        let skip = self.text.len() - self.text.trim_start().len();
        let start = self.locate(skip);
        self.text = self.text.trim().to_owned();
        self.anchors.retain(|anchor| anchor.offset > skip);
        for anchor in &mut self.anchors {
            anchor.offset -= skip;
        }
        self.anchors.insert(
            0,
            Anchor {
                offset: 0,
                location: start,
            },
        );
        self
    }
}

/// YAML style of a scalar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    SingleQuoted,
    DoubleQuoted,
    /// Block scalar, `|` or `>`.
    Block,
}

/// A rule file, split into lines.
pub(crate) struct File<'a> {
    pub(crate) name: Arc<str>,
    lines: Vec<Line<'a>>,
}

struct Line<'a> {
    /// Offset of the line's first byte in the file.
    offset: usize,
    text: &'a str,
}

/// Start position of an item, as the YAML parser reports it.
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    /// Line, counted from 1.
    pub(crate) line: usize,
    /// Column in characters, counted from 0.
    pub(crate) column: usize,
    /// Byte offset in the file, if known: computing it from the column is slow in a long line.
    pub(crate) byte: Option<usize>,
}

impl<'a> File<'a> {
    pub(crate) fn new(name: Arc<str>, text: &'a str) -> Self {
        Self {
            name,
            lines: split_lines(text),
        }
    }

    /// Returns the location of a line (from 1) and column (from 0).
    pub(crate) fn location(&self, line: usize, column: usize) -> Location {
        Location {
            file: Arc::clone(&self.name),
            line: u32::try_from(line).unwrap_or(u32::MAX),
            column: u32::try_from(column + 1).unwrap_or(u32::MAX),
        }
    }

    /// Maps the characters of a scalar's `value` to the file. `start` is an anchor, a quote, or the first
    /// line inside a block.
    pub(crate) fn align(&self, value: &str, style: Style, start: Mark) -> SourceText {
        let mut walk = Walk::new(self, style, start);
        let mut anchors: Vec<Anchor> = Vec::new();
        // Line and column of the next character if text and file run in parallel.
        let mut parallel = (0, 0);
        let mut rest = value;
        while let Some(c) = rest.chars().next() {
            let at = (walk.line, walk.column);
            let run = walk.take_run(rest);
            let (bytes, chars, line, column, exact) = if run.bytes > 0 {
                (run.bytes, run.chars, at.0, at.1, true)
            } else if let Some((line, column, exact)) = walk.find(c) {
                (c.len_utf8(), 1, line, column, exact)
            } else {
                break;
            };
            if exact && parallel != (line, column) {
                anchors.push(Anchor {
                    offset: value.len() - rest.len(),
                    location: self.location(line, column),
                });
                parallel = (line, column);
            }
            parallel.1 += chars;
            rest = &rest[bytes..];
        }
        if anchors.first().is_none_or(|anchor| anchor.offset > 0) {
            let location = anchors.first().map_or_else(
                || self.location(start.line, start.column),
                |anchor| anchor.location.clone(),
            );
            anchors.insert(
                0,
                Anchor {
                    offset: 0,
                    location,
                },
            );
        }
        SourceText {
            text: value.to_owned(),
            anchors,
        }
    }
}

fn split_lines(text: &str) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    let mut start = 0;
    for part in text.split('\n') {
        // A lone carriage return ends a line too (YAML 1.2, section 5.4).
        let mut offset = start;
        for text in part.strip_suffix('\r').unwrap_or(part).split('\r') {
            lines.push(Line { offset, text });
            offset += text.len() + 1;
        }
        start += part.len() + 1;
    }
    lines
}

/// Length of a text in bytes and in characters.
struct Run {
    bytes: usize,
    chars: usize,
}

/// A cursor in the file that follows the characters of a scalar.
struct Walk<'f, 'a> {
    file: &'f File<'a>,
    style: Style,
    line: usize,
    column: usize,
    rest: &'a str,
}

impl<'f, 'a> Walk<'f, 'a> {
    fn new(file: &'f File<'a>, style: Style, start: Mark) -> Self {
        let mut walk = Self {
            file,
            style,
            line: start.line,
            column: 0,
            rest: "",
        };
        walk.enter(start.line);
        match start.byte.and_then(|byte| walk.rest_from(byte)) {
            Some(rest) => (walk.column, walk.rest) = (start.column, rest),
            None => walk.skip(start.column),
        }
        match style {
            Style::Block => {}
            Style::Plain => {
                while walk.rest.starts_with(['&', '!']) {
                    walk.skip_until(|c| c.is_whitespace());
                    walk.skip_blank();
                }
            }
            Style::SingleQuoted | Style::DoubleQuoted => {
                walk.skip_until(|c| matches!(c, '"' | '\''));
                walk.skip(1);
            }
        }
        walk
    }

    /// Moves past the character `c` of the value. Returns its position, and whether the position is certain:
    /// a blank that folding inserted has no position.
    fn find(&mut self, c: char) -> Option<(usize, usize, bool)> {
        let blank = c.is_whitespace();
        if !blank {
            self.skip_blank();
        }
        let (line, column) = (self.line, self.column);
        let next = self.rest.chars().next();
        if next == Some('\\') && self.style == Style::DoubleQuoted {
            let escape = self.rest[1..].chars().next();
            if escape.is_none() {
                // An escaped line break is not a character of the value.
                self.enter(self.line + 1);
                return self.find(c);
            }
            self.skip(match escape {
                Some('x') => 4,
                Some('u') => 6,
                Some('U') => 10,
                _ => 2,
            });
            return Some((line, column, true));
        }
        if next == Some(c) {
            let doubled = c == '\'' && self.style == Style::SingleQuoted;
            self.skip(if doubled { 2 } else { 1 });
            return Some((line, column, true));
        }
        blank.then_some((line, column, false))
    }

    /// Moves past the longest prefix of `value` that stands verbatim in the line. This covers most of a
    /// scalar, so that [`Self::find`] handles only line breaks, escapes and doubled quotes.
    fn take_run(&mut self, value: &str) -> Run {
        let special = match self.style {
            Style::Plain | Style::Block => None,
            Style::SingleQuoted => Some(b'\''),
            Style::DoubleQuoted => Some(b'\\'),
        };
        let pairs = value.bytes().zip(self.rest.bytes());
        let mut bytes = pairs
            .take_while(|(wanted, found)| wanted == found && Some(*found) != special)
            .count();
        // Two characters may begin with the same bytes.
        while !self.rest.is_char_boundary(bytes) || !value.is_char_boundary(bytes) {
            bytes -= 1;
        }
        let (run, rest) = self.rest.split_at(bytes);
        let chars = run.chars().count();
        self.column += chars;
        self.rest = rest;
        Run { bytes, chars }
    }

    fn enter(&mut self, line: usize) {
        self.line = line;
        self.column = 0;
        self.rest = self.current().map_or("", |line| line.text);
    }

    fn current(&self) -> Option<&'f Line<'a>> {
        self.file.lines.get(self.line.checked_sub(1)?)
    }

    /// Returns the text of the current line from a byte offset of the file on.
    fn rest_from(&self, byte: usize) -> Option<&'a str> {
        let line = self.current()?;
        line.text.get(byte.checked_sub(line.offset)?..)
    }

    /// Moves to the next character that is not blank, on a later line if necessary.
    fn skip_blank(&mut self) {
        loop {
            self.skip_until(|c| !c.is_whitespace());
            if !self.rest.is_empty() || self.line >= self.file.lines.len() {
                return;
            }
            self.enter(self.line + 1);
        }
    }

    fn skip_until(&mut self, stop: impl Fn(char) -> bool) {
        let count = self.rest.chars().take_while(|&c| !stop(c)).count();
        self.skip(count);
    }

    fn skip(&mut self, chars: usize) {
        let bytes = self
            .rest
            .char_indices()
            .nth(chars)
            .map_or(self.rest.len(), |(at, _)| at);
        self.column += self.rest[..bytes].chars().count();
        self.rest = &self.rest[bytes..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{self, Kind, Node};

    const STYLES: &str = r#"
plain: a plain text, späte Größe ☃, with 'quotes' and "others"
folded plain: one
  two   three

  four
single: 'it''s single, ''twice'' and
  folded ☃'
double: "tab\t, quote \" and \x41\u00e9\U0001F600, a break \
  that is escaped, äö"
literal: |
  one line
    deeper  ☃

  last
folded: >-
  spawned_process and
  proc.name in (a, b)
    and more

  end
tagged: !!str &anchor value of it
not the same: "ä"
"#;

    /// Collects the scalars that are mapping values.
    fn values<'n>(nodes: &'n [Node], found: &mut Vec<&'n SourceText>) {
        for node in nodes {
            if let Kind::Mapping(pairs) = &node.kind {
                found.extend(pairs.iter().filter_map(|(_, value)| value.scalar()));
            }
        }
    }

    #[test]
    fn each_character_is_located_where_it_is_written() {
        let (nodes, problem) = tree::read(&"a.yaml".into(), STYLES);
        assert_eq!(problem, None);
        let mut found = Vec::new();
        values(&nodes, &mut found);
        assert_eq!(found.len(), 8);
        let lines: Vec<Vec<char>> = STYLES.lines().map(|line| line.chars().collect()).collect();
        for text in found {
            for (offset, c) in text.text().char_indices() {
                let Location { line, column, .. } = text.locate(offset);
                let written = lines[line as usize - 1].get(column as usize - 1).copied();
                // Folded blanks have no position; an escaped character begins with a backslash.
                let is_there = written == Some(c) || c.is_whitespace() || written == Some('\\');
                assert!(is_there, "{c:?} of {:?} at {line}:{column}", text.text());
            }
        }
    }
}
