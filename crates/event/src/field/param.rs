//! Event parameters as values and as text.

use abi::{Arch, Errno, Signal, argument::AT_FDCWD};

use super::text::Text;
use super::{path, proc, text};
use crate::{
    DescriptorSource, Event, EventKind, Lookup, Outcome, Param, ParamSource, ParamSpec, ParamType,
    Pid, Value,
};

/// A parameter as text: the value as passed, and its meaning if that differs.
pub(super) enum ParamText<'a> {
    Unknown,
    Absent,
    Known {
        plain: &'a [u8],
        meaning: Option<&'a [u8]>,
    },
    /// The value as passed; its meaning is unknown.
    Half(&'a [u8]),
}

/// Returns the parameter as a value.
pub(super) fn value<'a>(event: &Event<'a>, at: usize) -> Value<'a> {
    let spec = &event.kind.spec().params[at];
    let param = event.params.get(at).copied().unwrap_or(Param::Pending);
    match (param, spec.source) {
        (Param::Pending | Param::Absent(_), ParamSource::Result) => result(event.outcome),
        (Param::Pending | Param::Absent(_), ParamSource::Process) => proc::param(event, spec),
        (Param::Pending | Param::Absent(_), ParamSource::Constant(value)) => Value::Uint(value),
        (Param::Tuple, _) | (Param::Pending | Param::Absent(_), ParamSource::Tuple) => {
            super::fd::tuple(event)
        }
        (Param::Pending | Param::Unreadable, _) => Value::Unknown,
        (Param::Absent(_), _) => Value::Absent,
        (Param::Int(value), _) if is_id(spec.ty) => {
            Value::Uint(value.cast_unsigned() & u64::from(u32::MAX))
        }
        (Param::Uint(value), _) if is_id(spec.ty) => Value::Uint(value & u64::from(u32::MAX)),
        (Param::Int(value), _) if unsigned(spec.ty) => Value::Uint(value.cast_unsigned()),
        (Param::Int(value), _) => Value::Int(value),
        (Param::Uint(value), _) if unsigned(spec.ty) => Value::Uint(value),
        (Param::Uint(value), _) => Value::Int(value.cast_signed()),
        (Param::Text(text), _) => Value::Text(text),
        (Param::Texts(texts), _) => {
            let mut joined = Text::new(event.arena);
            joined.join(texts.iter().copied());
            joined.value()
        }
    }
}

fn result<'a>(outcome: Outcome) -> Value<'a> {
    match outcome {
        Outcome::Pending | Outcome::Unlearnt => Value::Unknown,
        Outcome::Returned(value) => Value::Int(value),
        Outcome::None => Value::Absent,
    }
}

/// Returns true for user and group ids: they are 32 bits wide, and -1 arrives in any width.
fn is_id(ty: ParamType) -> bool {
    matches!(ty, ParamType::Uid | ParamType::Gid)
}

fn unsigned(ty: ParamType) -> bool {
    super::raw_type(ty) == crate::ValueType::Uint
}

/// Formats the parameter as Falco prints it in `evt.arg`: the meaning, if there is one.
pub(super) fn shown<'a>(event: &Event<'a>, at: usize) -> Value<'a> {
    match words(event, at) {
        ParamText::Unknown | ParamText::Half(_) => Value::Unknown,
        ParamText::Absent => Value::Absent,
        ParamText::Known { plain, meaning } => Value::Text(meaning.unwrap_or(plain)),
    }
}

/// Formats all parameters as Falco prints them in `evt.args`: `name=plain(meaning)`.
pub(super) fn all<'a>(event: &Event<'a>) -> Value<'a> {
    match line(event) {
        (_, Whole::No) => Value::Unknown,
        (line, Whole::Yes) => line.value(),
    }
}

/// Formats all parameters, with a mark for each unknown one.
pub(super) fn known<'a>(event: &Event<'a>) -> Value<'a> {
    line(event).0.value()
}

/// Whether every part of a line is known.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whole {
    No,
    Yes,
}

fn line<'a>(event: &Event<'a>) -> (Text<'a>, Whole) {
    let mut line = Text::new(event.arena);
    let mut whole = Whole::Yes;
    for (at, spec) in event.kind.spec().params.iter().enumerate() {
        if at > 0 {
            line.push(b" ");
        }
        line.push(spec.name.as_bytes());
        line.push(b"=");
        match words(event, at) {
            // The line leaves out parameters that no engine reads.
            ParamText::Unknown if spec.source == ParamSource::Nowhere && !spec.is_moved_bytes() => {
                line.push(missing(spec.ty));
            }
            ParamText::Unknown => {
                whole = Whole::No;
                line.push(UNKNOWN);
            }
            ParamText::Half(plain) => {
                whole = Whole::No;
                line.push(plain);
            }
            ParamText::Absent => line.push(missing(spec.ty)),
            ParamText::Known {
                plain,
                meaning: None,
            } => line.push(plain),
            ParamText::Known {
                plain,
                meaning: Some(meaning),
            } => {
                line.push(plain);
                line.push(b"(");
                line.push(meaning);
                line.push(b")");
            }
        }
    }
    (line, whole)
}

