//! Processes that no action may hit.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use event::Pid;
use process_info::procfs::{LINK_LIMIT, Proc, ProcError};
use rustix::fs::{AtFlags, Statx, StatxFlags};
use rustix::io::Errno;

use crate::bound::Bound;
use crate::scripts::Scripts;

/// Programs that keep a host or its containers running, by the name of their file. Only a rule that names one with
/// `allow_protected` may hit it.
pub const PROTECTED: &[&str] = &[
    "NetworkManager",
    "auditd",
    "conmon",
    "containerd",
    "containerd-shim",
    "containerd-shim-runc-v2",
    "cri-dockerd",
    "crio",
    "crun",
    "dbus-broker",
    "dbus-broker-launch",
    "dbus-daemon",
    "dockerd",
    "falco",
    "init",
    "k3s",
    "kube-apiserver",
    "kubelet",
    "polkitd",
    "runc",
    "sshd",
    "sshd-auth",
    "sshd-session",
    "systemd",
    "systemd-executor",
    "systemd-journald",
    "systemd-logind",
    "systemd-networkd",
    "systemd-resolved",
    "systemd-timesyncd",
    "systemd-udevd",
    "tollgate",
    "tollgate-operator",
];

/// Those of [`PROTECTED`] that run under an account of their own. All others are protected only while root runs them:
/// anybody can run the host's `sshd` with code of his own in it (`LD_PRELOAD`).
const WITH_ACCOUNT: &[&str] = &[
    "dbus-broker",
    "dbus-daemon",
    "polkitd",
    "systemd-networkd",
    "systemd-resolved",
    "systemd-timesyncd",
];
/// Accounts of the system have lower user ids; people have this one or a higher one.
const FIRST_PERSON: u32 = 1000;

/// Why an action must not hit a process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refusal {
    /// The first process of the agent's pid namespace.
    #[error("pid 1 is never hit")]
    Init,
    /// A process of this program, or one that it started.
    #[error("it is a process of tollgate")]
    Own,
    /// A thread of the kernel.
    #[error("it is a thread of the kernel")]
    Kernel,
    /// A program of [`PROTECTED`].
    #[error(
        "`{0}` is protected; `allow_protected: [{0}]` in the parameters of the action allows it"
    )]
    Protected(&'static str),
    /// What it runs cannot be read.
    #[error("it cannot be told whether it is protected: {0}")]
    Unknown(String),
}

/// What the guard decides by.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    pid: Pid,
    parent: Pid,
    is_own: bool,
    /// It may be a process of this program that runs without root; see [`Guard::is_kin`].
    is_kin: bool,
    /// Real user id, which only root can change. `None` if it is not known.
    uid: Option<u32>,
    program: Program,
}

/// The program of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Program {
    /// Name of its file. `is_of_host`: no other user than root can have put it there, on the file systems of the host.
    File { name: Vec<u8>, is_of_host: bool },
    /// The file may not be read; the name that the process has now, of at most 15 bytes.
    Hidden { comm: Vec<u8> },
    /// There is none: a thread of the kernel, or a process that is ending.
    None { has_ended: bool },
    /// The cause.
    Unknown(String),
}

/// Decides which processes may be hit.
#[derive(Debug)]
pub(crate) struct Guard {
    own: Pid,
    /// Real user id of this process.
    uid: u32,
    /// Device and inode of this program.
    program: Option<FileId>,
    /// Orphans of the workload become children of the agent, so that a child is not one of its own programs.
    adopts: bool,
    /// Scripts, which are own programs wherever they are.
    pub(crate) scripts: Scripts,
}

/// Major and minor number of the device, and inode.
type FileId = (u32, u32, u64);

