//! Messages between our processes: they have a fixed size and go over a pipe, so that each arrives
//! whole.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use sys::poll::{self, PollFd};

/// A message about the command or our processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The command runs, or has been continued.
    Running,
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command has ended, with this exit status as in a shell.
    Ended(i32),
    /// Executing the command failed with this error number.
    ExecFailed(i32),
    /// The filter could not be installed, with this error number.
    FilterFailed(i32),
    /// A step of the policy failed: 4096 times its index, and the error number.
    ConfineFailed(i32),
    /// The services did not start.
    ServicesFailed,
    /// The command's pid.
    Started(i32),
    /// The waiter's pid.
    Waiter(i32),
    /// The agent or the waiter could not be prepared, with this error number.
    NotReady(i32),
    /// The waiter has died, so the command's end cannot be learned.
    WaiterGone,
    /// The request cannot be fulfilled; the agent has reported the reason. Contains the exit
    /// status.
    Refused(i32),
    /// The agent has finished its preparation and starts.
    Prepared,
    /// The agent has died, and the command with it.
    AgentGone,
    /// The keeper is a new process; the previous one is the agent.
    KeeperMoved,
}

const SIZE: usize = 8;

impl Message {
    fn encode(self) -> [u8; SIZE] {
        let (kind, value): (i32, i32) = match self {
            Self::Running => (0, 0),
            Self::Stopped(signal) => (1, signal),
            Self::Ended(status) => (2, status),
            Self::ExecFailed(errno) => (3, errno),
            Self::FilterFailed(errno) => (4, errno),
            Self::ServicesFailed => (5, 0),
            Self::Started(pid) => (6, pid),
            Self::Waiter(pid) => (7, pid),
            Self::NotReady(errno) => (8, errno),
            Self::WaiterGone => (9, 0),
            Self::Refused(status) => (10, status),
            Self::Prepared => (11, 0),
            Self::AgentGone => (12, 0),
            Self::KeeperMoved => (13, 0),
            Self::ConfineFailed(value) => (14, value),
        };
        let mut bytes = [0; SIZE];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..].copy_from_slice(&value.to_ne_bytes());
        bytes
    }

    fn decode(bytes: [u8; SIZE]) -> Option<Self> {
        let (kind, value) = bytes.split_at(4);
        let value = i32::from_ne_bytes(value.try_into().ok()?);
        Some(match i32::from_ne_bytes(kind.try_into().ok()?) {
            0 => Self::Running,
            1 => Self::Stopped(value),
            2 => Self::Ended(value),
            3 => Self::ExecFailed(value),
            4 => Self::FilterFailed(value),
            5 => Self::ServicesFailed,
            6 => Self::Started(value),
            7 => Self::Waiter(value),
            8 => Self::NotReady(value),
            9 => Self::WaiterGone,
            10 => Self::Refused(value),
            11 => Self::Prepared,
            12 => Self::AgentGone,
            13 => Self::KeeperMoved,
            14 => Self::ConfineFailed(value),
            _ => return None,
        })
    }

    /// Encodes the message as a non-zero word.
    pub(super) fn to_word(self) -> u64 {
        !u64::from_ne_bytes(self.encode())
    }

    /// Decodes a word; `None` for zero.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        if word == 0 {
            return None;
        }
        Self::decode((!word).to_ne_bytes())
    }
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Sender(std::fs::File);

/// The reading end.
#[derive(Debug)]
pub(super) struct Receiver(std::fs::File);

/// Creates a pipe for messages.
pub(super) fn channel() -> std::io::Result<(Sender, Receiver)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok((Sender(writer.into()), Receiver(reader.into())))
}

impl Sender {
    /// Sends a message. Fails when the other side is closed.
    pub(super) fn send(&self, message: Message) -> std::io::Result<()> {
        (&self.0).write_all(&message.encode())
    }
}

impl Receiver {
    /// Receives a message. Returns `None` when every writer is closed.
    pub(super) fn receive(&self) -> std::io::Result<Option<Message>> {
        let mut bytes = [0; SIZE];
        match (&self.0).read_exact(&mut bytes) {
            Ok(()) => Ok(Message::decode(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if a message waits, or every writer is closed.
    pub(super) fn is_ready(&self) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), poll::IN)];
        poll::poll(&mut polled, Some(Duration::ZERO)).is_ok_and(|ready| ready > 0)
    }

    pub(super) fn file(&self) -> &std::fs::File {
        &self.0
    }
}

impl From<OwnedFd> for Sender {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Receiver {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        let (sender, receiver) = channel().expect("pipe");
        let all = [
            Message::Running,
            Message::Stopped(19),
            Message::Ended(137),
            Message::ExecFailed(2),
            Message::FilterFailed(13),
            Message::ServicesFailed,
            Message::Started(4242),
            Message::Waiter(4241),
            Message::NotReady(24),
            Message::WaiterGone,
            Message::Refused(2),
            Message::Prepared,
            Message::AgentGone,
        ];
        for message in all {
            assert!(!receiver.is_ready());
            assert_eq!(Message::from_word(message.to_word()), Some(message));
            sender.send(message).expect("reader is open");
            assert!(receiver.is_ready());
            assert_eq!(receiver.receive().expect("writer is open"), Some(message));
        }
        drop(sender);
        assert_eq!(receiver.receive().expect("end is no error"), None);
    }
}
