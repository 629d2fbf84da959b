//! The programs in the kernel, their tables, and where both are kept.
//!
//! They belong to nobody's process: links and maps are files of the BPF file system, so that a policy is
//! in force for as long as somebody is confined by it, whoever is killed. One set of programs serves all
//! policies of a build; a hook is attached when the first policy needs it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::btf::types::Func;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject};
use policy::MountMatch;
use policy::compile::bpf::{Key, Profile};
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::Error;
use super::kind::Operation;
use super::tables::{SIZE, Tables};

/// What the build script has compiled.
pub(super) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/enforce.bpf.o"));

/// Where the kernel keeps what no process holds.
pub(super) const FILE_SYSTEM: &str = "/sys/fs/bpf";
const FILE_SYSTEM_TYPE: i64 = 0xcafe_4a11;

/// Bytes of a ring for violations.
const RING_BYTES: u32 = 1 << 19;
/// `struct tenant`.
const TENANT_SIZE: usize = 256;
/// `struct label`.
const LABEL_SIZE: usize = 128;
/// `struct ledger`, in words.
const LEDGER_WORDS: usize = 4;

/// Maps that are kept.
const MAPS: [&str; 9] = [
    "ledgers", "labels", "memory", "places", "policies", "programs", "rings", "rules", "tenants",
];

/// Programs that every policy needs: they hand the policy on, count who has it, and keep the programs
/// from those who are confined.
const ALWAYS: [&str; 8] = [
    "task_alloc",
    "task_free",
    "exec_done",
    "bpf_command",
    "path_unlink",
    "path_rmdir",
    "path_rename",
    "sb_umount",
];

/// Programs that see a file changed other than by opening it.
const CHANGES: [&str; 9] = [
    "path_truncate",
    "path_mkdir",
    "path_mknod",
    "path_symlink",
    "path_chmod",
    "path_chown",
    "inode_setxattr",
    "inode_removexattr",
    "inode_set_acl",
];

/// Hooks that not every kernel has, and why that does no harm where it does none.
const NEWER: [(&str, &str, bool); 2] = [
    // Access-control lists were extended attributes before.
    ("inode_set_acl", "inode_set_acl", true),
    ("userns_create", "userns_create", false),
];

/// What is in the kernel, while it is changed: nobody else changes it.
pub(super) struct Kept {
    folder: PathBuf,
    /// Its lock is held for as long as it is open.
    _lock: OwnedFd,
}

/// A policy that was loaded.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) number: u32,
    pub(super) tenants: MapHandle,
    pub(super) lacks: Vec<String>,
}

/// What is told of a loaded policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Tasks that it confines.
    pub users: u64,
    /// Operations that it denied.
    pub denied: u64,
    /// Operations that it let pass and reported.
    pub audited: u64,
    /// Reports for which there was no room.
    pub lost: u64,
}