const UNKNOWN: &[u8] = b"<NA>";

/// Returns the text for a missing value. Falco prints missing buffers and tuples as NULL.
fn missing(ty: ParamType) -> &'static [u8] {
    match ty {
        ParamType::Bytes | ParamType::Texts | ParamType::Tuple => b"NULL",
        _ => UNKNOWN,
    }
}

fn words<'a>(event: &Event<'a>, at: usize) -> ParamText<'a> {
    let spec = &event.kind.spec().params[at];
    let value = match value(event, at) {
        Value::Unknown => return ParamText::Unknown,
        Value::Absent => return ParamText::Absent,
        value => value,
    };
    let plain = match plain(event, spec, value) {
        Some(plain) => plain,
        None => return ParamText::Absent,
    };
    match meaning(event, spec, value) {
        Value::Unknown => ParamText::Half(plain),
        Value::Text(text) if !text.is_empty() => ParamText::Known {
            plain,
            meaning: Some(text),
        },
        _ => ParamText::Known {
            plain,
            meaning: None,
        },
    }
}

fn plain<'a>(event: &Event<'a>, spec: &ParamSpec, value: Value<'a>) -> Option<&'a [u8]> {
    let mut out = Text::new(event.arena);
    match (value, spec.ty) {
        (Value::Text(bytes), ParamType::Bytes | ParamType::Texts) => printable(&mut out, bytes),
        (Value::Text(text), _) => return Some(text),
        (Value::Uint(value), ParamType::Hex) => out.show(format_args!("{value:X}")),
        (Value::Uint(0), ParamType::Mode) => out.push(b"0"),
        (Value::Uint(value), ParamType::Mode) => out.show(format_args!("0{value:o}")),
        (Value::Uint(value), ParamType::Uid | ParamType::Gid) if nobody(value) => out.push(b"-1"),
        (Value::Uint(value), _) => out.show(value),
        (Value::Int(value), _) => out.show(value),
        _ => return None,
    }
    Some(out.bytes())
}

/// Appends bytes as Falco prints them: a dot for each unprintable byte.
fn printable(out: &mut Text<'_>, bytes: &[u8]) {
    for byte in bytes {
        let shown = if byte.is_ascii_graphic() || *byte == b' ' {
            *byte
        } else {
            b'.'
        };
        out.push(&[shown]);
    }
}

fn meaning<'a>(event: &Event<'a>, spec: &ParamSpec, value: Value<'a>) -> Value<'a> {
    let arena = event.arena;
    match (spec.ty, value) {
        (ParamType::Errno, Value::Int(value)) => {
            let name = Errno::from_result(value).and_then(Errno::name);
            name.map_or(Value::Absent, Value::text)
        }
        (ParamType::Fd, Value::Int(number)) => descriptor(event, spec, number),
        (ParamType::Pid, Value::Int(pid)) => command(event, pid),
        (ParamType::Signal, Value::Uint(number)) => {
            let signal = i32::try_from(number)
                .ok()
                .and_then(|number| Signal(number).name());
            signal.map_or(Value::Absent, Value::text)
        }
        (ParamType::Flags(set) | ParamType::Enum(set), Value::Uint(value)) => {
            names(arena, set, value)
        }
        (ParamType::Mode, Value::Uint(mode)) if !opens(event) => {
            names(arena, &abi::flags::MODE, mode)
        }
        (ParamType::Path, Value::Text(raw)) if raw.first() != Some(&b'/') => {
            path::absolute(event, raw, base(event, spec))
        }
        (ParamType::Uid | ParamType::Gid, Value::Uint(id)) if nobody(id) => Value::text("<NONE>"),
        (ParamType::Uid, Value::Uint(id)) => match u32::try_from(id) {
            Ok(uid) => super::user::name(event, uid),
            Err(_) => Value::Absent,
        },
        (ParamType::Gid, Value::Uint(id)) => match u32::try_from(id) {
            Ok(gid) => super::group::name(event, gid),
            Err(_) => Value::Absent,
        },
        _ => Value::Absent,
    }
}

/// Returns true for the id -1, which means "leave unchanged".
fn nobody(id: u64) -> bool {
    id == u64::from(u32::MAX)
}

/// Returns true for events that open files: Falco prints their modes as numbers alone.
fn opens(event: &Event<'_>) -> bool {
    matches!(
        event.kind.spec().descriptor,
        DescriptorSource::Opened { .. }
    )
}

/// Returns the names of the set flags, joined by bars.
fn names<'a>(arena: &'a bumpalo::Bump, set: &abi::FlagSet, value: u64) -> Value<'a> {
    let mut words = bumpalo::collections::Vec::new_in(arena);
    let Some(arch) = Arch::native() else {
        return Value::Absent;
    };
    set.visit(arch, value, |name| words.push(name));
    if std::ptr::eq(set, &raw const abi::flags::OPEN) {
        words.sort_by_key(|word| open_rank(word));
    }
    let mut out = Text::new(arena);
    for (position, word) in words.iter().enumerate() {
        if position > 0 {
            out.push(b"|");
        }
        out.push(word.as_bytes());
    }
    out.value()
}

