//! Processes that no action may hit.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use event::Pid;
use process_info::procfs::{LINK_LIMIT, Proc, ProcError};
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};

use crate::bound::{Bound, has_ended};

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
    /// Device and inode of this program.
    program: Option<FileId>,
    /// Orphans of the workload become children of the agent, so that a child is not one of its own programs.
    adopts: bool,
}

/// Major and minor number of the device, and inode.
type FileId = (u32, u32, u64);

impl Guard {
    /// Creates the guard of this process.
    pub(crate) fn new(proc: &Proc) -> Self {
        let own = Pid(i32::try_from(std::process::id()).expect("the kernel's pids are positive"));
        Self {
            own,
            program: proc.stat_link(own.0, "exe").ok().map(|file| id(&file)),
            // If that is unknown, children may be orphans of the workload; scripts have other ways to be known.
            adopts: rustix::process::child_subreaper().map_or(true, |is_one| is_one.is_some()),
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
        let is_same = |file: &Statx| self.program == Some(id(file));
        let is_own = pid == self.own || is_started || file.as_ref().is_ok_and(is_same);
        Facts {
            pid,
            parent: stat.ppid,
            is_own,
            program: program(proc, target, thread, file),
        }
    }
}

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
            let name = path.file_name().unwrap_or_default().as_bytes().to_vec();
            Program::File {
                is_of_host: is_of_host(path, &file),
                name,
            }
        }
        (Err(ProcError::Gone { .. }), _) | (_, Err(ProcError::Gone { .. })) => Program::None {
            has_ended: target.now(proc).is_none_or(|stat| has_ended(&stat)),
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

/// Returns true unless it is certain that the file is not the host's: only root can have written it, and it is on the
/// file system that the host's first process finds at its path. A container's `sshd` is on another one.
fn is_of_host(path: &Path, file: &Statx) -> bool {
    const WRITABLE_BY_OTHERS: u16 = 0o022;
    if file.stx_uid != 0 || file.stx_mode & WRITABLE_BY_OTHERS != 0 {
        return false;
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder = Path::new("/proc/1/root").join(folder.strip_prefix("/").unwrap_or(folder));
    match rustix::fs::statx(CWD, &folder, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) {
        Ok(host) => {
            (host.stx_dev_major, host.stx_dev_minor) == (file.stx_dev_major, file.stx_dev_minor)
        }
        Err(error) => error != rustix::io::Errno::NOENT,
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
        Some(name) if !allowed.iter().any(|allowed| allowed == name) => {
            Err(Refusal::Protected(name))
        }
        _ => Ok(()),
    }
}

/// The process whose children are the kernel's threads.
const KTHREADD: Pid = Pid(2);

fn find(is_it: impl Fn(&str) -> bool) -> Option<&'static str> {
    PROTECTED.iter().copied().find(|known| is_it(known))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn facts(name: &str) -> Facts {
        Facts {
            pid: Pid(700),
            parent: Pid(600),
            is_own: false,
            program: Program::File {
                name: name.into(),
                is_of_host: true,
            },
        }
    }

    #[test]
    fn each_protected_program_is_refused_unless_it_is_named() {
        for name in PROTECTED {
            let facts = facts(name);
            assert_eq!(decide(&facts, &[]), Err(Refusal::Protected(name)));
            let allowed = [(*name).to_owned()];
            assert_eq!(decide(&facts, &allowed), Ok(()), "{name}");
            let other = ["kubelet-other".to_owned()];
            assert_eq!(decide(&facts, &other), Err(Refusal::Protected(name)));
            let hidden = Facts {
                program: Program::Hidden {
                    comm: name.bytes().take(15).collect(),
                },
                ..facts
            };
            assert!(
                matches!(decide(&hidden, &[]), Err(Refusal::Protected(_))),
                "{name}"
            );
            assert!(Refusal::Protected(name).to_string().contains(name));
        }
        assert_eq!(decide(&facts("cat"), &[]), Ok(()));
        let mut sorted = PROTECTED.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted, PROTECTED);
    }

    #[test]
    fn a_file_of_a_container_or_a_user_is_not_protected_by_its_name() {
        let program = Program::File {
            name: "sshd".into(),
            is_of_host: false,
        };
        let facts = Facts {
            program,
            ..facts("")
        };
        assert_eq!(decide(&facts, &[]), Ok(()));
    }

    #[test]
    fn init_own_processes_and_threads_of_the_kernel_are_never_hit() {
        let all: Vec<_> = PROTECTED.iter().map(|name| (*name).to_owned()).collect();
        for pid in [-1, 0, 1] {
            let init = Facts {
                pid: Pid(pid),
                ..facts("cat")
            };
            assert_eq!(decide(&init, &all), Err(Refusal::Init));
        }
        let own = Facts {
            is_own: true,
            ..facts("tollgate")
        };
        assert_eq!(decide(&own, &all), Err(Refusal::Own));
        let none = Program::None { has_ended: false };
        let thread = Facts {
            parent: Pid(2),
            program: none.clone(),
            ..facts("")
        };
        assert_eq!(decide(&thread, &all), Err(Refusal::Kernel));
        let unknown = Facts {
            program: none,
            ..facts("")
        };
        assert!(matches!(decide(&unknown, &all), Err(Refusal::Unknown(_))));
        let unknown = Facts {
            program: Program::Unknown("EIO".into()),
            ..facts("")
        };
        assert!(matches!(decide(&unknown, &all), Err(Refusal::Unknown(_))));
        let ended = Facts {
            program: Program::None { has_ended: true },
            ..facts("")
        };
        assert_eq!(decide(&ended, &[]), Ok(()));
    }

    #[test]
    fn real_processes_are_told_apart() {
        let proc = Proc::open().unwrap();
        let guard = Guard::new(&proc);
        let check = |pid: u32| {
            let pid = Pid(i32::try_from(pid).unwrap());
            let bound = Bound::open(&proc, pid).unwrap();
            guard.check(&proc, &bound, &[])
        };
        assert_eq!(check(std::process::id()), Err(Refusal::Own));
        assert_eq!(check(1), Err(Refusal::Init));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert_eq!(check(child.id()), Ok(()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
