//! Kinds of events and their parameters.

mod changes;
mod file;
mod generic;
mod io;
mod memory;
mod network;
mod process;
mod row;
mod system;

use std::collections::HashMap;
use std::sync::LazyLock;

use abi::{FlagSet, Syscall};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

pub use changes::Changes;

use crate::suggest;

/// Falco's event category (`evt.category`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// `file`
    File,
    /// `net`
    Net,
    /// `process`
    Process,
    /// `user`
    User,
    /// `system`
    System,
    /// `signal`
    Signal,
    /// `IPC`
    Ipc,
    /// `memory`
    Memory,
    /// `wait`
    Wait,
    /// `sleep`
    Sleep,
    /// `time`
    Time,
    /// Reads from a descriptor: `file`, `net` or `ipc` by what the descriptor is.
    IoRead,
    /// Writes to a descriptor: `file`, `net` or `ipc` by what the descriptor is.
    IoWrite,
    /// Other work on a descriptor: `file`, `net` or `ipc` by what the descriptor is.
    IoOther,
    /// `internal`
    Internal,
    /// `other`
    Other,
}

/// Engines that deliver events of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineSupport {
    /// All engines.
    Every,
    /// Only engines whose events come from the kernel itself (eBPF and captures).
    Kernel,
    /// No engine.
    Nobody,
}

/// Format and comparison semantics of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum ParamType {
    /// Result: a number, or an errno name if negative.
    Errno,
    /// Descriptor number.
    Fd,
    /// Signed number.
    Int,
    /// Unsigned number.
    Uint,
    /// Unsigned number printed in hexadecimal.
    Hex,
    /// File mode, printed in octal.
    Mode,
    /// Bit set with named flags.
    Flags(&'static FlagSet),
    /// Enumeration with named values.
    Enum(&'static FlagSet),
    /// Path, made absolute when printed.
    Path,
    /// Text.
    Text,
    /// Several texts.
    Texts,
    /// Pid.
    Pid,
    /// User id.
    Uid,
    /// Group id.
    Gid,
    /// Signal number.
    Signal,
    /// Socket tuple of the event's descriptor.
    Tuple,
    /// Raw bytes.
    Bytes,
}

/// Source of a parameter in an engine that sees the call's registers. Argument positions count from 0 and are
/// those of the native call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamSource {
    /// The call's result.
    Result,
    /// A register argument.
    Register(u8),
    /// A path in the caller's memory.
    Path {
        /// Position of the pointer.
        path: u8,
        /// Position of the directory descriptor that the path starts at, for the `*at` calls.
        base: Option<u8>,
    },
    /// A NUL-terminated string that is not a path.
    Text(u8),
    /// A NULL-terminated array of strings.
    Texts(u8),
    /// An integer inside a structure that an argument points to.
    Field {
        /// Position of the pointer.
        arg: u8,
        /// Offset in bytes.
        offset: u8,
        /// Size in bytes: 4 or 8.
        size: u8,
    },
    /// Bytes of a buffer argument.
    Buffer {
        /// Position of the pointer.
        arg: u8,
        /// Position of the length.
        len: u8,
    },
    /// A constant that the call implies, e.g. the flags of `creat`.
    Constant(u64),
    /// The tuple of the event's descriptor.
    Tuple,
    /// A fact of the process that the event belongs to (the parameters of exec and clone that Falco copies
    /// from the process).
    Process,
    /// Read by no engine of this program: unknown except in captures that contain it.
    Nowhere,
}

impl ParamSource {
    /// Returns true if the value is in the caller's memory, where a read can fail.
    #[must_use]
    pub fn is_in_memory(self) -> bool {
        matches!(
            self,
            Self::Path { .. }
                | Self::Text(_)
                | Self::Texts(_)
                | Self::Field { .. }
                | Self::Buffer { .. }
        )
    }
}

