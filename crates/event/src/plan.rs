//! The interest plan: the system calls that matter to the rules, and the register arguments they matter with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use abi::{RegisterTest, Syscall};
use serde::{Deserialize, Serialize};

use crate::EventKind;

/// Need for data about a call beyond its registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Need {
    /// Not needed.
    Never,
    /// Needed only if a rule is undecided without it.
    IfUndecided,
    /// Needed for every such call: the call changes tracked state (exec).
    Always,
}

/// Reason why a call is in the plan.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Reason {
    /// A rule of this name matches on the call.
    Rule(String),
    /// The call is one of the always-trapped security calls; holds the reason.
    Floor(Cow<'static, str>),
    /// The engine needs the call to keep its state; holds the reason.
    State(Cow<'static, str>),
}

/// The plan for one call.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct CallPlan {
    /// Register tests: the call matters if all tests of one group hold. One empty group: always. Tests are on
    /// the x86-64/aarch64 argument positions of the call.
    pub any_of: Vec<Vec<RegisterTest>>,
    /// Whether a string argument (path, sockaddr, argv) can decide a rule.
    pub strings: bool,
    /// Need for the result.
    pub result: Need,
    /// Reasons why the call is planned, for `rules explain`.
    pub reasons: Vec<Reason>,
}

/// An over-approximation of the events that the loaded rules can match: an event that the plan rejects
/// matches no rule.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Plan {
    /// Plans by call.
    pub calls: BTreeMap<Syscall, CallPlan>,
    /// Whether the engine must watch for a `dup` that creates descriptor 0, 1 or 2.
    pub stdio: StdioWatch,
    /// Conditions beyond registers by call, one for each rule, for engines that can test them in the kernel.
    /// A call without an entry is subject to [`Plan::calls`] alone; a call with an entry is of interest only
    /// if one of its interests is satisfied.
    pub interests: BTreeMap<Syscall, Vec<Interest>>,
    /// Whether a rule uses the program's file at events other than an exec: the engine must then inspect the
    /// file at exec, because it may be gone or changed later.
    pub executable_file: bool,
    /// Whether a rule uses a program's environment.
    pub environment: bool,
    /// Kinds of events at which a rule uses the process's open descriptors.
    pub descriptors: BTreeSet<EventKind>,
    /// Command names that a rule compares a process, or a relative of it, with. A process that takes one of
    /// these names may be impersonating another program.
    pub names: BTreeSet<Vec<u8>>,
}

/// Condition of one rule on one call, over-approximated: if it does not hold, the rule does not match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Interest {
    /// Register tests, as in [`CallPlan::any_of`].
    pub any_of: Vec<Vec<RegisterTest>>,
    /// Whether a failed call can matter.
    pub failed: bool,
    /// Whether a successful call can matter.
    pub succeeded: bool,
    /// Required results of a successful call, all below 64; `None` for any.
    pub results: Option<BTreeSet<u8>>,
    /// Required errors of a failed call, all below 128; `None` for any.
    pub errors: Option<BTreeSet<u8>>,
    /// Required path patterns; `None` for any path. For calls that open a file, one must hold for its path.
    /// For other calls with paths, one must hold for a path as passed or made absolute.
    pub paths: Option<BTreeSet<PathPattern>>,
    /// Whether the path as passed must contain `..`.
    pub dotted: bool,
    /// Required names of the process; `None` for any.
    pub names: Option<BTreeSet<Vec<u8>>>,
    /// Required ports: one end of the socket's connection must have one; `None` for any.
    pub ports: Option<BTreeSet<u16>>,
    /// Required networks (address, prefix bits): one end must be in one; `None` for any.
    pub networks: Option<BTreeSet<(IpAddr, u8)>>,
    /// Required socket families of the call's descriptor; `None` for any descriptor.
    pub families: Option<BTreeSet<SocketFamily>>,
    /// Whether the process must be inside or outside a container; `None` for either.
    pub contained: Option<bool>,
}

impl Interest {
    /// Creates an interest in every call with these registers.
    pub fn in_any(any_of: Vec<Vec<RegisterTest>>) -> Self {
        Self {
            any_of,
            failed: true,
            succeeded: true,
            ..Self::default()
        }
    }
}

/// Socket families that rules can require.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub enum SocketFamily {
    /// IPv4 addresses, whatever the family of the socket.
    Ipv4,
    /// IPv6 addresses.
    Ipv6,
    /// Unix socket paths and names.
    Unix,
}

/// A pattern for a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, Serialize)]
pub enum PathPattern {
    /// The path equals these bytes.
    Exact(Vec<u8>),
    /// The path begins with these bytes.
    Prefix(Vec<u8>),
    /// The path ends with these bytes.
    Suffix(Vec<u8>),
    /// The path contains these bytes.
    Contains(Vec<u8>),
}

/// Calls of `dup` that matter because they create descriptor 0, 1 or 2. A `dup` can create one only while one
/// of them is closed, so `dup` itself is not planned: the plan contains the calls that close one of them, and
/// from then on the engine must watch every `dup` of that process until all three are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum StdioWatch {
    /// No `dup` matters.
    #[default]
    Off,
    /// A `dup` of a socket matters. The calls that create a socket are planned too: a process without sockets
    /// need not be watched.
    Sockets,
    /// Every `dup` matters.
    Any,
}
