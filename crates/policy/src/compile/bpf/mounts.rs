//! Raw rules on mounts, and the flags of mount(2).

use super::{CompiledPart, Entry, Key};
use crate::restriction::MountMatch;

/// Lowers a rule on mounts.
pub(super) fn lower(mount: &MountMatch, entry: impl Fn(Key) -> Entry) -> CompiledPart<Entry> {
    if let Some(flag) = unknown_flag(mount) {
        return CompiledPart::missing(format!(
            "mounts cannot be distinguished by the flag `{flag}`"
        ));
    }
    let lowered = CompiledPart::one(entry(Key::Mount(mount.clone())));
    match has_unhooked_flag(mount) {
        false => lowered,
        true => lowered
            .gap("mount_setattr(2) and fsmount(2) set flags of mounts without a hook")
            .breaks("move_mount(2) of mounts whose flags no hook shows"),
    }
}

/// A flag of mount(2) by its name in raw rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountFlag {
    /// The name.
    pub name: &'static str,
    /// The bit; `rbind` and `make-rprivate` have those of `bind` and `make-private`.
    pub bit: u32,
    /// Set if the flag means a mount without the bit, such as `rw`.
    pub is_unset: bool,
}

const fn set(name: &'static str, bit: u8) -> MountFlag {
    MountFlag {
        name,
        bit: 1 << bit,
        is_unset: false,
    }
}

const fn unset(name: &'static str, bit: u8) -> MountFlag {
    MountFlag {
        is_unset: true,
        ..set(name, bit)
    }
}

/// The flags of mount(2) that distinguish mounts (include/uapi/linux/mount.h).
pub const MOUNT_FLAGS: [MountFlag; 38] = [
    set("ro", 0),
    unset("rw", 0),
    set("nosuid", 1),
    unset("suid", 1),
    set("nodev", 2),
    unset("dev", 2),
    set("noexec", 3),
    unset("exec", 3),
    set("sync", 4),
    unset("async", 4),
    set("remount", 5),
    set("mand", 6),
    unset("nomand", 6),
    set("dirsync", 7),
    set("noatime", 10),
    unset("atime", 10),
    set("nodiratime", 11),
    unset("diratime", 11),
    set("bind", 12),
    set("rbind", 12),
    set("move", 13),
    set("silent", 15),
    set("verbose", 15),
    unset("loud", 15),
    set("unbindable", 17),
    set("runbindable", 17),
    set("private", 18),
    set("rprivate", 18),
    set("slave", 19),
    set("rslave", 19),
    set("shared", 20),
    set("rshared", 20),
    set("relatime", 21),
    unset("norelatime", 21),
    set("iversion", 23),
    unset("noiversion", 23),
    set("strictatime", 24),
    unset("nostrictatime", 24),
];

/// The flags whose operation passes a hook however it is asked for.
const HOOKED_FLAGS: [&str; 5] = ["bind", "rbind", "move", "remount", "umount"];

/// Returns true if a raw rule is about a flag that a new mount can have without the hooks seeing it.
fn has_unhooked_flag(mount: &MountMatch) -> bool {
    let MountMatch::Raw { flags, .. } = mount else {
        return false;
    };
    flags
        .iter()
        .any(|flag| !HOOKED_FLAGS.contains(&flag.as_str()))
}

/// A flag of a raw rule that is neither in [`MOUNT_FLAGS`] nor about unmounting.
fn unknown_flag(mount: &MountMatch) -> Option<&str> {
    let MountMatch::Raw { flags, .. } = mount else {
        return None;
    };
    let is_known =
        |flag: &str| flag == "umount" || MOUNT_FLAGS.iter().any(|known| known.name == flag);
    let mut flags = flags.iter().map(String::as_str);
    flags.find(|flag| !is_known(flag))
}
