//! The BPF programs, their tables, and the place where the kernel keeps both.
//!
//! Programs and tables belong to no process: links and maps are files of the BPF file system, so that a
//! policy stays in force as long as it confines a process, whichever process is killed. One set of programs
//! serves all policies of a build; a hook is attached when the first policy needs it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Func;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject};
use policy::compile::bpf::Profile;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Error;
use super::tables::{SIZE, Tables};

/// The object file that the build script compiles.
pub(super) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/enforce.bpf.o"));

/// Mount point of the BPF file system, which keeps objects that no process holds.
pub(crate) const FILE_SYSTEM: &str = "/sys/fs/bpf";
const FILE_SYSTEM_TYPE: i64 = 0xcafe_4a11;

/// Identifies the pid namespace of this process; below, the number of the initial pid namespace, which has
/// all processes.
const PIDS: &str = "/proc/self/ns/pid";
const ALL_PIDS: u64 = 0xefff_fffc;

/// Size of the ring buffer for violations, in bytes.
const RING_BYTES: u32 = 1 << 19;
/// Size of `struct tenant`.
const TENANT_SIZE: usize = 256;
/// Size of `struct label`.
const LABEL_SIZE: usize = 128;
/// Size of `struct ledger`, in words.
const LEDGER_WORDS: usize = 5;

/// Maps that are pinned.
const MAPS: [&str; 10] = [
    "containers",
    "ledgers",
    "labels",
    "memory",
    "places",
    "policies",
    "programs",
    "rings",
    "rules",
    "tenants",
];

/// Hooks whose programs every policy needs: they pass the policy on, count the confined tasks, and protect
/// the programs from confined processes.
const ALWAYS: [&str; 8] = [
    "task_alloc",
    "task_free",
    EXEC,
    "bpf",
    "path_unlink",
    "path_rmdir",
    "path_rename",
    "sb_umount",
];

/// The only tracepoint; all others are hooks of a security module.
const EXEC: &str = "sched_process_exec";

/// Hooks whose absence is harmless where a kernel lacks them: without this one, access-control lists are extended
/// attributes.
const HARMLESS: [&str; 1] = ["inode_set_acl"];

/// The pinned objects, locked exclusively for a change.
pub(super) struct KernelPrograms {
    folder: PathBuf,
    /// Locked as long as it is open.
    _lock: OwnedFd,
}

/// A policy that was loaded.
#[derive(Debug)]
pub(super) struct LoadedEntry {
    pub(super) number: u32,
    pub(super) tenants: MapHandle,
    /// Locked as long as it is open.
    pub(super) waiting: OwnedFd,
    pub(super) lacks: Vec<String>,
}

/// Information on a loaded policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Number of the policy.
    pub number: u32,
    /// Name of the policy.
    pub name: String,
    /// Number of confined tasks.
    pub users: u64,
    /// Number of denied operations.
    pub denied: u64,
    /// Number of operations that were allowed and reported.
    pub audited: u64,
    /// Number of reports lost for lack of room.
    pub lost: u64,
}

impl KernelPrograms {
    /// Waits for the exclusive lock.
    pub(super) fn open() -> Result<Self, Error> {
        check_file_system()?;
        let folder = folder();
        make_folder(&folder)?;
        Ok(Self {
            _lock: lock(&folder, FlockOperation::LockExclusive)?,
            folder,
        })
    }

    fn link(&self, hook: &str) -> PathBuf {
        self.folder.join(format!("link-{hook}"))
    }

