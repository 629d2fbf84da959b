//! Writes one event: the enter and the exit of its call.

use event::{
    Category, DescriptorKind, DescriptorSource, Event, EventKind, Known, Lookup, Name, Outcome,
    Param, ParamSource, ParamType,
};
use serde_json::Value;

use super::block::Values;
use super::descriptor::{push_address, push_tuple};
use super::process::ProcessSnapshot;
use super::{Moment, Writer};
use crate::flags::Translation;
use crate::note;
use crate::replay::{as_int, opened_kind};
use crate::table::{self, EventType, Parameter, Type};

/// Encodings of all event kinds.
pub(super) struct Dialects(Vec<Option<Dialect>>);

struct Dialect {
    enter: Option<&'static EventType>,
    exit: &'static EventType,
    /// Sources of the exit parameters, then of the enter parameters, in the event.
    exit_from: Vec<From>,
    enter_from: Vec<From>,
    /// By parameter of the kind: the event in the file contains it.
    is_recorded: Vec<bool>,
    /// The event in the file contains the result.
    tells_result: bool,
    /// Number of a call without an event type.
    generic: Option<u16>,
}

enum From {
    /// The kind's parameter at this index, with a translation of its flags.
    Param(usize, Option<&'static Translation>),
    Tuple,
    Address,
    Nowhere,
}

impl Dialects {
    pub(super) fn new() -> Self {
        Self(EventKind::all().map(Dialect::new).collect())
    }

    fn of(&self, kind: EventKind) -> Option<&Dialect> {
        self.0.get(kind.index())?.as_ref()
    }
}

impl Dialect {
    fn new(kind: EventKind) -> Option<Self> {
        let name = kind.name();
        let newest = |is_enter| {
            let all = EventType::all();
            all.filter(|ty| ty.name == name && ty.is_enter == is_enter)
                .last()
        };
        let exit = EventType::widely_known(name, false).or_else(|| newest(false));
        let Some(exit) = exit.filter(|_| kind.spec().category != Category::Internal) else {
            return Self::generic(kind);
        };
        let enter = exit.code.checked_sub(1).and_then(EventType::of);
        let enter = enter.filter(|enter| enter.is_enter && enter.name == name);
        // Only parameters that sysdig 0.29 knows.
        let from = |ty: &'static EventType| -> Vec<From> {
            let known = ty.in_029.unwrap_or(ty.params.len());
            let params = ty.params.iter().take(known);
            params.map(|param| from(kind, param)).collect()
        };
        let (exit_from, enter_from) = (from(exit), enter.map(from).unwrap_or_default());
        let tells = |at: usize| {
            let mut all = exit_from.iter().chain(&enter_from);
            all.any(|from| match from {
                From::Param(known, _) => *known == at,
                From::Tuple => kind.spec().params[at].source == ParamSource::Tuple,
                From::Address | From::Nowhere => false,
            })
        };
        let is_recorded = (0..kind.spec().params.len()).map(tells).collect();
        let result = |param: &event::ParamSpec| param.source == ParamSource::Result;
        let result = kind.spec().params.iter().position(result);
        let is_wide = |at: usize| {
            let mut all = exit.params.iter().zip(&exit_from);
            all.any(|(param, from)| {
                param.size == 8 && matches!(from, From::Param(known, _) if *known == at)
            })
        };
        Some(Self {
            enter,
            exit,
            tells_result: result.is_some_and(|at| tells(at) && is_wide(at)),
            exit_from,
            enter_from,
            is_recorded,
            generic: None,
        })
    }

    /// Returns the encoding of a call without an event type of its own.
    fn generic(kind: EventKind) -> Option<Self> {
        // Calls without a number in captures use the one for unknown calls.
        let number = kind
            .is_syscall()
            .then(|| table::call_number(kind.name()).unwrap_or(0))?;
        Some(Self {
            enter: EventType::of(0),
            exit: EventType::of(1)?,
            exit_from: Vec::new(),
            enter_from: Vec::new(),
            is_recorded: vec![false; kind.spec().params.len()],
            tells_result: false,
            generic: Some(number),
        })
    }
}

