//! Parser for the right-hand side of an operator.

use super::error::quote_error;
use super::{Parser, Result};
use crate::condition::ast::{Literal, Operand, Value};

impl Parser<'_> {
    pub(super) fn number_value(&mut self) -> Result<Value> {
        if let Some(operand) = self.dynamic()? {
            return Ok(Value::Operand(operand));
        }
        match self.number() {
            Some(number) => Ok(Value::Literal(number)),
            None => Err(self.expected("a number, `val(FIELD)` or a transformer")),
        }
    }

    pub(super) fn string_value(&mut self) -> Result<Value> {
        if let Some(operand) = self.dynamic()? {
            return Ok(Value::Operand(operand));
        }
        match self.string()? {
            Some(literal) => Ok(Value::Literal(literal)),
            None => {
                let error = self.expected("a value: text or a quoted string");
                let list = self.lexer.rest().starts_with('(');
                Err(if list {
                    error
                        .with_help("a list goes with `in`, `intersects`, `pmatch` or after `anyof`")
                } else {
                    error
                })
            }
        }
    }

    pub(super) fn list_value(&mut self, dynamic: bool) -> Result<Value> {
        self.lexer.blank();
        let start = self.lexer.pos();
        if self.lexer.literal("(") {
            return self.list(start);
        }
        if dynamic && let Some(operand) = self.dynamic()? {
            return Ok(Value::Operand(operand));
        }
        match self.lexer.identifier() {
            Some(name) => Ok(Value::ListName(
                name.to_owned(),
                self.lexer.span_from(start),
            )),
            None => Err(self.expected("a list in parentheses or the name of one")),
        }
    }

    pub(super) fn list(&mut self, start: usize) -> Result<Value> {
        let mut items = Vec::new();
        self.lexer.blank();
        if !self.lexer.literal(")") {
            loop {
                self.lexer.blank();
                match self.list_item()? {
                    Some(item) => items.push(item),
                    None => return Err(self.expected("a value of the list")),
                }
                if !self.lexer.literal(",") {
                    break;
                }
            }
            if !self.lexer.literal(")") {
                return Err(self.expected("`,` or `)`"));
            }
        }
        Ok(Value::List(items, self.lexer.span_from(start)))
    }

    /// Parses a value of a list, and blanks after it. Words without commas between them may be the name of a
    /// list, which is told when names are replaced.
    fn list_item(&mut self) -> Result<Option<Literal>> {
        let start = self.lexer.pos();
        let Some(mut item) = self.string()? else {
            return Ok(None);
        };
        while self.lexer.blank() && !item.quoted {
            let Some(word) = self.lexer.bare_string() else {
                break;
            };
            let name = format!("{} {word}", item.text.to_lossy());
            item = self.bare(start, &name);
        }
        Ok(Some(item))
    }

    /// Parses `val(FIELD)` or a transformer.
    pub(super) fn dynamic(&mut self) -> Result<Option<Operand>> {
        self.lexer.blank();
        if self.lexer.literal("val(") {
            self.lexer.blank();
            let Some(field) = self.field()? else {
                let help = "`val` takes a plain field; transformers stand without it";
                return Err(self.expected("a field").with_help(help));
            };
            self.lexer.blank();
            if !self.lexer.literal(")") {
                return Err(self.expected("`)`"));
            }
            return Ok(Some(Operand::Field(field)));
        }
        Ok(self.call()?.map(Operand::Call))
    }

    pub(super) fn string(&mut self) -> Result<Option<Literal>> {
        if let Some(literal) = self.quoted()? {
            return Ok(Some(literal));
        }
        let start = self.lexer.pos();
        Ok(self.lexer.bare_string().map(|text| self.bare(start, text)))
    }

    pub(super) fn quoted(&mut self) -> Result<Option<Literal>> {
        let start = self.lexer.pos();
        match self.lexer.quoted() {
            None => Ok(None),
            Some(text) => {
                let text = text.map_err(quote_error)?;
                Ok(Some(Literal {
                    text,
                    quoted: true,
                    span: self.lexer.span_from(start),
                }))
            }
        }
    }

    pub(super) fn number(&mut self) -> Option<Literal> {
        let start = self.lexer.pos();
        self.lexer.number().map(|text| self.bare(start, text))
    }

    pub(super) fn bare(&self, start: usize, text: &str) -> Literal {
        Literal {
            text: text.into(),
            quoted: false,
            span: self.lexer.span_from(start),
        }
    }
}
