//! Scope of the watch: containers and control groups of the host.
//!
//! The kernel knows places: processes of the same cgroups and namespaces. On the first record from a place,
//! the agent decides whether it belongs to the scope, and writes the decision to the kernel.

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use event::{Container, Containment};

use container::{ContainerOptions, Containers};
use process_info::procfs::{Proc, ProcError, cgroup_lines, mount_lines, unescape};

/// Reason why a control group cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// The group does not exist.
    #[error("cannot find the control group {}", path.display())]
    Missing {
        /// Path as given.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The path is not in a cgroup file system.
    #[error("cannot watch {} as a control group: it is in no file system of cgroups", path.display())]
    NoCgroup {
        /// Path as given.
        path: PathBuf,
    },
    /// The programs cannot see the group.
    #[error("cannot watch {} as a control group: its hierarchy has no controllers", path.display())]
    NoControllers {
        /// Path as given.
        path: PathBuf,
    },
    /// The host's path of the group is unknown.
    #[error("cannot identify control groups from inside a cgroup namespace")]
    Namespace,
    /// `/proc` cannot be read.
    #[error("cannot find the file systems of cgroups")]
    Proc(#[from] ProcError),
}

/// A control group with its descendants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Number of the hierarchy, 0 for version 2.
    hierarchy: u32,
    /// Path from the root of the hierarchy.
    path: Vec<u8>,
}

/// Inode of the initial cgroup namespace (include/linux/proc_ns.h).
const INITIAL_NAMESPACE: u64 = 0xefff_fffb;

impl Cgroup {
    /// Finds the group by its folder, such as `/sys/fs/cgroup/system.slice`.
    ///
    /// # Errors
    ///
    /// If the folder is not a control group, or one that the kernel's programs cannot see.
    pub fn find(path: &Path) -> Result<Self, CgroupError> {
        let named = || path.to_owned();
        let folder = path.canonicalize().map_err(|source| CgroupError::Missing {
            path: named(),
            source,
        })?;
        let proc = Proc::open()?;
        let own = std::process::id().cast_signed();
        if proc.namespace(own, "ns/cgroup")? != INITIAL_NAMESPACE {
            return Err(CgroupError::Namespace);
        }
        let folder = folder.into_os_string().into_vec();
        let mounts = proc.mountinfo(own)?;
        // The innermost mount is the one that the path leads into; of two at one place the last.
        let mount = mount_lines(&mounts)
            .filter(|mount| is_below(&folder, &unescape(mount.mount_point)))
            .max_by_key(|mount| unescape(mount.mount_point).len());
        let mount = mount.ok_or_else(|| CgroupError::NoCgroup { path: named() })?;
        let hierarchy = match mount.fs_type {
            b"cgroup2" => 0,
            b"cgroup" => {
                let lines = proc.cgroup(own)?;
                let controllers = || mount.super_options.split(|byte| *byte == b',');
                let has = |line: &process_info::procfs::CgroupLine<'_>| {
                    let mut names = line.controllers.split(|byte| *byte == b',');
                    !line.controllers.starts_with(b"name=")
                        && names.any(|name| controllers().any(|other| other == name))
                };
                let line = cgroup_lines(&lines).find(has);
                line.ok_or_else(|| CgroupError::NoControllers { path: named() })?
                    .hierarchy
            }
            _ => return Err(CgroupError::NoCgroup { path: named() }),
        };
        let below = &folder[unescape(mount.mount_point).len()..];
        let root = unescape(mount.root);
        let root = root.strip_suffix(b"/").unwrap_or(&root);
        Ok(Self {
            hierarchy,
            path: [root, below].concat(),
        })
    }

    /// Returns whether a cgroup of a hierarchy is this one or below it.
    fn contains(&self, hierarchy: u32, path: &[u8]) -> bool {
        self.hierarchy == hierarchy && is_below(path, &self.path)
    }
}

/// Returns whether a path equals another one, or lies below it.
fn is_below(path: &[u8], folder: &[u8]) -> bool {
    let folder = folder.strip_suffix(b"/").unwrap_or(folder);
    let rest = path.strip_prefix(folder);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Chooses containers by their full ids.
#[derive(Clone)]
pub struct ContainerChoice(Arc<dyn Fn(&str) -> bool + Send + Sync>);

impl fmt::Debug for ContainerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ContainerChoice")
    }
}

impl PartialEq for ContainerChoice {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ContainerChoice {}

/// Containers and control groups to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchScope {
    /// Containers: names, or prefixes of ids.
    pub containers: Vec<String>,
    /// Control groups.
    pub cgroups: Vec<Cgroup>,
    /// In place of both: a choice of containers.
    pub choice: Option<ContainerChoice>,
}

impl WatchScope {
    /// A scope of the containers with these full ids. The choice is asked once for each place, at its first record.
    pub fn chosen(choice: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self {
            choice: Some(ContainerChoice(Arc::new(choice))),
            ..Self::default()
        }
    }