/// Descriptor that an event concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorSource {
    /// No descriptor.
    None,
    /// The file that the call opens: its number is the result; name and flags are the parameters at these
    /// positions of the kind's parameter list.
    Opened {
        /// Index of the name parameter.
        name: u8,
        /// Index of the flags parameter.
        flags: u8,
    },
    /// The open descriptor in this register argument.
    Argument(u8),
    /// A copy of the descriptor in this register argument; its number is the result.
    Duplicated(u8),
    /// A new socket: its number is the result, domain and type are register arguments 0 and 1.
    CreatedSocket,
    /// A new descriptor of a fixed kind: its number is the result.
    Created(crate::DescriptorKind),
    /// The socket in register argument `fd`, with the address that arguments point to.
    Addressed {
        /// Position of the descriptor.
        fd: u8,
        /// Position of the pointer to the address.
        address: u8,
        /// Position of the address length.
        len: u8,
        /// Whether the address is the remote end (connect, sendto) or the local one (bind).
        remote: bool,
    },
    /// The socket in register argument `fd`. The remote end is in a `msghdr` (sendmsg), or in each message of
    /// an array of `mmsghdr` (sendmmsg).
    Message {
        /// Position of the descriptor.
        fd: u8,
        /// Position of the pointer to the `msghdr`.
        message: u8,
        /// Position of the number of messages, for calls that take several.
        count: Option<u8>,
    },
    /// The socket that the result names, accepted from the one in this register argument.
    Accepted(u8),
}

/// One parameter of an event kind.
#[derive(Clone, Copy, Debug)]
pub struct ParamSpec {
    /// Name, as in `evt.arg.NAME`.
    pub name: &'static str,
    /// Format of the parameter.
    pub ty: ParamType,
    /// Source of the parameter.
    pub source: ParamSource,
}

impl ParamSpec {
    /// Returns true if the parameter holds moved bytes that no engine reads: received bytes, and those of
    /// several buffers. A capture may contain them; in an engine's events they are unknown, not absent.
    #[must_use]
    pub fn is_moved_bytes(&self) -> bool {
        self.source == ParamSource::Nowhere
            && matches!(self.ty, ParamType::Bytes)
            && self.name == "data"
    }
}

/// Parameters with the paths that a successful call works on (`fs.path.*`); positions in the parameter list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathParams {
    /// No path.
    None,
    /// One path.
    One(u8),
    /// Two paths.
    Two {
        /// The path that something comes from; of a link, the link.
        source: u8,
        /// The path that something goes to; of a link, what it leads to.
        target: u8,
    },
    /// The name of the event's descriptor.
    Descriptor,
}

/// Direction in which a call moves data, as Falco counts it (`evt.io_dir`, `evt.is_io_read`, ...).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDirection {
    /// The call is neither input nor output.
    None,
    /// Input.
    Read,
    /// Output.
    Write,
    /// Both.
    Both,
}

impl IoDirection {
    /// Returns true for input.
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Both)
    }

    /// Returns true for output.
    pub(crate) fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Both)
    }
}

/// One row of the event table: everything that is said about a kind of event.
#[derive(Clone, Copy, Debug)]
pub struct EventSpec {
    /// `evt.type`.
    pub name: &'static str,
    /// `evt.category`.
    pub category: Category,
    /// Parameters in order.
    pub params: &'static [ParamSpec],
    /// Descriptor that the event concerns.
    pub descriptor: DescriptorSource,
    /// Facts about its caller that a successful call changes.
    pub changes: Changes,
    /// Paths that a successful call works on.
    pub paths: PathParams,
    /// Direction of the data that the call moves.
    pub io: IoDirection,
    /// Engines that deliver live events of this kind.
    pub engines: EngineSupport,
}

/// A kind of event: a row of the event table, or a call without a row, which only the system-call table
/// describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKind(u16);

/// Serializes as the index in the table, which only the same build of this program can read.
impl Serialize for EventKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EventKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let index = u16::deserialize(deserializer)?;
        match usize::from(index) < TABLE.specs.len() {
            true => Ok(Self(index)),
            false => Err(de::Error::custom("no such event type")),
        }
    }
}

