//! Probes of the container environment.

use std::path::Path;

use rustix::fs::statfs;

use super::Support;

/// `CGROUP2_SUPER_MAGIC`, linux/magic.h.
const CGROUP2_MAGIC: i64 = 0x6367_7270;

pub(super) fn cgroup() -> Support {
    let is_v2 = |path: &str| statfs(path).is_ok_and(|fs| fs.f_type == CGROUP2_MAGIC);
    if is_v2("/sys/fs/cgroup") {
        return Support::yes("version 2");
    }
    if is_v2("/sys/fs/cgroup/unified") {
        return Support::yes("versions 1 and 2");
    }
    if Path::new("/sys/fs/cgroup/memory").is_dir() {
        return Support::yes("version 1");
    }
    Support::partial_with_fix(
        "no control groups at /sys/fs/cgroup",
        "mount them, or name the container with --container-id",
    )
}

/// Inode numbers of the initial namespaces (include/linux/proc_ns.h).
const INITIAL_CGROUP_NAMESPACE: u64 = 0xEFFF_FFFB;
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Returns true if this process is in the initial PID and control-group namespaces.
pub(super) fn is_host() -> bool {
    namespace("pid") == Some(INITIAL_PID_NAMESPACE)
        && namespace("cgroup") == Some(INITIAL_CGROUP_NAMESPACE)
}

pub(super) fn identity() -> Support {
    let (pid, cgroup) = (namespace("pid"), namespace("cgroup"));
    match (pid, cgroup) {
        (Some(INITIAL_PID_NAMESPACE), Some(INITIAL_CGROUP_NAMESPACE)) => {
            Support::yes("host: the namespaces are those of the host")
        }
        (None, _) | (_, None) => Support::partial_with_fix(
            "unknown: /proc/self/ns cannot be read",
            "mount /proc, or name the container with --container-id",
        ),
        _ => Support::partial_with_fix(
            "not the host: the container is identified by cgroups, mounts and runtime files",
            "if `container.id` is empty in alerts, name it with --container-id",
        ),
    }
}

fn namespace(kind: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()?;
    link.to_str()?.split(['[', ']']).nth(1)?.parse().ok()
}