fn from(kind: EventKind, param: &Parameter) -> From {
    match param.ty {
        Type::Tuple => return From::Tuple,
        Type::Address => return From::Address,
        _ => {}
    }
    let at = kind.param_index(param.name);
    let Some(at) = at.filter(|_| param.ty != Type::Dynamic) else {
        return From::Nowhere;
    };
    let flags = match (kind.spec().params[at].ty, param.flags) {
        (ParamType::Flags(set) | ParamType::Enum(set), Some(flags)) => {
            Some(Translation::between(flags, set))
        }
        _ => None,
    };
    From::Param(at, flags)
}

impl Writer {
    /// Appends the event itself, after a note of what it cannot represent.
    pub(super) fn call(&mut self, event: &Event<'_>, moment: Moment, out: &mut Vec<u8>) {
        let Some(dialect) = self.dialects.of(event.kind) else {
            return;
        };
        let (enter, exit) = (dialect.enter, dialect.exit);
        let left_out = left_out(event, dialect);
        let descriptor = (!is_recorded(event)).then_some(event.descriptor.as_ref());
        let kind = (dialect.generic == Some(0)).then(|| event.kind.name());
        let result = match event.outcome {
            Outcome::Returned(result) if !dialect.tells_result => Some(result),
            _ => None,
        };
        let stat = event.live.stat.get();
        let rest = note::CallExtras {
            kind,
            params: left_out,
            descriptor,
            outcome: Some(event.outcome),
            result,
            stat: stat.filter(|stat| matches!(stat, Lookup::Found(_))),
            directories: directories(event),
            strangers: strangers(event),
            addresses: addresses(event),
            asked: event.live.descriptors.asked(),
        };
        let json = rest.to_json();
        if let Some(json) = json {
            self.note(note::CALL, &json, moment, out);
        }
        if let Some(enter) = enter {
            self.fill(event, true);
            self.append(enter, moment, false, out);
        }
        self.fill(event, false);
        self.append(exit, moment, false, out);
        self.follow(event);
    }

    /// Sets the values of the enter or the exit event.
    fn fill(&mut self, event: &Event<'_>, is_enter: bool) {
        let values = &mut self.values;
        values.clear();
        let Some(dialect) = self.dialects.of(event.kind) else {
            return;
        };
        if let Some(number) = dialect.generic {
            values.push_number(u64::from(number), 2);
            if is_enter {
                // The machine's own number, which no reader needs.
                values.push_number(0, 2);
            }
            return;
        }
        if !is_enter && is_birth_or_exec(event) {
            process_values(event, values);
            return;
        }
        let (ty, from) = if is_enter {
            (dialect.enter, &dialect.enter_from)
        } else {
            (Some(dialect.exit), &dialect.exit_from)
        };
        let Some(ty) = ty else { return };
        // Trailing missing parameters are omitted, as in captures of older versions.
        let is_there = |from: &From| match from {
            From::Param(at, _) => !matches!(
                value_of(event, *at),
                Param::Absent(_) | Param::Unreadable | Param::Pending
            ),
            From::Tuple | From::Address => true,
            From::Nowhere => false,
        };
        let count = from.iter().rposition(is_there).map_or(0, |last| last + 1);
        for (param, from) in ty.params.iter().zip(from).take(count) {
            push(values, event, param, from);
        }
    }

    /// Updates the descriptors known to the file with the event's effect.
    fn follow(&mut self, event: &Event<'_>) {
        let pid = event.process.pid;
        match event.kind.name() {
            "close_range" => self.descriptors.retain(|(owner, _), _| *owner != pid),
            "dup" | "dup2" | "dup3" | "fcntl" | "socket" | "accept" | "accept4" => {
                if let Outcome::Returned(result) = event.outcome {
                    self.descriptors.remove(&(pid, result));
                }
            }
            _ => {
                if let (DescriptorSource::Opened { .. }, Outcome::Returned(result)) =
                    (event.kind.spec().descriptor, event.outcome)
                {
                    self.descriptors.remove(&(pid, result));
                }
            }
        }
    }
}

fn is_birth_or_exec(event: &Event<'_>) -> bool {
    matches!(
        event.kind.name(),
        "clone" | "clone3" | "fork" | "vfork" | "execve" | "execveat"
    )
}

/// Appends the process's state after the call.
fn process_values(event: &Event<'_>, values: &mut Values) {
    let portrait = ProcessSnapshot::of_caller(event);
    if event.kind.name().starts_with("exec") {
        portrait.exec_values(values);
    } else {
        portrait.clone_values(values, None);
    }
    let result = match event.outcome {
        Outcome::Returned(result) => result,
        _ => 0,
    };
    values.set_first(&result.to_le_bytes());
}