impl Guard {
    /// Creates the guard of this process.
    pub(crate) fn new(proc: &Proc) -> Self {
        let own = Pid(i32::try_from(std::process::id()).expect("the kernel's pids are positive"));
        Self {
            own,
            uid: rustix::process::getuid().as_raw(),
            program: proc.stat_link(own.0, "exe").ok().map(|file| id(&file)),
            // If that is unknown, children may be orphans of the workload.
            adopts: rustix::process::child_subreaper().map_or(true, |is_one| is_one.is_some()),
            scripts: Scripts::default(),
        }
    }

    /// Checks that an action may hit a process. `allowed` are the protected programs that it may hit.
    pub(crate) fn check(
        &self,
        proc: &Proc,
        target: &Bound,
        allowed: &[String],
    ) -> Result<(), Refusal> {
        let facts = self.facts(proc, target);
        match target.is_unreaped() {
            true => decide(&facts, allowed),
            // The facts may be those of a successor. A signal to the descriptor hits nobody.
            false => Ok(()),
        }
    }

    fn facts(&self, proc: &Proc, target: &Bound) -> Facts {
        let pid = target.pid;
        let stat = &target.stat.stat;
        let thread = target.live_thread(proc);
        let file = proc.stat_link(thread, "exe");
        let is_started = !self.adopts && stat.ppid == self.own && stat.pgid == pid.0;
        let uid = proc
            .status(thread)
            .ok()
            .map(|status| status.status.real_uid);
        let is_kin = uid.is_none_or(|uid| uid == self.uid) && self.is_kin(proc, pid, stat.ppid);
        let is_same = |file: &Statx| self.program == Some(id(file)) && is_ours(uid, is_kin);
        let is_own = pid == self.own
            || is_started
            || file.as_ref().is_ok_and(is_same)
            || self.scripts.include(proc, pid, stat.ppid);
        Facts {
            pid,
            parent: stat.ppid,
            is_own,
            is_kin,
            uid,
            program: program(proc, target, thread, file),
        }
    }

    /// Returns true for an ancestor of this process, a child of it, and a child of its parent: where the other processes
    /// of this program are. Unknown is true.
    fn is_kin(&self, proc: &Proc, pid: Pid, parent: Pid) -> bool {
        if parent == self.own {
            return true;
        }
        let mut ancestor = self.own;
        for generation in 0..MOST_ANCESTORS {
            match proc.stat(ancestor.0) {
                Ok(stat) if stat.stat.ppid.0 <= 1 => return false,
                Ok(stat) => ancestor = stat.stat.ppid,
                // It has ended meanwhile, or cannot be read.
                Err(_) => return true,
            }
            if pid == ancestor || generation == 0 && parent == ancestor {
                return true;
            }
        }
        false
    }
}

/// Returns true if a process that runs this program's file can be ours. Anybody can run it with code of his own in it.
fn is_ours(uid: Option<u32>, is_kin: bool) -> bool {
    is_kin || uid.is_none_or(|uid| uid == ROOT)
}

const ROOT: u32 = 0;
/// Ancestors that are looked at. Those of this program are the nearest.
const MOST_ANCESTORS: usize = 8;

fn id(file: &Statx) -> FileId {
    (file.stx_dev_major, file.stx_dev_minor, file.stx_ino)
}

/// Returns the program of a process; `thread` is one that has it, and `file` is its file.
fn program(proc: &Proc, target: &Bound, thread: i32, file: Result<Statx, ProcError>) -> Program {
    let mut buffer = [0; LINK_LIMIT];
    let link = proc.link(thread, "exe", &mut buffer);
    match (file, link) {
        (Ok(file), Ok(path)) => {
            let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            // The root is no program, and no protected name is empty.
            let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
            Program::File {
                is_of_host: is_of_host(proc, path, &file),
                name,
            }
        }
        (Err(ProcError::Gone { .. }), _) | (_, Err(ProcError::Gone { .. })) => Program::None {
            has_ended: target.now(proc).has_ended(),
        },
        (Err(ProcError::Denied { .. }), _) | (_, Err(ProcError::Denied { .. })) => {
            match proc.comm(thread) {
                Ok(comm) => Program::Hidden {
                    comm: comm.as_bytes().to_vec(),
                },
                Err(error) => Program::Unknown(error.to_string()),
            }
        }
        (Err(error), _) | (_, Err(error)) => Program::Unknown(error.to_string()),
    }
}

