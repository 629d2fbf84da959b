//! The waiter: the command's parent.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use abi::Errno;
use sys::clone::CloneFlags;
use sys::poll::{self, PollFd};
use sys::shared::SharedPage;
use sys::signal::SignalStream;
use sys::wait::{self, Status, Target};

use super::Launch;
use super::command::{become_command, slot};
use super::inherited::{InheritedDescriptors, PrivateEnds, is_readable};
use super::message::{Message, Sender};
use super::orphans::Orphans;
use super::signals::{self, SIGKILL};

/// Starts the command and reports on it until it has ended. Returns an exit status.
pub(super) fn run(
    launch: Launch<'_>,
    page: &SharedPage,
    inherited: &InheritedDescriptors,
    ends: &PrivateEnds,
) -> i32 {
    let front = &inherited.front;
    let (agent, lifeline) = (&ends.to_agent, &ends.lifeline);
    let orphans = Orphans::decide();
    let child = sys::clone::clone_child(CloneFlags::FILES, || become_command(launch, page));
    let pid = match child {
        Ok(pid) => pid,
        Err(error) => return report(agent, Message::NotReady(error.errno())),
    };
    // After the clone: the command has the caller's signal dispositions and the agent's descriptor
    // table, in which its listener is about to appear. Neither the listener nor the lifeline's
    // other end may stay open here.
    let ready = sys::namespace::unshare(CloneFlags::FILES.0)
        .and_then(|()| sys::fd::keep_only(&[agent.as_fd(), lifeline.as_fd(), front.as_fd()]))
        .and_then(|()| signals::outlive_command())
        .and_then(|()| signals::child_stream());
    let children = match ready {
        Ok(children) => children,
        Err(error) => {
            kill(pid);
            return report(agent, Message::NotReady(error.errno()));
        }
    };
    let mut is_killed = false;
    loop {
        if let Some(end) = pass_on(pid, page, agent) {
            // For an agent that follows if the one that receives the message is killed.
            inherited.shared_state.set_end(end);
            let status = report(agent, end);
            // The result is not needed.
            let _ = wait::wait(Target::Pid(pid), 0);
            orphans.outlive_command(lifeline, &children, |lifeline, children| {
                is_alone(lifeline, children, None)
            });
            return status;
        }
        orphans.reap(pid);
        // Whoever killed the front meant the command. The agent would report this if it existed.
        // Without an agent, a command that waits at its filter for exec has the only listener and
        // the lifeline itself.
        let front = Some(front).filter(|_| !is_killed);
        let is_alone = is_alone(lifeline, &children, front);
        if !is_killed && is_readable(inherited.front.as_fd(), Duration::ZERO) {
            kill(pid);
            is_killed = true;
        }
        if is_alone {
            // No process receives calls, and none is left to start an agent: trapped calls fail
            // with ENOSYS from now on.
            kill_and_wait(pid);
            return 1;
        }
    }
}

/// Kills the command and waits until it has ended.
fn kill_and_wait(pid: i32) {
    kill(pid);
    // The front exits when this process ends, which must not be before the command ends.
    while wait::wait(Target::Pid(pid), 0).is_err_and(|error| error.is(Errno::EINTR)) {}
}

/// Reports the command's state changes since the last check. Returns its end.
///
/// An ended command is reaped after its end was reported: reaping takes the kernel milliseconds,
/// while others look for the process in `/proc`.
fn pass_on(pid: i32, page: &SharedPage, agent: &Sender) -> Option<Message> {
    loop {
        let ended = wait::peek_end_of(pid).ok().flatten();
        if let Some(code) = ended.and_then(Status::shell_code) {
            return Some(failure(page).unwrap_or(Message::Ended(code)));
        }
        match wait::wait(
            Target::Pid(pid),
            wait::UNTRACED | wait::CONTINUED | wait::NO_HANG,
        ) {
            Ok(None) => return None,
            Ok(Some((_, Status::Stopped(signal)))) => {
                report(agent, Message::Stopped(signal));
            }
            Ok(Some((_, Status::Continued))) => {
                report(agent, Message::Running);
            }
            Ok(Some((_, status))) => {
                if let Some(code) = status.shell_code() {
                    return Some(failure(page).unwrap_or(Message::Ended(code)));
                }
            }
            Err(error) if error.is(Errno::EINTR) => {}
            // The command ended before SIGCHLD had its default disposition.
            Err(_) => return Some(failure(page).unwrap_or(Message::WaiterGone)),
        }
    }
}

/// Returns the reason why the command never ran.
fn failure(page: &SharedPage) -> Option<Message> {
    let errno = |slot| match page.int(slot).load(Ordering::Acquire) {
        0 => None,
        errno => Some(errno),
    };
    confine_failure(page)
        .or_else(|| errno(slot::FILTER_ERROR).map(Message::FilterFailed))
        .or_else(|| errno(slot::EXEC_ERROR).map(Message::ExecFailed))
}

/// Returns the failed step of the policy.
pub(super) fn confine_failure(page: &SharedPage) -> Option<Message> {
    match page.int(slot::CONFINE_ERROR).load(Ordering::Acquire) {
        0 => None,
        errno => {
            let step = page.int(slot::CONFINE_STEP).load(Ordering::Acquire);
            Some(Message::ConfineFailed(step * ERRNO_RANGE + errno))
        }
    }
}

/// Waits until a child changes state, the front has ended, or front, keeper and agent have all
/// ended; then returns true.
fn is_alone(lifeline: &OwnedFd, children: &SignalStream, front: Option<&OwnedFd>) -> bool {
    let mut polled = vec![
        PollFd::new(lifeline.as_fd(), poll::IN),
        PollFd::new(children.as_fd(), poll::IN),
    ];
    polled.extend(front.map(|front| PollFd::new(front.as_fd(), poll::IN)));
    match poll::poll(&mut polled, None) {
        Ok(_) => {}
        Err(error) if error.is(Errno::EINTR) => return false,
        // Without poll, waiting is impossible.
        Err(_) => return true,
    }
    // The signal only indicates that there is a child to wait for.
    while let Ok(Some(_)) = children.next() {}
    polled[0].found() != 0
}

fn kill(pid: i32) {
    // Fails only if the command has ended, for it is not reaped yet.
    let _ = sys::signal::send(pid, SIGKILL);
}

fn report(agent: &Sender, message: Message) -> i32 {
    // Without a reader no process is left, which the lifeline shows.
    i32::from(agent.send(message).is_err())
}

/// Upper bound of error numbers.
pub(super) const ERRNO_RANGE: i32 = 4096;
