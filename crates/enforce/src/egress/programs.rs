//! Loading, and the objects that stay in the kernel.
//!
//! Each policy has a folder in the BPF file system: its programs, the table of rules, and the count of denials.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{
    MapCore, MapFlags, MapHandle, MapType, Object, ObjectBuilder, OpenObject, Program,
};
use rustix::fs::FlockOperation;
use sys::bpf::{GroupHook, attach_to_group, programs_of_group};

use super::table::{EgressTable, KEY_SIZE, VALUE_SIZE};
use crate::bpf::programs::{
    FILE_SYSTEM, cannot, check_file_system, create_with, lock, make_folder, put, text,
};
use crate::bpf::{ContainerPlace, Error};

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/egress.bpf.o"));
/// Its only key.
const ZERO: [u8; 4] = [0; 4];
const RULES: &str = "rules";
const DENIALS: &str = "denials";
/// Which version of the rules is in force; 0 if that is not known.
const VERSION: &str = "version";
/// `CGROUP2_SUPER_MAGIC`.
const GROUPS_TYPE: i64 = 0x6367_7270;
/// The control groups of the containers of a policy: path by number.
const GROUPS: &str = "groups";
/// Most containers of a policy on a node.
const MAX_GROUPS: u32 = 4096;
/// Size of a path in the table of groups.
const PATH_SIZE: u32 = 512;
/// `BPF_F_NO_PREALLOC`.
const ON_DEMAND: u32 = 1;
/// Longest name of a folder.
const LONGEST_NAME: usize = 200;

/// The programs and their hooks. The last one is pinned last: where it is, all are.
const PROGRAMS: [(&str, GroupHook); 5] = [
    ("connect4", GroupHook::Connect4),
    ("connect6", GroupHook::Connect6),
    ("sendmsg4", GroupHook::Send4),
    ("sendmsg6", GroupHook::Send6),
    ("egress", GroupHook::Egress),
];

/// Programs for one policy, whichever it will be: loaded, and at no control group.
#[derive(Debug)]
pub struct LoadedEgress(Object);

impl LoadedEgress {
    /// Has the kernel check the programs, which takes milliseconds, or seconds on a slow machine.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn load() -> Result<Self, Error> {
        let object = ObjectBuilder::default().open_memory(OBJECT);
        let object = object.and_then(OpenObject::load);
        object.map(Self).map_err(Error::load)
    }
}

/// The programs of all policies, locked for a change.
#[derive(Debug)]
pub struct EgressPrograms {
    folder: PathBuf,
    /// Locked as long as it is open.
    _lock: OwnedFd,
}

impl EgressPrograms {
    /// Waits for the exclusive lock.
    ///
    /// # Errors
    /// If there is no BPF file system, or the folder in it cannot be used.
    pub fn open() -> Result<Self, Error> {
        check_file_system()?;
        let build = concat!("tollgate-egress-", env!("TOLLGATE_EGRESS_BUILD"));
        let folder = Path::new(FILE_SYSTEM).join(build);
        make_folder(&folder)?;
        Ok(Self {
            _lock: lock(&folder, FlockOperation::LockExclusive)?,
            folder,
        })
    }

    /// Confines a container by a policy. Where other containers have a policy of this name, it gets the rules that they have:
    /// returns whether these are the ones given. `load` is called where no container of this kernel has had the policy.
    ///
    /// # Errors
    /// If the container could leave its control group or remove the programs, or the kernel refuses one. Programs before that
    /// one decide.
    pub fn confine(
        &self,
        name: &str,
        table: &EgressTable,
        place: &ContainerPlace,
        load: impl FnOnce() -> Result<LoadedEgress, Error>,
    ) -> Result<bool, Error> {
        place.is_kept_in()?;
        let folder = self.policy(name)?;
        if !is_loaded(&folder) {
            // What a process that was killed has left is no use: its programs may be some of them.
            remove(&folder)?;
            let programs = load()?;
            make_folder(&folder)?;
            pin(programs, &folder)?;
            write(&folder, table)?;
        } else if !forget_ended(&folder)? {
            write(&folder, table)?;
        }
        attach(&folder, place)?;
        Ok(version_of(&folder)? == Some(table.version()))
    }

