//! Confines the programs of containers that another program makes.
//!
//! The programs in the kernel look a container up by its control group when a program begins in it: its first program, and
//! those that are started in it later. Tasks inherit the policy from there on. Programs in the mount namespace of the container
//! runtime are left alone: newer runtimes begin in the group before they enter the container.

use std::collections::BTreeSet;
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
use super::hooks::{attach, hooks};
use super::mount_shape::MountShape;
use super::programs::{
    ALL, Counter, KernelPrograms, cannot, delete, ledger, put, text, word, words,
};
use super::tables::{PLACES, TOO_MANY_PLACES, Tables};

/// Size of `struct container`, and of the fields before its path.
const ENTRY_SIZE: usize = 512;
const PATH_AT: usize = 12;
/// `OF_CONTAINER` of bpf/policy.h.
const OF_CONTAINER: u32 = 1 << 31;
/// Depth at which the programs in the kernel find a control group.
const LEVELS: u32 = 15;
const MAP: &str = "containers";
/// Number of the root of a hierarchy of control groups.
const ROOT: u64 = 1;

/// What the kernel tells a container by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlace {
    /// Number of the mount namespace of the container runtime.
    runtime_namespace: u32,
    /// Number of its control group in the unified hierarchy.
    group: u64,
    /// Path of the control group where the hierarchy is mounted.
    group_path: PathBuf,
    /// Path of the control group below the root of the hierarchy, wherever that is mounted.
    group_below: String,
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
        let path = format!("/proc/{parent}/cgroup");
        let of_parent = fs::read_to_string(&path).map_err(cannot(Path::new(&path)))?;
        let own = group_of(&groups, &of_parent).map_err(wrong)?;
        let hierarchy = Hierarchy::mounted(&super::mounts()?)
            .ok_or_else(|| wrong("is in a unified hierarchy that is not mounted here"))?;
        let (group_below, level) = hierarchy.below(own).ok_or_else(|| {
            wrong("is in the root of the unified hierarchy, or outside of what is mounted here")
        })?;
        let group_path = hierarchy.at.join(&group_below);
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
            group_below,
            group_name: own.to_owned(),
            pid,
            mounts: read("mountinfo")?,
        };
        match place.group_below.len() < ENTRY_SIZE - PATH_AT {
            true => Ok(place),
            false => Err(wrong("is in a control group with too long a path")),
        }
    }

    /// The folder of its control group.
    pub(crate) fn group(&self) -> &Path {
        &self.group_path
    }

    /// Checks that the container neither sees control groups outside of its own, to which its programs could move, nor
    /// may have the right to detach programs of its own.
    pub(crate) fn is_kept_in(&self) -> Result<(), Error> {
        let wrong = |why: String| Error::Container { pid: self.pid, why };
        for line in self.mounts.lines() {
            let (mount, rest) = line
                .split_once(" - ")
                .ok_or_else(|| wrong(format!("has a mount that cannot be read: {line}")))?;
            let mut fields = mount.split(' ').skip(3);
            // A line that cannot be read counts as one that shows all groups.
            let (root, at) = (fields.next().unwrap_or("/"), fields.next().unwrap_or("/"));
            let is_groups = rest.split(' ').next() == Some("cgroup2");
            if is_groups && !Path::new(root).starts_with(&self.group_name) {
                return Err(wrong(format!(
                    "sees at {at} control groups that are not its own, and could leave its own"
                )));
            }
        }
        match self.can_detach()? {
            Some(capability) => Err(wrong(format!(
                "may have the capability {capability}, with which it could remove the programs"
            ))),
            None => Ok(()),
        }
    }

    /// A capability of the container with which it could remove programs from its control group.
    fn can_detach(&self) -> Result<Option<&'static str>, Error> {
        let namespace = |pid: &str| {
            let path = format!("/proc/{pid}/ns/user");
            fs::read_link(&path).map_err(cannot(Path::new(&path)))
        };
        // Those of a user namespace of its own do not count for programs.
        if namespace(&self.pid.to_string())? != namespace("self")? {
            return Ok(None);
        }
        let path = format!("/proc/{}/status", self.pid);
        let status = fs::read_to_string(&path).map_err(cannot(Path::new(&path)))?;
        let bounding = status.lines().find_map(|line| line.strip_prefix("CapBnd:"));
        let bounding = bounding.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        let bounding = bounding.ok_or_else(|| Error::Container {
            pid: self.pid,
            why: "has capabilities that cannot be read".to_owned(),
        })?;
        let mut known = [(21, "SYS_ADMIN"), (39, "BPF")].into_iter();
        Ok(known
            .find(|(bit, _)| bounding & (1 << bit) != 0)
            .map(|(_, name)| name))
    }

    fn entry(&self, number: u32, table: u32) -> Vec<u8> {
        let mut entry = words(&[number, self.runtime_namespace, table]);
        entry.extend(self.group_below.as_bytes());
        entry.resize(ENTRY_SIZE, 0);
        entry
    }
}