/// Returns the parameters that the event in the file cannot represent.
fn left_out(event: &Event<'_>, dialect: &Dialect) -> Vec<(usize, Value)> {
    let specs = event.kind.spec().params.iter();
    let params = specs.zip(event.params).enumerate();
    params
        .filter(|(at, (spec, param))| {
            let follows = matches!(
                spec.source,
                ParamSource::Result | ParamSource::Process | ParamSource::Constant(_)
            );
            let recorded = dialect.is_recorded[*at];
            match param {
                // Never learned, unless it is the result.
                Param::Pending => !follows,
                Param::Tuple => false,
                Param::Absent(_) => recorded && !follows,
                Param::Unreadable | Param::Texts(_) => true,
                // A NUL in the text would end it in the file.
                Param::Text(text) => {
                    !recorded
                        || text.is_empty()
                        || text.len() > MAX_TEXT
                        || *text == b"<NA>"
                        || text.contains(&0)
                }
                Param::Uint(_) => !recorded || is_narrowed(event, dialect, *at),
                Param::Int(_) => !recorded && !follows,
            }
        })
        .map(|(at, (_, param))| (at, note::show_param(param)))
        .collect()
}

/// Returns processes other than the caller and its ancestors that rules can ask for: the leaders of
/// its session and group, and those in arguments.
pub(super) fn others(event: &Event<'_>) -> Vec<i32> {
    let mut others = Vec::new();
    if let Lookup::Found(stat) = event.stat() {
        others.extend([stat.sid, stat.pgid]);
    }
    for (spec, param) in event.kind.spec().params.iter().zip(event.params) {
        if let (ParamType::Pid, Param::Int(pid)) = (spec.ty, param) {
            // Negative numbers name groups, or no process.
            others.extend(i32::try_from(*pid).ok().filter(|pid| *pid > 0));
        }
    }
    others.retain(|pid| *pid != event.process.pid.0);
    others.sort_unstable();
    others.dedup();
    others
}

/// Returns those of [`others`] that were not found, although the file may know them from before.
fn strangers(event: &Event<'_>) -> Vec<(i32, Lookup<()>)> {
    let found = |pid| match event.world.process(event::Pid(pid)).map(|_| ()) {
        Lookup::Found(()) => None,
        other => Some((pid, other)),
    };
    others(event).into_iter().filter_map(found).collect()
}

/// Returns the directories among the arguments from which relative paths of the event start.
fn directories(event: &Event<'_>) -> Vec<(i32, Lookup<Vec<u8>>)> {
    let specs = event.kind.spec().params;
    let mut found: Vec<(i32, Lookup<Vec<u8>>)> = Vec::new();
    for (spec, param) in specs.iter().zip(event.params) {
        let (
            ParamSource::Path {
                base: Some(base), ..
            },
            Param::Text(raw),
        ) = (spec.source, param)
        else {
            continue;
        };
        let holds = |spec: &event::ParamSpec| spec.source == ParamSource::Register(base);
        let number = specs
            .iter()
            .position(holds)
            .and_then(|at| event.params.get(at));
        let number = number
            .and_then(as_int)
            .map(|number| number & i64::from(u32::MAX));
        let number = number
            .and_then(|number| u32::try_from(number).ok())
            .map(u32::cast_signed);
        let Some(number) = number.filter(|number| *number >= 0) else {
            continue;
        };
        if raw.first() == Some(&b'/') || found.iter().any(|(known, _)| *known == number) {
            continue;
        }
        let path = event.world.directory(event.tid, Some(number), event.arena);
        found.push((number, path.map(<[u8]>::to_vec)));
    }
    found
}

