//! What happens to a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use e2e::FoundProcess;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};

use crate::workload::Watched;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGSEGV, sent until the process has ended: Rust's handler of stack overflows takes the first one.
    Crash,
    /// SIGSTOP, and never SIGCONT.
    Stop,
    /// A quota of a control group that lets it run for a thousandth of the time, for a while.
    Starve,
    /// A control group without memory.
    OutOfMemory,
    /// A limit of as many descriptors as are open, for a while.
    OutOfDescriptors,
    /// The disk of the alerts is full, for a while.
    OutOfSpace,
}

impl Fault {
    /// Has it happen to a process of the run. Returns once it is over, and the process may be mended.
    pub(crate) fn strike(self, watched: &Watched, process: &FoundProcess) {
        match self {
            // None of the two reaches a process that has just ended.
            Self::Kill => _ = process.send(Signal::KILL),
            Self::Stop => _ = process.send(Signal::STOP),
            Self::Crash => crash(process),
            Self::Starve => {
                let group = Group::new("cpu");
                group.set("cpu.cfs_period_us", "1000000");
                group.set("cpu.cfs_quota_us", "1000");
                group.enter(process);
                sleep(Duration::from_millis(700));
            }
            Self::OutOfMemory => {
                // Pages that the process has already stay with its former group; it gets no more.
                let group = Group::new("memory");
                group.set("memory.limit_in_bytes", "0");
                group.enter(process);
                sleep(Duration::from_millis(300));
            }
            Self::OutOfDescriptors => starve_of_descriptors(process),
            Self::OutOfSpace => {
                watched.disk().fill(true);
                sleep(Duration::from_millis(150));
                watched.disk().fill(false);
            }
        }
    }

    /// Returns true if it ends the process.
    pub(crate) fn is_fatal(self) -> bool {
        matches!(self, Self::Kill | Self::Crash | Self::Stop)
    }

    /// Returns the control groups of the first version that it needs; `None` if it needs none.
    pub(crate) fn controller(self) -> Option<&'static Path> {
        match self {
            Self::Starve => Some(Path::new("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")),
            Self::OutOfMemory => Some(Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes")),
            _ => None,
        }
    }
}

/// Sends SIGSEGV until the process has ended, whether its parent has noticed or not.
fn crash(process: &FoundProcess) {
    for _ in 0..1000 {
        if !process.send(Signal::SEGV) || process.ends_within(Duration::from_millis(1)) {
            return;
        }
    }
    panic!("process {} does not crash", process.pid());
}

/// Takes all further descriptors away, has outputs reopened meanwhile, and gives them back.
fn starve_of_descriptors(process: &FoundProcess) {
    let pid = Pid::from_raw(process.pid());
    let names = fs::read_dir(format!("/proc/{}/fd", process.pid()))
        .into_iter()
        .flatten()
        .flatten();
    let highest = names
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok())
        .max();
    let limit = |current| Rlimit {
        current,
        maximum: None,
    };
    // A limit has no descriptor to name its process by.
    if process.ends_within(Duration::ZERO) {
        return;
    }
    // Fails if the process has ended, also below.
    let Ok(before) = prlimit(
        pid,
        Resource::Nofile,
        limit(highest.map(|number| number + 1)),
    ) else {
        return;
    };
    process.send(Signal::USR1);
    sleep(Duration::from_millis(150));
    if !process.ends_within(Duration::ZERO) {
        let _ = prlimit(pid, Resource::Nofile, before);
        process.send(Signal::USR1);
    }
}

/// A control group of the first version. Its processes leave it when this is dropped.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-chaos-{}-{number}", std::process::id());
        let folder = Path::new("/sys/fs/cgroup").join(controller).join(name);
        fs::create_dir(&folder).expect("root makes control groups");
        Self(folder)
    }

    /// Moves a process into the group. One that has just ended stays where it is.
    fn enter(&self, process: &FoundProcess) {
        if !process.ends_within(Duration::ZERO) {
            let _ = fs::write(self.0.join("cgroup.procs"), process.pid().to_string());
        }
    }

    fn set(&self, key: &str, value: &str) {
        let path = self.0.join(key);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let top = self
            .0
            .parent()
            .expect("it has a parent")
            .join("cgroup.procs");
        for _ in 0..200 {
            let members = fs::read_to_string(self.0.join("cgroup.procs"));
            for member in members.iter().flat_map(|text| text.lines()) {
                // One that has ended meanwhile is not there any more.
                let _ = fs::write(&top, member);
            }
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}
