//! One event.

use std::cell::OnceCell;
use std::sync::Arc;

use bumpalo::Bump;

use crate::{
    Comm, Container, Credentials, Descriptor, EventKind, Image, Lookup, Process, Stat, Status, Tid,
    World,
};

/// How much of an event is known. Each stage knows all that the one before knew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Register arguments only.
    Registers,
    /// Also strings and structures that arguments point to, and the directories that relative
    /// paths start at.
    Strings,
    /// Also what an open descriptor among the arguments is.
    Descriptor,
    /// Also everything about the process, its ancestors, its user and container.
    Entry,
    /// Also the result: nothing more will be learnt.
    Exit,
}

/// The call's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call has not returned yet.
    Pending,
    /// It returned this (negative errno on failure).
    Returned(i64),
    /// It could not be learnt.
    Unlearnt,
    /// The event is of a kind that has no result.
    None,
}

/// One parameter in the order of the kind's [`crate::ParamSpec`]s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Param<'a> {
    /// Known only when the call has returned.
    Pending,
    /// The caller's memory could not be read: counts as "may be anything".
    Unreadable,
    /// Does not exist.
    Absent,
    /// Signed number: results, descriptors, pids.
    Int(i64),
    /// Unsigned number: flags, modes, sizes, enumerations.
    Uint(u64),
    /// Text or path as passed.
    Text(&'a [u8]),
    /// Several texts (argv, envp).
    Texts(&'a [&'a [u8]]),
    /// The tuple of the event's descriptor.
    Tuple,
}

/// Facts about the calling process that may change between two events; read at most once for one.
#[derive(Debug, Default)]
pub struct Live {
    /// Command name.
    pub comm: OnceCell<Lookup<Comm>>,
    /// Group, session, terminal.
    pub stat: OnceCell<Lookup<Stat>>,
    /// Ids and capabilities.
    pub status: OnceCell<Lookup<Status>>,
    /// User and group.
    pub credentials: OnceCell<Lookup<Credentials>>,
    /// Container.
    pub container: OnceCell<Arc<Container>>,
}

/// One system call or internal happening.
///
/// An engine may show the same event at several stages. Its number, time and processor are the
/// same at all of them, `live` is shared by them only where nothing that the call changes
/// ([`crate::EventKind::changes`]) has been asked for (fields never ask too early), and `image` is
/// the new program from [`Stage::Exit`] on if an exec succeeded. Flags and other enumerated
/// parameters have the values of the architecture that this program was built for.
pub struct Event<'a> {
    /// Counts from 1 within a run (`evt.num`).
    pub number: u64,
    /// Nanoseconds since the epoch.
    pub time_ns: u64,
    /// What happened.
    pub kind: EventKind,
    /// How much is known.
    pub stage: Stage,
    /// Processor it happened on, if known.
    pub cpu: Option<u32>,
    /// The calling thread.
    pub tid: Tid,
    /// The calling process.
    pub process: &'a Process,
    /// The program that the event belongs to: for an exec that succeeded, the new one.
    pub image: Arc<Image>,
    /// Parameters in the order of the kind's specification.
    pub params: &'a [Param<'a>],
    /// The descriptor it is about.
    pub descriptor: Option<Descriptor<'a>>,
    /// The result.
    pub outcome: Outcome,
    /// Answers what the event does not carry.
    pub world: &'a dyn World,
    /// What the world has answered already.
    pub live: &'a Live,
    /// Memory for values made while the event is looked at.
    pub arena: &'a Bump,
}

impl<'a> Event<'a> {
    /// Command name of the caller.
    pub fn comm(&self) -> &'a Lookup<Comm> {
        self.live.comm.get_or_init(|| self.world.comm(self.process))
    }

    /// Group, session and terminal of the caller.
    pub fn stat(&self) -> &'a Lookup<Stat> {
        self.live.stat.get_or_init(|| self.world.stat(self.process))
    }

    /// User and group of the calling thread.
    pub fn credentials(&self) -> &'a Lookup<Credentials> {
        self.live
            .credentials
            .get_or_init(|| match self.live.status.get() {
                Some(Lookup::Found(status)) => Lookup::Found(status.credentials),
                _ => self.world.credentials(self.process, self.tid),
            })
    }

    /// Ids and capabilities of the calling thread.
    pub fn status(&self) -> &'a Lookup<Status> {
        self.live
            .status
            .get_or_init(|| self.world.status(self.process, self.tid))
    }

    /// Container of the caller.
    pub fn container(&self) -> &'a Container {
        self.live
            .container
            .get_or_init(|| self.world.container(self.process))
    }
}
