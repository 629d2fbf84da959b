//! System calls by number, and the cheap calls that generated workloads repeat.

use crate::kernel::number;

/// Makes call `nr` and returns the kernel's raw result: an error is returned as its negative number.
///
/// # Safety
/// Addresses must be valid for what the call does with them, and the call must not remove memory, descriptors
/// or threads that this program uses.
#[must_use]
pub unsafe fn raw(nr: i64, args: [u64; 6]) -> i64 {
    // SAFETY: passed on to the caller.
    let result = unsafe { crate::kernel::call("syscall", nr, args.map(|arg| arg as usize)) };
    match result {
        Ok(value) => value.cast_signed() as i64,
        Err(error) => -i64::from(error.errno()),
    }
}

/// Returns true if a 64-bit program can make calls by the 32-bit convention, with `int 0x80`: a child process
/// makes one. A kernel without the convention, or with `ia32_emulation=off`, ends the child by SIGSEGV.
///
/// # Errors
/// EAGAIN, ENOMEM if no child can be created.
#[cfg(target_arch = "x86_64")]
pub fn has_int80() -> crate::Result<bool> {
    use crate::clone::{CloneFlags, clone_child_unchecked};
    use crate::wait::{ALL, Status, Target, wait};
    const GETPID: u64 = 20;
    const SET_DUMPABLE: i32 = 4;
    let child = || {
        // SAFETY: the request takes no address; a child that is not dumpable leaves no core file.
        let undumpable = unsafe { syscall!("prctl", libc::SYS_prctl, SET_DUMPABLE, 0, 0, 0, 0) };
        if undumpable.is_err() {
            return 2;
        }
        let result: u64;
        // SAFETY: the call takes no argument and changes nothing. The kernel keeps all registers but rax
        // and, in some versions, r8 to r11; the stack is not touched.
        unsafe {
            std::arch::asm!(
                "int 0x80",
                inlateout("rax") GETPID => result,
                out("r8") _, out("r9") _, out("r10") _, out("r11") _,
                options(nostack)
            );
        }
        i32::from(result.cast_signed() <= 0)
    };
    // SAFETY: the child makes two calls and ends; it neither allocates nor takes a lock.
    let pid = unsafe { clone_child_unchecked(CloneFlags::default(), child) }?;
    loop {
        match wait(Target::Pid(pid), ALL) {
            Ok(Some((_, Status::Signaled { signal, .. }))) => {
                return Ok(signal != libc::SIGSEGV);
            }
            Ok(Some((_, Status::Exited(code)))) => return Ok(code != 1),
            Ok(_) => {}
            Err(error) if error.is(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Returns true if programs can make calls by the x32 convention.
#[cfg(target_arch = "x86_64")]
#[must_use]
pub fn has_x32() -> bool {
    const GETPID: i64 = 0x4000_0000 + 39;
    // SAFETY: the call takes no argument and changes nothing.
    unsafe { raw(GETPID, [0; 6]) > 0 }
}

/// Calls without an effect on anything this program relies on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Harmless {
    /// Closes descriptor -1, which fails with EBADF after a full trip into the kernel.
    CloseInvalid,
    /// `getgid`.
    Getgid,
    /// `getpid`.
    Getpid,
    /// `getppid`.
    Getppid,
    /// `gettid`.
    Gettid,
    /// `gettimeofday` by a system call: the C library's makes none.
    Gettimeofday,
    /// `getuid`.
    Getuid,
    /// `sched_yield`.
    SchedYield,
    /// `times`.
    Times,
    /// `umask` with this mask (the low 9 bits); changes the mode of files that are created later.
    Umask(u16),
}

/// Makes a harmless call and returns the kernel's raw result.
#[inline]
pub fn harmless(call: Harmless) -> i64 {
    // `struct timeval` has two words, `struct tms` four.
    let mut room = [0_i64; 4];
    let (nr, arg) = match call {
        Harmless::CloseInvalid => (libc::SYS_close, u64::MAX),
        Harmless::Getgid => (libc::SYS_getgid, 0),
        Harmless::Getpid => (libc::SYS_getpid, 0),
        Harmless::Getppid => (libc::SYS_getppid, 0),
        Harmless::Gettid => (libc::SYS_gettid, 0),
        Harmless::Gettimeofday => (libc::SYS_gettimeofday, room.as_mut_ptr() as u64),
        Harmless::Getuid => (libc::SYS_getuid, 0),
        Harmless::SchedYield => (libc::SYS_sched_yield, 0),
        Harmless::Times => (libc::SYS_times, room.as_mut_ptr() as u64),
        Harmless::Umask(mask) => (libc::SYS_umask, u64::from(mask & 0o777)),
    };
    // SAFETY: the one address that two of them take is that of room enough, and -1 is nobody's
    // descriptor.
    unsafe { raw(nr, [arg, 0, 0, 0, 0, 0]) }
}

/// Pid of this process.
#[must_use]
pub fn getpid() -> i32 {
    number(harmless(Harmless::Getpid) as usize)
}

/// Tid of this thread.
#[must_use]
pub fn gettid() -> i32 {
    number(harmless(Harmless::Gettid) as usize)
}

/// Pid of the parent process; 0 if it is outside of this pid namespace.
#[must_use]
pub fn getppid() -> i32 {
    number(getppid_raw() as usize)
}

/// `getppid` with the kernel's raw result, which a filter may have replaced by an error.
pub fn getppid_raw() -> i64 {
    harmless(Harmless::Getppid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_kernels() {
        assert_eq!(getpid().cast_unsigned(), std::process::id());
        assert_eq!(getppid(), std::os::unix::process::parent_id().cast_signed());
        assert_eq!(harmless(Harmless::CloseInvalid), -i64::from(libc::EBADF));
        assert_eq!(harmless(Harmless::SchedYield), 0);
        assert_eq!(harmless(Harmless::Gettimeofday), 0);
        assert!(harmless(Harmless::Times) > 0);
        let done = crate::testing::in_child(|| {
            harmless(Harmless::Umask(0o77));
            if harmless(Harmless::Umask(0o22)) == 0o77 {
                Ok(())
            } else {
                Err(200)
            }
        });
        assert_eq!(done, Ok(()));
        // SAFETY: no such call exists, so nothing happens.
        assert_eq!(unsafe { raw(100_000, [0; 6]) }, -i64::from(libc::ENOSYS));
    }
}
