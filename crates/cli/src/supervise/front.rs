//! The front process: what the caller sees.

use std::os::fd::AsFd;

use capture::filter::FilterProgram;
use sys::clone::CloneFlags;
use sys::poll::{self, PollFd};
use sys::signal::SignalStream;

use super::command::Command;
use super::message::{Message, Receiver, channel};
use super::signals::{self, SIGCONT, SIGSTOP};
use super::{Failure, Start, agent};

/// Makes the agent, then stands for the command until it has ended.
pub(super) fn run(
    command: &Command,
    program: &FilterProgram,
    start: Start,
) -> Result<i32, Failure> {
    let (to_front, from_agent) = channel().map_err(Failure::io("make a pipe"))?;
    let own_pid = std::process::id().cast_signed();
    let from_agent = &from_agent;
    let to_front_for_agent = &to_front;
    sys::clone::clone_child(CloneFlags::default(), || {
        agent::run(command, program, to_front_for_agent, own_pid, start)
    })
    .map_err(Failure::process("make the agent process"))?;
    drop(to_front);
    let signals = signals::forwarded().map_err(Failure::process("block signals"))?;
    stand_in(command, from_agent, &signals)
}

fn stand_in(
    command: &Command,
    agent: &Receiver,
    signals: &SignalStream,
) -> Result<i32, Failure> {
    let mut pid = None;
    loop {
        let mut polled =
            [PollFd::new(agent.file().as_fd(), poll::IN), PollFd::new(signals.as_fd(), poll::IN)];
        match poll::poll(&mut polled, None) {
            Ok(_) => {}
            Err(error) if error.is(EINTR) => continue,
            Err(error) => return Err(Failure::process("wait for the agent")(error)),
        }
        if polled[1].found() != 0 {
            forward(signals, pid);
        }
        if polled[0].found() == 0 {
            continue;
        }
        match agent.receive().map_err(Failure::io("hear from the agent"))? {
            Some(Message::Started(started)) => pid = Some(started),
            Some(Message::Stopped(_)) => stop_with(pid),
            Some(Message::Running) => {}
            Some(Message::Ended(status)) => return Ok(status),
            Some(Message::ExecFailed(errno)) => {
                let path = command.path.to_string_lossy().into_owned();
                let cause = std::io::Error::from_raw_os_error(errno);
                return Err(Failure::Exec { path, cause });
            }
            Some(Message::FilterFailed(errno)) => {
                let cause = std::io::Error::from_raw_os_error(errno);
                return Err(Failure::Filter { cause });
            }
            Some(Message::ServicesFailed) => return Err(Failure::Services),
            None => {
                let cause = std::io::ErrorKind::BrokenPipe.into();
                return Err(Failure::Process { action: "hear from the agent", cause });
            }
        }
    }
}

/// Passes on what was sent to this process alone.
fn forward(signals: &SignalStream, command: Option<i32>) {
    while let Ok(Some(signal)) = signals.next() {
        if let Some(pid) = command
            && !signals::is_from_kernel(&signal)
        {
            // Fails only if the command has just ended, which is the next message.
            let _ = sys::signal::send(pid, signal.signal);
        }
    }
}

/// The command was stopped: so is this process, as the caller's job control expects. Whoever
/// continues it means the command.
fn stop_with(command: Option<i32>) {
    let own_pid = std::process::id().cast_signed();
    // The signal stops this process before the call returns.
    let _ = sys::signal::send(own_pid, SIGSTOP);
    if let Some(pid) = command {
        let _ = sys::signal::send(pid, SIGCONT);
    }
}

const EINTR: i32 = 4;
