//! Confines the programs of containers that another program makes.
//!
//! The programs in the kernel look a container up by its control group when a program begins in it: its first program, and
//! those that are started in it later. Tasks inherit the policy from there on. Programs in the mount namespace of the container
//! runtime are left alone: newer runtimes begin in the group before they enter the container.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapFlags};
use policy::Policy;
use policy::compile::MachineFeatures;
use policy::compile::bpf::Profile;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Error;
use super::programs::{KernelPrograms, cannot, put, text, word};

/// Size of `struct container`, and of the fields before its path.
const ENTRY_SIZE: usize = 512;
const PATH_AT: usize = 8;
/// Depth at which the programs in the kernel find a control group.
const LEVELS: u32 = 15;
const MAP: &str = "containers";

/// What the kernel tells a container by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlace {
    /// Number of the mount namespace of the container runtime.
    runtime_namespace: u32,
    /// Number of its control group in the unified hierarchy.
    group: u64,
    /// Path of the control group where the hierarchy is mounted.
    group_path: PathBuf,
    /// Path of the control group in the hierarchy, as this process sees it.
    group_name: String,
    pid: i32,
    /// Its mounts, as in `/proc/PID/mountinfo`.
    mounts: String,
}

impl ContainerPlace {
    /// Reads the place of a container from its first process, whose parent is the container runtime's.
    ///
    /// # Errors
    /// If the process cannot be read, has the mounts of the runtime, or is not below the root of a unified hierarchy
    /// of control groups that is mounted here.
    pub fn of(pid: i32) -> Result<Self, Error> {
        let wrong = |why: &str| Error::Container {
            pid,
            why: why.to_owned(),
        };
        let read = |name: &str| {
            let path = format!("/proc/{pid}/{name}");
            fs::read_to_string(&path).map_err(cannot(Path::new(&path)))
        };
        let namespace = |pid: &str| {
            let path = format!("/proc/{pid}/ns/mnt");
            let found = fs::metadata(&path).map_err(cannot(Path::new(&path)));
            found.map(|found| found.ino())
        };
        let status = read("status")?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        let parent = parent.map(str::trim).filter(|parent| *parent != "0");
        let parent =
            parent.ok_or_else(|| wrong("has no parent in the pid namespace of the agent"))?;
        let runtime_namespace = namespace(parent)?;
        if runtime_namespace == namespace(&pid.to_string())? {
            return Err(wrong("has the mount namespace of the container runtime"));
        }
        let groups = read("cgroup")?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::"));
        let own = own.ok_or_else(|| wrong("is in no control group of a unified hierarchy"))?;
        let hierarchy = Hierarchy::mounted(&super::mounts()?)
            .ok_or_else(|| wrong("is in a unified hierarchy that is not mounted here"))?;
        let (group_path, level) = hierarchy.path_of(own).ok_or_else(|| {
            wrong("is in the root of the unified hierarchy, or outside of what is mounted here")
        })?;
        let group = fs::metadata(&group_path)
            .map_err(cannot(&group_path))?
            .ino();
        if level > LEVELS {
            return Err(wrong("is in a control group that is too deep"));
        }
        let place = Self {
            runtime_namespace: u32::try_from(runtime_namespace)
                .map_err(|_larger| wrong("has a parent whose namespace has an odd number"))?,
            group,
            group_path,
            group_name: own.to_owned(),
            pid,
            mounts: read("mountinfo")?,
        };
        match place.group_path.as_os_str().len() < ENTRY_SIZE - PATH_AT {
            true => Ok(place),
            false => Err(wrong("is in a control group with too long a path")),
        }
    }

    /// The folder of its control group.
    pub(crate) fn group(&self) -> &Path {
        &self.group_path
    }

    /// Checks that the container does not see control groups outside of its own, to which its programs could move.
    pub(crate) fn is_kept_in(&self) -> Result<(), Error> {
        for line in self.mounts.lines() {
            let Some((mount, rest)) = line.split_once(" - ") else {
                continue;
            };
            let mut fields = mount.split(' ').skip(3);
            let (root, at) = (fields.next().unwrap_or("/"), fields.next().unwrap_or("/"));
            let is_groups = rest.split(' ').next() == Some("cgroup2");
            if is_groups && !Path::new(root).starts_with(&self.group_name) {
                return Err(Error::Container {
                    pid: self.pid,
                    why: format!(
                        "sees at {at} control groups that are not its own, and could leave its own"
                    ),
                });
            }
        }
        Ok(())
    }

