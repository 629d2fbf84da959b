//! Reads a process's `/proc` entries for the process tree.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use event::{Comm, Pid, StartTime, Tid};
use rustix::fs::{FileType, Statx};
use rustix::io::Errno;

use super::lineage::InheritedState;
use process_info::deadline::Deadline;
use process_info::procfs::{LINK_LIMIT, Proc, ProcError};
use process_info::sockets::{self, DescriptorLink, ResolvedDescriptor};

/// Identity of a process.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Pid of the process.
    pub pid: Pid,
    /// Pid of its parent.
    pub ppid: Pid,
    /// Pid of the session's leader, alive or not.
    pub session: Pid,
    /// Start time.
    pub start: StartTime,
    /// Command name as the kernel shows it.
    pub comm: Comm,
}

/// Maximum size of an auxiliary vector: two words for each of about twenty entries.
const VECTOR_LIMIT: usize = 8192;
/// `O_CLOEXEC` in the octal `flags` line of `/proc/PID/fdinfo/N`.
const CLOSE_ON_EXEC: u64 = 0o2_000_000;

/// Reader of information about processes, by pid.
#[derive(Debug)]
pub struct ProcessInspector {
    proc: Proc,
    deadline: Deadline,
}

/// Maximum time of one access to a file system.
pub(crate) const WORK_LIMIT: Duration = Duration::from_millis(50);
/// Maximum number of sockets that may linger on close at the same time.
const LINGERING_LIMIT: usize = 8;

impl ProcessInspector {
    /// Opens `/proc`.
    pub fn new() -> Result<Self, process_info::procfs::ProcError> {
        Ok(Self {
            proc: Proc::open()?,
            deadline: Deadline::for_files(LINGERING_LIMIT),
        })
    }

    /// Returns the identity of a process; `None` if it is gone.
    pub fn identity(&self, pid: Pid) -> Option<Identity> {
        let stat = self.proc.stat(pid.0).ok()?;
        Some(Identity {
            pid,
            ppid: stat.stat.ppid,
            session: Pid(stat.stat.sid),
            start: stat.start,
            comm: stat.comm,
        })
    }

    /// Returns the mount namespace of a process.
    pub fn mount_namespace(&self, pid: Pid) -> Option<u64> {
        self.proc.namespace(pid.0, "ns/mnt").ok()
    }

    /// Returns the mark that a process has inherited.
    pub fn inherited(&self, pid: Pid) -> Option<InheritedState> {
        InheritedState::of(pid, &self.proc)
    }

    /// Returns the process of a thread and that process's parent by `/proc`; `None` if it is gone.
    pub fn thread_group_and_parent(&self, tid: Tid) -> Option<(Pid, Pid)> {
        let status = self.proc.status(tid.0).ok()?;
        Some((Pid(status.tgid), Pid(status.ppid)))
    }

    /// Returns the process of a thread; `None` if it is gone.
    pub fn thread_group(&self, tid: Tid) -> Option<Pid> {
        self.proc.status(tid.0).ok().map(|status| Pid(status.tgid))
    }

    /// Resolves an open descriptor of the thread.
    pub fn descriptor(&self, pid: Pid, tid: Tid, number: i32) -> Option<ResolvedDescriptor> {
        sockets::resolve(&self.proc, pid.0, tid.0, number, &self.deadline).ok()
    }

    /// Reads the link of an open descriptor of the thread, without reading the process's sockets.
    pub fn linked(&self, tid: Tid, number: i32) -> DescriptorLink {
        sockets::read_link(&self.proc, tid.0, number)
    }

    /// Resolves an open descriptor of the thread with this link, which is no socket.
    pub fn file(&self, tid: Tid, number: i32, link: &[u8]) -> ResolvedDescriptor {
        sockets::resolve_file(&self.proc, tid.0, number, link)
    }