    fn map_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("map-{name}"))
    }

    pub(super) fn map(&self, name: &'static str) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(self.map_path(name)).map_err(Error::map(name))
    }

    /// Attaches the programs of the `wanted` hooks. Returns the features that this kernel lacks.
    fn ensure(&self, wanted: &BTreeSet<&str>) -> Result<Vec<String>, Error> {
        let mut missing: BTreeSet<&str> = wanted.iter().copied().collect();
        missing.retain(|hook| !self.link(hook).exists());
        if missing.is_empty() {
            return Ok(Vec::new());
        }
        let kernel = KernelHooks::read();
        // Every policy needs some hooks: without one of those, attaching fails.
        let absent: Vec<&str> = missing
            .iter()
            .copied()
            .filter(|hook| !ALWAYS.contains(hook) && !kernel.has(hook))
            .collect();
        missing.retain(|hook| !absent.contains(hook));
        let mut lacks = absent;
        lacks.retain(|hook| !HARMLESS.contains(hook));
        let lacks = lacks.into_iter();
        let lacks = lacks.map(|hook| format!("this kernel has no hook {hook}"));
        let lacks = lacks.collect();
        if missing.is_empty() {
            return Ok(lacks);
        }
        let mut object = open_object()?;
        for mut program in object.progs_mut() {
            let is_missing = missing.contains(hook_of(program.section()));
            program.set_autoload(is_missing);
        }
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if MAPS.contains(&name.as_str()) {
                // Reuses a pinned map if there is one, and pins a new one otherwise.
                map.set_pin_path(self.map_path(&name))
                    .map_err(Error::load)?;
            }
        }
        let mut object = object.load().map_err(Error::load)?;
        for hook in missing {
            self.attach(&mut object, hook)?;
        }
        Ok(lacks)
    }

    fn attach(&self, object: &mut Object, hook: &str) -> Result<(), Error> {
        let mut programs = object.progs_mut();
        let program = programs.find(|program| hook_of(program.section()) == hook);
        let program = program.ok_or_else(|| Error::Unknown {
            what: "hook",
            name: hook.to_owned(),
        })?;
        let failed = |cause| Error::Attach {
            hook: hook.to_owned(),
            cause,
        };
        let mut link = match hook {
            EXEC => program.attach().map_err(failed)?,
            _ => program.attach_lsm().map_err(failed)?,
        };
        link.pin(self.link(hook)).map_err(failed)
    }

    /// Attaches the programs that a policy needs.
    pub(super) fn prepare(&self, profile: &Profile) -> Result<(), Error> {
        self.ensure(&hooks(profile)).map(drop)
    }

    /// Loads a policy. It confines no process yet.
    pub(super) fn enter(
        &self,
        profile: &Profile,
        name: &str,
        mounts: &str,
    ) -> Result<LoadedEntry, Error> {
        let lacks = self.ensure(&hooks(profile))?;
        self.sweep()?;
        let path = std::env::var_os("PATH");
        let tables = Tables::new(profile, mounts, path.as_deref())?;
        let ledgers = self.map("ledgers")?;
        let number = ledgers
            .keys()
            .filter_map(|key| word(&key, 0))
            .max()
            .unwrap_or(0)
            + 1;
        let tells = profile.entries.iter().any(|entry| entry.verdict.audits());
        let waiting = match self.write(number, name, &tables, tells) {
            Ok(waiting) => waiting,
            Err(error) => {
                // Report only the first error.
                let _ = self.remove(number);
                return Err(error);
            }
        };
        Ok(LoadedEntry {
            number,
            tenants: self.map("tenants")?,
            waiting,
            lacks,
        })
    }

    /// Writes all tables of a policy. `tells` is true if violations are reported. Returns the descriptor that
    /// keeps the policy until it confines a process.
    fn write(
        &self,
        number: u32,
        name: &str,
        tables: &Tables,
        tells: bool,
    ) -> Result<OwnedFd, Error> {
        let waiting = self.wait_for(number)?;
        let ledger = [0; 8 * LEDGER_WORDS];
        let key = number.to_ne_bytes();
        put(&self.map("ledgers")?, "ledgers", &key, &ledger)?;
        put(&self.map("labels")?, "labels", &key, &label(name))?;
        if tells {
            let ring = create(MapType::RingBuf, "violations", 0, 0, RING_BYTES)?;
            let fd = ring.as_fd().as_raw_fd().to_ne_bytes();
            put(&self.map("rings")?, "rings", &key, &fd)?;
        }
        self.install(number, tables)?;
        Ok(waiting)
    }

    /// A folder that is locked as long as a process may still apply the policy: a process that inherits the
    /// lock holds it too, and the exec that confines the process releases it.
    fn waiting(&self, number: u32) -> PathBuf {
        self.folder.join(format!("waiting-{number}"))
    }

    fn wait_for(&self, number: u32) -> Result<OwnedFd, Error> {
        let folder = self.waiting(number);
        make_folder(&folder)?;
        lock(&folder, FlockOperation::NonBlockingLockShared)
    }

    /// Returns true if a policy without confined tasks may still get some. A process that is about to make
    /// the confining exec may have released the lock, but is a tenant by then.
    fn is_waited_for(&self, number: u32) -> Result<bool, Error> {
        let folder = self.waiting(number);
        match lock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Error::Path { cause, .. }) if cause.kind() == io::ErrorKind::WouldBlock => {
                return Ok(true);
            }
            Err(Error::Path { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {}
            outcome => drop(outcome?),
        }
        self.has_tenant(number)
    }

    /// Returns true if a process is a tenant of a policy, or if this process cannot see all processes.
    fn has_tenant(&self, number: u32) -> Result<bool, Error> {
        let own = fs::metadata(PIDS).map_err(cannot(Path::new(PIDS)))?.ino();
        if own != ALL_PIDS {
            return Ok(true);
        }
        let tenants = self.map("tenants")?;
        let proc = Path::new("/proc");
        for entry in fs::read_dir(proc).map_err(cannot(proc))?.flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.parse().ok());
            // An ended process is no tenant.
            let process = pid
                .and_then(Pid::from_raw)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let Some(process) = process else { continue };
            let tenant = tenants.lookup(&process.as_raw_fd().to_ne_bytes(), MapFlags::ANY);
            if tenant.is_ok_and(|found| found.is_some_and(|bytes| word(&bytes, 0) == Some(number)))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Exchanges the loaded policies of this name. Returns their number.
    pub(super) fn exchange(
        &self,
        profile: &Profile,
        name: &str,
        mounts: &str,
    ) -> Result<usize, Error> {
        if !self.map_path("labels").exists() {
            return Ok(0);
        }
        self.sweep()?;
        let named = self
            .loaded()?
            .into_iter()
            .filter(|loaded| loaded.name == name);
        let numbers: Vec<u32> = named.map(|loaded| loaded.number).collect();
        if numbers.is_empty() {
            return Ok(0);
        }
        let lacks = self.ensure(&hooks(profile))?;
        if let Some(lack) = lacks.into_iter().next() {
            return Err(Error::Lacks { lack });
        }
        let path = std::env::var_os("PATH");
        let tables = Tables::new(profile, mounts, path.as_deref())?;
        for number in &numbers {
            let before = self.generation(*number)?;
            self.forget_rules(*number, Some(before))?;
            self.install(*number, &tables)?;
            self.forget(before)?;
        }
        Ok(numbers.len())
    }

    /// Writes a new version completely before switching to it. Nothing stays of a version that fails.
    fn install(&self, number: u32, tables: &Tables) -> Result<(), Error> {
        let before = self.generation(number)?;
        let generation = self.new_generation()?;
        let installed = self.install_as(generation, number, tables);
        if installed.is_err() {
            // Report only the first error.
            let _ = self.forget(generation);
            let _ = self.forget_rules(number, Some(before));
        }
        installed
    }

    fn install_as(&self, generation: u32, number: u32, tables: &Tables) -> Result<(), Error> {
        let rules = self.map("rules")?;
        for (index, rule) in tables.rules.iter().enumerate() {
            let index = u32::try_from(index + 1).expect("rules are limited");
            put(
                &rules,
                "rules",
                &words(&[number, generation, index]),
                &label(rule),
            )?;
        }
        let programs = self.map("programs")?;
        for ((device, inode), outcome) in &tables.programs {
            let mut key = words(&[generation, *device]);
            key.extend(inode.to_ne_bytes());
            put(
                &programs,
                "programs",
                &key,
                &u32::from(*outcome).to_ne_bytes(),
            )?;
        }
        let places = self.map("places")?;
        for (device, state) in &tables.places {
            let key = words(&[generation, *device]);
            put(&places, "places", &key, &state.to_ne_bytes())?;
        }
        let size = u32::try_from(SIZE).expect("less than a megabyte");
        let table = create(MapType::Array, "policy", 4, size, 1)?;
        let mut policy = tables.policy.clone();
        policy[..4].copy_from_slice(&generation.to_ne_bytes());
        put(&table, "policy", &0_u32.to_ne_bytes(), &policy)?;
        let fd = table.as_fd().as_raw_fd().to_ne_bytes();
        put(
            &self.map("policies")?,
            "policies",
            &number.to_ne_bytes(),
            &fd,
        )
    }

    /// A number that no version in force has.
    fn new_generation(&self) -> Result<u32, Error> {
        let used: Result<Vec<u32>, Error> = self
            .loaded()?
            .iter()
            .filter(|loaded| {
                self.policy_map(loaded.number)
                    .is_ok_and(|map| map.is_some())
            })
            .map(|loaded| self.generation(loaded.number))
            .collect();
        Ok(used?.into_iter().max().unwrap_or(0) + 1)
    }

    fn policy_map(&self, number: u32) -> Result<Option<MapHandle>, Error> {
        inner(&self.map("policies")?, "policies", number)
    }

    fn generation(&self, number: u32) -> Result<u32, Error> {
        let Some(policy) = self.policy_map(number)? else {
            return Ok(0);
        };
        let found = policy.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::map("policy"))?;
        Ok(found.and_then(|bytes| word(&bytes, 0)).unwrap_or(0))
    }

    /// Removes the tables of one version, except the names of its rules, which pending reports need.
    fn forget(&self, generation: u32) -> Result<(), Error> {
        for name in ["programs", "places"] {
            let map = self.map(name)?;
            let own: Vec<_> = map
                .keys()
                .filter(|key| word(key, 0) == Some(generation))
                .collect();
            for key in own {
                map.delete(&key).map_err(Error::map(name))?;
            }
        }
        Ok(())
    }

    /// Removes the names of a policy's rules, except those of the version `but`, which may still be reported.
    fn forget_rules(&self, number: u32, but: Option<u32>) -> Result<(), Error> {
        let rules = self.map("rules")?;
        let is_old = |key: &Vec<u8>| word(key, 0) == Some(number) && word(key, 1) != but;
        let old: Vec<_> = rules.keys().filter(is_old).collect();
        for key in old {
            rules.delete(&key).map_err(Error::map("rules"))?;
        }
        Ok(())
    }

    /// Removes policies that confine no process and that no process will apply.
    fn sweep(&self) -> Result<(), Error> {
        let ledgers = match self.map_path("ledgers").exists() {
            true => self.map("ledgers")?,
            false => return Ok(()),
        };
        for loaded in self.loaded()?.iter().filter(|loaded| loaded.users == 0) {
            let counts = ledger(&ledgers, loaded.number)?;
            let is_used = counts.is_some_and(|[.., is_used]| is_used != 0);
            let is_needed = !is_used && self.is_waited_for(loaded.number)?;
            if !is_needed && !self.has_container(loaded.number)? {
                self.remove(loaded.number)?;
            }
        }
        Ok(())
    }

    fn remove(&self, number: u32) -> Result<(), Error> {
        // First: a program that begins in a container without its policy may do nothing.
        self.remove_containers(number)?;
        let generation = self.generation(number)?;
        let key = number.to_ne_bytes();
        for name in ["policies", "rings", "labels", "ledgers"] {
            let map = self.map(name)?;
            let known = map.keys().any(|known| known == key);
            if known {
                map.delete(&key).map_err(Error::map(name))?;
            }
        }
        let waiting = self.waiting(number);
        match fs::remove_dir(&waiting) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(&waiting)(error));
            }
            _ => {}
        }
        self.forget_rules(number, None)?;
        self.forget(generation)
    }

    /// Removes a policy that confined no process.
    pub(super) fn discard(&self, number: u32) -> Result<(), Error> {
        self.remove(number)
    }

    /// Removes unused objects, and the programs if no policy is left.
    pub(super) fn release(&self) -> Result<(), Error> {
        if !self.map_path("ledgers").exists() {
            return Ok(());
        }
        self.sweep()?;
        if !self.loaded()?.is_empty() {
            return Ok(());
        }
        let failed = |cause| Error::Path {
            path: self.folder.display().to_string(),
            cause,
        };
        // Remove programs first: without them, nothing reads the tables.
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.sort();
        let remove = |path: &PathBuf| match path.is_dir() {
            true => fs::remove_dir(path),
            false => fs::remove_file(path),
        };
        files.iter().try_for_each(remove).map_err(failed)
    }

    /// The loaded policies.
    pub(super) fn loaded(&self) -> Result<Vec<Loaded>, Error> {
        if !self.map_path("ledgers").exists() {
            return Ok(Vec::new());
        }
        let ledgers = self.map("ledgers")?;
        let labels = self.map("labels")?;
        let mut loaded = Vec::new();
        for key in ledgers.keys() {
            let Some(number) = word(&key, 0) else {
                continue;
            };
            // The last confined task has just removed it; no process did, because of the lock.
            let Some(counts) = ledger(&ledgers, number)? else {
                continue;
            };
            let [users, denied, audited, lost, ..] = counts;
            let name = labels
                .lookup(&key, MapFlags::ANY)
                .map_err(Error::map("labels"))?;
            loaded.push(Loaded {
                number,
                name: name.map(|bytes| text(&bytes)).unwrap_or_default(),
                // Counted up and down without a lock: a value below zero means zero.
                users: if users > u64::MAX / 2 { 0 } else { users },
                denied,
                audited,
                lost,
            });
        }
        loaded.sort_by_key(|loaded| loaded.number);
        Ok(loaded)
    }

    /// The ring buffer of a policy, the names of rules, and the ledgers.
    pub(super) fn reports(&self, number: u32) -> Result<(MapHandle, MapHandle, MapHandle), Error> {
        let ring = inner(&self.map("rings")?, "rings", number)?;
        let ring = ring.ok_or(Error::Missing { what: "ring" })?;
        Ok((ring, self.map("rules")?, self.map("ledgers")?))
    }
}

