//! The enforcer `BPF`: programs at the hooks of the security modules (bpf/enforce.bpf.c).
//!
//! | part | what it does |
//! |---|---|
//! | `automaton` | all patterns of paths as one automaton |
//! | `keys` | names that files have which rules are about |
//! | `places` | where file systems are mounted |
//! | `tables` | a policy as the programs read it |
//! | `programs` | loading, and what stays in the kernel |
//! | `records` | violations that come back |

mod automaton;
mod keys;
mod kind;
mod mount_table;
mod programs;
mod records;
mod tables;

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use policy::compile::bpf::Profile;
use probe::Support;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

pub use programs::Loaded;
pub use records::Reports;

use programs::{KernelPrograms, LoadedEntry};

/// Why a policy cannot be carried by BPF.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is more of something than the tables hold.
    #[error("the policy has too many {what} for BPF, {limit} are possible")]
    TooLarge {
        /// Of what.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The programs have nothing for it.
    #[error("BPF knows no {what} `{name}`")]
    Unknown {
        /// What it is.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The kernel lacks something that the policy needs.
    #[error("{lack}")]
    Lacks {
        /// What.
        lack: String,
    },
    /// There is nowhere to keep the programs.
    #[error("there is no BPF file system at /sys/fs/bpf")]
    NoFileSystem,
    /// A file or folder is out of reach.
    #[error("cannot use {path}")]
    Path {
        /// Which.
        path: String,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// The kernel refused the programs.
    #[error("cannot load the BPF programs")]
    Load {
        /// Why.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// The kernel refused a hook.
    #[error("cannot attach the BPF program of {hook}")]
    Attach {
        /// Which.
        hook: String,
        /// Why.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// A table has no room left.
    #[error("the BPF table {name} is full")]
    Full {
        /// Which.
        name: &'static str,
    },
    /// A table is out of reach.
    #[error("cannot use the BPF table {name}")]
    Map {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// Something that was put there is gone.
    #[error("the {what} of the policy is gone")]
    Missing {
        /// What.
        what: &'static str,
    },
}

impl Error {
    pub(crate) fn load(cause: libbpf_rs::Error) -> Self {
        Self::Load { cause }
    }

    pub(crate) fn map(name: &'static str) -> impl FnOnce(libbpf_rs::Error) -> Self {
        move |cause| match cause.kind() {
            libbpf_rs::ErrorKind::TooBig => Self::Full { name },
            _ => Self::Map { name, cause },
        }
    }
}

/// A policy that is loaded, for a process to be confined by.
#[derive(Debug)]
pub(crate) struct BpfPolicyHandle {
    number: u32,
    tenants: MapHandle,
    /// Keeps the policy until somebody is confined by it, in whatever process it is open.
    _waiting: OwnedFd,
    /// What the kernel cannot do of it.
    pub(crate) lacks: Vec<String>,
}

impl BpfPolicyHandle {
    /// Loads a policy. Whatever confines nobody any more is removed.
    pub(crate) fn load(profile: &Profile, name: &str) -> Result<Self, Error> {
        Self::load_for(profile, name, &mounts()?)
    }

    /// As [`BpfPolicyHandle::load`], for a process that has these mounts.
    pub(crate) fn load_for(profile: &Profile, name: &str, mounts: &str) -> Result<Self, Error> {
        let LoadedEntry {
            number,
            tenants,
            waiting,
            lacks,
        } = KernelPrograms::open()?.enter(profile, name, mounts)?;
        Ok(Self {
            number,
            tenants,
            _waiting: waiting,
            lacks,
        })
    }

    /// The policy's number, by which its violations are found.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Removes it again: nobody is confined by it.
    pub(crate) fn discard(&self) {
        // What cannot be removed now is removed by whoever loads the next.
        let _ = KernelPrograms::open().and_then(|kept| kept.discard(self.number));
    }

    /// Confines the calling process: the policy holds from its next exec on.
    pub(crate) fn confine(&self) -> sys::Result<()> {
        self.confine_process(getpid().as_raw_nonzero().get())
    }

    /// The same of another process, which is about to make that exec in its first thread.
    pub(crate) fn confine_process(&self, pid: i32) -> sys::Result<()> {
        let failed = |call, errno| sys::SyscallError {
            call,
            errno: abi::Errno(errno),
        };
        const ESRCH: i32 = 3;
        let pid = Pid::from_raw(pid).ok_or_else(|| failed("pidfd_open", ESRCH))?;
        let process = pidfd_open(pid, PidfdFlags::empty());
        let process = process.map_err(|error| failed("pidfd_open", error.raw_os_error()))?;
        let confined = programs::confine(&self.tenants, self.number, process.as_fd());
        confined.map_err(|_number_only| {
            const EIO: i32 = 5;
            let cause = io::Error::last_os_error();
            failed("bpf(MAP_UPDATE_ELEM)", cause.raw_os_error().unwrap_or(EIO))
        })
    }
}

/// Exchanges the policies of this name that are in force, each at one moment. Answers with how many.
///
/// # Errors
/// If it cannot be loaded; then those in force stay.
pub fn exchange(profile: &Profile, name: &str) -> Result<usize, Error> {
    if !is_ever_used() {
        return Ok(0);
    }
    KernelPrograms::open()?.exchange(profile, name, &mounts()?)
}

/// The policies that are in force.
///
/// # Errors
/// If the tables are out of reach.
pub fn loaded() -> Result<Vec<Loaded>, Error> {
    match is_ever_used() {
        true => KernelPrograms::open()?.loaded(),
        false => Ok(Vec::new()),
    }
}

/// Removes what confines nobody any more, and the programs with the last policy.
///
/// # Errors
/// If something cannot be removed.
pub fn release() -> Result<(), Error> {
    match is_ever_used() {
        true => KernelPrograms::open()?.release(),
        false => Ok(()),
    }
}

/// Whether anything is kept; looking must leave no trace.
fn is_ever_used() -> bool {
    let entries = fs::read_dir(programs::FILE_SYSTEM)
        .into_iter()
        .flatten()
        .flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with("tollgate-"))
}

fn mounts() -> Result<String, Error> {
    const TABLE: &str = "/proc/self/mountinfo";
    fs::read_to_string(TABLE).map_err(|cause| Error::Path {
        path: TABLE.to_owned(),
        cause,
    })
}

/// Whether the kernel asks programs at its hooks: one is attached, and has to refuse a call of ours.
pub(crate) fn probe() -> Support {
    if let Err(error) = programs::check_file_system() {
        let help = match error {
            Error::NoFileSystem => "mount it: mount -t bpf bpf /sys/fs/bpf",
            _ => "run it as root",
        };
        return Support::no(chain(&error), help);
    }
    if let Some(why) = preempts_itself_unguarded() {
        return Support::no(why, "boot with preempt=voluntary, or a kernel since 6.2");
    }
    if programs::are_attached() {
        return Support::yes("programs are attached, and confine somebody");
    }
    match try_hook() {
        Ok(true) => Support::yes("a program at a hook refused a call"),
        Ok(false) => Support::no(
            "programs at the hooks are not asked: bpf is not among the security modules in use",
            "boot with lsm=landlock,lockdown,yama,apparmor,bpf, or add bpf to the list that you have",
        ),
        Err(error) => Support::no(
            chain(&error),
            "it needs root, CONFIG_BPF_LSM and BPF trampolines (`dmesg` may say more)",
        ),
    }
}

fn try_hook() -> Result<bool, Error> {
    let mut object = programs::open_object()?;
    for mut program in object.progs_mut() {
        let is_trial = program.name() == "trial";
        program.set_autoload(is_trial);
    }
    for mut map in object.maps_mut() {
        let is_needed = map.name().to_string_lossy().ends_with(".bss");
        map.set_autocreate(is_needed).map_err(Error::load)?;
    }
    let object = object.load().map_err(Error::load)?;
    let failed = |cause| Error::Attach {
        hook: "task_getsid".to_owned(),
        cause,
    };
    let trial = object.progs_mut().find(|program| program.name() == "trial");
    let trial = trial.ok_or(Error::Missing { what: "program" })?;
    let _link = trial.attach_lsm().map_err(failed)?;
    let mut maps = object.maps();
    let pid = maps.find(|map| map.name().to_string_lossy().ends_with(".bss"));
    let pid = pid.ok_or(Error::Missing { what: "table" })?;
    let own = std::process::id();
    let mut value = vec![0; usize::try_from(pid.value_size()).unwrap_or(0)];
    value.splice(..4, own.to_ne_bytes());
    let written = pid.update(&0_u32.to_ne_bytes(), &value, MapFlags::ANY);
    written.map_err(Error::map("trial"))?;
    Ok(rustix::process::getsid(Some(getpid())).is_err())
}

/// Before 6.2 a look-up of a task's storage fails while another task of the same processor does one;
/// where the kernel preempts itself that would let a confined task pass.
fn preempts_itself_unguarded() -> Option<String> {
    let name = rustix::system::uname();
    let (release, version) = (
        name.release().to_string_lossy(),
        name.version().to_string_lossy(),
    );
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|part| part.parse::<u32>().ok());
    let known = (numbers.next()?, numbers.next()?);
    // Absent where it cannot be read; then the kernel's own name decides.
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let mode = fs::read_to_string("/sys/kernel/debug/sched/preempt").unwrap_or_default();
    let is_full = match version.contains("PREEMPT_DYNAMIC") {
        true => {
            line.split_whitespace().any(|word| word == "preempt=full") || mode.contains("(full)")
        }
        false => version.contains("PREEMPT"),
    };
    (known < (6, 2) && is_full).then(|| {
        format!("this kernel, {release}, preempts itself, and loses sight of confined tasks then")
    })
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
