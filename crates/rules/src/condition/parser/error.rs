//! Parse errors of conditions, with suggested fixes.

use thiserror::Error;

use super::Parser;
use crate::condition::ast::{Op, Operand, SourceId, Span, Transformer};
use crate::condition::lexer::{Lexer, QuoteError, QuoteProblem};
use crate::diagnostic::closest;

/// Error of parsing a condition.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct ParseError {
    /// Position of the error; never outside the text.
    pub span: Span,
    /// Expected and found tokens.
    pub message: String,
    /// Suggested fix, if one can be guessed.
    pub help: Option<String>,
}

impl Parser<'_> {
    pub(super) fn error(&self, message: impl Into<String>) -> ParseError {
        ParseError {
            span: self.lexer.next_span(),
            message: message.into(),
            help: None,
        }
    }

    pub(super) fn expected(&self, what: &str) -> ParseError {
        let error = self.error(format!("expected {what}, found {}", self.lexer.found()));
        match keyword_help(self.lexer.rest()) {
            Some(help) => error.with_help(help),
            None => error,
        }
    }

    pub(super) fn trailing(&self) -> ParseError {
        let rest = self.lexer.rest();
        if rest.starts_with(')') {
            return self.error("unexpected `)`: no parenthesis is open here");
        }
        let error = self.expected("`and`, `or` or the end of the condition");
        match error.help {
            None if rest.starts_with(['"', '\'']) => {
                error.with_help("inside a quoted string write the quote as `\\\"` or `\\'`")
            }
            None if rest.starts_with(is_word_char) => {
                error.with_help("a value with blanks in it needs quotes")
            }
            _ => error,
        }
    }

    pub(super) fn not_an_operator(&self, left: &Operand) -> ParseError {
        let what = match left {
            Operand::Field(field) => format!("`{}`", field.name),
            Operand::Call(call) => format!("`{}(..)`", call.transformer.word()),
        };
        let error = self.error(format!(
            "expected an operator after {what}, found {}",
            self.lexer.found()
        ));
        let mut ahead = Lexer::new(self.lexer.rest(), SourceId(0));
        let word = ahead.word();
        let operators = Op::ALL.iter().map(|op| op.word()).chain(["==", "exists"]);
        match closest(&word.to_ascii_lowercase(), operators) {
            Some(op) if op == word => {
                error.with_help(format!("`{op}` needs a value after a blank"))
            }
            Some(op) => error.with_help(format!("did you mean `{op}`?")),
            None if word.is_empty() && !self.lexer.rest().starts_with('[') => {
                error.with_help("to test that a field has a value, write `FIELD exists`")
            }
            None => error,
        }
    }

    pub(super) fn unknown_transformer(&mut self, start: usize, name: &str) -> ParseError {
        let span = self.lexer.span_from(start);
        let message = format!("unknown transformer `{name}`");
        let error = ParseError {
            span,
            message,
            help: None,
        };
        if name == "val" {
            return error.with_help("`val` belongs on the right of an operator");
        }
        match closest(name, Transformer::ALL.iter().map(|t| t.word())) {
            Some(word) => error.with_help(format!("did you mean `{word}`?")),
            None => error.with_help("a macro is named without parentheses"),
        }
    }
}

impl ParseError {
    pub(super) fn with_help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }
}

pub(super) fn is_word_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Returns a hint for authors who use a keyword of another language.
pub(super) fn keyword_help(rest: &str) -> Option<&'static str> {
    const FOREIGN: [(&str, &str); 7] = [
        ("&&", "write `and`"),
        ("||", "write `or`"),
        ("!", "write `not`"),
        ("AND", "keywords are written in lower case: `and`"),
        ("OR", "keywords are written in lower case: `or`"),
        ("NOT", "keywords are written in lower case: `not`"),
        ("#", "a condition has no comments; put them before the item"),
    ];
    FOREIGN
        .iter()
        .find(|(word, _)| rest.starts_with(word))
        .map(|&(_, help)| help)
}

pub(super) fn quote_error(error: QuoteError) -> ParseError {
    let (message, help) = match error.problem {
        QuoteProblem::Unterminated(quote) => (
            format!("the string has no closing `{quote}`"),
            Some("a backslash before the quote escapes it; a last backslash is written `\\x5c`"),
        ),
        QuoteProblem::UnknownEscape(c) => (
            format!("unknown escape `\\{}` in a quoted string", c.escape_debug()),
            Some("write a backslash as `\\\\`"),
        ),
        QuoteProblem::BadHex => (
            "`\\x` needs two hexadecimal digits".to_owned(),
            Some("write a backslash as `\\\\`"),
        ),
        QuoteProblem::OtherQuote(c) => (
            format!("`\\{c}` is not an escape in a string with the other quotes"),
            Some("write the quote without a backslash"),
        ),
    };
    ParseError {
        span: error.span,
        message,
        help: help.map(str::to_owned),
    }
}
