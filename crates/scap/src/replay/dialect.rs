//! Mapping of a capture's event types: the kind of each, the source of the kind's parameters, and
//! the effect on the state.

use std::collections::HashMap;

use bumpalo::Bump;
use event::{
    DescriptorKind, DescriptorSource, EventKind, Opening, OpeningParams, Param, ParamSource,
    ParamType,
};

use super::decode::{Convert, Slot, as_int};
use crate::bytes::unsigned;
use crate::flags::Translation;
use crate::read::{Params, Record, Skips, Starts};
use crate::table::{EventType, Parameter, Type};
use crate::{Error, note};

/// Handling of an event type.
pub(crate) enum Row {
    /// The enter event of a call whose exit event is incomplete.
    Enter(&'static EventType),
    /// A single event, or the exit event of a call.
    Exit(Box<Exit>),
    /// A call without an event type of its own: the first parameter is its number.
    Generic,
    /// Information of the capturing program about the system.
    Meta(Meta),
    /// An event that a plugin made.
    Plugin(&'static EventType),
    /// Ignored.
    Skip,
    /// A type that is newer than this program.
    Unknown,
}

impl Row {
    #[inline]
    pub(crate) fn is_skipped(&self) -> bool {
        match self {
            Self::Skip => true,
            Self::Exit(exit) => !exit.is_wanted && exit.action == Action::None,
            Self::Enter(_) | Self::Generic | Self::Meta(_) | Self::Plugin(_) | Self::Unknown => {
                false
            }
        }
    }
}

/// An exit event.
pub(crate) struct Exit {
    pub(crate) ty: &'static EventType,
    pub(crate) kind: EventKind,
    pub(crate) action: Action,
    /// The evaluator uses the event.
    pub(crate) is_wanted: bool,
    /// Sources, by parameter of the kind.
    pub(crate) slots: Vec<Slot>,
    /// Index of the result among the parameters.
    pub(crate) result: Option<usize>,
    /// Index of the descriptor number among the parameters.
    pub(crate) number: Option<usize>,
    /// Index of the directory descriptor from which the opened path starts.
    pub(crate) base: Option<usize>,
    /// Parameters of an opening that do not depend on the process.
    opening: Option<OpeningParams>,
    /// Events with the same bytes open the same file: the result is the first parameter, and the
    /// enter event adds nothing.
    pub(crate) is_repeatable: bool,
    /// Indices of the device and the inode of an opened file.
    pub(crate) file: [Option<usize>; 2],
    /// Source of the connection's ends, or of an address, in the exit or the enter event.
    pub(crate) ends: Slot,
    pub(crate) address: Slot,
}

/// Information of the capturing program about the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meta {
    /// A container, in an event type of its own.
    Container,
    /// Information whose type is named in the event.
    Asynchronous,
    User,
    Group,
    /// This program's note about a process.
    Note,
}

/// Effect of an event on the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    None,
    Accept,
    Bind,
    ChangeDirectory,
    Clone,
    Close,
    CloseRange,
    Connect,
    Create(DescriptorKind),
    Duplicate,
    Exec,
    Fcntl,
    Open,
    Pair(DescriptorKind),
    ProcessExit,
    ProcessName,
    Receive,
    Send,
    Session,
    SetIds,
    Socket,
}

impl Action {
    /// Returns true if the effect concerns the process and not its descriptors.
    pub(crate) fn is_about_process(self) -> bool {
        matches!(
            self,
            Self::ChangeDirectory
                | Self::Clone
                | Self::Exec
                | Self::ProcessName
                | Self::Session
                | Self::SetIds
        )
    }

