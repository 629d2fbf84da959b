//! The command's parent.

use std::sync::atomic::Ordering;

use capture::filter::FilterProgram;
use sys::clone::CloneFlags;
use sys::shared::SharedPage;
use sys::wait::{self, Status, Target};

use super::command::{Command, become_command, slot};
use super::message::{Message, Sender};
use super::signals;

/// Makes the command and reports on it until it has ended. Answers with an exit status.
pub(super) fn run(
    command: &Command,
    program: &FilterProgram,
    page: &SharedPage,
    agent: &Sender,
) -> i32 {
    let child =
        sys::clone::clone_child(CloneFlags::FILES, || become_command(command, program, page));
    let pid = match child {
        Ok(pid) => pid,
        Err(error) => return report(agent, Message::FilterFailed(error.errno())),
    };
    if signals::ignore_for_agent().is_err() || agent.send(Message::Started(pid)).is_err() {
        return 1;
    }
    loop {
        match wait::wait(Target::Pid(pid), wait::UNTRACED | wait::CONTINUED) {
            Ok(Some((_, Status::Stopped(signal)))) => {
                report(agent, Message::Stopped(signal));
            }
            Ok(Some((_, Status::Continued))) => {
                report(agent, Message::Running);
            }
            Ok(Some((_, status))) if status.is_end() => {
                return report(agent, end_of(status, page));
            }
            Ok(_) => {}
            Err(error) if error.is(EINTR) => {}
            Err(_) => return report(agent, Message::Ended(LOST)),
        }
    }
}

fn end_of(status: Status, page: &SharedPage) -> Message {
    let filter_error = page.int(slot::FILTER_ERROR).load(Ordering::Acquire);
    let exec_error = page.int(slot::EXEC_ERROR).load(Ordering::Acquire);
    if filter_error != 0 {
        Message::FilterFailed(filter_error)
    } else if exec_error != 0 {
        Message::ExecFailed(exec_error)
    } else {
        Message::Ended(status.shell_code().unwrap_or(LOST))
    }
}

fn report(agent: &Sender, message: Message) -> i32 {
    // An agent that is gone has taken the listener with it; there is nobody left to tell.
    i32::from(agent.send(message).is_err())
}

const EINTR: i32 = 4;
/// Exit status when the command's end could not be observed.
const LOST: i32 = 4;
