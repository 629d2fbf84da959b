//! Loading seccomp filters.

use std::os::fd::OwnedFd;

use crate::error::Result;
use crate::kernel::own;

/// One classic BPF instruction, `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SockFilter {
    /// Operation: a sum of `BPF_*` constants.
    pub code: u16,
    /// Number of instructions to skip if the test of a jump holds.
    pub jt: u8,
    /// Number of instructions to skip if it does not hold.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

impl SockFilter {
    /// Creates an instruction that does not branch.
    #[must_use]
    pub const fn stmt(code: u16, k: u32) -> Self {
        Self {
            code,
            jt: 0,
            jf: 0,
            k,
        }
    }

    /// Creates a conditional jump.
    #[must_use]
    pub const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Self {
        Self { code, jt, jf, k }
    }
}

/// Class: load into the accumulator.
pub const BPF_LD: u16 = 0x00;
/// Class: load into the index register.
pub const BPF_LDX: u16 = 0x01;
/// Class: store the accumulator.
pub const BPF_ST: u16 = 0x02;
/// Class: store the index register.
pub const BPF_STX: u16 = 0x03;
/// Class: arithmetic.
pub const BPF_ALU: u16 = 0x04;
/// Class: jump.
pub const BPF_JMP: u16 = 0x05;
/// Class: return.
pub const BPF_RET: u16 = 0x06;
/// Class: register transfer.
pub const BPF_MISC: u16 = 0x07;
/// Size: 32 bits.
pub const BPF_W: u16 = 0x00;
/// Mode: an offset into `struct seccomp_data`.
pub const BPF_ABS: u16 = 0x20;
/// Mode: the operand itself.
pub const BPF_IMM: u16 = 0x00;
/// Mode: scratch memory.
pub const BPF_MEM: u16 = 0x60;
/// Operand is `k`.
pub const BPF_K: u16 = 0x00;
/// Operand is the index register.
pub const BPF_X: u16 = 0x08;
/// Return the accumulator.
pub const BPF_A: u16 = 0x10;
/// Jump always, by `k`.
pub const BPF_JA: u16 = 0x00;
/// Jump if equal.
pub const BPF_JEQ: u16 = 0x10;
/// Jump if greater, unsigned.
pub const BPF_JGT: u16 = 0x20;
/// Jump if greater or equal, unsigned.
pub const BPF_JGE: u16 = 0x30;
/// Jump if any bit is set.
pub const BPF_JSET: u16 = 0x40;
/// Arithmetic and.
pub const BPF_AND: u16 = 0x50;
/// Arithmetic or.
pub const BPF_OR: u16 = 0x40;
/// Arithmetic addition.
pub const BPF_ADD: u16 = 0x00;
/// Arithmetic subtraction.
pub const BPF_SUB: u16 = 0x10;
/// Shift right.
pub const BPF_RSH: u16 = 0x70;
/// Shift left.
pub const BPF_LSH: u16 = 0x60;

/// Maximum number of instructions that the kernel accepts.
pub const BPF_MAXINSNS: usize = 4096;

/// Action: end the process.
pub const SECCOMP_RET_KILL_PROCESS: u32 = 0x8000_0000;
/// Action: end the thread.
pub const SECCOMP_RET_KILL_THREAD: u32 = 0x0000_0000;
/// Action: send SIGSYS.
pub const SECCOMP_RET_TRAP: u32 = 0x0003_0000;
/// Action: fail with the error number in the low 16 bits.
pub const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
/// Action: notify the listener.
pub const SECCOMP_RET_USER_NOTIF: u32 = 0x7fc0_0000;
/// Action: stop for the tracer.
pub const SECCOMP_RET_TRACE: u32 = 0x7ff0_0000;
/// Action: allow and log.
pub const SECCOMP_RET_LOG: u32 = 0x7ffc_0000;
/// Action: allow.
pub const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;
/// Mask of the action's data in a return value.
pub const SECCOMP_RET_DATA: u32 = 0x0000_ffff;

/// Offset of the call number in `struct seccomp_data`.
pub const DATA_NR: u32 = 0;
/// Offset of the audit architecture.
pub const DATA_ARCH: u32 = 4;
/// Offset of the low half of the instruction pointer (little endian).
pub const DATA_IP_LOW: u32 = 8;

