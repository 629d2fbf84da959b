//! The syntax of RE2, in which rules write regular expressions.
//!
//! Falco matches with RE2. The regex crate reads most patterns the same way and some differently: its `\d`, `\s`,
//! `\w` and `\b` are Unicode's, `[a&&b]` is an intersection, `a{` is an error and `a**` is not. [`translate`] reads
//! a pattern by RE2's grammar and returns the expression that the regex crate compiles. A pattern that RE2 refuses
//! is an error here, too.

mod class;
mod escape;
mod flags;
mod stack;
#[cfg(test)]
mod tests;

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, Dot, Hir, Look, Repetition};
use thiserror::Error;

use flags::Flags;
use stack::Stack;

/// Why RE2 refuses a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum SyntaxError {
    #[error("nothing to repeat before `{0}`")]
    NothingToRepeat(String),
    #[error("`{0}` repeats a repetition; put the first one into `(?:...)`")]
    RepeatedRepetition(String),
    #[error("the repetition `{0}` is reversed or exceeds 1000 times, nested ones multiplied")]
    TooManyRepetitions(String),
    #[error("`(` has no `)`")]
    UnclosedGroup,
    #[error("`)` has no `(`")]
    UnopenedGroup,
    #[error("`[` has no `]`")]
    UnclosedClass,
    #[error("`{0}` is not a character class or range")]
    BadClass(String),
    #[error("unknown escape `{0}`; write `\\\\` for a backslash")]
    UnknownEscape(String),
    #[error("the pattern ends with a backslash")]
    TrailingBackslash,
    #[error("`{0}` is not a group or flag; the flags are i, m, s and U")]
    BadGroup(String),
    #[error("`{0}` does not name a group")]
    BadGroupName(String),
    #[error("groups are nested more than 1000 deep")]
    TooDeep,
}

type Parsed<T> = Result<T, SyntaxError>;

/// How often a part may be repeated by number, the counts of nested repetitions multiplied.
const MAX_REPEAT: u32 = 1000;

/// Reads a pattern by RE2's grammar.
///
/// # Errors
///
/// Fails if RE2 refuses the pattern.
pub(crate) fn translate(pattern: &str) -> Parsed<Hir> {
    Parser {
        rest: pattern,
        flags: Flags::default(),
        stack: Stack::default(),
        after_repetition: false,
    }
    .pattern()
}

struct Parser<'p> {
    rest: &'p str,
    flags: Flags,
    stack: Stack,
    /// Whether the part before is a repetition, which cannot be repeated without a group.
    after_repetition: bool,
}

impl<'p> Parser<'p> {
    fn pattern(mut self) -> Parsed<Hir> {
        while let Some(next) = self.rest.chars().next() {
            let after_repetition = std::mem::take(&mut self.after_repetition);
            let from = self.rest;
            self.rest = &self.rest[next.len_utf8()..];
            match next {
                '(' => self.open(from)?,
                '|' => self.stack.alternate(),
                ')' => self.flags = self.stack.close()?,
                '^' => self.look(if self.flags.multi_line {
                    Look::StartLF
                } else {
                    Look::Start
                }),
                '$' => self.look(if self.flags.multi_line {
                    Look::EndLF
                } else {
                    Look::End
                }),
                '.' => self.stack.push(Hir::dot(if self.flags.dot_newline {
                    Dot::AnyChar
                } else {
                    Dot::AnyCharExceptLF
                })),
                '[' => {
                    let (class, rest) = class::bracketed(from, self.flags)?;
                    self.rest = rest;
                    self.class(class);
                }
                '*' => self.repeat(from, 0, None, after_repetition)?,
                '+' => self.repeat(from, 1, None, after_repetition)?,
                '?' => self.repeat(from, 0, Some(1), after_repetition)?,
                '{' => self.counted(from, after_repetition)?,
                '\\' => self.escape(from)?,
                literal => self.literal(u32::from(literal)),
            }
        }
        self.stack.finish()
    }

    /// Reads what follows `(`. `from` begins with it.
    fn open(&mut self, from: &'p str) -> Parsed<()> {
        let group = flags::group(from, self.flags)?;
        self.rest = group.rest;
        if group.opens {
            self.stack.open(self.flags)?;
        }
        self.flags = group.flags;
        Ok(())
    }

    fn look(&mut self, look: Look) {
        self.stack.push(Hir::look(look));
    }

