//! Mount table for the BPF programs: a file is also matched by its path within its file system, so that a
//! second mount gives it no second name.
//!
//! Each file system has one place. A file system that is mounted as a whole has the shortest of its mount
//! points; one of which only parts are mounted has a synthetic name that no mount has. For every other mount,
//! each pattern is added once more, with the path of the same files below that place.

use std::collections::{BTreeMap, BTreeSet};

use policy::pattern::Pattern;
use process_info::procfs::unescape;

use super::Error;

/// Types of file systems with a fixed place, regardless of their mount points (`view_of` in the programs).
const VIEWS: [&str; 8] = [
    "bpf",
    "cgroup",
    "cgroup2",
    "debugfs",
    "proc",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// The mounts of a process, without views.
#[derive(Debug)]
pub(super) struct MountTable {
    of_devices: BTreeMap<u32, String>,
    /// Mounts other than the places.
    others: BTreeSet<Mount>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mount {
    pub(super) device: u32,
    /// Path within the file system; empty for its root.
    pub(super) root: String,
    /// Mount point; empty for `/`.
    pub(super) place: String,
}

impl MountTable {
    /// Parses the text of /proc/PID/mountinfo.
    pub(super) fn new(mounts: &str) -> Self {
        let mounts: BTreeSet<Mount> = mounts.lines().filter_map(Mount::read).collect();
        let mut of_devices: BTreeMap<u32, String> = BTreeMap::new();
        for mount in mounts.iter().filter(|mount| mount.root.is_empty()) {
            let known = of_devices.entry(mount.device);
            let known = known.or_insert_with(|| mount.place.clone());
            if mount.place.len() < known.len() {
                known.clone_from(&mount.place);
            }
        }
        for mount in &mounts {
            let known = of_devices.entry(mount.device);
            known.or_insert_with(|| {
                // For a file that really has this name, the rules on files below the mounts apply.
                format!("/device-{}:{}", mount.device >> 20, mount.device & 0xf_ffff)
            });
        }
        let is_place =
            |mount: &Mount| mount.root.is_empty() && of_devices[&mount.device] == mount.place;
        let others = mounts.into_iter().filter(|mount| !is_place(mount));
        Self {
            others: others.collect(),
            of_devices,
        }
    }

    /// The place of each device.
    pub(super) fn of_devices(&self) -> impl Iterator<Item = (u32, &str)> {
        let each = self.of_devices.iter();
        each.map(|(device, place)| (*device, place.as_str()))
    }

    /// The meanings of a pattern as paths below the places of the file systems.
    ///
    /// # Errors
    /// Fails if such a path cannot be expressed.
    pub(super) fn aliases(&self, pattern: &Pattern) -> Result<Vec<Pattern>, Error> {
        let mut aliases = BTreeSet::new();
        for mount in &self.others {
            let folder = format!("{}{}", self.of_devices[&mount.device], mount.root);
            let whole = |text: &str| if text.is_empty() { "/" } else { text }.to_owned();
            if pattern.matches(&whole(&mount.place)) && !pattern.matches(&whole(&folder)) {
                aliases.insert(whole(&folder));
            }
            for rest in pattern.below(&mount.place) {
                let alias = format!("{folder}/{rest}");
                // `/**/x` matches paths below the place as well.
                if pattern.text() != format!("/{rest}") || !rest.starts_with("**") {
                    aliases.insert(alias);
                }
            }
        }
        let parsed = aliases.iter().map(|text| {
            Pattern::parse(text).map_err(|_problem| Error::Unknown {
                what: "path of a mount",
                name: text.clone(),
            })
        });
        parsed.collect()
    }
}

impl Mount {
    /// Parses a line of proc_pid_mountinfo(5).
    pub(super) fn read(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, _, device, root, place, ..] = words[..] else {
            return None;
        };
        let end = words.iter().position(|word| *word == "-")?;
        let (major, minor) = device.split_once(':')?;
        // The root of a mounted namespace is not a path.
        if !root.starts_with('/') || VIEWS.contains(words.get(end + 1)?) {
            return None;
        }
        let root = root.strip_suffix("//deleted").unwrap_or(root);
        Some(Self {
            device: major.parse::<u32>().ok()? << 20 | minor.parse::<u32>().ok()?,
            root: unescaped(root.trim_end_matches('/')),
            place: unescaped(place.trim_end_matches('/')),
        })
    }
}

/// Undoes escapes. Patterns are text, and so match no name that is not UTF-8.
fn unescaped(text: &str) -> String {
    String::from_utf8_lossy(&unescape(text.as_bytes())).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aliases(mounts: &str, pattern: &str) -> Vec<String> {
        let pattern = Pattern::parse(pattern).unwrap();
        let aliases = MountTable::new(mounts).aliases(&pattern).unwrap();
        aliases.iter().map(ToString::to_string).collect()
    }

    const ROOT: &str = "1 0 8:1 / / rw - ext4 a rw\n";

    #[test]
    fn a_file_system_that_is_mounted_in_part_has_a_place_that_no_mount_has() {
        let mounts = format!("{ROOT}2 1 0:6 /sub /y rw - tmpfs t rw\n");
        let places = MountTable::new(&mounts);
        let found: Vec<_> = places.of_devices().collect();
        assert_eq!(found, [(6, "/device-0:6"), (8 << 20 | 1, "")]);
        assert_eq!(aliases(&mounts, "/y/shadow"), ["/device-0:6/sub/shadow"]);
        assert_eq!(aliases(&mounts, "/y/**"), ["/device-0:6/sub/**"]);
        assert_eq!(aliases(&mounts, "/y"), ["/device-0:6/sub"]);
        assert_eq!(aliases(&mounts, "/etc/shadow"), [""; 0]);
        assert_eq!(aliases(&mounts, "/**/shadow"), [""; 0]);
        assert_eq!(aliases(&mounts, "/**"), [""; 0]);
    }

    #[test]
    fn subvolumes_and_second_mounts_have_their_files_below_the_place() {
        let subvolumes = "1 0 0:20 /@ / rw - btrfs a rw\n2 1 0:20 /@home /home rw - btrfs a rw\n";
        assert_eq!(
            aliases(subvolumes, "/etc/shadow"),
            ["/device-0:20/@/etc/shadow"]
        );
        assert_eq!(
            aliases(subvolumes, "/home/*/.ssh/**"),
            [
                "/device-0:20/@/home/*/.ssh/**",
                "/device-0:20/@home/*/.ssh/**"
            ]
        );
        let twice =
            format!("{ROOT}2 1 8:1 / /mnt rw - ext4 a rw\n3 1 8:1 /var/v /data rw - ext4 a rw\n");
        assert_eq!(aliases(&twice, "/mnt/etc/shadow"), ["/etc/shadow"]);
        assert_eq!(aliases(&twice, "/data/key"), ["/var/v/key"]);
    }

    #[test]
    fn one_file_that_is_mounted_is_known_by_its_own_path() {
        let mounts = format!("{ROOT}2 1 8:1 /c/1/hosts /etc/hosts rw - ext4 a rw\n");
        assert_eq!(aliases(&mounts, "/etc/hosts"), ["/c/1/hosts"]);
        assert_eq!(aliases(&mounts, "/**/hosts"), [""; 0]);
        let keys = format!("{ROOT}2 1 8:1 /keys /srv/a/.ssh rw - ext4 a rw\n");
        assert_eq!(aliases(&keys, "/**/.ssh/**"), ["/keys/**"]);
    }

    #[test]
    fn what_is_no_folder_or_has_a_view_has_no_place() {
        let mounts = "1 0 0:4 net:[1] /run/netns/a rw - nsfs n rw\n2 0 0:5 /sys /x rw - proc p rw\n\
                      3 0 0:6 /gone//deleted /a\\040b rw shared:1 - tmpfs t rw\n";
        let places = MountTable::new(mounts);
        assert_eq!(places.of_devices().count(), 1);
        assert_eq!(aliases(mounts, "/a b/c"), ["/device-0:6/gone/c"]);
    }

    #[test]
    fn a_path_that_cannot_be_told_is_an_error() {
        let mounts = "1 0 0:6 /a\\012b /y rw - tmpfs t rw\n";
        let pattern = Pattern::parse("/y/c").unwrap();
        assert!(MountTable::new(mounts).aliases(&pattern).is_err());
    }
}
