//! Reasons why data about an event was unavailable.

use std::fmt;

use event::EngineKind;
use event::{Event, Name, Outcome, Param, PathGap, Process, StartTime, Tid};

use super::obstacle::{AccessObstacle, obstacle};
use process_info::procfs::{Proc, ProcError};

/// Reason why data that rules ask for was unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bytes that the call moved are never captured.
    MovedBytes,
    /// The kernel of a sandbox does not report it.
    Sandbox,
    /// The path of a file was not reported.
    Path(PathGap),
    /// Memory that the call points to was not resident: it was read inside the kernel, which waits for no page.
    Absent,
    /// Memory that the call points to was not mapped, or missed the deadline.
    Unreadable,
    /// The agent may not inspect the process.
    Obstacle(AccessObstacle),
    /// The thread had ended by then.
    Ended,
    /// The call returned unseen.
    Result,
    /// The call has an argument that no engine reads.
    Uncaptured,
    /// None of these: descriptors are closed, files replaced, and file systems slow.
    Elsewhere,
}

impl Cause {
    /// Returns the reason for an event with undecided rules. `look` inspects its process
    /// ([`Cause::of_process`]), and is called only if the event does not show the reason itself.
    pub fn of(event: &Event<'_>, look: impl FnOnce() -> Option<Self>) -> Self {
        let specs = event.kind.spec().params.iter();
        let lacks_memory = specs
            .zip(event.params)
            .any(|(spec, param)| spec.source.is_in_memory() && matches!(param, Param::Unreadable))
            || event.descriptor.is_some_and(|of| {
                let has_unread = |socket: event::Socket<'_>| socket.has_unread_address();
                of.name == Name::Unreadable || of.socket.is_some_and(has_unread)
            });
        let engine = event.world.engine();
        if event.lacks_moved_bytes() {
            return Self::MovedBytes;
        }
        if engine == Some(EngineKind::Gvisor) {
            return Self::Sandbox;
        }
        if let Some(gap) = event.world.path_gap() {
            return Self::Path(gap);
        }
        if lacks_memory && engine == Some(EngineKind::Ebpf) {
            return Self::Absent;
        }
        look().unwrap_or(match event.outcome {
            _ if lacks_memory => Self::Unreadable,
            Outcome::Unlearnt => Self::Result,
            _ if event.lacks_arguments() => Self::Uncaptured,
            _ => Self::Elsewhere,
        })
    }

    /// Returns what keeps the agent from inspecting a thread of a process now.
    pub fn of_process(process: &Process, tid: Tid) -> Option<Self> {
        if has_ended(process, tid) {
            return Some(Self::Ended);
        }
        obstacle(tid).map(Self::Obstacle)
    }
}

/// Returns whether the thread has ended, or has nothing left to inspect.
fn has_ended(process: &Process, tid: Tid) -> bool {
    let Ok(proc) = Proc::open() else {
        return false;
    };
    // A caller about which nothing could be read.
    let is_nameless = process.start == StartTime(0);
    if !is_nameless
        && proc
            .stat_of(process.pid.0, process.start)
            .is_err_and(is_gone)
    {
        return true;
    }
    match proc.stat(tid.0) {
        Ok(thread) => matches!(thread.state, b'Z' | b'X'),
        Err(error) => is_gone(error),
    }
}

fn is_gone(error: ProcError) -> bool {
    matches!(error, ProcError::Gone { .. } | ProcError::Reused { .. })
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MovedBytes => {
                "received data and data in several buffers are not captured"
            }
            Self::Sandbox => "the kernel of the sandbox does not report it",
            Self::Path(PathGap::Cut) => "the path of a file is too long and was truncated",
            Self::Path(PathGap::Unreachable) => {
                "a file was moved out of its mount, or lies in no folder"
            }
            Self::Absent => {
                "memory that the call points to was not resident when the call returned"
            }
            Self::Unreadable => {
                "memory that the call points to was not mapped, or did not come in time"
            }
            Self::Obstacle(obstacle) => return obstacle.fmt(f),
            Self::Ended => "the thread exited before it was inspected",
            Self::Result => "the call returned unseen",
            Self::Uncaptured => {
                "an argument is not supported by the engine, or its object was gone when inspected"
            }
            Self::Elsewhere => {
                "a file, descriptor or container was gone when inspected, or did not respond in time"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use event::Pid;

    use super::*;
    use decoder::tree::stranger;

    #[test]
    fn who_has_ended_is_told_from_who_runs() {
        let own = stranger(Tid(std::process::id().cast_signed()));
        assert_eq!(Cause::of_process(&own, Tid(own.pid.0)), None);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let ended = stranger(Tid(child.id().cast_signed()));
        assert_eq!(ended.pid, Pid(child.id().cast_signed()));
        let cause = Cause::of_process(&ended, Tid(ended.pid.0));
        assert_eq!(cause, Some(Cause::Ended));
    }
}
