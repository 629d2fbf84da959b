//! Forwards news of the command to the front.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sys::poll::{self, PollFd};

use super::inherited::{InheritedDescriptors, is_readable};
use super::message::Message;
use super::shared_state::SharedPid;
use super::signals::{SIGCONT, SIGKILL, SIGSTOP};

/// Time limit for a killed command to end; only an uninterruptible call takes longer.
const KILL_GRACE: Duration = Duration::from_secs(1);

/// A piece of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandEvent {
    Message(Message),
    WaiterGone,
    FrontGone,
}

/// News of the command. One process at a time receives them: the agent, or the keeper if there is
/// no agent any more.
pub(super) struct Relay<'a> {
    inherited: &'a InheritedDescriptors,
    /// `None` if the waiter had ended before this process started.
    waiter: Option<OwnedFd>,
    command: Option<OwnedFd>,
    is_front_gone: bool,
    is_stopped: bool,
}

impl<'a> Relay<'a> {
    /// Continues where another process stopped.
    pub(super) fn new(inherited: &'a InheritedDescriptors) -> Self {
        let open = |pid: &SharedPid| sys::pidfd::open(pid.get()).ok();
        Self {
            inherited,
            waiter: open(&inherited.shared_state.waiter_pid),
            command: open(&inherited.shared_state.command_pid),
            is_front_gone: false,
            is_stopped: false,
        }
    }

    /// Continues for another relay of this process, which knows whether the command is stopped.
    pub(super) fn after(inherited: &'a InheritedDescriptors, is_stopped: bool) -> Self {
        Self {
            is_stopped,
            ..Self::new(inherited)
        }
    }

    /// Returns true if the command was stopped according to the last news.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns the descriptors to poll; see [`Relay::next`].
    pub(super) fn polled(&self) -> Vec<PollFd<'_>> {
        let mut polled = vec![PollFd::new(
            self.inherited.from_waiter.file().as_fd(),
            poll::IN,
        )];
        polled.extend(
            self.waiter
                .as_ref()
                .map(|fd| PollFd::new(fd.as_fd(), poll::IN)),
        );
        if !self.is_front_gone {
            polled.push(PollFd::new(self.inherited.front.as_fd(), poll::IN));
        }
        polled
    }

    /// Returns the next news, if there is any.
    pub(super) fn next(&self) -> Option<CommandEvent> {
        // The waiter is checked before its pipe: a waiter that has ended has written everything
        // when the pipe is read.
        let has_ended = |fd: &OwnedFd| is_readable(fd.as_fd(), Duration::ZERO);
        let is_waiter_gone = self.waiter.as_ref().is_none_or(has_ended);
        if self.inherited.from_waiter.is_ready()
            && let Ok(Some(message)) = self.inherited.from_waiter.receive()
        {
            return Some(CommandEvent::Message(message));
        }
        if is_waiter_gone {
            // The waiter was killed together with its reader.
            return Some(
                self.inherited
                    .shared_state
                    .end()
                    .map_or(CommandEvent::WaiterGone, CommandEvent::Message),
            );
        }
        (!self.is_front_gone && has_ended(&self.inherited.front)).then_some(CommandEvent::FrontGone)
    }

    /// Forwards a piece of news. Returns the end of the command instead of forwarding it; the
    /// caller calls [`Relay::tell_end`] after everything before the end is delivered.
    pub(super) fn pass_on(&mut self, news: CommandEvent) -> Option<Message> {
        match news {
            CommandEvent::FrontGone => {
                // Whoever killed the front meant the command.
                self.kill();
                self.is_front_gone = true;
                None
            }
            CommandEvent::WaiterGone => {
                self.kill();
                // The front must not exit before the command has ended.
                let _ = self
                    .command
                    .as_ref()
                    .map(|command| is_readable(command.as_fd(), KILL_GRACE));
                Some(Message::WaiterGone)
            }
            // Signals to the front are sent from here because the kernel keeps their order: a
            // continuation takes back a stop that came before it, and none that came after.
            CommandEvent::Message(Message::Stopped(SIGSTOP)) => {
                self.is_stopped = true;
                self.signal_front(SIGSTOP);
                None
            }
            CommandEvent::Message(message @ Message::Stopped(_)) => {
                self.is_stopped = true;
                tell(self.inherited, message);
                None
            }
            CommandEvent::Message(Message::Running) => {
                self.is_stopped = false;
                // In this order: see `Front::stop`.
                tell(self.inherited, Message::Running);
                self.signal_front(SIGCONT);
                None
            }
            CommandEvent::Message(end) => Some(end),
        }
    }

    /// Reports the end of the command.
    pub(super) fn tell_end(&self, end: Message) {
        tell(self.inherited, end);
        self.inherited.shared_state.command_end_reported.set(true);
        if self.is_stopped {
            // The front was killed while it was stopped.
            self.signal_front(SIGCONT);
        }
    }

    /// Kills the command.
    pub(super) fn kill(&self) {
        if let Some(command) = &self.command {
            // Fails only if it has just ended.
            let _ = sys::pidfd::send_signal(command.as_fd(), SIGKILL);
        }
    }

    fn signal_front(&self, signal: i32) {
        // The descriptor shows a front that has died.
        let _ = sys::pidfd::send_signal(self.inherited.front.as_fd(), signal);
    }
}

/// Sends a message to the front.
pub(super) fn tell(inherited: &InheritedDescriptors, message: Message) {
    // The descriptor shows a front that has died.
    let _ = inherited.to_front.send(message);
}