/// Control group in the unified hierarchy, from the groups of a container's first process and of its parent, the runtime. An
/// error says why the container is not told by it: on hybrid hierarchies a runtime makes no such group for a container.
fn group_of<'a>(own: &'a str, parent: &str) -> Result<&'a str, &'static str> {
    fn unified(groups: &str) -> Option<&str> {
        groups.lines().find_map(|line| line.strip_prefix("0::"))
    }
    let found = unified(own).ok_or("is in no control group of a unified hierarchy")?;
    match unified(parent) == Some(found) {
        true => Err("is in the control group of the container runtime"),
        false => Ok(found),
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

    /// Finds the hierarchy where this process sees all of it.
    fn whole() -> Result<Self, Error> {
        let found = Self::mounted(&super::mounts()?).ok_or(Error::NoUnifiedHierarchy)?;
        let root = fs::metadata(&found.at).map_err(cannot(&found.at))?;
        match root.ino() == ROOT {
            true => Ok(found),
            // A part, as a control group namespace shows it: what is not there may be elsewhere.
            false => Err(Error::NoUnifiedHierarchy),
        }
    }

    /// Returns where below the root of the hierarchy the control group with a path as in `/proc/PID/cgroup` is, and its
    /// distance from the root. `None` for the root and for what is outside of the mount.
    fn below(&self, group: &str) -> Option<(String, u32)> {
        let below = match self.root.as_str() {
            "/" => group,
            root => group.strip_prefix(root)?,
        };
        let parts: Vec<&str> = below.split('/').filter(|part| !part.is_empty()).collect();
        // A part of the hierarchy does not show how far it is from the root.
        let is_whole = self.root.split('/').all(|part| matches!(part, "" | ".."));
        let is_inside = !parts.is_empty() && !parts.contains(&"..");
        let level = u32::try_from(parts.len()).ok()?;
        (is_whole && is_inside).then(|| (parts.join("/"), level))
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

/// Attaches the programs that a policy needs, which takes longer than a container runtime waits. Containers whose programs are
/// attached are confined meanwhile.
///
/// # Errors
/// If the kernel refuses them.
pub fn prepare_containers(policy: &Policy) -> Result<(), Error> {
    let profile = Profile::compile(policy, &MachineFeatures::default());
    attach(&hooks(&profile))?;
    KernelPrograms::open()?.begin()
}

/// Tells the programs of this build from those of others, whose containers and numbers are their own.
#[must_use]
pub fn containers_build() -> &'static str {
    env!("TOLLGATE_BPF_BUILD")
}

/// A container that the kernel confines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfinedContainer {
    /// Number under which the kernel reports its violations.
    pub number: u32,
    /// It has the policy that was asked for. If not, it was confined before, with another version.
    pub is_current: bool,
}

/// Confines every program that begins in a container from now on, with all that it starts. A container that is confined
/// already keeps what it has.
///
/// Containers with the same policy of one `owner` and the same mounts share a table in the kernel.
/// The policy stays in the kernel as long as one of the programs runs, and until the container's control group is
/// removed.
///
/// # Errors
/// If the kernel lacks a hook that the policy needs, or the policy cannot be loaded.
pub fn confine_container(
    owner: &str,
    policy: &Policy,
    place: &ContainerPlace,
) -> Result<ConfinedContainer, Error> {
    let (profile, kernel) = open(policy)?;
    kernel.begin()?;
    if let Some((number, table)) = kernel.container(place)? {
        let known = kernel.shared(table)?;
        if known.owner != owner {
            return Err(Error::Container {
                pid: place.pid,
                why: format!("is confined already, by the policy of {}", known.owner),
            });
        }
        return Ok(ConfinedContainer {
            number,
            is_current: known.has(&profile),
        });
    }
    let shape = MountShape::of(&place.mounts);
    if shape.devices.len() > PLACES {
        return Err(TOO_MANY_PLACES);
    }
    let table = kernel.shared_table(owner, &profile, &shape)?;
    let number = kernel.next(Counter::Number)?;
    let entered = kernel.enter_container(owner, place, number, table, &shape);
    if let Err(error) = entered {
        // The first error is the one to tell. A table that no container has is removed with the next that ends.
        let _ = kernel.remove_containers(&BTreeSet::from([number]));
        return Err(error);
    }
    Ok(ConfinedContainer {
        number,
        is_current: true,
    })
}

/// Brings a policy into force in all containers that have another version of the owner's. Tasks that run are under the one
/// or the other at any time. Returns the number of tables that were exchanged.
///
/// # Errors
/// If the kernel lacks a hook that the policy needs, or the policy cannot be loaded. Containers keep what they have.
pub fn change_containers(owner: &str, policy: &Policy) -> Result<usize, Error> {
    let (profile, kernel) = open(policy)?;
    let mut outdated = kernel.outdated(owner, &profile)?;
    // Containers start while tables are made.
    drop(kernel);
    let path = std::env::var_os("PATH");
    let mut changed = 0;
    while !outdated.is_empty() {
        for table in &outdated {
            let tables = Tables::shared(&profile, &table.shape, path.as_deref())?;
            let kernel = KernelPrograms::open()?;
            changed += usize::from(kernel.change_shared(table, &profile, &tables)?);
        }
        // Containers that have started meanwhile may have a table more of the version before.
        outdated = KernelPrograms::open()?.outdated(owner, &profile)?;
    }
    Ok(changed)
}

/// Removes what the kernel has of containers that have ended, and tables that no container has.
///
/// # Errors
/// If something cannot be removed.
pub fn remove_ended_containers() -> Result<(), Error> {
    match super::is_ever_used() {
        true => KernelPrograms::open()?.remove_ended(),
        false => Ok(()),
    }
}

/// Opens the kernel for a policy all of whose hooks it has.
fn open(policy: &Policy) -> Result<(Profile, KernelPrograms), Error> {
    let profile = Profile::compile(policy, &MachineFeatures::default());
    let (kernel, lacks) = KernelPrograms::open_for(&hooks(&profile))?;
    match lacks.into_iter().next() {
        Some(lack) => Err(Error::Lacks { lack }),
        None => Ok((profile, kernel)),
    }
}

impl KernelPrograms {
    /// Makes what all containers share.
    fn begin(&self) -> Result<(), Error> {
        if ledger(&self.map("ledgers")?, ALL)?.is_some() {
            return Ok(());
        }
        self.put_ring(ALL)?;
        self.put_ledger(ALL, "")
    }

    /// Numbers of a container that was entered before, and of its table.
    fn container(&self, place: &ContainerPlace) -> Result<Option<(u32, u32)>, Error> {
        let found = self.map(MAP)?;
        let found = found.lookup(&place.group.to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(Error::map(MAP))?;
        Ok(found.and_then(|entry| word(&entry, 0).zip(word(&entry, 2))))
    }

    fn enter_container(
        &self,
        owner: &str,
        place: &ContainerPlace,
        number: u32,
        table: u32,
        shape: &MountShape,
    ) -> Result<(), Error> {
        self.put_ledger(number, owner)?;
        let places = self.map("places")?;
        for (index, device) in shape.devices.iter().enumerate() {
            let index = u32::try_from(index).expect("places are limited");
            let key = words(&[number | OF_CONTAINER, *device]);
            put(&places, "places", &key, &index.to_ne_bytes())?;
        }
        // The last one: from here on programs are confined.
        let key = place.group.to_ne_bytes();
        put(&self.map(MAP)?, MAP, &key, &place.entry(number, table))
    }

    /// Numbers of the containers.
    pub(super) fn container_numbers(&self) -> Result<BTreeSet<u32>, Error> {
        let entries = self.containers()?.into_iter();
        Ok(entries.filter_map(|entry| word(&entry.value, 0)).collect())
    }

    /// Removes containers that have ended, and tables that no container has.
    pub(super) fn remove_ended(&self) -> Result<(), Error> {
        let ledgers = match self.map_path(MAP).exists() && self.map_path("ledgers").exists() {
            true => self.map("ledgers")?,
            false => return Ok(()),
        };
        let (mut ended, mut used) = (BTreeSet::new(), BTreeSet::new());
        let entries = self.containers()?;
        // Looked for where containers are.
        let hierarchy = match entries.is_empty() {
            true => None,
            false => Some(Hierarchy::whole()?),
        };
        for entry in &entries {
            let (Some(number), Some(table)) = (word(&entry.value, 0), word(&entry.value, 2)) else {
                continue;
            };
            let users = ledger(&ledgers, number)?.map_or(0, |[users, ..]| users);
            // Below zero means zero: tasks are counted without a lock.
            let has_tasks = users != 0 && users <= u64::MAX / 2;
            let is_there = match &hierarchy {
                Some(hierarchy) if !has_tasks => entry.has_group(hierarchy)?,
                _ => true,
            };
            match is_there {
                true => used.insert(table),
                false => ended.insert(number),
            };
        }
        ended.extend(self.left_numbers()?);
        if !ended.is_empty() {
            self.remove_containers(&ended)?;
        }
        self.retain_shared(&used)
    }

    fn remove_containers(&self, numbers: &BTreeSet<u32>) -> Result<(), Error> {
        let map = self.map(MAP)?;
        // First: a program that begins in a container without its policy may do nothing.
        for entry in self.containers()? {
            if word(&entry.value, 0).is_some_and(|number| numbers.contains(&number)) {
                delete(&map, MAP, &entry.key)?;
            }
        }
        let places = self.map("places")?;
        let is_theirs = |key: &Vec<u8>| {
            let owner = word(key, 0).filter(|owner| owner & OF_CONTAINER != 0);
            owner.is_some_and(|owner| numbers.contains(&(owner & !OF_CONTAINER)))
        };
        let theirs: Vec<Vec<u8>> = places.keys().filter(is_theirs).collect();
        for key in &theirs {
            delete(&places, "places", key)?;
        }
        // Last: by its ledger a number is found that a killed process has left.
        let maps = ["labels", "ledgers"];
        numbers
            .iter()
            .try_for_each(|number| self.remove_keys(&maps, *number))
    }

    /// Numbers that processes which were killed have left: with a ledger, and with neither container nor policy nor task.
    fn left_numbers(&self) -> Result<BTreeSet<u32>, Error> {
        let mut known = self.container_numbers()?;
        known.extend(self.numbers("policies")?);
        known.insert(ALL);
        let loaded = self.loaded()?.into_iter();
        // The folder is that of a policy, which the next load removes.
        let left = loaded.filter(|one| {
            let is_policy = known.contains(&one.number) || self.waiting(one.number).exists();
            one.users == 0 && !is_policy
        });
        Ok(left.map(|one| one.number).collect())
    }

    fn containers(&self) -> Result<Vec<TableEntry>, Error> {
        if !self.map_path(MAP).exists() {
            return Ok(Vec::new());
        }
        let map = self.map(MAP)?;
        let mut found = Vec::new();
        for key in map.keys() {
            let entry = map.lookup(&key, MapFlags::ANY).map_err(Error::map(MAP))?;
            if let Some(value) = entry.filter(|entry| entry.len() == ENTRY_SIZE) {
                found.push(TableEntry { key, value });
            }
        }
        Ok(found)
    }
}

impl TableEntry {
    /// Returns true if the control group is still there.
    fn has_group(&self, hierarchy: &Hierarchy) -> Result<bool, Error> {
        let group = self.key.first_chunk().copied().map(u64::from_ne_bytes);
        let path = hierarchy.at.join(text(&self.value[PATH_AT..]));
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.ino()) == group),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(cannot(&path)(error)),
        }
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
        let found = |mounts: &[(&str, &str, &str)], group: &str| hierarchy(mounts)?.below(group);
        let whole = [("/", "/sys/fs/cgroup", "cgroup2")];
        let expected = ("kubepods/pod1/c1".to_owned(), 3);
        assert_eq!(found(&whole, pod), Some(expected));
        assert_eq!(found(&whole, "/"), None);
        // Seen from a control group namespace.
        let own = [
            ("/", "/sys/fs/cgroup", "cgroup2"),
            ("/../..", "/host/cgroup", "cgroup2"),
        ];
        let expected = ("pod1/c1".to_owned(), 2);
        assert_eq!(found(&own, "/../../pod1/c1"), Some(expected));
        assert_eq!(found(&own[..1], "/../../pod1/c1"), None);
        // A part of the hierarchy.
        assert_eq!(found(&[("/kubepods", "/x", "cgroup2")], pod), None);
        // The old hierarchies have no numbers that are used once.
        assert_eq!(found(&[("/", "/sys/fs/cgroup/pids", "cgroup")], pod), None);
    }

    #[test]
    fn a_container_has_ended_only_if_its_group_is_known_to_be_gone() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("pod1");
        fs::create_dir(&group).unwrap();
        let entry = |path: &str, number: u64| {
            let mut value = vec![0; PATH_AT];
            value.extend(path.as_bytes());
            value.resize(ENTRY_SIZE, 0);
            let key = number.to_ne_bytes().to_vec();
            TableEntry { key, value }
        };
        let own = fs::metadata(&group).unwrap().ino();
        let hierarchy = Hierarchy {
            root: "/".to_owned(),
            at: root.path().to_owned(),
        };
        assert!(entry("pod1", own).has_group(&hierarchy).unwrap());
        assert!(!entry("pod1", own + 1).has_group(&hierarchy).unwrap());
        assert!(!entry("pod2", own).has_group(&hierarchy).unwrap());
        // What cannot be looked at may be there.
        fs::write(root.path().join("file"), "").unwrap();
        assert!(entry("file/pod1", own).has_group(&hierarchy).is_err());
    }

    #[test]
    fn a_container_in_the_group_of_its_runtime_is_refused() {
        let hybrid = "4:pids:/kubepods/pod1/c1\n0::/system.slice/containerd.service\n";
        let runtime = "4:pids:/system.slice\n0::/system.slice/containerd.service\n";
        assert!(group_of(hybrid, runtime).unwrap_err().contains("runtime"));
        let own = "0::/kubepods/pod1/c1\n";
        assert_eq!(group_of(own, runtime), Ok("/kubepods/pod1/c1"));
        assert!(group_of("4:pids:/kubepods\n", runtime).is_err());
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
