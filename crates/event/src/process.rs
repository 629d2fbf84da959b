//! Processes as events see them.
//!
//! A [`Process`] lives as long as its pid means the same task; an [`Image`] lives from one exec to
//! the next. What cannot change within an image is cached in it; what can change at any moment
//! (credentials, command name, working directory) is asked of the [`crate::World`] once an event.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Process id (thread group id) in the agent's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pid(pub i32);

/// Thread id in the agent's pid namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tid(pub i32);

/// When a process started, in the kernel's clock ticks since boot (`/proc/PID/stat` field 22).
/// Together with the pid it names a process for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StartTime(pub u64);

/// A command name of at most 15 bytes, as the kernel keeps it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Comm {
    bytes: [u8; 15],
    len: u8,
}

impl Comm {
    /// Keeps the first 15 bytes, as the kernel does.
    pub fn new(name: &[u8]) -> Self {
        let len = name.len().min(15);
        let mut bytes = [0; 15];
        bytes[..len].copy_from_slice(&name[..len]);
        Self {
            bytes,
            len: u8::try_from(len).expect("at most 15"),
        }
    }

    /// The name.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for Comm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// A program's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CommandLine {
    /// `argv[0]`: Falco's `proc.exe`.
    pub exe: Vec<u8>,
    /// `argv[1..]`.
    pub args: Vec<Vec<u8>>,
    /// Whether the rest was cut off at the reader's limit.
    pub truncated: bool,
}

/// Facts about where the executable came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExecutableFlags {
    /// The file lies in the upper layer of an overlay file system; `None` if that cannot be told.
    pub upper_layer: Option<bool>,
    /// The file lies in a lower layer.
    pub lower_layer: Option<bool>,
    /// The file is a memfd.
    pub from_memfd: bool,
}

/// The executable file of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutableFile {
    /// Where it came from.
    pub flags: ExecutableFlags,
    /// Inode number.
    pub inode: u64,
    /// Status change time, nanoseconds since the epoch.
    pub ctime_ns: u64,
    /// Modification time, nanoseconds since the epoch.
    pub mtime_ns: u64,
}

/// What `/proc/PID/stat` tells and can change.
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
    /// Virtual memory in KiB, resident memory in KiB.
    pub vm_size_kib: u64,
    /// Resident memory in KiB.
    pub vm_rss_kib: u64,
}

/// What `/proc/TID/status` tells and can change.
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
    /// Pid, process group and session in the process's own pid namespace.
    pub vpid: i32,
    /// Thread id in the process's own pid namespace.
    pub vtid: i32,
    /// Process group in its own pid namespace.
    pub vpgid: i32,
    /// Session in its own pid namespace.
    pub vsid: i32,
}

/// Who a thread acts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
}

/// One program in one process: from exec to exec. A forked child shares its parent's image.
#[derive(Debug, Default)]
pub struct Image {
    /// When the exec was seen, nanoseconds since the epoch; 0 if it was before the watch began.
    pub exec_time_ns: u64,
    /// Command name that the kernel gave the process at the exec, whatever the program calls itself later;
    /// of a program that ran before the watch began the name that was seen first. Empty: not known.
    pub name: OnceLock<Comm>,
    /// Filled by the engine at exec, or on first need.
    pub command_line: OnceLock<Option<CommandLine>>,
    /// Path of the executable: `/proc/PID/exe`; of a deleted file without the kernel's
    /// ` (deleted)` suffix. Filled by the engine at exec, or on first need.
    pub executable: OnceLock<Option<Vec<u8>>>,
    /// Filled on first need; at exec if the plan says so ([`crate::Plan::executable_file`]).
    pub executable_file: OnceLock<Option<ExecutableFile>>,
    /// Whether the user who runs the executable may write it; filled together with the facts about
    /// the file, or on first need: it takes the credentials, too.
    pub executable_writable: OnceLock<Option<bool>>,
    /// NUL-separated environment; filled on first need.
    pub environment: OnceLock<Option<Vec<u8>>>,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub pid: Pid,
    /// When it started.
    pub start: StartTime,
    /// The same as nanoseconds since the epoch.
    pub start_ns: u64,
    /// See [`Process::sets_up`].
    sets_up: AtomicBool,
    /// See [`Process::may_share_memory`].
    may_share_memory: AtomicBool,
    children_may_share_memory: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    parent: Option<Arc<Process>>,
    image: Arc<Image>,
    /// Images before the present one, the oldest first.
    former: Vec<Arc<Image>>,
    comm: Comm,
    /// Names that the process gave itself and that were reported.
    reported_names: Vec<Comm>,
    exited: bool,
}

/// Images that a process remembers beside the present one: a child that is seen late runs one of them.
const FORMER_IMAGES: usize = 4;

