//! Operands: fields and transformed fields on the left of an operator (or on its right, in `val()`).
//!
//! Operands of all rules share one table, so each is extracted once per event.

use std::collections::HashMap;
use std::fmt;

use event::field::{Cost, Field};
use event::{EventKind, Stage, ValueType};
use serde::{Deserialize, Serialize};

use crate::condition::ast::Transformer;

/// Index of an operand in [`Operands`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) struct OperandId(u32);

impl OperandId {
    /// Returns the index in tables that are parallel to the table of operands.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// Meaning of several values of an operand in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) enum Spread {
    /// The operand has one value.
    One,
    /// A comparison holds if it holds for some value: ancestors.
    Some,
    /// As [`Spread::Some`], but `!=` must hold for all values: both ends of a connection.
    Ends,
    /// `in` must hold for all values, `intersects` for some; no other comparison exists.
    List,
}

impl Spread {
    /// Returns the spread of a field. Falco hard-codes these exceptions, so they are named here and not in
    /// the registry.
    fn of(field: &Field) -> Self {
        match field.spec.name {
            _ if !field.multi() => Self::One,
            "fd.types" => Self::List,
            "fd.ip" | "fd.net" | "fd.port" | "fd.proto" => Self::Ends,
            _ => Self::Some,
        }
    }
}

/// One operand.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Operand {
    /// Source of the value.
    pub(crate) source: OperandSource,
    /// Type of the values.
    pub(crate) ty: ValueType,
    /// Meaning of several values.
    pub(crate) spread: Spread,
    /// Text of the operand in the syntax of conditions.
    pub(crate) text: Box<str>,
}

/// Source of an operand's value.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub(crate) enum OperandSource {
    /// A field of the event.
    Field(Field),
    /// A constant in the arguments of a transformer.
    Constant(Box<[u8]>),
    /// Several operands in parentheses, in the arguments of a transformer.
    List(Box<[OperandId]>),
    /// A transformer and its arguments.
    Transform {
        transformer: Transformer,
        args: Box<[OperandId]>,
        /// Option that `getopt(..)[o]` selects.
        selector: Option<u8>,
    },
}

/// All operands of a program.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Operands {
    items: Vec<Operand>,
    /// Index by source, used only by the compiler.
    #[serde(skip)]
    by_source: HashMap<OperandSource, OperandId>,
}

impl Operands {
    /// Returns the operand of this field, adding it if it is new.
    pub(crate) fn field(&mut self, field: Field) -> OperandId {
        let (ty, spread) = (field.ty(), Spread::of(&field));
        let text = field.to_string();
        self.intern(OperandSource::Field(field), ty, spread, text)
    }

    /// Returns the operand of this constant, adding it if it is new.
    pub(crate) fn constant(&mut self, text: &[u8]) -> OperandId {
        let shown = format!("{:?}", String::from_utf8_lossy(text));
        self.intern(
            OperandSource::Constant(text.into()),
            ValueType::Text,
            Spread::One,
            shown,
        )
    }

    /// Returns the operand of a parenthesized list, adding it if it is new.
    pub(crate) fn list(&mut self, items: Vec<OperandId>) -> OperandId {
        let text = format!("({})", self.names(&items));
        self.intern(
            OperandSource::List(items.into()),
            ValueType::Text,
            Spread::List,
            text,
        )
    }

    /// Returns the operand of a transformer, adding it if it is new.
    ///
    /// # Errors
    /// Returns the reason why the arguments do not fit, as a sentence.
    pub(crate) fn transform(
        &mut self,
        transformer: Transformer,
        args: Vec<OperandId>,
        selector: Option<&[u8]>,
    ) -> Result<OperandId, String> {
        let word = transformer.word();
        let (ty, spread) = self.transformed(transformer, &args, selector.is_some())?;
        let selector = match (transformer, selector) {
            (_, None) => None,
            (Transformer::Getopt, Some([option])) => Some(*option),
            (Transformer::Getopt, Some(_)) => {
                return Err("the argument of getopt()[] is one option letter".to_owned());
            }
            (_, Some(_)) => return Err(format!("{word}() takes no argument in brackets")),
        };
        let mut text = format!("{word}({})", self.names(&args));
        if let Some(option) = selector {
            text += &format!("[{}]", option.escape_ascii());
        }
        let source = OperandSource::Transform {
            transformer,
            args: args.into(),
            selector,
        };
        Ok(self.intern(source, ty, spread, text))
    }

