//! The command's parent.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

use sys::clone::CloneFlags;
use sys::poll::{self, PollFd};
use sys::shared::SharedPage;
use sys::signal::SignalStream;
use sys::wait::{self, Status, Target};

use super::Launch;
use super::command::{become_command, slot};
use super::message::{Message, Sender};
use super::orphans::Orphans;
use super::signals::{self, SIGKILL};

/// Makes the command and reports on it until it has ended. Answers with an exit status.
pub(super) fn run(
    launch: Launch<'_>,
    page: &SharedPage,
    agent: &Sender,
    agent_process: &OwnedFd,
) -> i32 {
    let orphans = Orphans::decide();
    let child = sys::clone::clone_child(CloneFlags::FILES, || become_command(launch, page));
    let pid = match child {
        Ok(pid) => pid,
        Err(error) => return report(agent, Message::NotReady(error.errno())),
    };
    // After the clone: the command has the caller's dispositions.
    let children = match signals::outlive_command().and_then(|()| signals::child_stream()) {
        Ok(children) => children,
        Err(error) => {
            kill(pid);
            return report(agent, Message::NotReady(error.errno()));
        }
    };
    loop {
        if let Some(end) = pass_on(pid, page, agent) {
            let status = report(agent, end);
            orphans.outlive_command(agent_process, &children, agent_is_gone);
            return status;
        }
        orphans.reap(pid);
        if agent_is_gone(agent_process, &children) {
            // Nobody listens any more: calls that the filter traps would fail with ENOSYS from
            // now on, and as long as this process lives, which shares the agent's descriptors,
            // they would wait for ever. This is where another agent would take over.
            kill(pid);
            // The front answers to its caller when this process ends: not before the command.
            while wait::wait(Target::Pid(pid), 0).is_err_and(|error| error.is(EINTR)) {}
            return 1;
        }
    }
}

/// Reports what has become of the command since the last look; answers with its end.
fn pass_on(pid: i32, page: &SharedPage, agent: &Sender) -> Option<Message> {
    loop {
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
            Err(error) if error.is(EINTR) => {}
            // It ended before SIGCHLD had its default effect.
            Err(_) => return Some(failure(page).unwrap_or(Message::WaiterGone)),
        }
    }
}

/// Why the command never ran.
fn failure(page: &SharedPage) -> Option<Message> {
    let errno = |slot| match page.int(slot).load(Ordering::Acquire) {
        0 => None,
        errno => Some(errno),
    };
    errno(slot::FILTER_ERROR)
        .map(Message::FilterFailed)
        .or_else(|| errno(slot::EXEC_ERROR).map(Message::ExecFailed))
}

/// Sleeps until something happens to a child or to the agent.
fn agent_is_gone(agent: &OwnedFd, children: &SignalStream) -> bool {
    let mut polled = [
        PollFd::new(agent.as_fd(), poll::IN),
        PollFd::new(children.as_fd(), poll::IN),
    ];
    match poll::poll(&mut polled, None) {
        Ok(_) => {}
        Err(error) if error.is(EINTR) => return false,
        // Without poll nothing could be waited for.
        Err(_) => return true,
    }
    // The signal says only that there is something to wait for.
    while let Ok(Some(_)) = children.next() {}
    polled[0].found() != 0
}

fn kill(pid: i32) {
    // Fails only if the command has ended, for it is not reaped yet.
    let _ = sys::signal::send(pid, SIGKILL);
}

fn report(agent: &Sender, message: Message) -> i32 {
    // An agent that is gone is noticed by its descriptor.
    i32::from(agent.send(message).is_err())
}

const EINTR: i32 = 4;
