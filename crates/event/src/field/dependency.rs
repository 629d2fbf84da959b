//! The stage at which a field becomes known.

use super::{Argument, Cost};
use crate::{Category, DescriptorSource, EventKind, ParamSource, ParamType, Stage};

/// Data that a field is computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Facts of every event that never change: number, time, processor.
    Event,
    /// The kind of event alone.
    Kind,
    /// The kind and, for input and output, the kind of the descriptor.
    Category,
    /// One parameter as text.
    Param,
    /// One parameter as a value.
    RawParam,
    /// All parameters as text.
    Params,
    /// The result.
    Result,
    /// The flags of a call that opens a file.
    OpenFlags,
    /// The flags and the mode of a call that opens a file.
    OpenMode,
    /// The flags and the result of a call that opens a file.
    OpenResult,
    /// A path parameter, made absolute.
    Path,
    /// A path parameter of a call that succeeded.
    SuccessfulPath,
    /// The bytes that a call moves.
    Buffer,
    /// The number of bytes that a call moved.
    Moved,
    /// The descriptor that the event concerns.
    Descriptor(DescriptorFact),
    /// The name of the descriptor and the container of the caller.
    NameInContainer,
    /// The calling process.
    Process(ProcessFact),
    /// A plugin, which supplies the values with the event.
    Plugin,
    /// No data: the answer is constant.
    Nowhere,
}

/// Facts about the event's descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorFact {
    /// Descriptor number.
    Number,
    /// `fd.typechar`.
    TypeChar,
    /// Kind of the object.
    Kind,
    /// Name in Falco's format.
    Name,
    /// File name, only for files.
    FileName,
    /// Transport protocol of a socket.
    Transport,
    /// The server's end of a connection.
    ServerEnd,
    /// The client's end of a connection.
    ClientEnd,
    /// The local end.
    LocalEnd,
    /// The remote end.
    RemoteEnd,
    /// Both ends.
    BothEnds,
    /// Whether the socket serves, is connected, or changed its name.
    State,
    /// Device and inode.
    Inode,
}

/// Facts about the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFact {
    /// Pid, start and parent, which no call changes.
    Identity,
    /// Login user, which is set once for a session.
    Login,
    /// Thread id.
    Thread,
    /// Program and arguments.
    Image,
    /// Environment at the start of the program.
    Environment,
    /// The file that the program came from.
    ExecutableFile,
    /// Command name at exec.
    Comm,
    /// Current name of the thread.
    ThreadName,
    /// Command name and arguments.
    CommandLine,
    /// User, group, capabilities.
    Credentials,
    /// Process group, session, terminal.
    Session,
    /// Ids inside the pid namespace.
    Namespaced,
    /// Leader of the session or process group.
    Leader,
    /// Working directory.
    Directory,
    /// Threads and memory.
    Resources,
    /// Container and pod.
    Container,
    /// Command name of an ancestor; at index 0, of the caller.
    AncestorComm,
    /// Program or arguments of an ancestor; at index 0, of the caller.
    AncestorImage,
    /// Pid of an ancestor.
    AncestorIdentity,
    /// Open descriptors.
    Descriptors,
}

impl Source {
    /// Returns the cost of fields that are computed from this source.
    pub(super) const fn cost(self) -> Cost {
        match self {
            Self::Event
            | Self::Kind
            | Self::Category
            | Self::RawParam
            | Self::Result
            | Self::OpenFlags
            | Self::OpenMode
            | Self::OpenResult
            | Self::Moved
            | Self::Plugin
            | Self::Nowhere => Cost::Free,
            Self::Param | Self::Params | Self::Path | Self::SuccessfulPath | Self::Buffer => {
                Cost::Text
            }
            Self::Descriptor(DescriptorFact::Name | DescriptorFact::FileName) => Cost::Text,
            Self::Descriptor(_) => Cost::Free,
            Self::Process(ProcessFact::Identity | ProcessFact::Thread) => Cost::Free,
            Self::NameInContainer | Self::Process(ProcessFact::Container) => Cost::Container,
            Self::Process(
                ProcessFact::Leader
                | ProcessFact::AncestorComm
                | ProcessFact::AncestorImage
                | ProcessFact::AncestorIdentity
                | ProcessFact::Descriptors,
            ) => Cost::Far,
            Self::Process(ProcessFact::Image) => Cost::Remembered,
            Self::Process(ProcessFact::ExecutableFile) => Cost::File,
            Self::Process(_) => Cost::Process,
        }
    }
}

