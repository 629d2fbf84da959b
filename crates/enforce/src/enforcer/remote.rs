//! What a process that is held in its exec is made to do.

use abi::constant::{PR_CAP_AMBIENT, PR_CAPBSET_DROP, PR_CAPBSET_READ, PR_SET_NO_NEW_PRIVS};
use abi::{Errno, Syscall};
use capture::notify::Caller;

/// The error if a handed-over object is missing.
pub(super) fn missing(call: &'static str) -> sys::SyscallError {
    sys::SyscallError {
        call,
        errno: Errno::EBADF,
    }
}

/// A call of prctl(2) that another process is made to execute.
#[derive(Clone, Copy, Debug)]
pub(super) enum PrctlCall {
    ClearAmbient,
    DropBounding(u8),
    ReadBounding(u8),
    SetNoNewPrivs,
}

impl PrctlCall {
    pub(super) fn make(self, caller: &Caller) -> sys::Result<u64> {
        let (operation, argument) = match self {
            Self::ClearAmbient => (PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL),
            Self::DropBounding(number) => (PR_CAPBSET_DROP, u64::from(number)),
            Self::ReadBounding(number) => (PR_CAPBSET_READ, u64::from(number)),
            Self::SetNoNewPrivs => (PR_SET_NO_NEW_PRIVS, 1),
        };
        caller.call(Syscall::PRCTL, [operation.u64(), argument, 0, 0, 0, 0])
    }
}

pub(super) fn set_no_new_privs(caller: &Caller) -> sys::Result<()> {
    PrctlCall::SetNoNewPrivs.make(caller)?;
    Ok(())
}

const PR_CAP_AMBIENT_CLEAR_ALL: u64 = 4;
