//! Parser for the left-hand side of an operator, and for the arguments of transformers.

use super::error::quote_error;
use super::{Parser, Result};
use crate::condition::ast::{Arg, Call, Field, FieldArg, Operand, Transformer};

impl Parser<'_> {
    pub(super) fn operand(&mut self) -> Result<Option<Operand>> {
        if let Some(field) = self.field()? {
            return Ok(Some(Operand::Field(field)));
        }
        Ok(self.call()?.map(Operand::Call))
    }

    pub(super) fn field(&mut self) -> Result<Option<Field>> {
        let start = self.lexer.pos();
        let Some(name) = self.lexer.field_name() else {
            return Ok(None);
        };
        let arg = self.argument()?;
        Ok(Some(Field {
            name: name.to_owned(),
            arg,
            span: self.lexer.span_from(start),
        }))
    }

    pub(super) fn argument(&mut self) -> Result<Option<FieldArg>> {
        if !self.lexer.literal("[") {
            return Ok(None);
        }
        let start = self.lexer.pos();
        let (text, quoted) = match self.lexer.quoted() {
            Some(text) => (text.map_err(quote_error)?, true),
            None => match self.lexer.bare_argument() {
                Some(text) => (text.into(), false),
                None => return Err(self.expected("an argument: text or a quoted string")),
            },
        };
        let span = self.lexer.span_from(start);
        if !self.lexer.literal("]") {
            return Err(self.expected("`]`"));
        }
        Ok(Some(FieldArg { text, quoted, span }))
    }

    pub(super) fn call(&mut self) -> Result<Option<Call>> {
        let start = self.lexer.pos();
        let transformer = self.lexer.identifier().and_then(Transformer::from_word);
        let Some(transformer) = transformer.filter(|_| self.lexer.literal("(")) else {
            self.lexer.rewind(start);
            return Ok(None);
        };
        self.enter(start)?;
        let mut args = Vec::new();
        loop {
            self.lexer.blank();
            args.push(self.arg()?);
            self.lexer.blank();
            if !self.lexer.literal(",") {
                break;
            }
        }
        if !self.lexer.literal(")") {
            return Err(self.expected("`,` or `)`"));
        }
        self.depth -= 1;
        let arg = self.argument()?;
        Ok(Some(Call {
            transformer,
            args,
            arg,
            span: self.lexer.span_from(start),
        }))
    }

    pub(super) fn arg(&mut self) -> Result<Arg> {
        let start = self.lexer.pos();
        if !self.lexer.literal("(") {
            return self.list_arg();
        }
        let mut items = Vec::new();
        self.lexer.blank();
        if !self.lexer.literal(")") {
            loop {
                self.lexer.blank();
                items.push(self.list_arg()?);
                self.lexer.blank();
                if !self.lexer.literal(",") {
                    break;
                }
            }
            if !self.lexer.literal(")") {
                return Err(self.expected("`,` or `)`"));
            }
        }
        Ok(Arg::List(items, self.lexer.span_from(start)))
    }

    pub(super) fn list_arg(&mut self) -> Result<Arg> {
        if let Some(number) = self.number() {
            return Ok(Arg::Literal(number));
        }
        if let Some(quoted) = self.quoted()? {
            return Ok(Arg::Literal(quoted));
        }
        if let Some(operand) = self.operand()? {
            return Ok(Arg::Operand(operand));
        }
        let start = self.lexer.pos();
        if let Some(name) = self.lexer.identifier() {
            if name == "val" && self.lexer.rest().starts_with('(') {
                self.lexer.rewind(start);
                let help = "inside a transformer the field is written as it is";
                return Err(self.expected("a field without `val`").with_help(help));
            }
            if self.lexer.rest().starts_with('(') {
                return Err(self.unknown_transformer(start, name));
            }
        }
        self.lexer.rewind(start);
        Err(self.expected("a field, a transformer, a quoted string or a number"))
    }
}
