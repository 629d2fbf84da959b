//! What the kernel tells a container by: the place of its control group.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::Error;
use super::programs::cannot;

/// Depth at which the programs in the kernel find a control group.
const LEVELS: u32 = 15;
/// Longest path of a control group that the kernel keeps, in bytes.
pub(super) const LONGEST_PATH: usize = 499;

/// Number of the root of a hierarchy of control groups.
const ROOT: u64 = 1;

/// What the kernel tells a container by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerPlace {
    /// Number of the mount namespace of the container runtime.
    pub(super) runtime_namespace: u32,
    /// Number of its control group in the unified hierarchy.
    pub(super) group: u64,
    /// Path of the control group where the hierarchy is mounted.
    group_path: PathBuf,
    /// Path of the control group below the root of the hierarchy, wherever that is mounted.
    pub(super) group_below: String,
    /// Path of the control group in the hierarchy, as this process sees it.
    group_name: String,
    pub(super) pid: i32,
    /// Its mounts, as in `/proc/PID/mountinfo`.
    pub(super) mounts: String,
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
        match place.group_below.len() <= LONGEST_PATH {
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

/// A mounted unified hierarchy of control groups.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// What of the hierarchy is mounted: `/`, or a path as seen from the own control group namespace.
    pub(super) root: String,
    pub(super) at: PathBuf,
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
    pub(super) fn whole() -> Result<Self, Error> {
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
