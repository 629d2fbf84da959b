//! User and group ids, and capabilities. Changes affect the calling thread only: the C library's method of
//! changing all threads is omitted on purpose, because it signals them.

use abi::Capabilities;

use crate::error::Result;

/// Real, effective and saved ids.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ids {
    /// Real id.
    pub real: u32,
    /// Effective id.
    pub effective: u32,
    /// Saved id.
    pub saved: u32,
}

/// Returns true if the kernel started this program with privileges that its caller lacks: by a setuid or setgid bit, or by
/// capabilities of the file (`AT_SECURE`, getauxval(3)). Its environment is the caller's and must not choose files.
#[must_use]
pub fn is_secure_execution() -> bool {
    // SAFETY: getauxval(3) takes a number and reads what the kernel wrote before the program began.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Number of the session of a process, by its number; 0 if the leader of the session is in no pid namespace that this process
/// sees. Security modules are asked, except about 0, which stands for this process (getsid(2)).
///
/// # Errors
/// What a security module answers; `ESRCH` without such a process.
pub fn session(process: u32) -> Result<i32> {
    // SAFETY: the argument is a number.
    let found = unsafe { syscall!("getsid", libc::SYS_getsid, process) }?;
    Ok(crate::kernel::number(found))
}

/// User ids of this thread.
///
/// # Errors
/// None are known.
pub fn users() -> Result<Ids> {
    let mut ids = Ids::default();
    // SAFETY: the kernel writes one 32-bit number through each pointer.
    unsafe {
        syscall!(
            "getresuid",
            libc::SYS_getresuid,
            &raw mut ids.real,
            &raw mut ids.effective,
            &raw mut ids.saved
        )
    }?;
    Ok(ids)
}

/// Group ids of this thread.
///
/// # Errors
/// None are known.
pub fn groups() -> Result<Ids> {
    let mut ids = Ids::default();
    // SAFETY: the kernel writes one 32-bit number through each pointer.
    unsafe {
        syscall!(
            "getresgid",
            libc::SYS_getresgid,
            &raw mut ids.real,
            &raw mut ids.effective,
            &raw mut ids.saved
        )
    }?;
    Ok(ids)
}

/// Changes the user ids of this thread; `u32::MAX` leaves one as it is.
///
/// # Errors
/// EPERM, EAGAIN over RLIMIT_NPROC.
pub fn set_users(ids: Ids) -> Result<()> {
    // SAFETY: all arguments are numbers.
    unsafe {
        syscall!(
            "setresuid",
            libc::SYS_setresuid,
            ids.real,
            ids.effective,
            ids.saved
        )
    }?;
    Ok(())
}

/// Changes the group ids of this thread; `u32::MAX` leaves one as it is.
///
/// # Errors
/// EPERM.
pub fn set_groups(ids: Ids) -> Result<()> {
    // SAFETY: all arguments are numbers.
    unsafe {
        syscall!(
            "setresgid",
            libc::SYS_setresgid,
            ids.real,
            ids.effective,
            ids.saved
        )
    }?;
    Ok(())
}

/// Changes the supplementary groups of this thread.
///
/// # Errors
/// EPERM, EINVAL for too many.
pub fn set_supplementary_groups(list: &[u32]) -> Result<()> {
    // SAFETY: the kernel reads `list.len()` numbers.
    unsafe { syscall!("setgroups", libc::SYS_setgroups, list.len(), list.as_ptr()) }?;
    Ok(())
}

/// The three capability sets of capget and capset.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CapabilitySets {
    /// Capabilities in effect now.
    pub effective: Capabilities,
    /// Capabilities that may be made effective.
    pub permitted: Capabilities,
    /// Capabilities that exec may keep.
    pub inheritable: Capabilities,
}

/// `_LINUX_CAPABILITY_VERSION_3`: two words per set.
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Capabilities of a thread; 0 for the calling one.
///
/// # Errors
/// ESRCH, EINVAL.
pub fn capabilities(tid: i32) -> Result<CapabilitySets> {
    let mut header = Header {
        version: VERSION_3,
        pid: tid,
    };
    let mut halves = [Half::default(); 2];
    // SAFETY: with version 3 the kernel writes two `Half`s; it may write back the header.
    unsafe {
        syscall!(
            "capget",
            libc::SYS_capget,
            &raw mut header,
            halves.as_mut_ptr()
        )
    }?;
    let [low, high] = halves;
    let join = |low: u32, high: u32| Capabilities(u64::from(high) << 32 | u64::from(low));
    Ok(CapabilitySets {
        effective: join(low.effective, high.effective),
        permitted: join(low.permitted, high.permitted),
        inheritable: join(low.inheritable, high.inheritable),
    })
}

