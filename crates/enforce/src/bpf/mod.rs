//! The enforcer `BPF`: programs at the hooks of the security modules (bpf/enforce.bpf.c).
//!
//! | part | content |
//! |---|---|
//! | `automaton` | all path patterns as one automaton |
//! | `keys` | name filter that avoids building paths |
//! | `mount_table` | mounts and the place of each file system |
//! | `tables` | a policy in the form that the programs read |
//! | `hooks` | loading of the programs that policies need |
//! | `programs` | the objects that stay in the kernel |
//! | `records` | violations that the programs report |
//! | `container_place` | what the kernel tells a container by |
//! | `containers` | confines the programs of containers that another program makes |
//! | `mount_shape` | mounts of a container without what is its own |
//! | `shared` | tables that containers share |
//! | `container_reports` | violations in those containers |

mod automaton;
mod container_place;
mod container_reports;
mod containers;
mod hooks;
mod keys;
mod kind;
mod mount_shape;
mod mount_table;
pub(crate) mod programs;
mod records;
mod shared;
mod tables;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use abi::Errno;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use policy::compile::MachineFeatures;
use policy::compile::bpf::Profile;
use policy::{EnforcerKind, Policy};
use probe::{Support, fix};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

pub use container_place::{ContainerPlace, enter_host_groups};
pub use container_reports::{ContainerReports, ContainerViolation};
pub use containers::{
    ConfinedContainer, change_containers, confine_container, containers_build, prepare_containers,
    remove_ended_containers,
};
pub(crate) use programs::Loaded;
pub(crate) use records::Reports;

use programs::{KernelPrograms, LoadedEntry};