    fn of(kind: EventKind) -> Self {
        match (kind.name(), kind.spec().descriptor) {
            (_, DescriptorSource::Opened { .. }) => Self::Open,
            (_, DescriptorSource::Duplicated(_)) => Self::Duplicate,
            (_, DescriptorSource::CreatedSocket) => Self::Socket,
            (_, DescriptorSource::Accepted(_)) => Self::Accept,
            ("pipe" | "pipe2", _) => Self::Pair(DescriptorKind::Pipe),
            ("socketpair", _) => Self::Pair(DescriptorKind::Unix),
            (_, DescriptorSource::Created(kind)) => Self::Create(kind),
            ("bind", _) => Self::Bind,
            ("connect", _) => Self::Connect,
            ("sendto" | "send" | "sendmsg" | "sendmmsg", _) => Self::Send,
            ("recvfrom" | "recv" | "recvmsg" | "recvmmsg", _) => Self::Receive,
            ("chdir" | "fchdir", _) => Self::ChangeDirectory,
            ("clone" | "clone3" | "fork" | "vfork", _) => Self::Clone,
            ("close", _) => Self::Close,
            ("close_range", _) => Self::CloseRange,
            ("execve" | "execveat", _) => Self::Exec,
            ("fcntl", _) => Self::Fcntl,
            ("procexit", _) => Self::ProcessExit,
            ("prctl", _) => Self::ProcessName,
            ("setsid" | "setpgid", _) => Self::Session,
            (
                "setuid" | "setreuid" | "setresuid" | "setgid" | "setregid" | "setresgid"
                | "capset",
                _,
            ) => Self::SetIds,
            _ => Self::None,
        }
    }
}

/// Handling of each event type, by number.
pub(crate) struct Dialect {
    rows: Vec<Row>,
    /// Ignored types.
    pub(crate) skips: Skips,
    /// Calls without an event type, by number.
    generic: Vec<Option<Box<Exit>>>,
    /// Calls without a number, by name.
    named: HashMap<&'static str, Box<Exit>>,
}

impl Dialect {
    /// Creates the mapping. `concerns` returns true for kinds of events that are shown.
    pub(crate) fn new(concerns: impl Fn(EventKind) -> bool) -> Self {
        let kinds: Kinds = EventKind::all().map(|kind| (kind.name(), kind)).collect();
        let codes = EventType::all().map(|ty| usize::from(ty.code)).max();
        let mut rows: Vec<Row> = Vec::new();
        rows.resize_with(codes.map_or(0, |last| last + 1), || Row::Unknown);
        for ty in EventType::all() {
            rows[usize::from(ty.code)] = row(ty, &kinds, &concerns);
        }
        keep_enters(&mut rows);
        let is_skipped = |code| rows.get(usize::from(code)).is_some_and(Row::is_skipped);
        Self {
            skips: Skips::new(is_skipped),
            rows,
            generic: generic(&kinds, &concerns),
            named: named(&kinds, &concerns),
        }
    }

    #[inline]
    pub(crate) fn row(&self, code: u16) -> &Row {
        self.rows.get(usize::from(code)).unwrap_or(&Row::Unknown)
    }

    /// Returns the exit of a call without an event type. `noted` is this program's note about it.
    #[cold]
    pub(crate) fn untyped(
        &self,
        record: &Record<'_>,
        noted: Option<&note::Call>,
    ) -> Result<Option<&Exit>, Error> {
        let mut starts = Starts::default();
        let params = record.params(&mut starts)?;
        if let Some(name) = noted.and_then(note::Call::kind) {
            return Ok(self.named.get(name).map(|exit| &**exit));
        }
        let number = params.get(0).and_then(unsigned);
        let number = number.and_then(|number| usize::try_from(number).ok());
        Ok(number.and_then(|number| self.generic.get(number)?.as_deref()))
    }
}

/// Event kinds by name. Looking up an unknown name would compute a suggestion, which is slow.
type Kinds = HashMap<&'static str, EventKind>;

fn row(ty: &'static EventType, kinds: &Kinds, concerns: &impl Fn(EventKind) -> bool) -> Row {
    match ty.name {
        "asyncevent" => return Row::Meta(Meta::Asynchronous),
        "container" => return Row::Meta(Meta::Container),
        "useradded" => return Row::Meta(Meta::User),
        "groupadded" => return Row::Meta(Meta::Group),
        "notification" => return Row::Meta(Meta::Note),
        "pluginevent" => return Row::Plugin(ty),
        "syscall" if ty.is_enter => return Row::Skip,
        "syscall" => return Row::Generic,
        _ if ty.is_enter => return Row::Skip,
        _ => {}
    }
    match kinds.get(ty.name) {
        Some(kind) => Row::Exit(Box::new(exit(ty, *kind, concerns(*kind)))),
        None => Row::Skip,
    }
}

