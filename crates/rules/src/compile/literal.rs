//! Constants of a condition, parsed by the type of the field they are compared with.

use std::net::IpAddr;

use bumpalo::Bump;
use event::ValueType;
use regex_automata::meta::Regex;
use regex_syntax::hir::{Hir, Look};

use super::re2;
use super::test::{Network, Test};
use crate::condition::ast::Text;

/// Parses `true` and `false`.
pub(crate) fn bools(constants: &[Text]) -> Result<Test, String> {
    let parse = |text: &Text| match text.as_bytes() {
        b"true" => Ok(true),
        b"false" => Ok(false),
        _ => Err(format!(
            "`{}` is neither `true` nor `false`",
            text.to_lossy()
        )),
    };
    let values = constants.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    Ok(match (values.contains(&false), values.contains(&true)) {
        (false, true) => Test::Bool(true),
        (true, false) => Test::Bool(false),
        (true, true) => Test::Exists,
        (false, false) => Test::Numbers(Box::new([])),
    })
}

/// Parses numbers and sorts them.
pub(crate) fn numbers(ty: ValueType, constants: &[Text]) -> Result<Box<[i128]>, String> {
    // As in Falco, a negative number is what an unsigned field of 32 or 64 bits makes of it: `user.uid = -1` is
    // the user id that is not set.
    let mut wrapped = Vec::new();
    let mut parse = |text: &Text| {
        let number = text.as_str().and_then(parse_number);
        let number = number.ok_or_else(|| format!("`{}` is not a number", text.to_lossy()))?;
        if ty == ValueType::Uint && (i128::from(i64::MIN)..0).contains(&number) {
            wrapped.push((1_i128 << 32) + number);
            return Ok((1_i128 << 64) + number);
        }
        let range = match ty {
            ValueType::Int => i128::from(i64::MIN)..=i128::from(i64::MAX),
            ValueType::Port => 0..=i128::from(u16::MAX),
            _ => 0..=i128::from(u64::MAX),
        };
        if !range.contains(&number) {
            return Err(format!(
                "`{}` is outside {} to {}",
                text.to_lossy(),
                range.start(),
                range.end()
            ));
        }
        Ok(number)
    };
    let mut numbers = constants
        .iter()
        .map(&mut parse)
        .collect::<Result<Vec<_>, _>>()?;
    numbers.extend(wrapped.into_iter().filter(|number| *number >= 0));
    numbers.sort_unstable();
    numbers.dedup();
    Ok(numbers.into())
}

/// Parses a number in the syntax of conditions: decimal, or hexadecimal with `0x`.
pub(crate) fn parse_number(text: &str) -> Option<i128> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    if let Some(hex) = hex {
        let is_hex = !hex.is_empty() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        return is_hex.then(|| i128::from_str_radix(hex, 16).ok()).flatten();
    }
    text.parse().ok()
}

/// Parses addresses.
pub(crate) fn addresses(constants: &[Text]) -> Result<Box<[IpAddr]>, String> {
    let parse = |text: &Text| {
        let address = text.as_str().and_then(|text| text.parse().ok());
        address.ok_or_else(|| format!("`{}` is not an IP address", text.to_lossy()))
    };
    constants.iter().map(parse).collect()
}

/// Parses networks.
pub(crate) fn networks(constants: &[Text]) -> Result<Box<[Network]>, String> {
    let parse = |text: &Text| {
        let network = text.as_str().and_then(Network::parse);
        network.ok_or_else(|| {
            format!(
                "`{}` is not a network like `10.0.0.0/8` or `fe80::/10`",
                text.to_lossy()
            )
        })
    };
    constants.iter().map(parse).collect()
}

