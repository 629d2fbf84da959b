//! The front process: what the caller sees.

use std::os::fd::AsFd;

use sys::clone::CloneFlags;
use sys::poll::{self, PollFd};
use sys::signal::{Signal, SignalStream};

use capture::filter::FilterProgram;

use super::command::Command;
use super::message::{Message, Receiver, channel};
use super::signals::{self, SIGCONT};
use super::{Failure, Launch, Start, agent, orphans};

/// Makes the agent, then stands for the command until it has ended.
pub(super) fn run(
    command: &Command,
    program: &FilterProgram,
    start: Start,
) -> Result<i32, Failure> {
    check_proc()?;
    let (messages, from_agent) = channel().map_err(Failure::io("make a pipe"))?;
    let pid = std::process::id().cast_signed();
    let process = sys::pidfd::open(pid).map_err(Failure::process("open this process"))?;
    let callers_mask = signals::block_forwarded().map_err(Failure::process("block signals"))?;
    let launch = Launch {
        command,
        program,
        callers_mask,
    };
    let seen_by_agent = agent::Front {
        messages,
        pid,
        process,
    };
    // The closure owns the pipe's other end, so that this process does not keep it open.
    let agent = sys::clone::clone_child(CloneFlags::default(), move || {
        agent::run(launch, &seen_by_agent, start)
    })
    .map_err(Failure::process("make the agent process"))?;
    orphans::forget_if_first(pid).map_err(Failure::process("forget orphans"))?;
    let signals = signals::forwarded_stream().map_err(Failure::process("read signals"))?;
    let leads_session = session() == Some(pid);
    let front = Front {
        path: &command.path,
        pid,
        agent,
        from_agent,
        signals,
        leads_session,
    };
    front.stand_in()
}

/// The session, from proc_pid_stat(5): `pid (name) state parent group session`, where the name may
/// have spaces and parentheses. rustix relies on getsid(2) to be positive, but in a container that
/// was not given a session of its own it is 0.
fn session() -> Option<i32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

/// Everything that is learnt of processes comes from `/proc`, by their numbers in this namespace.
fn check_proc() -> Result<(), Failure> {
    let own = std::process::id().to_string();
    let found = std::fs::read_link("/proc/self").map_err(|cause| Failure::Proc {
        cause: match cause.kind() {
            std::io::ErrorKind::NotFound => std::io::Error::other("nothing is mounted there"),
            _ => cause,
        },
    })?;
    if found.as_os_str() == own.as_str() {
        return Ok(());
    }
    let found = found.display();
    let text =
        format!("it belongs to another pid namespace, where this process is {found}, not {own}");
    Err(Failure::Proc {
        cause: std::io::Error::other(text),
    })
}

struct Front<'a> {
    path: &'a std::ffi::CStr,
    pid: i32,
    agent: i32,
    from_agent: Receiver,
    signals: SignalStream,
    leads_session: bool,
}

/// Whom signals are passed on to.
#[derive(Clone, Copy)]
struct Below {
    waiter: i32,
    command: i32,
}

impl Front<'_> {
    fn stand_in(&self) -> Result<i32, Failure> {
        let mut waiter = 0;
        let mut below = None;
        loop {
            if self.wait(below.is_some())? {
                self.forward(below, Since::Running);
                continue;
            }
            match self
                .from_agent
                .receive()
                .map_err(Failure::io("hear from the agent"))?
            {
                Some(Message::Waiter(pid)) => waiter = pid,
                Some(Message::Started(command)) => {
                    below = Some(Below { waiter, command });
                    self.forward(below, Since::Unknown);
                }
                Some(Message::Stopped(signal)) => self.stop(signal),
                // For `stop`.
                Some(Message::Running) => {}
                Some(Message::Ended(status)) => return Ok(status),
                Some(Message::ExecFailed(errno)) => {
                    let path = self.path.to_string_lossy().into_owned();
                    return Err(Failure::Exec {
                        path,
                        cause: os_error(errno),
                    });
                }
                Some(Message::FilterFailed(errno)) => {
                    return Err(Failure::Filter {
                        cause: os_error(errno),
                    });
                }
                Some(Message::NotReady(errno)) => {
                    let action = "make the processes that watch";
                    return Err(Failure::Process {
                        action,
                        cause: os_error(errno),
                    });
                }
                Some(Message::ServicesFailed) => return Err(Failure::Services),
                Some(Message::WaiterGone) => return Err(Failure::Gone { process: "waiter" }),
                None => return Err(Failure::Gone { process: "agent" }),
            }
        }
    }

    /// Waits for a signal (true) or a message (false). Signals wait until there is somebody to
    /// pass them on to.
    fn wait(&self, for_signals: bool) -> Result<bool, Failure> {
        loop {
            let mut polled = [
                PollFd::new(self.from_agent.file().as_fd(), poll::IN),
                PollFd::new(self.signals.as_fd(), poll::IN),
            ];
            let watched = if for_signals { 2 } else { 1 };
            match poll::poll(&mut polled[..watched], None) {
                Ok(_) => return Ok(polled[1].found() != 0),
                Err(error) if error.is(EINTR) => {}
                Err(error) => return Err(Failure::process("wait for the agent")(error)),
            }
        }
    }

    /// Passes on what was sent to this process alone.
    fn forward(&self, below: Option<Below>, since: Since) {
        let Some(below) = below else { return };
        while let Ok(Some(signal)) = self.signals.next() {
            if self.is_ours(&signal) {
                continue;
            }
            // What came before the command existed did not reach it by itself.
            let reached = signals::reached_command(&signal, self.leads_session);
            if reached && matches!(since, Since::Running) {
                continue;
            }
            if signal.signal == SIGCONT {
                // A stop of the whole group has stopped these too, and without them the command
                // would wait for ever in the first call that is looked at.
                let _ = sys::signal::send(self.agent, SIGCONT);
                let _ = sys::signal::send(below.waiter, SIGCONT);
            }
            // Fails only if the command has just ended, which is the next message.
            let _ = sys::signal::send(below.command, signal.signal);
        }
    }

    /// Whether the agent sent it to continue this process, or this process to stop itself.
    fn is_ours(&self, signal: &Signal) -> bool {
        const SI_USER: i32 = 0;
        signal.code == SI_USER && [self.agent, self.pid].contains(&signal.pid)
    }

    /// The command was stopped: so is this process, as the caller's job control expects. Whoever
    /// continues it means the command.
    ///
    /// The command may be running again. The agent says so before it sends SIGCONT: if nothing
    /// was said after the stop became pending, SIGCONT is yet to come and finds the stop.
    fn stop(&self, signal: i32) {
        // Blocked; fails for no reason that is known.
        let _ = sys::signal::send(self.pid, signal);
        if !self.from_agent.is_ready() {
            let _ = signals::take_stop(signal);
        }
        // A stop that was not taken is read, and left alone, by `forward`.
    }
}

/// When a signal may have come.
enum Since {
    /// While the command existed.
    Running,
    /// Perhaps before.
    Unknown,
}

fn os_error(errno: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno)
}

const EINTR: i32 = 4;