/// Marks enter events to be kept if their exit event is used and takes a parameter from them.
fn keep_enters(rows: &mut [Row]) {
    for at in (0..rows.len().saturating_sub(1)).step_by(2) {
        let keeps = match &rows[at + 1] {
            Row::Exit(exit) => exit.takes_beginning(),
            _ => false,
        };
        let enter = u16::try_from(at).ok().and_then(EventType::of);
        if let (true, Row::Skip, Some(enter)) = (keeps, &rows[at], enter) {
            rows[at] = Row::Enter(enter);
        }
    }
}

impl Exit {
    /// Returns the result of the call.
    #[inline]
    pub(crate) fn result(
        &self,
        exit: &Params<'_>,
        enter: &Params<'_>,
        arena: &Bump,
    ) -> Option<i64> {
        as_int(&self.slots[self.result?].param(exit, enter, arena))
    }

    /// Returns an opening as the part of the event that does not depend on the process.
    #[inline]
    pub(crate) fn opening<'b>(
        &self,
        params: &[Param<'b>],
        result: Option<i64>,
    ) -> Option<Opening<'b>> {
        let at = self.opening?;
        let Param::Text(name) = params.get(at.name)? else {
            return None;
        };
        let mode = at.mode.and_then(|at| params.get(at));
        Opening::new(self.kind, name, params.get(at.flags), mode, result?)
    }

    /// Returns the name of the opened file.
    pub(crate) fn opened_name<'b>(
        &self,
        exit: &Params<'b>,
        enter: &Params<'b>,
        arena: &'b Bump,
    ) -> Option<&'b [u8]> {
        match self.slots[self.opening?.name].param(exit, enter, arena) {
            Param::Text(name) => Some(name),
            _ => None,
        }
    }

    /// Returns true if a parameter may be in the enter event only.
    fn lacks_beginning(&self) -> bool {
        // The exit parameters of sysdig 0.29 are in every capture. Later versions appended those
        // that the enter event contained before.
        let always = self.ty.in_029.unwrap_or(0);
        let is_there = |at: Option<usize>| at.is_some_and(|at| at < always);
        let mut slots = self.slots.iter().chain([&self.ends, &self.address]);
        slots.any(|slot| slot.enter.is_some() && !is_there(slot.exit))
    }

    /// Returns true if a parameter is taken from the enter event.
    fn takes_beginning(&self) -> bool {
        self.lacks_beginning() && (self.is_wanted || self.action != Action::None)
    }

    fn repeats(&self) -> bool {
        let has_result_first = self.result.is_some_and(|at| self.slots[at].exit == Some(0))
            && matches!(self.ty.params.first(), Some(first) if first.ty == Type::Signed && first.size == 8);
        self.action == Action::Open
            && self.opening.is_some()
            && has_result_first
            && !self.ty.is_large
            && !self.lacks_beginning()
    }
}

fn generic(kinds: &Kinds, concerns: &impl Fn(EventKind) -> bool) -> Vec<Option<Box<Exit>>> {
    /// Upper bound on call numbers.
    const CALLS: u16 = 1024;
    let ty = EventType::of(1).filter(|ty| ty.name == "syscall");
    let row = |call: u16| {
        let kind = *kinds.get(crate::table::call_name(call)?)?;
        let mut exit = exit(ty?, kind, concerns(kind));
        exit.action = Action::None;
        Some(Box::new(exit))
    };
    (0..CALLS).map(row).collect()
}

fn named(kinds: &Kinds, concerns: &impl Fn(EventKind) -> bool) -> HashMap<&'static str, Box<Exit>> {
    let Some(ty) = EventType::of(1).filter(|ty| ty.name == "syscall") else {
        return HashMap::new();
    };
    let has_none = |name: &str| crate::table::call_number(name).is_none();
    let nameless = kinds
        .iter()
        .filter(|(name, kind)| kind.is_syscall() && has_none(name));
    let row = |(name, kind): (&&'static str, &EventKind)| {
        let mut exit = exit(ty, *kind, concerns(*kind));
        exit.action = Action::None;
        (*name, Box::new(exit))
    };
    nameless.map(row).collect()
}

