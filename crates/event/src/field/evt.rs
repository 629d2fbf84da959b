//! `evt.*`: the event itself.

use abi::Errno;

use super::text::shown;
use super::time::CivilTime;
use super::{Argument, ArgumentKind, Class, DescriptorFact, FieldSpec, Source, param, path};
use crate::ValueType::{AbsTime, Bool, Int, Path, RelTime, Text, Uint};
use crate::{
    Category, DescriptorKind, DescriptorSource, Event, EventKind, Known, OpenFlags, Outcome, Param,
    ParamSource, Value,
};

pub(super) const CLASS: Class = Class {
    name: "evt",
    description: "The event itself: type, arguments, result, time.",
};

const DEPRECATED: &str = "Always zero, as in Falco: events have no separate beginning.";
const STATEFUL: &str = "depends on other events, which a rule must not";
const NO_PLUGIN: &str = "no plugin makes system calls";
const OFFSET: ArgumentKind = ArgumentKind::Index { required: true };

pub(super) static FIELDS: &[FieldSpec] = &[
    // Order and time.
    FieldSpec::new("evt.num", Uint, Source::Event, |e, _| Value::Uint(e.number), "Count of the event since the start, from 1."),
    FieldSpec::new("evt.time", Text, Source::Event, |e, _| shown(e.arena, local(e).precise_clock()), "Time of day with nanoseconds."),
    FieldSpec::new("evt.time.s", Text, Source::Event, |e, _| shown(e.arena, local(e).clock()), "Time of day in whole seconds."),
    FieldSpec::new("evt.time.iso8601", Text, Source::Event, iso8601, "Date and time in ISO 8601 with nanoseconds, in UTC."),
    FieldSpec::new("evt.datetime", Text, Source::Event, |e, _| shown(e.arena, format_args!("{} {}", local(e).date(), local(e).precise_clock())), "Date and time with nanoseconds."),
    FieldSpec::new("evt.datetime.s", Text, Source::Event, |e, _| shown(e.arena, format_args!("{} {}", local(e).date(), local(e).clock())), "Date and time in whole seconds."),
    FieldSpec::new("evt.rawtime", AbsTime, Source::Event, |e, _| Value::Uint(e.time_ns), "Nanoseconds since 1970."),
    FieldSpec::new("evt.rawtime.s", AbsTime, Source::Event, |e, _| Value::Uint(e.time_ns / 1_000_000_000), "Whole seconds since 1970."),
    FieldSpec::new("evt.rawtime.ns", AbsTime, Source::Event, |e, _| Value::Uint(e.time_ns % 1_000_000_000), "Nanoseconds within the second."),
    FieldSpec::new("evt.outputtime", Text, Source::Event, |e, _| shown(e.arena, local(e).precise_clock()), "The same as evt.time."),
    FieldSpec::new("evt.reltime", RelTime, Source::Event, |e, _| relative(e, |ns| ns), "Nanoseconds since the first event of a capture; absent where events are seen as they happen."),
    FieldSpec::new("evt.reltime.s", RelTime, Source::Event, |e, _| relative(e, |ns| ns / 1_000_000_000), "Whole seconds since the first event of a capture."),
    FieldSpec::new("evt.reltime.ns", RelTime, Source::Event, |e, _| relative(e, |ns| ns % 1_000_000_000), "Nanoseconds within the second since the first event of a capture."),
    FieldSpec::absent("evt.deltatime", RelTime, STATEFUL, "Nanoseconds since the event before."),
    FieldSpec::absent("evt.deltatime.s", RelTime, STATEFUL, "Whole seconds since the event before."),
    FieldSpec::absent("evt.deltatime.ns", RelTime, STATEFUL, "Nanoseconds within the second since the event before."),
    FieldSpec::new("evt.latency", RelTime, Source::Kind, |_, _| Value::Uint(0), DEPRECATED),
    FieldSpec::new("evt.latency.s", RelTime, Source::Kind, |_, _| Value::Uint(0), DEPRECATED),
    FieldSpec::new("evt.latency.ns", RelTime, Source::Kind, |_, _| Value::Uint(0), DEPRECATED),
    FieldSpec::new("evt.latency.human", Text, Source::Kind, |_, _| Value::text("0ns"), DEPRECATED),
    FieldSpec::new("evt.wait_latency", RelTime, Source::Kind, |_, _| Value::Uint(0), DEPRECATED),
    FieldSpec::absent("evt.around", Uint, "needs a value in the field itself that only filters of recordings use", "Whether the event lies in an interval around a time.").with(OFFSET),
    // Event type.
    FieldSpec::new("evt.type", Text, Source::Kind, |e, _| Value::text(e.kind.name()), "Name of the event, for a system call its name (`openat`)."),
    FieldSpec::new("evt.type.is", Uint, Source::Kind, type_is, "1 if the event has the type that is named, otherwise 0: `evt.type.is.open`.").with(ArgumentKind::Suffix { required: true, names: &[] }),
    FieldSpec::new("evt.dir", Text, Source::Kind, |_, _| Value::text("<"), "Always `<`: an event stands for the call and its result."),
    FieldSpec::new("evt.category", Text, Source::Category, category, "`file`, `net`, `process`, `user`, `memory`, ...; input and output by what the descriptor is."),
    FieldSpec::new("evt.cpu", Int, Source::Event, |e, _| Value::or_absent(e.cpu.map(|cpu| Value::Int(i64::from(cpu)))), "Processor it happened on."),
    FieldSpec::new("evt.hostname", Text, Source::Event, |e, _| Value::text(e.world.host_name()), "Name of this machine."),
    FieldSpec::new("evt.source", Text, Source::Event, |e, _| Value::text(e.world.event_source()), "Where events come from: `syscall`, or the source of a plugin."),
    FieldSpec::new("evt.is_async", Bool, Source::Kind, |e, _| Value::Bool(e.kind.spec().category == Category::Internal), "Whether the event was made by this program and not by a workload."),
    FieldSpec::new("evt.asynctype", Text, Source::Kind, async_type, "Type of an event that was made by this program."),
    FieldSpec::absent("evt.pluginname", Text, NO_PLUGIN, "Name of the plugin that made the event."),
    FieldSpec::absent("evt.plugininfo", Text, NO_PLUGIN, "The event as its plugin describes it."),
    // Arguments.
    FieldSpec::new("evt.args", Text, Source::Params, |e, _| param::all(e), "All arguments: `name=value(meaning) ...`; one that is unknown is printed as `<NA>`.").in_parts(|e, _| param::known(e)),
    FieldSpec::new("evt.info", Text, Source::Params, |e, _| param::all(e), "The same as evt.args.").in_parts(|e, _| param::known(e)),
    FieldSpec::new("evt.arg", Text, Source::Param, arg, "One argument by name or position, in words where there are any: `evt.arg.flags`, `evt.arg[1]`.").with(ArgumentKind::Param),
    FieldSpec::new("evt.rawarg", Text, Source::RawParam, raw_arg, "One argument by name, as a number where it is one: `evt.rawarg.fd`.").with(ArgumentKind::Param),
    FieldSpec::new("evt.abspath", Path, Source::Path, abs_path, "Absolute path of calls that take a directory descriptor; `.src` and `.dst` where there are two.").with(ArgumentKind::Suffix { required: false, names: &["src", "dst"] }),
    FieldSpec::new("evt.buffer", Text, Source::Buffer, |e, _| param::data(e), "Bytes that a call reads or writes, as far as they were captured: the engines capture those of one buffer that is written or sent."),
    FieldSpec::new("evt.buflen", Uint, Source::Moved, moved, "How many bytes a call read or wrote."),
    // Result.
    FieldSpec::new("evt.res", Text, Source::Result, result_name, "`SUCCESS`, or the name of the error (`ENOENT`)."),
    FieldSpec::new("evt.rawres", Int, Source::Result, |e, _| result(e), "Result as a number; errors are negative."),
    FieldSpec::new("evt.failed", Bool, Source::Result, |e, _| on_result(e, |res| Value::Bool(res < 0)), "Whether the call failed."),
    FieldSpec::new("evt.count", Uint, Source::Kind, |_, _| Value::Uint(1), "Always 1."),
    FieldSpec::new("evt.count.exit", Uint, Source::Kind, |_, _| Value::Uint(1), "Always 1: an event stands for the call and its result."),
    FieldSpec::new("evt.count.error", Uint, Source::Result, |e, _| failures(e), "1 if the call failed, otherwise 0."),
    FieldSpec::new("evt.count.error.file", Uint, Source::Result, |e, _| failures_of(e, Domain::File), "1 if a call on a file failed, 0 if it did not."),
    FieldSpec::new("evt.count.error.net", Uint, Source::Result, |e, _| failures_of(e, Domain::Net), "1 if a call on a socket failed, 0 if it did not."),
    FieldSpec::new("evt.count.error.memory", Uint, Source::Result, |e, _| failures_of(e, Domain::Memory), "1 if a call on memory failed, 0 if it did not."),
    FieldSpec::new("evt.count.error.other", Uint, Source::Result, |e, _| failures_of(e, Domain::Other), "1 if any other call failed, 0 if it did not."),
    // Nature.
    FieldSpec::new("evt.is_io", Bool, Source::Kind, |e, _| Value::Bool(reads(e.kind) || writes(e.kind)), "Whether the call reads from or writes to a descriptor."),
    FieldSpec::new("evt.is_io_read", Bool, Source::Kind, |e, _| Value::Bool(reads(e.kind)), "Whether the call reads from a descriptor."),
    FieldSpec::new("evt.is_io_write", Bool, Source::Kind, |e, _| Value::Bool(writes(e.kind)), "Whether the call writes to a descriptor."),
    FieldSpec::new("evt.io_dir", Text, Source::Kind, io_direction, "`read` or `write` for calls that do."),
    FieldSpec::new("evt.is_wait", Bool, Source::Kind, |e, _| Value::Bool(matches!(e.kind.spec().category, Category::Wait | Category::Sleep)), "Whether the call waits: poll, select, sleep."),
    FieldSpec::new("evt.is_syslog", Bool, Source::Descriptor(DescriptorFact::Name), is_syslog, "Whether the call writes to /dev/log."),
    FieldSpec::new("evt.is_open_read", Bool, Source::OpenFlags, |e, _| access(e, &[0, 2]), "Whether a file is opened for reading."),
    FieldSpec::new("evt.is_open_write", Bool, Source::OpenFlags, |e, _| access(e, &[1, 2]), "Whether a file is opened for writing."),
    FieldSpec::new("evt.is_open_exec", Bool, Source::OpenMode, creates_executable, "Whether a file may be created that can be executed."),
    FieldSpec::new("evt.is_open_create", Bool, Source::OpenResult, creates, "Whether a file was created."),
];

