//! Processes and their program images.
//!
//! A [`Process`] lives as long as its pid refers to the same task; an [`Image`] lives from one exec to the
//! next. Facts that cannot change within an image are cached in it; facts that can change at any moment
//! (credentials, command name, working directory) are queried from [`crate::SystemInfo`] once per event.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use denial::Denials;

pub(crate) mod denial;
mod denied;

/// Process id (thread group id) in the agent's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub i32);

/// Thread id in the agent's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub i32);

/// Start time of a process in the kernel's clock ticks since boot (`/proc/PID/stat` field 22). Pid and start
/// time together identify a process for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StartTime(pub u64);

/// A command name of at most 15 bytes, the kernel's limit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Comm {
    bytes: [u8; 15],
    len: u8,
}

impl Comm {
    /// Creates a name from the first 15 bytes, as the kernel does.
    pub fn new(name: &[u8]) -> Self {
        let len = name.len().min(15);
        let mut bytes = [0; 15];
        bytes[..len].copy_from_slice(&name[..len]);
        Self {
            bytes,
            len: u8::try_from(len).expect("at most 15"),
        }
    }

    /// Returns the name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// The arguments of a program.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CommandLine {
    /// `argv[0]`: Falco's `proc.exe`.
    pub exe: Vec<u8>,
    /// `argv[1..]`.
    pub args: Vec<Vec<u8>>,
    /// Whether the arguments were cut off at the reader's limit.
    pub truncated: bool,
}

/// Facts about the origin of an executable file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExecutableFlags {
    /// Whether the file lies in the upper layer of an overlay file system; `None` if unknown.
    pub upper_layer: Option<bool>,
    /// Whether the file lies in a lower layer; `None` if unknown.
    pub lower_layer: Option<bool>,
    /// Whether the file is a memfd.
    pub from_memfd: bool,
}

/// The executable file of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutableFile {
    /// Origin of the file.
    pub flags: ExecutableFlags,
    /// Inode number.
    pub inode: u64,
    /// Status change time, nanoseconds since the epoch.
    pub ctime_ns: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: u64,
}

/// Mutable facts from `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Parent's pid.
    pub ppid: Pid,
    /// Process group.
    pub pgid: i32,
    /// Session.
    pub sid: i32,
    /// Controlling terminal's device number, 0 for none (`proc.tty`).
    pub tty: u32,
    /// Terminal's foreground process group.
    pub tpgid: i32,
    /// Number of threads.
    pub threads: u32,
    /// Virtual memory in KiB.
    pub vm_size_kib: u64,
    /// Resident memory in KiB.
    pub vm_rss_kib: u64,
}

/// Mutable facts from `/proc/TID/status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Effective user and group.
    pub credentials: Credentials,
    /// Real user id.
    pub real_uid: u32,
    /// Inheritable capabilities.
    pub cap_inheritable: u64,
    /// Permitted capabilities.
    pub cap_permitted: u64,
    /// Effective capabilities.
    pub cap_effective: u64,
    /// Bounding set.
    pub cap_bounding: u64,
    /// Pid in the process's own pid namespace.
    pub vpid: i32,
    /// Thread id in the process's own pid namespace.
    pub vtid: i32,
    /// Process group in its own pid namespace.
    pub vpgid: i32,
    /// Session in its own pid namespace.
    pub vsid: i32,
}

