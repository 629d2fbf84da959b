//! System information from the record of an event, and only where that lacks it from the running system.

use std::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;
use event::EngineKind;
use event::{
    Comm, CommandLine, Container, Containment, Credentials, DescriptorKind, ExecutableFile, Group,
    Image, Lookup, PathGap, Pid, Process, Stat, Status, SystemInfo, Tid, User,
};

use super::container_table::ContainerTable;
use super::record::Header;
use container::privileged_by;
use decoder::system_info::LiveSystemInfo;
use process_info::sockets::ResolvedDescriptor;

/// System information as of one event.
pub(super) struct RecordedSystemInfo<'r> {
    pub(super) live: &'r LiveSystemInfo,
    pub(super) places: &'r ContainerTable,
    pub(super) header: &'r Header,
    /// Directories that relative paths start at, by descriptor.
    pub(super) directories: &'r [(i32, Vec<u8>)],
    /// Standard streams, if rules ask for them; `None` for one that is closed.
    pub(super) streams: &'r [(i32, Option<ResolvedDescriptor>)],
    /// Reason why a path of the record is unknown.
    pub(super) path_gap: Option<PathGap>,
}

/// `AT_FDCWD`.
const WORKING_DIRECTORY: i32 = -100;
/// `INVALID_UID`: no login.
const NO_LOGIN: u32 = u32::MAX;

impl RecordedSystemInfo<'_> {
    /// Returns whether the record is about this process.
    fn is_about(&self, process: &Process) -> bool {
        process.pid == self.header.pid && process.start == self.header.start()
    }

    /// Returns the record's data on a descriptor of a thread.
    fn stream(&self, tid: Tid, number: i32) -> Option<Option<&ResolvedDescriptor>> {
        let mut streams = self.streams.iter().filter(|_| tid == self.header.tid);
        let (_, stream) = streams.find(|(other, _)| *other == number)?;
        Some(stream.as_ref())
    }
}

impl SystemInfo for RecordedSystemInfo<'_> {
    fn comm(&self, process: &Process) -> Lookup<Comm> {
        Lookup::Found(process.exec_name())
    }

    fn thread_name(&self, process: &Process, tid: Tid) -> Lookup<Comm> {
        // The name in a record is that of the first thread.
        if self.is_about(process) && tid.0 == process.pid.0 {
            return Lookup::Found(self.header.comm);
        }
        self.live.thread_name(process, tid)
    }

    fn stat(&self, process: &Process) -> Lookup<Stat> {
        if self.is_about(process) {
            return Lookup::Found(self.header.stat);
        }
        self.live.stat(process)
    }

    fn status(&self, process: &Process, tid: Tid) -> Lookup<Status> {
        if self.is_about(process) && tid == self.header.tid {
            return Lookup::Found(self.header.status);
        }
        self.live.status(process, tid)
    }

    fn credentials(&self, process: &Process, tid: Tid) -> Lookup<Credentials> {
        match self.status(process, tid) {
            Lookup::Found(status) => Lookup::Found(status.credentials),
            Lookup::Missing => Lookup::Missing,
            Lookup::Unknown => Lookup::Unknown,
        }
    }

    fn command_line(&self, process: &Process, image: &Image) -> Lookup<CommandLine> {
        self.live.command_line(process, image)
    }

    fn executable(&self, process: &Process, image: &Image) -> Lookup<Vec<u8>> {
        self.live.executable(process, image)
    }

    fn executable_file(&self, process: &Process, image: &Image) -> Lookup<ExecutableFile> {
        self.live.executable_file(process, image)
    }

    fn executable_writable(&self, process: &Process, image: &Image) -> Lookup<bool> {
        self.live.executable_writable(process, image)
    }

    fn environment(&self, process: &Process, image: &Image) -> Lookup<Vec<u8>> {
        self.live.environment(process, image)
    }

    fn login_uid(&self, process: &Process) -> Lookup<u32> {
        if !self.is_about(process) {
            return self.live.login_uid(process);
        }
        match self.header.login_uid {
            NO_LOGIN => Lookup::Missing,
            uid => Lookup::Found(uid),
        }
    }

    fn directory<'a>(
        &self,
        tid: Tid,
        descriptor: Option<i32>,
        arena: &'a Bump,
    ) -> Lookup<&'a [u8]> {
        let wanted = descriptor.unwrap_or(WORKING_DIRECTORY);
        let found = self
            .directories
            .iter()
            .find(|(number, _)| *number == wanted);
        match found {
            Some((_, path)) if tid == self.header.tid => {
                Lookup::Found(&*arena.alloc_slice_copy(path))
            }
            _ => self.live.directory(tid, descriptor, arena),
        }
    }

    fn container(&self, process: &Process) -> Arc<Container> {
        if !self.is_about(process) {
            return self.live.container(process);
        }
        let container = self.places.container(self.live, process, self.header);
        let is_known = container.containment == Containment::Host
            || (container.privileged.is_some()
                && container.containment == Containment::Known
                && container.undescribed.is_none());
        let privileged = privileged_by(self.header.status.cap_bounding);
        if is_known || container.privileged == privileged {
            return container;
        }
        // Guessed from the process of the record: the first process of a place may be its runtime, which has
        // more rights than the programs it starts.
        Arc::new(Container {
            privileged,
            ..(*container).clone()
        })
    }

    fn user(&self, process: &Process, uid: u32) -> Lookup<Arc<User>> {
        self.places.user(self.live, process, self.header, uid)
    }

    fn group(&self, process: &Process, gid: u32) -> Lookup<Arc<Group>> {
        self.places.group(self.live, process, self.header, gid)
    }

    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        self.live.process(pid)
    }

    fn addresses(&self, host_name: &str) -> Lookup<Arc<[IpAddr]>> {
        self.live.addresses(host_name)
    }

    fn descriptor_type(&self, tid: Tid, number: i32) -> Lookup<DescriptorKind> {
        match self.stream(tid, number) {
            Some(Some(stream)) => Lookup::Found(stream.kind),
            Some(None) => Lookup::Missing,
            None => self.live.descriptor_type(tid, number),
        }
    }

    fn open_descriptors<'a>(&self, tid: Tid, arena: &'a Bump) -> Lookup<&'a [i32]> {
        self.live.open_descriptors(tid, arena)
    }

    fn descriptor_name<'a>(&self, tid: Tid, number: i32, arena: &'a Bump) -> Lookup<&'a [u8]> {
        match self.stream(tid, number) {
            Some(Some(stream)) => stream.name_in(arena),
            Some(None) => Lookup::Missing,
            None => self.live.descriptor_name(tid, number, arena),
        }
    }

    fn engine(&self) -> Option<EngineKind> {
        Some(EngineKind::Ebpf)
    }

    fn path_gap(&self) -> Option<PathGap> {
        self.path_gap
    }

    fn host_name(&self) -> &str {
        self.live.host_name()
    }
}
