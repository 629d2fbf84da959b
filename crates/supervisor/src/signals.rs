//! Signal handling of our processes.
//!
//! A signal from the terminal, or one sent to the process group, reaches the command by itself. The
//! agent and the waiter must survive it; the front forwards signals that were sent to it alone.
//!
//! The front blocks the signals that it forwards before the first fork, so that no process of ours
//! dies of a signal before it is handled. The command gets the caller's mask back.

use abi::Errno;
use sys::signal::{
    Disposition, MaskChange, Signal, SignalSet, SignalStream, change_mask, set_disposition,
};

/// Reload the configuration.
pub const SIGHUP: i32 = abi::Signal::SIGHUP.0;
pub(super) const SIGKILL: i32 = abi::Signal::SIGKILL.0;
/// Reopen the outputs of alerts.
pub const SIGUSR1: i32 = abi::Signal::SIGUSR1.0;
pub(super) const SIGCHLD: i32 = abi::Signal::SIGCHLD.0;
pub(super) const SIGCONT: i32 = abi::Signal::SIGCONT.0;
pub(super) const SIGSTOP: i32 = abi::Signal::SIGSTOP.0;
/// Highest signal number of Linux.
const LAST: i32 = 64;

/// Signals that stay unchanged in every process of ours: those that cannot be changed, SIGCHLD, and
/// faults, which concern the process that caused them.
const UNTOUCHED: [i32; 9] = [
    abi::Signal::SIGILL.0,
    abi::Signal::SIGTRAP.0,
    abi::Signal::SIGBUS.0,
    abi::Signal::SIGFPE.0,
    SIGKILL,
    abi::Signal::SIGSEGV.0,
    SIGCHLD,
    SIGSTOP,
    abi::Signal::SIGSYS.0,
];
/// Signals that end a program of ours without a command.
pub(super) const ENDS: [i32; 3] = [
    abi::Signal::SIGINT.0,
    abi::Signal::SIGQUIT.0,
    abi::Signal::SIGTERM.0,
];
/// Stops that can be blocked.
const STOPS: [i32; 3] = [
    abi::Signal::SIGTSTP.0,
    abi::Signal::SIGTTIN.0,
    abi::Signal::SIGTTOU.0,
];
/// Signals that the kernel sends to the whole process group because of the terminal; the command
/// receives them, too.
const FROM_TERMINAL: [i32; 8] = [
    SIGHUP,
    abi::Signal::SIGINT.0,
    abi::Signal::SIGQUIT.0,
    SIGCONT,
    abi::Signal::SIGTSTP.0,
    abi::Signal::SIGTTIN.0,
    abi::Signal::SIGTTOU.0,
    abi::Signal::SIGWINCH.0,
];

/// Returns the signals that a caller may send to the command through the front.
fn forwarded() -> SignalSet {
    SignalSet(!SignalSet::of(&UNTOUCHED).0)
}

/// Blocks the forwarded signals. Returns the caller's mask.
pub(super) fn block_forwarded() -> sys::Result<SignalSet> {
    change_mask(MaskChange::Block, forwarded())
}

/// Returns the blocked signals as a stream. Stop signals get their default action, for
/// [`take_stop`].
pub(super) fn forwarded_stream() -> sys::Result<SignalStream> {
    for signal in STOPS {
        set_disposition(signal, Disposition::Default)?;
    }
    SignalStream::new(forwarded())
}

/// Unblocks a pending stop signal, which takes effect.
pub(super) fn take_stop(signal: i32) -> sys::Result<()> {
    change_mask(MaskChange::Unblock, SignalSet::of(&[signal]))?;
    change_mask(MaskChange::Block, SignalSet::of(&[signal]))?;
    Ok(())
}

/// Returns true if the signal is a request to terminate.
pub(super) fn is_deadly(signal: i32) -> bool {
    [
        SIGHUP,
        abi::Signal::SIGINT.0,
        abi::Signal::SIGQUIT.0,
        abi::Signal::SIGTERM.0,
    ]
    .contains(&signal)
}

/// Terminates this process by a signal that was read from a stream.
pub(super) fn die_of(signal: i32) -> sys::Result<()> {
    set_disposition(signal, Disposition::Default)?;
    sys::signal::send(std::process::id().cast_signed(), signal)?;
    change_mask(MaskChange::Unblock, SignalSet::of(&[signal]))?;
    Ok(())
}

