//! Loading, and the objects that stay in the kernel.
//!
//! Each policy has a folder in the BPF file system: its programs, the table of rules, and the count of denials.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, ObjectBuilder, OpenObject, Program};
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

    /// Puts the rules of a policy in force in all containers that have its name. Returns whether its programs were loaded
    /// before.
    ///
    /// # Errors
    /// If the kernel refuses programs or rules; those before stay in force then.
    pub fn write(&self, name: &str, table: &EgressTable) -> Result<bool, Error> {
        let folder = self.policy(name)?;
        let (last, _) = PROGRAMS[PROGRAMS.len() - 1];
        let is_loaded = folder.join(last).exists();
        if !is_loaded {
            // What a process that was killed has left is no use: its programs may be some of them.
            remove(&folder)?;
            make_folder(&folder)?;
            load(&folder)?;
        }
        let rules = map(&folder, RULES)?;
        let prefixes = create_prefixes(table)?;
        let fd = prefixes.as_fd().as_raw_fd().to_ne_bytes();
        put(&rules, RULES, &ZERO, &fd)?;
        Ok(is_loaded)
    }

    /// Has the programs of a policy, which was written, decide for a container.
    ///
    /// # Errors
    /// If the container could leave its control group, or the kernel refuses a program. Programs before that one decide.
    pub fn confine(&self, name: &str, place: &ContainerPlace) -> Result<(), Error> {
        place.is_kept_in()?;
        let folder = self.policy(name)?;
        let group = File::open(place.group()).map_err(cannot(place.group()))?;
        let number = group.metadata().map_err(cannot(place.group()))?.ino();
        let mut path = place.group().as_os_str().as_encoded_bytes().to_vec();
        path.resize(PATH_SIZE as usize, 0);
        // Before the programs: what is attached is never forgotten.
        let groups = map(&folder, GROUPS)?;
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

    /// How often something was denied in the containers of a policy; `None` if it is not loaded.
    ///
    /// # Errors
    /// If the count cannot be read.
    pub fn denials(&self, name: &str) -> Result<Option<u64>, Error> {
        let folder = self.policy(name)?;
        if !folder.join(DENIALS).exists() {
            return Ok(None);
        }
        let found = map(&folder, DENIALS)?.lookup(&ZERO, MapFlags::ANY);
        let bytes = found.map_err(Error::map(DENIALS))?;
        let number = bytes.and_then(|bytes| bytes.first_chunk().copied());
        let number = number.ok_or(Error::Missing {
            what: "count of denials",
        })?;
        Ok(Some(u64::from_ne_bytes(number)))
    }

    /// Forgets the containers that have ended, and the policies of which none is left.
    ///
    /// # Errors
    /// If the folder cannot be read, or one in it not removed.
    pub fn remove_ended(&self) -> Result<(), Error> {
        let entries = fs::read_dir(&self.folder).map_err(cannot(&self.folder))?;
        for entry in entries {
            let folder = entry.map_err(cannot(&self.folder))?.path();
            // Without the table it was not loaded as a whole.
            let is_used = folder.join(GROUPS).exists() && forget_ended(&folder)?;
            if !is_used {
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
        let found = fs::metadata(text(&path));
        match found.is_ok_and(|found| Some(found.ino()) == number) {
            true => is_used = true,
            false => groups.delete(&key).map_err(Error::map(GROUPS))?,
        }
    }
    Ok(is_used)
}

fn map(folder: &Path, name: &'static str) -> Result<MapHandle, Error> {
    MapHandle::from_pinned_path(folder.join(name)).map_err(Error::map(name))
}

fn open_object() -> Result<OpenObject, Error> {
    let object = ObjectBuilder::default().open_memory(OBJECT);
    object.map_err(Error::load)
}

/// Loads the programs, and pins them and their tables.
fn load(folder: &Path) -> Result<(), Error> {
    let mut object = open_object()?;
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if name == RULES || name == DENIALS {
            map.set_pin_path(folder.join(name)).map_err(Error::load)?;
        }
    }
    let object = object.load().map_err(Error::load)?;
    let sizes = [8, PATH_SIZE, MAX_GROUPS];
    let mut groups = create_with(MapType::Hash, GROUPS, sizes, ON_DEMAND)?;
    groups
        .pin(folder.join(GROUPS))
        .map_err(Error::map(GROUPS))?;
    for (name, _) in PROGRAMS {
        let mut programs = object.progs_mut();
        let found = programs.find(|program| program.name() == name);
        let mut program = found.ok_or(Error::Missing { what: "program" })?;
        program.pin(folder.join(name)).map_err(Error::load)?;
    }
    Ok(())
}

/// Loads the programs, and drops them.
///
/// # Errors
/// What the kernel refuses.
pub fn try_egress() -> Result<(), Error> {
    check_file_system()?;
    open_object()?.load().map(drop).map_err(Error::load)
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