    fn entry(&self, number: u32) -> Vec<u8> {
        let mut entry = number.to_ne_bytes().to_vec();
        entry.extend(self.runtime_namespace.to_ne_bytes());
        entry.extend(self.group_path.as_os_str().as_encoded_bytes());
        entry.resize(ENTRY_SIZE, 0);
        entry
    }
}

/// An entry of the table of containers.
struct TableEntry {
    key: Vec<u8>,
    value: Vec<u8>,
}

/// A mounted unified hierarchy of control groups.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    /// What of the hierarchy is mounted: `/`, or a path as seen from the own control group namespace.
    root: String,
    at: PathBuf,
}

impl Hierarchy {
    /// Finds the hierarchy in a table of mounts; the one that shows most.
    fn mounted(table: &str) -> Option<Self> {
        let mounts = table.lines().filter_map(|line| {
            let (mount, rest) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, at) = (fields.next()?, fields.next()?);
            (rest.split(' ').next()? == "cgroup2").then(|| Self {
                root: root.to_owned(),
                at: PathBuf::from(at),
            })
        });
        // `/../..` is above `/..`, and that above `/`.
        mounts.max_by_key(|mount| {
            let ups = mount.root.split('/').filter(|part| *part == "..").count();
            let downs = mount
                .root
                .split('/')
                .filter(|part| !part.is_empty())
                .count()
                - ups;
            (ups, std::cmp::Reverse(downs))
        })
    }

    /// Returns where the control group with a path as in `/proc/PID/cgroup` is, and its distance from the root of
    /// the hierarchy. `None` for the root and for what is outside of the mount.
    fn path_of(&self, group: &str) -> Option<(PathBuf, u32)> {
        let below = match self.root.as_str() {
            "/" => group,
            root => group.strip_prefix(root)?,
        };
        let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty()).collect();
        // A part of the hierarchy does not show how far it is from the root.
        let is_whole = self.root.split('/').all(|part| matches!(part, "" | ".."));
        let is_inside = !parts.is_empty() && !parts.contains(&"..");
        let level = u32::try_from(parts.len()).ok()?;
        (is_whole && is_inside).then(|| (self.at.join(parts.join("/")), level))
    }
}

/// Enters the control group namespace of the host, as which process 1 counts: in one of its own a process does not see where
/// other containers are. The caller must have no other threads.
///
/// # Errors
/// If that is not allowed, or if there is no unified hierarchy whose root is mounted here.
pub fn enter_host_groups() -> Result<(), Error> {
    const HOST: &str = "/proc/1/ns/cgroup";
    let namespace = fs::File::open(HOST).map_err(cannot(Path::new(HOST)))?;
    let own = fs::metadata("/proc/self/ns/cgroup").map_err(cannot(Path::new(HOST)))?;
    let host = namespace.metadata().map_err(cannot(Path::new(HOST)))?;
    if own.ino() != host.ino() {
        let kind = Some(LinkNameSpaceType::ControlGroup);
        let entered = move_into_link_name_space(namespace.as_fd(), kind);
        entered.map_err(|error| cannot(Path::new(HOST))(error.into()))?;
    }
    match Hierarchy::mounted(&super::mounts()?) {
        Some(hierarchy) if hierarchy.root == "/" => Ok(()),
        _ => Err(Error::NoUnifiedHierarchy),
    }
}

/// Attaches the programs that a policy needs, which takes longer than a container runtime waits.
///
/// # Errors
/// If the kernel refuses them.
pub fn prepare_containers(policy: &Policy) -> Result<(), Error> {
    let profile = Profile::compile(policy, &MachineFeatures::default());
    KernelPrograms::open()?.prepare(&profile)
}