/// Offset of the low half of argument `index`, 0 to 5 (little endian).
#[must_use]
pub const fn data_arg_low(index: u8) -> u32 {
    16 + 8 * index as u32
}

/// Offset of the high half of argument `index`, 0 to 5 (little endian).
#[must_use]
pub const fn data_arg_high(index: u8) -> u32 {
    data_arg_low(index) + 4
}

/// Flags of [`install_filter`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FilterFlags(pub u32);

impl FilterFlags {
    /// Apply to every thread of the process.
    pub const TSYNC: Self = Self(1);
    /// Log actions other than allow.
    pub const LOG: Self = Self(1 << 1);
    /// Leave speculative store bypass on.
    pub const SPEC_ALLOW: Self = Self(1 << 2);
    /// Return a listener for `USER_NOTIF`. Linux 5.0.
    pub const NEW_LISTENER: Self = Self(1 << 3);
    /// With [`Self::TSYNC`] and a listener: report a failing thread as ESRCH. Linux 5.7.
    pub const TSYNC_ESRCH: Self = Self(1 << 4);
    /// After a notification was received, only a fatal signal interrupts the caller. Linux 5.19.
    pub const WAIT_KILLABLE_RECV: Self = Self(1 << 5);

    /// The union of both sets of flags.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for FilterFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

/// Sets `no_new_privs` for this thread and its children: exec no longer gains privileges. Irrevocable.
///
/// # Errors
/// None are known on kernels since 3.5.
pub fn set_no_new_privs() -> Result<()> {
    crate::prctl::scalar(
        "prctl(SET_NO_NEW_PRIVS)",
        libc::PR_SET_NO_NEW_PRIVS,
        [1, 0, 0, 0],
    )?;
    Ok(())
}

const SET_MODE_FILTER: u32 = 1;
const GET_ACTION_AVAIL: u32 = 2;
const GET_NOTIF_SIZES: u32 = 3;

#[repr(C)]
struct SockFprog {
    len: u16,
    filter: *const SockFilter,
}

/// Loads a filter for the calling thread; returns the listener if `NEW_LISTENER` is set.
///
/// Allocates nothing, so that it may be called between clone and exec.
///
/// # Kernel
/// Needs `set_no_new_privs` or CAP_SYS_ADMIN in the user namespace.
///
/// # Errors
/// EACCES without no_new_privs, EBUSY if a filter of this thread already has a listener, EINVAL for a bad
/// program, a program of more than [`BPF_MAXINSNS`] instructions or an unknown flag.
pub fn install_filter(program: &[SockFilter], flags: FilterFlags) -> Result<Option<OwnedFd>> {
    let Ok(len) = u16::try_from(program.len()) else {
        return Err(crate::SyscallError::new(
            "seccomp(SET_MODE_FILTER)",
            libc::EINVAL,
        ));
    };
    let prog = SockFprog {
        len,
        filter: program.as_ptr(),
    };
    // SAFETY: `prog` and the `len` instructions it points to outlive the call, which copies them.
    let result = unsafe { set_mode_filter(flags, &raw const prog) }?;
    if !flags.contains(FilterFlags::NEW_LISTENER) {
        // With TSYNC alone a positive result is the thread that could not be synchronised.
        return if result == 0 {
            Ok(None)
        } else {
            Err(crate::SyscallError::new(
                "seccomp(SET_MODE_FILTER, TSYNC)",
                libc::ESRCH,
            ))
        };
    }
    // SAFETY: with NEW_LISTENER the result is a new descriptor of this process.
    Ok(Some(unsafe { own(result) }))
}

/// Makes seccomp(2) with `SECCOMP_SET_MODE_FILTER`.
///
/// # Safety
/// `prog` is null, or it and the instructions that it points to may be read.
unsafe fn set_mode_filter(flags: FilterFlags, prog: *const SockFprog) -> Result<usize> {
    // SAFETY: the caller answers for `prog`; the other arguments are numbers.
    unsafe {
        syscall!(
            "seccomp(SET_MODE_FILTER)",
            libc::SYS_seccomp,
            SET_MODE_FILTER,
            flags.0,
            prog
        )
    }
}

/// Returns true if the kernel supports these flags. Loads no filter.
#[must_use]
pub fn flags_available(flags: FilterFlags) -> bool {
    // SAFETY: the kernel looks at the flags first and then fails to read a filter at null.
    let result = unsafe { set_mode_filter(flags, std::ptr::null()) };
    result.is_err_and(|error| error.is(libc::EFAULT))
}

/// Returns true if the kernel supports an action such as [`SECCOMP_RET_USER_NOTIF`].
///
/// # Errors
/// ENOSYS on a kernel without seccomp filters.
pub fn action_available(action: u32) -> Result<bool> {
    // SAFETY: the kernel reads four bytes behind the pointer, which outlives the call.
    let result = unsafe {
        syscall!(
            "seccomp(GET_ACTION_AVAIL)",
            libc::SYS_seccomp,
            GET_ACTION_AVAIL,
            0_u32,
            &raw const action
        )
    };
    match result {
        Ok(_) => Ok(true),
        Err(error) if error.is(libc::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sizes of the kernel's notification structures.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NotifSizes {
    /// `struct seccomp_notif`.
    pub notification: u16,
    /// `struct seccomp_notif_resp`.
    pub response: u16,
    /// `struct seccomp_data`.
    pub data: u16,
}

/// Returns the sizes of the kernel's notification structures.
///
/// # Kernel
/// 5.0.
///
/// # Errors
/// EINVAL on an older kernel.
pub fn notif_sizes() -> Result<NotifSizes> {
    let mut sizes = NotifSizes::default();
    // SAFETY: the kernel writes three 16-bit numbers, the whole of `sizes`.
    unsafe {
        syscall!(
            "seccomp(GET_NOTIF_SIZES)",
            libc::SYS_seccomp,
            GET_NOTIF_SIZES,
            0_u32,
            &raw mut sizes
        )
    }?;
    Ok(sizes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn layout_is_the_kernels() {
        assert_eq!(size_of::<SockFilter>(), size_of::<libc::sock_filter>());
        assert_eq!(size_of::<SockFprog>(), size_of::<libc::sock_fprog>());
        let sizes = notif_sizes().expect("this kernel has user notification");
        assert_eq!(
            usize::from(sizes.notification),
            size_of::<crate::notify::Notification>()
        );
        assert_eq!((sizes.response, sizes.data), (24, 64));
    }

    #[test]
    fn known_actions_are_available_and_others_not() {
        assert_eq!(action_available(SECCOMP_RET_ALLOW), Ok(true));
        assert_eq!(action_available(SECCOMP_RET_USER_NOTIF), Ok(true));
        assert_eq!(action_available(0x1234_0000), Ok(false));
    }

    #[test]
    fn an_errno_filter_denies_one_call_and_leaves_the_rest() {
        let program = testing::filter_for(libc::SYS_getppid, SECCOMP_RET_ERRNO | 77);
        let status = testing::in_child(|| {
            set_no_new_privs().map_err(|e| e.errno())?;
            let listener = install_filter(&program, FilterFlags::default());
            if listener.map_err(|e| e.errno())?.is_some() {
                return Err(1);
            }
            let denied = crate::syscall::getppid_raw();
            let allowed = crate::syscall::getpid();
            if denied == -77 && allowed > 0 {
                Ok(())
            } else {
                Err(2)
            }
        });
        assert_eq!(status, Ok(()));
    }

    #[test]
    fn bad_programs_are_refused() {
        let status = testing::in_child(|| {
            set_no_new_privs().map_err(|e| e.errno())?;
            match install_filter(&[], FilterFlags::default()) {
                Err(error) if error.is(libc::EINVAL) => Ok(()),
                _ => Err(1),
            }
        });
        assert_eq!(status, Ok(()));
        let long = vec![SockFilter::stmt(BPF_RET, SECCOMP_RET_ALLOW); 70_000];
        let refused = install_filter(&long, FilterFlags::default());
        assert!(refused.is_err_and(|e| e.is(libc::EINVAL)));
    }
}
