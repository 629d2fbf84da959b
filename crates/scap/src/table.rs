//! The event types of scap files, from `data/scap.txt`.

use std::collections::HashMap;
use std::sync::LazyLock;

/// Encoding of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Address family and address.
    Address,
    /// Bytes.
    Bytes,
    /// A list of descriptors with poll flags.
    DescriptorList,
    /// The first byte is the type; rarely used.
    Dynamic,
    /// A signed number; its own width determines the sign bit.
    Signed,
    /// Text with a terminating NUL.
    Text,
    /// Address family and both ends of a connection.
    Tuple,
    /// An unsigned number.
    Unsigned,
}

/// One parameter of an event type.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Name.
    pub name: &'static str,
    /// Encoding.
    pub ty: Type,
    /// Size of a number in bytes; 0 for variable sizes.
    pub size: u8,
    /// Portable flags.
    pub flags: Option<&'static Flags>,
}

/// A set of portable flags.
#[derive(Debug)]
pub struct Flags {
    /// Name of the set.
    pub name: &'static str,
    /// Names, with their values in captures.
    pub entries: Vec<(&'static str, u64)>,
}

/// One event type.
#[derive(Clone, Debug)]
pub struct EventType {
    /// Number in captures.
    pub code: u16,
    /// Name, usually that of the call.
    pub name: &'static str,
    /// The type is written when a call begins; another one is written when it returns.
    pub is_enter: bool,
    /// Lengths of parameters have 32 bits.
    pub is_large: bool,
    /// Number of parameters in sysdig 0.29, if it knows the type.
    pub in_029: Option<usize>,
    /// Parameters; those of the newest version come last.
    pub params: Vec<Parameter>,
}

impl EventType {
    /// Returns the event type with this number.
    #[must_use]
    pub fn of(code: u16) -> Option<&'static Self> {
        TABLE.events.get(usize::from(code))?.as_ref()
    }

    /// Returns all event types, by number.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        TABLE.events.iter().flatten()
    }

    /// Returns the index of the parameter with this name.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<usize> {
        self.params.iter().position(|param| param.name == name)
    }

    /// Returns the newest type with this name and direction that sysdig 0.29 also knows.
    #[must_use]
    pub fn widely_known(name: &str, is_enter: bool) -> Option<&'static Self> {
        Self::all()
            .filter(|known| known.in_029.is_some())
            .filter(|known| known.name == name && known.is_enter == is_enter)
            .last()
    }
}

/// Returns the name of the call with this number in generic events.
#[must_use]
pub fn call_name(number: u16) -> Option<&'static str> {
    TABLE.calls.get(&number).copied()
}

/// Returns the number of a call in generic events.
#[must_use]
pub fn call_number(name: &str) -> Option<u16> {
    TABLE.numbers.get(name).copied()
}

