//! Recognises the tokens of a condition at a cursor.
//!
//! There is no token stream: the meaning of a character depends on what the grammar expects there (`/etc/*`
//! is one string after `=`, and `-1` a number after `<`), so the parser asks for a token.

use super::ast::{SourceId, Span, Text};

/// Longest excerpt of the condition that a message quotes.
const EXCERPT_CHARS: usize = 24;

pub(super) struct Lexer<'a> {
    text: &'a str,
    source: SourceId,
    pos: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str, source: SourceId) -> Self {
        Self {
            text,
            source,
            pos: 0,
        }
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    /// Returns the cursor to a position from [`pos`](Self::pos).
    pub(super) fn rewind(&mut self, pos: usize) {
        self.pos = pos;
    }

    /// Returns the span from `start` to the cursor.
    pub(super) fn span_from(&self, start: usize) -> Span {
        let offset = |pos| u32::try_from(pos).unwrap_or(u32::MAX);
        Span::new(self.source, offset(start), offset(self.pos))
    }

    /// Returns the approximate span of the next token, for messages.
    pub(super) fn next_span(&self) -> Span {
        let mut ahead = Lexer {
            pos: self.pos,
            ..*self
        };
        if ahead.word().is_empty()
            && let Some(c) = ahead.rest().chars().next()
        {
            ahead.pos += c.len_utf8();
        }
        ahead.span_from(self.pos)
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.pos..]
    }

    pub(super) fn at_end(&self) -> bool {
        self.rest().is_empty()
    }

    /// Skips blanks; returns true if there were any.
    pub(super) fn blank(&mut self) -> bool {
        self.skip_while(is_blank)
    }

    pub(super) fn literal(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.pos += word.len();
        }
        found
    }

    /// Reads `[a-zA-Z][a-zA-Z0-9_]*`.
    pub(super) fn identifier(&mut self) -> Option<&'a str> {
        let len = identifier_len(self.rest())?;
        Some(self.take(len))
    }

    /// Reads two or more identifiers joined by dots.
    pub(super) fn field_name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let mut len = identifier_len(rest)?;
        let first = len;
        while let Some(part) = rest[len..].strip_prefix('.').and_then(identifier_len) {
            len += 1 + part;
        }
        (len > first).then(|| self.take(len))
    }

    /// Reads `[^][ "'\s]+`.
    pub(super) fn bare_argument(&mut self) -> Option<&'a str> {
        self.take_while(|c| !matches!(c, '[' | ']' | '"' | '\'') && !is_space(c))
    }

    /// Reads `[^()"'=,\s]+`.
    pub(super) fn bare_string(&mut self) -> Option<&'a str> {
        self.take_while(is_bare)
    }

    /// Reads a number: `0xff`, `12`, `-1.5`, `1e+3`.
    pub(super) fn number(&mut self) -> Option<&'a str> {
        let len = number_len(self.rest().as_bytes())?;
        Some(self.take(len))
    }

    /// Reads and unescapes a quoted string; `None` if there is no quote here.
    ///
    /// The string ends at the first delimiter that no backslash precedes, even if that backslash is itself
    /// escaped: a string cannot end in `\\`, it must end in `\x5c`. Falco reads it so.
    pub(super) fn quoted(&mut self) -> Option<Result<Text, QuoteError>> {
        let delimiter = self
            .rest()
            .chars()
            .next()
            .filter(|c| matches!(c, '"' | '\''))?;
        let start = self.pos;
        let body = &self.rest()[1..];
        let mut previous = delimiter;
        for (at, c) in body.char_indices() {
            if c == '\0' {
                break;
            }
            if c == delimiter && previous != '\\' {
                self.pos += 1 + at + 1;
                return Some(
                    unescape(&body[..at], delimiter).map_err(|(offset, problem)| {
                        let at = start + 1 + offset;
                        let mut lexer = Lexer { pos: at, ..*self };
                        lexer.skip_chars(2);
                        QuoteError {
                            span: lexer.span_from(at),
                            problem,
                        }
                    }),
                );
            }
            previous = c;
        }
        let span = self.span_from(start);
        let problem = QuoteProblem::Unterminated(delimiter);
        Some(Err(QuoteError {
            span: Span {
                end: span.start + 1,
                ..span
            },
            problem,
        }))
    }

    /// Describes the next token, for messages that say what was expected instead.
    pub(super) fn found(&self) -> String {
        if self.at_end() {
            return "the end of the condition".to_owned();
        }
        let word = Lexer {
            pos: self.pos,
            ..*self
        }
        .word();
        if word.is_empty() {
            let next = self.rest().chars().next().unwrap_or(' ');
            let shown = if next.is_control() {
                next.escape_default().to_string()
            } else {
                next.into()
            };
            return format!("`{shown}`");
        }
        if word.chars().count() > EXCERPT_CHARS {
            let head: String = word.chars().take(EXCERPT_CHARS).collect();
            return format!("`{head}...`");
        }
        format!("`{word}`")
    }

    /// Reads the text up to the next blank, quote, comma or parenthesis.
    pub(super) fn word(&mut self) -> &'a str {
        self.take_while(|c| is_bare(c) || c == '=').unwrap_or("")
    }

    fn take(&mut self, len: usize) -> &'a str {
        let token = &self.rest()[..len];
        self.pos += len;
        token
    }

    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> Option<&'a str> {
        let rest = self.rest();
        let len = rest.find(|c| !accept(c)).unwrap_or(rest.len());
        (len > 0).then(|| self.take(len))
    }

    fn skip_while(&mut self, accept: impl Fn(char) -> bool) -> bool {
        self.take_while(accept).is_some()
    }

    fn skip_chars(&mut self, count: usize) {
        self.pos += self
            .rest()
            .chars()
            .take(count)
            .map(char::len_utf8)
            .sum::<usize>();
    }
}