    /// Reads the link of an open descriptor of the thread.
    pub fn descriptor_link<'b>(
        &self,
        tid: Tid,
        number: i32,
        buffer: &'b mut [u8; LINK_LIMIT],
    ) -> Result<&'b [u8], ProcError> {
        self.proc.descriptor_link(tid.0, number, buffer)
    }

    /// Reads the link of one of this program's descriptors.
    pub fn own_descriptor(&self, descriptor: &OwnedFd) -> Result<Vec<u8>, Errno> {
        let mut buffer = [0; LINK_LIMIT];
        let own = std::process::id().cast_signed();
        let link = self
            .proc
            .descriptor_link(own, descriptor.as_raw_fd(), &mut buffer);
        link.map(<[u8]>::to_vec).map_err(ProcError::errno)
    }

    /// Returns whether a file is in the procfs of this program, so that numbers of processes in its path are those
    /// of this program's pid namespace. True if that cannot be found out.
    pub fn is_own_procfs(&self, file: &OwnedFd) -> bool {
        let own = self
            .proc
            .file("stat")
            .and_then(|own| Ok(rustix::fs::fstat(own)?));
        match (own, rustix::fs::fstat(file)) {
            (Ok(own), Ok(other)) => own.st_dev == other.st_dev,
            _ => true,
        }
    }

    /// Reads the auxiliary vector of a process (getauxval(3)), and whether it was truncated.
    pub fn auxiliary_vector(&self, pid: Pid) -> Option<(Vec<u8>, bool)> {
        self.proc.read_all(pid.0, "auxv", VECTOR_LIMIT).ok()
    }

    /// Reads another link of the thread: `cwd` or `root`.
    pub fn link<'b>(
        &self,
        tid: Tid,
        file: &'static str,
        buffer: &'b mut [u8; LINK_LIMIT],
    ) -> Result<&'b [u8], ProcError> {
        self.proc.link(tid.0, file, buffer)
    }

    /// Opens the target of such a link with `O_PATH`.
    pub fn open_link(&self, tid: Tid, file: &'static str) -> Result<OwnedFd, Errno> {
        self.proc.open_path(tid.0, file).map_err(ProcError::errno)
    }

    /// Opens the `/proc` folder of a process or thread.
    pub fn open_folder(&self, tid: Tid) -> Result<OwnedFd, Errno> {
        self.open_link(tid, "")
    }

    /// Opens the object of a thread's descriptor with `O_PATH`.
    pub fn open_descriptor(&self, tid: Tid, number: i32) -> Result<OwnedFd, Errno> {
        let opened = self.proc.open_descriptor(tid.0, number);
        opened.map_err(ProcError::errno)
    }

    /// Runs work that may wait for something that the workload controls.
    pub fn within_deadline<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.within(WORK_LIMIT, work)
    }

    /// As [`ProcessInspector::within_deadline`], with a shorter limit.
    pub fn within<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.deadline.run(time.min(WORK_LIMIT), work).ok()
    }

    /// Returns the stack pointer of a thread that waits in a call.
    pub fn stack_pointer(&self, tid: Tid) -> Option<u64> {
        let text = self.proc.contents(&format!("{}/syscall", tid.0)).ok()?;
        // The number, six arguments, the stack pointer and the instruction pointer (proc(5)).
        let stack = text.split_ascii_whitespace().nth(7)?;
        u64::from_str_radix(stack.strip_prefix("0x")?, 16).ok()
    }

    /// Returns the identity of the thread's root: its mount and inode.
    pub fn root(&self, tid: Tid) -> Option<(u64, u64)> {
        let root = self.proc.stat_link(tid.0, "root").ok()?;
        Some((root.stx_mnt_id, root.stx_ino))
    }

    /// Returns whether a thread runs, or waits for a processor or the disk; true if that cannot be read.
    pub fn runs(&self, tid: Tid) -> bool {
        let text = match self.proc.contents(&format!("{}/stat", tid.0)) {
            Ok(text) => text,
            Err(error) => return error.kind() != std::io::ErrorKind::NotFound,
        };
        let state = text
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('S' | 'T' | 't' | 'Z' | 'X' | 'I'))
    }

    /// Returns whether a descriptor's object holds the memory of a process or of the host. Decided by the
    /// object, because it has as many names as there are links, mounts and descriptors.
    pub fn is_memory_file(&self, tid: Tid, number: i32) -> Result<bool, Errno> {
        // Kernel and user memory as devices: Documentation/admin-guide/devices.txt.
        const MEMORY_DEVICES: [(u32, u32); 2] = [(1, 1), (1, 2)];
        const PROC_SUPER_MAGIC: u64 = 0x9fa0;
        let file = self.proc.stat_descriptor(tid.0, number);
        let file = file.map_err(ProcError::errno)?;
        let kind = FileType::from_raw_mode(file.stx_mode.into());
        if kind == FileType::CharacterDevice {
            return Ok(MEMORY_DEVICES.contains(&(file.stx_rdev_major, file.stx_rdev_minor)));
        }
        // Process memory is on a file system without a device.
        if kind != FileType::RegularFile || file.stx_dev_major != 0 || !self.is_like_memory(&file) {
            return Ok(false);
        }
        let opened = self.open_descriptor(tid, number)?;
        // A server may stand behind the file system; if it does not answer in time the file may be anything.
        let system = self.within_deadline(move || rustix::fs::fstatfs(&opened));
        let system = system.unwrap_or(Err(Errno::TIMEDOUT))?;
        Ok(u64::try_from(system.f_type) == Ok(PROC_SUPER_MAGIC))
    }

    /// Memory files have one mode, and nobody can change it.
    fn is_like_memory(&self, file: &Statx) -> bool {
        let own = std::process::id().cast_signed();
        let memory = self.proc.stat_link(own, "mem");
        memory.map_or(true, |memory| memory.stx_mode == file.stx_mode)
    }

    /// Reads all of `/proc/TID/mountinfo`. Fails with `FBIG` if it is too long.
    pub fn mounts(&self, tid: Tid) -> Result<Vec<u8>, Errno> {
        let table = self.proc.whole_mountinfo(tid.0);
        table.map_err(ProcError::errno)?.ok_or(Errno::FBIG)
    }

    /// Returns the number of threads of the process, including a leader that has ended.
    pub fn thread_count(&self, pid: Pid) -> Option<u64> {
        // The folder has a link for itself, one for its parent and one for each thread.
        let links = self.proc.stat_link(pid.0, "task").ok()?.stx_nlink;
        u64::from(links).checked_sub(2)
    }

    /// Returns whether the thread acts as root; false if it is gone.
    pub fn is_root(&self, tid: Tid) -> bool {
        let status = self.proc.status(tid.0);
        status.is_ok_and(|found| found.status.credentials.uid == 0)
    }

    /// Returns whether the process shares the agent's pid namespace.
    pub fn shares_pid_namespace(&self, pid: Pid) -> bool {
        let own = std::process::id().cast_signed();
        let of = |pid| self.proc.namespace(pid, "ns/pid").ok();
        of(pid.0).is_some_and(|namespace| of(own) == Some(namespace))
    }

    /// Returns the tracer of the thread, if it has one.
    pub fn tracer(&self, tid: Tid) -> Option<Pid> {
        let text = self.proc.contents(&format!("{}/status", tid.0)).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"))?;
        let pid: i32 = line.trim().parse().ok()?;
        (pid != 0).then_some(Pid(pid))
    }

    /// Returns whether the thread belongs to the process.
    pub fn has_thread(&self, pid: Pid, tid: Tid) -> bool {
        self.proc.exists(&format!("{}/task/{}", pid.0, tid.0))
    }

    /// Returns the threads of a process; none if it is gone.
    pub fn threads(&self, pid: Pid) -> Vec<Tid> {
        let threads = self.proc.numbers(&format!("{}/task", pid.0));
        threads.into_iter().flatten().map(Tid).collect()
    }

    /// Returns the children of all threads of a process. Needs `CONFIG_PROC_CHILDREN`, which every
    /// distribution sets; without it the tree relies on what children inherit.
    pub fn children(&self, pid: Pid) -> Vec<Pid> {
        let mut children = Vec::new();
        for tid in self.threads(pid) {
            let file = format!("{}/task/{}/children", pid.0, tid.0);
            let Ok(text) = self.proc.contents(&file) else {
                continue;
            };
            children.extend(
                text.split_ascii_whitespace()
                    .filter_map(|pid| pid.parse().ok())
                    .map(Pid),
            );
        }
        children
    }

    /// Returns whether descriptors 0, 1 and 2 of the process are open.
    pub fn has_stdio(&self, pid: Pid) -> bool {
        let mut buffer = [0; LINK_LIMIT];
        (0..=2).all(|number| {
            self.proc
                .descriptor_link(pid.0, number, &mut buffer)
                .is_ok()
        })
    }

    /// Returns whether the process has a socket open; true if that cannot be read, or if it has too many
    /// descriptors to check. For a child of this program that is about to become the command, only the
    /// descriptors that survive exec count: the rest are this program's own.
    pub fn has_socket(&self, pid: Pid) -> bool {
        let Ok(mut numbers) = self.proc.numbers(&format!("{}/fd", pid.0)) else {
            return true;
        };
        let is_socket = |number: i32| {
            let mut buffer = [0; LINK_LIMIT];
            let link = self.proc.descriptor_link(pid.0, number, &mut buffer);
            link.is_ok_and(|link| link.starts_with(b"socket:"))
        };
        let runs_own_code = self.runs_own_code(pid);
        let is_kept = |number: i32| !(runs_own_code && self.closes_on_exec(pid, number));
        let mut looked = numbers.by_ref().take(DESCRIPTORS_LOOKED_AT);
        looked.any(|number| is_socket(number) && is_kept(number)) || numbers.next().is_some()
    }

    fn runs_own_code(&self, pid: Pid) -> bool {
        let own = std::process::id().cast_signed();
        let file = |pid: i32| {
            let file = self.proc.stat_link(pid, "exe").ok()?;
            Some((sockets::device_number(&file), file.stx_ino))
        };
        file(pid.0).is_some_and(|of_process| Some(of_process) == file(own))
    }

    /// Returns whether one of descriptors 0, 1 and 2 closes at the next exec.
    pub fn closes_stdio_on_exec(&self, pid: Pid) -> bool {
        (0..=2).any(|number| self.closes_on_exec(pid, number))
    }

    /// Returns whether an open descriptor closes at the next exec; true if that cannot be read.
    fn closes_on_exec(&self, pid: Pid, number: i32) -> bool {
        let flags = self.descriptor_flags(Tid(pid.0), number);
        flags.is_none_or(|flags| flags & CLOSE_ON_EXEC != 0)
    }

    /// Returns the flags of the thread's open descriptor, as fcntl(2) shows them, and `O_CLOEXEC`. `None` if they cannot
    /// be read.
    pub fn descriptor_flags(&self, tid: Tid, number: i32) -> Option<u64> {
        let file = format!("{}/fdinfo/{number}", tid.0);
        let text = self.proc.contents(&file).ok()?;
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
        u64::from_str_radix(flags.trim(), 8).ok()
    }
}

