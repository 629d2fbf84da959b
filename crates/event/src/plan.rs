//! The interest plan: which system calls matter, and under which register arguments.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use abi::{RegisterTest, Syscall};
use serde::{Deserialize, Serialize};

use crate::EventKind;

/// When an engine must learn more about a call than its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Need {
    /// Never.
    Never,
    /// Only if a rule is undecided without it.
    IfUndecided,
    /// For every such call: the call changes tracked state (exec).
    Always,
}

/// Why a call is in the plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Reason {
    /// A rule of this name asks for it.
    Rule(String),
    /// The fixed floor of rare security calls, with the floor's own reason.
    Floor(Cow<'static, str>),
    /// The engine keeps state by it.
    State(Cow<'static, str>),
}

/// What the plan says of one call.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CallPlan {
    /// The call matters if all tests of one of these groups hold. One empty group: always.
    /// Tests are on the x86-64/aarch64 argument positions of the call.
    pub any_of: Vec<Vec<RegisterTest>>,
    /// Whether a string argument (path, sockaddr, argv) can decide a rule.
    pub strings: bool,
    /// Whether the result is needed.
    pub result: Need,
    /// Who asks, for `rules explain`.
    pub reasons: Vec<Reason>,
}

/// An over-approximation of what the loaded rules can match: what it rejects, no rule accepts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Plan {
    /// By call.
    pub calls: BTreeMap<Syscall, CallPlan>,
    /// Whether the engine has to notice a `dup` that makes descriptor 0, 1 or 2.
    pub stdio: StdioWatch,
    /// By call: what each rule asks for beyond registers, for engines that can tell in the kernel. A
    /// call that has no entry is judged by [`Plan::calls`] alone; one that has is of interest only if
    /// one of these is satisfied.
    pub interests: BTreeMap<Syscall, Vec<Interest>>,
    /// Whether a rule asks at other events than an exec for the file that the program came from:
    /// then it has to be looked at when it is exec'd, because it may be gone or changed later.
    pub executable_file: bool,
    /// Whether a rule asks for the environment of a program.
    pub environment: bool,
    /// Kinds of events at which a rule asks what descriptors the process has open.
    pub descriptors: BTreeSet<EventKind>,
    /// Command names that a rule compares a process with, its own or that of a relative. A process that
    /// gives itself one of them may want to be taken for another program.
    pub names: BTreeSet<Vec<u8>>,
}

/// What one rule asks of one call, over-approximated: where it says no, the rule does not match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Interest {
    /// As [`CallPlan::any_of`].
    pub any_of: Vec<Vec<RegisterTest>>,
    /// Whether a call that failed can matter.
    pub failed: bool,
    /// Whether one that succeeded can.
    pub succeeded: bool,
    /// The result of one that succeeded has to be one of these, all below 64; `None`: any.
    pub results: Option<BTreeSet<u8>>,
    /// The error of one that failed has to be one of these, all below 128; `None`: any.
    pub errors: Option<BTreeSet<u8>>,
    /// Of calls that open a file: one of these has to hold for its path. Of others that take paths: for
    /// one of them, as it was passed or made absolute. `None`: any path.
    pub paths: Option<BTreeSet<PathPattern>>,
    /// The path as it was passed has to have `..` in it.
    pub dotted: bool,
    /// The name of the process has to be one of these; `None`: any name.
    pub names: Option<BTreeSet<Vec<u8>>>,
    /// Of calls about a socket: one end of the connection has to have one of these ports. `None`: any.
    pub ports: Option<BTreeSet<u16>>,
    /// One end has to be in one of these networks (address, bits); `None`: any.
    pub networks: Option<BTreeSet<(IpAddr, u8)>>,
    /// Of calls about a descriptor: it has to be a socket of one of these families; `None`: anything.
    pub families: Option<BTreeSet<SocketFamily>>,
    /// Whether the process has to be in a container, or outside of any; `None`: both.
    pub contained: Option<bool>,
}

impl Interest {
    /// In every call with these registers.
    pub fn in_any(any_of: Vec<Vec<RegisterTest>>) -> Self {
        Self {
            any_of,
            failed: true,
            succeeded: true,
            ..Self::default()
        }
    }
}

/// Families of sockets that rules can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub enum SocketFamily {
    /// Addresses of IPv4, whatever the family of the socket.
    Ipv4,
    /// Addresses of IPv6.
    Ipv6,
    /// Paths and names.
    Unix,
}

/// What a path can be compared with.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub enum PathPattern {
    /// It is this.
    Exact(Vec<u8>),
    /// It begins with this.
    Prefix(Vec<u8>),
    /// It ends with this.
    Suffix(Vec<u8>),
    /// It has this in it.
    Contains(Vec<u8>),
}

/// Which `dup` that makes descriptor 0, 1 or 2 matters. It can make one only while one of them is
/// closed, so `dup` itself is not planned: the calls that close one of them are, and from then on
/// the engine has to watch every `dup` of that process until all three are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum StdioWatch {
    /// None.
    #[default]
    Off,
    /// One that duplicates a socket. The calls that make one are planned too: a process without
    /// sockets need not be watched.
    Sockets,
    /// Every one.
    Any,
}
