//! What `/proc` says of a process that the tree is about to enter.

use event::{Comm, Pid, StartTime, Tid};
use rustix::fs::{Access, AtFlags};

use crate::deadline::Deadline;
use crate::procfs::{LINK_LIMIT, Proc};
use crate::sockets::{self, ResolvedDescriptor};

/// Who a process is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) pid: Pid,
    pub(crate) ppid: Pid,
    /// The session's leader, dead or alive.
    pub(crate) session: Pid,
    pub(crate) start: StartTime,
    pub(crate) comm: Comm,
}

/// Longest list of children or threads that is read.
const LIST_LIMIT: usize = 1024 * 1024;
/// `O_CLOEXEC` in the octal `flags` line of `/proc/PID/fdinfo/N`.
const CLOSE_ON_EXEC: u64 = 0o2_000_000;

/// Reads about processes by pid.
#[derive(Debug)]
pub(crate) struct Census {
    proc: Proc,
    deadline: Deadline,
}

/// Sockets that may linger while they are closed, at once.
const LINGERING_LIMIT: usize = 8;

impl Census {
    pub(crate) fn new() -> Result<Self, crate::procfs::ProcError> {
        Ok(Self {
            proc: Proc::open()?,
            deadline: Deadline::new(LINGERING_LIMIT),
        })
    }

    pub(crate) fn identity(&self, pid: Pid) -> Option<Identity> {
        let stat = self.proc.stat(pid.0).ok()?;
        Some(Identity {
            pid,
            ppid: stat.stat.ppid,
            session: Pid(stat.stat.sid),
            start: stat.start,
            comm: stat.comm,
        })
    }

    pub(crate) fn thread_group(&self, tid: Tid) -> Option<Pid> {
        self.proc.status(tid.0).ok().map(|status| Pid(status.tgid))
    }

    /// What an open descriptor of the thread is.
    pub(crate) fn descriptor(&self, pid: Pid, tid: Tid, number: i32) -> Option<ResolvedDescriptor> {
        sockets::resolve(&self.proc, pid.0, tid.0, number, &self.deadline).ok()
    }

    /// The same unless it is a socket, without a look at the process.
    pub(crate) fn file(&self, tid: Tid, number: i32) -> Option<ResolvedDescriptor> {
        sockets::resolve_file(&self.proc, tid.0, number).ok()?
    }

    /// Whether the thread belongs to the process.
    pub(crate) fn has_thread(&self, pid: Pid, tid: Tid) -> bool {
        self.exists(&format!("{}/task/{}", pid.0, tid.0))
    }

    pub(crate) fn threads(&self, pid: Pid) -> Vec<Tid> {
        let path = format!("/proc/{}/task", pid.0);
        let Ok(entries) = std::fs::read_dir(path) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Tid))
            .collect()
    }

    /// Children of all threads of a process. Needs `CONFIG_PROC_CHILDREN`, which every
    /// distribution sets; without it parentage falls back to what children inherit.
    pub(crate) fn children(&self, pid: Pid) -> Vec<Pid> {
        let mut children = Vec::new();
        for tid in self.threads(pid) {
            let file = format!("/proc/{}/task/{}/children", pid.0, tid.0);
            let Ok(text) = std::fs::read(file) else {
                continue;
            };
            let text = String::from_utf8_lossy(&text[..text.len().min(LIST_LIMIT)]);
            children.extend(
                text.split_ascii_whitespace()
                    .filter_map(|pid| pid.parse().ok())
                    .map(Pid),
            );
        }
        children
    }

    /// Whether descriptors 0, 1 and 2 of the process are open.
    pub(crate) fn has_stdio(&self, pid: Pid) -> bool {
        let mut buffer = [0; LINK_LIMIT];
        (0..=2).all(|number| {
            self.proc
                .descriptor_link(pid.0, number, &mut buffer)
                .is_ok()
        })
    }

    /// Whether the process has a socket open; true if that cannot be seen.
    pub(crate) fn has_socket(&self, pid: Pid) -> bool {
        let directory = format!("/proc/{}/fd", pid.0);
        let Ok(entries) = std::fs::read_dir(&directory) else {
            return true;
        };
        let is_socket = |number: i32| {
            let mut buffer = [0; LINK_LIMIT];
            let link = self.proc.descriptor_link(pid.0, number, &mut buffer);
            link.is_ok_and(|link| link.starts_with(b"socket:"))
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .any(is_socket)
    }

    /// Whether one of them closes at the next exec.
    pub(crate) fn closes_stdio_on_exec(&self, pid: Pid) -> bool {
        (0..=2).any(|number| {
            let Ok(text) = std::fs::read_to_string(format!("/proc/{}/fdinfo/{number}", pid.0))
            else {
                return true;
            };
            let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.and_then(|octal| u64::from_str_radix(octal.trim(), 8).ok());
            flags.is_none_or(|flags| flags & CLOSE_ON_EXEC != 0)
        })
    }

    fn exists(&self, path: &str) -> bool {
        rustix::fs::accessat(&self.proc, path, Access::EXISTS, AtFlags::empty()).is_ok()
    }
}