impl Kept {
    /// Waits until nobody else changes it.
    pub(super) fn open() -> Result<Self, Error> {
        check_file_system()?;
        let folder = folder();
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(cannot(&folder)(error));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let lock = rustix::fs::open(&folder, flags, Mode::empty());
        let lock = lock.map_err(|error| cannot(&folder)(error.into()))?;
        let locked = rustix::fs::flock(&lock, FlockOperation::LockExclusive);
        locked.map_err(|error| cannot(&folder)(error.into()))?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    fn link(&self, program: &str) -> PathBuf {
        self.folder.join(format!("link-{program}"))
    }

    fn map_path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("map-{name}"))
    }

    fn map(&self, name: &'static str) -> Result<MapHandle, Error> {
        MapHandle::from_pinned_path(self.map_path(name)).map_err(Error::map(name))
    }

    /// Has these programs attached. Answers with what this kernel lacks.
    fn ensure(&self, wanted: &BTreeSet<&'static str>) -> Result<Vec<String>, Error> {
        let is_there = |program: &str| self.link(program).exists();
        let mut missing: BTreeSet<&str> = wanted.iter().copied().collect();
        missing.retain(|program| !is_there(program));
        let mut lacks = Vec::new();
        for (program, hook, is_harmless) in NEWER {
            if missing.contains(program) && !has_hook(hook) {
                missing.remove(program);
                if !is_harmless {
                    lacks.push(format!("this kernel has no hook {hook}"));
                }
            }
        }
        if missing.is_empty() {
            return Ok(lacks);
        }
        let mut object = open_object()?;
        for mut program in object.progs_mut() {
            let name = program.name().to_string_lossy().into_owned();
            program.set_autoload(missing.contains(name.as_str()));
        }
        for mut map in object.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if MAPS.contains(&name.as_str()) {
                // Found there if it is, and kept there if it is not.
                map.set_pin_path(self.map_path(&name))
                    .map_err(Error::load)?;
            }
        }
        let mut object = object.load().map_err(Error::load)?;
        for program in missing {
            self.attach(&mut object, program)?;
        }
        Ok(lacks)
    }

    fn attach(&self, object: &mut Object, name: &str) -> Result<(), Error> {
        let program = object.progs_mut().find(|program| program.name() == name);
        let program = program.ok_or_else(|| Error::Unknown {
            what: "program",
            name: name.to_owned(),
        })?;
        let failed = |cause| Error::Attach {
            program: name.to_owned(),
            cause,
        };
        let mut link = match name {
            "exec_done" => program.attach().map_err(failed)?,
            _ => program.attach_lsm().map_err(failed)?,
        };
        link.pin(self.link(name)).map_err(failed)
    }

    /// Loads a policy. It confines nobody yet.
    pub(super) fn enter(
        &self,
        profile: &Profile,
        name: &str,
        mounts: &str,
    ) -> Result<Entered, Error> {
        let lacks = self.ensure(&programs(profile))?;
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
        // The process that is confined first, which nobody forks.
        let ledger: Vec<u8> = [1_u64, 0, 0, 0]
            .iter()
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        put(&ledgers, "ledgers", &number.to_ne_bytes(), &ledger)?;
        put(
            &self.map("labels")?,
            "labels",
            &number.to_ne_bytes(),
            &label(name),
        )?;
        if profile.entries.iter().any(|entry| entry.verdict.audits()) {
            let ring = create(MapType::RingBuf, "violations", 0, 0, RING_BYTES)?;
            let fd = ring.as_fd().as_raw_fd().to_ne_bytes();
            put(&self.map("rings")?, "rings", &number.to_ne_bytes(), &fd)?;
        }
        self.install(number, &tables)?;
        Ok(Entered {
            number,
            tenants: self.map("tenants")?,
            lacks,
        })
    }

    /// Exchanges the policies of this name that are in force. Answers with how many they are.
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
        let lacks = self.ensure(&programs(profile))?;
        if let Some(lack) = lacks.into_iter().next() {
            return Err(Error::Lacks { lack });
        }
        let path = std::env::var_os("PATH");
        let tables = Tables::new(profile, mounts, path.as_deref())?;
        for number in &numbers {
            let before = self.generation(*number)?;
            self.install(*number, &tables)?;
            self.forget(before)?;
        }
        Ok(numbers.len())
    }

    /// Everything that a version needs is there before it is switched to.
    fn install(&self, number: u32, tables: &Tables) -> Result<(), Error> {
        let generation = self.new_generation()?;
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

    /// Removes what belongs to one version, but the names of its rules, for reports on their way.
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

    /// Removes policies that confine nobody any more.
    fn sweep(&self) -> Result<(), Error> {
        for loaded in self.loaded()? {
            if loaded.users == 0 {
                self.remove(loaded.number)?;
            }
        }
        Ok(())
    }

    fn remove(&self, number: u32) -> Result<(), Error> {
        let generation = self.generation(number)?;
        let key = number.to_ne_bytes();
        for name in ["policies", "rings", "labels", "ledgers"] {
            let map = self.map(name)?;
            let known = map.keys().any(|known| known == key);
            if known {
                map.delete(&key).map_err(Error::map(name))?;
            }
        }
        let rules = self.map("rules")?;
        let own: Vec<_> = rules
            .keys()
            .filter(|key| word(key, 0) == Some(number))
            .collect();
        for key in own {
            rules.delete(&key).map_err(Error::map("rules"))?;
        }
        self.forget(generation)
    }

    /// Removes a policy that nobody was confined by.
    pub(super) fn discard(&self, number: u32) -> Result<(), Error> {
        self.remove(number)
    }

    /// Removes what nobody needs; the programs too, if no policy is left.
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
        // Programs first: without them nobody asks for the tables.
        let mut files: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            files.push(entry.map_err(failed)?.path());
        }
        files.sort();
        files.iter().try_for_each(fs::remove_file).map_err(failed)
    }

    /// The policies that are loaded.
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
            // Removed by the last of them a moment ago, by nobody else: this is locked.
            let Some(counts) = ledger(&ledgers, number)? else {
                continue;
            };
            let [users, denied, audited, lost] = counts;
            let name = labels
                .lookup(&key, MapFlags::ANY)
                .map_err(Error::map("labels"))?;
            loaded.push(Loaded {
                number,
                name: name.map(|bytes| text(&bytes)).unwrap_or_default(),
                // Counted from both sides without a lock: below zero is none.
                users: if users > u64::MAX / 2 { 0 } else { users },
                denied,
                audited,
                lost,
            });
        }
        loaded.sort_by_key(|loaded| loaded.number);
        Ok(loaded)
    }

    /// The ring of a policy, the names of rules, and the ledgers.
    pub(super) fn reports(&self, number: u32) -> Result<(MapHandle, MapHandle, MapHandle), Error> {
        let ring = inner(&self.map("rings")?, "rings", number)?;
        let ring = ring.ok_or(Error::Missing { what: "ring" })?;
        Ok((ring, self.map("rules")?, self.map("ledgers")?))
    }
}