/// Returns true if the event in the file describes its descriptor exactly.
fn is_recorded(event: &Event<'_>) -> bool {
    let (name, flags) = match event.kind.spec().descriptor {
        DescriptorSource::None => return event.descriptor.is_none(),
        DescriptorSource::Opened { name, flags } => (usize::from(name), usize::from(flags)),
        _ => return false,
    };
    let (Some(descriptor), Outcome::Returned(result)) = (event.descriptor, event.outcome) else {
        return false;
    };
    let is_name = match (descriptor.name, event.params.get(name)) {
        (Name::Passed { raw, .. }, Some(Param::Text(text))) => raw == *text,
        (Name::None, Some(Param::Absent(_))) => true,
        _ => false,
    };
    is_name
        && descriptor.number == Known::Yes(result.max(-1))
        && descriptor.kind == Known::Yes(opened_kind(event.params.get(flags)))
        && descriptor.socket.is_none()
        && descriptor.device == Known::NotYet
        && descriptor.inode == Known::NotYet
}

/// Returns true if the file's number has too few bits, or lacks names for some flags.
fn is_narrowed(event: &Event<'_>, dialect: &Dialect, at: usize) -> bool {
    let Some(Param::Uint(value)) = event.params.get(at) else {
        return false;
    };
    let halves = [
        (Some(dialect.exit), &dialect.exit_from),
        (dialect.enter, &dialect.enter_from),
    ];
    let half = halves.into_iter().find_map(|(ty, from)| {
        let place = from
            .iter()
            .position(|from| matches!(from, From::Param(known, _) if *known == at))?;
        Some((&ty?.params[place], &from[place]))
    });
    let Some((param, From::Param(_, flags))) = half else {
        return false;
    };
    let bits = u32::from(param.size.min(8)) * 8;
    let fits = |value: u64| bits == 0 || bits >= 64 || value >> bits == 0;
    match flags {
        Some(flags) => {
            let portable = flags.to_portable(*value);
            !fits(portable) || flags.to_native(portable) != *value
        }
        None => !fits(*value),
    }
}

/// Returns the addresses of host names that rules compare with an end of a connection.
fn addresses(event: &Event<'_>) -> note::Addresses {
    let descriptor = event.descriptor.as_ref();
    match descriptor.and_then(|descriptor| descriptor.socket.as_ref()) {
        Some(_) => event.world.asked_addresses(),
        None => Vec::new(),
    }
}

/// Maximum length of written text; longer text goes into a note.
const MAX_TEXT: usize = 4096;

/// Returns a parameter, or the call's result where the parameter is the result.
fn value_of<'a>(event: &Event<'a>, at: usize) -> Param<'a> {
    let param = event.params.get(at).copied().unwrap_or(Param::Pending);
    let spec = &event.kind.spec().params[at];
    match (param, spec.source, event.outcome) {
        (_, ParamSource::Result, Outcome::Returned(result)) => Param::Int(result),
        (Param::Absent(_) | Param::Pending, ParamSource::Constant(value), _) => Param::Uint(value),
        (param, ..) => param,
    }
}

fn push(values: &mut Values, event: &Event<'_>, param: &Parameter, from: &From) {
    let descriptor = event.descriptor.as_ref();
    let kind = match descriptor.map(|descriptor| descriptor.kind) {
        Some(Known::Yes(kind)) => kind,
        _ => DescriptorKind::Other,
    };
    let socket = descriptor.and_then(|descriptor| descriptor.socket.as_ref());
    match (from, socket) {
        (From::Param(at, flags), _) => push_param(values, param, value_of(event, *at), *flags),
        (From::Tuple, Some(socket)) => {
            let mut tuple = Vec::new();
            push_tuple(&mut tuple, kind, socket);
            values.push(&tuple);
        }
        (From::Address, Some(socket)) => push_address(values, kind, socket),
        (From::Tuple | From::Address, None) => values.push(&[]),
        (From::Nowhere, _) => push_param(values, param, Param::Pending, None),
    }
}

fn push_param(
    values: &mut Values,
    param: &Parameter,
    value: Param<'_>,
    flags: Option<&Translation>,
) {
    let number = match value {
        Param::Int(value) => value.cast_unsigned(),
        Param::Uint(value) => value,
        _ => 0,
    };
    let number = flags.map_or(number, |flags| flags.to_portable(number));
    match (param.ty, value) {
        (Type::Signed | Type::Unsigned, _) => values.push_number(number, param.size),
        (Type::Text, Param::Text(text)) => values.push_text(&text[..text.len().min(MAX_TEXT)]),
        (Type::Text, _) => values.push_text(b"<NA>"),
        (Type::Bytes, Param::Text(bytes)) => values.push(&bytes[..bytes.len().min(MAX_TEXT)]),
        _ => values.push(&[]),
    }
}