impl Process {
    /// A process that has just been learnt of.
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
        });
        Self {
            pid,
            start,
            start_ns,
            sets_up: AtomicBool::new(false),
            may_share_memory: AtomicBool::new(false),
            children_may_share_memory: AtomicBool::new(false),
            state,
        }
    }

    /// The parent, by true parentage: a re-parented orphan keeps the process that made it.
    pub fn parent(&self) -> Option<Arc<Process>> {
        self.state().parent.clone()
    }

    /// Corrects the parent.
    pub fn set_parent(&self, parent: Option<Arc<Process>>) {
        self.state().parent = parent;
    }

    /// The present image.
    pub fn image(&self) -> Arc<Image> {
        Arc::clone(&self.state().image)
    }

    /// Replaces the image: an exec succeeded. `comm` is the name that it gave the process.
    pub fn exec(&self, image: Arc<Image>, comm: Comm) {
        let _ = self.replace_image(image, comm);
    }

    /// The same, and remembers the image before for children that were forked from it and are seen later.
    pub fn exec_after_forks(&self, image: Arc<Image>, comm: Comm) {
        let before = self.replace_image(image, comm);
        let mut state = self.state();
        if state.former.len() == FORMER_IMAGES {
            state.former.remove(0);
        }
        state.former.push(before);
    }

    fn replace_image(&self, image: Arc<Image>, comm: Comm) -> Arc<Image> {
        // Fails if the image has its name already, which then is the one at the exec.
        let _ = image.name.set(comm);
        let mut state = self.state();
        state.comm = comm;
        state.reported_names = Vec::new();
        std::mem::replace(&mut state.image, image)
    }

    /// The present image and those before it that are remembered, the newest first.
    pub fn images(&self) -> Vec<Arc<Image>> {
        let state = self.state();
        let images = std::iter::once(&state.image).chain(state.former.iter().rev());
        images.cloned().collect()
    }

    /// Command name at the last exec; `None` if that is not known.
    pub fn name(&self) -> Option<Comm> {
        self.state().image.name.get().copied()
    }

    /// The same, or where it is not known the name that was seen last.
    pub fn exec_name(&self) -> Comm {
        let state = self.state();
        state.image.name.get().copied().unwrap_or(state.comm)
    }

    /// Takes `name` for the one at the last exec, unless that is known.
    pub fn set_name(&self, name: Comm) {
        let _ = self.image().name.set(name);
    }

    /// Whether `name`, which the process gave itself since its last exec, has not been reported yet. It
    /// counts as reported from now on.
    pub fn reports_name(&self, name: Comm) -> bool {
        let mut state = self.state();
        let is_new = !state.reported_names.contains(&name);
        if is_new {
            state.reported_names.push(name);
        }
        is_new
    }

    /// The present command name as it was seen last: programs can change theirs.
    pub fn last_comm(&self) -> Comm {
        self.state().comm
    }

    /// Remembers a command name that was read from the kernel.
    pub fn set_last_comm(&self, comm: Comm) {
        self.state().comm = comm;
    }

    /// Whether it belongs to a container runtime that sets the container up, and is no process of the
    /// container yet. What it does is not judged.
    pub fn sets_up(&self) -> bool {
        self.sets_up.load(Ordering::Acquire)
    }

    /// Says whether it does.
    pub fn set_sets_up(&self, sets_up: bool) {
        self.sets_up.store(sets_up, Ordering::Release);
    }

    /// Whether it may have come with memory that other processes can write, and has called no exec since.
    pub fn may_share_memory(&self) -> bool {
        self.may_share_memory.load(Ordering::Acquire)
    }

    /// Says whether it may.
    pub fn set_may_share_memory(&self, may: bool) {
        self.may_share_memory.store(may, Ordering::Release);
    }

    /// Whether processes that it made may have come with such memory.
    pub fn children_may_share_memory(&self) -> bool {
        self.children_may_share_memory.load(Ordering::Acquire)
    }

    /// Says that they may: also those that it made before an exec and that are seen later.
    pub fn set_children_may_share_memory(&self) {
        self.children_may_share_memory
            .store(true, Ordering::Release);
    }

    /// Whether its end was seen; from then on only remembered facts hold.
    pub fn has_exited(&self) -> bool {
        self.state().exited
    }

    /// Records its end.
    pub fn set_exited(&self) {
        self.state().exited = true;
    }

    /// Gives the parent up.
    fn take_parent(&self) -> Option<Arc<Process>> {
        self.state().parent.take()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section is a few moves that cannot panic, so a poisoned lock holds
        // consistent data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One after the other: where each process makes the next and ends, the chain is as long as the workload
/// likes, and dropping it by recursion needs as much stack.
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
