//! Answers questions about processes from the replayed state.

use core::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;
use event::EngineKind;
use event::{
    Comm, Container, DescriptorKind, Group, Lookup, Pid, Process, Stat, Status, SystemInfo, Tid,
    User,
};

use crate::note::{self, ExactProcess};
use crate::state::State;
use crate::state::descriptor::Open;
use crate::state::process::{NO_ID, ProcessEntry};

/// The state during the evaluation of one event.
pub(crate) struct RecordedSystemInfo<'s> {
    pub(crate) state: &'s State,
    /// Process of the event.
    pub(crate) caller: &'s ProcessEntry,
    /// Name of the thread of the event, if the capture lists it under one of its own.
    pub(crate) thread_name: Option<Comm>,
    pub(crate) noted: Option<&'s note::Call>,
    pub(crate) utc_offset: i32,
    pub(crate) first_ns: Option<u64>,
}

fn found<T>(fact: Option<T>) -> Lookup<T> {
    fact.map_or(Lookup::Missing, Lookup::Found)
}

impl RecordedSystemInfo<'_> {
    fn exact(&self, process: &Process) -> Option<&ExactProcess> {
        self.held(process)?.exact.as_deref()
    }

    #[inline]
    fn held(&self, process: &Process) -> Option<&ProcessEntry> {
        if std::ptr::eq(Arc::as_ptr(&self.caller.process), process) {
            return Some(self.caller);
        }
        self.state.held(process)
    }

    fn open(&self, tid: Tid, number: i32) -> Option<&Open> {
        let open = self.of_thread(tid)?.descriptors.get(i64::from(number))?;
        Some(&**open)
    }

    /// Returns the process of a thread.
    fn of_thread(&self, tid: Tid) -> Option<&ProcessEntry> {
        let thread = self.state.peek(i64::from(tid.0))?;
        Some(self.state.process(thread.process))
    }
}

