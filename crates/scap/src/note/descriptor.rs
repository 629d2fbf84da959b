//! Descriptors in notes.

use bumpalo::Bump;
use event::{
    Descriptor, DescriptorAnswers, DescriptorKind, Endpoint, Known, Lookup, Name, Role, Socket,
    Transport,
};
use serde_json::{Value, json};

use super::{bytes, entry, looked, lookup, text};

fn known<T>(fact: Known<T>, show: impl FnOnce(T) -> Value) -> Value {
    match fact {
        Known::Yes(fact) => show(fact),
        Known::NotYet | Known::Unread => json!("?"),
        Known::Never => Value::Null,
    }
}

fn endpoint(end: Endpoint) -> Value {
    json!([end.ip.to_string(), end.port])
}

fn read_endpoint(value: &Value) -> Option<Endpoint> {
    Some(Endpoint {
        ip: value.get(0)?.as_str()?.parse().ok()?,
        port: u16::try_from(value.get(1)?.as_u64()?).ok()?,
    })
}

const TRANSPORTS: [(Transport, &str); 5] = [
    (Transport::Tcp, "tcp"),
    (Transport::Udp, "udp"),
    (Transport::Icmp, "icmp"),
    (Transport::Raw, "raw"),
    (Transport::Unknown, "unknown"),
];

const ROLES: [(Role, &str); 3] = [
    (Role::Client, "client"),
    (Role::Server, "server"),
    (Role::Unknown, "unknown"),
];

