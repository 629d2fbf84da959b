//! A process and its threads.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use event::{
    Comm, CommandLine, Container, Credentials, ExecutableFile, ExecutableFlags, Image, Lookup, Pid,
    Process, StartTime, Stat, Status,
};

use super::descriptor::Descriptors;
use crate::list::ThreadEntry;
use crate::note::ExactProcess;

/// One thread.
#[derive(Debug)]
pub(crate) struct Thread {
    pub(crate) tid: i64,
    pub(crate) process: usize,
    /// Name in the list before the events, and the program that the process ran then.
    pub(crate) listed: Option<(Comm, Arc<Image>)>,
}

impl Thread {
    pub(crate) fn new(tid: i64, process: usize) -> Self {
        Self {
            tid,
            process,
            listed: None,
        }
    }

    /// Returns the name that the list has for this thread of `process`; `None` for the first thread, for one that was
    /// created later, after an exec, and in recordings of this program, which have the process's name.
    pub(crate) fn name(&self, process: &ProcessEntry) -> Option<Comm> {
        let (name, image) = self.listed.as_ref()?;
        let is_valid = process.exact.is_none() && Arc::ptr_eq(image, &process.image);
        is_valid.then_some(*name)
    }
}

/// One process.
#[derive(Debug)]
pub(crate) struct ProcessEntry {
    pub(crate) process: Arc<Process>,
    pub(crate) image: Arc<Image>,
    /// Process id of the parent.
    pub(crate) parent: i64,
    pub(crate) stat: Option<Stat>,
    pub(crate) status: Option<Status>,
    pub(crate) login_uid: Option<u32>,
    pub(crate) cwd: Box<[u8]>,
    pub(crate) container: Arc<Container>,
    pub(crate) descriptors: Rc<Descriptors>,
    pub(crate) threads: usize,
    /// Only the process id is known.
    pub(crate) is_stranger: bool,
    /// This program's note, if it recorded the capture.
    pub(crate) exact: Option<Box<ExactProcess>>,
    /// Number of ancestors that the process keeps alive, at most.
    pub(crate) depth: usize,
    text_weight: usize,
}

/// Maximum number of ancestors that a process keeps: twice as many as rules can ask for.
pub(crate) const MAX_DEPTH: usize = 256;

/// Cuts the chain of ancestors after `kept`.
fn forget_ancestors(process: &Arc<Process>, kept: usize) {
    let mut last = Arc::clone(process);
    for _ in 0..kept {
        match last.parent() {
            Some(parent) => last = parent,
            None => return,
        }
    }
    last.set_parent(None);
}

/// Returns the number of ancestors with this parent. `None`: too many, or the process would be its
/// own ancestor, as in a hostile list.
fn depth_below(process: &Arc<Process>, parent: &Arc<Process>) -> Option<usize> {
    let mut next = Some(Arc::clone(parent));
    for depth in 0..MAX_DEPTH {
        let Some(ancestor) = next else {
            return Some(depth);
        };
        if Arc::ptr_eq(&ancestor, process) {
            return None;
        }
        next = ancestor.parent();
    }
    None
}

/// Value of an unset id in captures.
pub(crate) const NO_ID: u32 = u32::MAX;

impl ProcessEntry {
    /// Creates a missing process.
    pub(crate) fn nobody() -> Self {
        Self::stranger(-1)
    }

    /// Creates a process of which only the id is known.
    pub(crate) fn stranger(pid: i64) -> Self {
        let image = Arc::new(Image {
            command_line: OnceLock::from(None),
            executable: OnceLock::from(None),
            executable_file: OnceLock::from(None),
            executable_writable: OnceLock::from(None),
            environment: OnceLock::from(None),
            exec_time_ns: 0,
            name: OnceLock::new(),
        });
        let comm = Comm::new(b"<NA>");
        Self {
            process: Arc::new(process(pid, 0, None, &image, comm)),
            image,
            parent: -1,
            stat: None,
            status: None,
            login_uid: None,
            cwd: Box::default(),
            container: Arc::new(Container::host()),
            descriptors: Rc::default(),
            threads: 0,
            is_stranger: true,
            exact: None,
            depth: 0,
            text_weight: 0,
        }
    }