    /// Puts the rules of a policy in force in all containers that have its name.
    ///
    /// # Errors
    /// If its programs are gone, or the kernel refuses the rules; those before stay in force then.
    pub fn change(&self, name: &str, table: &EgressTable) -> Result<(), Error> {
        let folder = self.policy(name)?;
        match is_loaded(&folder) {
            true => write(&folder, table),
            false => Err(Error::Missing {
                what: "set of programs",
            }),
        }
    }

    /// How often something was denied in the containers of a policy; `None` if it is not loaded.
    ///
    /// # Errors
    /// If the count cannot be read.
    pub fn denials(&self, name: &str) -> Result<Option<u64>, Error> {
        let folder = self.policy(name)?;
        if !folder.join(DENIALS).exists() {
            return Ok(None);
        }
        number_in(&folder, DENIALS)
    }

    /// Forgets the containers that have ended, and the policies of which none is left.
    ///
    /// # Errors
    /// If the folder cannot be read, or one in it not removed.
    pub fn remove_ended(&self) -> Result<(), Error> {
        let entries = fs::read_dir(&self.folder).map_err(cannot(&self.folder))?;
        for entry in entries {
            let folder = entry.map_err(cannot(&self.folder))?.path();
            if !(is_loaded(&folder) && forget_ended(&folder)?) {
                remove(&folder)?;
            }
        }
        Ok(())
    }

    fn policy(&self, name: &str) -> Result<PathBuf, Error> {
        let file = file_name(name);
        match file.len() <= LONGEST_NAME {
            true => Ok(self.folder.join(file)),
            false => Err(Error::TooLarge {
                what: "bytes in its name",
                limit: LONGEST_NAME,
            }),
        }
    }
}

/// The name as a folder of the BPF file system, where names have no dot: all but letters, digits and `-` as `_` and a number
/// of two hexadecimal digits.
fn file_name(name: &str) -> String {
    let mut file = String::new();
    for byte in name.bytes() {
        match byte.is_ascii_alphanumeric() || byte == b'-' {
            true => file.push(char::from(byte)),
            false => file.push_str(&format!("_{byte:02x}")),
        }
    }
    file
}

/// Whether the programs of a policy are loaded: where the last one is, all are.
fn is_loaded(folder: &Path) -> bool {
    let (last, _) = PROGRAMS[PROGRAMS.len() - 1];
    folder.join(last).exists()
}

/// Puts rules in force. A process that is killed here leaves a version that is none.
fn write(folder: &Path, table: &EgressTable) -> Result<(), Error> {
    let version = map(folder, VERSION)?;
    let rules = map(folder, RULES)?;
    let prefixes = create_prefixes(table)?;
    let fd = prefixes.as_fd().as_raw_fd().to_ne_bytes();
    put(&version, VERSION, &ZERO, &0_u64.to_ne_bytes())?;
    put(&rules, RULES, &ZERO, &fd)?;
    put(&version, VERSION, &ZERO, &table.version().to_ne_bytes())
}

/// The version of the rules in force.
fn version_of(folder: &Path) -> Result<Option<u64>, Error> {
    number_in(folder, VERSION)
}

/// The number in a table that has one.
fn number_in(folder: &Path, name: &'static str) -> Result<Option<u64>, Error> {
    let found = map(folder, name)?.lookup(&ZERO, MapFlags::ANY);
    let bytes = found.map_err(Error::map(name))?;
    let number = bytes.and_then(|bytes| bytes.first_chunk().copied());
    Ok(number.map(u64::from_ne_bytes))
}

