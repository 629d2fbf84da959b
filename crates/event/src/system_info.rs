//! Questions about the system that an event answers only when asked.

use core::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;

use crate::field::Mechanism;
use crate::{
    Comm, CommandLine, Container, Credentials, ExecutableFile, Image, Pid, Process, Stat, Status,
    Tid,
};

/// Whether something can be told at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The answer.
    Found(T),
    /// There is none.
    Missing,
    /// It cannot be told: the deadline passed or access was refused.
    Unknown,
}

impl<T> Lookup<T> {
    /// The same about what is made of an answer.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Found(answer) => Lookup::Found(make(answer)),
            Self::Missing => Lookup::Missing,
            Self::Unknown => Lookup::Unknown,
        }
    }
}

/// A user as the process's own user database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// Home directory.
    pub home: String,
    /// Login shell.
    pub shell: String,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Group name.
    pub name: String,
}

/// Answers about processes, users, containers and names. An engine whose events carry everything
/// answers from what it recorded; a live engine looks it up while the caller is held.
///
/// Every method may be called while the caller of the event is parked, so none may wait longer
/// than the engine's deadline for anything the workload controls.
pub trait SystemInfo {
    /// Command name at the last exec; where that exec was not seen, the name that was seen first.
    fn comm(&self, process: &Process) -> Lookup<Comm>;
    /// Present name of a thread of the process, which programs can change.
    fn thread_name(&self, _process: &Process, _tid: Tid) -> Lookup<Comm> {
        Lookup::Unknown
    }
    /// Present group, session and terminal.
    fn stat(&self, process: &Process) -> Lookup<Stat>;
    /// Present credentials and capabilities of a thread of the process.
    fn status(&self, process: &Process, tid: Tid) -> Lookup<Status>;
    /// Present user and group of a thread of the process: part of [`SystemInfo::status`] that an engine
    /// may learn for less.
    fn credentials(&self, process: &Process, tid: Tid) -> Lookup<Credentials> {
        self.status(process, tid).map(|status| status.credentials)
    }
    /// Arguments of the image.
    fn command_line(&self, process: &Process, image: &Image) -> Lookup<CommandLine>;
    /// Path of the executable of the image.
    fn executable(&self, process: &Process, image: &Image) -> Lookup<Vec<u8>>;
    /// The file of the image.
    fn executable_file(&self, process: &Process, image: &Image) -> Lookup<ExecutableFile>;
    /// Whether the user who runs the image may write its file.
    fn executable_writable(&self, _process: &Process, _image: &Image) -> Lookup<bool> {
        Lookup::Unknown
    }
    /// Fills the image of a process that is held before the first instruction of a new program.
    /// `with_file`: its file will be asked for at later events ([`crate::Plan::executable_file`]).
    fn describe_at_exec(&self, _process: &Process, _image: &Image, _with_file: bool) {}
    /// Environment at exec, NUL-separated.
    fn environment(&self, process: &Process, image: &Image) -> Lookup<Vec<u8>>;
    /// Audit login uid; `Missing` if never set.
    fn login_uid(&self, process: &Process) -> Lookup<u32>;
    /// Directory that relative paths of the thread start at: the working directory, or that of an
    /// open descriptor.
    fn directory<'a>(&self, tid: Tid, descriptor: Option<i32>, arena: &'a Bump)
    -> Lookup<&'a [u8]>;
    /// Container of the process.
    fn container(&self, process: &Process) -> Arc<Container>;
    /// User by id, as the process sees it.
    fn user(&self, process: &Process, uid: u32) -> Lookup<Arc<User>>;
    /// Group by id, as the process sees it.
    fn group(&self, process: &Process, gid: u32) -> Lookup<Arc<Group>>;
    /// Another process by pid, e.g. the session leader.
    fn process(&self, pid: Pid) -> Lookup<Arc<Process>>;
    /// Addresses of a host name that a rule compares with (`fd.sip.name=...`).
    fn addresses(&self, host_name: &str) -> Lookup<Arc<[IpAddr]>>;
    /// The host names that were asked for, with the last answers: for those who record events.
    fn asked_addresses(&self) -> Vec<(String, Lookup<Arc<[IpAddr]>>)> {
        Vec::new()
    }
    /// What descriptor `number` of the thread is, as Falco's `fd.type` word (`fd.types`).
    fn descriptor_type(&self, tid: Tid, number: i32) -> Lookup<crate::DescriptorKind>;
    /// Numbers of the thread's open descriptors (`fd.types`, `proc.fdopencount`).
    fn open_descriptors<'a>(&self, _tid: Tid, _arena: &'a Bump) -> Lookup<&'a [i32]> {
        Lookup::Unknown
    }
    /// What descriptor `number` of the thread is called (`proc.stdin.name`): the path of a file,
    /// the ends of a connection.
    fn descriptor_name<'a>(&self, _tid: Tid, _number: i32, _arena: &'a Bump) -> Lookup<&'a [u8]> {
        Lookup::Unknown
    }
    /// Seconds that local time is east of Greenwich (`evt.time`).
    fn utc_offset(&self) -> i32 {
        0
    }
    /// When the first event was, nanoseconds since the epoch (`evt.reltime`); `None` where events are
    /// seen as they happen.
    fn first_ns(&self) -> Option<u64> {
        None
    }
    /// How its events are learnt; `None` if nothing learnt them.
    fn mechanism(&self) -> Option<Mechanism> {
        None
    }
    /// Why the path of a file that the event is about is not known, where that is told.
    fn path_gap(&self) -> Option<PathGap> {
        None
    }
    /// Host name of this machine (`evt.hostname`).
    fn host_name(&self) -> &str;
}