/// Effective user and group of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// One program in one process, from exec to exec. A forked child shares its parent's image.
#[derive(Debug, Default)]
pub struct Image {
    /// Time at which the exec was seen, in nanoseconds since the epoch; 0 if the exec precedes the start of
    /// monitoring.
    pub exec_time_ns: u64,
    /// Command name that the kernel gave the process at the exec, even if the program renamed itself later.
    /// For a program that ran before monitoring began, the first name seen. Empty if unknown.
    pub name: OnceLock<Comm>,
    /// Command line. Filled by the engine at exec, or on first need.
    pub command_line: OnceLock<Option<CommandLine>>,
    /// Path of the executable: `/proc/PID/exe`, without the kernel's ` (deleted)` suffix of a deleted file.
    /// Filled by the engine at exec, or on first need.
    pub executable: OnceLock<Option<Vec<u8>>>,
    /// Executable file. Filled on first need; at exec if the plan says so ([`crate::Plan::executable_file`]).
    pub executable_file: OnceLock<Option<ExecutableFile>>,
    /// Whether the user who runs the executable may write it. Filled together with the facts about the file,
    /// or on first need, because it also needs the credentials.
    pub executable_writable: OnceLock<Option<bool>>,
    /// NUL-separated environment. Filled on first need.
    pub environment: OnceLock<Option<Vec<u8>>>,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Process id.
    pub pid: Pid,
    /// Start time in clock ticks since boot.
    pub start: StartTime,
    /// Start time in nanoseconds since the epoch.
    pub start_ns: u64,
    /// See [`Process::sets_up`].
    sets_up: AtomicBool,
    /// See [`Process::may_share_memory`].
    may_share_memory: AtomicBool,
    children_may_share_memory: AtomicBool,
    /// See [`Process::set_has_entered`].
    has_entered: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    parent: Option<Arc<Process>>,
    image: Arc<Image>,
    /// Images before the current one, oldest first.
    former: Vec<Arc<Image>>,
    comm: Comm,
    /// Names that the process took and that were reported.
    reported_names: Vec<Comm>,
    exited: bool,
    /// Calls that fail, and denials of ancestors that leave the process out.
    denials: Denials,
    /// The parent is the likeliest one, and not certain.
    has_likely_parent: bool,
}

impl State {
    fn certain_parent(&self) -> Option<Arc<Process>> {
        self.parent.clone().filter(|_| !self.has_likely_parent)
    }
}

/// Number of previous images that a process remembers: a child that is seen late runs one of them.
const FORMER_IMAGES: usize = 4;

impl Process {
    /// Creates a process that was just discovered.
    pub fn new(
        pid: Pid,
        start: StartTime,
        start_ns: u64,
        parent: Option<Arc<Process>>,
        image: Arc<Image>,
        comm: Comm,
    ) -> Self {
        let state = Mutex::new(State {
            parent,
            image,
            former: Vec::new(),
            comm,
            reported_names: Vec::new(),
            exited: false,
            denials: Denials::default(),
            has_likely_parent: false,
        });
        Self {
            pid,
            start,
            start_ns,
            sets_up: AtomicBool::new(false),
            may_share_memory: AtomicBool::new(false),
            children_may_share_memory: AtomicBool::new(false),
            has_entered: AtomicBool::new(false),
            state,
        }
    }

