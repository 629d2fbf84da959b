//! Lexical operations on paths; none accesses a file system.

use bumpalo::Bump;
use bumpalo::collections::Vec;

use crate::{Event, Lookup, Name, Value};

/// Makes `path` absolute relative to `base` and resolves `.`, `..` and repeated slashes lexically, as Falco
/// does: symbolic links are not followed, and `..` at the root stays there.
pub fn normalize<'a>(arena: &'a Bump, base: &[u8], path: &[u8]) -> &'a [u8] {
    let mut out = Vec::with_capacity_in(base.len() + path.len() + 1, arena);
    if path.first() != Some(&b'/') {
        append(&mut out, base);
    }
    append(&mut out, path);
    if out.is_empty() {
        out.push(b'/');
    }
    out.into_bump_slice()
}

/// Appends the components of `path`, each preceded by a slash.
fn append(out: &mut Vec<'_, u8>, path: &[u8]) {
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => {
                let parent = out.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
                out.truncate(parent);
            }
            name => {
                out.push(b'/');
                out.extend_from_slice(name);
            }
        }
    }
}

/// Replaces each run of slashes in `path` by one.
pub(super) fn without_double_slashes<'a>(arena: &'a Bump, path: &'a [u8]) -> &'a [u8] {
    if !has_pair(path, |first, second| (first == b'/') & (second == b'/')) {
        return path;
    }
    let mut out = Vec::with_capacity_in(path.len(), arena);
    for byte in path {
        if *byte != b'/' || out.last() != Some(&b'/') {
            out.push(*byte);
        }
    }
    out.into_bump_slice()
}

/// Returns true if a path is certainly absolute and normalized. May return false for a normalized path with a
/// name that begins with a dot; those take the slow path.
pub fn is_plain(path: &[u8]) -> bool {
    let is_odd = |first, second| (first == b'/') & ((second == b'/') | (second == b'.'));
    path.first() == Some(&b'/')
        && (path.len() == 1 || path.last() != Some(&b'/'))
        && !has_pair(path, is_odd)
}

/// Returns true if two neighbouring bytes satisfy `is`. The loop has no early exit, so that it is vectorized.
#[inline]
fn has_pair(bytes: &[u8], is: impl Fn(u8, u8) -> bool) -> bool {
    let later = bytes.get(1..).unwrap_or_default();
    let pairs = bytes.iter().zip(later);
    pairs.fold(false, |found, (first, second)| found | is(*first, *second))
}

/// Returns the absolute form of a path that the caller passed.
pub(super) fn absolute<'a>(event: &Event<'a>, raw: &'a [u8], base: Option<i32>) -> Value<'a> {
    if is_plain(raw) {
        return Value::Text(raw);
    }
    if raw.first() == Some(&b'/') {
        return Value::Text(normalize(event.arena, b"", raw));
    }
    if raw.is_empty() && base.is_none() {
        return Value::Text(b"");
    }
    if base.is_none() && event.kind.changes().directory {
        // After the call has returned, the directory that the path started at is no longer known.
        return Value::Text(event.arena.alloc_slice_copy(raw));
    }
    match event.world.directory(event.tid, base, event.arena) {
        Lookup::Found(directory) => Value::Text(normalize(event.arena, directory, raw)),
        // A relative path at a closed descriptor has no target, but the rule's author may want to see the
        // attempt.
        Lookup::Missing => Value::Text(unresolved(event.arena, raw)),
        Lookup::Unknown => Value::Unknown,
    }
}

/// Returns the absolute form of a descriptor's name.
pub(super) fn resolved<'a>(event: &Event<'a>, name: Name<'a>) -> Value<'a> {
    match name {
        Name::None => Value::Absent,
        Name::Unreadable | Name::Unresolved { .. } => Value::Unknown,
        Name::Passed { raw, base } => absolute(event, raw, base),
        Name::Resolved(path) | Name::Opened { path, .. } => Value::Text(path),
    }
}

fn unresolved<'a>(arena: &'a Bump, raw: &[u8]) -> &'a [u8] {
    let mut out = Vec::new_in(arena);
    out.extend_from_slice(b"<UNKNOWN>/");
    out.extend_from_slice(raw);
    out.into_bump_slice()
}

/// Returns everything before the last slash; the root for a name in the root or without a slash.
pub(super) fn directory(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        None | Some(0) => b"/",
        Some(slash) if slash + 1 == path.len() => path,
        Some(slash) => &path[..slash],
    }
}

/// Returns everything after the last slash.
pub(super) fn file_name(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/') {
        None => b"/",
        Some(slash) if slash + 1 == path.len() => path,
        Some(slash) => &path[slash + 1..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute_by_text_alone() {
        let rows: &[(&[u8], &[u8], &[u8])] = &[
            (b"/home/u", b"file", b"/home/u/file"),
            (b"/home/u/", b"file", b"/home/u/file"),
            (b"/home/u", b"../v/file", b"/home/v/file"),
            (b"/home/u", b"./a/./b", b"/home/u/a/b"),
            (b"/home/u", b"/etc//passwd", b"/etc/passwd"),
            (b"/", b"../../etc/shadow", b"/etc/shadow"),
            (b"/", b"x", b"/x"),
            (b"/a", b"..", b"/"),
            (b"/a", b"b/..", b"/a"),
            (b"/a", b"b/c/", b"/a/b/c"),
            (b"/a", b"...", b"/a/..."),
            (b"/a", b".hidden", b"/a/.hidden"),
            (b"/a", b"", b"/a"),
            (b"", b"/a/b/../../../..///c.txt", b"/c.txt"),
            (b"", b"/", b"/"),
        ];
        let arena = Bump::new();
        for (base, path, expected) in rows {
            assert_eq!(
                normalize(&arena, base, path).escape_ascii().to_string(),
                expected.escape_ascii().to_string(),
            );
        }
    }

    #[test]
    fn plain_paths_are_their_own_normal_form() {
        let arena = Bump::new();
        let pieces: &[&[u8]] = &[
            b"/", b"/a", b"/.", b"/..", b"/a.b", b"/.h", b"//", b"a", b".",
        ];
        let mut plain = 0;
        for first in pieces {
            for second in pieces {
                for third in pieces {
                    let path = [b"/a", *first, *second, *third].concat();
                    if is_plain(&path) {
                        assert_eq!(normalize(&arena, b"", &path), path);
                        plain += 1;
                    }
                }
            }
        }
        assert!(plain > 50 && is_plain(b"/") && is_plain(b"/usr/lib/libc.so.6"));
        for odd in ["//", "/a/", "/a//b", "/a/./b", "/../a"] {
            assert!(!is_plain(odd.as_bytes()), "{odd}");
        }
    }

    #[test]
    fn directory_and_file_name_split_at_the_last_slash() {
        let rows: &[(&[u8], &[u8], &[u8])] = &[
            (b"/etc/passwd", b"/etc", b"passwd"),
            (b"/passwd", b"/", b"passwd"),
            (b"passwd", b"/", b"/"),
            (b"/", b"/", b"/"),
        ];
        for (path, expected_directory, expected_name) in rows {
            assert_eq!(directory(path), *expected_directory);
            assert_eq!(file_name(path), *expected_name);
        }
    }

    #[test]
    fn only_repeated_slashes_change_in_a_raw_name() {
        let arena = Bump::new();
        assert_eq!(
            without_double_slashes(&arena, b"a//b/../c///"),
            b"a/b/../c/"
        );
        assert_eq!(without_double_slashes(&arena, b"../x"), b"../x");
    }
}
