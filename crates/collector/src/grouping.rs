//! By what alerts are grouped: the program, and the object with its changing parts left out.

use serde_json::{Map, Value};

/// Longest program or pattern, in characters.
const LENGTH: usize = 160;

/// Fields that name the program, the best first.
const PROGRAMS: [&str; 4] = [
    "proc.name",
    "proc.exepath",
    "ka.user.name",
    "container.name",
];

/// Fields that name the object, the best first. A process that only started is described by its command.
const OBJECTS: [&str; 7] = [
    "fd.name",
    "evt.arg.path",
    "evt.arg.name",
    "evt.arg.filename",
    "ka.target.name",
    "proc.exepath",
    "proc.cmdline",
];

/// Returns the program that an alert is about; empty if it names none.
pub(crate) fn program(fields: &Map<String, Value>) -> String {
    clipped(first(fields, &PROGRAMS).unwrap_or_default())
}

/// Returns the pattern of the object that an alert is about; empty if it names none.
pub(crate) fn object(fields: &Map<String, Value>) -> String {
    first(fields, &OBJECTS).map_or_else(String::new, pattern)
}

fn first<'f>(fields: &'f Map<String, Value>, names: &[&str]) -> Option<&'f str> {
    let values = names.iter().filter_map(|name| fields.get(*name)?.as_str());
    values
        .into_iter()
        .find(|value| !matches!(*value, "" | "<NA>"))
}

/// Returns at most [`LENGTH`] characters of a text.
pub(crate) fn clipped(text: &str) -> String {
    text.chars().take(LENGTH).collect()
}

/// Replaces what differs between two runs of the same program by `*`: numbers, and words that look random.
fn pattern(object: &str) -> String {
    // The port of a client is chosen by the kernel.
    let object = match object.split_once("->") {
        Some((_client, server)) => format!("*->{server}"),
        None => without_uuids(object)
            .split('/')
            .map(component)
            .collect::<Vec<_>>()
            .join("/"),
    };
    clipped(&object)
}

/// Replaces each UUID by `*`: its short parts look like words. Control groups of pods have them with underscores.
fn without_uuids(text: &str) -> String {
    const LENGTH: usize = 36;
    let is_uuid = |text: &str| {
        text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => matches!(byte, b'-' | b'_'),
            _ => byte.is_ascii_hexdigit(),
        })
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (shown, length) = match rest.get(..LENGTH) {
            Some(beginning) if is_uuid(beginning) => ('*', LENGTH),
            _ => (c, c.len_utf8()),
        };
        out.push(shown);
        rest = &rest[length..];
    }
    out
}

fn component(text: &str) -> String {
    // Names that mktemp(1) makes.
    if let Some((before, name)) = text.split_once("tmp.")
        && before.is_empty()
        && name.len() >= 6
        && name.chars().all(char::is_alphanumeric)
    {
        return "tmp.*".to_owned();
    }
    let mut out = String::new();
    let mut word = String::new();
    for c in text.chars() {
        if c.is_alphanumeric() {
            word.push(c);
            continue;
        }
        out.push_str(&masked(&word));
        word.clear();
        out.push(c);
    }
    out.push_str(&masked(&word));
    // `a-*-*` and `a-*` are the same to a reader.
    while let Some(at) = ["*-*", "*.*", "*_*", "**"]
        .iter()
        .find_map(|twice| out.find(twice))
    {
        let end = if out[at + 1..].starts_with('*') {
            at + 2
        } else {
            at + 3
        };
        out.replace_range(at..end, "*");
    }
    out
}

/// Returns `*` for a word that is a number, a digest, or looks random.
fn masked(word: &str) -> String {
    /// Names such as `x86` and `python3` are shorter, or have few digits.
    const RANDOM: usize = 6;
    let digits = word.chars().filter(char::is_ascii_digit).count();
    let length = word.chars().count();
    let is_hex = length >= 8 && word.chars().all(|c| c.is_ascii_hexdigit());
    let is_random = length >= RANDOM && digits >= 2 && digits < length && is_mixed(word);
    let is_number = digits > 0 && (digits == length || is_hex);
    if is_number || is_random || is_scrambled(word) {
        return "*".to_owned();
    }
    // `worker7`, `tty3`: the number in the end alone.
    let name = word.trim_end_matches(|c: char| c.is_ascii_digit());
    match name.len() == word.len() || length < 4 || is_version(name) {
        true => word.to_owned(),
        false => format!("{name}*"),
    }
}

/// Names whose number is a part of them.
fn is_version(name: &str) -> bool {
    ["python", "lib", "ruby", "perl", "sha", "utf", "ipv"].contains(&name)
}

/// Returns true for digits between letters, more than once: `k8s4x`, `3f9a1b`.
fn is_mixed(word: &str) -> bool {
    let kinds: Vec<bool> = word.chars().map(|c| c.is_ascii_digit()).collect();
    kinds.windows(2).filter(|pair| pair[0] != pair[1]).count() >= 2
}

/// Returns true for names of temporary files, such as `aXbQzR`: capitals in the middle, and both cases mixed.
fn is_scrambled(word: &str) -> bool {
    let cases: Vec<bool> = word.chars().map(char::is_uppercase).collect();
    let changes = cases.windows(2).filter(|pair| pair[0] != pair[1]).count();
    word.len() >= 6 && changes * 2 >= word.len() && changes >= 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changing_parts_of_objects_are_left_out() {
        for (object, expected) in [
            ("/etc/shadow", "/etc/shadow"),
            ("/proc/4711/mem", "/proc/*/mem"),
            ("/tmp/tmp.aXbQzRtY", "/tmp/tmp.*"),
            ("/tmp/tmp.aaBBccDDee/x", "/tmp/tmp.*/x"),
            ("/tmp/tmp.log", "/tmp/tmp.log"),
            (
                "/var/lib/kubelet/pods/0a1b2c3d-face-4bad-beef-0123456789ab/volumes",
                "/var/lib/kubelet/pods/*/volumes",
            ),
            (
                "/kubepods-pod0a1b2c3d_face_4bad_beef_0123456789ab.slice",
                "/kubepods-pod*.slice",
            ),
            ("/tmp/build-1234-5678/x.o", "/tmp/build-*/x.o"),
            ("/usr/lib/python3/os.py", "/usr/lib/python3/os.py"),
            (
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                "/usr/lib/x86_*-linux-gnu/libc.so.*",
            ),
            (
                "/var/lib/docker/overlay2/3f9a1bde77c0/diff",
                "/var/lib/docker/overlay*/*/diff",
            ),
            ("10.0.0.1:40312->1.2.3.4:443", "*->1.2.3.4:443"),
            ("/run/worker7.sock", "/run/worker*.sock"),
            ("/home/me/.ssh/id_ed25519", "/home/me/.ssh/id_ed*"),
            ("", ""),
        ] {
            assert_eq!(pattern(object), expected, "{object}");
        }
    }

    #[test]
    fn a_pattern_is_bounded_whatever_the_object_is() {
        for object in [
            "/".repeat(100_000),
            "é1".repeat(50_000),
            "*-".repeat(20_000),
        ] {
            assert!(pattern(&object).chars().count() <= LENGTH);
        }
    }

    #[test]
    fn a_field_without_a_value_names_nothing() {
        let fields =
            serde_json::json!({"proc.name": "<NA>", "proc.exepath": "/bin/x", "fd.name": null});
        let fields = fields.as_object().expect("an object");
        assert_eq!(program(fields), "/bin/x");
        assert_eq!(object(fields), "/bin/x");
        assert_eq!(program(&Map::new()), "");
    }
}