/// Makes a process of ours survive the signals that end or stop the command.
///
/// SIGCHLD is blocked before any thread exists: the tracer receives the stops of its tracees from
/// it, and a thread that did not block it could swallow them. A caller that ignored it would have
/// children reaped unseen, and the exit status lost.
pub(super) fn outlive_command() -> sys::Result<()> {
    for signal in (1..=LAST).filter(|signal| !UNTOUCHED.contains(signal)) {
        match set_disposition(signal, Disposition::Ignore) {
            // The C library reserves a few signals for itself.
            Err(error) if !error.is(Errno::EINVAL) => return Err(error),
            _ => {}
        }
    }
    set_disposition(SIGCHLD, Disposition::Default)?;
    change_mask(MaskChange::Set, SignalSet::of(&[SIGCHLD]))?;
    Ok(())
}

/// Returns SIGCHLD as a stream.
pub(super) fn child_stream() -> sys::Result<SignalStream> {
    SignalStream::new(SignalSet::of(&[SIGCHLD]))
}

/// Returns orders to the agent as a stream: SIGHUP and SIGUSR1.
///
/// The other signals that the agent must survive are now blocked instead of ignored: exec keeps
/// ignored signals, so that a program started for an output could never be ended by SIGTERM, while
/// the standard library unblocks everything there. Each is pending at most once, however often it
/// is sent. Still ignored are real-time signals, which would pile up and which no shell sends,
/// SIGPIPE, which the standard library handles, and SIGUSR2, by which the engine's watchdog wakes
/// its threads.
///
/// Preconditions: the process has one thread.
pub fn orders() -> sys::Result<SignalStream> {
    const LAST_STANDARD: i32 = 31;
    let is_blocked = |signal: &i32| {
        !UNTOUCHED.contains(signal)
            && ![abi::Signal::SIGPIPE.0, abi::Signal::SIGUSR2.0].contains(signal)
    };
    let blocked: Vec<i32> = (1..=LAST_STANDARD).filter(is_blocked).collect();
    change_mask(MaskChange::Block, SignalSet::of(&blocked))?;
    for signal in blocked {
        set_disposition(signal, Disposition::Default)?;
    }
    SignalStream::new(SignalSet::of(&[SIGHUP, SIGUSR1]))
}

/// Restores the caller's signal handling for the command. The original action of SIGPIPE is
/// unknown, because the Rust runtime ignores it before this program starts; the command gets the
/// default, as from a shell.
pub(super) fn reset_for_command(callers_mask: SignalSet) -> sys::Result<()> {
    set_disposition(abi::Signal::SIGPIPE.0, Disposition::Default)?;
    change_mask(MaskChange::Set, callers_mask)?;
    Ok(())
}

/// Returns true if the kernel sent the signal to the command, too.
///
/// The kernel reports a terminal's hang-up to the session leader only.
pub(super) fn reached_command(signal: &Signal, leads_session: bool) -> bool {
    const SI_KERNEL: i32 = 0x80;
    let to_leader = leads_session && [SIGHUP, SIGCONT].contains(&signal.signal);
    signal.code == SI_KERNEL && FROM_TERMINAL.contains(&signal.signal) && !to_leader
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_passed_on_but_faults_children_and_what_cannot_be() {
        let left_out: Vec<i32> = (1..=LAST)
            .filter(|signal| !forwarded().contains(*signal))
            .collect();
        assert_eq!(left_out, [4, 5, 7, 8, 9, 11, 17, 19, 31]);
    }

    #[test]
    fn a_hang_up_is_the_leaders_alone_and_keys_are_the_groups() {
        let kernel = |signal| Signal {
            signal,
            code: 0x80,
            pid: 0,
            uid: 0,
            status: 0,
        };
        assert!(reached_command(&kernel(abi::Signal::SIGINT.0), true));
        assert!(reached_command(&kernel(SIGHUP), false));
        assert!(!reached_command(&kernel(SIGHUP), true));
        // A timer of the caller's that exec kept.
        assert!(!reached_command(&kernel(14), false));
        let sent = Signal {
            code: 0,
            pid: 1,
            ..kernel(abi::Signal::SIGINT.0)
        };
        assert!(!reached_command(&sent, false));
    }
}