/// Returns a flag's rank in the order in which Falco prints the flags of `open`, so that rules that compare
/// the whole text keep matching.
fn open_rank(name: &str) -> usize {
    const ORDER: [&str; 14] = [
        "O_LARGEFILE",
        "O_DIRECTORY",
        "O_DIRECT",
        "O_TRUNC",
        "O_SYNC",
        "O_NONBLOCK",
        "O_EXCL",
        "O_DSYNC",
        "O_APPEND",
        "O_CREAT",
        "O_RDWR",
        "O_WRONLY",
        "O_RDONLY",
        "O_CLOEXEC",
    ];
    ORDER
        .iter()
        .position(|known| *known == name)
        .unwrap_or(ORDER.len())
}

/// Formats a descriptor: `<f>/etc/passwd` for the event's own, `AT_FDCWD`, or the errno name of a failed
/// open.
fn descriptor<'a>(event: &Event<'a>, spec: &ParamSpec, number: i64) -> Value<'a> {
    if number == i64::from(AT_FDCWD) {
        return Value::text("AT_FDCWD");
    }
    if number < 0 {
        let name = Errno::from_result(number).and_then(Errno::name);
        return name.map_or(Value::Absent, Value::text);
    }
    if !is_own(event, spec) {
        return Value::Absent;
    }
    match (super::fd::type_letters(event), super::fd::name(event)) {
        (Value::Unknown, _) | (_, Value::Unknown) => Value::Unknown,
        (Value::Text(letters), Value::Text(name)) => {
            let mut out = Text::new(event.arena);
            out.push(b"<");
            out.push(letters);
            out.push(b">");
            out.push(name);
            out.value()
        }
        _ => Value::Absent,
    }
}

/// Returns true if the parameter is the descriptor that the event concerns.
fn is_own(event: &Event<'_>, spec: &ParamSpec) -> bool {
    match (event.kind.spec().descriptor, spec.source) {
        (
            DescriptorSource::Argument(own)
            | DescriptorSource::Duplicated(own)
            | DescriptorSource::Addressed { fd: own, .. }
            | DescriptorSource::Message { fd: own, .. },
            ParamSource::Register(position),
        ) => own == position,
        (DescriptorSource::None, _) => false,
        (_, ParamSource::Result) => true,
        _ => false,
    }
}

fn command<'a>(event: &Event<'a>, pid: i64) -> Value<'a> {
    let Ok(pid) = i32::try_from(pid) else {
        return Value::Absent;
    };
    if pid <= 0 {
        return Value::Absent;
    }
    match event.world.process(Pid(pid)) {
        Lookup::Found(process) => text::copied(event.arena, process.exec_name().as_bytes()),
        Lookup::Missing => Value::Absent,
        Lookup::Unknown => Value::Unknown,
    }
}

/// Returns the directory descriptor that a path parameter starts at; `None` for the working directory.
pub(super) fn base(event: &Event<'_>, spec: &ParamSpec) -> Option<i32> {
    let ParamSource::Path {
        base: Some(register),
        ..
    } = spec.source
    else {
        return None;
    };
    let params = event.kind.spec().params;
    let at = params
        .iter()
        .position(|param| param.source == ParamSource::Register(register))?;
    let number = match event.params.get(at)? {
        Param::Int(number) => i32::try_from(*number).ok()?,
        // The register is not yet truncated to the 32 bits that the kernel reads.
        Param::Uint(number) => i32::try_from(*number & u64::from(u32::MAX)).ok()?,
        _ => return None,
    };
    (number != AT_FDCWD).then_some(number)
}

/// Returns the position of the bytes that a call moves. `data` of ptrace is an address and does not count.
pub(super) fn buffer(kind: EventKind) -> Option<usize> {
    let at = kind.param_index("data")?;
    matches!(kind.spec().params[at].ty, ParamType::Bytes).then_some(at)
}

/// Returns the bytes that the call moves, if any.
pub(super) fn data<'a>(event: &Event<'a>) -> Value<'a> {
    match buffer(event.kind) {
        Some(at) => value(event, at),
        None => Value::Absent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_flags_are_printed_in_the_order_of_falco() {
        let arena = bumpalo::Bump::new();
        let set = &abi::flags::OPEN;
        assert_eq!(
            names(&arena, set, 0o1 | 0o100 | 0o1000),
            Value::text("O_TRUNC|O_CREAT|O_WRONLY")
        );
        assert_eq!(names(&arena, set, 0), Value::text("O_RDONLY"));
    }

    #[test]
    fn bytes_are_printed_as_dots_unless_they_are_ascii() {
        let arena = bumpalo::Bump::new();
        let mut out = Text::new(&arena);
        printable(&mut out, b"GET /\r\n\xff");
        assert_eq!(out.bytes(), b"GET /...");
    }
}