fn local(event: &Event<'_>) -> CivilTime {
    CivilTime::new(event.time_ns, event.world.utc_offset())
}

/// Returns a part of the time since the first event. Captures may have events that are slightly out of order.
fn relative<'a>(event: &Event<'a>, part: fn(u64) -> u64) -> Value<'a> {
    let first = event.world.first_ns();
    let since = first.map(|first| event.time_ns.saturating_sub(first));
    Value::or_absent(since.map(|since| Value::Uint(part(since))))
}

fn iso8601<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let utc = CivilTime::new(event.time_ns, 0);
    shown(
        event.arena,
        format_args!("{}T{}+0000", utc.date(), utc.precise_clock()),
    )
}

fn type_is<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    Value::Uint(u64::from(argument.name() == Some(event.kind.name())))
}

fn async_type<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match event.kind.spec().category {
        Category::Internal => Value::text(event.kind.name()),
        _ => Value::Absent,
    }
}

fn category<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    Value::text(match event.kind.spec().category {
        Category::File => "file",
        Category::Net => "net",
        Category::Process => "process",
        Category::User => "user",
        Category::System => "system",
        Category::Signal => "signal",
        Category::Ipc => "IPC",
        Category::Memory => "memory",
        Category::Wait => "wait",
        Category::Sleep => "sleep",
        Category::Time => "time",
        Category::Internal => "internal",
        Category::Other => "other",
        Category::IoRead | Category::IoWrite | Category::IoOther => {
            return match descriptor_kind(event) {
                None => Value::text("unknown"),
                Some(Known::NotYet | Known::Unread) => Value::Unknown,
                Some(Known::Never) => Value::text("unknown"),
                Some(Known::Yes(kind)) => Value::text(io_category(kind)),
            };
        }
    })
}