fn exit(ty: &'static EventType, kind: EventKind, is_wanted: bool) -> Exit {
    // Enter and exit have adjacent numbers.
    let enter = ty.code.checked_sub(1).and_then(EventType::of);
    let enter = enter.filter(|enter| enter.is_enter && enter.name == ty.name);
    let spec = kind.spec();
    let slot = |param: &event::ParamSpec| slot(param, ty, enter);
    let ends = |wanted: Type| Slot {
        exit: ty.params.iter().position(|param| param.ty == wanted),
        enter: enter.and_then(|enter| enter.params.iter().position(|param| param.ty == wanted)),
        convert: Convert::Bytes,
    };
    let result = |param: &event::ParamSpec| param.source == ParamSource::Result;
    let at = |name: &str| kind.param_index(name);
    let mut exit = Exit {
        ty,
        kind,
        action: Action::of(kind),
        is_wanted,
        slots: spec.params.iter().map(slot).collect(),
        result: spec.params.iter().position(result),
        number: number(kind),
        base: base(kind),
        opening: OpeningParams::of(kind),
        is_repeatable: false,
        file: [at("dev"), at("ino")],
        ends: ends(Type::Tuple),
        address: ends(Type::Address),
    };
    exit.is_repeatable = exit.repeats();
    exit
}

/// Returns the index of the parameter with the event's descriptor number.
fn number(kind: EventKind) -> Option<usize> {
    let spec = kind.spec();
    let (DescriptorSource::Argument(register)
    | DescriptorSource::Duplicated(register)
    | DescriptorSource::Addressed { fd: register, .. }
    | DescriptorSource::Message { fd: register, .. }) = spec.descriptor
    else {
        return None;
    };
    let holds = |param: &event::ParamSpec| param.source == ParamSource::Register(register);
    spec.params.iter().position(holds)
}

fn base(kind: EventKind) -> Option<usize> {
    let spec = kind.spec();
    let DescriptorSource::Opened { name, .. } = spec.descriptor else {
        return None;
    };
    let ParamSource::Path {
        base: Some(register),
        ..
    } = spec.params.get(usize::from(name))?.source
    else {
        return None;
    };
    let holds = |param: &event::ParamSpec| param.source == ParamSource::Register(register);
    spec.params.iter().position(holds)
}

/// Returns the source of a parameter of a kind.
fn slot(
    param: &event::ParamSpec,
    ty: &'static EventType,
    enter: Option<&'static EventType>,
) -> Slot {
    // Facts about the process come from the state, which these events have changed.
    let is_state = param.source == ParamSource::Process || param.name == "cgroups";
    if is_state {
        return Slot::NOWHERE;
    }
    let exit = ty.param(param.name);
    let enter_at = enter.and_then(|enter| enter.param(param.name));
    let of_exit = exit.map(|at| &ty.params[at]);
    let of_enter = enter.zip(enter_at).map(|(enter, at)| &enter.params[at]);
    let convert = of_exit
        .or(of_enter)
        .map_or(Convert::Nothing, |found| convert(param, found));
    Slot {
        exit,
        enter: enter_at,
        convert,
    }
}

fn convert(param: &event::ParamSpec, found: &Parameter) -> Convert {
    match (param.ty, found.ty, found.flags) {
        (ParamType::Flags(set) | ParamType::Enum(set), Type::Unsigned, Some(flags)) => {
            Convert::Flags(Translation::between(flags, set))
        }
        (_, Type::Tuple, _) => Convert::Tuple,
        (_, Type::Address, _) => Convert::Address,
        (_, Type::DescriptorList, _) => Convert::DescriptorList,
        (_, Type::Dynamic, _) => Convert::Dynamic,
        (_, Type::Text, _) => Convert::Text,
        (_, Type::Bytes, _) => Convert::Bytes,
        (_, Type::Signed, _) => Convert::Signed,
        (ParamType::Int | ParamType::Fd | ParamType::Pid | ParamType::Errno, Type::Unsigned, _) => {
            Convert::UnsignedAsInt
        }
        (_, Type::Unsigned, _) => Convert::Unsigned,
    }
}