impl EventKind {
    /// Returns the kind of a call's events.
    pub fn of_syscall(syscall: Syscall) -> Self {
        TABLE.of_syscall[syscall.index()]
    }

    /// Returns the kind of this name, as in `evt.type`.
    ///
    /// # Errors
    ///
    /// Fails if there is no such kind; the error contains the nearest name.
    pub fn from_name(name: &str) -> Result<Self, UnknownEvent> {
        TABLE
            .by_name
            .get(name)
            .copied()
            .ok_or_else(|| UnknownEvent {
                name: name.to_owned(),
                suggestion: suggest::nearest(name, TABLE.by_name.keys().copied())
                    .map(str::to_owned),
            })
    }

    /// Returns all kinds, those with a row first.
    pub fn all() -> impl ExactSizeIterator<Item = Self> + Clone {
        (0..u16::try_from(TABLE.specs.len()).expect("fewer kinds than 65536")).map(Self)
    }

    /// Returns the index in [`EventKind::all`], for tables by kind.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the name, as in `evt.type`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the engines that deliver live events of this kind.
    pub fn teller(self) -> EngineSupport {
        self.spec().engines
    }

    /// Returns the table's row for this kind.
    pub fn spec(self) -> &'static EventSpec {
        &TABLE.specs[self.index()]
    }

    /// Returns the position of the parameter of this name.
    pub fn param_index(self, name: &str) -> Option<usize> {
        self.spec()
            .params
            .iter()
            .position(|param| param.name == name)
    }

    /// Returns true if only the system-call table describes the kind, as with Falco's generic events.
    pub fn is_generic(self) -> bool {
        self.index() >= TABLE.rows
    }

    /// Returns true if events of this kind are system calls.
    pub fn is_syscall(self) -> bool {
        TABLE.is_syscall[self.index()]
    }

    /// Returns true if events of this kind have a result.
    pub fn has_result(self) -> bool {
        self.spec().has_result()
    }

    /// Returns the facts about its caller that a successful call of this kind changes.
    pub fn changes(self) -> Changes {
        self.spec().changes
    }
}

impl EventSpec {
    /// Returns true if one of the parameters is the result.
    pub fn has_result(&self) -> bool {
        self.params
            .iter()
            .any(|param| param.source == ParamSource::Result)
    }
}

/// Error: no event has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot find an event named `{name}`{}", suggest::hint(.suggestion.as_deref()))]
pub struct UnknownEvent {
    /// Name that was not found.
    pub name: String,
    /// Nearest existing name.
    pub suggestion: Option<String>,
}

struct Table {
    specs: Vec<EventSpec>,
    /// Number of `specs` that have a row of their own.
    rows: usize,
    by_name: HashMap<&'static str, EventKind>,
    of_syscall: Vec<EventKind>,
    is_syscall: Vec<bool>,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut specs: Vec<EventSpec> = [
        file::ROWS,
        io::ROWS,
        memory::ROWS,
        network::ROWS,
        process::ROWS,
        system::ROWS,
    ]
    .concat();
    let rows = specs.len();
    let position = |index: usize| EventKind(u16::try_from(index).expect("fewer than 65536 kinds"));
    let mut by_name: HashMap<&'static str, EventKind> = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| (spec.name, position(index)))
        .collect();
    let mut of_syscall = Vec::with_capacity(Syscall::COUNT);
    for syscall in Syscall::all() {
        let kind = *by_name.entry(syscall.event_name()).or_insert_with(|| {
            specs.push(generic::spec(syscall));
            position(specs.len() - 1)
        });
        of_syscall.push(kind);
    }
    let mut is_syscall = vec![false; specs.len()];
    of_syscall
        .iter()
        .for_each(|kind| is_syscall[kind.index()] = true);
    Table {
        specs,
        rows,
        by_name,
        of_syscall,
        is_syscall,
    }
});