    /// Returns the type and spread of a transformer's result.
    fn transformed(
        &self,
        transformer: Transformer,
        args: &[OperandId],
        selected: bool,
    ) -> Result<(ValueType, Spread), String> {
        let word = transformer.word();
        let args: Vec<&Operand> = args.iter().map(|id| self.get(*id)).collect();
        let is_text = |arg: &Operand| matches!(arg.ty, ValueType::Text | ValueType::Path);
        let is_list = |arg: &Operand| arg.spread != Spread::One;
        match (transformer, &*args) {
            (Transformer::Len, [arg]) if is_list(arg) || is_text(arg) => {
                Ok((ValueType::Uint, Spread::One))
            }
            (
                Transformer::ToLower
                | Transformer::ToUpper
                | Transformer::B64
                | Transformer::Basename,
                [arg],
            ) if is_text(arg) => Ok((arg.ty, arg.spread)),
            (Transformer::Join, [separator, list])
                if is_text(separator) && !is_list(separator) && is_list(list) && is_text(list) =>
            {
                Ok((ValueType::Text, Spread::One))
            }
            (Transformer::Join, _) => Err("join() takes a separator and a list".to_owned()),
            (Transformer::Concat, [_, _, ..])
                if args.iter().all(|arg| is_text(arg) && !is_list(arg)) =>
            {
                Ok((ValueType::Text, Spread::One))
            }
            (Transformer::Concat, _) => Err("concat() takes two or more texts".to_owned()),
            (Transformer::Getopt, [list, options])
                if is_list(list) && is_text(list) && is_text(options) && !is_list(options) =>
            {
                Ok((
                    ValueType::Text,
                    if selected { Spread::One } else { Spread::List },
                ))
            }
            (Transformer::Getopt, _) => {
                Err("getopt() takes a list of arguments and a text of options".to_owned())
            }
            (_, [arg]) => Err(format!(
                "{word}() does not apply to {}: it is not a text",
                arg.text
            )),
            (_, _) => Err(format!("{word}() takes one argument, not {}", args.len())),
        }
    }

    fn names(&self, ids: &[OperandId]) -> String {
        let names: Vec<&str> = ids.iter().map(|id| &*self.get(*id).text).collect();
        names.join(", ")
    }

    fn intern(
        &mut self,
        source: OperandSource,
        ty: ValueType,
        spread: Spread,
        text: String,
    ) -> OperandId {
        if let Some(id) = self.by_source.get(&source) {
            return *id;
        }
        let id = OperandId(u32::try_from(self.items.len()).expect("fewer operands than bytes"));
        self.by_source.insert(source.clone(), id);
        self.items.push(Operand {
            source,
            ty,
            spread,
            text: text.into(),
        });
        id
    }

    /// Returns the operand with this id.
    pub(crate) fn get(&self, id: OperandId) -> &Operand {
        &self.items[id.index()]
    }

    /// Iterates over all ids.
    pub(crate) fn ids(&self) -> impl Iterator<Item = OperandId> + use<> {
        (0..u32::try_from(self.items.len()).expect("fewer operands than bytes")).map(OperandId)
    }

    /// Returns the number of operands.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the field, if the operand is a plain field.
    pub(crate) fn as_field(&self, id: OperandId) -> Option<&Field> {
        match &self.get(id).source {
            OperandSource::Field(field) => Some(field),
            _ => None,
        }
    }

    /// Calls `visit` for every field that the operand depends on.
    pub(crate) fn each_field_operand(&self, id: OperandId, visit: &mut dyn FnMut(OperandId)) {
        match &self.get(id).source {
            OperandSource::Field(_) => visit(id),
            OperandSource::Constant(_) => {}
            OperandSource::List(parts) | OperandSource::Transform { args: parts, .. } => {
                parts
                    .iter()
                    .for_each(|part| self.each_field_operand(*part, visit));
            }
        }
    }

    pub(crate) fn each_field<'a>(&'a self, id: OperandId, visit: &mut dyn FnMut(&'a Field)) {
        self.each_field_operand(id, &mut |part| {
            visit(self.as_field(part).expect("only fields are visited"));
        });
    }

    /// Returns the stage from which the value is known.
    pub(crate) fn stage(&self, id: OperandId, kind: EventKind) -> Stage {
        let mut stage = Stage::Registers;
        self.each_field(id, &mut |field| stage = stage.max(field.dependency(kind)));
        stage
    }

    /// Returns the cost of the operand.
    pub(crate) fn cost(&self, id: OperandId) -> Cost {
        let mut cost = Cost::Free;
        self.each_field(id, &mut |field| cost = cost.max(field.spec.cost));
        cost
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