/// The folder of this build. Two builds share nothing: their tables may differ.
fn folder() -> PathBuf {
    Path::new(FILE_SYSTEM).join(concat!("tollgate-", env!("TOLLGATE_BPF_BUILD")))
}

/// Returns true if programs are attached already, which shows that they work.
pub(super) fn are_attached() -> bool {
    folder().join("link-task_alloc").exists()
}

pub(crate) fn make_folder(folder: &Path) -> Result<(), Error> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(cannot(folder)(error)),
        _ => Ok(()),
    }
}

/// Opens and locks a folder.
pub(crate) fn lock(folder: &Path, how: FlockOperation) -> Result<OwnedFd, Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(folder, flags, Mode::empty());
    let opened = opened.map_err(|error| cannot(folder)(error.into()))?;
    let locked = rustix::fs::flock(&opened, how);
    locked.map_err(|error| cannot(folder)(error.into()))?;
    Ok(opened)
}

pub(crate) fn cannot(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |cause| Error::Path { path, cause }
}

/// Checks that the BPF file system is available.
pub(crate) fn check_file_system() -> Result<(), Error> {
    let found = rustix::fs::statfs(FILE_SYSTEM).map_err(io::Error::from);
    let kind = found.map_err(cannot(Path::new(FILE_SYSTEM)))?.f_type;
    match kind == FILE_SYSTEM_TYPE {
        true => Ok(()),
        false => Err(Error::NoFileSystem),
    }
}

