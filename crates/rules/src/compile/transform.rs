//! Transformers: functions applied to field values before they are compared.

use base64::Engine as _;
use base64::engine::general_purpose::GeneralPurpose;
use base64::engine::{DecodePaddingMode, GeneralPurposeConfig};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;
use event::Value;

use crate::condition::ast::Transformer;

/// Applies a transformer to values. Results are allocated in `arena`.
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

/// Maps a text, or each text of a list. A text without an image becomes absent.
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

/// Base64 decoder. Falco's own decoder needs no padding; texts in command lines come with and without.
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
            Value::Int(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Value::Uint(number) => out.extend_from_slice(number.to_string().as_bytes()),
            Value::Unknown => return Value::Unknown,
            _ => return Value::Absent,
        }
    }
    Value::Text(out.into_bump_slice())
}

/// Parses short options as getopt(3) does, up to the first argument that is not an option. Without a
/// selector, returns letters and their values in order, `?` for an unknown letter. With a selector, returns
/// the last value given to that letter (the letter itself if it takes none).
fn getopt<'e>(
    args: &[Value<'e>],
    options: &[u8],
    selector: Option<u8>,
    arena: &'e Bump,
) -> Value<'e> {
    let options = options.strip_prefix(b":").unwrap_or(options);
    let mut found = ArenaVec::new_in(arena);
    let mut selected = Value::Absent;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let arg = match arg {
            Value::Text(arg) => arg,
            Value::Unknown => return Value::Unknown,
            _ => return Value::Absent,
        };
        if arg.starts_with(b"--") && arg.len() > 2 {
            continue;
        }
        if arg.len() < 2 || arg[0] != b'-' || *arg == b"--" {
            break;
        }
        for (index, letter) in arg.iter().enumerate().skip(1) {
            let name = &arg[index..=index];
            let value = match takes_value(options, *letter) {
                None => {
                    found.push(Value::Text(b"?"));
                    continue;
                }
                Some(false) => None,
                Some(true) if index + 1 < arg.len() => Some(Value::Text(&arg[index + 1..])),
                Some(true) => match args.next() {
                    Some(Value::Unknown) => return Value::Unknown,
                    Some(value) => Some(*value),
                    // Falco returns a missing value as an empty text, without the letter.
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
    match selector {
        Some(_) => selected,
        None => Value::List(found.into_bump_slice()),
    }
}

/// Returns whether an option takes a value; `None` if there is no such option.
fn takes_value(options: &[u8], letter: u8) -> Option<bool> {
    let is_it = |option: &u8| *option == letter && letter != b':';
    let at = options.iter().position(is_it)?;
    Some(options.get(at + 1) == Some(&b':'))
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
        let numbers = [Value::Uint(7), Value::Int(-1)];
        let join = [text(","), Value::List(&numbers)];
        assert_eq!(apply(Transformer::Join, &join, None, &arena), text("7,-1"));
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
