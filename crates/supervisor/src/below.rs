//! Waiting for a command that is this process's child and needs nobody else to stand before it.

use std::os::fd::AsFd;

use abi::Errno;
use sys::clone::CloneFlags;
use sys::poll::{self, PollFd};
use sys::signal::{Disposition, MaskChange, SignalStream, change_mask, set_disposition};
use sys::wait::{self, Status, Target};

use super::signals::{self, SIGCHLD, SIGCONT, SIGKILL, SIGSTOP};
use super::{Failure, front};

/// What a child ends with whose parent is gone before it began.
const ORPHANED: i32 = 1;

/// Has a child become the command, passes signals on to it, and stops when it does. Answers with how it ended, as a
/// shell would say it. It is killed with this process: whoever kills that means the command.
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
    // A caller that ignores it would have the child reaped unseen; the command ignores it as its caller does.
    let streams = set_disposition(SIGCHLD, Disposition::Default)
        .and_then(|()| Ok((signals::forwarded_stream()?, signals::child_stream()?)));
    let (forwarded, children) = streams.map_err(Failure::process("read signals"))?;
    let leads_session = front::session() == Some(own.cast_signed());
    loop {
        match wait::wait(Target::Pid(pid), wait::UNTRACED | wait::NO_HANG) {
            Ok(Some((_, Status::Stopped(_)))) => {
                // Continued meanwhile, this process is not to stop once more.
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

/// Waits until something happens to the child, or a signal comes.
fn sleep(forwarded: &SignalStream, children: &SignalStream) {
    let mut polled = [
        PollFd::new(forwarded.as_fd(), poll::IN),
        PollFd::new(children.as_fd(), poll::IN),
    ];
    // Whatever woke it, everything is looked at.
    let _ = poll::poll(&mut polled, None);
    while let Ok(Some(_)) = children.next() {}
}

/// Sends the child what was sent to this process alone; answers whether that is to go on.
fn pass_signals_on(forwarded: &SignalStream, pid: i32, leads_session: bool) -> bool {
    let mut is_continued = false;
    while let Ok(Some(signal)) = forwarded.next() {
        is_continued |= signal.signal == SIGCONT;
        if !signals::reached_command(&signal, leads_session) {
            // Fails only if it has just ended.
            let _ = sys::signal::send(pid, signal.signal);
        }
    }
    is_continued
}
