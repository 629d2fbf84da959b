//! Containers made of namespaces and an overlay, without any container engine.
//!
//! unshare(1) makes the namespaces and a shell script sets them up. Everything vanishes when the first process
//! ends: mounts and interfaces exist in the namespaces alone.

use std::path::Path;
use std::sync::Arc;

use crate::rootfs::Rootfs;

/// A public address (for documentation, RFC 5737), inside the container.
pub const PUBLIC_ADDRESS: &str = "203.0.113.5";

/// The address of `kubernetes.default.svc.cluster.local` in `/etc/hosts` of containers.
pub const API_SERVER: &str = "203.0.113.10";

/// An address in the container's network that never responds.
pub const BLACKHOLE_ADDRESS: &str = "198.51.100.1";

/// Address of the metadata service of clouds, here an address of the container, so that nothing leaves it.
const METADATA_ADDRESS: &str = "169.254.169.254";

/// The container id that is given to tollgate by tests that need a known one.
pub const CONTAINER_ID: &str = "3f2a9c81d7e4";

/// Set-up script. Arguments: lower layer, scratch folder, program; then the command.
const FURNISH: &str = r#"
set -e
lower=$1 scratch=$2 program=$3
shift 3
mount --make-rprivate /
stage=$scratch/stage
mkdir -p "$stage"
mount -t tmpfs -o mode=755 tmpfs "$stage"
mkdir "$stage/upper" "$stage/work" "$stage/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$stage/upper,workdir=$stage/work" overlay "$stage/root"
cd "$stage/root"
mkdir -p "./$scratch"
mount --bind "$scratch" "./$scratch"
mount --bind "$program" usr/local/bin/tollgate
mount -t proc proc proc
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    : > "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
hostname container
"#;

/// Set-up script for a network with addresses and no hosts. They are on the loopback interface, which needs no
/// driver. Packets to `BLACKHOLE` come back there, belong to nobody and are dropped without an answer.
const CONNECT: &str = r#"
ip link set lo up
ip address add PUBLIC/32 dev lo
ip address add API/32 dev lo
ip address add METADATA/32 dev lo
ip route add BLACKHOLE/32 dev lo
echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start
"#;

const ENTER: &str = r#"
pivot_root . old
exec chroot . /bin/sh -c 'busybox umount -l /old && cd / && exec env -i HOME=/root TERM="$TERM" PATH=/usr/local/bin:/usr/bin:/usr/sbin "$@"' sh "$@"
"#;

/// Files for the set-up of a container.
#[derive(Debug)]
pub(crate) struct Container {
    rootfs: Arc<Rootfs>,
}

impl Container {
    pub(crate) fn new() -> Self {
        Self {
            rootfs: Rootfs::shared(),
        }
    }

    /// Returns the command line to put before a command that runs inside. The scratch folder has the same path
    /// inside as outside; it is not part of the overlay.
    pub(crate) fn prefix(&self, scratch: &Path, program: &Path) -> Vec<String> {
        let script = format!("{FURNISH}{}{ENTER}", connect());
        let mut words = strings(&[
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--uts",
            "--ipc",
            "--net",
            "--cgroup",
            "--",
            "sh",
            "-c",
        ]);
        words.push(script);
        words.push("container".to_owned());
        words.extend([self.rootfs.path(), scratch, program].map(|path| path.display().to_string()));
        words
    }
}

/// Returns the command line to put before a command that runs on the host in a network of its own.
pub(crate) fn network_prefix() -> Vec<String> {
    let mut words = strings(&["unshare", "--net", "--", "sh", "-c"]);
    words.push(format!("set -e\n{}exec \"$@\"", connect()));
    words.push("network".to_owned());
    words
}

fn connect() -> String {
    CONNECT
        .replace("PUBLIC", PUBLIC_ADDRESS)
        .replace("API", API_SERVER)
        .replace("METADATA", METADATA_ADDRESS)
        .replace("BLACKHOLE", BLACKHOLE_ADDRESS)
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
