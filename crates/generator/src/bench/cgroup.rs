//! Limits for a running detector, by control groups of either version.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;

/// Length of a CPU period in microseconds, the kernel's default.
const PERIOD: u64 = 100_000;

/// Prefix of the names of groups; the pid of their creator follows.
const PREFIX: &str = "tollgate-bench-";

/// Resource limits of a detector.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Limits {
    pub(super) cpus: Option<f64>,
    pub(super) memory: Option<u64>,
}

/// Keeps a process limited until it is dropped.
#[derive(Debug)]
pub(super) struct Confined {
    pid: i32,
    /// Each group that was made, and the previous group of the process.
    groups: Vec<(PathBuf, PathBuf)>,
}

/// A control group hierarchy: its mount point, and the group of a process in it.
#[derive(Debug, PartialEq)]
struct Hierarchy {
    mount: PathBuf,
    own: String,
    is_v2: bool,
}

impl Confined {
    /// Moves a process to new groups with these limits.
    pub(super) fn new(pid: i32, limits: Limits) -> Result<Self, Failure> {
        let mut confined = Self {
            pid,
            groups: Vec::new(),
        };
        if let Some(cpus) = limits.cpus {
            let quota = quota(cpus);
            confined.limit("cpu", |group, is_v2| {
                if is_v2 {
                    return write(&group.join("cpu.max"), &format!("{quota} {PERIOD}"));
                }
                write(&group.join("cpu.cfs_period_us"), &PERIOD.to_string())?;
                write(&group.join("cpu.cfs_quota_us"), &quota.to_string())
            })?;
        }
        if let Some(memory) = limits.memory {
            confined.limit("memory", |group, is_v2| {
                let file = if is_v2 {
                    "memory.max"
                } else {
                    "memory.limit_in_bytes"
                };
                write(&group.join(file), &memory.to_string())
            })?;
        }
        Ok(confined)
    }

    fn limit(
        &mut self,
        controller: &str,
        set: impl Fn(&Path, bool) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let pid = self.pid;
        let refuse = |why: String| {
            Failure::new(
                Exit::Unsupported,
                format!("cannot limit the {controller} of process {pid}: {why}"),
            )
            .help("run as root, with the control groups of this controller mounted")
        };
        let hierarchy = find(controller, self.pid).map_err(refuse)?;
        let before = hierarchy.mount.join(hierarchy.own.trim_start_matches('/'));
        remove_forsaken(&hierarchy.mount);
        let name = format!("{PREFIX}{}", std::process::id());
        let group = hierarchy.mount.join(name);
        if !group.exists() {
            fs::create_dir(&group).map_err(|error| refuse(describe_error(&group, &error)))?;
            self.groups.push((group.clone(), before));
        }
        set(&group, hierarchy.is_v2)
            .and_then(|()| write(&group.join("cgroup.procs"), &self.pid.to_string()))
            .map_err(refuse)
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        for (group, before) in self.groups.drain(..) {
            // The process may have ended; an empty group can be removed.
            let _ = write(&before.join("cgroup.procs"), &self.pid.to_string());
            // A process that is ending remains a member for a moment.
            for _ in 0..100 {
                if fs::remove_dir(&group).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// Removes groups whose creator was killed. Their processes move to the group without a limit.
fn remove_forsaken(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let lives = |pid: &str| Path::new("/proc").join(pid).exists();
        if maker.is_some_and(|pid| !lives(pid)) {
            let group = entry.path();
            let left = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for pid in left.lines() {
                // The process may end meanwhile; a group with processes remains.
                let _ = write(&mount.join("cgroup.procs"), pid);
            }
            let _ = fs::remove_dir(group);
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the number of processors was checked"
)]
fn quota(cpus: f64) -> u64 {
    (cpus * PERIOD as f64) as u64
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|error| describe_error(file, &error))
}

fn describe_error(file: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", file.display())
}

/// Returns the hierarchy that has a controller.
fn find(controller: &str, pid: i32) -> Result<Hierarchy, String> {
    let read = |file: String| fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"));
    let (mounts, groups) = (
        read("/proc/self/mountinfo".to_owned())?,
        read(format!("/proc/{pid}/cgroup"))?,
    );
    if let Some(found) = v1(controller, &mounts, &groups) {
        return Ok(found);
    }
    let found = v2(&mounts, &groups).ok_or("no control groups are mounted")?;
    let offered = read(found.mount.join("cgroup.controllers").display().to_string())?;
    if !offered.split_whitespace().any(|name| name == controller) {
        return Err(format!(
            "no control groups have the controller {controller}"
        ));
    }
    // The controller has to be enabled for children first.
    write(
        &found.mount.join("cgroup.subtree_control"),
        &format!("+{controller}"),
    )?;
    Ok(found)
}

fn v1(controller: &str, mounts: &str, groups: &str) -> Option<Hierarchy> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        (right.next() == Some("cgroup") && has(right.nth(1)?)).then_some(())?;
        left.split(' ').nth(4)
    })?;
    let own = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        has(parts.next()?).then(|| parts.next()).flatten()
    })?;
    Some(Hierarchy {
        mount: mount.into(),
        own: own.to_owned(),
        is_v2: false,
    })
}

fn v2(mounts: &str, groups: &str) -> Option<Hierarchy> {
    let mount = mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right
            .starts_with("cgroup2 ")
            .then(|| left.split(' ').nth(4))
            .flatten()
    })?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Hierarchy {
        mount: mount.into(),
        own: own.to_owned(),
        is_v2: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const GROUPS: &str = "4:memory:/a:b\n1:cpu,cpuacct:/\n0::/c\n";

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let found = v1("memory", HYBRID, GROUPS).unwrap();
        assert_eq!(
            (found.mount, found.own.as_str()),
            ("/sys/fs/cgroup/memory".into(), "/a:b")
        );
        assert_eq!(
            v1("cpu", HYBRID, GROUPS).unwrap().mount,
            Path::new("/sys/fs/cgroup/cpu,cpuacct")
        );
        assert!(v1("io", HYBRID, GROUPS).is_none());
        let found = v2(HYBRID, GROUPS).unwrap();
        assert!(found.is_v2 && found.own == "/c");
    }

    #[test]
    fn groups_of_the_dead_are_removed() {
        let mount = tempfile::tempdir().unwrap();
        let own = mount.path().join(format!("{PREFIX}{}", std::process::id()));
        let dead = mount.path().join(format!("{PREFIX}4194305"));
        for group in [&own, &dead] {
            fs::create_dir(group).unwrap();
        }
        remove_forsaken(mount.path());
        assert!(own.exists() && !dead.exists());
    }

    #[test]
    fn half_a_processor_is_half_a_period() {
        assert_eq!((quota(0.5), quota(2.0)), (50_000, 200_000));
    }
}
