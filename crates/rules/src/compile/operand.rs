//! What stands left of an operator (or right of it, in `val()`): fields and transformed fields.
//!
//! Operands of all rules share one table, so each is extracted once per event.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;
use event::field::{Cost, Field};
use event::{EventKind, Stage, Value, ValueType};

use crate::condition::ast::Transformer;

/// Position of an operand in [`Operands`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OperandId(u32);

impl OperandId {
    /// Position in tables that run along with the table of operands.
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// How the values of an operand count in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spread {
    /// There is one value.
    One,
    /// A comparison holds if it does for some value: ancestors.
    Some,
    /// The same, but `!=` has to hold for all values: both ends of a connection.
    Ends,
    /// `in` has to hold for all values, `intersects` for some, and there is no other comparison.
    List,
}

impl Spread {
    /// Falco treats these as its own exceptions, so they are named here and not in the registry.
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
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    /// What it is.
    pub(crate) source: OperandSource,
    /// Type of its values.
    pub(crate) ty: ValueType,
    /// How several values count.
    pub(crate) spread: Spread,
    /// As written in a condition.
    pub(crate) text: Box<str>,
}

/// What an operand is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
        /// The option that `getopt(..)[o]` selects.
        selector: Option<u8>,
    },
}

/// All operands of a program.
#[derive(Debug, Default)]
pub(crate) struct Operands {
    items: Vec<Operand>,
    by_source: HashMap<OperandSource, OperandId>,
}

impl Operands {
    /// The operand of this field.
    pub(crate) fn field(&mut self, field: Field) -> OperandId {
        let (ty, spread) = (field.ty(), Spread::of(&field));
        let text = field.to_string();
        self.intern(OperandSource::Field(field), ty, spread, text)
    }

    /// The operand of this constant.
    pub(crate) fn constant(&mut self, text: &[u8]) -> OperandId {
        let shown = format!("{:?}", String::from_utf8_lossy(text));
        self.intern(
            OperandSource::Constant(text.into()),
            ValueType::Text,
            Spread::One,
            shown,
        )
    }

    /// The operand of several in parentheses.
    pub(crate) fn list(&mut self, items: Vec<OperandId>) -> OperandId {
        let text = format!("({})", self.names(&items));
        self.intern(
            OperandSource::List(items.into()),
            ValueType::Text,
            Spread::List,
            text,
        )
    }

    /// The operand of a transformer.
    ///
    /// # Errors
    /// Why the arguments do not fit, as a sentence.
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

    /// Type and number of what a transformer makes of its arguments.
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
                "{word}() does not apply to {}: it is no text",
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

    /// The operand at this position.
    pub(crate) fn get(&self, id: OperandId) -> &Operand {
        &self.items[id.index()]
    }

    /// All positions.
    pub(crate) fn ids(&self) -> impl Iterator<Item = OperandId> + use<> {
        (0..u32::try_from(self.items.len()).expect("fewer operands than bytes")).map(OperandId)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// The field, if the operand is nothing but one.
    pub(crate) fn as_field(&self, id: OperandId) -> Option<&Field> {
        match &self.get(id).source {
            OperandSource::Field(field) => Some(field),
            _ => None,
        }
    }

    /// Calls `visit` for every field that the operand is made of.
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

    /// The stage from which the value is known.
    pub(crate) fn stage(&self, id: OperandId, kind: EventKind) -> Stage {
        let mut stage = Stage::Registers;
        self.each_field(id, &mut |field| stage = stage.max(field.dependency(kind)));
        stage
    }

    /// How dear it is.
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

/// Applies a transformer to values. What is made lives in `arena`.
pub(crate) fn apply<'e>(
    transformer: Transformer,
    args: &[Value<'e>],
    selector: Option<u8>,
    arena: &'e Bump,
) -> Value<'e> {
    if args.contains(&Value::Unknown) {
        return Value::Unknown;
    }
    if args.contains(&Value::Absent) {
        return Value::Absent;
    }
    match (transformer, args) {
        (Transformer::ToLower, [arg]) => map(arg, arena, |text| {
            let copy = arena.alloc_slice_copy(text);
            copy.make_ascii_lowercase();
            Some(copy)
        }),
        (Transformer::ToUpper, [arg]) => map(arg, arena, |text| {
            let copy = arena.alloc_slice_copy(text);
            copy.make_ascii_uppercase();
            Some(copy)
        }),
        (Transformer::Basename, [arg]) => {
            map(arg, arena, |text| text.rsplit(|byte| *byte == b'/').next())
        }
        (Transformer::B64, [arg]) => map(arg, arena, |text| decode_base64(text, arena)),
        (Transformer::Len, [arg]) => match arg {
            Value::Text(text) => Value::Uint(text.len() as u64),
            Value::List(values) => Value::Uint(values.len() as u64),
            _ => Value::Absent,
        },
        (Transformer::Join, [Value::Text(separator), Value::List(values)]) => {
            concat(values, separator, arena)
        }
        (Transformer::Concat, values) => concat(values, b"", arena),
        (Transformer::Getopt, [Value::List(values), Value::Text(options)]) => {
            getopt(values, options, selector, arena)
        }
        _ => Value::Absent,
    }
}

/// Maps a text, or each text of a list. What has no image is absent.
fn map<'e>(
    value: &Value<'e>,
    arena: &'e Bump,
    image: impl Fn(&'e [u8]) -> Option<&'e [u8]>,
) -> Value<'e> {
    let one = |value: &Value<'e>| match value {
        Value::Text(text) => image(text).map_or(Value::Absent, Value::Text),
        Value::Unknown => Value::Unknown,
        _ => Value::Absent,
    };
    match value {
        Value::List(values) => Value::List(arena.alloc_slice_fill_iter(values.iter().map(one))),
        value => one(value),
    }
}

