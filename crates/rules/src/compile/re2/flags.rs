//! Groups and flags: `(`, `(?i)`, `(?i:`, `(?P<name>`.

use super::{Parsed, SyntaxError};

/// Flags that change what a pattern matches. `U`, which swaps lazy and greedy, does not.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags {
    pub(super) ignore_case: bool,
    /// Whether `^` and `$` match at lines' ends.
    pub(super) multi_line: bool,
    /// Whether `.` matches a newline.
    pub(super) dot_newline: bool,
}

/// The beginning of a group, or a change of flags.
pub(super) struct Group<'p> {
    /// Whether a group begins, which `(?i)` alone does not.
    pub(super) opens: bool,
    /// Flags that hold from here.
    pub(super) flags: Flags,
    pub(super) rest: &'p str,
}

/// Reads the beginning of a group. `from` begins with `(`.
pub(super) fn group(from: &str, flags: Flags) -> Parsed<Group<'_>> {
    let inside = &from[1..];
    let Some(special) = inside.strip_prefix('?') else {
        return Ok(Group {
            opens: true,
            flags,
            rest: inside,
        });
    };
    let named = special
        .strip_prefix("P<")
        .or_else(|| special.strip_prefix('<'));
    match named {
        // These look behind, which RE2 does not.
        Some(behind) if behind.starts_with(['=', '!']) && special.starts_with('<') => {
            Err(bad(from, behind))
        }
        Some(named) => name(from, named, flags),
        None => switches(from, special, flags),
    }
}

/// Returns an error that shows the group up to the first character of `rest`, which is included.
fn bad(from: &str, rest: &str) -> SyntaxError {
    let next = rest.chars().next().map_or(0, char::len_utf8);
    SyntaxError::BadGroup(from[..from.len() - rest.len() + next].to_owned())
}

fn name<'p>(from: &'p str, named: &'p str, flags: Flags) -> Parsed<Group<'p>> {
    let Some((name, rest)) = named.split_once('>') else {
        return Err(SyntaxError::BadGroupName(from.to_owned()));
    };
    if name.is_empty() || !name.chars().all(is_in_name) {
        let written = &from[..from.len() - rest.len()];
        return Err(SyntaxError::BadGroupName(written.to_owned()));
    }
    Ok(Group {
        opens: true,
        flags,
        rest,
    })
}

/// Whether a name may have this character: letters, marks, decimal digits and connectors of any script.
fn is_in_name(character: char) -> bool {
    regex_syntax::is_word_character(character)
}

/// Reads flags up to `:` or `)`.
fn switches<'p>(from: &'p str, special: &'p str, mut flags: Flags) -> Parsed<Group<'p>> {
    let mut rest = special;
    let mut on = true;
    let mut is_dangling = false;
    loop {
        let mut chars = rest.chars();
        let Some(next) = chars.next() else {
            return Err(SyntaxError::UnclosedGroup);
        };
        let after = chars.as_str();
        match next {
            'i' => flags.ignore_case = on,
            'm' => flags.multi_line = on,
            's' => flags.dot_newline = on,
            'U' => {}
            '-' if on => on = false,
            ':' | ')' if !is_dangling => {
                return Ok(Group {
                    opens: next == ':',
                    flags,
                    rest: after,
                });
            }
            _ => return Err(bad(from, rest)),
        }
        is_dangling = next == '-';
        rest = after;
    }
}
