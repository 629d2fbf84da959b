//! Parses a condition.
//!
//! ```text
//! condition   = or
//! or          = and { "or" and }
//! and         = not { "and" not }
//! not         = { "not" } ( check | macro | "(" or ")" )
//! check       = operand ( "exists" | comparison )
//! comparison  = numeric-op ( number | dynamic )
//!             | string-op  ( string | dynamic )
//!             | string-op  quantifier ( list | list-name )
//!             | list-op    ( list | list-name | dynamic )
//! operand     = field | call                                  left of an operator
//! dynamic     = "val(" field ")" | call                       right of an operator
//! field       = field-name [ "[" argument "]" ]
//! call        = transformer "(" arg { "," arg } ")" [ "[" argument "]" ]
//! arg         = number | quoted | call | field
//!             | "(" [ item { "," item } ] ")"
//! item        = field | call | quoted | number
//! list        = "(" [ value { "," value } ] ")"
//! value       = string | list-name with blanks: words without quotes
//!
//! numeric-op  = "<=" | "<" | ">=" | ">"
//! string-op   = "==" | "=" | "!=" | "glob" | "iglob" | "contains" | "icontains" | "bcontains"
//!             | "startswith" | "bstartswith" | "endswith" | "regex"
//! list-op     = "intersects" | "in" | "pmatch"
//! quantifier  = "oneof" | "anyof" | "allof"
//! transformer = "tolower" | "toupper" | "b64" | "basename" | "len" | "join" | "concat" | "getopt"
//!
//! macro, list-name = letter { letter | digit | "_" }
//! field-name       = macro "." macro { "." macro }
//! argument         = quoted | one or more of anything but brackets, quotes, blanks
//! string           = quoted | one or more of anything but ( ) " ' = , blanks
//! number           = "0x" hex-digits | [ sign ] digits [ "." digits ] [ "e" sign digits ]
//! quoted           = "..." | '...'    escapes: \b \f \n \r \t \\ \/ \" \' \xHH
//! ```
//!
//! Words of `string-op` and `quantifier` need a blank after them; `and`, `or` and `not` need a blank
//! or `(`. No blank may stand before the `(` of a transformer or the `[` of an argument.
//! A word of `quantifier` that no list follows is an ordinary string.
//!
//! Falco reads the same, except that it ends an `or` chain after `or(..)`, takes `and`, `or` and
//! `not` for macros where they cannot be keywords, and reads `inlist` as `in list`.
//!
//! Meaning of a comparison with a quantifier, for a field with one value and a list (false for an
//! empty list, whatever the quantifier):
//!
//! | quantifier | true when the comparison holds for |
//! |---|---|
//! | `oneof` | exactly one value of the list |
//! | `anyof` | at least one |
//! | `allof` | every one |

mod error;
mod operand;
mod value;

use super::ast::{
    Compare, Expr, ExprKind, Op, OpClass, Operand, Quantifier, SourceId, Span, Value,
};
use super::lexer::Lexer;

pub use error::ParseError;
use error::is_word_char;

/// Maximum number of open parentheses and transformers, so that hostile input ends in an error and not in a
/// stack overflow. Public rules nest at most 8; Falco stops at about 200.
pub const MAX_DEPTH: usize = 100;

/// Maximum length of a condition in bytes. The longest one in public rule sets has about 10 kB.
pub const MAX_LENGTH: usize = 1 << 20;

type Result<T, E = ParseError> = std::result::Result<T, E>;

/// Parses a whole condition.
pub fn parse(text: &str, source: SourceId) -> Result<Expr> {
    let mut parser = Parser::new(text, source)?;
    parser.lexer.blank();
    if parser.lexer.at_end() {
        return Err(parser.error("the condition is empty"));
    }
    let expr = parser.or()?;
    if parser.lexer.at_end() {
        Ok(expr)
    } else {
        Err(parser.trailing())
    }
}

/// Parses the field or transformer that `text` begins with (as after a `%` in an output) and returns it with
/// its end offset.
pub fn parse_operand_prefix(text: &str, source: SourceId) -> Result<(Operand, usize)> {
    let mut parser = Parser::new(text, source)?;
    match parser.operand()? {
        Some(operand) => Ok((operand, parser.lexer.pos())),
        None => Err(parser.expected("a field or a transformer")),
    }
}

/// Parses a text that consists of one field or transformer.
pub fn parse_operand(text: &str, source: SourceId) -> Result<Operand> {
    let mut parser = Parser::new(text, source)?;
    let operand = parser
        .operand()?
        .ok_or_else(|| parser.expected("a field or a transformer"))?;
    parser.finish(operand)
}

