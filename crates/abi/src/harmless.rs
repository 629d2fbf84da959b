//! Calls that can do no harm: they give back, rearrange or ask about what a process has.
//!
//! Whoever refuses calls because nobody watches lets these go. A program that may not close what it
//! has opened, or not put back what it has redirected, breaks for good; a shell loses its output.

use crate::floor::Trap;
use crate::{RegisterTest, Syscall, TestOp};

/// The calls, with what makes each harmless. A call has one row at most.
pub static HARMLESS: &[Trap] = &[
    Trap::always(Syscall::CLOSE, GIVES_BACK),
    Trap::always(Syscall::CLOSE_RANGE, GIVES_BACK),
    Trap::always(Syscall::MUNMAP, GIVES_BACK),
    Trap::always(Syscall::EXIT, ENDS),
    Trap::always(Syscall::EXIT_GROUP, ENDS),
    Trap::always(Syscall::DUP, REARRANGES),
    Trap::always(Syscall::DUP2, REARRANGES),
    Trap::always(Syscall::DUP3, REARRANGES),
    Trap::when(Syscall::FCNTL, ON_OWN_DESCRIPTORS, REARRANGES),
    Trap::when(Syscall::FCNTL64, ON_OWN_DESCRIPTORS, REARRANGES),
    Trap::always(Syscall::LSEEK, REARRANGES),
    Trap::always(Syscall::_LLSEEK, REARRANGES),
    Trap::always(Syscall::SHUTDOWN, GIVES_BACK),
    Trap::always(Syscall::WAIT4, WAITS),
    Trap::always(Syscall::WAITID, WAITS),
    Trap::always(Syscall::WAITPID, WAITS),
    Trap::always(Syscall::PAUSE, WAITS),
    Trap::always(Syscall::NANOSLEEP, WAITS),
    Trap::always(Syscall::CLOCK_NANOSLEEP, WAITS),
    Trap::always(Syscall::CLOCK_NANOSLEEP_TIME64, WAITS),
    Trap::always(Syscall::FUTEX, WAITS),
    Trap::always(Syscall::FUTEX_TIME64, WAITS),
    Trap::always(Syscall::POLL, WAITS),
    Trap::always(Syscall::PPOLL, WAITS),
    Trap::always(Syscall::PPOLL_TIME64, WAITS),
    Trap::always(Syscall::SELECT, WAITS),
    Trap::always(Syscall::PSELECT6, WAITS),
    Trap::always(Syscall::PSELECT6_TIME64, WAITS),
    Trap::always(Syscall::EPOLL_WAIT, WAITS),
    Trap::always(Syscall::EPOLL_PWAIT, WAITS),
    Trap::always(Syscall::EPOLL_PWAIT2, WAITS),
    Trap::always(Syscall::SCHED_YIELD, WAITS),
    Trap::always(Syscall::RT_SIGRETURN, "returns from a signal"),
    Trap::always(Syscall::SIGRETURN, "returns from a signal"),
    Trap::always(Syscall::GETPID, ASKS),
    Trap::always(Syscall::GETPPID, ASKS),
    Trap::always(Syscall::GETTID, ASKS),
    Trap::always(Syscall::GETUID, ASKS),
    Trap::always(Syscall::GETEUID, ASKS),
    Trap::always(Syscall::GETGID, ASKS),
    Trap::always(Syscall::GETEGID, ASKS),
    Trap::always(Syscall::GETCWD, ASKS),
    Trap::always(Syscall::GETRUSAGE, ASKS),
    Trap::always(Syscall::UNAME, ASKS),
];

const GIVES_BACK: &str = "gives something back";
const REARRANGES: &str = "rearranges the caller's own descriptors";
const ENDS: &str = "ends the caller";
const WAITS: &str = "waits";
const ASKS: &str = "asks what the caller is";

const fn command(number: u64) -> RegisterTest {
    RegisterTest::low(1, TestOp::Eq, number)
}

/// `F_SETOWN` and `F_SETSIG`, which send signals to others, leases and seals are not among them.
const ON_OWN_DESCRIPTORS: &[&[RegisterTest]] = &[
    &[RegisterTest::low(1, TestOp::Le, 4)], // F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL
    &[command(1030)],                       // F_DUPFD_CLOEXEC
];

/// Whether a call can do no harm. `args`: its registers; without them only calls count that never can.
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
            let is_watched = |trap: &&Trap| trap.call == row.call && trap.any_of.is_empty();
            assert!(FLOOR.iter().find(is_watched).is_none(), "{:?}", row.call);
        }
    }
}
