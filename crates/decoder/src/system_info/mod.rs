//! Information about the running system, for live engines.
//!
//! What may change at any moment (name of a thread, credentials, working directory) is read at each query;
//! what belongs to one program is kept in its [`Image`]. What `/proc` makes from kernel memory is read in
//! place; the program's own pages and files below its root are read through the [`Deadline`], except at an
//! exec stop, where the new image is still under the engine's control.
//!
//! A pid may be another process by the time it is read, so the start time is compared after each read. Of a
//! process that is gone the last command name, the image and the container are known; everything else is
//! unknown, never missing.

mod addresses;
mod descriptors;
mod executable;
mod layers;
mod writable;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bumpalo::Bump;
use event::EngineKind;
use event::{
    Comm, CommandLine, Container, Credentials, DescriptorKind, ExecutableFile, Group, Image,
    Lookup, Pid, Process, StartTime, Stat, Status, SystemInfo, Tid, User,
};

use container::{ContainerOptions, Containers};
use process_info::deadline::{Deadline, DeadlineCounts};
use process_info::procfs::{LINK_LIMIT, Proc, ProcError};
use process_info::sockets::{self, ResolvedDescriptor};
use process_info::users::{RootId, UserDatabase, UserDatabases};

use addresses::Resolver;
use executable::Mounts;
pub use executable::path as executable_path;
pub use writable::is_mapped;

/// Number of ended processes whose containers are remembered.
const CONTAINER_LIMIT: usize = 4096;
/// Number of threads that may be stuck in reads before further reads are refused.
const GUARD_THREADS: usize = 8;

/// Process tree of an engine, for rules that ask for processes by pid.
pub trait ProcessIndex: Send + Sync {
    /// Returns the process with this pid: `Missing` if there is none, `Unknown` if the engine cannot tell.
    fn process(&self, pid: Pid) -> Lookup<Arc<Process>>;

    /// Returns whether the process still runs; `None` if only `/proc` can tell.
    fn is_alive(&self, process: &Process) -> Option<bool> {
        let _ = process;
        None
    }

    /// Returns the credentials of the process's first thread; `None` if only `/proc` can tell.
    fn credentials(&self, process: &Process) -> Option<Credentials> {
        let _ = process;
        None
    }
}

/// Options of [`LiveSystemInfo`].
#[derive(Clone, Debug)]
pub struct SystemInfoOptions {
    /// Maximum time of one read of data that the watched program controls.
    pub deadline: Duration,
    /// Options for containers.
    pub container: ContainerOptions,
}

impl Default for SystemInfoOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_millis(20),
            container: ContainerOptions::default(),
        }
    }
}

/// System information from `/proc` and the system's files.
pub struct LiveSystemInfo {
    proc: Arc<Proc>,
    index: Arc<dyn ProcessIndex>,
    deadline: Deadline,
    time: Duration,
    containers: Containers,
    last_container: Mutex<HashMap<(Pid, StartTime), Arc<Container>>>,
    users: UserDatabases,
    own_root: Option<RootId>,
    mounts: Mounts,
    resolver: Resolver,
    host_name: String,
}

impl LiveSystemInfo {
    /// Opens `/proc` and finds the agent's own container. Reads nothing else before the first query.
    pub fn new(
        options: SystemInfoOptions,
        index: Arc<dyn ProcessIndex>,
    ) -> Result<Self, ProcError> {
        let proc = Arc::new(Proc::open()?);
        let agent = std::process::id().cast_signed();
        let containers = Containers::new(&proc, options.container)?;
        let own_root = root_id(&proc, agent).ok();
        Ok(Self {
            index,
            deadline: Deadline::new(GUARD_THREADS),
            time: options.deadline,
            containers,
            last_container: Mutex::default(),
            users: UserDatabases::default(),
            own_root,
            mounts: Mounts::default(),
            resolver: Resolver::default(),
            host_name: crate::host::host_name(),
            proc,
        })
    }

    /// Returns the reader of `/proc`.
    pub fn proc(&self) -> &Proc {
        &self.proc
    }

    /// Returns the pool for reads that may block.
    pub fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Returns the counts of reads that may block.
    pub fn deadline_counts(&self) -> DeadlineCounts {
        self.deadline.counts()
    }