struct Table {
    events: Vec<Option<EventType>>,
    calls: HashMap<u16, &'static str>,
    numbers: HashMap<&'static str, u16>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| parse(include_str!("../data/scap.txt")));

/// The data is part of the program, and a test parses every line.
const WELL_FORMED: &str = "data/scap.txt is well-formed";

fn parse(text: &'static str) -> Table {
    let lines = || text.lines().filter(|line| !line.starts_with('#'));
    let flags: HashMap<&str, &'static Flags> = lines()
        .filter_map(|line| line.strip_prefix("flags "))
        .map(parse_flags)
        .map(|flags| (flags.name, flags))
        .collect();
    let mut events = Vec::new();
    for line in lines().filter_map(|line| line.strip_prefix("event ")) {
        let event = parse_event(line, &flags);
        let at = usize::from(event.code);
        if events.len() <= at {
            events.resize(at + 1, None);
        }
        events[at] = Some(event);
    }
    // An event without a counterpart is written once, when it happens.
    for at in 0..events.len() {
        let has_exit = matches!(events.get(at + 1), Some(Some(_)));
        if let Some(event) = &mut events[at] {
            event.is_enter &= has_exit;
        }
    }
    let calls: HashMap<u16, &str> = lines()
        .filter_map(|line| line.strip_prefix("call ")?.split_once(' '))
        .map(|(number, name)| (number.parse().expect(WELL_FORMED), name))
        .collect();
    let numbers = calls
        .iter()
        .map(|(number, name)| (*name, *number))
        .collect();
    Table {
        events,
        calls,
        numbers,
    }
}

fn parse_flags(line: &'static str) -> &'static Flags {
    let mut words = line.split(' ');
    let name = words.next().expect(WELL_FORMED);
    let entries = words
        .map(|word| {
            let (name, value) = word.split_once('=').expect(WELL_FORMED);
            let value = match value.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => value.parse(),
            };
            (name, value.expect(WELL_FORMED))
        })
        .collect();
    // Leaked, once for the life of the program.
    Box::leak(Box::new(Flags { name, entries }))
}

fn parse_event(line: &'static str, flags: &HashMap<&str, &'static Flags>) -> EventType {
    let mut words = line.split(' ').peekable();
    let mut next = || words.next().expect(WELL_FORMED);
    let (code, direction, name) = (next(), next(), next());
    let is_large = words.next_if_eq(&"large").is_some();
    let in_029 = words
        .next_if(|word| word.starts_with('='))
        .map(|word| word[1..].parse().expect(WELL_FORMED));
    EventType {
        code: code.parse().expect(WELL_FORMED),
        name,
        is_enter: direction == ">",
        is_large,
        in_029,
        params: words.map(|word| parse_param(word, flags)).collect(),
    }
}

fn parse_param(word: &'static str, flags: &HashMap<&str, &'static Flags>) -> Parameter {
    let mut parts = word.split(':');
    let name = parts.next().expect(WELL_FORMED);
    let (ty, size) = type_of(parts.next().expect(WELL_FORMED));
    let flags = parts.next().map(|set| *flags.get(set).expect(WELL_FORMED));
    Parameter {
        name,
        ty,
        size,
        flags,
    }
}

fn type_of(word: &str) -> (Type, u8) {
    match word {
        "bool" | "uint32" | "flags32" | "enum32" | "uid" | "gid" | "sigset" | "mode" => {
            (Type::Unsigned, 4)
        }
        "uint64" | "reltime" | "abstime" | "double" => (Type::Unsigned, 8),
        "uint16" | "flags16" | "enum16" | "port" | "syscallid" => (Type::Unsigned, 2),
        "uint8" | "flags8" | "enum8" | "sigtype" | "l4proto" | "sockfamily" => (Type::Unsigned, 1),
        "errno" | "fd" | "pid" | "int64" => (Type::Signed, 8),
        "int32" | "fd32" | "pid32" => (Type::Signed, 4),
        "int16" => (Type::Signed, 2),
        "int8" => (Type::Signed, 1),
        "charbuf" | "fspath" | "fsrelpath" => (Type::Text, 0),
        "sockaddr" => (Type::Address, 0),
        "socktuple" => (Type::Tuple, 0),
        "fdlist" => (Type::DescriptorList, 0),
        "dyn" => (Type::Dynamic, 0),
        _ => (Type::Bytes, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_is_read() {
        assert!(EventType::all().count() > 400);
        let open = EventType::of(307).unwrap();
        assert_eq!(
            (open.name, open.is_enter, open.in_029),
            ("openat", false, Some(6))
        );
        assert_eq!(open.param("flags"), Some(3));
        let flags = open.params[3].flags.unwrap();
        assert!(flags.entries.contains(&("O_CREAT", 4)));
        assert_eq!(call_name(call_number("getpid").unwrap()), Some("getpid"));
        assert_eq!(call_number("no_such_call"), None);
    }

    #[test]
    fn enters_and_exits_come_in_pairs() {
        for event in EventType::all().filter(|event| event.is_enter) {
            assert_eq!(event.code % 2, 0, "{}", event.name);
            let exit = EventType::of(event.code + 1).unwrap_or_else(|| panic!("{}", event.name));
            assert!(!exit.is_enter);
        }
    }

    #[test]
    fn the_newest_type_that_sysdig_knows_is_found() {
        assert_eq!(EventType::widely_known("execve", false).unwrap().code, 293);
        assert_eq!(EventType::widely_known("openat", false).unwrap().code, 307);
        assert!(EventType::widely_known("prctl", false).is_none());
    }
}