/// Parses a text as the right-hand side of `op` (and `quantifier`).
pub fn parse_value(
    op: Op,
    quantifier: Option<Quantifier>,
    text: &str,
    source: SourceId,
) -> Result<Value> {
    let mut parser = Parser::new(text, source)?;
    let value = match quantifier {
        Some(_) => parser.list_value(false)?,
        None => match op.class() {
            OpClass::Number => parser.number_value()?,
            OpClass::String => parser.string_value()?,
            OpClass::List => parser.list_value(true)?,
        },
    };
    parser.finish(value)
}

/// Parses an operator with its optional quantifier: `in`, `==`, `startswith anyof`.
#[must_use]
pub fn parse_operator(text: &str) -> Option<(Op, Option<Quantifier>)> {
    let mut words = text.split_ascii_whitespace();
    let op = match words.next()? {
        "==" => Op::Eq,
        word => Op::from_word(word)?,
    };
    let quantifier = words
        .next()
        .map(|word| Quantifier::from_word(word).ok_or(()))
        .transpose();
    let quantifier = quantifier.ok()?;
    let legal = quantifier.is_none() || op.class() == OpClass::String;
    (legal && words.next().is_none()).then_some((op, quantifier))
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, source: SourceId) -> Result<Self> {
        let parser = Self {
            lexer: Lexer::new(text, source),
            depth: 0,
        };
        if text.len() > MAX_LENGTH {
            let message = format!(
                "the condition has {} bytes, the limit is {MAX_LENGTH}",
                text.len()
            );
            return Err(parser.error(message));
        }
        Ok(parser)
    }

    fn finish<T>(mut self, parsed: T) -> Result<T> {
        self.lexer.blank();
        if self.lexer.at_end() {
            Ok(parsed)
        } else {
            Err(self.expected("nothing more"))
        }
    }

    fn or(&mut self) -> Result<Expr> {
        self.chain("or", ExprKind::Or, |parser| {
            parser.chain("and", ExprKind::And, Self::not)
        })
    }

    /// Parses one or more elements with `element`, joined by `word`.
    fn chain(
        &mut self,
        word: &str,
        join: fn(Vec<Expr>) -> ExprKind,
        element: impl Fn(&mut Self) -> Result<Expr>,
    ) -> Result<Expr> {
        self.lexer.blank();
        let start = self.lexer.pos();
        let first = element(self)?;
        let mut end;
        self.lexer.blank();
        if !self.keyword(word)? {
            return Ok(first);
        }
        let mut children = vec![first];
        loop {
            children.push(element(self)?);
            end = self.lexer.pos();
            self.lexer.blank();
            if !self.keyword(word)? {
                break;
            }
        }
        let resume = self.lexer.pos();
        self.lexer.rewind(end);
        let span = self.lexer.span_from(start);
        self.lexer.rewind(resume);
        Ok(Expr {
            kind: join(children),
            span,
        })
    }

    /// Parses `and` or `or`, with the blank or parenthesis that must follow.
    fn keyword(&mut self, word: &str) -> Result<bool> {
        let start = self.lexer.pos();
        if !self.lexer.literal(word) {
            return Ok(false);
        }
        if self.lexer.blank() || self.lexer.rest().starts_with('(') {
            return Ok(true);
        }
        if self.lexer.at_end() {
            return Err(self.expected(&format!("an expression after `{word}`")));
        }
        self.lexer.rewind(start);
        Err(self.expected("`and`, `or` or the end of the condition"))
    }

    fn not(&mut self) -> Result<Expr> {
        self.lexer.blank();
        let start = self.lexer.pos();
        let mut negated = false;
        loop {
            let before = self.lexer.pos();
            if !self.lexer.literal("not") {
                break;
            }
            if !self.lexer.blank() && !self.lexer.rest().starts_with('(') {
                self.lexer.rewind(before);
                break;
            }
            negated = !negated;
        }
        let child = self.check()?;
        if !negated {
            return Ok(child);
        }
        let span = self.lexer.span_from(start);
        Ok(Expr {
            kind: ExprKind::Not(Box::new(child)),
            span,
        })
    }

    fn check(&mut self) -> Result<Expr> {
        let start = self.lexer.pos();
        if self.lexer.literal("(") {
            return self.parenthesised(start);
        }
        if let Some(operand) = self.operand()? {
            return self.comparison(start, operand);
        }
        let Some(name) = self.lexer.identifier() else {
            return Err(self.expected("a field, a macro, `not` or `(`"));
        };
        if matches!(name, "and" | "or" | "not") {
            self.lexer.rewind(start);
            return Err(self.expected("a field, a macro, `not` or `(`"));
        }
        if self.lexer.rest().starts_with('(') {
            return Err(self.unknown_transformer(start, name));
        }
        let span = self.lexer.span_from(start);
        Ok(Expr {
            kind: ExprKind::Macro(name.to_owned()),
            span,
        })
    }

    fn parenthesised(&mut self, start: usize) -> Result<Expr> {
        self.enter(start)?;
        let inner = self.or()?;
        self.lexer.blank();
        if !self.lexer.literal(")") {
            return Err(self.expected("`and`, `or` or `)`"));
        }
        self.depth -= 1;
        Ok(Expr {
            span: self.lexer.span_from(start),
            ..inner
        })
    }

    fn comparison(&mut self, start: usize, left: Operand) -> Result<Expr> {
        self.lexer.blank();
        if self.lexer.literal("exists") {
            let span = self.lexer.span_from(start);
            return Ok(Expr {
                kind: ExprKind::Exists(left),
                span,
            });
        }
        let op_start = self.lexer.pos();
        let Some((op, blank)) = self.operator() else {
            return Err(self.not_an_operator(&left));
        };
        let quantifier = if blank { self.quantifier() } else { None };
        let op_span = self.trimmed_span(op_start);
        self.lexer.blank();
        let right = match (quantifier, op.class()) {
            (Some(_), _) => self.list_value(false)?,
            (None, OpClass::Number) => self.number_value()?,
            (None, OpClass::String) => self.string_value()?,
            (None, OpClass::List) => self.list_value(true)?,
        };
        let compare = Compare {
            left,
            op,
            quantifier,
            op_span,
            right,
        };
        Ok(Expr {
            kind: ExprKind::Compare(compare),
            span: self.lexer.span_from(start),
        })
    }

    /// Parses an operator; returns it with whether a quantifier may follow.
    fn operator(&mut self) -> Option<(Op, bool)> {
        /// Operator symbols; longer spellings stand before their prefixes.
        const SYMBOLS: [(&str, Op); 7] = [
            ("<=", Op::Le),
            ("<", Op::Lt),
            (">=", Op::Ge),
            (">", Op::Gt),
            ("==", Op::Eq),
            ("=", Op::Eq),
            ("!=", Op::Ne),
        ];
        for (symbol, op) in SYMBOLS {
            if self.lexer.literal(symbol) {
                let blank = self.lexer.blank();
                return Some((op, blank && op.class() == OpClass::String));
            }
        }
        let start = self.lexer.pos();
        for &op in Op::ALL {
            if !self.lexer.literal(op.word()) {
                continue;
            }
            // `in` and the other list operators may touch their list, the others need a blank.
            // `inaccessible` must not be read as `in`: an error about an unknown operator helps more.
            match op.class() {
                OpClass::List if !self.lexer.rest().starts_with(is_word_char) => {
                    return Some((op, false));
                }
                OpClass::String if self.lexer.blank() => return Some((op, true)),
                _ => self.lexer.rewind(start),
            }
        }
        None
    }

    /// Parses a quantifier, if a list or the name of one follows; otherwise the word is a string.
    fn quantifier(&mut self) -> Option<Quantifier> {
        let start = self.lexer.pos();
        for &quantifier in Quantifier::ALL {
            if self.lexer.literal(quantifier.word()) && self.lexer.blank() {
                let list = self.lexer.pos();
                let follows = self.lexer.literal("(")
                    || self
                        .lexer
                        .identifier()
                        .is_some_and(|w| !matches!(w, "and" | "or" | "not"));
                self.lexer.rewind(list);
                if follows {
                    return Some(quantifier);
                }
            }
            self.lexer.rewind(start);
        }
        None
    }

    fn enter(&mut self, start: usize) -> Result<()> {
        self.depth += 1;
        if self.depth <= MAX_DEPTH {
            return Ok(());
        }
        self.lexer.rewind(start);
        Err(self
            .error(format!(
                "more than {MAX_DEPTH} parentheses are open at once"
            ))
            .with_help("name parts of the condition as macros"))
    }

    /// Returns the span from `start` to the cursor, without trailing blanks.
    fn trimmed_span(&mut self, start: usize) -> Span {
        let span = self.lexer.span_from(start);
        let end = self.lexer.pos();
        self.lexer.rewind(start);
        let token = &self.lexer.rest()[..end - start];
        let blanks = token.len()
            - token
                .trim_end_matches([' ', '\t', '\n', '\r', '\x08'])
                .len();
        self.lexer.rewind(end);
        Span {
            end: span.end - u32::try_from(blanks).unwrap_or(0),
            ..span
        }
    }
}