fn io_category(kind: DescriptorKind) -> &'static str {
    use DescriptorKind as Kind;
    match kind {
        Kind::File | Kind::Directory => "file",
        Kind::Ipv4 | Kind::Ipv6 => "net",
        Kind::Unix | Kind::Pipe => "ipc",
        _ => "unknown",
    }
}

fn descriptor_kind(event: &Event<'_>) -> Option<Known<DescriptorKind>> {
    event.descriptor.map(|descriptor| descriptor.kind)
}

fn arg<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    argument
        .param_index(event.kind)
        .map_or(Value::Absent, |at| param::shown(event, at))
}

fn raw_arg<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    argument
        .param_index(event.kind)
        .map_or(Value::Absent, |at| param::value(event, at))
}

/// Returns the first path parameter for no argument and `src`, the second for `dst`.
fn abs_path<'a>(event: &Event<'a>, argument: &Argument) -> Value<'a> {
    let mut paths = event.kind.spec().params.iter().enumerate();
    let mut next = || paths.find(|(_, spec)| matches!(spec.source, ParamSource::Path { .. }));
    let chosen = match argument.name() {
        Some("dst") => next().and_then(|_| next()),
        _ => next(),
    };
    let Some((at, spec)) = chosen else {
        return Value::Absent;
    };
    match param::value(event, at) {
        Value::Text(raw) => path::absolute(event, raw, param::base(event, spec)),
        other => other,
    }
}

