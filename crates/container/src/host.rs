//! Proof that the agent runs on the host and not in a container.
//!
//! The control group proves nothing by itself: an engine may start this program in the group of a pod or of a
//! container, as podman does with pods of the cgroupfs manager.

use process_info::procfs::{MountLine, mount_lines};

/// What is known about where the agent runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    /// The agent is in the initial pid and cgroup namespaces.
    pub(super) is_initial: bool,
    /// The user named the agent's own container.
    pub(super) is_named: bool,
    /// The agent's control groups name a container.
    pub(super) is_in_named_group: bool,
    /// The agent's mounts.
    pub(super) mounts: Option<&'a [u8]>,
    /// The mounts of the first process of the agent's pid namespace.
    pub(super) first_mounts: Option<&'a [u8]>,
}

impl Surroundings<'_> {
    /// Returns true if the agent is proven to run on the host: in the initial namespaces, and either in a control
    /// group that no container's is like, or with the root of the first process of the machine. Containers that
    /// share the namespaces of the host have a root of their own.
    pub(super) fn prove_host(&self) -> bool {
        self.is_initial && !self.is_named && (!self.is_in_named_group || self.has_first_root())
    }

    fn has_first_root(&self) -> bool {
        match (self.mounts.and_then(root), self.first_mounts.and_then(root)) {
            (Some(own), Some(first)) => {
                (own.device, own.root, own.fs_type) == (first.device, first.root, first.fs_type)
            }
            _ => false,
        }
    }
}

/// The mount that is seen at `/`: of several on top of each other, the last.
fn root(text: &[u8]) -> Option<MountLine<'_>> {
    mount_lines(text)
        .filter(|mount| mount.mount_point == b"/")
        .last()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &[u8] = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                          22 27 0:21 / /proc rw,relatime - proc proc rw\n";
    /// A systemd unit with mounts of its own, or `unshare --mount`.
    const UNIT: &[u8] = b"507 506 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
                          519 507 0:55 / /tmp rw - tmpfs none rw\n";
    /// An initial RAM file system below the root that was mounted over it.
    const STACKED: &[u8] = b"1 1 0:2 / / rw - rootfs rootfs rw\n\
                             27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n";
    const OVERLAY: &[u8] =
        b"640 600 0:61 / / rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n";
    /// A container whose files are a folder of the host's file system.
    const FOLDER: &[u8] = b"640 600 254:0 /srv/rootfs / rw - ext4 /dev/vda rw\n";

    fn around(group: &[u8], mounts: &'static [u8]) -> Surroundings<'static> {
        Surroundings {
            is_initial: true,
            is_named: false,
            is_in_named_group: crate::identify(group).is_some(),
            mounts: Some(mounts),
            first_mounts: Some(HOST),
        }
    }

    const POD: &str = "65c3b4d6b9ca29f676aeeaa520e2addea568c9d77430f1d6e6829e396ffe9fd1";

    #[test]
    fn a_monitor_that_an_engine_starts_in_a_group_of_a_pod_is_on_the_host() {
        let groups = [
            // Version 1, hybrid, version 2: podman's pods with the cgroupfs manager.
            format!("8:pids:/libpod_parent/{POD}/conmon\n4:memory:/libpod_parent/{POD}/conmon\n"),
            format!("4:memory:/libpod_parent/{POD}/conmon\n0::/\n"),
            format!("0::/libpod_parent/{POD}/conmon\n"),
            // `--cgroup-parent`, a pod of the kubelet, and a shell that entered a group of docker's.
            format!("0::/mine/{POD}/conmon\n"),
            format!("11:memory:/kubepods/besteffort/pod1/{POD}\n"),
            format!("0::/docker/{POD}\n"),
        ];
        for group in groups {
            for mounts in [HOST, UNIT, STACKED] {
                let around = around(group.as_bytes(), mounts);
                assert!(around.is_in_named_group, "{group}");
                assert!(around.prove_host(), "{group}");
            }
        }
    }

    #[test]
    fn a_container_with_the_namespaces_of_the_host_is_not_the_host() {
        let group = format!("0::/docker/{POD}\n");
        for mounts in [OVERLAY, FOLDER, b"".as_slice()] {
            assert!(!around(group.as_bytes(), mounts).prove_host());
        }
        let on_host = around(group.as_bytes(), HOST);
        for unproven in [
            Surroundings {
                is_initial: false,
                ..on_host
            },
            Surroundings {
                is_named: true,
                ..on_host
            },
            Surroundings {
                mounts: None,
                ..on_host
            },
            Surroundings {
                first_mounts: None,
                ..on_host
            },
        ] {
            assert!(!unproven.prove_host(), "{unproven:?}");
        }
    }

    #[test]
    fn without_a_group_of_a_container_the_initial_namespaces_prove_it() {
        for group in [
            "0::/\n",
            "0::/system.slice/containerd.service\n",
            "9:cpu:/\n",
        ] {
            let mut around = around(group.as_bytes(), OVERLAY);
            assert!(around.prove_host(), "{group}");
            around.is_initial = false;
            assert!(!around.prove_host(), "{group}");
        }
    }
}
