//! Proof that the agent runs on the host and not in a container.
//!
//! The control group proves nothing by itself: an engine may start this program in the group of a pod or of a
//! container, as podman does with pods of the cgroupfs manager. Nor does the agent's root: a container can have the
//! root of the host in a folder, and start this program there (`chroot /host`).

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use process_info::procfs::{MountLine, mount_lines};
use rustix::fs::{Mode, OFlags, openat};

/// Kinds of namespaces and of what a thread can stop sharing (sched.h).
const CLONE_FS: u64 = 0x0200;
const CLONE_NEWNS: u32 = 0x0002_0000;

/// What is known about where the agent runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Surroundings<'a> {
    /// The agent is in the initial pid and cgroup namespaces.
    pub(super) is_initial: bool,
    /// The user named the agent's own container.
    pub(super) is_named: bool,
    /// The agent's control groups name a container.
    pub(super) is_in_named_group: bool,
    /// The agent is in the mount namespace of the first process of its pid namespace.
    pub(super) has_first_namespace: bool,
    /// The mounts below the root of the agent's mount namespace, whatever the agent's own root is.
    pub(super) mounts: Option<&'a [u8]>,
    /// The mounts of the first process of the agent's pid namespace.
    pub(super) first_mounts: Option<&'a [u8]>,
}

impl Surroundings<'_> {
    /// Returns true if the agent is proven to run on the host: in the initial namespaces, and either in a control
    /// group that no container's is like, or in the mount namespace of the first process of the machine, or in one
    /// with the same root, such as that of a systemd unit. Containers that share the other namespaces of the host
    /// have a root of their own.
    pub(super) fn prove_host(&self) -> bool {
        let is_in_place = !self.is_in_named_group || self.has_first_mounts();
        self.is_initial && !self.is_named && is_in_place
    }

    fn has_first_mounts(&self) -> bool {
        if self.has_first_namespace {
            return true;
        }
        match (self.mounts.and_then(root), self.first_mounts.and_then(root)) {
            (Some(own), Some(first)) => {
                (own.device, own.root, own.fs_type) == (first.device, first.root, first.fs_type)
            }
            _ => false,
        }
    }
}

/// Reads the mounts below the root of this process's mount namespace. `None` if it cannot be entered, which needs
/// CAP_SYS_ADMIN and CAP_SYS_CHROOT, or if no thread can be made.
pub(super) fn mounts_of_namespace() -> Option<Vec<u8>> {
    let read = || {
        let namespace = File::open("/proc/thread-self/ns/mnt").ok()?;
        // Opened before, because the root of the namespace may have no /proc.
        let thread = File::open("/proc/thread-self").ok()?;
        // The thread gets a root of its own, which entering the namespace sets to that of the namespace.
        sys::namespace::unshare(CLONE_FS).ok()?;
        sys::namespace::enter(namespace.as_fd(), CLONE_NEWNS).ok()?;
        let table = openat(&thread, "mountinfo", OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = Vec::new();
        File::from(table).read_to_end(&mut text).ok()?;
        Some(text)
    };
    std::thread::Builder::new().spawn(read).ok()?.join().ok()?
}

/// The mount that is seen at `/`: of several on top of each other, the last.
fn root(text: &[u8]) -> Option<MountLine<'_>> {
    mount_lines(text)
        .filter(|mount| mount.mount_point == b"/")
        .last()
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    /// Flags of mount(2).
    const MS_BIND: u64 = 0x1000;
    const MS_REC: u64 = 0x4000;
    const MS_PRIVATE: u64 = 0x4_0000;

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
            has_first_namespace: false,
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
        let in_first_namespace = Surroundings {
            has_first_namespace: true,
            ..around(group.as_bytes(), FOLDER)
        };
        assert!(in_first_namespace.prove_host(), "chroot on the host");
    }

    #[test]
    fn the_mounts_of_a_namespace_do_not_depend_on_the_root_of_the_caller() {
        let whole = std::fs::read("/proc/self/mountinfo").unwrap();
        testing::need_root!();
        let folder = std::env::temp_dir().join(format!("container-root-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("proc")).unwrap();
        let text = |path: &std::path::Path| CString::new(path.as_os_str().as_bytes()).unwrap();
        let (new_root, new_proc) = (text(&folder), text(&folder.join("proc")));
        // A thread in other mounts with a root of its own, as after `chroot /host` in a container.
        let read = move || {
            sys::namespace::unshare(CLONE_FS | u64::from(CLONE_NEWNS)).unwrap();
            let mount = sys::namespace::mount;
            mount(None, c"/", None, MS_PRIVATE | MS_REC, None).unwrap();
            mount(Some(c"/proc"), &new_proc, None, MS_BIND, None).unwrap();
            rustix::process::chroot(new_root.as_c_str()).unwrap();
            let seen = std::fs::read("/proc/thread-self/mountinfo").unwrap();
            (seen, mounts_of_namespace().unwrap())
        };
        let (seen, found) = std::thread::spawn(read).join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(root(&seen).is_none(), "{}", String::from_utf8_lossy(&seen));
        let of = |mount: MountLine<'_>| (mount.device.to_vec(), mount.root.to_vec());
        assert_eq!(root(&found).map(of), root(&whole).map(of));
        assert_eq!(mounts_of_namespace(), Some(whole));
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