    /// Returns the container that the agent runs in.
    pub fn own_container(&self) -> &Arc<Container> {
        self.containers.own()
    }

    /// Resolves an open descriptor of thread `tid` of process `pid`.
    pub fn descriptor(
        &self,
        pid: Pid,
        tid: Tid,
        number: i32,
    ) -> Result<ResolvedDescriptor, ProcError> {
        sockets::resolve(&self.proc, pid.0, tid.0, number, &self.deadline)
    }

    /// Returns the container of a process that can no longer be inspected, by its cgroups in the format of
    /// `/proc/PID/cgroup`, whether it was in the host's initial cgroup namespace, and its mount namespace.
    pub fn container_of_ended(
        &self,
        cgroups: &[u8],
        initial: bool,
        mount_namespace: u64,
    ) -> Container {
        self.containers.of_ended(cgroups, initial, mount_namespace)
    }

    /// Returns the mount namespace of a process; `None` if it has ended or may not be inspected.
    pub fn mount_namespace(&self, process: &Process) -> Option<u64> {
        let namespace = self.proc.namespace(process.pid.0, "ns/mnt").ok()?;
        self.is_alive(process).then_some(namespace)
    }

    /// Returns the current root of a process, and its users and groups; `None` if it cannot be read.
    pub fn rooted_users(&self, process: &Process) -> Option<(RootId, Arc<UserDatabase>)> {
        let root = root_id(&self.proc, process.pid.0).ok()?;
        if !self.is_alive(process) {
            return None;
        }
        let is_own = self.own_root == Some(root);
        let whose = if is_own { own_pid() } else { process.pid };
        let open = || self.open_root(whose);
        match self.users.of(root, open, &self.deadline, self.time) {
            Lookup::Found(database) => Some((root, database)),
            Lookup::Missing | Lookup::Unknown => None,
        }
    }

    /// Returns the agent's root.
    pub fn own_root(&self) -> Option<RootId> {
        self.own_root
    }

    /// Returns the users and groups that the agent sees.
    pub fn own_database(&self) -> Option<Arc<UserDatabase>> {
        let root = self.own_root?;
        let found = self.users.of(
            root,
            || self.open_root(own_pid()),
            &self.deadline,
            self.time,
        );
        match found {
            Lookup::Found(database) => Some(database),
            Lookup::Missing | Lookup::Unknown => None,
        }
    }

    /// Returns whether the latest reads of the pid were about this process running this image.
    fn was_about(&self, process: &Process, image: &Image) -> bool {
        std::ptr::eq(Arc::as_ptr(&process.image()), image) && self.is_alive(process)
    }

    fn is_alive(&self, process: &Process) -> bool {
        let by_start = || self.proc.stat_of(process.pid.0, process.start).is_ok();
        !process.has_exited() && self.index.is_alive(process).unwrap_or_else(by_start)
    }

    /// Returns a fact that belongs to an image: cached, or read now if the image is still running.
    fn of_image<T: Clone>(
        &self,
        process: &Process,
        image: &Image,
        cell: &OnceLock<Option<T>>,
        read: impl FnOnce() -> Result<Option<T>, ()>,
    ) -> Lookup<T> {
        if cell.get().is_none() && !process.has_exited() {
            let Ok(fact) = read() else {
                return Lookup::Unknown;
            };
            if !self.was_about(process, image) {
                return Lookup::Unknown;
            }
            let _ = cell.set(fact);
        }
        match cell.get() {
            Some(Some(fact)) => Lookup::Found(fact.clone()),
            Some(None) => Lookup::Missing,
            None => Lookup::Unknown,
        }
    }

    /// Reads the process's own pages, which may never be available.
    fn guarded<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Proc) -> Result<T, ProcError> + Send + 'static,
    ) -> Result<T, ()> {
        let proc = Arc::clone(&self.proc);
        match self.deadline.run(self.time, move || read(&proc)) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(()),
        }
    }

    fn read_executable_file(&self, pid: i32) -> Result<ExecutableFile, ProcError> {
        executable::file(
            &self.proc,
            &self.mounts,
            self.containers.sees_sources_of_mounts(),
            pid,
        )
    }

    fn database(&self, process: &Process) -> Lookup<Arc<UserDatabase>> {
        self.rooted_users(process)
            .map_or(Lookup::Unknown, |(_, database)| Lookup::Found(database))
    }

    fn open_root(&self, pid: Pid) -> Option<OwnedFd> {
        self.proc.open_path(pid.0, "root").ok()
    }
}