/// Returns the earliest stage at which a field computed from `source` can be known for events of `kind`.
pub(super) fn stage(source: Source, argument: &Argument, kind: EventKind) -> Stage {
    match source {
        Source::Event | Source::Kind | Source::Plugin | Source::Nowhere => Stage::Registers,
        Source::Category => match kind.spec().category {
            Category::IoRead | Category::IoWrite | Category::IoOther => {
                descriptor_stage(DescriptorFact::Kind, kind)
            }
            _ => Stage::Registers,
        },
        Source::Param => argument
            .param_index(kind)
            .map_or(Stage::Registers, |at| text_stage(kind, at)),
        Source::RawParam => argument
            .param_index(kind)
            .map_or(Stage::Registers, |at| param_stage(kind, at)),
        Source::Params => {
            let params = 0..kind.spec().params.len();
            params
                .map(|at| text_stage(kind, at))
                .max()
                .unwrap_or(Stage::Registers)
        }
        Source::Result => result_stage(kind),
        Source::OpenFlags => open_stage(kind, &["flags"]),
        Source::OpenMode => open_stage(kind, &["flags", "mode"]),
        Source::OpenResult => match kind.spec().descriptor {
            DescriptorSource::Opened { .. } => Stage::Exit,
            _ => Stage::Registers,
        },
        Source::Path => path_stage(kind),
        Source::SuccessfulPath if super::fs_path::concerns(kind) => Stage::Exit,
        Source::SuccessfulPath => Stage::Registers,
        Source::Buffer => {
            super::param::buffer(kind).map_or(Stage::Registers, |at| param_stage(kind, at))
        }
        Source::Moved => match kind.spec().category {
            Category::IoRead | Category::IoWrite | Category::IoOther => result_stage(kind),
            _ => Stage::Registers,
        },
        Source::Descriptor(fact) => descriptor_stage(fact, kind),
        Source::NameInContainer => descriptor_stage(DescriptorFact::FileName, kind)
            .max(process_stage(ProcessFact::Container, argument, kind)),
        Source::Process(fact) => process_stage(fact, argument, kind),
    }
}

fn result_stage(kind: EventKind) -> Stage {
    if kind.has_result() {
        Stage::Exit
    } else {
        Stage::Registers
    }
}

/// Returns the stage at which the value of a parameter is known.
fn param_stage(kind: EventKind, at: usize) -> Stage {
    match kind.spec().params[at].source {
        ParamSource::Result | ParamSource::Process => Stage::Exit,
        ParamSource::Register(_) | ParamSource::Constant(_) => Stage::Registers,
        ParamSource::Path { .. }
        | ParamSource::Text(_)
        | ParamSource::Texts(_)
        | ParamSource::Field { .. }
        | ParamSource::Buffer { .. } => Stage::Strings,
        ParamSource::Tuple => descriptor_stage(DescriptorFact::BothEnds, kind),
        // Engines that record such parameters have them when the call has returned.
        ParamSource::Nowhere => Stage::Exit,
    }
}

/// Returns the stage at which a parameter can be formatted. Names of descriptors, processes and users are
/// known later than their numbers.
fn text_stage(kind: EventKind, at: usize) -> Stage {
    let own = param_stage(kind, at);
    let words = match kind.spec().params[at].ty {
        ParamType::Fd => descriptor_stage(DescriptorFact::Name, kind),
        ParamType::Tuple => descriptor_stage(DescriptorFact::Name, kind),
        ParamType::Pid | ParamType::Uid | ParamType::Gid => Stage::Entry,
        _ => Stage::Registers,
    };
    own.max(words)
}