/// Changes the capabilities of the calling thread.
///
/// # Errors
/// EPERM for capabilities that are not permitted.
pub fn set_capabilities(sets: CapabilitySets) -> Result<()> {
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let halves = halves(sets);
    // SAFETY: with version 3 the kernel reads two `Half`s; it may write back the header.
    unsafe { syscall!("capset", libc::SYS_capset, &raw mut header, halves.as_ptr()) }?;
    Ok(())
}

fn halves(sets: CapabilitySets) -> [Half; 2] {
    let half = |shift: u32| Half {
        effective: (sets.effective.0 >> shift) as u32,
        permitted: (sets.permitted.0 >> shift) as u32,
        inheritable: (sets.inheritable.0 >> shift) as u32,
    };
    [half(0), half(32)]
}

/// The arguments of capset(2) in memory, for a thread that is made to call it: the header, followed by the
/// sets.
#[must_use]
pub fn capset_arguments(sets: CapabilitySets) -> [u8; CAPSET_HEADER + 24] {
    let [low, high] = halves(sets);
    let words = [
        VERSION_3,
        0,
        low.effective,
        low.permitted,
        low.inheritable,
        high.effective,
        high.permitted,
        high.inheritable,
    ];
    let mut bytes = [0; CAPSET_HEADER + 24];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Offset of the sets in [`capset_arguments`].
pub const CAPSET_HEADER: usize = size_of::<Header>();

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn capset_is_given_what_it_reads() {
        let set = |value| Capabilities(value);
        let bytes = capset_arguments(CapabilitySets {
            effective: set(1),
            permitted: set(3),
            inheritable: set(1 << 32),
        });
        let words = bytes.chunks_exact(4);
        let words = words.map(|word| u32::from_ne_bytes(word.try_into().expect("four bytes")));
        assert_eq!(words.collect::<Vec<_>>(), [VERSION_3, 0, 1, 3, 0, 0, 0, 1]);
    }

    #[test]
    fn ids_and_capabilities_match_proc() {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            line.expect("the field exists")
                .split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let shown = |ids: Ids| [ids.real, ids.effective, ids.saved].map(|id| id.to_string());
        assert_eq!(field("Uid:")[..3], shown(users().expect("own ids")));
        assert_eq!(field("Gid:")[..3], shown(groups().expect("own ids")));
        let sets = capabilities(0).expect("own capabilities");
        assert_eq!(field("CapEff:"), [format!("{:016x}", sets.effective.0)]);
        assert_eq!(field("CapPrm:"), [format!("{:016x}", sets.permitted.0)]);
        assert_eq!(field("CapInh:"), [format!("{:016x}", sets.inheritable.0)]);
    }

    #[test]
    fn capabilities_once_dropped_stay_dropped() {
        let done = testing::in_child(|| {
            let mut sets = capabilities(0).map_err(|e| e.errno())?;
            let before = sets;
            sets.effective = Capabilities(0);
            sets.permitted = Capabilities(0);
            set_capabilities(sets).map_err(|e| e.errno())?;
            let again = set_capabilities(before);
            let now = capabilities(0).map_err(|e| e.errno())?;
            let refused = before.permitted.0 == 0 || again.is_err_and(|e| e.is(libc::EPERM));
            if refused && now.effective.0 == 0 {
                Ok(())
            } else {
                Err(200)
            }
        });
        assert_eq!(done, Ok(()));
    }

    #[test]
    fn root_can_become_another_user_and_not_back() {
        ::testing::need_root!();
        let done = testing::in_child(|| {
            let all = |id| Ids {
                real: id,
                effective: id,
                saved: id,
            };
            set_supplementary_groups(&[]).map_err(|e| e.errno())?;
            set_groups(all(65534)).map_err(|e| e.errno())?;
            set_users(all(65534)).map_err(|e| e.errno())?;
            let back = set_users(all(0));
            if back.is_err_and(|e| e.is(libc::EPERM)) {
                Ok(())
            } else {
                Err(200)
            }
        });
        assert_eq!(done, Ok(()));
    }
}
