//! Classes of characters: `[a-z]`, `[[:alpha:]]`, `\d`, `\pN`, `\p{Greek}`.

use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use super::flags::Flags;
use super::{Parsed, SyntaxError, escape};

/// Reads a class in brackets. `from` begins with the bracket. Returns the class and what follows it.
pub(super) fn bracketed(from: &str, flags: Flags) -> Parsed<(ClassUnicode, &str)> {
    let inside = &from[1..];
    let (is_negated, inside) = match inside.strip_prefix('^') {
        Some(inside) => (true, inside),
        None => (false, inside),
    };
    let mut class = ClassUnicode::empty();
    let mut rest = inside;
    loop {
        // A bracket right after the first one is a character.
        if rest.starts_with(']') && rest.len() < inside.len() {
            break;
        }
        if rest.is_empty() {
            return Err(SyntaxError::UnclosedClass);
        }
        let (item, after) = match named(rest, flags)? {
            Some(found) => found,
            None => match escaped(rest, flags)? {
                Some(found) => found,
                None => range(rest, flags)?,
            },
        };
        class.union(&item);
        rest = after;
    }
    if is_negated {
        class.negate();
    }
    Ok((class, &rest[1..]))
}

/// Adds the other cases of a class's characters.
pub(super) fn fold(class: &mut ClassUnicode) {
    class.case_fold_simple();
}

/// Reads a character or a range such as `a-z`.
fn range(from: &str, flags: Flags) -> Parsed<(ClassUnicode, &str)> {
    let (first, rest) = character(from)?;
    let end = rest
        .strip_prefix('-')
        .filter(|end| !end.starts_with(']') && !end.is_empty());
    let (last, rest) = match end {
        Some(end) => character(end)?,
        None => (first, rest),
    };
    if last < first {
        let written = &from[..from.len() - rest.len()];
        return Err(SyntaxError::BadClass(written.to_owned()));
    }
    Ok((ranges(&[(first, last)], flags), rest))
}

/// Reads a character of a class.
fn character(from: &str) -> Parsed<(u32, &str)> {
    if from.starts_with('\\') {
        return escape::character(from);
    }
    let mut chars = from.chars();
    let next = chars.next().ok_or(SyntaxError::UnclosedClass)?;
    Ok((u32::from(next), chars.as_str()))
}

/// Returns the class of ranges, without surrogates, which are in no text.
fn ranges(ranges: &[(u32, u32)], flags: Flags) -> ClassUnicode {
    const BEFORE_SURROGATES: u32 = 0xd7ff;
    const AFTER_SURROGATES: u32 = 0xe000;
    let mut class = ClassUnicode::empty();
    for (first, last) in ranges {
        for (first, last) in [
            (*first, (*last).min(BEFORE_SURROGATES)),
            ((*first).max(AFTER_SURROGATES), *last),
        ] {
            if let (Some(first), Some(last)) = (char::from_u32(first), char::from_u32(last))
                && first <= last
            {
                class.push(ClassUnicodeRange::new(first, last));
            }
        }
    }
    if flags.ignore_case {
        fold(&mut class);
    }
    class
}

/// Reads `[:alpha:]` or `[:^alpha:]`; returns nothing if another thing stands there.
fn named(from: &str, flags: Flags) -> Parsed<Option<(ClassUnicode, &str)>> {
    let Some((name, rest)) = from
        .strip_prefix("[:")
        .and_then(|text| text.split_once(":]"))
    else {
        return Ok(None);
    };
    let (is_negated, name) = match name.strip_prefix('^') {
        Some(name) => (true, name),
        None => (false, name),
    };
    let found: &[(char, char)] = match name {
        "alnum" => &[('0', '9'), ('A', 'Z'), ('a', 'z')],
        "alpha" => &[('A', 'Z'), ('a', 'z')],
        "ascii" => &[('\0', '\x7f')],
        "blank" => &[('\t', '\t'), (' ', ' ')],
        "cntrl" => &[('\0', '\x1f'), ('\x7f', '\x7f')],
        "digit" => &[('0', '9')],
        "graph" => &[('!', '~')],
        "lower" => &[('a', 'z')],
        "print" => &[(' ', '~')],
        "punct" => &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')],
        "space" => &[('\t', '\r'), (' ', ' ')],
        "upper" => &[('A', 'Z')],
        "word" => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
        "xdigit" => &[('0', '9'), ('A', 'F'), ('a', 'f')],
        _ => {
            let written = &from[..from.len() - rest.len()];
            return Err(SyntaxError::BadClass(written.to_owned()));
        }
    };
    Ok(Some((group(found, is_negated, flags), rest)))
}