fn moved<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let category = event.kind.spec().category;
    if !matches!(
        category,
        Category::IoRead | Category::IoWrite | Category::IoOther
    ) {
        return Value::Absent;
    }
    on_result(event, |res| {
        u64::try_from(res).map_or(Value::Absent, Value::Uint)
    })
}

/// Returns the result as a value.
pub(super) fn result<'a>(event: &Event<'a>) -> Value<'a> {
    on_result(event, Value::Int)
}

/// Computes a value from the result.
pub(super) fn on_result<'a>(event: &Event<'a>, then: impl FnOnce(i64) -> Value<'a>) -> Value<'a> {
    match event.outcome {
        Outcome::Returned(result) => then(result),
        Outcome::Pending | Outcome::Unlearnt => Value::Unknown,
        Outcome::None => Value::Absent,
    }
}

fn result_name<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    on_result(event, |res| match Errno::from_result(res) {
        None => Value::text("SUCCESS"),
        Some(errno) => errno
            .name()
            .map_or_else(|| shown(event.arena, res), Value::text),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Domain {
    File,
    Net,
    Memory,
    Other,
}

fn failures<'a>(event: &Event<'a>) -> Value<'a> {
    on_result(event, |res| Value::Uint(u64::from(res < 0)))
}

fn failures_of<'a>(event: &Event<'a>, domain: Domain) -> Value<'a> {
    if domain_of(event) == domain {
        failures(event)
    } else {
        Value::Absent
    }
}

