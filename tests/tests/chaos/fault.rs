//! What happens to a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

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
    pub(crate) fn strike(self, watched: &Watched, pid: i32) {
        match self {
            Self::Kill => send(pid, Signal::KILL),
            Self::Crash => crash(pid),
            Self::Stop => send(pid, Signal::STOP),
            Self::Starve => {
                let group = Group::new("cpu");
                group.set("cpu.cfs_period_us", "1000000");
                group.set("cpu.cfs_quota_us", "1000");
                group.enter(pid);
                sleep(Duration::from_millis(700));
            }
            Self::OutOfMemory => {
                // Pages that the process has already stay with its former group; it gets no more.
                let group = Group::new("memory");
                group.set("memory.limit_in_bytes", "0");
                group.enter(pid);
                sleep(Duration::from_millis(300));
            }
            Self::OutOfDescriptors => starve_of_descriptors(pid),
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

/// Sends a signal. A process that has just ended gets none.
fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Sends SIGSEGV until the process has ended, or its parent alone has not noticed.
fn crash(pid: i32) {
    for _ in 0..1000 {
        send(pid, Signal::SEGV);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        if stat.map_or(true, |stat| stat.contains(") Z ")) {
            return;
        }
        sleep(Duration::from_millis(1));
    }
    panic!("process {pid} does not crash");
}

/// Takes all further descriptors away, has outputs reopened meanwhile, and gives them back.
fn starve_of_descriptors(pid: i32) {
    let Some(process) = Pid::from_raw(pid) else {
        return;
    };
    let names = fs::read_dir(format!("/proc/{pid}/fd"))
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
    // Fails if the process has ended, also below.
    let Ok(before) = prlimit(
        Some(process),
        Resource::Nofile,
        limit(highest.map(|number| number + 1)),
    ) else {
        return;
    };
    send(pid, Signal::USR1);
    sleep(Duration::from_millis(150));
    let _ = prlimit(Some(process), Resource::Nofile, before);
    send(pid, Signal::USR1);
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
    fn enter(&self, pid: i32) {
        let _ = fs::write(self.0.join("cgroup.procs"), pid.to_string());
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
