//! The agent process: from the listener to the last event.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use event::Pid;
use sys::clone::CloneFlags;
use sys::notify::Listener;
use sys::poll::{self, PollFd};
use sys::resource::{self, Limit};
use sys::shared::SharedPage;

use super::command::slot;
use super::message::{Message, Receiver, Sender, channel};
use super::signals::{self, SIGCONT, SIGKILL, SIGSTOP};
use super::{Launch, Listening, Services, Start, waiter};

/// How long the command may take from fork to its filter; a fork and two calls.
const LISTENER_DEADLINE: Duration = Duration::from_secs(5);
/// Pause between two looks at the page: the child cannot call a futex under its own filter.
const LISTENER_POLL: Duration = Duration::from_micros(20);
/// How long the end of the whole workload may lag behind the command's own: the kernel releases a
/// filter when its last task has been reaped.
const END_GRACE: Duration = Duration::from_millis(50);
/// How long a killed command may take to end; more only in an uninterruptible call.
const KILL_GRACE: Duration = Duration::from_secs(1);
/// Time between two looks for the end of descendants that outlive the command.
const DESCENDANTS_POLL: Duration = Duration::from_millis(20);

/// The front as the agent sees it.
pub(super) struct Front {
    /// To tell it what becomes of the command.
    pub(super) messages: Sender,
    /// Its pid.
    pub(super) pid: i32,
    /// Opened by itself: it cannot have ended unnoticed.
    pub(super) process: OwnedFd,
}

impl Front {
    fn tell(&self, message: Message) {
        // A front that is gone is noticed by its descriptor.
        let _ = self.messages.send(message);
    }

    fn signal(&self, signal: i32) {
        // As above.
        let _ = sys::pidfd::send_signal(self.process.as_fd(), signal);
    }
}

/// Runs the agent to its end. Answers with the exit status of the agent process, which nobody but
/// the front sees.
pub(super) fn run(launch: Launch<'_>, front: &Front, start: Start) -> i32 {
    match supervise(launch, front, start) {
        Ok(()) => 0,
        Err(message) => {
            front.tell(message);
            1
        }
    }
}

fn supervise(launch: Launch<'_>, front: &Front, start: Start) -> Result<(), Message> {
    let not_ready = |error: sys::SyscallError| Message::NotReady(error.errno());
    let page = SharedPage::new().map_err(not_ready)?;
    let own_pid = std::process::id().cast_signed();
    // Lives as long as this process: the waiter, which shares the table, watches it.
    let own_process = sys::pidfd::open(own_pid).map_err(not_ready)?;
    let (to_agent, from_waiter) =
        channel().map_err(|error| Message::NotReady(error.raw_os_error().unwrap_or(EIO)))?;
    let waiter = sys::clone::clone_child(CloneFlags::FILES, || {
        waiter::run(launch, &page, &to_agent, &own_process)
    })
    .map_err(not_ready)?;
    signals::outlive_command().map_err(not_ready)?;
    let waiter = Waiter {
        pid: waiter,
        process: sys::pidfd::open(waiter).map_err(not_ready)?,
        messages: from_waiter,
    };
    raise_descriptor_limit().map_err(not_ready)?;
    let listener = listener(&page, &waiter)?;
    let command = page.int(slot::PID).load(Ordering::Acquire);
    // Before anything that takes time: from now on the front passes signals on.
    front.tell(Message::Waiter(waiter.pid));
    front.tell(Message::Started(command));
    let transparent = vec![Pid(front.pid), Pid(own_pid), Pid(waiter.pid)];
    let services = match start(Listening {
        listener,
        transparent,
    }) {
        Ok(services) => services,
        Err(error) => {
            eprintln!("tollgate: {error:#}");
            return Err(Message::ServicesFailed);
        }
    };
    relay(&waiter, front, command, services.as_ref());
    while !services.has_ended() {
        std::thread::sleep(DESCENDANTS_POLL);
    }
    services.finish();
    Ok(())
}

/// The waiter as the agent sees it. Its pipe does not end when it does: the agent, which shares
/// the table, holds the writing end too.
struct Waiter {
    pid: i32,
    process: OwnedFd,
    messages: Receiver,
}

/// The agent opens more than the caller's limit may allow; the command keeps the caller's.
fn raise_descriptor_limit() -> sys::Result<()> {
    const RLIMIT_NOFILE: u32 = 7;
    let hard = resource::limit(0, RLIMIT_NOFILE)?.hard;
    resource::set_limit(0, RLIMIT_NOFILE, Limit { soft: hard, hard })
}

