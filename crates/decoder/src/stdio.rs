//! State of descriptors 0..2, so that plain `dup` need not be trapped.
//!
//! The stock rule on redirected standard streams asks for a `dup` of a socket whose result is 0, 1 or 2. A
//! plain `dup` returns one of these only if it is closed, so instead of every `dup` the few calls that can
//! close them are trapped, and a process that has one closed is followed call by call until all three are
//! open again (`notify::tracer`, `ptrace::stdio`).
//!
//! Most programs close their standard output as the last thing they do, without ever having had a socket.
//! They are not followed: making a socket is trapped too, and every other way to get one (accept, SCM_RIGHTS)
//! needs one first or is always trapped (pidfd_getfd). A process that has closed its last socket is not
//! followed either.

use abi::Syscall;
use abi::constant::{F_SETFD, O_CLOEXEC};

use super::call::Call;

/// Effect of a call on descriptors 0..2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Frees none of them.
    None,
    /// Frees one now.
    Closes,
    /// Frees one at the next exec.
    ClosesOnExec,
    /// Makes a socket.
    MakesSocket,
}

/// The highest standard descriptor.
const LAST: u64 = 2;
const FD_CLOEXEC: u64 = 1;
const FIOCLEX: u64 = 0x5451;
const CLOSE_RANGE_CLOEXEC: u64 = 4;

/// Returns whether a call can have an effect; the plan traps such calls with the tests of [`effect`].
pub fn concerns(syscall: Syscall) -> bool {
    use Syscall as S;
    matches!(
        syscall,
        S::CLOSE
            | S::CLOSE_RANGE
            | S::FCNTL
            | S::FCNTL64
            | S::DUP3
            | S::IOCTL
            | S::SOCKET
            | S::SOCKETPAIR
    )
}

/// Returns the effect of this call.
pub fn effect(call: &Call) -> Effect {
    use Syscall as S;
    let low = |position: u8| call.raw(position) & 0xffff_ffff;
    let first_is_standard = low(0) <= LAST;
    match call.syscall {
        S::CLOSE if first_is_standard => Effect::Closes,
        S::CLOSE_RANGE if first_is_standard && low(2) & CLOSE_RANGE_CLOEXEC != 0 => {
            Effect::ClosesOnExec
        }
        S::CLOSE_RANGE if first_is_standard => Effect::Closes,
        S::FCNTL | S::FCNTL64
            if first_is_standard
                && call.int(1) == F_SETFD.i32()
                && call.raw(2) & FD_CLOEXEC != 0 =>
        {
            Effect::ClosesOnExec
        }
        S::DUP3 if low(1) <= LAST && low(2) & O_CLOEXEC.u64() != 0 => Effect::ClosesOnExec,
        S::IOCTL if first_is_standard && low(1) == FIOCLEX => Effect::ClosesOnExec,
        S::SOCKET | S::SOCKETPAIR => Effect::MakesSocket,
        _ => Effect::None,
    }
}