/// Has the programs of a policy decide for a container.
fn attach(folder: &Path, place: &ContainerPlace) -> Result<(), Error> {
    let group = File::open(place.group()).map_err(cannot(place.group()))?;
    let number = group.metadata().map_err(cannot(place.group()))?.ino();
    let mut path = place.group().as_os_str().as_encoded_bytes().to_vec();
    path.resize(PATH_SIZE as usize, 0);
    // Before the programs: what is attached is never forgotten.
    let groups = map(folder, GROUPS)?;
    put(&groups, GROUPS, &number.to_ne_bytes(), &path)?;
    for (program, hook) in PROGRAMS {
        let refused = |cause: io::Error| Error::Path {
            path: format!("{} for {program}", place.group().display()),
            cause,
        };
        let pinned = Program::fd_from_pinned_path(folder.join(program)).map_err(Error::load)?;
        let number = number_of(&pinned)?;
        let attached = programs_of_group(group.as_fd(), hook);
        let attached = attached.map_err(|error| refused(error.into()))?;
        if !attached.contains(&number) {
            let attached = attach_to_group(pinned.as_fd(), group.as_fd(), hook);
            attached.map_err(|error| refused(error.into()))?;
        }
    }
    Ok(())
}

/// Forgets the containers of a policy that have ended. Returns whether one is left.
fn forget_ended(folder: &Path) -> Result<bool, Error> {
    let groups = map(folder, GROUPS)?;
    let mut is_used = false;
    for key in groups.keys().collect::<Vec<_>>() {
        let found = groups.lookup(&key, MapFlags::ANY);
        let Some(path) = found.map_err(Error::map(GROUPS))? else {
            continue;
        };
        let number = key.first_chunk().copied().map(u64::from_ne_bytes);
        match has_ended(Path::new(&text(&path)), number)? {
            true => groups.delete(&key).map_err(Error::map(GROUPS))?,
            false => is_used = true,
        }
    }
    Ok(is_used)
}

/// Whether a control group is gone. Where control groups cannot be seen nothing has ended.
fn has_ended(path: &Path, number: Option<u64>) -> Result<bool, Error> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found.ino()) != number),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut above = path.ancestors().skip(1).filter(|above| above.exists());
            let above = above.next().unwrap_or(Path::new("/"));
            let kind = rustix::fs::statfs(above).map_err(|error| cannot(above)(error.into()))?;
            match kind.f_type == GROUPS_TYPE {
                true => Ok(true),
                false => Err(Error::NoUnifiedHierarchy),
            }
        }
        Err(error) => Err(cannot(path)(error)),
    }
}

fn map(folder: &Path, name: &'static str) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(folder.join(name)).map_err(Error::map(name))
}

/// Pins programs and their tables.
fn pin(LoadedEgress(mut object): LoadedEgress, folder: &Path) -> Result<(), Error> {
    for name in [RULES, DENIALS] {
        let mut maps = object.maps_mut();
        let found = maps.find(|map| map.name() == name);
        let mut map = found.ok_or(Error::Missing { what: "table" })?;
        map.pin(folder.join(name)).map_err(Error::map(name))?;
    }
    let sizes = [8, PATH_SIZE, MAX_GROUPS];
    for (name, kind, sizes, flags) in [
        (GROUPS, MapType::Hash, sizes, ON_DEMAND),
        (VERSION, MapType::Array, [4, 8, 1], 0),
    ] {
        let mut map = create_with(kind, name, sizes, flags)?;
        map.pin(folder.join(name)).map_err(Error::map(name))?;
    }
    for (name, _) in PROGRAMS {
        let mut programs = object.progs_mut();
        let found = programs.find(|program| program.name() == name);
        let mut program = found.ok_or(Error::Missing { what: "program" })?;
        program.pin(folder.join(name)).map_err(Error::load)?;
    }
    Ok(())
}