/// Waits until the command has installed its filter.
fn listener(page: &SharedPage, waiter: &Waiter) -> Result<Listener, Message> {
    let deadline = Instant::now() + LISTENER_DEADLINE;
    loop {
        // First, so that what the waiter left behind when it ended is seen below.
        let is_waiter_gone = has_ended(&waiter.process, LISTENER_POLL);
        let number = page.int(slot::LISTENER).load(Ordering::Acquire);
        if number > 0 {
            // The command may have ended since: its table is this one until exec.
            let listener = sys::fd::duplicate_number(number - 1);
            return listener
                .map(Listener::new)
                .map_err(|error| Message::NotReady(error.errno()));
        }
        let errno = page.int(slot::FILTER_ERROR).load(Ordering::Acquire);
        if errno != 0 {
            return Err(Message::FilterFailed(errno));
        }
        if is_waiter_gone {
            return Err(last_words(&waiter.messages));
        }
        if Instant::now() > deadline {
            return Err(Message::FilterFailed(ETIMEDOUT));
        }
    }
}

fn has_ended(process: &OwnedFd, patience: Duration) -> bool {
    let mut polled = [PollFd::new(process.as_fd(), poll::IN)];
    poll::poll(&mut polled, Some(patience)).is_ok_and(|ready| ready > 0)
}

/// Why a waiter that has ended did so.
fn last_words(waiter: &Receiver) -> Message {
    let mut last = Message::WaiterGone;
    while waiter.is_ready() {
        match waiter.receive() {
            Ok(Some(message)) => last = message,
            Ok(None) | Err(_) => break,
        }
    }
    last
}

/// Passes news of the command to the front until the command has ended.
fn relay(waiter: &Waiter, front: &Front, command: i32, services: &dyn Services) {
    let mut is_front_gone = false;
    let mut is_stopped = false;
    loop {
        match next(waiter, front, is_front_gone) {
            News::FrontGone => {
                // Whoever killed the front meant the command.
                kill(command);
                is_front_gone = true;
            }
            News::WaiterGone => {
                let process = sys::pidfd::open(command);
                kill(command);
                // The front is not to answer to its caller before the command has ended.
                let _ = process.map(|process| has_ended(&process, KILL_GRACE));
                deliver(services);
                return front.tell(Message::WaiterGone);
            }
            // Signals to the front are sent from here because the kernel keeps their order: a
            // continuation takes back a stop that came before it, and none that came after.
            News::Message(Message::Stopped(SIGSTOP)) => {
                is_stopped = true;
                front.signal(SIGSTOP);
            }
            News::Message(message @ Message::Stopped(_)) => {
                is_stopped = true;
                front.tell(message);
            }
            News::Message(Message::Running) => {
                is_stopped = false;
                // In this order: see `Front::stop`.
                front.tell(Message::Running);
                front.signal(SIGCONT);
            }
            News::Message(end) => {
                deliver(services);
                front.tell(end);
                if is_stopped {
                    // Killed while it was stopped.
                    front.signal(SIGCONT);
                }
                return;
            }
        }
    }
}

/// Delivers what the command caused before anybody learns that it has ended.
fn deliver(services: &dyn Services) {
    services.flush();
    let grace = Instant::now() + END_GRACE;
    while !services.has_ended() && Instant::now() < grace {
        std::thread::sleep(Duration::from_micros(200));
    }
    services.flush();
}

enum News {
    Message(Message),
    WaiterGone,
    FrontGone,
}

fn next(waiter: &Waiter, front: &Front, is_front_gone: bool) -> News {
    loop {
        // The waiter before its pipe: poll looks in this order, so that a waiter that has ended
        // has written everything when the pipe is looked at.
        let mut polled = [
            PollFd::new(waiter.process.as_fd(), poll::IN),
            PollFd::new(waiter.messages.file().as_fd(), poll::IN),
            PollFd::new(front.process.as_fd(), poll::IN),
        ];
        let watched = if is_front_gone { 2 } else { 3 };
        if poll::poll(&mut polled[..watched], None).is_err() {
            // Interrupted.
            continue;
        }
        let [waiter_found, pipe_found, front_found] = polled.map(|polled| polled.found() != 0);
        if front_found {
            return News::FrontGone;
        }
        if pipe_found && let Ok(Some(message)) = waiter.messages.receive() {
            return News::Message(message);
        }
        if waiter_found {
            return News::WaiterGone;
        }
    }
}

fn kill(pid: i32) {
    // Fails only if the command has just ended.
    let _ = sys::signal::send(pid, SIGKILL);
}

const EIO: i32 = 5;
const ETIMEDOUT: i32 = 110;