/// The counters of a policy.
pub(super) fn ledger(map: &MapHandle, number: u32) -> Result<Option<[u64; LEDGER_WORDS]>, Error> {
    let found = map.lookup(&number.to_ne_bytes(), MapFlags::ANY);
    let Some(bytes) = found.map_err(Error::map("ledgers"))? else {
        return Ok(None);
    };
    let mut counts = [0; LEDGER_WORDS];
    for (count, bytes) in counts.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *count = u64::from_ne_bytes(*bytes);
    }
    Ok(Some(counts))
}

/// The name of a rule of a version.
pub(super) fn rule_name(
    map: &MapHandle,
    policy: u32,
    generation: u32,
    number: u32,
) -> Result<Option<String>, Error> {
    let found = map.lookup(&words(&[policy, generation, number]), MapFlags::ANY);
    Ok(found
        .map_err(Error::map("rules"))?
        .map(|bytes| text(&bytes)))
}

/// Confines a process: from its next exec on, the policy applies to it and to all of its descendants.
///
/// Makes one system call.
pub(super) fn confine(
    tenants: &MapHandle,
    number: u32,
    pidfd: BorrowedFd<'_>,
) -> Result<(), libbpf_rs::Error> {
    let mut tenant = [0; TENANT_SIZE];
    tenant[..4].copy_from_slice(&number.to_ne_bytes());
    tenants.update(&pidfd.as_raw_fd().to_ne_bytes(), &tenant, MapFlags::ANY)
}

