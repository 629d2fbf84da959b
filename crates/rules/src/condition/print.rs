//! Printer of conditions; parsing the output gives the same tree.

use std::fmt::{self, Display, Formatter, Write};

use super::ast::{
    Arg, Call, Compare, Expr, ExprKind, Field, FieldArg, Literal, Operand, Text, Value,
};
use super::lexer::{is_bare_argument, is_bare_string};

/// Prints macros expanded or, with `{:#}`, by name.
impl Display for Expr {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ExprKind::And(children) => chain(f, children, " and "),
            ExprKind::Or(children) => chain(f, children, " or "),
            ExprKind::Not(child) => {
                f.write_str("not ")?;
                child.fmt_inside(f, Place::Not)
            }
            ExprKind::Exists(operand) => {
                operand.fmt(f)?;
                f.write_str(" exists")
            }
            ExprKind::Compare(compare) => compare.fmt(f),
            ExprKind::Macro(name) => f.write_str(name),
            ExprKind::Expanded { name, .. } if f.alternate() => f.write_str(name),
            ExprKind::Expanded { body, .. } => body.fmt(f),
        }
    }
}

/// Parent of a child expression, which decides whether it needs parentheses.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Not,
    And,
    Or,
}

impl Expr {
    fn fmt_inside(&self, f: &mut Formatter<'_>, place: Place) -> fmt::Result {
        let bare = match &self.kind {
            ExprKind::Or(_) => false,
            ExprKind::And(_) => place == Place::Or,
            ExprKind::Not(_) => place != Place::Not,
            ExprKind::Expanded { body, .. } if !f.alternate() => return body.fmt_inside(f, place),
            _ => true,
        };
        if bare {
            return self.fmt(f);
        }
        f.write_char('(')?;
        self.fmt(f)?;
        f.write_char(')')
    }
}

fn chain(f: &mut Formatter<'_>, children: &[Expr], word: &str) -> fmt::Result {
    let place = if word == " and " {
        Place::And
    } else {
        Place::Or
    };
    separated(f, children, word, |child, f| child.fmt_inside(f, place))
}

fn separated<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    separator: &str,
    print: impl Fn(&T, &mut Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            f.write_str(separator)?;
        }
        print(item, f)?;
    }
    Ok(())
}

impl Display for Compare {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.left, self.op.word())?;
        if let Some(quantifier) = self.quantifier {
            write!(f, "{} ", quantifier.word())?;
        }
        self.right.fmt(f)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => field.fmt(f),
            Self::Call(call) => call.fmt(f),
        }
    }
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        self.arg.as_ref().map_or(Ok(()), |arg| arg.fmt(f))
    }
}

impl Display for FieldArg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_char('[')?;
        match self.text.as_str() {
            Some(text) if !self.quoted && is_bare_argument(text) => f.write_str(text)?,
            _ => quoted(f, &self.text)?,
        }
        f.write_char(']')
    }
}

impl Display for Call {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.transformer.word())?;
        separated(f, &self.args, ", ", Arg::fmt)?;
        f.write_char(')')?;
        self.arg.as_ref().map_or(Ok(()), |arg| arg.fmt(f))
    }
}

impl Display for Arg {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operand(operand) => operand.fmt(f),
            Self::Literal(literal) => literal.fmt(f),
            Self::List(args, _) => {
                f.write_char('(')?;
                separated(f, args, ", ", Arg::fmt)?;
                f.write_char(')')
            }
        }
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(literal) => literal.fmt(f),
            Self::List(items, _) => {
                f.write_char('(')?;
                separated(f, items, ", ", Literal::fmt)?;
                f.write_char(')')
            }
            Self::ListName(name, _) => f.write_str(name),
            Self::Operand(Operand::Field(field)) => write!(f, "val({field})"),
            Self::Operand(call) => call.fmt(f),
        }
    }
}

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.text.as_str() {
            Some(text) if !self.quoted && is_bare_string(text) => f.write_str(text),
            _ => quoted(f, &self.text),
        }
    }
}

/// Writes text in double quotes.
fn quoted(f: &mut Formatter<'_>, text: &Text) -> fmt::Result {
    f.write_char('"')?;
    for chunk in text.as_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                // Not `\\`: that would escape the quote if it comes last (see `Lexer::quoted`).
                '\\' => f.write_str("\\x5c")?,
                c if c.is_ascii_control() => write!(f, "\\x{:02x}", u32::from(c))?,
                c => f.write_char(c)?,
            }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    f.write_char('"')
}