/// Returns a named group of ASCII characters.
fn group(found: &[(char, char)], is_negated: bool, flags: Flags) -> ClassUnicode {
    let found: Vec<_> = found
        .iter()
        .map(|(first, last)| (u32::from(*first), u32::from(*last)))
        .collect();
    let mut class = ranges(&found, flags);
    if is_negated {
        class.negate();
    }
    class
}

/// Reads `\d`, `\pN` and their like; returns nothing if another thing stands there.
pub(super) fn escaped(from: &str, flags: Flags) -> Parsed<Option<(ClassUnicode, &str)>> {
    let Some(escaped) = from.strip_prefix('\\') else {
        return Ok(None);
    };
    let mut chars = escaped.chars();
    let Some(letter) = chars.next() else {
        return Ok(None);
    };
    let found: &[(char, char)] = match letter.to_ascii_lowercase() {
        'd' => &[('0', '9')],
        // Without the vertical tab, which `[:space:]` has.
        's' => &[('\t', '\n'), ('\x0c', '\r'), (' ', ' ')],
        'w' => &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')],
        'p' => return unicode(from, chars.as_str(), letter == 'P', flags).map(Some),
        _ => return Ok(None),
    };
    let class = group(found, letter.is_ascii_uppercase(), flags);
    Ok(Some((class, chars.as_str())))
}

/// Reads the name of a script or general category after `\p` or `\P`.
fn unicode<'p>(
    from: &'p str,
    name: &'p str,
    is_negated: bool,
    flags: Flags,
) -> Parsed<(ClassUnicode, &'p str)> {
    let bad = |rest: &str| SyntaxError::BadClass(from[..from.len() - rest.len()].to_owned());
    let (name, rest) = match name.strip_prefix('{') {
        Some(braced) => braced.split_once('}').ok_or_else(|| bad(""))?,
        None => name.split_at(name.chars().next().map_or(0, char::len_utf8)),
    };
    let (is_inverted, plain) = match name.strip_prefix('^') {
        Some(plain) => (true, plain),
        None => (false, name),
    };
    let mut class = property(plain).ok_or_else(|| bad(rest))?;
    if flags.ignore_case {
        fold(&mut class);
    }
    if is_negated != is_inverted {
        class.negate();
    }
    Ok((class, rest))
}

/// General categories by the names that RE2 knows.
const CATEGORIES: [&str; 37] = [
    "C", "Cc", "Cf", "Co", "Cs", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N",
    "Nd", "Nl", "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So",
    "Z", "Zl", "Zp", "Zs", "Any",
];

/// Returns the characters of a general category, or of a script by its long name.
fn property(name: &str) -> Option<ClassUnicode> {
    match name {
        // Surrogates, which are in no text.
        "Cs" => return Some(ClassUnicode::empty()),
        // The regex crate counts unassigned characters to `C`; RE2 does not.
        "C" => {
            let mut class = read(r"\p{Cc}")?;
            class.union(&read(r"\p{Cf}")?);
            class.union(&read(r"\p{Co}")?);
            return Some(class);
        }
        _ => {}
    }
    if CATEGORIES.contains(&name) {
        return read(&format!(r"\p{{{name}}}"));
    }
    // The regex crate takes names in any case and short ones; RE2 takes only the form of `Old_Italic`.
    let is_word = |word: &str| {
        let mut chars = word.chars();
        let is_capital = chars.next().is_some_and(|first| first.is_ascii_uppercase());
        is_capital && chars.all(|next| next.is_ascii_lowercase())
    };
    let is_long = name.len() > 4 || SHORT_SCRIPTS.contains(&name);
    let is_name = name == "SignWriting" || is_long && name.split('_').all(is_word);
    is_name.then(|| read(&format!(r"\p{{Script={name}}}")))?
}

/// Scripts whose long names have at most four letters, as the short names of all scripts have.
const SHORT_SCRIPTS: [&str; 15] = [
    "Ahom", "Cham", "Han", "Kawi", "Lao", "Lisu", "Miao", "Modi", "Mro", "Newa", "Nko", "Thai",
    "Toto", "Vai", "Yi",
];

fn read(pattern: &str) -> Option<ClassUnicode> {
    match regex_syntax::parse(pattern).ok()?.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Some(class),
        _ => None,
    }
}