fn word<T: PartialEq>(of: T, words: &[(T, &'static str)]) -> &'static str {
    let found = words.iter().find(|(value, _)| *value == of);
    found.map_or("unknown", |(_, word)| word)
}

fn value_of<T: Copy>(word: &Value, words: &[(T, &'static str)]) -> Option<T> {
    let word = word.as_str()?;
    let found = words.iter().find(|(_, known)| *known == word);
    found.map(|(value, _)| *value)
}

const KINDS: [(DescriptorKind, &str); 19] = [
    (DescriptorKind::File, "file"),
    (DescriptorKind::Directory, "directory"),
    (DescriptorKind::Ipv4, "ipv4"),
    (DescriptorKind::Ipv6, "ipv6"),
    (DescriptorKind::Unix, "unix"),
    (DescriptorKind::Netlink, "netlink"),
    (DescriptorKind::OtherSocket, "socket"),
    (DescriptorKind::Pipe, "pipe"),
    (DescriptorKind::Event, "event"),
    (DescriptorKind::EventPoll, "eventpoll"),
    (DescriptorKind::Signal, "signalfd"),
    (DescriptorKind::Timer, "timerfd"),
    (DescriptorKind::Inotify, "inotify"),
    (DescriptorKind::Memfd, "memfd"),
    (DescriptorKind::Pidfd, "pidfd"),
    (DescriptorKind::Userfault, "userfaultfd"),
    (DescriptorKind::IoUring, "io_uring"),
    (DescriptorKind::Bpf, "bpf"),
    (DescriptorKind::Other, "other"),
];

/// Converts the answers about the process's other descriptors to their form in a note.
pub(super) fn show_asked(asked: &DescriptorAnswers) -> Value {
    let types = asked.types.iter();
    let types = types.map(|(number, kind)| {
        let kind = lookup(kind, |kind| json!(word(*kind, &KINDS)));
        json!([number, kind])
    });
    let names = asked.names.iter();
    // In brackets, so that no name is mistaken for the marker of an unknown one.
    let names =
        names.map(|(number, name)| json!([number, lookup(name, |name| json!([text(name)]))]));
    json!({
        "open": asked.numbers.as_ref().map(|numbers| lookup(numbers, |numbers| json!(numbers))),
        "types": types.collect::<Vec<_>>(),
        "names": names.collect::<Vec<_>>(),
    })
}

/// Reads the open descriptors; `None` if no rule has used them.
pub(super) fn read_open(asked: &Value) -> Option<Lookup<Vec<i32>>> {
    let numbers = asked.get("open")?;
    let number = |number: &Value| i32::try_from(number.as_i64()?).ok();
    // An answer is never null: an empty list differs from a missing one.
    (!numbers.is_null()).then(|| {
        looked(Some(numbers), |numbers| {
            numbers.as_array()?.iter().map(number).collect()
        })
    })
}

/// Reads the type of a descriptor; `None` if no rule has used it.
pub(super) fn read_type(asked: &Value, number: i32) -> Option<Lookup<DescriptorKind>> {
    let entry = entry(asked.get("types")?, number)?;
    Some(looked(entry.get(1), |word| value_of(word, &KINDS)))
}

/// Reads the name of a descriptor; `None` if no rule has used it.
pub(super) fn read_name(asked: &Value, number: i32) -> Option<Lookup<Vec<u8>>> {
    let entry = entry(asked.get("names")?, number)?;
    Some(looked(entry.get(1), name_of))
}

fn name_of(value: &Value) -> Option<Vec<u8>> {
    bytes(value.get(0)?.as_str()?)
}

pub(super) fn show_descriptor(descriptor: &Descriptor<'_>) -> Value {
    let name = match descriptor.name {
        Name::None => Value::Null,
        Name::Unreadable => json!("?"),
        Name::Passed { raw, base } => json!({ "passed": text(raw), "base": base }),
        Name::Unresolved { raw } => json!({ "unresolved": text(raw) }),
        Name::Resolved(path) => json!({ "path": text(path) }),
        Name::Opened { raw, path } => json!({ "path": text(path), "passed": text(raw) }),
    };
    json!({
        "number": known(descriptor.number, |number| json!(number)),
        "kind": known(descriptor.kind, |kind| json!(word(kind, &KINDS))),
        "name": name,
        "socket": descriptor.socket.as_ref().map(show_socket),
        "device": known(descriptor.device, |device| json!(device)),
        "inode": known(descriptor.inode, |inode| json!(inode)),
    })
}

pub(super) fn read_descriptor<'a>(value: &Value, arena: &'a Bump) -> Option<Descriptor<'a>> {
    let copy = |value: &Value| -> Option<&'a [u8]> {
        Some(arena.alloc_slice_copy(&bytes(value.as_str()?)?))
    };
    let name = match value.get("name")? {
        Value::Object(name) => match (name.get("path"), name.get("passed")) {
            (Some(path), None) => Name::Resolved(copy(path)?),
            (Some(path), Some(raw)) => Name::Opened {
                raw: copy(raw)?,
                path: copy(path)?,
            },
            (None, Some(raw)) => Name::Passed {
                raw: copy(raw)?,
                base: name
                    .get("base")
                    .and_then(Value::as_i64)
                    .and_then(|base| i32::try_from(base).ok()),
            },
            (None, None) => Name::Unresolved {
                raw: copy(name.get("unresolved")?)?,
            },
        },
        Value::String(_) => Name::Unreadable,
        _ => Name::None,
    };
    let socket = match value.get("socket") {
        None | Some(Value::Null) => None,
        Some(socket) => Some(read_socket(socket, arena)?),
    };
    Some(Descriptor {
        number: fact(value.get("number"), Value::as_i64),
        kind: fact(value.get("kind"), |word| value_of(word, &KINDS)),
        name,
        socket,
        device: fact(value.get("device"), Value::as_u64),
        inode: fact(value.get("inode"), Value::as_u64),
    })
}

fn fact<T>(value: Option<&Value>, read: impl FnOnce(&Value) -> Option<T>) -> Known<T> {
    match value {
        None | Some(Value::Null) => Known::Never,
        Some(value) => read(value).map_or(Known::NotYet, Known::Yes),
    }
}

fn show_socket(socket: &Socket<'_>) -> Value {
    json!({
        "transport": known(socket.transport, |transport| json!(word(transport, &TRANSPORTS))),
        "local": known(socket.local, endpoint),
        "remote": known(socket.remote, endpoint),
        "role": word(socket.role, &ROLES),
        "path": socket.unix_path.map(text),
        "connected": known(socket.connected, |is| json!(is)),
        "name_changed": known(socket.name_changed, |is| json!(is)),
    })
}

fn read_socket<'a>(value: &Value, arena: &'a Bump) -> Option<Socket<'a>> {
    let path = value.get("path").and_then(Value::as_str).and_then(bytes);
    Some(Socket {
        transport: fact(value.get("transport"), |word| value_of(word, &TRANSPORTS)),
        local: fact(value.get("local"), read_endpoint),
        remote: fact(value.get("remote"), read_endpoint),
        role: value_of(value.get("role")?, &ROLES)?,
        unix_path: path.map(|path| &*arena.alloc_slice_copy(&path)),
        connected: fact(value.get("connected"), Value::as_bool),
        name_changed: fact(value.get("name_changed"), Value::as_bool),
        unspecified: None,
    })
}