/// Two builds share nothing: their tables may differ.
fn folder() -> PathBuf {
    Path::new(FILE_SYSTEM).join(concat!("tollgate-", env!("TOLLGATE_BPF_BUILD")))
}

/// Whether programs are attached already: then they were tried.
pub(super) fn are_attached() -> bool {
    folder().join("link-task_alloc").exists()
}

fn cannot(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |cause| Error::Path { path, cause }
}

/// Whether there is a place to keep anything.
pub(super) fn check_file_system() -> Result<(), Error> {
    let found = rustix::fs::statfs(FILE_SYSTEM).map_err(io::Error::from);
    let kind = found.map_err(cannot(Path::new(FILE_SYSTEM)))?.f_type;
    match kind == FILE_SYSTEM_TYPE {
        true => Ok(()),
        false => Err(Error::NoFileSystem),
    }
}

/// Counters of a policy.
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

/// Confines a process: from its next exec on the policy holds for it and all that it will ever start.
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

/// The object, with nothing of it to be loaded.
pub(super) fn open_object() -> Result<OpenObject, Error> {
    ObjectBuilder::default()
        .open_memory(OBJECT)
        .map_err(Error::load)
}

/// Programs that a policy needs.
fn programs(profile: &Profile) -> BTreeSet<&'static str> {
    let mut programs = BTreeSet::from(ALWAYS);
    for entry in &profile.entries {
        programs.extend(programs_of(&entry.key));
    }
    programs
}

fn programs_of(key: &Key) -> Vec<&'static str> {
    match key {
        Key::File { access, .. } => {
            let mut programs = vec!["file_open", "path_link"];
            if access.write {
                programs.extend(CHANGES);
            }
            programs
        }
        Key::Exec { .. } => vec!["bprm_check", "mmap_file"],
        Key::Connect { .. } => vec!["unix_connect", "unix_send"],
        Key::Disk { .. } => vec!["file_open"],
        Key::Socket(_) => vec!["socket_create"],
        Key::Egress { .. } => vec!["socket_connect", "socket_sendmsg"],
        Key::Mount(MountMatch::FileSystem(_) | MountMatch::Disk) => vec!["new_mount"],
        Key::Mount(MountMatch::From(_) | MountMatch::Raw { .. }) => {
            vec!["sb_mount", "move_mount", "follow_link"]
        }
        Key::Ptrace { .. } => vec!["ptrace_check", "ptrace_traceme"],
        Key::Capabilities(_) => vec!["capable"],
        Key::Mode(_) => vec![
            "path_chmod",
            "path_mknod",
            "file_open",
            "inode_setxattr",
            "inode_set_acl",
        ],
        Key::Hook(name) if name.starts_with("file_open:") => vec!["file_open", "path_link"],
        Key::Hook(name) => match Operation::of_hook(name) {
            Some(Operation::Mount) => {
                vec![
                    "sb_mount",
                    "move_mount",
                    "sb_remount",
                    "sb_pivotroot",
                    "capable",
                ]
            }
            Some(Operation::UserNamespace) => vec!["userns_create"],
            Some(Operation::KernelCode) => {
                vec![
                    "kernel_read_file",
                    "kernel_load_data",
                    "module_request",
                    "capable",
                ]
            }
            Some(Operation::SocketFilter) => vec!["socket_option"],
            Some(Operation::Userfaultfd) => vec!["anonymous"],
            // Always there. What no program knows the tables refuse.
            Some(Operation::Umount | Operation::BpfProgram) | None => Vec::new(),
        },
    }
}

fn has_hook(name: &str) -> bool {
    let wanted = format!("bpf_lsm_{name}");
    let btf = libbpf_rs::btf::Btf::from_vmlinux();
    btf.is_ok_and(|btf| btf.type_by_name::<Func<'_>>(&wanted).is_some())
}

/// The map that an entry of a map of maps stands for.
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
    let size = size_of::<libbpf_sys::bpf_map_create_opts>();
    let options = libbpf_sys::bpf_map_create_opts {
        sz: u64::try_from(size).expect("a small structure"),
        ..Default::default()
    };
    MapHandle::create(kind, Some(name), key, value, entries, &options).map_err(Error::map(name))
}

fn put(map: &MapHandle, name: &'static str, key: &[u8], value: &[u8]) -> Result<(), Error> {
    map.update(key, value, MapFlags::ANY)
        .map_err(Error::map(name))
}

fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let bytes = bytes.get(4 * index..4 * index + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// At most 127 bytes of a name.
fn label(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.truncate(LABEL_SIZE - 1);
    bytes.resize(LABEL_SIZE, 0);
    bytes
}

/// Up to the zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
