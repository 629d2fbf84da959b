//! Mounts of a container without what is its own: devices, and the ids of pods and containers in paths.
//!
//! Containers of one image and one kind of pod have the same shape, and share the table of their policy. Tables are made
//! from the shape, which is a table of mounts itself, in the form of /proc/PID/mountinfo.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::mount_table::Mount;

/// Fewest hexadecimal digits that are an id. The kubelet names files of containers by eight.
const DIGITS: usize = 8;

/// The shape of the mounts of a container, and its own devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountShape {
    /// The mounts, as in `/proc/PID/mountinfo`. Minor numbers of devices are indices of `devices`.
    pub(super) text: String,
    /// The devices of the container.
    pub(super) devices: Vec<u32>,
}

impl MountShape {
    /// Takes the shape of the text of /proc/PID/mountinfo.
    pub(super) fn of(mounts: &str) -> Self {
        let mounts = mounts.lines().filter_map(Mount::read);
        let mut of_devices: BTreeMap<u32, Vec<(String, String)>> = BTreeMap::new();
        for mount in mounts {
            let known = of_devices.entry(mount.device).or_default();
            known.push((mount.place, without_ids(&mount.root)));
        }
        let mut sorted: Vec<(u32, Vec<(String, String)>)> = of_devices.into_iter().collect();
        for (_, mounts) in &mut sorted {
            mounts.sort();
            mounts.dedup();
        }
        // Devices that are mounted at the same places are in the order of their numbers.
        sorted.sort_by(|one, other| one.1.cmp(&other.1));
        let mut text = String::new();
        for (index, (_, mounts)) in sorted.iter().enumerate() {
            for (place, root) in mounts {
                let (root, place) = (escaped(root), escaped(place));
                // Writing to a text cannot fail.
                let _ = writeln!(text, "0 0 0:{index} {root} {place} - any");
            }
        }
        let devices = sorted.into_iter().map(|(device, _)| device).collect();
        Self { text, devices }
    }
}

/// Replaces the ids in a path by `*`, as the names of folders in which a kubelet or a container runtime keeps what is of
/// one pod or container.
fn without_ids(path: &str) -> String {
    let names = path.split('/');
    let names = names.map(|name| if is_id(name) { "*" } else { name });
    names.collect::<Vec<_>>().join("/")
}

fn is_id(name: &str) -> bool {
    let name = name.strip_prefix("pvc-").unwrap_or(name);
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let bytes = name.as_bytes();
    let has_number = bytes.iter().any(u8::is_ascii_digit);
    let is_uuid = bytes.len() == 36
        && bytes.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => matches!(byte, b'-' | b'_'),
            _ => is_digit(*byte),
        });
    is_uuid || bytes.len() >= DIGITS && has_number && bytes.iter().copied().all(is_digit)
}

/// Writes a path as the kernel does; that of the root is empty here.
fn escaped(path: &str) -> String {
    if path.is_empty() {
        return "/".to_owned();
    }
    let mut text = String::new();
    for letter in path.chars() {
        match letter {
            ' ' => text.push_str("\\040"),
            '\t' => text.push_str("\\011"),
            '\n' => text.push_str("\\012"),
            '\\' => text.push_str("\\134"),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::mount_table::MountTable;
    use super::*;

    /// Mounts of a pod of the kubelet on containerd.
    fn pod(root: u32, shm: u32, pod: &str, sandbox: &str, file: &str) -> String {
        format!(
            "1 0 0:{root} / / rw - overlay overlay rw\n2 1 0:{shm} / /dev/shm rw - tmpfs shm rw\n\
             3 1 8:1 /var/lib/kubelet/pods/{pod}/etc-hosts /etc/hosts rw - ext4 d rw\n\
             4 1 8:1 /var/lib/containerd/sandboxes/{sandbox}/hostname /etc/hostname rw - ext4 d rw\n\
             5 1 8:1 /var/lib/kubelet/pods/{pod}/containers/app/{file} /dev/termination-log rw - ext4 d rw\n\
             6 1 0:5 / /proc rw - proc proc rw\n"
        )
    }

    #[test]
    fn containers_of_one_pod_template_have_one_shape_and_their_own_devices() {
        let (first, second) = (
            MountShape::of(&pod(
                70,
                71,
                "0f5b4c1e-2a3d-4e5f-8a9b-0c1d2e3f4a5b",
                &"0a".repeat(32),
                "1c9f03aa",
            )),
            MountShape::of(&pod(
                95,
                80,
                "7e5b4c1e-2a3d-4e5f-8a9b-0c1d2e3f4a5b",
                &"9b".repeat(32),
                "22222222",
            )),
        );
        assert_eq!(first.text, second.text);
        assert_eq!(first.devices, [70, 71, 8 << 20 | 1]);
        assert_eq!(second.devices, [95, 80, 8 << 20 | 1]);
        // Read again, it is the same.
        assert_eq!(MountShape::of(&first.text).text, first.text);
    }

    #[test]
    fn the_table_of_a_shape_has_the_same_aliases_but_for_the_ids() {
        let shape = MountShape::of(&pod(
            70,
            71,
            "0f5b4c1e-2a3d-4e5f-8a9b-0c1d2e3f4a5b",
            &"0a".repeat(32),
            "1c9f03aa",
        ));
        let table = MountTable::new(&shape.text);
        let places: Vec<_> = table.of_devices().collect();
        assert_eq!(places, [(0, ""), (1, "/dev/shm"), (2, "/device-0:2")]);
        let pattern = policy::pattern::Pattern::parse("/etc/hosts").unwrap();
        let aliases = table.aliases(&pattern).unwrap();
        let aliases: Vec<_> = aliases
            .iter()
            .map(|alias| alias.text().to_owned())
            .collect();
        assert_eq!(aliases, ["/device-0:2/var/lib/kubelet/pods/*/etc-hosts"]);
    }

    #[test]
    fn names_that_are_no_ids_stay() {
        for name in [
            "etc-hosts",
            "deadbeef",
            "1234567",
            "data-12345678",
            "containerd",
            "",
        ] {
            assert!(!is_id(name), "{name}");
        }
        assert!(is_id("pvc-0f5b4c1e-2a3d-4e5f-8a9b-0c1d2e3f4a5b"));
        let odd = "1 0 0:6 / /a\\040b\\134 rw - tmpfs t rw\n";
        assert_eq!(MountShape::of(odd).text, "0 0 0:0 / /a\\040b\\134 - any\n");
    }
}