/// Opens the object with all programs and maps set not to load.
pub(super) fn open_object() -> Result<OpenObject, Error> {
    ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(Error::load)
}

/// Loads what every policy needs, and drops it: an older kernel may have hooks and lack a kind of map.
pub(super) fn try_load() -> Result<(), Error> {
    let mut object = open_object()?;
    for mut program in object.progs_mut() {
        let is_needed = ALWAYS.contains(&hook_of(program.section()));
        program.set_autoload(is_needed);
    }
    object.load().map(drop).map_err(Error::load)
}

/// Hooks whose programs a policy needs.
fn hooks(profile: &Profile) -> BTreeSet<&str> {
    ALWAYS.into_iter().chain(profile.hooks()).collect()
}

/// The hook or tracepoint of a program, from its section: `lsm/HOOK` or `tp_btf/TRACEPOINT`.
fn hook_of(section: &OsStr) -> &str {
    let text = section.to_str().unwrap_or("");
    text.split_once('/').map_or(text, |(_, hook)| hook)
}

/// The hooks of this kernel, as its type information names them. Without that information no program can be
/// attached to any.
struct KernelHooks(Option<Btf<'static>>);

impl KernelHooks {
    fn read() -> Self {
        Self(Btf::from_vmlinux().ok())
    }

    fn has(&self, hook: &str) -> bool {
        let wanted = format!("bpf_lsm_{hook}");
        let btf = self.0.as_ref();
        btf.is_some_and(|btf| btf.type_by_name::<Func<'_>>(&wanted).is_some())
    }
}

/// The hooks that a profile needs and that this kernel lacks. Empty if the kernel has none at all: no policy is
/// enforced there, and the probe says why.
pub(super) fn missing_hooks(profile: &Profile) -> BTreeSet<String> {
    let kernel = KernelHooks::read();
    if !kernel.has("file_open") {
        return BTreeSet::new();
    }
    let hooks = profile.hooks().into_iter();
    let missing = hooks.filter(|hook| !HARMLESS.contains(hook) && !kernel.has(hook));
    missing.map(str::to_owned).collect()
}

/// The inner map of an entry of a map of maps.
fn inner(outer: &MapHandle, name: &'static str, number: u32) -> Result<Option<MapHandle>, Error> {
    let found = outer.lookup(&number.to_ne_bytes(), MapFlags::ANY);
    let Some(id) = found
        .map_err(Error::map(name))?
        .and_then(|bytes| word(&bytes, 0))
    else {
        return Ok(None);
    };
    MapHandle::from_map_id(id)
        .map(Some)
        .map_err(Error::map(name))
}

fn create(
    kind: MapType,
    name: &'static str,
    key: u32,
    value: u32,
    entries: u32,
) -> Result<MapHandle, Error> {
    create_with(kind, name, [key, value, entries], 0)
}

/// Like [`create`], with sizes of keys and values and the number of entries, and with flags.
pub(crate) fn create_with(
    kind: MapType,
    name: &'static str,
    [key, value, entries]: [u32; 3],
    flags: u32,
) -> Result<MapHandle, Error> {
    let size = size_of::<libbpf_sys::bpf_map_create_opts>();
    let options = libbpf_sys::bpf_map_create_opts {
        sz: u64::try_from(size).expect("a small structure"),
        map_flags: flags,
        ..Default::default()
    };
    MapHandle::create(kind, Some(name), key, value, entries, &options).map_err(Error::map(name))
}

pub(crate) fn put(
    map: &MapHandle,
    name: &'static str,
    key: &[u8],
    value: &[u8],
) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY)
        .map_err(Error::map(name))
}