/// Falco's own decoder wants no padding; texts in command lines come with and without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn decode_base64<'e>(text: &[u8], arena: &'e Bump) -> Option<&'e [u8]> {
    let room = arena.alloc_slice_fill_copy(base64::decoded_len_estimate(text.len()), 0);
    let len = BASE64.decode_slice(text, room).ok()?;
    Some(&room[..len])
}

fn concat<'e>(values: &[Value<'e>], separator: &[u8], arena: &'e Bump) -> Value<'e> {
    let mut out = ArenaVec::new_in(arena);
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(separator);
        }
        match value {
            Value::Text(text) => out.extend_from_slice(text),
            Value::Unknown => return Value::Unknown,
            _ => return Value::Absent,
        }
    }
    Value::Text(out.into_bump_slice())
}

/// Short options as getopt(3) reads them, up to the first argument that is none. Without a
/// selector: letters and their values in order, `?` for a letter that is not an option. With one:
/// the last value given to that letter (the letter itself if it takes none).
fn getopt<'e>(
    args: &[Value<'e>],
    options: &[u8],
    selector: Option<u8>,
    arena: &'e Bump,
) -> Value<'e> {
    let options = options.strip_prefix(b":").unwrap_or(options);
    let takes_value = |letter: u8| {
        let at = options
            .iter()
            .position(|option| *option == letter && letter != b':')?;
        Some(options.get(at + 1) == Some(&b':'))
    };
    let mut found = ArenaVec::new_in(arena);
    let mut selected = Value::Absent;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let Value::Text(arg) = arg else {
            return if *arg == Value::Unknown {
                Value::Unknown
            } else {
                Value::Absent
            };
        };
        if arg.starts_with(b"--") && arg.len() > 2 {
            continue;
        }
        if arg.len() < 2 || arg[0] != b'-' || *arg == b"--" {
            break;
        }
        for (index, letter) in arg.iter().enumerate().skip(1) {
            let name = &arg[index..=index];
            let value = match takes_value(*letter) {
                None => {
                    found.push(Value::Text(b"?"));
                    continue;
                }
                Some(false) => None,
                Some(true) if index + 1 < arg.len() => Some(Value::Text(&arg[index + 1..])),
                Some(true) => match args.next() {
                    Some(Value::Unknown) => return Value::Unknown,
                    Some(value) => Some(*value),
                    // Falco gives a missing value as an empty text, without the letter.
                    None => {
                        found.push(Value::Text(b""));
                        if selector == Some(*letter) {
                            selected = Value::Text(b"");
                        }
                        break;
                    }
                },
            };
            if selector == Some(*letter) {
                selected = value.unwrap_or(Value::Text(name));
            }
            found.push(Value::Text(name));
            if let Some(value) = value {
                found.push(value);
                break;
            }
        }
    }
    if selector.is_some() {
        selected
    } else {
        Value::List(found.into_bump_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Value<'_> {
        Value::text(value)
    }

    #[test]
    fn text_transformers_map_each_value() {
        let arena = Bump::new();
        let one =
            |transformer, value: &'static str| apply(transformer, &[text(value)], None, &arena);
        assert_eq!(one(Transformer::ToLower, "AbC"), text("abc"));
        assert_eq!(one(Transformer::ToUpper, "AbC"), text("ABC"));
        assert_eq!(one(Transformer::Basename, "/a/b"), text("b"));
        assert_eq!(one(Transformer::Basename, "b"), text("b"));
        assert_eq!(one(Transformer::Basename, "/a/"), text(""));
        assert_eq!(one(Transformer::B64, "aGk="), text("hi"));
        assert_eq!(one(Transformer::B64, "aGk"), text("hi"));
        assert_eq!(one(Transformer::B64, "!"), Value::Absent);
        assert_eq!(one(Transformer::Len, "abc"), Value::Uint(3));
        let list = [text("A"), Value::Unknown];
        assert_eq!(
            apply(Transformer::ToLower, &[Value::List(&list)], None, &arena),
            Value::List(&[text("a"), Value::Unknown])
        );
    }

    #[test]
    fn join_and_concat_need_every_part() {
        let arena = Bump::new();
        let list = [text("a"), text("b")];
        let join = [text(","), Value::List(&list)];
        assert_eq!(apply(Transformer::Join, &join, None, &arena), text("a,b"));
        assert_eq!(apply(Transformer::Concat, &list, None, &arena), text("ab"));
        let missing = [text("a"), Value::Absent];
        assert_eq!(
            apply(Transformer::Concat, &missing, None, &arena),
            Value::Absent
        );
        let unknown = [Value::Absent, Value::Unknown];
        assert_eq!(
            apply(Transformer::Concat, &unknown, None, &arena),
            Value::Unknown
        );
    }

    #[test]
    fn getopt_reads_clusters_values_and_stops_at_the_first_operand() {
        let arena = Bump::new();
        let args = ["-nt5", "--long", "-t", "7", "-x", "file", "-n"].map(text);
        let call = |selector| getopt(&args, b"nt:", selector, &arena);
        let expected = ["n", "t", "5", "t", "7", "?"].map(text);
        assert_eq!(call(None), Value::List(&expected));
        assert_eq!(call(Some(b't')), text("7"));
        assert_eq!(call(Some(b'n')), text("n"));
        assert_eq!(call(Some(b'q')), Value::Absent);
        assert_eq!(getopt(&[text("-t")], b"t:", Some(b't'), &arena), text(""));
    }
}
