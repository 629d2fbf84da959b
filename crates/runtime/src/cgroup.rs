//! Control groups that a runtime creates for a container, where the runtime manages them itself.
//!
//! A runtime that is killed while it creates a container leaves its groups behind and does not know
//! of them later.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Depth of subgroups that are removed with a group; more than any runtime creates.
const DEPTH: usize = 16;

/// Directories of the control groups that belong to one container alone.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Groups(Vec<PathBuf>);

impl Groups {
    /// Returns the groups about to be created: in every hierarchy, the paths that do not exist yet.
    /// `mounts` and `own` are the runtime's `/proc/self/mountinfo` and `/proc/self/cgroup`; `path`
    /// is what the container's configuration asks for.
    pub fn planned(mounts: &str, own: &str, path: Option<&str>, id: &str) -> Self {
        let places = places(mounts, own, path, id).into_iter();
        Self(places.filter(|place| !place.exists()).collect())
    }

    /// Returns the processes in the groups.
    pub fn members(&self) -> Vec<i32> {
        let lists = self.0.iter().map(|folder| {
            // The group may not exist in a hierarchy; then it has no members.
            std::fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default()
        });
        let mut members: Vec<i32> = lists
            .flat_map(|list| {
                list.lines()
                    .filter_map(|line| line.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        members.sort_unstable();
        members.dedup();
        members
    }

    /// Removes the groups.
    ///
    /// # Errors
    ///
    /// A group still contains processes.
    pub fn remove(&self) -> io::Result<()> {
        self.0.iter().try_for_each(|folder| remove(folder, DEPTH))
    }
}

fn remove(folder: &Path, depth: usize) -> io::Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        // The group does not exist.
        return Ok(());
    };
    for entry in entries.flatten() {
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path(), depth - 1)?;
        }
    }
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn places(mounts: &str, own: &str, path: Option<&str>, id: &str) -> Vec<PathBuf> {
    let path = path.filter(|path| !path.is_empty());
    // A systemd unit name; systemd removes those itself.
    if path.is_some_and(|path| path.contains(':')) {
        return Vec::new();
    }
    let hierarchies = mounts.lines().filter_map(Hierarchy::parse);
    let of_one = |hierarchy: Hierarchy<'_>| {
        let below = match path {
            Some(path) if path.starts_with('/') => path.trim_start_matches('/').to_owned(),
            relative => {
                let own = hierarchy.own(own)?.trim_start_matches('/');
                let name = relative.unwrap_or(id);
                if own.is_empty() {
                    name.to_owned()
                } else {
                    format!("{own}/{name}")
                }
            }
        };
        // Whatever the configuration says, never a group that other processes share.
        let is_plain = !below.is_empty()
            && below
                .split('/')
                .all(|part| part != ".." && !part.is_empty());
        is_plain.then(|| Path::new(hierarchy.mount_point).join(below))
    };
    hierarchies.filter_map(of_one).collect()
}

/// A mounted hierarchy.
struct Hierarchy<'a> {
    root: &'a str,
    mount_point: &'a str,
    /// Controllers of version 1; `None` for version 2.
    controllers: Option<&'a str>,
}

impl<'a> Hierarchy<'a> {
    /// Parses a line of `mountinfo`. Returns `None` if it is not a cgroup hierarchy.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, source) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3);
        let (root, mount_point) = (mount.next()?, mount.next()?);
        let mut source = source.split(' ');
        let controllers = match source.next()? {
            "cgroup" => Some(source.nth(1)?),
            "cgroup2" => None,
            _ => return None,
        };
        Some(Self {
            root,
            mount_point,
            controllers,
        })
    }

    /// Returns the path within the hierarchy, as seen from the mount point, of the process whose
    /// `/proc/PID/cgroup` is `lines`.
    fn own(&self, lines: &'a str) -> Option<&'a str> {
        let path = lines.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let is_this = match self.controllers {
                None => controllers.is_empty(),
                Some(own) => controllers
                    .split(',')
                    .any(|name| !name.is_empty() && own.split(',').any(|own| own == name)),
            };
            is_this.then_some(path)
        })?;
        if self.root == "/" {
            Some(path)
        } else {
            path.strip_prefix(self.root)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 24 0:27 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
32 24 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
33 24 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
34 24 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
35 24 0:31 / /proc rw - proc proc rw
";
    const OWN: &str = "3:cpu:/\n2:memory:/box/x\n1:name=systemd:/\n0::/up\n";

    #[test]
    fn groups_are_below_the_runtimes_own_unless_a_path_is_asked_for() {
        let places = |path| places(MOUNTS, OWN, path, "one");
        let below = [
            "/sys/fs/cgroup/cpu/one",
            "/sys/fs/cgroup/memory/box/x/one",
            "/sys/fs/cgroup/systemd/one",
            "/sys/fs/cgroup/unified/up/one",
        ];
        assert_eq!(places(None), below.map(PathBuf::from));
        assert_eq!(places(Some("")), below.map(PathBuf::from));
        let asked = places(Some("/default/one"));
        assert_eq!(asked[1], Path::new("/sys/fs/cgroup/memory/default/one"));
        assert_eq!(
            places(Some("a/b"))[1],
            Path::new("/sys/fs/cgroup/memory/box/x/a/b")
        );
    }

    #[test]
    fn groups_of_others_are_never_named() {
        for path in ["/", "//", "/..", "/a/../..", "..", "system.slice:runc:one"] {
            let places = places(MOUNTS, "0::/\n1:name=systemd:/\n", Some(path), "one");
            assert!(places.is_empty(), "{path}: {places:?}");
        }
    }

    #[test]
    fn a_mount_of_a_part_shows_what_is_below_it() {
        let mounts = "1 0 0:1 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let places = places(mounts, "0::/docker/abc/inner\n", None, "one");
        assert_eq!(places, [PathBuf::from("/sys/fs/cgroup/inner/one")]);
    }

    #[test]
    fn what_was_there_before_stays() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display();
        let mounts = format!("1 0 0:1 / {root} rw - cgroup2 cgroup2 rw\n");
        std::fs::create_dir(folder.path().join("old")).unwrap();
        let planned = |id| Groups::planned(&mounts, "0::/\n", None, id);
        assert_eq!(planned("old"), Groups::default());
        let new = planned("new");
        std::fs::create_dir_all(folder.path().join("new/inner")).unwrap();
        new.remove().unwrap();
        assert!(!folder.path().join("new").exists() && folder.path().join("old").exists());
        new.remove().unwrap();
    }
}