impl SystemInfo for RecordedSystemInfo<'_> {
    // For Falco the name of a process is that of the thread that makes the call.
    fn comm(&self, process: &Process) -> Lookup<Comm> {
        let is_caller = std::ptr::eq(Arc::as_ptr(&self.caller.process), process);
        let of_thread = self.thread_name.filter(|_| is_caller);
        Lookup::Found(of_thread.unwrap_or_else(|| process.exec_name()))
    }

    // Threads that the capture does not list have no recorded state, and this program's notes omit it.
    fn thread_name(&self, process: &Process, tid: Tid) -> Lookup<Comm> {
        let thread = self.state.peek(i64::from(tid.0));
        let listed = thread.and_then(|thread| thread.name(self.state.process(thread.process)));
        if let Some(name) = listed {
            return Lookup::Found(name);
        }
        if tid.0 == process.pid.0 && self.exact(process).is_none() {
            Lookup::Found(process.last_comm())
        } else {
            Lookup::Unknown
        }
    }

    fn stat(&self, process: &Process) -> Lookup<Stat> {
        match self.exact(process) {
            Some(exact) => exact.stat.clone(),
            None => found(self.held(process).and_then(|held| held.stat)),
        }
    }

    fn status(&self, process: &Process, _: Tid) -> Lookup<Status> {
        match self.exact(process) {
            Some(exact) => exact.status.clone(),
            None => found(self.held(process).and_then(|held| held.status)),
        }
    }

    fn login_uid(&self, process: &Process) -> Lookup<u32> {
        if let Some(exact) = self.exact(process) {
            return exact.login_uid.clone();
        }
        let held = self.held(process);
        found(
            held.and_then(|held| held.login_uid)
                .filter(|uid| *uid != NO_ID),
        )
    }

    fn directory<'a>(
        &self,
        tid: Tid,
        descriptor: Option<i32>,
        arena: &'a Bump,
    ) -> Lookup<&'a [u8]> {
        let noted = self.noted.zip(descriptor);
        if let Some(noted) = noted.and_then(|(noted, number)| noted.directory(number)) {
            return noted.map(|path| &*arena.alloc_slice_copy(&path));
        }
        let Some(held) = self.of_thread(tid) else {
            return Lookup::Missing;
        };
        let exact = held.exact.as_ref().filter(|_| descriptor.is_none());
        if exact.is_some_and(|exact| exact.directory == Lookup::Unknown) {
            return Lookup::Unknown;
        }
        let path = match descriptor {
            None => (!held.cwd.is_empty()).then_some(&*held.cwd),
            Some(number) => held
                .descriptors
                .get(i64::from(number))
                .map(|open| open.name.as_slice())
                .filter(|name| name.first() == Some(&b'/')),
        };
        found(path.map(|path| &*arena.alloc_slice_copy(path)))
    }

    fn container(&self, process: &Process) -> Arc<Container> {
        let Some(held) = self.held(process) else {
            return Arc::new(Container::unknown());
        };
        if let Some(exact) = &held.exact {
            return Arc::clone(&exact.container);
        }
        match self.state.container(&held.container.id) {
            Some(known) => Arc::clone(known),
            None => Arc::clone(&held.container),
        }
    }

    fn user(&self, process: &Process, uid: u32) -> Lookup<Arc<User>> {
        let noted = self.exact(process).map(|exact| &exact.users);
        if let Some((_, user)) = noted.and_then(|users| users.iter().find(|(id, _)| *id == uid)) {
            return user.clone();
        }
        found(self.state.user(uid).cloned())
    }

    fn group(&self, process: &Process, gid: u32) -> Lookup<Arc<Group>> {
        let noted = self.exact(process).map(|exact| &exact.groups);
        if let Some((_, group)) = noted.and_then(|groups| groups.iter().find(|(id, _)| *id == gid))
        {
            return group.clone();
        }
        found(self.state.group(gid).cloned())
    }

    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        match self.noted.and_then(|noted| noted.stranger(pid.0)) {
            Some(Lookup::Missing) => return Lookup::Missing,
            Some(Lookup::Unknown) => return Lookup::Unknown,
            Some(Lookup::Found(())) | None => {}
        }
        let thread = self.state.peek(i64::from(pid.0));
        let process = |thread: &crate::state::process::Thread| {
            Arc::clone(&self.state.process(thread.process).process)
        };
        found(thread.map(process))
    }

    /// Does not resolve names, because a current answer says nothing about the time of the capture.
    /// Recordings of this program contain the answers of that time.
    fn addresses(&self, name: &str) -> Lookup<Arc<[IpAddr]>> {
        let noted = self.noted.and_then(|noted| noted.addresses(name));
        noted.unwrap_or(Lookup::Missing)
    }

    fn descriptor_type(&self, tid: Tid, number: i32) -> Lookup<DescriptorKind> {
        let noted = self.noted.and_then(|noted| noted.descriptor_type(number));
        noted.unwrap_or_else(|| found(self.open(tid, number).and_then(|open| open.kind)))
    }

    fn open_descriptors<'a>(&self, tid: Tid, arena: &'a Bump) -> Lookup<&'a [i32]> {
        let noted = self.noted.and_then(note::Call::open_descriptors);
        let recorded = || self.of_thread(tid).map(|held| held.descriptors.numbers());
        let numbers = noted.unwrap_or_else(|| found(recorded()));
        numbers.map(|numbers| &*arena.alloc_slice_copy(&numbers))
    }

    fn descriptor_name<'a>(&self, tid: Tid, number: i32, arena: &'a Bump) -> Lookup<&'a [u8]> {
        if let Some(name) = self.noted.and_then(|noted| noted.descriptor_name(number)) {
            return name.map(|name| &*arena.alloc_slice_copy(&name));
        }
        found(self.open(tid, number).map(|open| open.full_name(arena)))
    }

    fn utc_offset(&self) -> i32 {
        self.utc_offset
    }

    fn first_ns(&self) -> Option<u64> {
        self.first_ns
    }

    fn engine(&self) -> Option<EngineKind> {
        Some(EngineKind::Scap)
    }

    fn host_name(&self) -> &str {
        let given = self.state.host_name.as_ref();
        given.unwrap_or(&self.state.machine.hostname)
    }
}