    /// Creates a process from the list before the events.
    pub(crate) fn of_entry(entry: &ThreadEntry<'_>) -> Self {
        let facts = Facts {
            pid: entry.pid,
            parent: entry.ptid,
            comm: entry.comm,
            exe: entry.exe,
            exe_path: Some(entry.exepath),
            args: entry.args,
            env: Some(entry.env),
            cwd: entry.cwd,
            cgroups: entry.cgroups,
            file: Some(ExecutableFile {
                flags: ExecutableFlags {
                    upper_layer: Some(entry.exe_upper_layer),
                    lower_layer: Some(entry.exe_lower_layer),
                    from_memfd: entry.exe_from_memfd,
                },
                inode: entry.exe_file.map_or(0, |[inode, ..]| inode),
                ctime_ns: entry.exe_file.map_or(0, |[_, ctime, _]| ctime),
                mtime_ns: entry.exe_file.map_or(0, |[.., mtime]| mtime),
            }),
            is_writable: Some(entry.exe_writable),
        };
        let mut held = facts.held(0, 0);
        let [inheritable, permitted, effective] = entry.capabilities.unwrap_or_default();
        let id = |id: Option<i64>| number(id.unwrap_or(-1));
        held.stat = Some(Stat {
            ppid: Pid(number(entry.ptid)),
            pgid: id(entry.pgid.filter(|pgid| *pgid >= 0).or(entry.vpgid)),
            sid: id(entry.sid),
            tty: entry.tty,
            tpgid: -1,
            threads: 1,
            vm_size_kib: u64::from(entry.vm_size_kib),
            vm_rss_kib: u64::from(entry.vm_rss_kib),
        });
        held.status = Some(Status {
            credentials: Credentials {
                uid: entry.uid,
                gid: entry.gid,
            },
            real_uid: entry.uid,
            cap_inheritable: inheritable,
            cap_permitted: permitted,
            cap_effective: effective,
            cap_bounding: 0,
            vpid: id(entry.vpid.or(Some(entry.pid))),
            vtid: id(entry.vtid.or(Some(entry.tid))),
            vpgid: id(entry.vpgid),
            vsid: id(entry.sid),
        });
        held.login_uid = entry.login_uid;
        held
    }

    /// Creates a child, which shares everything until either process changes it.
    pub(crate) fn child(&self, pid: i64, start_ns: u64) -> Self {
        let parent = (!self.is_stranger).then(|| Arc::clone(&self.process));
        let depth = if self.depth + 1 < MAX_DEPTH {
            self.depth + 1
        } else {
            forget_ancestors(&self.process, MAX_DEPTH / 2);
            MAX_DEPTH / 2 + 1
        };
        let comm = self.process.exec_name();
        let process = process(pid, start_ns, parent, &self.image, comm);
        Self {
            process: Arc::new(process),
            image: Arc::clone(&self.image),
            parent: i64::from(self.process.pid.0),
            stat: self.stat.map(|stat| Stat {
                ppid: self.process.pid,
                threads: 1,
                ..stat
            }),
            status: self.status,
            login_uid: self.login_uid,
            cwd: self.cwd.clone(),
            container: Arc::clone(&self.container),
            descriptors: Rc::clone(&self.descriptors),
            threads: 0,
            is_stranger: self.is_stranger,
            exact: None,
            depth,
            text_weight: self.text_weight,
        }
    }

    /// Applies an exec. Without an environment in the event, the old one stays.
    pub(crate) fn exec(&mut self, facts: &Facts<'_>, time_ns: u64) {
        let image = Arc::new(facts.image(time_ns));
        self.text_weight = facts.weight();
        self.process.exec(Arc::clone(&image), Comm::new(facts.comm));
        self.image = image;
        if !facts.cwd.is_empty() {
            self.cwd = directory(facts.cwd);
        }
        if !facts.cgroups.is_empty() {
            self.container = Arc::new(container(facts.cgroups));
        }
        self.is_stranger = false;
    }

    /// Returns true if the process's credentials are unknown.
    pub(crate) fn is_nameless(&self) -> bool {
        self.status
            .is_none_or(|status| status.credentials.uid == NO_ID)
    }

    /// Applies this program's note about the process.
    pub(crate) fn correct(&mut self, exact: ExactProcess) {
        let image = Image {
            exec_time_ns: self.image.exec_time_ns,
            name: OnceLock::from(self.process.exec_name()),
            command_line: cell(&exact.has_command_line, || {
                let line = self.image.command_line.get().cloned().flatten();
                line.map(|line| CommandLine {
                    truncated: exact.is_truncated,
                    ..line
                })
            }),
            executable: cell(&exact.has_executable, || {
                self.image.executable.get().cloned().flatten()
            }),
            executable_file: filled(&exact.file),
            executable_writable: filled(&exact.is_writable),
            environment: cell(&exact.has_environment, || {
                self.image.environment.get().cloned().flatten()
            }),
        };
        let image = Arc::new(image);
        let comm = self.process.last_comm();
        // Start time and image are those of the recording.
        let process = Process::new(
            self.process.pid,
            StartTime(exact.start),
            exact.start_ns,
            self.process.parent(),
            Arc::clone(&image),
            comm,
        );
        if process.start != self.process.start || process.start_ns != self.process.start_ns {
            self.process = Arc::new(process);
        } else {
            self.process.exec(Arc::clone(&image), comm);
        }
        self.image = image;
        self.container = Arc::clone(&exact.container);
        self.exact = Some(Box::new(exact));
    }

    /// Sets the parent, if there was none.
    pub(crate) fn adopt(&mut self, parent: Arc<Process>) {
        if self.process.parent().is_none()
            && let Some(depth) = depth_below(&self.process, &parent)
        {
            self.process.set_parent(Some(parent));
            self.depth = depth;
        }
    }