fn domain_of(event: &Event<'_>) -> Domain {
    let spec = event.kind.spec();
    if spec.category == Category::Memory {
        return Domain::Memory;
    }
    match (spec.descriptor, descriptor_kind(event)) {
        (DescriptorSource::Opened { .. }, _) => Domain::File,
        (DescriptorSource::Accepted(_) | DescriptorSource::Addressed { .. }, _) => Domain::Net,
        (_, Some(Known::Yes(DescriptorKind::File | DescriptorKind::Directory))) => Domain::File,
        (
            _,
            Some(Known::Yes(DescriptorKind::Ipv4 | DescriptorKind::Ipv6 | DescriptorKind::Unix)),
        ) => Domain::Net,
        _ => Domain::Other,
    }
}

fn reads(kind: EventKind) -> bool {
    kind.spec().io.reads()
}

fn writes(kind: EventKind) -> bool {
    kind.spec().io.writes()
}

fn io_direction<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    match (writes(event.kind), reads(event.kind)) {
        (true, _) => Value::text("write"),
        (false, true) => Value::text("read"),
        (false, false) => Value::Absent,
    }
}

fn is_syslog<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    if !writes(event.kind) {
        return Value::Bool(false);
    }
    match super::fd::name(event) {
        Value::Unknown => Value::Unknown,
        name => Value::Bool(name == Value::text("/dev/log")),
    }
}

/// Access mode bits of the open flags, the same on every architecture.
const O_ACCMODE: u64 = 3;

/// Returns true if the call opens a file with an access mode in `modes`. Like Falco, leaves out `creat`.
fn access<'a>(event: &Event<'a>, modes: &[u64]) -> Value<'a> {
    match open_flags(event) {
        Flags::Unknown => Value::Unknown,
        Flags::None => Value::Bool(false),
        Flags::Known(flags) => Value::Bool(modes.contains(&(flags & O_ACCMODE))),
    }
}

enum Flags {
    Unknown,
    None,
    Known(u64),
}

/// Returns true for `creat`, the open that takes no flags.
fn is_creat(kind: EventKind) -> bool {
    let DescriptorSource::Opened { flags, .. } = kind.spec().descriptor else {
        return false;
    };
    let source = kind.spec().params[usize::from(flags)].source;
    matches!(source, ParamSource::Constant(_))
}

fn open_flags(event: &Event<'_>) -> Flags {
    let DescriptorSource::Opened { flags, .. } = event.kind.spec().descriptor else {
        return Flags::None;
    };
    if is_creat(event.kind) {
        return Flags::None;
    }
    match event.params.get(usize::from(flags)) {
        Some(Param::Uint(flags)) => Flags::Known(*flags),
        Some(Param::Int(flags)) => Flags::Known(flags.cast_unsigned()),
        Some(Param::Pending | Param::Unreadable) => Flags::Unknown,
        _ => Flags::None,
    }
}

fn creates_executable<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    const ANY_EXECUTE: u64 = 0o111;
    let creates = match open_flags(event) {
        Flags::Unknown => return Value::Unknown,
        Flags::Known(flags) => OpenFlags(flags).may_create(),
        Flags::None => is_creat(event.kind),
    };
    if !creates {
        return Value::Bool(false);
    }
    let Some(at) = event.kind.param_index("mode") else {
        return Value::Bool(false);
    };
    match param::value(event, at) {
        Value::Uint(mode) => Value::Bool(mode & ANY_EXECUTE != 0),
        Value::Unknown => Value::Unknown,
        _ => Value::Bool(false),
    }
}

/// Returns true if a file was created. Without O_EXCL, success does not prove that the file is new.
fn creates<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let flags = match open_flags(event) {
        Flags::Unknown => return Value::Unknown,
        Flags::None => return Value::Bool(false),
        Flags::Known(flags) => OpenFlags(flags),
    };
    if !flags.may_create() {
        return Value::Bool(false);
    }
    on_result(event, |res| match (res < 0, flags.must_create()) {
        (true, _) => Value::Bool(false),
        (false, true) => Value::Bool(true),
        (false, false) => Value::Unknown,
    })
}