/// Returns true unless it is certain that the file is not the host's: only root can have written it, and the host's first
/// process finds the same file at its path. A container's `sshd` is another file, and so is one that a user has mounted
/// over the host's in a mount namespace of his own.
fn is_of_host(proc: &Proc, path: &Path, file: &Statx) -> bool {
    const WRITABLE_BY_OTHERS: u16 = 0o022;
    let is_roots = file.stx_uid == ROOT && file.stx_mode & WRITABLE_BY_OTHERS == 0;
    is_roots && is_found(proc.as_fd(), Path::new("1/root"), path, file)
}

/// Returns true unless it is certain that another file than this one, or none, is at this path below a root.
fn is_found(folder: BorrowedFd<'_>, root: &Path, path: &Path, file: &Statx) -> bool {
    let look = |path: &Path| {
        let path = root.join(path.strip_prefix("/").unwrap_or(path));
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::statx(folder, &path, flags, StatxFlags::BASIC_STATS)
    };
    // A program that was upgraded while it runs has no name any more. All that is left of it is its file system.
    let has_name = file.stx_nlink > 0;
    let found = match has_name {
        true => look(path),
        false => look(path.parent().unwrap_or(Path::new("/"))),
    };
    match found {
        Ok(found) if has_name => id(&found) == id(file),
        Ok(found) => {
            (found.stx_dev_major, found.stx_dev_minor) == (file.stx_dev_major, file.stx_dev_minor)
        }
        // The path of a running program has no link, and each folder of it is one. Where the host has something else, it
        // does not have the file.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => false,
        Err(_) => true,
    }
}

fn decide(facts: &Facts, allowed: &[String]) -> Result<(), Refusal> {
    // Pid 0 would be the caller's own process group.
    if facts.pid.0 <= 1 {
        return Err(Refusal::Init);
    }
    if facts.is_own {
        return Err(Refusal::Own);
    }
    let protected = match &facts.program {
        Program::File {
            is_of_host: false, ..
        } => None,
        Program::File { name, .. } => find(|known| known.as_bytes() == name),
        Program::Hidden { comm } => find(|known| known.as_bytes().iter().take(15).eq(comm)),
        Program::None { has_ended: true } => None,
        Program::None { .. } if facts.pid == KTHREADD || facts.parent == KTHREADD => {
            return Err(Refusal::Kernel);
        }
        Program::None { .. } => return Err(Refusal::Unknown("it has no program".to_owned())),
        Program::Unknown(why) => return Err(Refusal::Unknown(why.clone())),
    };
    match protected {
        Some(name) if !has_account(name, facts) => Ok(()),
        Some(name) if !allowed.iter().any(|allowed| allowed == name) => {
            Err(Refusal::Protected(name))
        }
        _ => Ok(()),
    }
}

/// Returns true if a process runs under an account that a protected program runs under, or if that is not known.
fn has_account(name: &str, facts: &Facts) -> bool {
    match facts.uid {
        None | Some(ROOT) => true,
        Some(uid) if uid < FIRST_PERSON && WITH_ACCOUNT.contains(&name) => true,
        Some(_) => facts.is_kin && name == OWN_NAME,
    }
}

/// Name of this program's file.
const OWN_NAME: &str = "tollgate";

/// The process whose children are the kernel's threads.
const KTHREADD: Pid = Pid(2);

fn find(is_it: impl Fn(&str) -> bool) -> Option<&'static str> {
    PROTECTED.iter().copied().find(|known| is_it(known))
}

#[cfg(test)]
mod tests;