fn open_stage(kind: EventKind, params: &[&str]) -> Stage {
    let DescriptorSource::Opened { .. } = kind.spec().descriptor else {
        return Stage::Registers;
    };
    let positions = params.iter().filter_map(|name| kind.param_index(name));
    positions
        .map(|at| param_stage(kind, at))
        .max()
        .unwrap_or(Stage::Registers)
}

fn path_stage(kind: EventKind) -> Stage {
    let has_path = kind
        .spec()
        .params
        .iter()
        .any(|param| matches!(param.source, ParamSource::Path { .. }));
    if has_path {
        Stage::Strings
    } else {
        Stage::Registers
    }
}

fn descriptor_stage(fact: DescriptorFact, kind: EventKind) -> Stage {
    use DescriptorFact as Fact;
    let spec = kind.spec();
    match (spec.descriptor, fact) {
        (DescriptorSource::None, _) => Stage::Registers,
        (DescriptorSource::Opened { flags, .. }, Fact::TypeChar) => {
            param_stage(kind, usize::from(flags))
        }
        (DescriptorSource::Opened { name, flags }, Fact::Name | Fact::FileName) => {
            param_stage(kind, usize::from(name)).max(match fact {
                Fact::FileName => param_stage(kind, usize::from(flags)),
                _ => Stage::Registers,
            })
        }
        // Files have no connection ends.
        (
            DescriptorSource::Opened { .. },
            Fact::Transport
            | Fact::ServerEnd
            | Fact::ClientEnd
            | Fact::LocalEnd
            | Fact::RemoteEnd
            | Fact::BothEnds,
        ) => Stage::Registers,
        (
            DescriptorSource::Argument(_)
            | DescriptorSource::Addressed { .. }
            | DescriptorSource::Message { .. },
            Fact::Number,
        ) => Stage::Registers,
        (DescriptorSource::Duplicated(_), Fact::Number) => Stage::Exit,
        (DescriptorSource::Argument(_) | DescriptorSource::Duplicated(_), _) => Stage::Descriptor,
        (
            DescriptorSource::Addressed { .. } | DescriptorSource::Message { .. },
            Fact::Kind | Fact::TypeChar | Fact::Transport | Fact::Inode,
        ) => Stage::Descriptor,
        // The caller of connect is the client, and the passed address is the server's.
        (DescriptorSource::Addressed { remote: true, .. }, Fact::ServerEnd | Fact::RemoteEnd)
            if kind.name() == "connect" =>
        {
            Stage::Strings
        }
        (
            DescriptorSource::Addressed { remote: true, .. } | DescriptorSource::Message { .. },
            Fact::RemoteEnd | Fact::ServerEnd,
        ) => Stage::Descriptor,
        _ => Stage::Exit,
    }
}

fn process_stage(fact: ProcessFact, argument: &Argument, kind: EventKind) -> Stage {
    let changes = kind.changes();
    let own = argument.index() == Some(0);
    // The kernel reports credentials and namespaced ids together, and sessions and resources together
    // (`/proc/PID/status`, `/proc/PID/stat`), and an engine caches a report for the rest of the event: an
    // early query for one fact would leave the others outdated.
    let status = changes.credentials || changes.namespaces || changes.session || changes.thread;
    let changed = match fact {
        ProcessFact::Identity | ProcessFact::Login | ProcessFact::AncestorIdentity => false,
        ProcessFact::Thread => changes.thread,
        ProcessFact::Image | ProcessFact::Environment | ProcessFact::ExecutableFile => {
            changes.image
        }
        ProcessFact::Comm => changes.comm,
        ProcessFact::ThreadName => changes.thread_name,
        ProcessFact::CommandLine => changes.comm || changes.image,
        ProcessFact::Credentials | ProcessFact::Namespaced => status,
        ProcessFact::Session | ProcessFact::Resources => changes.session,
        ProcessFact::Leader => changes.session || changes.comm || changes.image,
        ProcessFact::Directory => changes.directory,
        ProcessFact::Container => changes.namespaces,
        ProcessFact::AncestorComm => own && changes.comm,
        ProcessFact::AncestorImage => own && (changes.image || changes.comm),
        // Almost every call that produces an event creates or closes a descriptor.
        ProcessFact::Descriptors => true,
    };
    if changed { Stage::Exit } else { Stage::Entry }
}