/// Parses bytes written as pairs of hexadecimal digits.
pub(crate) fn hex(constants: &[Text]) -> Result<Vec<Vec<u8>>, String> {
    let parse = |text: &Text| {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|n| u8::try_from(n).ok())
        };
        let bytes = pairs
            .iter()
            .map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
        let bytes: Option<Vec<u8>> = bytes.collect();
        bytes.filter(|_| rest.is_empty()).ok_or_else(|| {
            format!(
                "`{}` is not made of pairs of hexadecimal digits",
                text.to_lossy()
            )
        })
    };
    constants.iter().map(parse).collect()
}

/// Maximum size of a compiled regular expression in bytes: the regex crate's default, stated here because
/// rule files are untrusted input.
const REGEX_BYTES: usize = 10 << 20;

/// Compiles regular expressions that must match a whole text.
pub(crate) fn regexes(constants: &[Text]) -> Result<Box<[Regex]>, String> {
    let parse = |text: &Text| {
        let lossy = text.to_lossy();
        regex(&lossy).map_err(|reason| format!("`{lossy}` is not a regular expression: {reason}"))
    };
    constants.iter().map(parse).collect()
}

/// Compiles one regular expression, in the syntax of RE2, that must match a whole text.
pub(super) fn regex(pattern: &str) -> Result<Regex, String> {
    let translated = re2::translate(pattern).map_err(|error| error.to_string())?;
    let whole = Hir::concat(vec![
        Hir::look(Look::Start),
        translated,
        Hir::look(Look::End),
    ]);
    // `\C` matches a part of a character, which automata of UTF-8 alone refuse.
    let config = Regex::config()
        .utf8_empty(false)
        .nfa_size_limit(Some(REGEX_BYTES));
    let built = Regex::builder().configure(config).build_from_hir(&whole);
    built.map_err(|error| match error.size_limit() {
        Some(bytes) => format!("compiled, it is larger than {bytes} bytes"),
        None => error.to_string(),
    })
}

/// Replaces invalid UTF-8 in the text, as Falco does before it matches an expression.
pub(crate) fn valid_utf8<'e>(text: &'e [u8], arena: &'e Bump) -> &'e [u8] {
    if std::str::from_utf8(text).is_ok() {
        return text;
    }
    let mut valid = bumpalo::collections::String::new_in(arena);
    for chunk in text.utf8_chunks() {
        valid.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            valid.push(char::REPLACEMENT_CHARACTER);
        }
    }
    valid.into_bump_str().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<Text> {
        texts.iter().map(|text| Text::from(*text)).collect()
    }

    #[test]
    fn numbers_are_sorted_and_checked_against_the_type() {
        let parse = |ty, list: &[&str]| numbers(ty, &texts(list));
        assert_eq!(
            *parse(ValueType::Int, &["2", "-1", "0x10", "+2"]).unwrap(),
            [-1, 2, 16]
        );
        assert_eq!(
            *parse(ValueType::Uint, &["-1"]).unwrap(),
            [i128::from(u32::MAX), i128::from(u64::MAX)]
        );
        assert!(parse(ValueType::Port, &["65536"]).is_err());
        assert!(
            parse(ValueType::Int, &["one"])
                .unwrap_err()
                .contains("not a number")
        );
        assert!(parse(ValueType::Int, &["0x"]).is_err());
        assert!(parse(ValueType::Int, &["0x-1"]).is_err());
    }

    #[test]
    fn hex_takes_whole_bytes_only() {
        assert_eq!(hex(&texts(&["00fF"])).unwrap(), [[0, 255]]);
        assert!(hex(&texts(&["abc"])).is_err());
        assert!(hex(&texts(&["zz"])).is_err());
    }

    #[test]
    fn a_broken_expression_is_explained() {
        assert!(
            regexes(&texts(&["a("]))
                .unwrap_err()
                .contains("`(` has no `)`")
        );
    }

    #[test]
    fn invalid_utf8_becomes_the_replacement_character() {
        let arena = Bump::new();
        assert_eq!(valid_utf8(b"a\xffb", &arena), "a\u{fffd}b".as_bytes());
    }
}
