//! The BPF programs, their tables, and the place where the kernel keeps both.
//!
//! Programs and tables belong to no process: links and maps are files of the BPF file system, so that a
//! policy stays in force as long as it confines a process, whichever process is killed. One set of programs
//! serves all policies of a build; a hook is attached when the first policy needs it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};
use policy::compile::bpf::Profile;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::Error;
use super::hooks::{LOADING, hooks};
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
/// Offset of the number of its table.
const TENANT_TABLE: usize = 16;
/// Number of all containers together, which no policy has.
pub(super) const ALL: u32 = 0;
/// Size of `struct label`.
const LABEL_SIZE: usize = 128;
/// Size of `struct ledger`, in words.
const LEDGER_WORDS: usize = 5;

/// Maps that are pinned.
pub(super) const MAPS: [&str; 12] = [
    "containers",
    "counters",
    "generations",
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

/// The pinned objects, locked exclusively for a change.
pub(super) struct KernelPrograms {
    pub(super) folder: PathBuf,
    /// Locked as long as it is open.
    _lock: OwnedFd,
}

/// A counter of the table `counters`.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    /// Of policies, containers and tables.
    Number = 0,
    /// Of versions.
    Generation = 1,
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

    pub(super) fn map_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("map-{name}"))
    }

    pub(super) fn map(&self, name: &'static str) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(self.map_path(name)).map_err(Error::map(name))
    }

    /// Loads a policy. It confines no process yet.
    pub(super) fn enter(profile: &Profile, name: &str, mounts: &str) -> Result<LoadedEntry, Error> {
        let (kernel, lacks) = Self::open_for(&hooks(profile))?;
        kernel.sweep()?;
        let path = std::env::var_os("PATH");
        let tables = Tables::new(profile, mounts, path.as_deref())?;
        let number = kernel.next(Counter::Number)?;
        let tells = profile.entries.iter().any(|entry| entry.verdict.audits());
        let waiting = match kernel.write(number, name, &tables, tells) {
            Ok(waiting) => waiting,
            Err(error) => {
                // Report only the first error.
                let _ = kernel.remove(number);
                return Err(error);
            }
        };
        Ok(LoadedEntry {
            number,
            tenants: kernel.map("tenants")?,
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
        self.put_ledger(number, name)?;
        if tells {
            self.put_ring(number)?;
        }
        self.install(number, tables)?;
        Ok(waiting)
    }

    /// Begins to count for a number.
    pub(super) fn put_ledger(&self, number: u32, name: &str) -> Result<(), Error> {
        let ledger = [0; 8 * LEDGER_WORDS];
        let key = number.to_ne_bytes();
        put(&self.map("ledgers")?, "ledgers", &key, &ledger)?;
        put(&self.map("labels")?, "labels", &key, &label(name))
    }

    pub(super) fn put_ring(&self, number: u32) -> Result<(), Error> {
        let ring = create(MapType::RingBuf, "violations", 0, 0, RING_BYTES)?;
        let fd = ring.as_fd().as_raw_fd().to_ne_bytes();
        put(&self.map("rings")?, "rings", &number.to_ne_bytes(), &fd)
    }

    /// The next of the numbers that are given once.
    pub(super) fn next(&self, counter: Counter) -> Result<u32, Error> {
        let counters = self.map("counters")?;
        let key = (counter as u32).to_ne_bytes();
        let last = counters.lookup(&key, MapFlags::ANY);
        let last = last.map_err(Error::map("counters"))?;
        let last = last.and_then(|bytes| word(&bytes, 0));
        let last = last.ok_or(Error::Missing { what: "counter" })?;
        // The programs use the highest bit.
        let next = last.checked_add(1).filter(|next| *next < 1 << 31);
        let next = next.ok_or(Error::Full { name: "counters" })?;
        put(&counters, "counters", &key, &next.to_ne_bytes())?;
        Ok(next)
    }

    /// A folder that is locked as long as a process may still apply the policy: a process that inherits the
    /// lock holds it too, and the exec that confines the process releases it.
    pub(super) fn waiting(&self, number: u32) -> PathBuf {
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

    /// Exchanges the loaded policies of this name, but for those of containers. Returns their number.
    pub(super) fn exchange(profile: &Profile, name: &str, mounts: &str) -> Result<usize, Error> {
        let kernel = Self::open()?;
        kernel.sweep()?;
        if kernel.named(name)?.is_empty() {
            return Ok(0);
        }
        drop(kernel);
        let (kernel, lacks) = Self::open_for(&hooks(profile))?;
        if let Some(lack) = lacks.into_iter().next() {
            return Err(Error::Lacks { lack });
        }
        let path = std::env::var_os("PATH");
        let tables = Tables::new(profile, mounts, path.as_deref())?;
        let numbers = kernel.named(name)?;
        for number in &numbers {
            kernel.replace(*number, &tables)?;
        }
        Ok(numbers.len())
    }

    /// Numbers of the loaded policies of this name, but for those of containers.
    fn named(&self, name: &str) -> Result<Vec<u32>, Error> {
        let loaded = self.loaded()?;
        if loaded.is_empty() {
            return Ok(Vec::new());
        }
        let of_containers = self.container_numbers()?;
        let named = loaded
            .into_iter()
            .filter(|loaded| loaded.name == name && !of_containers.contains(&loaded.number));
        Ok(named.map(|loaded| loaded.number).collect())
    }

    /// Exchanges the version of a table.
    pub(super) fn replace(&self, number: u32, tables: &Tables) -> Result<(), Error> {
        let before = self.generation(number)?;
        self.forget_rules(number, Some(before))?;
        self.install(number, tables)?;
        self.forget(before)
    }

    /// Writes a new version completely before switching to it. Nothing stays of a version that fails.
    pub(super) fn install(&self, number: u32, tables: &Tables) -> Result<(), Error> {
        let before = self.generation(number)?;
        let generation = self.next(Counter::Generation)?;
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
        let key = number.to_ne_bytes();
        put(&self.map("policies")?, "policies", &key, &fd)?;
        put(
            &self.map("generations")?,
            "generations",
            &key,
            &generation.to_ne_bytes(),
        )
    }

    /// The version that is in force; 0 if there is none yet.
    fn generation(&self, number: u32) -> Result<u32, Error> {
        let found = self.map("generations")?;
        let found = found.lookup(&number.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::map("generations"))?;
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

    /// Removes policies that confine no process and that no process will apply, but for those of containers.
    fn sweep(&self) -> Result<(), Error> {
        let ledgers = match self.map_path("ledgers").exists() {
            true => self.map("ledgers")?,
            false => return Ok(()),
        };
        let of_containers = self.container_numbers()?;
        let loaded = self.loaded()?;
        let unused = loaded
            .iter()
            .filter(|loaded| loaded.users == 0 && !of_containers.contains(&loaded.number));
        for loaded in unused {
            let counts = ledger(&ledgers, loaded.number)?;
            let is_used = counts.is_some_and(|[.., is_used]| is_used != 0);
            if is_used || !self.is_waited_for(loaded.number)? {
                self.remove(loaded.number)?;
            }
        }
        Ok(())
    }

    pub(super) fn remove(&self, number: u32) -> Result<(), Error> {
        self.remove_keys(&["policies", "rings", "labels", "ledgers"], number)?;
        let waiting = self.waiting(number);
        match fs::remove_dir(&waiting) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(cannot(&waiting)(error));
            }
            _ => {}
        }
        self.forget_rules(number, None)?;
        self.forget(self.generation(number)?)?;
        self.remove_keys(&["generations"], number)
    }

    /// The numbers that a map has something for.
    pub(super) fn numbers(&self, name: &'static str) -> Result<BTreeSet<u32>, Error> {
        let map = self.map(name)?;
        Ok(map.keys().filter_map(|key| word(&key, 0)).collect())
    }

    /// Removes what maps have for a number.
    pub(super) fn remove_keys(&self, names: &[&'static str], number: u32) -> Result<(), Error> {
        let key = number.to_ne_bytes();
        for name in names {
            delete(&self.map(name)?, name, &key)?;
        }
        Ok(())
    }

    /// Removes unused objects, and the programs if no policy is left.
    pub(super) fn release(&self) -> Result<(), Error> {
        if !self.map_path("ledgers").exists() {
            return Ok(());
        }
        self.sweep()?;
        self.remove_ended()?;
        if !self.loaded()?.is_empty() {
            return Ok(());
        }
        // Who loads programs has use for them.
        let Some(_loading) = self.without_loading()? else {
            return Ok(());
        };
        let failed = |cause| Error::Path {
            path: self.folder.display().to_string(),
            cause,
        };
        // Remove programs first: without them, nothing reads the tables.
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.retain(|path| !path.ends_with(LOADING));
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
            let Some(number) = word(&key, 0).filter(|number| *number != ALL) else {
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
pub(super) fn folder() -> PathBuf {
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
    table: u32,
    generation: u32,
    number: u32,
) -> Result<Option<String>, Error> {
    let found = map.lookup(&words(&[table, generation, number]), MapFlags::ANY);
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
    tenant[TENANT_TABLE..TENANT_TABLE + 4].copy_from_slice(&number.to_ne_bytes());
    tenants.update(&pidfd.as_raw_fd().to_ne_bytes(), &tenant, MapFlags::ANY)
}

/// The inner map of an entry of a map of maps.
pub(super) fn inner(
    outer: &MapHandle,
    name: &'static str,
    number: u32,
) -> Result<Option<MapHandle>, Error> {
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

pub(super) fn create(
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

/// Removes an entry, if there is one.
pub(super) fn delete(map: &MapHandle, name: &'static str, key: &[u8]) -> Result<(), Error> {
    match map.delete(key) {
        Err(error) if error.kind() != libbpf_rs::ErrorKind::NotFound => {
            Err(Error::map(name)(error))
        }
        _ => Ok(()),
    }
}

pub(super) fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let bytes = bytes.get(4 * index..4 * index + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

pub(super) fn words(words: &[u32]) -> Vec<u8> {
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