    /// Returns the containers of the scope that have no process on this host. A container whose name its
    /// runtime has not written down yet is not found by it.
    ///
    /// # Errors
    ///
    /// If `/proc` cannot be read.
    pub fn absent(&self, options: ContainerOptions) -> Result<Vec<&str>, ProcError> {
        let proc = Proc::open()?;
        let containers = Containers::new(&proc, options)?;
        let pids = proc.numbers(".").into_iter().flatten();
        let mut absent: Vec<&str> = self.containers.iter().map(String::as_str).collect();
        for pid in pids {
            if absent.is_empty() {
                break;
            }
            // A process that has ended has no container.
            if let Ok(container) = containers.of(&proc, pid) {
                absent.retain(|wanted| !names(&container, wanted));
            }
        }
        Ok(absent)
    }

    /// Returns whether a container is watched, or a place with these cgroups (hierarchy, path). `None` if
    /// undecided so far.
    pub(super) fn takes(&self, container: &Container, cgroups: &[(u32, Vec<u8>)]) -> Option<bool> {
        if let Some(ContainerChoice(choice)) = &self.choice {
            return match container.containment {
                Containment::Host => Some(false),
                Containment::Unknown => None,
                Containment::Known => {
                    Some(container.full_id.as_deref().is_some_and(|id| choice(id)))
                }
            };
        }
        let is_group = |group: &Cgroup| {
            let mut all = cgroups.iter();
            all.any(|(hierarchy, path)| group.contains(*hierarchy, path))
        };
        if self.cgroups.iter().any(is_group) {
            return Some(true);
        }
        if self.containers.is_empty() {
            return Some(false);
        }
        match container.containment {
            Containment::Host => Some(false),
            Containment::Unknown => None,
            Containment::Known => {
                let is_named = |wanted: &String| names(container, wanted);
                if self.containers.iter().any(is_named) {
                    Some(true)
                } else {
                    // Its runtime may write its name a moment later.
                    let is_described = container.name.is_some() || container.undescribed.is_none();
                    is_described.then_some(false)
                }
            }
        }
    }
}

/// Returns whether a text names a container, by its name or by a prefix of its id.
fn names(container: &Container, wanted: &str) -> bool {
    let ids = [Some(&container.id), container.full_id.as_ref()];
    let is_id = ids.into_iter().flatten().any(|id| id.starts_with(wanted));
    is_id || container.name.as_deref() == Some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(id: &str, name: Option<&str>, undescribed: Option<&str>) -> Container {
        Container {
            containment: Containment::Known,
            id: id[..12].to_owned(),
            full_id: Some(id.to_owned()),
            name: name.map(str::to_owned),
            undescribed: undescribed.map(str::to_owned),
            ..Container::unknown()
        }
    }

    #[test]
    fn containers_are_named_by_name_or_by_the_beginning_of_their_id() {
        let places = |named: &str| WatchScope {
            containers: vec![named.to_owned()],
            ..WatchScope::default()
        };
        let id = "0123456789abcdef0123";
        let web = known(id, Some("web"), None);
        for (named, expected) in [
            ("web", Some(true)),
            ("012", Some(true)),
            (id, Some(true)),
            ("we", Some(false)),
            ("abcdef", Some(false)),
        ] {
            assert_eq!(places(named).takes(&web, &[]), expected, "{named}");
        }
        let nameless = known(id, None, Some("not written yet"));
        assert_eq!(places("web").takes(&nameless, &[]), None);
        assert_eq!(places("0123456789ab").takes(&nameless, &[]), Some(true));
        assert_eq!(places("web").takes(&Container::host(), &[]), Some(false));
        assert_eq!(places("web").takes(&Container::unknown(), &[]), None);
    }

    #[test]
    fn a_control_group_is_watched_with_those_below() {
        let places = WatchScope {
            containers: Vec::new(),
            cgroups: vec![Cgroup {
                hierarchy: 3,
                path: b"/a/b".to_vec(),
            }],
            choice: None,
        };
        let takes = |hierarchy: u32, path: &[u8]| {
            places.takes(&Container::host(), &[(hierarchy, path.to_vec())])
        };
        assert_eq!(takes(3, b"/a/b"), Some(true));
        assert_eq!(takes(3, b"/a/b/c"), Some(true));
        assert_eq!(takes(3, b"/a/bc"), Some(false));
        assert_eq!(takes(3, b"/a"), Some(false));
        assert_eq!(takes(2, b"/a/b"), Some(false));
    }

    #[test]
    fn a_choice_is_asked_for_full_ids_of_containers_alone() {
        let id = "0123456789abcdef0123";
        let scope = WatchScope::chosen(move |asked| asked == id);
        assert_eq!(
            scope.takes(&known(id, None, Some("not yet")), &[]),
            Some(true)
        );
        assert_eq!(
            scope.takes(&known("0123456789abffff", None, None), &[]),
            Some(false)
        );
        assert_eq!(scope.takes(&Container::host(), &[]), Some(false));
        assert_eq!(scope.takes(&Container::unknown(), &[]), None);
    }

    #[test]
    fn folders_that_are_no_control_groups_are_refused() {
        let refused = Cgroup::find(Path::new("/proc/self/fd"));
        assert!(refused.is_err(), "{refused:?}");
        let missing = Cgroup::find(Path::new("/sys/fs/cgroup/no/such/group"));
        assert!(
            matches!(missing, Err(CgroupError::Missing { .. })),
            "{missing:?}"
        );
    }
}