    /// Returns the approximate memory use in bytes.
    pub(crate) fn weight(&self) -> usize {
        size_of::<Self>()
            + size_of::<Process>()
            + size_of::<Image>()
            + self.cwd.len()
            + self.text_weight
            + self.descriptors.weight()
    }
}

/// Facts that the list and the events of process creation and exec have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'b> {
    pub(crate) pid: i64,
    pub(crate) parent: i64,
    pub(crate) comm: &'b [u8],
    pub(crate) exe: &'b [u8],
    /// `None` if the capture does not contain it, which differs from empty.
    pub(crate) exe_path: Option<&'b [u8]>,
    pub(crate) args: &'b [u8],
    pub(crate) env: Option<&'b [u8]>,
    pub(crate) cwd: &'b [u8],
    pub(crate) cgroups: &'b [u8],
    pub(crate) file: Option<ExecutableFile>,
    pub(crate) is_writable: Option<bool>,
}

impl Facts<'_> {
    /// Creates a process without credentials, session and parent.
    pub(crate) fn held(&self, start_ns: u64, exec_ns: u64) -> ProcessEntry {
        let image = Arc::new(self.image(exec_ns));
        let comm = Comm::new(self.comm);
        let process = process(self.pid, start_ns, None, &image, comm);
        ProcessEntry {
            process: Arc::new(process),
            image,
            parent: self.parent,
            cwd: directory(self.cwd),
            container: Arc::new(container(self.cgroups)),
            is_stranger: false,
            text_weight: self.weight(),
            ..ProcessEntry::nobody()
        }
    }

    fn image(&self, exec_time_ns: u64) -> Image {
        let line = CommandLine {
            exe: self.exe.to_vec(),
            args: arguments(self.args),
            truncated: false,
        };
        let path = self.exe_path.filter(|path| !path.is_empty());
        Image {
            exec_time_ns,
            name: OnceLock::from(Comm::new(self.comm)),
            command_line: OnceLock::from(Some(line)),
            executable: OnceLock::from(path.map(<[u8]>::to_vec)),
            executable_file: OnceLock::from(self.file),
            executable_writable: OnceLock::from(self.is_writable),
            environment: OnceLock::from(Some(self.env.unwrap_or_default().to_vec())),
        }
    }

    fn weight(&self) -> usize {
        let path = self.exe_path.unwrap_or_default().len();
        // Each argument is a vector, even an empty one.
        let vectors = self.args.iter().filter(|byte| **byte == 0).count();
        let args = self.args.len() + vectors * size_of::<Vec<u8>>();
        self.exe.len() + path + args + self.env.unwrap_or_default().len()
    }
}

/// Converts a lookup to an image's cell; empty for unknown facts.
fn filled<T: Copy>(fact: &Lookup<T>) -> OnceLock<Option<T>> {
    match fact {
        Lookup::Found(fact) => OnceLock::from(Some(*fact)),
        Lookup::Missing => OnceLock::from(None),
        Lookup::Unknown => OnceLock::new(),
    }
}

/// Converts a fact to an image's cell: present, absent, or empty for an unknown fact.
fn cell<T>(is: &Lookup<()>, fact: impl FnOnce() -> Option<T>) -> OnceLock<Option<T>> {
    match is {
        Lookup::Found(()) => OnceLock::from(fact()),
        Lookup::Missing => OnceLock::from(None),
        Lookup::Unknown => OnceLock::new(),
    }
}

fn process(
    pid: i64,
    start_ns: u64,
    parent: Option<Arc<Process>>,
    image: &Arc<Image>,
    comm: Comm,
) -> Process {
    let start = StartTime(start_ns);
    Process::new(
        Pid(number(pid)),
        start,
        start_ns,
        parent,
        Arc::clone(image),
        comm,
    )
}

/// Converts an id, which has 64 bits in captures and 31 in the kernel.
pub(crate) fn number(id: i64) -> i32 {
    i32::try_from(id).unwrap_or(-1)
}

/// Splits arguments that each end with a NUL.
fn arguments(args: &[u8]) -> Vec<Vec<u8>> {
    let args = args.strip_suffix(b"\0").unwrap_or(args);
    if args.is_empty() {
        return Vec::new();
    }
    args.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect()
}

/// Returns a directory without its trailing slash, except for the root.
pub(crate) fn directory(path: &[u8]) -> Box<[u8]> {
    match path.strip_suffix(b"/") {
        Some(path) if !path.is_empty() => path.into(),
        _ => path.into(),
    }
}

/// Returns the container that control groups name: `controller=path`, each ended by a NUL. Captures
/// contain what the recorder saw on the host, so a process without a container runs on the host.
pub(crate) fn container(cgroups: &[u8]) -> Container {
    let paths = cgroups.split(|byte| *byte == 0).filter_map(|group| {
        let (_, path) = std::str::from_utf8(group).ok()?.split_once('=')?;
        Some(path)
    });
    let identity = event::cgroup::identify_in_all(paths);
    identity.map_or_else(Container::host, event::cgroup::Identity::into_container)
}
