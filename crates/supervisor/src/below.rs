//! Runs a command as a child of this process, without a front.

use std::os::fd::AsFd;

use abi::Errno;
use sys::clone::CloneFlags;
use sys::poll::{self, PollFd};
use sys::signal::{Disposition, MaskChange, SignalStream, change_mask, set_disposition};
use sys::wait::{self, Status, Target};

use super::signals::{self, SIGCHLD, SIGCONT, SIGKILL, SIGSTOP};
use super::{Failure, front};

/// Exit status of a child whose parent ended before it started.
const ORPHANED: i32 = 1;

/// Runs the command in a child, forwards signals to it, and stops when it stops. Returns its exit
/// status as in a shell. The child is killed with this process, since whoever kills that means the
/// command.
pub(super) fn run(command: impl FnOnce() -> i32) -> Result<i32, Failure> {
    let callers_mask = signals::block_forwarded().map_err(Failure::process("block signals"))?;
    let own = std::process::id();
    let pid = sys::clone::clone_child(CloneFlags::default(), || {
        let ready = sys::prctl::set_parent_death_signal(SIGKILL)
            .and_then(|()| change_mask(MaskChange::Set, callers_mask));
        if ready.is_err() || std::os::unix::process::parent_id() != own {
            return ORPHANED;
        }
        command()
    })
    .map_err(Failure::process("make a process"))?;
    // A caller that ignores SIGCHLD would have the child reaped unseen. The command inherits the
    // caller's setting.
    let streams = set_disposition(SIGCHLD, Disposition::Default)
        .and_then(|()| Ok((signals::forwarded_stream()?, signals::child_stream()?)));
    let (forwarded, children) = streams.map_err(Failure::process("read signals"))?;
    let leads_session = front::session() == Some(own.cast_signed());
    loop {
        match wait::wait(Target::Pid(pid), wait::UNTRACED | wait::NO_HANG) {
            Ok(Some((_, Status::Stopped(_)))) => {
                // If this process was continued meanwhile, it must not stop again.
                if !pass_signals_on(&forwarded, pid, leads_session) {
                    // Fails for no reason that is known.
                    let _ = sys::signal::send(own.cast_signed(), SIGSTOP);
                }
                // Whoever continues this process means the command.
                let _ = sys::signal::send(pid, SIGCONT);
            }
            Ok(Some((_, status))) => {
                if let Some(code) = status.shell_code() {
                    return Ok(code);
                }
            }
            Ok(None) => {
                sleep(&forwarded, &children);
                pass_signals_on(&forwarded, pid, leads_session);
            }
            Err(error) if error.is(Errno::EINTR) => {}
            Err(error) => return Err(Failure::process("wait for the command")(error)),
        }
    }
}

/// Waits for an event of the child, or a signal.
fn sleep(forwarded: &SignalStream, children: &SignalStream) {
    let mut polled = [
        PollFd::new(forwarded.as_fd(), poll::IN),
        PollFd::new(children.as_fd(), poll::IN),
    ];
    // The reason for waking does not matter; everything is checked.
    let _ = poll::poll(&mut polled, None);
    while let Ok(Some(_)) = children.next() {}
}

/// Forwards signals that were sent to this process alone. Returns true to continue.
fn pass_signals_on(forwarded: &SignalStream, pid: i32, leads_session: bool) -> bool {
    let mut is_continued = false;
    while let Ok(Some(signal)) = forwarded.next() {
        is_continued |= signal.signal == SIGCONT;
        if !signals::reached_command(&signal, leads_session) {
            // Fails only if the child has just ended.
            let _ = sys::signal::send(pid, signal.signal);
        }
    }
    is_continued
}
