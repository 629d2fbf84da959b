//! The agent process: from the listener to the last event.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use capture::filter::FilterProgram;
use event::Pid;
use sys::clone::CloneFlags;
use sys::notify::Listener;
use sys::poll::{self, PollFd};
use sys::shared::SharedPage;

use super::command::{Command, slot};
use super::message::{Message, Receiver, Sender, channel};
use super::signals;
use super::{Listening, Services, Start, waiter};

/// How long the command may take from fork to its filter; a fork and two calls.
const LISTENER_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two looks at the page: the child cannot call a futex under its own filter.
const LISTENER_POLL: Duration = Duration::from_micros(20);
/// How long the end of the whole workload may lag behind the command's own: the kernel releases a
/// filter when its last task has been reaped.
const END_GRACE: Duration = Duration::from_millis(50);
/// Time between two looks for the end of descendants that outlive the command.
const DESCENDANTS_POLL: Duration = Duration::from_millis(20);

/// Runs the agent to its end. Answers with the exit status of the agent process, which nobody but
/// the front sees.
pub(super) fn run(
    command: &Command,
    program: &FilterProgram,
    front: &Sender,
    front_pid: i32,
    start: Start,
) -> i32 {
    match supervise(command, program, front, front_pid, start) {
        Ok(()) => 0,
        Err(message) => {
            // A front that is gone needs no answer.
            let _ = front.send(message);
            1
        }
    }
}

fn supervise(
    command: &Command,
    program: &FilterProgram,
    front: &Sender,
    front_pid: i32,
    start: Start,
) -> Result<(), Message> {
    let page = SharedPage::new().map_err(|error| Message::FilterFailed(error.errno()))?;
    let (to_agent, from_waiter) = channel().map_err(|_no_pipe| Message::ServicesFailed)?;
    let waiter = sys::clone::clone_child(CloneFlags::FILES, || {
        waiter::run(command, program, &page, &to_agent)
    })
    .map_err(|error| Message::FilterFailed(error.errno()))?;
    signals::ignore_for_agent().map_err(|error| Message::FilterFailed(error.errno()))?;
    let listener = listener(&page)?;
    let transparent = vec![Pid(front_pid), Pid(std::process::id().cast_signed()), Pid(waiter)];
    let services = match start(Listening { listener, transparent }) {
        Ok(services) => services,
        Err(error) => {
            eprintln!("tollgate: {error:#}");
            return Err(Message::ServicesFailed);
        }
    };
    let front_process = sys::pidfd::open(front_pid).ok();
    relay(&from_waiter, front, front_process.as_ref(), services.as_ref());
    while !services.has_ended() {
        std::thread::sleep(DESCENDANTS_POLL);
    }
    services.finish();
    Ok(())
}

/// Waits until the command has installed its filter.
fn listener(page: &SharedPage) -> Result<Listener, Message> {
    let deadline = Instant::now() + LISTENER_DEADLINE;
    loop {
        let number = page.int(slot::LISTENER).load(Ordering::Acquire);
        if number > 0 {
            let listener = sys::fd::duplicate_number(number - 1);
            return listener
                .map(Listener::new)
                .map_err(|error| Message::FilterFailed(error.errno()));
        }
        let errno = page.int(slot::FILTER_ERROR).load(Ordering::Acquire);
        if errno != 0 {
            return Err(Message::FilterFailed(errno));
        }
        if Instant::now() > deadline {
            return Err(Message::FilterFailed(ETIMEDOUT));
        }
        std::thread::sleep(LISTENER_POLL);
    }
}

/// Passes news of the command to the front until the command has ended or the front is gone.
fn relay(
    waiter: &Receiver,
    front: &Sender,
    front_process: Option<&OwnedFd>,
    services: &dyn Services,
) {
    let mut command = None;
    loop {
        if front_is_gone(front_process, waiter) {
            // Whoever killed the front meant the command.
            if let Some(pid) = command {
                let _ = sys::signal::send(pid, SIGKILL);
            }
            return;
        }
        let message = match waiter.receive() {
            Ok(Some(message)) => message,
            Ok(None) | Err(_) => return,
        };
        if let Message::Started(pid) = message {
            command = Some(pid);
        }
        let is_end = matches!(message, Message::Ended(_) | Message::ExecFailed(_));
        if is_end {
            services.flush();
            let grace = Instant::now() + END_GRACE;
            while !services.has_ended() && Instant::now() < grace {
                std::thread::sleep(Duration::from_micros(200));
            }
            services.flush();
        }
        // A front that is gone is noticed at the top.
        let _ = front.send(message);
        if is_end {
            return;
        }
    }
}

/// Waits for news of the command. True: there is nobody any more to pass them on to.
fn front_is_gone(front: Option<&OwnedFd>, waiter: &Receiver) -> bool {
    // Without a pidfd the front was gone before the agent looked.
    let Some(front) = front else { return true };
    loop {
        let mut polled =
            [PollFd::new(front.as_fd(), poll::IN), PollFd::new(waiter.file().as_fd(), poll::IN)];
        match poll::poll(&mut polled, None) {
            Ok(_) => return polled[0].found() != 0,
            Err(error) if error.is(EINTR) => {}
            // Without poll the next message is waited for blindly.
            Err(_) => return false,
        }
    }
}

const EINTR: i32 = 4;
const SIGKILL: i32 = 9;
const ETIMEDOUT: i32 = 110;
