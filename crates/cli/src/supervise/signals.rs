//! Who reacts to which signal.
//!
//! A signal from the terminal, or one sent to the group, reaches the command by itself. The agent
//! and the waiter must outlive it; the front passes on only what was sent to it alone.

use sys::signal::{
    Disposition, MaskChange, SignalSet, SignalStream, change_mask, set_disposition,
};

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGUSR1: i32 = 10;
const SIGUSR2: i32 = 12;
const SIGPIPE: i32 = 13;
const SIGALRM: i32 = 14;
const SIGTERM: i32 = 15;
const SIGCHLD: i32 = 17;
const SIGTSTP: i32 = 20;
const SIGTTIN: i32 = 21;
const SIGTTOU: i32 = 22;
pub(super) const SIGCONT: i32 = 18;
pub(super) const SIGSTOP: i32 = 19;

/// What a caller may send to end, wake or stop a command.
const FORWARDED: [i32; 9] =
    [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGTSTP, SIGCONT];

/// Makes a process of ours survive what ends or stops the command. SIGCHLD is blocked before any
/// thread exists: the tracer takes the stops of its tracees from it, and a thread that did not
/// block it could swallow them.
pub(super) fn ignore_for_agent() -> sys::Result<()> {
    let ends_a_command =
        [SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGTERM, SIGPIPE];
    // SIGTTOU: an agent in the background may still write alerts to the terminal.
    let stops_a_command = [SIGTSTP, SIGTTIN, SIGTTOU];
    for signal in ends_a_command.into_iter().chain(stops_a_command) {
        set_disposition(signal, Disposition::Ignore)?;
    }
    change_mask(MaskChange::Block, SignalSet::of(&[SIGCHLD]))?;
    Ok(())
}

/// Gives the command what the caller had: the Rust runtime ignores SIGPIPE in every program.
pub(super) fn reset_for_command() -> sys::Result<()> {
    set_disposition(SIGPIPE, Disposition::Default)
}

/// Blocks what the front passes on and delivers it as a stream.
pub(super) fn forwarded() -> sys::Result<SignalStream> {
    SignalStream::new(SignalSet::of(&FORWARDED))
}

/// Whether the kernel sent it (a key on the terminal, a hang-up): then the command has it too.
pub(super) fn is_from_kernel(signal: &sys::signal::Signal) -> bool {
    const SI_KERNEL: i32 = 0x80;
    signal.code == SI_KERNEL
}