/// Confines every program that begins in a container from now on, with all that it starts. Returns the number under
/// which the kernel reports violations.
///
/// The policy stays in the kernel as long as one of the programs runs, and until the container's control group is
/// removed if none has begun.
///
/// # Errors
/// If the kernel lacks a hook that the policy needs, or the policy cannot be loaded.
pub fn confine_container(policy: &Policy, place: &ContainerPlace) -> Result<u32, Error> {
    let profile = Profile::compile(policy, &MachineFeatures::default());
    let kernel = KernelPrograms::open()?;
    let loaded = kernel.enter(&profile, &policy.name, &place.mounts)?;
    let entered = match loaded.lacks.first() {
        Some(lack) => Err(Error::Lacks { lack: lack.clone() }),
        None => kernel.map(MAP).and_then(|map| {
            let key = place.group.to_ne_bytes();
            put(&map, MAP, &key, &place.entry(loaded.number))
        }),
    };
    match entered {
        Ok(()) => Ok(loaded.number),
        Err(error) => {
            // The first error is the one to tell.
            let _ = kernel.discard(loaded.number);
            Err(error)
        }
    }
}

impl KernelPrograms {
    /// Returns true if a container of the policy is still there, whose first program may not have begun.
    pub(super) fn has_container(&self, number: u32) -> Result<bool, Error> {
        Ok(self.containers_of(number)?.into_iter().any(|entry| {
            let group = entry.key.first_chunk().copied().map(u64::from_ne_bytes);
            let found = fs::metadata(text(&entry.value[PATH_AT..]));
            found.is_ok_and(|found| Some(found.ino()) == group)
        }))
    }

    /// Forgets the containers of a policy.
    pub(super) fn remove_containers(&self, number: u32) -> Result<(), Error> {
        let map = self.map(MAP)?;
        for entry in self.containers_of(number)? {
            map.delete(&entry.key).map_err(Error::map(MAP))?;
        }
        Ok(())
    }

    fn containers_of(&self, number: u32) -> Result<Vec<TableEntry>, Error> {
        let map = self.map(MAP)?;
        let mut found = Vec::new();
        for key in map.keys() {
            let entry = map.lookup(&key, MapFlags::ANY).map_err(Error::map(MAP))?;
            if let Some(entry) = entry
                && entry.len() == ENTRY_SIZE
                && word(&entry, 0) == Some(number)
            {
                found.push(TableEntry { key, value: entry });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hierarchy(lines: &[(&str, &str, &str)]) -> Option<Hierarchy> {
        let line = |(root, at, kind): &(&str, &str, &str)| {
            format!("30 23 0:26 {root} {at} rw,nosuid shared:4 - {kind} cgroup rw\n")
        };
        Hierarchy::mounted(&lines.iter().map(line).collect::<String>())
    }

    #[test]
    fn a_group_is_found_where_the_hierarchy_is_mounted() {
        let pod = "/kubepods/pod1/c1";
        let found = |mounts: &[(&str, &str, &str)], group: &str| hierarchy(mounts)?.path_of(group);
        let whole = [("/", "/sys/fs/cgroup", "cgroup2")];
        let expected = (PathBuf::from("/sys/fs/cgroup/kubepods/pod1/c1"), 3);
        assert_eq!(found(&whole, pod), Some(expected));
        assert_eq!(found(&whole, "/"), None);
        // Seen from a control group namespace.
        let own = [
            ("/", "/sys/fs/cgroup", "cgroup2"),
            ("/../..", "/host/cgroup", "cgroup2"),
        ];
        let expected = (PathBuf::from("/host/cgroup/pod1/c1"), 2);
        assert_eq!(found(&own, "/../../pod1/c1"), Some(expected));
        assert_eq!(found(&own[..1], "/../../pod1/c1"), None);
        // A part of the hierarchy.
        assert_eq!(found(&[("/kubepods", "/x", "cgroup2")], pod), None);
        // The old hierarchies have no numbers that are used once.
        assert_eq!(found(&[("/", "/sys/fs/cgroup/pids", "cgroup")], pod), None);
    }

    #[test]
    fn a_process_of_this_program_is_no_container() {
        let own = std::process::id().cast_signed();
        let error = ContainerPlace::of(own).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("mount namespace of the container runtime"),
            "{error}"
        );
        assert!(ContainerPlace::of(-1).is_err());
    }
}