/// Maximum number of descriptors checked to find a socket. Each check takes a microsecond.
const DESCRIPTORS_LOOKED_AT: usize = 4096;

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;

    /// Checks all files below `/proc/self` that this process may write.
    #[test]
    fn memory_files_are_told_from_all_others_by_the_object() {
        let inspector = ProcessInspector::new().expect("procfs");
        let own = Tid(std::process::id().cast_signed());
        let task = format!("/proc/self/task/{}", own.0);
        let (mut found, mut others) = (0, 0);
        for folder in ["/proc/self", "/proc/thread-self", &task] {
            for entry in std::fs::read_dir(folder).expect("readable").flatten() {
                // Opening the file for writing has no effect by itself.
                let Ok(file) = OpenOptions::new().write(true).open(entry.path()) else {
                    continue;
                };
                let is_memory = inspector.is_memory_file(own, file.as_raw_fd());
                let is_called_so = entry.file_name() == "mem";
                assert_eq!(is_memory, Ok(is_called_so), "{}", entry.path().display());
                found += usize::from(is_called_so);
                others += usize::from(!is_called_so);
            }
        }
        assert!(found == 3 && others > 3, "{found} and {others}");
        // Reopened by another name.
        let memory = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        let memory = memory.expect("its own");
        let again = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let again = OpenOptions::new().write(true).open(again).expect("its own");
        assert_eq!(inspector.is_memory_file(own, again.as_raw_fd()), Ok(true));
        for path in ["/dev/null", "/dev/zero"] {
            let file = OpenOptions::new().write(true).open(path).expect("there");
            assert_eq!(inspector.is_memory_file(own, file.as_raw_fd()), Ok(false));
        }
        assert!(inspector.is_memory_file(own, 1 << 20).is_err());
    }
}
