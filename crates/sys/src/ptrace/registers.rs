//! General registers of a stopped thread: what differs between architectures when a call is skipped, made again or made
//! in another's place.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::{Registers, registers, set_registers, skip_call};
#[cfg(target_arch = "x86_64")]
pub use x86_64::{Registers, registers, set_registers, skip_call};

/// `-ERESTARTSYS` to `-ERESTART_RESTARTBLOCK`: results of calls that the kernel makes again, which never reach user
/// code.
pub const RESTART_CODES: std::ops::RangeInclusive<i64> = -516..=-512;
/// `-ERESTARTNOINTR`: the kernel makes the call again whatever handlers run in between.
const RESTART_ALWAYS: i64 = -513;
#[cfg(target_arch = "aarch64")]
const GETREGSET: u32 = 0x4204;
const SETREGSET: u32 = 0x4205;
const NT_PRSTATUS: usize = 1;

impl Registers {
    /// Has a thread that stopped after a call ([`SyscallOp::Exit`](super::SyscallOp::Exit)) make it again, whatever
    /// handlers run in between.
    pub fn restart_returned_call(&mut self) {
        self.set_result(RESTART_ALWAYS);
    }
}

/// Reads a register set of a stopped thread into `set`. Returns its size in bytes, at most that of `set`.
#[cfg(target_arch = "aarch64")]
fn read_set<T: Copy>(tid: i32, kind: usize, set: &mut T) -> crate::Result<usize> {
    let mut area = libc::iovec {
        iov_base: std::ptr::from_mut(set).cast(),
        iov_len: size_of::<T>(),
    };
    // SAFETY: `area` describes all of `set`, plain data that the kernel fills up to that length.
    unsafe {
        syscall!(
            "ptrace(GETREGSET)",
            libc::SYS_ptrace,
            GETREGSET,
            tid,
            kind,
            &raw mut area
        )
    }?;
    Ok(area.iov_len)
}

/// Writes a register set of a stopped thread.
fn write_set<T: Copy>(tid: i32, kind: usize, set: &T) -> crate::Result<()> {
    let mut area = libc::iovec {
        iov_base: std::ptr::from_ref(set).cast_mut().cast(),
        iov_len: size_of::<T>(),
    };
    // SAFETY: `area` describes all of `set`, which this request only reads.
    unsafe {
        syscall!(
            "ptrace(SETREGSET)",
            libc::SYS_ptrace,
            SETREGSET,
            tid,
            kind,
            &raw mut area
        )
    }?;
    Ok(())
}
