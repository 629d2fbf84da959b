//! The single place that enters the kernel by number.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::c_long;

use crate::error::{Result, SyscallError};

/// A value in the form in which the kernel takes it in a register.
pub(crate) trait RegisterValue {
    fn word(self) -> usize;
}

impl RegisterValue for i32 {
    fn word(self) -> usize {
        // Sign extension, as a C compiler does for an int in a 64-bit register.
        self as isize as usize
    }
}

impl RegisterValue for u32 {
    fn word(self) -> usize {
        self as usize
    }
}

impl RegisterValue for u64 {
    fn word(self) -> usize {
        self as usize
    }
}

impl RegisterValue for usize {
    fn word(self) -> usize {
        self
    }
}

impl<T> RegisterValue for *const T {
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> RegisterValue for *mut T {
    fn word(self) -> usize {
        self as usize
    }
}

impl RegisterValue for BorrowedFd<'_> {
    fn word(self) -> usize {
        self.as_raw_fd().word()
    }
}

impl RegisterValue for &CStr {
    fn word(self) -> usize {
        self.as_ptr().word()
    }
}

impl RegisterValue for Option<BorrowedFd<'_>> {
    fn word(self) -> usize {
        self.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd()).word()
    }
}

impl RegisterValue for Option<&CStr> {
    fn word(self) -> usize {
        self.map_or(std::ptr::null(), CStr::as_ptr).word()
    }
}

pub(crate) fn words<const N: usize>(given: [usize; N]) -> [usize; 6] {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&given);
    all
}

/// Makes a call and turns the error convention of the C library into a `Result`.
///
/// # Safety
/// Every argument that the call takes as an address must be valid for what the call does with it, and the
/// call must not break an invariant of this process (unmapping live memory, closing an owned descriptor).
pub(crate) unsafe fn call(name: &'static str, nr: c_long, args: [usize; 6]) -> Result<usize> {
    if let Some(errno) = crate::features::refusal(nr, &args) {
        return Err(SyscallError::new(name, errno));
    }
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller vouches for the arguments; `syscall` itself passes six words on.
    let result = unsafe { libc::syscall(nr, a, b, c, d, e, f) };
    if result == -1 {
        Err(SyscallError::last(name))
    } else {
        Ok(result as usize)
    }
}

/// Makes a call: `syscall!("name", NR, arg...)`. Must stand alone in an unsafe block with its reasons.
macro_rules! syscall {
    ($name:expr, $nr:expr $(, $arg:expr)* $(,)?) => {
        $crate::kernel::call(
            $name,
            $nr,
            $crate::kernel::words([$($crate::kernel::RegisterValue::word($arg)),*]),
        )
    };
}

/// Converts a result to a descriptor or pid; the kernel never returns more than 31 bits for those.
pub(crate) fn number(result: usize) -> i32 {
    result as i32
}

/// Takes ownership of a descriptor that a call has just created.
///
/// # Safety
/// `result` is the descriptor returned by a call that creates one, and nothing else owns it.
pub(crate) unsafe fn own(result: usize) -> OwnedFd {
    // SAFETY: the caller vouches that this is a fresh descriptor.
    unsafe { OwnedFd::from_raw_fd(number(result)) }
}
