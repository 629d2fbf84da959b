//! The control group of a container.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use event::Pid;
use event::cgroup::identify;
use process_info::procfs::Proc;

use crate::bound::Bound;

/// A control group, held by a descriptor: another one at its path is not meant.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
    /// Id of the container.
    pub(crate) container: String,
}

/// Groups below one that are looked at.
const MOST_GROUPS: usize = 4096;

impl Group {
    /// Opens the control group of version 2 of the container that a process is in.
    ///
    /// # Errors
    ///
    /// There is none, or it cannot be opened.
    pub(crate) fn of_container(proc: &Proc, process: &Bound) -> Result<Self, String> {
        let path = path_of(proc, process)?;
        let (inside, container) = of_container(&path)
            .ok_or_else(|| format!("its control group `{path}` is that of no container"))?;
        let hierarchy = hierarchy(proc)?;
        let path = hierarchy.join(inside.trim_start_matches('/'));
        let cannot = |error: std::io::Error| format!("cannot open {}: {error}", path.display());
        let file = File::open(&path).map_err(cannot)?;
        let group = Self {
            file,
            container,
            path: path.clone(),
        };
        // Opened while the process was in it.
        match path_of(proc, process)? == *inside || group.is_of(proc, process) {
            true => Ok(group),
            false => Err("the process has left its control group".to_owned()),
        }
    }

    fn is_of(&self, proc: &Proc, process: &Bound) -> bool {
        let now = path_of(proc, process);
        now.is_ok_and(|now| {
            of_container(&now).is_some_and(|(inside, _)| {
                self.path.ends_with(inside.trim_start_matches('/'))
                    && fs::metadata(&self.path).is_ok_and(|found| {
                        self.file
                            .metadata()
                            .is_ok_and(|own| own.ino() == found.ino())
                    })
            })
        })
    }

    /// Returns the processes in the group and in those below it.
    ///
    /// # Errors
    ///
    /// A list cannot be read, or names a process of another pid namespace.
    pub(crate) fn members(&self) -> Result<Vec<Pid>, String> {
        let mut members = Vec::new();
        let mut groups = vec![self.path.clone()];
        let mut seen = 0;
        while let Some(group) = groups.pop() {
            seen += 1;
            if seen > MOST_GROUPS {
                return Err(format!("it has more than {MOST_GROUPS} groups"));
            }
            read(&group, &mut groups, &mut members)
                .map_err(|error| format!("cannot read {}: {error}", group.display()))?;
        }
        match members.contains(&Pid(0)) {
            true => Err("it has processes that are not seen here".to_owned()),
            false => Ok(members),
        }
    }
}

/// Reads the processes of a group, and the groups below it.
fn read(group: &Path, groups: &mut Vec<PathBuf>, members: &mut Vec<Pid>) -> std::io::Result<()> {
    let text = fs::read_to_string(group.join("cgroup.procs"))?;
    for line in text.lines() {
        let pid = line.trim().parse().map_err(std::io::Error::other)?;
        members.push(Pid(pid));
    }
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            groups.push(entry.path());
        }
    }
    Ok(())
}

/// Returns the path of a process's control group of version 2.
fn path_of(proc: &Proc, process: &Bound) -> Result<String, String> {
    let text = proc.contents(&format!("{}/cgroup", process.pid.0));
    let text = text.map_err(|error| format!("its control group cannot be read: {error}"))?;
    if !process.is_unreaped() {
        return Err("the process has ended".to_owned());
    }
    let path = text.lines().find_map(|line| line.strip_prefix("0::"));
    match path {
        Some(path) if !path.starts_with("/..") => Ok(path.to_owned()),
        Some(_) => Err("its control group is outside of tollgate's namespace".to_owned()),
        None => Err("it has no control group of version 2".to_owned()),
    }
}

/// Returns the part of a path that is the container's own group, and the container's id: a container may have groups of its own
/// below.
fn of_container(path: &str) -> Option<(&str, String)> {
    let whole = identify(path)?;
    let ends = path.match_indices('/').map(|(at, _)| at);
    let mut prefixes = ends.chain([path.len()]).map(|end| &path[..end]);
    let own = prefixes.find(|prefix| identify(prefix).as_ref() == Some(&whole))?;
    Some((own, whole.full_id))
}

/// Returns where all control groups of version 2 are.
fn hierarchy(proc: &Proc) -> Result<PathBuf, String> {
    let mounts = proc.contents("self/mountinfo");
    let mounts = mounts.map_err(|error| format!("mounts cannot be read: {error}"))?;
    let mut found = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut parts = mount.split(' ').skip(3);
        let (root, place) = (parts.next()?, parts.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then(|| PathBuf::from(place))
    });
    found
        .next()
        .ok_or_else(|| "no control groups of version 2 are mounted".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_a_container_is_the_one_with_its_id() {
        let id = "4f".repeat(32);
        for (path, own) in [
            (format!("/docker/{id}"), format!("/docker/{id}")),
            (
                format!("/docker/{id}/init.scope/deeper"),
                format!("/docker/{id}"),
            ),
            (
                format!("/kubepods.slice/pod1.slice/cri-containerd-{id}.scope/x"),
                format!("/kubepods.slice/pod1.slice/cri-containerd-{id}.scope"),
            ),
        ] {
            let found = of_container(&path).expect("a container");
            assert_eq!(found, (own.as_str(), id.clone()));
        }
        for path in [
            "/",
            "/user.slice/user-0.slice/session-1.scope",
            "/system.slice/sshd.service",
        ] {
            assert_eq!(of_container(path), None);
        }
    }
}