/// What a path that was told lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathGap {
    /// It has more folders, or longer names, than an engine tells.
    Cut,
    /// The file was moved out of its mount, or lies in no folder.
    Unreachable,
}

/// A world that knows nothing: for tests and for events that carry everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSystemInfo;

impl SystemInfo for NoSystemInfo {
    fn comm(&self, process: &Process) -> Lookup<Comm> {
        Lookup::Found(process.exec_name())
    }
    fn stat(&self, _: &Process) -> Lookup<Stat> {
        Lookup::Unknown
    }
    fn status(&self, _: &Process, _: Tid) -> Lookup<Status> {
        Lookup::Unknown
    }
    fn command_line(&self, _: &Process, _: &Image) -> Lookup<CommandLine> {
        Lookup::Unknown
    }
    fn executable(&self, _: &Process, _: &Image) -> Lookup<Vec<u8>> {
        Lookup::Unknown
    }
    fn executable_file(&self, _: &Process, _: &Image) -> Lookup<ExecutableFile> {
        Lookup::Unknown
    }
    fn environment(&self, _: &Process, _: &Image) -> Lookup<Vec<u8>> {
        Lookup::Unknown
    }
    fn login_uid(&self, _: &Process) -> Lookup<u32> {
        Lookup::Unknown
    }
    fn directory<'a>(&self, _: Tid, _: Option<i32>, _: &'a Bump) -> Lookup<&'a [u8]> {
        Lookup::Unknown
    }
    fn container(&self, _: &Process) -> Arc<Container> {
        Arc::new(Container::unknown())
    }
    fn user(&self, _: &Process, _: u32) -> Lookup<Arc<User>> {
        Lookup::Unknown
    }
    fn group(&self, _: &Process, _: u32) -> Lookup<Arc<Group>> {
        Lookup::Unknown
    }
    fn process(&self, _: Pid) -> Lookup<Arc<Process>> {
        Lookup::Unknown
    }
    fn addresses(&self, _: &str) -> Lookup<Arc<[IpAddr]>> {
        Lookup::Unknown
    }
    fn descriptor_type(&self, _: Tid, _: i32) -> Lookup<crate::DescriptorKind> {
        Lookup::Unknown
    }
    fn host_name(&self) -> &str {
        ""
    }
}
