//! Escapes that stand for one character.

use super::{Parsed, SyntaxError};

/// Reads an escaped character. `from` begins with the backslash. Returns its code and what follows it.
pub(super) fn character(from: &str) -> Parsed<(u32, &str)> {
    let mut chars = from[1..].chars();
    let Some(escaped) = chars.next() else {
        return Err(SyntaxError::TrailingBackslash);
    };
    let after = chars.as_str();
    let unknown = |rest: &str| {
        let written = &from[..from.len() - rest.len()];
        SyntaxError::UnknownEscape(written.to_owned())
    };
    let code = match escaped {
        // One digit alone would refer to a group, which RE2 does not.
        '1'..='7' if !after.starts_with(|next: char| next.is_digit(8)) => {
            return Err(unknown(after));
        }
        '0'..='7' => return Ok(octal(&from[1..])),
        'x' => return hexadecimal(after).ok_or_else(|| unknown(after)),
        'n' => u32::from('\n'),
        'r' => u32::from('\r'),
        't' => u32::from('\t'),
        'a' => 0x07,
        'f' => 0x0c,
        'v' => 0x0b,
        other if other.is_ascii() && !other.is_ascii_alphanumeric() => u32::from(other),
        _ => return Err(unknown(after)),
    };
    Ok((code, after))
}

/// Reads up to three octal digits.
fn octal(text: &str) -> (u32, &str) {
    let digits = text
        .bytes()
        .take(3)
        .take_while(|byte| (b'0'..=b'7').contains(byte));
    let digits = digits.count();
    let code = text[..digits]
        .bytes()
        .fold(0, |code, digit| code * 8 + u32::from(digit - b'0'));
    (code, &text[digits..])
}

/// Reads two hexadecimal digits, or any number of them in braces.
fn hexadecimal(text: &str) -> Option<(u32, &str)> {
    if let Some(braced) = text.strip_prefix('{') {
        let (digits, rest) = braced.split_once('}')?;
        return Some((code(digits)?, rest));
    }
    let digits = text.get(..2)?;
    Some((code(digits)?, &text[2..]))
}

/// Returns the code that hexadecimal digits write, if it is one of Unicode.
fn code(digits: &str) -> Option<u32> {
    if digits.is_empty() {
        return None;
    }
    let mut code = 0_u32;
    for digit in digits.chars() {
        code = code * 16 + digit.to_digit(16)?;
        if code > u32::from(char::MAX) {
            return None;
        }
    }
    Some(code)
}
