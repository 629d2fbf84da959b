//! Write permission of a process on its own executable (Falco's `proc.is_exe_writable`).

use abi::Capabilities;
use abi::constant::{CAP_DAC_OVERRIDE, CAP_FOWNER};
use rustix::fs::{Statx, StatxAttributes};

use process_info::procfs::{Proc, ThreadStatus};

/// Applies the kernel's permission check without access control lists; the owner counts as writer because it
/// may change the mode. Unreadable credentials count as those of a writer, so that a rule that asks does not
/// miss the danger.
pub(super) fn is_writable(proc: &Proc, pid: i32, file: &Statx, read_only: bool) -> bool {
    if read_only || file.stx_attributes.contains(StatxAttributes::IMMUTABLE) {
        return false;
    }
    let Ok(status) = proc.status(pid) else {
        return true;
    };
    let own = Capabilities(status.status.cap_effective);
    permits(file, &status, |gid| has_group(proc, pid, gid))
        || ((own.contains(CAP_DAC_OVERRIDE.u8()) || own.contains(CAP_FOWNER.u8()))
            && is_mapped(proc, pid, "uid_map", file.stx_uid))
}

fn permits(file: &Statx, status: &ThreadStatus, has_group: impl Fn(u32) -> bool) -> bool {
    let (uid, gid, mode) = (file.stx_uid, file.stx_gid, u32::from(file.stx_mode));
    if status.fs_uid == uid {
        return true;
    }
    // The group's bits decide for its members even where others have more rights.
    if status.fs_gid == gid || (mode & 0o020 != mode & 0o002 && has_group(gid)) {
        return mode & 0o020 != 0;
    }
    mode & 0o002 != 0
}

fn has_group(proc: &Proc, pid: i32, gid: u32) -> bool {
    let Ok((text, _)) = proc.read_all(pid, "status", 1024 * 1024) else {
        return false;
    };
    let wanted = gid.to_string();
    text.split(|byte| *byte == b'\n')
        .find_map(|line| line.strip_prefix(b"Groups:"))
        .is_some_and(|groups| {
            groups
                .split(u8::is_ascii_whitespace)
                .any(|group| group == wanted.as_bytes())
        })
}

/// Returns whether a user or group, as the agent sees it, is mapped in the user namespace of a process, of
/// which `map` is the `uid_map` or `gid_map`. Capabilities there reach only files whose owner is mapped, and
/// set-user-ID bits of others have no effect.
pub fn is_mapped(proc: &Proc, pid: i32, map: &'static str, id: u32) -> bool {
    let Ok((text, _)) = proc.read_all(pid, map, 64 * 1024) else {
        return true;
    };
    String::from_utf8_lossy(&text).lines().any(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(_)), Some(Ok(outer)), Some(Ok(count))) => {
                (outer..outer.saturating_add(count)).contains(&u64::from(id))
            }
            _ => false,
        }
    })
}
