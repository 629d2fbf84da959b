//! Queries about the system that an event makes only on demand.

use core::net::IpAddr;
use std::sync::{Arc, OnceLock};

use bumpalo::Bump;

use crate::engine::EngineKind;
use crate::{
    Comm, CommandLine, Container, Credentials, ExecutableFile, Image, Pid, Process, Stat, Status,
    Tid, Value,
};

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The answer.
    Found(T),
    /// No such fact exists.
    Missing,
    /// The fact is unavailable: the deadline passed or access was refused.
    Unknown,
}

impl<T: Clone> Lookup<T> {
    /// Returns a fact of an image. An empty cell means that the fact is not known.
    pub fn of_image(cell: &OnceLock<Option<T>>) -> Self {
        match cell.get() {
            Some(Some(fact)) => Self::Found(fact.clone()),
            Some(None) => Self::Missing,
            None => Self::Unknown,
        }
    }
}

impl<T> Lookup<T> {
    /// Applies `make` to the answer.
    pub fn map<U>(self, make: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Self::Found(answer) => Lookup::Found(make(answer)),
            Self::Missing => Lookup::Missing,
            Self::Unknown => Lookup::Unknown,
        }
    }
}

/// A user as listed in the process's own user database.
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

/// Answers queries about processes, users, containers and names. An engine whose events are complete answers
/// from its recording; a live engine queries the system while the caller is held.
///
/// Every method may be called while the caller of the event is blocked, so none may wait longer than the
/// engine's deadline for anything the workload controls.
pub trait SystemInfo {
    /// Returns the command name at the last exec; if that exec was not seen, the first name seen.
    fn comm(&self, process: &Process) -> Lookup<Comm>;
    /// Returns the current name of a thread of the process, which programs can change.
    fn thread_name(&self, _process: &Process, _tid: Tid) -> Lookup<Comm> {
        Lookup::Unknown
    }
    /// Returns the current process group, session and terminal.
    fn stat(&self, process: &Process) -> Lookup<Stat>;
    /// Returns the current credentials and capabilities of a thread of the process.
    fn status(&self, process: &Process, tid: Tid) -> Lookup<Status>;
    /// Returns the current user and group of a thread of the process: a part of [`SystemInfo::status`] that
    /// an engine may obtain at a lower cost.
    fn credentials(&self, process: &Process, tid: Tid) -> Lookup<Credentials> {
        self.status(process, tid).map(|status| status.credentials)
    }
    /// Returns the arguments of the image. This and the other facts of an image are what the image holds, unless a
    /// source can look them up.
    fn command_line(&self, _process: &Process, image: &Image) -> Lookup<CommandLine> {
        Lookup::of_image(&image.command_line)
    }
    /// Returns the path of the image's executable.
    fn executable(&self, _process: &Process, image: &Image) -> Lookup<Vec<u8>> {
        Lookup::of_image(&image.executable)
    }
    /// Returns the facts about the image's executable file.
    fn executable_file(&self, _process: &Process, image: &Image) -> Lookup<ExecutableFile> {
        Lookup::of_image(&image.executable_file)
    }
    /// Returns whether the user who runs the image may write its file.
    fn executable_writable(&self, _process: &Process, image: &Image) -> Lookup<bool> {
        Lookup::of_image(&image.executable_writable)
    }
    /// Fills the image of a process that is held before the first instruction of a new program. `with_file`:
    /// later events will ask for its file ([`crate::Plan::executable_file`]).
    fn describe_at_exec(&self, _process: &Process, _image: &Image, _with_file: bool) {}
    /// Returns the environment at exec, NUL-separated.
    fn environment(&self, _process: &Process, image: &Image) -> Lookup<Vec<u8>> {
        Lookup::of_image(&image.environment)
    }
    /// Returns the audit login uid; `Missing` if never set.
    fn login_uid(&self, process: &Process) -> Lookup<u32>;
    /// Returns the directory that relative paths of the thread start at: the working directory, or that of an
    /// open descriptor.
    fn directory<'a>(&self, tid: Tid, descriptor: Option<i32>, arena: &'a Bump)
    -> Lookup<&'a [u8]>;
    /// Returns the container of the process.
    fn container(&self, process: &Process) -> Arc<Container>;
    /// Returns a user by id, as the process's user database lists it.
    fn user(&self, process: &Process, uid: u32) -> Lookup<Arc<User>>;
    /// Returns a group by id, as the process's user database lists it.
    fn group(&self, process: &Process, gid: u32) -> Lookup<Arc<Group>>;
    /// Returns another process by pid, e.g. the session leader.
    fn process(&self, pid: Pid) -> Lookup<Arc<Process>>;
    /// Returns the addresses of a host name that a rule compares with (`fd.sip.name=...`).
    fn addresses(&self, host_name: &str) -> Lookup<Arc<[IpAddr]>>;
    /// Returns the host names that were queried, with the latest answers, for recorders of events.
    fn asked_addresses(&self) -> Vec<(String, Lookup<Arc<[IpAddr]>>)> {
        Vec::new()
    }
    /// Returns the kind of descriptor `number` of the thread, Falco's `fd.type` word (`fd.types`).
    fn descriptor_type(&self, tid: Tid, number: i32) -> Lookup<crate::DescriptorKind>;
    /// Returns the numbers of the thread's open descriptors (`fd.types`, `proc.fdopencount`).
    fn open_descriptors<'a>(&self, _tid: Tid, _arena: &'a Bump) -> Lookup<&'a [i32]> {
        Lookup::Unknown
    }
    /// Returns the name of descriptor `number` of the thread (`proc.stdin.name`): the path of a file or the
    /// ends of a connection.
    fn descriptor_name<'a>(&self, _tid: Tid, _number: i32, _arena: &'a Bump) -> Lookup<&'a [u8]> {
        Lookup::Unknown
    }
    /// Returns the offset of local time in seconds east of Greenwich (`evt.time`).
    fn utc_offset(&self) -> i32 {
        0
    }
    /// Returns the time of the first event in nanoseconds since the epoch (`evt.reltime`); `None` if events
    /// are live.
    fn first_ns(&self) -> Option<u64> {
        None
    }
    /// Returns the engine that captured the events; `None` if none did.
    fn engine(&self) -> Option<EngineKind> {
        None
    }
    /// Returns the reason why the path of the event's file is unknown, if the engine reports one.
    fn path_gap(&self) -> Option<PathGap> {
        None
    }
    /// Returns the host's name (`evt.hostname`).
    fn host_name(&self) -> &str;
    /// Returns the source of the events (`evt.source`).
    fn event_source(&self) -> &str {
        "syscall"
    }
    /// Returns the name of the plugin that made the event; `None` if no plugin did.
    fn plugin_name(&self) -> Option<&str> {
        None
    }
    /// Returns the event as its plugin describes it; [`Value::Absent`] if no plugin made it.
    fn plugin_info(&self) -> Value<'_> {
        Value::Absent
    }
    /// Returns the value of a field that a plugin supplies; [`Value::Absent`] if no plugin made the event.
    fn plugin_field<'a>(&'a self, _field: FieldName<'_>, _arena: &'a Bump) -> Value<'a> {
        Value::Absent
    }
}

/// A field that a plugin supplies, as a rule names it: `ct.name`, `ka.req.pod.fs_group[0]`, `json.value[/a/b]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldName<'f> {
    /// The name without the argument.
    pub name: &'f str,
    /// The argument, if it is a number.
    pub index: Option<u32>,
    /// The argument, if it is a text.
    pub key: Option<&'f str>,
}

/// Reason why a path is incomplete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathGap {
    /// The path has more directories, or longer names, than the engine reports.
    Cut,
    /// The file was moved out of its mount, or lies in no directory.
    Unreachable,
}

/// A [`SystemInfo`] without answers: for tests and for events that contain all facts.
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