/// Loads the programs with two rules: older kernels take the programs, and tables of one rule alone. A policy can have these
/// programs, which replaces the rules.
///
/// # Errors
/// What the kernel refuses, or a kernel whose sockets may have no control group.
pub fn try_egress() -> Result<LoadedEgress, Error> {
    check_file_system()?;
    if let Some(lack) = sockets_without_group() {
        return Err(Error::Lacks { lack });
    }
    let loaded = LoadedEgress::load()?;
    let mut maps = loaded.0.maps();
    let rules = maps.find(|map| map.name() == RULES);
    let rules = rules.ok_or(Error::Missing {
        what: "table of rules",
    })?;
    let rules = MapHandle::try_from(&rules).map_err(Error::map(RULES))?;
    let prefixes = create_prefixes(&EgressTable::example())?;
    let fd = prefixes.as_fd().as_raw_fd().to_ne_bytes();
    put(&rules, RULES, &ZERO, &fd)?;
    drop(maps);
    Ok(loaded)
}

/// Why sockets may have no control group of version 2: before Linux 5.15 the controllers of networks of version 1 took its
/// place.
fn sockets_without_group() -> Option<String> {
    let release = rustix::system::uname();
    let release = release.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(str::parse::<u32>);
    let version = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let mounts = fs::read_to_string("/proc/self/mountinfo");
    // Without the table of mounts nobody knows that there are none.
    let has_old = mounts.map_or(true, |mounts| {
        mounts.lines().any(|line| {
            let kind = line.split_once(" - ").map(|(_, rest)| rest);
            kind.is_some_and(|rest| {
                rest.starts_with("cgroup ")
                    && (rest.contains("net_cls") || rest.contains("net_prio"))
            })
        })
    });
    (version < (5, 15) && has_old).then(|| {
        "control groups of version 1 have the controller net_cls or net_prio, which needs Linux 5.15"
            .to_owned()
    })
}

fn create_prefixes(table: &EgressTable) -> Result<MapHandle, Error> {
    let count = u32::try_from(table.len().max(1)).expect("prefixes are limited");
    let name = "prefixes";
    let prefixes = create_with(
        MapType::LpmTrie,
        name,
        [KEY_SIZE, VALUE_SIZE, count],
        ON_DEMAND,
    )?;
    for (key, value) in table.entries() {
        put(&prefixes, name, &key, value)?;
    }
    Ok(prefixes)
}

/// The number by which the kernel lists a program.
fn number_of(program: &OwnedFd) -> Result<u32, Error> {
    let path = format!("/proc/self/fdinfo/{}", program.as_raw_fd());
    let text = fs::read_to_string(&path).map_err(cannot(Path::new(&path)))?;
    let number = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
    let number = number.and_then(|number| number.trim().parse().ok());
    number.ok_or(Error::Missing {
        what: "number of a program",
    })
}

/// Removes a folder with what is in it, if there is one.
fn remove(folder: &Path) -> Result<(), Error> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(cannot(folder))?,
    };
    for entry in entries {
        let path = entry.map_err(cannot(folder))?.path();
        fs::remove_file(&path).map_err(cannot(&path))?;
    }
    fs::remove_dir(folder).map_err(cannot(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of which [`file_name`] made this; `None` if it did not.
    fn name_of(file: &str) -> Option<String> {
        let mut parts = file.split('_');
        let mut bytes = parts.next()?.as_bytes().to_vec();
        for part in parts {
            let (digits, rest) = part.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            bytes.extend(rest.as_bytes());
        }
        String::from_utf8(bytes).ok()
    }

    #[test]
    fn every_name_has_a_file_of_its_own() {
        for name in ["prod/varmor-prod-web", "a.b", "a_2e", "", "ünder_score"] {
            let file = file_name(name);
            assert!(!file.contains(['.', '/']), "{file}");
            assert_eq!(name_of(&file).as_deref(), Some(name));
        }
        assert_eq!(file_name("a.b"), "a_2eb");
        for odd in ["_", "_2", "_zz", "_ü", "_ff"] {
            assert_eq!(name_of(odd), None, "{odd}");
        }
    }
}