fn own_pid() -> Pid {
    Pid(std::process::id().cast_signed())
}

fn root_id(proc: &Proc, pid: i32) -> Result<RootId, ProcError> {
    let root = proc.stat_link(pid, "root")?;
    Ok(RootId {
        device: sockets::device_number(&root),
        inode: root.stx_ino,
        mount: root.stx_mnt_id,
    })
}

fn found<T>(answer: Result<T, ProcError>) -> Lookup<T> {
    answer.map_or_else(ProcError::into_lookup, Lookup::Found)
}

impl SystemInfo for LiveSystemInfo {
    // Reads the arguments in place: nothing of the new program has run, so its stack is ordinary memory.
    fn describe_at_exec(&self, process: &Process, image: &Image, with_file: bool) {
        let pid = process.pid.0;
        if image.command_line.get().is_none()
            && let Ok(line) = self.proc.command_line(pid)
        {
            let _ = image.command_line.set(Some(line));
        }
        if let Ok(path) = executable::path(&self.proc, pid) {
            let _ = image.executable.set(Some(path));
        }
        if with_file && let Ok(file) = self.read_executable_file(pid) {
            let _ = image.executable_file.set(Some(file));
            let writable = executable::is_writable(&self.proc, &self.mounts, pid);
            let _ = image.executable_writable.set(writable.ok());
        }
    }

    fn comm(&self, process: &Process) -> Lookup<Comm> {
        if let Some(name) = process.name() {
            return Lookup::Found(name);
        }
        if !process.has_exited()
            && let Ok(comm) = self.proc.comm(process.pid.0)
            && self.is_alive(process)
        {
            process.set_last_comm(comm);
        }
        Lookup::Found(process.last_comm())
    }

    fn thread_name(&self, process: &Process, tid: Tid) -> Lookup<Comm> {
        match self.proc.comm(tid.0) {
            Ok(comm) if self.is_alive(process) => Lookup::Found(comm),
            _ => Lookup::Unknown,
        }
    }

    fn stat(&self, process: &Process) -> Lookup<Stat> {
        if process.has_exited() {
            return Lookup::Unknown;
        }
        found(
            self.proc
                .stat_of(process.pid.0, process.start)
                .map(|stat| stat.stat),
        )
    }

    fn status(&self, process: &Process, tid: Tid) -> Lookup<Status> {
        if process.has_exited() {
            return Lookup::Unknown;
        }
        match self.proc.status(tid.0) {
            Ok(status) if status.tgid == process.pid.0 => Lookup::Found(status.status),
            _ => Lookup::Unknown,
        }
    }

    fn credentials(&self, process: &Process, tid: Tid) -> Lookup<Credentials> {
        let leads = tid.0 == process.pid.0 && !process.has_exited();
        if let Some(credentials) = leads.then(|| self.index.credentials(process)).flatten() {
            return Lookup::Found(credentials);
        }
        match self.status(process, tid) {
            Lookup::Found(status) => Lookup::Found(status.credentials),
            _ => Lookup::Unknown,
        }
    }

    fn command_line(&self, process: &Process, image: &Image) -> Lookup<CommandLine> {
        let pid = process.pid.0;
        self.of_image(process, image, &image.command_line, || {
            let line = self.guarded(move |proc| proc.command_line(pid))?;
            // Kernel threads have none, and neither has a process that is ending.
            let is_empty = line.exe.is_empty() && line.args.is_empty();
            if is_empty { Err(()) } else { Ok(Some(line)) }
        })
    }

    fn executable(&self, process: &Process, image: &Image) -> Lookup<Vec<u8>> {
        self.of_image(process, image, &image.executable, || {
            let path = executable::path(&self.proc, process.pid.0);
            path.map(Some).map_err(drop)
        })
    }

