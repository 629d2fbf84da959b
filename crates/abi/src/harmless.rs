//! Calls that can do no harm: they release, rearrange or query what a process already has.
//!
//! An enforcer that refuses calls during an unwatched interval lets these pass. A program that cannot close a
//! file it opened, or restore a descriptor it redirected, breaks for good; a shell loses its output.

use crate::always_trapped::TrappedCall;
use crate::{RegisterTest, Syscall, TestOp};

/// Harmless calls, each with the reason. A call has at most one row.
pub static HARMLESS: &[TrappedCall] = &[
    TrappedCall::always(Syscall::CLOSE, GIVES_BACK),
    TrappedCall::always(Syscall::CLOSE_RANGE, GIVES_BACK),
    TrappedCall::always(Syscall::MUNMAP, GIVES_BACK),
    TrappedCall::always(Syscall::EXIT, ENDS),
    TrappedCall::always(Syscall::EXIT_GROUP, ENDS),
    TrappedCall::always(Syscall::DUP, REARRANGES),
    TrappedCall::always(Syscall::DUP2, REARRANGES),
    TrappedCall::always(Syscall::DUP3, REARRANGES),
    TrappedCall::when(Syscall::FCNTL, ON_OWN_DESCRIPTORS, REARRANGES),
    TrappedCall::when(Syscall::FCNTL64, ON_OWN_DESCRIPTORS, REARRANGES),
    TrappedCall::always(Syscall::LSEEK, REARRANGES),
    TrappedCall::always(Syscall::_LLSEEK, REARRANGES),
    TrappedCall::always(Syscall::SHUTDOWN, GIVES_BACK),
    TrappedCall::always(Syscall::WAIT4, WAITS),
    TrappedCall::always(Syscall::WAITID, WAITS),
    TrappedCall::always(Syscall::WAITPID, WAITS),
    TrappedCall::always(Syscall::PAUSE, WAITS),
    TrappedCall::always(Syscall::NANOSLEEP, WAITS),
    TrappedCall::always(Syscall::CLOCK_NANOSLEEP, WAITS),
    TrappedCall::always(Syscall::CLOCK_NANOSLEEP_TIME64, WAITS),
    TrappedCall::always(Syscall::FUTEX, WAITS),
    TrappedCall::always(Syscall::FUTEX_TIME64, WAITS),
    TrappedCall::always(Syscall::POLL, WAITS),
    TrappedCall::always(Syscall::PPOLL, WAITS),
    TrappedCall::always(Syscall::PPOLL_TIME64, WAITS),
    TrappedCall::always(Syscall::SELECT, WAITS),
    TrappedCall::always(Syscall::PSELECT6, WAITS),
    TrappedCall::always(Syscall::PSELECT6_TIME64, WAITS),
    TrappedCall::always(Syscall::EPOLL_WAIT, WAITS),
    TrappedCall::always(Syscall::EPOLL_PWAIT, WAITS),
    TrappedCall::always(Syscall::EPOLL_PWAIT2, WAITS),
    TrappedCall::always(Syscall::SCHED_YIELD, WAITS),
    TrappedCall::always(Syscall::RT_SIGRETURN, "returns from a signal"),
    TrappedCall::always(Syscall::SIGRETURN, "returns from a signal"),
    TrappedCall::always(Syscall::GETPID, ASKS),
    TrappedCall::always(Syscall::GETPPID, ASKS),
    TrappedCall::always(Syscall::GETTID, ASKS),
    TrappedCall::always(Syscall::GETUID, ASKS),
    TrappedCall::always(Syscall::GETEUID, ASKS),
    TrappedCall::always(Syscall::GETGID, ASKS),
    TrappedCall::always(Syscall::GETEGID, ASKS),
    TrappedCall::always(Syscall::GETCWD, ASKS),
    TrappedCall::always(Syscall::GETRUSAGE, ASKS),
    TrappedCall::always(Syscall::UNAME, ASKS),
    // 32-bit Arm alone has these: every program makes them, and none goes on without.
    TrappedCall::always(Syscall::CACHEFLUSH, PREPARES),
    TrappedCall::always(Syscall::SET_TLS, PREPARES),
];

const GIVES_BACK: &str = "gives something back";
const REARRANGES: &str = "rearranges the caller's own descriptors";
const ENDS: &str = "ends the caller";
const WAITS: &str = "waits";
const PREPARES: &str = "prepares the caller's own code or thread";
const ASKS: &str = "asks what the caller is";

const fn command(number: u64) -> RegisterTest {
    RegisterTest::low(1, TestOp::Eq, number)
}

/// `fcntl` operations on the caller's own descriptors. `F_SETOWN` and `F_SETSIG`, which send signals to other
/// processes, leases and seals are absent.
const ON_OWN_DESCRIPTORS: &[&[RegisterTest]] = &[
    &[RegisterTest::low(1, TestOp::Le, 4)], // F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL
    &[command(1030)],                       // F_DUPFD_CLOEXEC
];

/// Returns true if a call can do no harm. `args` holds its registers; without them, only calls that are
/// harmless with any arguments return true.
#[must_use]
pub fn is_harmless(call: Syscall, args: Option<&[u64; 6]>) -> bool {
    let row = HARMLESS.iter().find(|row| row.call == call);
    row.is_some_and(|row| match args {
        Some(args) => row.holds(args),
        None => row.any_of.is_empty(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FLOOR;

    #[test]
    fn what_gives_back_or_rearranges_goes_and_what_reaches_out_does_not() {
        let args = Some(&[0; 6]);
        for call in [
            Syscall::CLOSE,
            Syscall::DUP2,
            Syscall::WAIT4,
            Syscall::EXIT_GROUP,
        ] {
            assert!(
                is_harmless(call, args) && is_harmless(call, None),
                "{call:?}"
            );
        }
        for call in [
            Syscall::OPENAT,
            Syscall::EXECVE,
            Syscall::CONNECT,
            Syscall::PTRACE,
            Syscall::MOUNT,
            Syscall::KILL,
            Syscall::READ,
            Syscall::WRITE,
        ] {
            assert!(!is_harmless(call, args), "{call:?}");
        }
    }

    #[test]
    fn of_fcntl_only_what_concerns_the_callers_descriptors_goes() {
        let fcntl = |command| is_harmless(Syscall::FCNTL, Some(&[1, command, 10, 0, 0, 0]));
        for (command, expected) in [(0, true), (2, true), (4, true), (1030, true)] {
            assert_eq!(fcntl(command), expected, "{command}");
        }
        // F_SETOWN, F_SETSIG, F_SETLEASE, F_ADD_SEALS.
        for command in [8, 10, 1024, 1033] {
            assert!(!fcntl(command), "{command}");
        }
        assert!(!is_harmless(Syscall::FCNTL, None));
    }

    #[test]
    fn a_call_has_one_row_and_none_that_the_floor_always_traps() {
        for (at, row) in HARMLESS.iter().enumerate() {
            let again = HARMLESS[at + 1..]
                .iter()
                .any(|other| other.call == row.call);
            assert!(!again, "{:?}", row.call);
            let is_watched = |trap: &&TrappedCall| trap.call == row.call && trap.any_of.is_empty();
            assert!(FLOOR.iter().find(is_watched).is_none(), "{:?}", row.call);
        }
    }
}
