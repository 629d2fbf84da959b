//! Sigma's categories and fields, and what they are here.

use yaml::Location;

use super::Remark;

/// A category of log sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Category {
    /// Starts of programs.
    ProcessCreation,
    /// Files that are created or written.
    FileEvent,
    /// Connections by IP.
    NetworkConnection,
}

/// A field of this program that has the meaning of one of Sigma's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    /// What the field does not have as Sigma's has it; empty if nothing.
    pub(super) lost: &'static str,
}

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Text; letters are compared whatever their case unless the rule says `cased`.
    Text,
    /// Path of a file, which is another with letters of another case.
    Path,
    /// Path of a folder, which ends in a slash here and not in Sigma.
    Folder,
    /// Integer.
    Number,
    /// IP address, with the field for networks.
    Address {
        /// Name of the field that compares with networks.
        network: &'static str,
    },
    /// Name of a host, which is resolved to addresses.
    HostName,
    /// Whether this host made the connection.
    Direction,
}

const fn field(name: &'static str, shape: Shape) -> Field {
    Field {
        name,
        shape,
        lost: "",
    }
}

const PARENT_LINE: &str =
    "the command line of a parent begins with its name here, not with its argv[0]";
const HOST_NAME: &str =
    "host names are resolved to addresses when rules are loaded and from time to time";

/// Fields of the process that every category has.
const PROCESS: [(&str, Field); 3] = [
    ("Image", field("proc.exepath", Shape::Text)),
    ("ProcessId", field("proc.pid", Shape::Number)),
    ("User", field("user.name", Shape::Text)),
];

const PROCESS_CREATION: [(&str, Field); 5] = [
    ("CommandLine", field("proc.exeline", Shape::Text)),
    ("CurrentDirectory", field("proc.cwd", Shape::Folder)),
    (
        "ParentCommandLine",
        Field {
            name: "proc.pcmdline",
            shape: Shape::Text,
            lost: PARENT_LINE,
        },
    ),
    ("ParentImage", field("proc.pexepath", Shape::Text)),
    ("ParentProcessId", field("proc.ppid", Shape::Number)),
];

const FILE_EVENT: [(&str, Field); 1] = [("TargetFilename", field("fd.name", Shape::Path))];

const NETWORK_CONNECTION: [(&str, Field); 8] = [
    (
        "DestinationHostname",
        Field {
            name: "fd.sip.name",
            shape: Shape::HostName,
            lost: HOST_NAME,
        },
    ),
    (
        "DestinationIp",
        field("fd.sip", Shape::Address { network: "fd.snet" }),
    ),
    ("DestinationPort", field("fd.sport", Shape::Number)),
    ("Initiated", field("evt.type", Shape::Direction)),
    ("Protocol", field("fd.l4proto", Shape::Text)),
    (
        "SourceHostname",
        Field {
            name: "fd.cip.name",
            shape: Shape::HostName,
            lost: HOST_NAME,
        },
    ),
    (
        "SourceIp",
        field("fd.cip", Shape::Address { network: "fd.cnet" }),
    ),
    ("SourcePort", field("fd.cport", Shape::Number)),
];

/// Calls that make a connection.
pub(super) const CONNECTS: &str = "evt.type = connect";
/// Calls that take a connection.
pub(super) const ACCEPTS: &str = "evt.type in (accept, accept4)";

impl Category {
    const ALL: [(&'static str, Self); 3] = [
        ("process_creation", Self::ProcessCreation),
        ("file_event", Self::FileEvent),
        ("network_connection", Self::NetworkConnection),
    ];

    /// Returns the category that Sigma calls so.
    pub(super) fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        all.find(|(known, _)| *known == name)
            .map(|(_, category)| *category)
    }

    /// Returns the names of all categories, for messages.
    pub(super) fn names() -> String {
        Self::ALL.map(|(name, _)| format!("`{name}`")).join(", ")
    }

    /// Returns the condition that every event of the category meets.
    pub(super) fn condition(self) -> &'static str {
        match self {
            Self::ProcessCreation => "evt.type in (execve, execveat) and evt.rawres = 0",
            Self::FileEvent => {
                "(evt.type = creat or (evt.type in (open, openat, openat2, open_by_handle_at) \
                 and evt.is_open_write = true)) and fd.num >= 0 and fd.typechar = 'f'"
            }
            Self::NetworkConnection => {
                "evt.type in (connect, accept, accept4) and fd.typechar in (4, 6) \
                 and (evt.rawres >= 0 or evt.res = EINPROGRESS)"
            }
        }
    }

    /// Returns the end of a rule's output.
    pub(super) fn output(self) -> &'static str {
        match self {
            Self::ProcessCreation => {
                "(command=%proc.cmdline cwd=%proc.cwd process=%proc.name exepath=%proc.exepath parent=%proc.pname \
                 parent_command=%proc.pcmdline user=%user.name uid=%user.uid container=%container.id)"
            }
            Self::FileEvent => {
                "(file=%fd.name process=%proc.name command=%proc.cmdline exepath=%proc.exepath parent=%proc.pname \
                 user=%user.name uid=%user.uid container=%container.id)"
            }
            Self::NetworkConnection => {
                "(connection=%fd.name process=%proc.name command=%proc.cmdline exepath=%proc.exepath \
                 parent=%proc.pname user=%user.name uid=%user.uid container=%container.id)"
            }
        }
    }

    /// Returns the field that has the meaning of Sigma's field.
    pub(super) fn field(self, name: &str) -> Option<Field> {
        let mut all = PROCESS.iter().chain(self.own());
        all.find(|(known, _)| *known == name)
            .map(|(_, field)| *field)
    }

    /// Returns Sigma's names of the fields that are carried.
    pub(super) fn field_names(self) -> impl Iterator<Item = &'static str> {
        PROCESS.iter().chain(self.own()).map(|(name, _)| *name)
    }

    fn own(self) -> &'static [(&'static str, Field)] {
        match self {
            Self::ProcessCreation => &PROCESS_CREATION,
            Self::FileEvent => &FILE_EVENT,
            Self::NetworkConnection => &NETWORK_CONNECTION,
        }
    }

    /// Returns what every rule of the category loses.
    pub(super) fn lost(self, location: &Location) -> Vec<Remark> {
        let lost = match self {
            Self::ProcessCreation => return Vec::new(),
            Self::FileEvent => {
                "files that are moved or linked to their names: only opens for writing are seen"
            }
            Self::NetworkConnection => "datagrams that are sent without connect(2)",
        };
        vec![Remark::new(location, lost)]
    }
}
