//! Containers made of namespaces and an overlay, without any container engine.
//!
//! unshare(1) makes the namespaces and a Perl script sets them up. Everything vanishes when the first process
//! ends: mounts and interfaces exist in the namespaces alone.

use std::path::Path;
use std::sync::Arc;

use abi::{Arch, Syscall};

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

/// The set-up of containers and networks.
const SET_UP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/container.pl");

/// Calls that it makes by their numbers, in their order among its arguments.
const CALLS: [&str; 4] = ["mount", "umount2", "pivot_root", "sethostname"];

/// Has the set-up make a container and becomes the command in it. The set-up does not get the words of the command: rules would
/// take them for its own. Tests recognise by `env` that the container is made.
const ENTER: &str = r#"perl "$0" container "$1" "$2" "$3" "$4" "$5" "$6" "$7" "$8" "$9" || exit
shift 9
cd / && exec env -i HOME=/root TERM="$TERM" PATH=/usr/local/bin:/usr/bin:/usr/sbin "$@""#;

/// Has the set-up make a network and becomes the command in it.
const CONNECT: &str = r#"perl "$0" network "$1" "$2" || exit
shift 2
exec "$@""#;

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
        ]);
        words.extend(strings(&["sh", "-c", ENTER, SET_UP]));
        words.extend(CALLS.map(number));
        words.extend([self.rootfs.path(), scratch, program].map(|path| path.display().to_string()));
        words.extend(network());
        words
    }
}

/// Returns the command line to put before a command that runs on the host in a network of its own.
pub(crate) fn network_prefix() -> Vec<String> {
    let mut words = strings(&["unshare", "--net", "--"]);
    words.extend(strings(&["sh", "-c", CONNECT, SET_UP]));
    words.extend(network());
    words
}

/// Returns the number of a call, as a word.
fn number(name: &str) -> String {
    let native = Arch::native().expect("the tests' machine has calls");
    let number = Syscall::from_name(name).and_then(|call| call.number(native));
    number.expect("it is a call of every machine").to_string()
}

/// Returns the addresses of a network, and the one that never answers.
fn network() -> [String; 2] {
    [
        [PUBLIC_ADDRESS, API_SERVER, METADATA_ADDRESS].join(","),
        BLACKHOLE_ADDRESS.to_owned(),
    ]
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