/// Error in a quoted string, with its position.
pub(super) struct QuoteError {
    pub(super) span: Span,
    pub(super) problem: QuoteProblem,
}

pub(super) enum QuoteProblem {
    Unterminated(char),
    UnknownEscape(char),
    BadHex,
    OtherQuote(char),
}

/// Returns true if a text can be written as a value without quotes.
pub(super) fn is_bare_string(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_bare)
}

/// Returns true if a text can be written in brackets without quotes.
pub(super) fn is_bare_argument(text: &str) -> bool {
    Lexer::new(text, SourceId(0))
        .bare_argument()
        .is_some_and(|token| token.len() == text.len())
}

/// Returns true if a condition can spell this text as the name of a macro.
pub(crate) fn is_identifier(text: &str) -> bool {
    identifier_len(text).is_some_and(|len| len == text.len())
}

/// Returns true if a condition can spell this text as the name of a list.
pub(crate) fn is_list_name(text: &str) -> bool {
    is_bare_string(text)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x08')
}

fn is_space(c: char) -> bool {
    is_blank(c) || matches!(c, '\x0b' | '\x0c')
}

fn is_bare(c: char) -> bool {
    !matches!(c, '(' | ')' | '"' | '\'' | '=' | ',' | '\0') && !is_space(c)
}

fn identifier_len(text: &str) -> Option<usize> {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        .then(|| {
            text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(text.len())
        })
}

fn number_len(text: &[u8]) -> Option<usize> {
    let digits = |from: usize, accept: fn(&u8) -> bool| {
        text.get(from..)
            .map_or(0, |rest| rest.iter().take_while(|b| accept(b)).count())
    };
    if let [b'0', b'x' | b'X', ..] = text {
        let hex = digits(2, u8::is_ascii_hexdigit);
        if hex > 0 {
            return Some(2 + hex);
        }
    }
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let whole = digits(sign, u8::is_ascii_digit);
    if whole == 0 {
        return None;
    }
    let mut len = sign + whole;
    if text.get(len) == Some(&b'.') {
        len += 1 + digits(len + 1, u8::is_ascii_digit);
    }
    if let Some([b'e' | b'E', b'+' | b'-', ..]) = text.get(len..) {
        let exponent = digits(len + 2, u8::is_ascii_digit);
        if exponent > 0 {
            len += 2 + exponent;
        }
    }
    Some(len)
}

fn unescape(body: &str, delimiter: char) -> Result<Text, (usize, QuoteProblem)> {
    let mut bytes = Vec::with_capacity(body.len());
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        if c != '\\' {
            bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            continue;
        }
        // A lone backslash cannot be last: it would have escaped the delimiter.
        let Some((_, escape)) = chars.next() else {
            break;
        };
        bytes.push(match escape {
            'b' => 0x08,
            'f' => 0x0c,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            // Backslash and blank stand for a backslash: old rules contain this escape.
            ' ' | '\\' => b'\\',
            '/' => b'/',
            '"' | '\'' if escape == delimiter => u8::try_from(escape).unwrap_or(b'"'),
            '"' | '\'' => return Err((at, QuoteProblem::OtherQuote(escape))),
            'x' => {
                let digit = |next: Option<(usize, char)>| {
                    next.and_then(|(_, c)| c.to_digit(16))
                        .and_then(|d| u8::try_from(d).ok())
                };
                let (Some(high), Some(low)) = (digit(chars.next()), digit(chars.next())) else {
                    return Err((at, QuoteProblem::BadHex));
                };
                high << 4 | low
            }
            other => return Err((at, QuoteProblem::UnknownEscape(other))),
        });
    }
    Ok(bytes.into())
}