pub(super) fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let bytes = bytes.get(4 * index..4 * index + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The first 127 bytes of a name.
fn label(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(LABEL_SIZE - 1);
    bytes.resize(LABEL_SIZE, 0);
    bytes
}

/// The text up to the first zero byte.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use policy::builtin::{self, Class};
    use policy::compile::MachineFeatures;

    use super::*;

    /// A profile with all built-in rules and some raw ones.
    fn everything() -> Profile {
        let names = |class| {
            let own = builtin::all().iter().filter(|rule| rule.class == class);
            let names: Vec<&str> = own.map(|rule| rule.name.as_str()).collect();
            names.join(", ")
        };
        let text = format!(
            "policy:\n  enforcer: BPF\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    \
             hardeningRules: [{}]\n    vulMitigationRules: [{}]\n    attackProtectionRules: [{{rules: [{}]}}]\n    \
             bpfRawRules: {{ptrace: {{qualifiers: [deny], permissions: [all]}}}}\n",
            names(Class::Hardening),
            names(Class::Vulnerability),
            names(Class::Attack)
        );
        let (policies, problems) = policy::load("p.yaml", &text);
        assert!(problems.is_empty(), "{problems:?}");
        Profile::compile(&policies[0], &MachineFeatures::default())
    }

    #[test]
    fn each_hook_that_rules_name_has_a_program_and_each_program_a_rule() {
        let mut object = open_object().unwrap();
        let sections: Vec<_> = object
            .progs_mut()
            .map(|program| program.section())
            .collect();
        let programs: BTreeSet<&str> = sections.iter().map(|section| hook_of(section)).collect();
        assert_eq!(programs.len(), sections.len(), "one for each hook");
        let profile = everything();
        let mut wanted = hooks(&profile);
        // The hook of the probe.
        wanted.insert("task_getsid");
        assert_eq!(wanted, programs);
    }
}
