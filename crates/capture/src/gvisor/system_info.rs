//! System information from a message, and about the sandbox from earlier ones. The host differs from the
//! system that the sandbox shows, so it is never asked.

use std::net::IpAddr;
use std::sync::Arc;

use bumpalo::Bump;
use event::EngineKind;
use event::{
    Comm, Container, Credentials, DescriptorKind, Group, Lookup, Pid, Process, Stat, Status,
    SystemInfo, Tid, User,
};

use super::message::Context;
use super::processes::Processes;

/// System information as of one message.
pub(super) struct SandboxWorld<'m> {
    pub(super) context: &'m Context<'m>,
    pub(super) processes: &'m Processes,
    pub(super) container: &'m Arc<Container>,
    /// A descriptor of the call and its path.
    pub(super) descriptor: Option<(i32, &'m [u8])>,
    pub(super) host_name: &'m str,
}

impl SandboxWorld<'_> {
    fn is_about(&self, process: &Process) -> bool {
        process.pid.0 == self.context.pid
    }
}

impl SystemInfo for SandboxWorld<'_> {
    fn comm(&self, process: &Process) -> Lookup<Comm> {
        Lookup::Found(process.exec_name())
    }

    fn thread_name(&self, process: &Process, tid: Tid) -> Lookup<Comm> {
        if self.is_about(process) && tid.0 == self.context.tid {
            Lookup::Found(self.processes.present_name(self.context))
        } else {
            Lookup::Unknown
        }
    }

    fn stat(&self, _process: &Process) -> Lookup<Stat> {
        Lookup::Unknown
    }

    fn status(&self, _process: &Process, _tid: Tid) -> Lookup<Status> {
        Lookup::Unknown
    }

    fn credentials(&self, process: &Process, _tid: Tid) -> Lookup<Credentials> {
        match self.context.credentials {
            Some((uid, gid)) if self.is_about(process) => Lookup::Found(Credentials { uid, gid }),
            _ => Lookup::Unknown,
        }
    }

    fn login_uid(&self, _process: &Process) -> Lookup<u32> {
        // gVisor has no audit.
        Lookup::Missing
    }

    fn directory<'a>(
        &self,
        tid: Tid,
        descriptor: Option<i32>,
        arena: &'a Bump,
    ) -> Lookup<&'a [u8]> {
        if tid.0 != self.context.tid {
            return Lookup::Unknown;
        }
        let path = match descriptor {
            None => Some(self.context.cwd),
            Some(wanted) => {
                let known = self.descriptor.filter(|(number, _)| *number == wanted);
                known.map(|(_, path)| path)
            }
        };
        match path.filter(|path| path.starts_with(b"/")) {
            Some(path) => Lookup::Found(&*arena.alloc_slice_copy(path)),
            None => Lookup::Unknown,
        }
    }

    fn container(&self, _process: &Process) -> Arc<Container> {
        Arc::clone(self.container)
    }

    fn user(&self, _process: &Process, uid: u32) -> Lookup<Arc<User>> {
        if uid != 0 {
            return Lookup::Unknown;
        }
        // The same name in every image.
        Lookup::Found(Arc::new(User {
            name: "root".to_owned(),
            home: "/root".to_owned(),
            shell: String::new(),
        }))
    }

    fn group(&self, _process: &Process, gid: u32) -> Lookup<Arc<Group>> {
        if gid != 0 {
            return Lookup::Unknown;
        }
        let name = "root".to_owned();
        Lookup::Found(Arc::new(Group { name }))
    }

    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        self.processes
            .find(pid)
            .map_or(Lookup::Unknown, Lookup::Found)
    }

    fn addresses(&self, _host_name: &str) -> Lookup<Arc<[IpAddr]>> {
        Lookup::Unknown
    }

    fn descriptor_type(&self, _tid: Tid, _number: i32) -> Lookup<DescriptorKind> {
        Lookup::Unknown
    }

    fn engine(&self) -> Option<EngineKind> {
        Some(EngineKind::Gvisor)
    }

    fn host_name(&self) -> &str {
        self.host_name
    }
}