    /// Returns the parent by true parentage: for a re-parented orphan, the process that created it.
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.state().parent.clone()
    }

    /// Sets the parent that is certain, in the place of a likely one.
    pub fn set_certain_parent(&self, parent: Arc<Process>) {
        let mut state = self.state();
        state.parent = Some(parent);
        state.has_likely_parent = false;
    }

    /// Replaces the parent.
    pub fn set_parent(&self, parent: Option<Arc<Process>>) {
        self.state().parent = parent;
    }

    /// Returns the current image.
    pub fn image(&self) -> Arc<Image> {
        Arc::clone(&self.state().image)
    }

    /// Replaces the image after a successful exec. `comm` is the name that the exec gave the process.
    pub fn exec(&self, image: Arc<Image>, comm: Comm) {
        let _ = self.replace_image(image, comm);
    }

    /// Replaces the image, and remembers the previous one for children that were forked from it and are seen
    /// later.
    pub fn exec_after_forks(&self, image: Arc<Image>, comm: Comm) {
        let before = self.replace_image(image, comm);
        let mut state = self.state();
        if state.former.len() == FORMER_IMAGES {
            state.former.remove(0);
        }
        state.former.push(before);
    }

    fn replace_image(&self, image: Arc<Image>, comm: Comm) -> Arc<Image> {
        // Fails if the image already has its name, which is then the one at the exec.
        let _ = image.name.set(comm);
        let mut state = self.state();
        state.comm = comm;
        state.reported_names = Vec::new();
        std::mem::replace(&mut state.image, image)
    }

    /// Returns the current image and the remembered previous ones, newest first.
    pub fn images(&self) -> Vec<Arc<Image>> {
        let state = self.state();
        let images = std::iter::once(&state.image).chain(state.former.iter().rev());
        images.cloned().collect()
    }

    /// Returns the command name at the last exec; `None` if unknown.
    pub fn name(&self) -> Option<Comm> {
        self.state().image.name.get().copied()
    }

    /// Returns the command name at the last exec or, if unknown, the last name seen.
    pub fn exec_name(&self) -> Comm {
        let state = self.state();
        state.image.name.get().copied().unwrap_or(state.comm)
    }

    /// Sets the command name at the last exec, unless it is known.
    pub fn set_name(&self, name: Comm) {
        let _ = self.image().name.set(name);
    }

    /// Returns true if `name`, which the process took since its last exec, has not been reported yet, and
    /// marks it as reported.
    pub fn reports_name(&self, name: Comm) -> bool {
        let mut state = self.state();
        let is_new = !state.reported_names.contains(&name);
        if is_new {
            state.reported_names.push(name);
        }
        is_new
    }

    /// Returns the last command name seen. Programs can change theirs.
    pub fn last_comm(&self) -> Comm {
        self.state().comm
    }

    /// Records a command name that was read from the kernel.
    pub fn set_last_comm(&self, comm: Comm) {
        self.state().comm = comm;
    }

    /// Returns true if the process belongs to a container runtime that is setting the container up, and is
    /// not yet a process of the container. Its events are not evaluated.
    pub fn sets_up(&self) -> bool {
        self.sets_up.load(Ordering::Acquire)
    }

    /// Sets the value of [`Process::sets_up`].
    pub fn set_sets_up(&self, sets_up: bool) {
        self.sets_up.store(sets_up, Ordering::Release);
    }

    /// Returns true if the process may have been created with memory that other processes can write, and has
    /// not called exec since.
    pub fn may_share_memory(&self) -> bool {
        self.may_share_memory.load(Ordering::Acquire)
    }

    /// Sets the value of [`Process::may_share_memory`].
    pub fn set_may_share_memory(&self, may: bool) {
        self.may_share_memory.store(may, Ordering::Release);
    }

    /// Returns true if processes that it created may share memory that other processes can write.
    pub fn children_may_share_memory(&self) -> bool {
        self.children_may_share_memory.load(Ordering::Acquire)
    }

    /// Records that its children may share memory, including children that it created before an exec and that
    /// are seen later.
    pub fn set_children_may_share_memory(&self) {
        self.children_may_share_memory
            .store(true, Ordering::Release);
    }

    /// Records that the parent is the likeliest one, and not certain.
    pub fn set_has_likely_parent(&self) {
        self.state().has_likely_parent = true;
    }

    /// Returns true if the process's exit was seen; from then on only remembered facts hold.
    pub fn has_exited(&self) -> bool {
        self.state().exited
    }

    /// Records the exit of the process.
    pub fn set_exited(&self) {
        self.state().exited = true;
    }

    /// Takes the parent out of the process.
    fn take_parent(&self) -> Option<Arc<Process>> {
        self.state().parent.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section is a few moves that cannot panic, so a poisoned lock holds
        // consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Drops the chain of parents iteratively. A workload in which each process creates the next and exits makes
/// the chain as long as it likes, and a recursive drop would need as much stack.
impl Drop for Process {
    fn drop(&mut self) {
        let mut last = self.take_parent().and_then(Arc::into_inner);
        while let Some(process) = last {
            last = process.take_parent().and_then(Arc::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_of_processes_ends_without_a_deep_stack() {
        let mut parent = None;
        for pid in 0..200_000 {
            let image = Arc::new(Image::default());
            let comm = Comm::new(b"generation");
            let process = Process::new(Pid(pid), StartTime(0), 0, parent, image, comm);
            parent = Some(Arc::new(process));
        }
        let line = parent.clone();
        drop(parent);
        let ends = std::thread::Builder::new().stack_size(64 << 10);
        let ended = ends.spawn(move || drop(line)).map(|thread| thread.join());
        assert!(ended.expect("a thread").is_ok());
    }
}