    fn class(&mut self, class: ClassUnicode) {
        self.stack.push(Hir::class(Class::Unicode(class)));
    }

    /// Pushes one character, and its other cases if cases are ignored.
    ///
    /// A surrogate, which only an escape can write, is in no text.
    fn literal(&mut self, code: u32) {
        let Some(character) = char::from_u32(code) else {
            self.stack.push(Hir::fail());
            return;
        };
        if self.flags.ignore_case {
            let range = ClassUnicodeRange::new(character, character);
            let mut class = ClassUnicode::new([range]);
            class::fold(&mut class);
            self.class(class);
        } else {
            let mut bytes = [0; 4];
            let bytes = character.encode_utf8(&mut bytes).as_bytes();
            self.stack.push(Hir::literal(bytes));
        }
    }

    /// Repeats the part before. `from` begins with the operator, which is read, and what makes it lazy.
    fn repeat(
        &mut self,
        from: &str,
        min: u32,
        max: Option<u32>,
        after_repetition: bool,
    ) -> Parsed<()> {
        self.rest = self.rest.strip_prefix('?').unwrap_or(self.rest);
        let operator = || from[..from.len() - self.rest.len()].to_owned();
        if after_repetition {
            return Err(SyntaxError::RepeatedRepetition(operator()));
        }
        let operator = operator();
        self.stack.repeat(operator, |sub| {
            // Whether an expression is lazy has no effect on what it matches as a whole.
            Hir::repetition(Repetition {
                min,
                max,
                greedy: true,
                sub,
            })
        })?;
        self.after_repetition = true;
        Ok(())
    }

    /// Reads `{2}`, `{2,}` or `{2,3}`; any other brace is a character.
    fn counted(&mut self, from: &str, after_repetition: bool) -> Parsed<()> {
        let Some((min, max, rest)) = counts(self.rest) else {
            self.literal(u32::from('{'));
            return Ok(());
        };
        self.rest = &self.rest[self.rest.len() - rest.len()..];
        let written = &from[..from.len() - rest.len()];
        let is_valid = max.unwrap_or(min) <= MAX_REPEAT && min <= max.unwrap_or(min);
        if after_repetition {
            return Err(SyntaxError::RepeatedRepetition(written.to_owned()));
        }
        if !is_valid {
            return Err(SyntaxError::TooManyRepetitions(written.to_owned()));
        }
        self.stack.count(written, max.unwrap_or(min))?;
        self.repeat(from, min, max, false)
    }

    /// Reads what follows a backslash. `from` begins with it.
    fn escape(&mut self, from: &'p str) -> Parsed<()> {
        let Some(escaped) = self.rest.chars().next() else {
            return Err(SyntaxError::TrailingBackslash);
        };
        let after = &self.rest[escaped.len_utf8()..];
        match escaped {
            'b' => self.look(Look::WordAscii),
            'B' => self.look(Look::WordAsciiNegate),
            'A' => self.look(Look::Start),
            'z' => self.look(Look::End),
            'C' => self.stack.push(Hir::dot(Dot::AnyByte)),
            'Q' => {
                let (quoted, rest) = after.split_once("\\E").unwrap_or((after, ""));
                quoted
                    .chars()
                    .for_each(|next| self.literal(u32::from(next)));
                self.rest = rest;
                return Ok(());
            }
            _ => {
                if let Some((class, rest)) = class::escaped(from, self.flags)? {
                    self.rest = rest;
                    self.class(class);
                } else {
                    let (code, rest) = escape::character(from)?;
                    self.rest = rest;
                    self.literal(code);
                }
                return Ok(());
            }
        }
        self.rest = after;
        Ok(())
    }
}

/// Reads what follows the brace of a counted repetition, and returns what follows it.
fn counts(text: &str) -> Option<(u32, Option<u32>, &str)> {
    let (min, rest) = count(text)?;
    let (max, rest) = match rest.strip_prefix(',') {
        None => (Some(min), rest),
        Some(rest) if rest.starts_with('}') => (None, rest),
        Some(rest) => {
            let (max, rest) = count(rest)?;
            (Some(max), rest)
        }
    };
    Some((min, max, rest.strip_prefix('}')?))
}

/// Reads a number of up to nine digits without a leading zero.
fn count(text: &str) -> Option<(u32, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if digits > 1 && number.starts_with('0') || digits > 9 {
        return None;
    }
    Some((number.parse().ok()?, rest))
}
