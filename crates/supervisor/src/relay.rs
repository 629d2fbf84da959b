//! Passing news of the command on to the front.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use sys::poll::{self, PollFd};

use super::inherited::{InheritedDescriptors, is_readable};
use super::message::Message;
use super::shared_state::SharedPid;
use super::signals::{SIGCONT, SIGKILL, SIGSTOP};

/// How long a killed command may take to end; more only in an uninterruptible call.
const KILL_GRACE: Duration = Duration::from_secs(1);

/// What can be heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandEvent {
    Message(Message),
    WaiterGone,
    FrontGone,
}

/// The news, as one process at a time hears them: the agent, or the keeper if there is no agent
/// any more.
pub(super) struct Relay<'a> {
    inherited: &'a InheritedDescriptors,
    /// `None`: it had ended before this process came.
    waiter: Option<OwnedFd>,
    command: Option<OwnedFd>,
    is_front_gone: bool,
    is_stopped: bool,
}

impl<'a> Relay<'a> {
    /// Goes on where another left off.
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

    /// Goes on for one of the same process, which has heard that the command is stopped, or is not.
    pub(super) fn after(inherited: &'a InheritedDescriptors, is_stopped: bool) -> Self {
        Self {
            is_stopped,
            ..Self::new(inherited)
        }
    }

    /// Whether the last that was heard of the command is that it was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// What to poll for; see [`Relay::next`].
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

    /// The next news, if there are any.
    pub(super) fn next(&self) -> Option<CommandEvent> {
        // The waiter before its pipe: one that has ended has written everything when the pipe is
        // looked at.
        let has_ended = |fd: &OwnedFd| is_readable(fd.as_fd(), Duration::ZERO);
        let is_waiter_gone = self.waiter.as_ref().is_none_or(has_ended);
        if self.inherited.from_waiter.is_ready()
            && let Ok(Some(message)) = self.inherited.from_waiter.receive()
        {
            return Some(CommandEvent::Message(message));
        }
        if is_waiter_gone {
            // One that was killed with its reader.
            return Some(
                self.inherited
                    .shared_state
                    .end()
                    .map_or(CommandEvent::WaiterGone, CommandEvent::Message),
            );
        }
        (!self.is_front_gone && has_ended(&self.inherited.front)).then_some(CommandEvent::FrontGone)
    }

    /// Passes one piece of news on; answers with the end of the command, which the caller tells by
    /// [`Relay::tell_end`] when it has delivered what came before it.
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
                // The front is not to answer to its caller before the command has ended.
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

    /// Tells how the command ended.
    pub(super) fn tell_end(&self, end: Message) {
        tell(self.inherited, end);
        self.inherited.shared_state.command_end_told.set(true);
        if self.is_stopped {
            // Killed while it was stopped.
            self.signal_front(SIGCONT);
        }
    }

    /// Ends the command.
    pub(super) fn kill(&self) {
        if let Some(command) = &self.command {
            // Fails only if it has just ended.
            let _ = sys::pidfd::send_signal(command.as_fd(), SIGKILL);
        }
    }

    fn signal_front(&self, signal: i32) {
        // A front that is gone is noticed by its descriptor.
        let _ = sys::pidfd::send_signal(self.inherited.front.as_fd(), signal);
    }
}

/// Tells the front.
pub(super) fn tell(inherited: &InheritedDescriptors, message: Message) {
    // As above.
    let _ = inherited.to_front.send(message);
}