    fn executable_file(&self, process: &Process, image: &Image) -> Lookup<ExecutableFile> {
        self.of_image(process, image, &image.executable_file, || {
            let file = self.read_executable_file(process.pid.0);
            file.map(Some).map_err(drop)
        })
    }

    fn executable_writable(&self, process: &Process, image: &Image) -> Lookup<bool> {
        self.of_image(process, image, &image.executable_writable, || {
            let writable = executable::is_writable(&self.proc, &self.mounts, process.pid.0);
            writable.map(Some).map_err(drop)
        })
    }

    fn environment(&self, process: &Process, image: &Image) -> Lookup<Vec<u8>> {
        let pid = process.pid.0;
        self.of_image(process, image, &image.environment, || {
            self.guarded(move |proc| proc.environment(pid)).map(Some)
        })
    }

    fn login_uid(&self, process: &Process) -> Lookup<u32> {
        match self.proc.login_uid(process.pid.0) {
            Ok(uid) if self.is_alive(process) => uid.map_or(Lookup::Missing, Lookup::Found),
            _ => Lookup::Unknown,
        }
    }

    fn directory<'a>(
        &self,
        tid: Tid,
        descriptor: Option<i32>,
        arena: &'a Bump,
    ) -> Lookup<&'a [u8]> {
        let mut buffer = [0; LINK_LIMIT];
        let link = match descriptor {
            None => self.proc.link(tid.0, "cwd", &mut buffer),
            Some(number) => self.proc.descriptor_link(tid.0, number, &mut buffer),
        };
        match link {
            // Outside the agent's root the kernel says `(unreachable)`, other objects have no path.
            Ok(path) if path.starts_with(b"/") => Lookup::Found(&*arena.alloc_slice_copy(path)),
            _ => Lookup::Unknown,
        }
    }

    fn container(&self, process: &Process) -> Arc<Container> {
        let key = (process.pid, process.start);
        let now = match self.containers.of(&self.proc, process.pid.0) {
            Ok(container) if self.is_alive(process) => Some(container),
            _ => None,
        };
        let mut last = self
            .last_container
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match now {
            Some(container) => {
                if last.len() >= CONTAINER_LIMIT {
                    last.clear();
                }
                last.insert(key, Arc::clone(&container));
                container
            }
            None => last
                .get(&key)
                .cloned()
                .unwrap_or_else(|| Arc::new(Container::unknown())),
        }
    }

    fn user(&self, process: &Process, uid: u32) -> Lookup<Arc<User>> {
        match self.database(process) {
            Lookup::Found(database) => database.user(uid).map_or(Lookup::Missing, Lookup::Found),
            Lookup::Missing | Lookup::Unknown => Lookup::Unknown,
        }
    }

    fn group(&self, process: &Process, gid: u32) -> Lookup<Arc<Group>> {
        match self.database(process) {
            Lookup::Found(database) => database.group(gid).map_or(Lookup::Missing, Lookup::Found),
            Lookup::Missing | Lookup::Unknown => Lookup::Unknown,
        }
    }

    fn process(&self, pid: Pid) -> Lookup<Arc<Process>> {
        self.index.process(pid)
    }

    fn addresses(&self, host_name: &str) -> Lookup<Arc<[IpAddr]>> {
        self.resolver.addresses(host_name)
    }

    fn asked_addresses(&self) -> Vec<(String, Lookup<Arc<[IpAddr]>>)> {
        self.resolver.asked()
    }

    fn descriptor_type(&self, tid: Tid, number: i32) -> Lookup<DescriptorKind> {
        found(sockets::kind(&self.proc, tid.0, number, &self.deadline))
    }

    fn open_descriptors<'a>(&self, tid: Tid, arena: &'a Bump) -> Lookup<&'a [i32]> {
        descriptors::numbers(&self.proc, tid, arena)
    }

    fn descriptor_name<'a>(&self, tid: Tid, number: i32, arena: &'a Bump) -> Lookup<&'a [u8]> {
        descriptors::name(&self.proc, tid, number, &self.deadline, arena)
    }

    /// Both engines that this type serves fill the same fields.
    fn engine(&self) -> Option<EngineKind> {
        Some(EngineKind::Notify)
    }

    fn host_name(&self) -> &str {
        &self.host_name
    }
}

#[cfg(test)]
mod tests;