/// The reason why BPF cannot enforce a policy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The policy exceeds a limit of the tables.
    #[error("the policy has too many {what} for BPF, {limit} are possible")]
    TooLarge {
        /// The limited item.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The programs do not know an item of the policy.
    #[error("BPF knows no {what} `{name}`")]
    Unknown {
        /// Kind of the item.
        what: &'static str,
        /// Name of the item.
        name: String,
    },
    /// The kernel lacks a feature that the policy needs.
    #[error("{lack}")]
    Lacks {
        /// The feature.
        lack: String,
    },
    /// No BPF file system is available.
    #[error("no BPF file system at /sys/fs/bpf")]
    NoFileSystem,
    /// A file or folder is not accessible.
    #[error("cannot use {path}")]
    Path {
        /// The path.
        path: String,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The kernel refused the programs.
    #[error("cannot load the BPF programs")]
    Load {
        /// The cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// The kernel refused to attach a hook.
    #[error("cannot attach the BPF program of {hook}")]
    Attach {
        /// The hook.
        hook: String,
        /// The cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// A table is full.
    #[error("the BPF table {name} is full")]
    Full {
        /// Name of the table.
        name: &'static str,
    },
    /// A table is not accessible.
    #[error("cannot use the BPF table {name}")]
    Map {
        /// Name of the table.
        name: &'static str,
        /// The cause.
        #[source]
        cause: libbpf_rs::Error,
    },
    /// Control groups of version 2 are not mounted from their root.
    #[error("the root of control groups of version 2 is mounted nowhere")]
    NoUnifiedHierarchy,
    /// A container cannot be told from others.
    #[error("process {pid} of the container {why}")]
    Container {
        /// The process.
        pid: i32,
        /// What is wrong with it.
        why: String,
    },
    /// A pinned object is missing.
    #[error("the {what} of the policy is gone")]
    Missing {
        /// The object.
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

/// A loaded policy, for a process to apply.
#[derive(Debug)]
pub(crate) struct BpfPolicyHandle {
    number: u32,
    tenants: MapHandle,
    /// Keeps the policy until it confines a process, in whichever process the descriptor is open.
    _waiting: OwnedFd,
    /// Features that the kernel lacks.
    pub(crate) lacks: Vec<String>,
}

impl BpfPolicyHandle {
    /// Loads a policy, and removes policies that confine no process.
    pub(crate) fn load(profile: &Profile, name: &str) -> Result<Self, Error> {
        Self::load_for(profile, name, &mounts()?)
    }

    /// Loads a policy as [`BpfPolicyHandle::load`] does, for a process with these mounts.
    pub(crate) fn load_for(profile: &Profile, name: &str, mounts: &str) -> Result<Self, Error> {
        let LoadedEntry {
            number,
            tenants,
            waiting,
            lacks,
        } = KernelPrograms::enter(profile, name, mounts)?;
        Ok(Self {
            number,
            tenants,
            _waiting: waiting,
            lacks,
        })
    }

    /// Number of the policy, which identifies its violations.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Unloads the policy: it confines no process.
    pub(crate) fn discard(&self) {
        // The next load removes what cannot be removed now.
        let _ = KernelPrograms::open().and_then(|kept| kept.remove(self.number));
    }

    /// Confines the calling process: the policy applies from its next exec on.
    pub(crate) fn confine(&self) -> sys::Result<()> {
        self.confine_process(getpid().as_raw_nonzero().get())
    }

    /// Confines another process, whose first thread is about to make that exec.
    pub(crate) fn confine_process(&self, pid: i32) -> sys::Result<()> {
        let failed = |call, errno| sys::SyscallError {
            call,
            errno: abi::Errno(errno),
        };
        let pid = Pid::from_raw(pid).ok_or_else(|| failed("pidfd_open", Errno::ESRCH.0))?;
        let process = pidfd_open(pid, PidfdFlags::empty());
        let process = process.map_err(|error| failed("pidfd_open", error.raw_os_error()))?;
        let confined = programs::confine(&self.tenants, self.number, process.as_fd());
        confined.map_err(|_number_only| {
            let cause = io::Error::last_os_error();
            failed(
                "bpf(MAP_UPDATE_ELEM)",
                cause.raw_os_error().unwrap_or(Errno::EIO.0),
            )
        })
    }
}

/// Exchanges the loaded policies of this name, each atomically. Returns their number.
///
/// # Errors
/// Fails if the policy cannot be loaded; the loaded policies then stay.
pub(crate) fn exchange(profile: &Profile, name: &str) -> Result<usize, Error> {
    if !is_ever_used() {
        return Ok(0);
    }
    KernelPrograms::exchange(profile, name, &mounts()?)
}

/// The loaded policies.
///
/// # Errors
/// Fails if the tables are not accessible.
pub(crate) fn loaded() -> Result<Vec<Loaded>, Error> {
    match is_ever_used() {
        true => KernelPrograms::open()?.loaded(),
        false => Ok(Vec::new()),
    }
}

/// Removes policies that confine no process, and the programs with the last policy.
///
/// # Errors
/// Fails if something cannot be removed.
pub(crate) fn release() -> Result<(), Error> {
    match is_ever_used() {
        true => KernelPrograms::open()?.release(),
        false => Ok(()),
    }
}

/// The hooks that the rules of a policy need and that this kernel lacks. Empty if the policy does not use BPF, or
/// if the kernel has no hooks at all, which the probe reports.
#[must_use]
pub fn missing_hooks(policy: &Policy) -> BTreeSet<String> {
    match policy.enforcers.contains(EnforcerKind::Bpf) {
        false => BTreeSet::new(),
        true => hooks::missing_hooks(&Profile::compile(policy, &MachineFeatures::default())),
    }
}

/// Returns true if pinned objects exist. The check leaves no trace.
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

/// Probes whether the kernel calls programs at its hooks: attaches one that has to refuse a call of this
/// process.
pub(crate) fn probe() -> Support {
    if fix::is_built_with("BPF_LSM") == Some(false) {
        return Support::no_unless_fixed("this kernel is built without CONFIG_BPF_LSM", None);
    }
    if let Some(why) = preempts_itself_unguarded() {
        return Support::no(why, fix::boot("preempt=voluntary"));
    }
    if programs::are_attached() {
        return Support::yes("works: BPF LSM programs are attached and enforce a policy");
    }
    // The result says what the library would print.
    let printed = libbpf_rs::set_print(None);
    // Tried before the file system is looked for: to mount one does not help where no hook works.
    let found = try_hooks();
    libbpf_rs::set_print(printed);
    found
}

fn try_hooks() -> Support {
    match (try_hook(), programs::check_file_system()) {
        (Ok(true), Ok(())) => match hooks::try_load() {
            Ok(()) => Support::yes("a program at a hook refused a call"),
            Err(error) => Support::no_unless_fixed(
                format!("{}; the programs need Linux 5.17", chain(&error)),
                None,
            ),
        },
        (Ok(true), Err(error @ Error::NoFileSystem)) => {
            let mount = fix::as_root("mount -t bpf bpf /sys/fs/bpf");
            Support::no(chain(&error), mount)
        }
        (Ok(false), _) => Support::no_unless_fixed(
            "BPF LSM programs are not called: bpf is not an active security module",
            fix::boot_with_module("BPF_LSM"),
        ),
        (Ok(true), Err(error)) | (Err(error), _) => {
            Support::no_unless_fixed(chain(&error), fix::run_as_root(ENFORCE))
        }
    }
}

/// What an ordinary user can run as root.
const ENFORCE: &str = "tollgate enforce --policy FILE -- CMD";

fn try_hook() -> Result<bool, Error> {
    let mut object = hooks::open_object()?;
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
    // By its number: the kernel asks no hook about process 0, "this one".
    let refused = sys::credential::session(own).err();
    Ok(refused.is_some_and(|error| error.is(abi::Errno::EPERM)))
}

/// The reason why the programs are unsafe on a preemptible kernel. Before 6.2, a look-up of a task's storage
/// fails while another task on the same CPU does one; with kernel preemption, a confined task would pass.
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
    // If the command line cannot be read, the kernel's own name decides.
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

/// Formats an error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", chain(cause)),
        None => error.to_string(),
    }
}
