//! Why something about an event could not be learnt.

use std::fmt;

use event::field::Mechanism;
use event::{Event, Name, Outcome, Param, PathGap, Process, StartTime, Tid};

use super::obstacle::{AccessObstacle, obstacle};
use process_info::procfs::{Proc, ProcError};

/// What kept the agent from learning something about an event that rules ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Bytes that the call moved are never captured.
    MovedBytes,
    /// The kernel of a sandbox says what it says.
    Sandbox,
    /// The path of a file was not told.
    Path(PathGap),
    /// Memory that the call points to was read inside the kernel, which waits for no page.
    Absent,
    /// Memory that the call points to was not mapped, or missed the deadline.
    Unreadable,
    /// The agent may not look into the process.
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
    /// Of an event with undecided rules. `look` looks at its process ([`Cause::of_process`]), and is
    /// called only if the event does not say it itself.
    pub fn of(event: &Event<'_>, look: impl FnOnce() -> Option<Self>) -> Self {
        let specs = event.kind.spec().params.iter();
        let lacks_memory = specs
            .zip(event.params)
            .any(|(spec, param)| spec.source.is_in_memory() && matches!(param, Param::Unreadable))
            || event.descriptor.is_some_and(|of| {
                let has_unread = |socket: event::Socket<'_>| socket.has_unread_address();
                of.name == Name::Unreadable || of.socket.is_some_and(has_unread)
            });
        let mechanism = event.world.mechanism();
        if event.lacks_moved_bytes() {
            return Self::MovedBytes;
        }
        if mechanism == Some(Mechanism::Gvisor) {
            return Self::Sandbox;
        }
        if let Some(gap) = event.world.path_gap() {
            return Self::Path(gap);
        }
        if lacks_memory && mechanism == Some(Mechanism::Ebpf) {
            return Self::Absent;
        }
        look().unwrap_or(match event.outcome {
            _ if lacks_memory => Self::Unreadable,
            Outcome::Unlearnt => Self::Result,
            _ if event.lacks_arguments() => Self::Uncaptured,
            _ => Self::Elsewhere,
        })
    }

    /// What keeps the agent from looking into a thread of a process now.
    pub fn of_process(process: &Process, tid: Tid) -> Option<Self> {
        if has_ended(process, tid) {
            return Some(Self::Ended);
        }
        obstacle(tid).map(Self::Obstacle)
    }
}

/// Whether the thread is no more, or has nothing left that could be looked at.
fn has_ended(process: &Process, tid: Tid) -> bool {
    let Ok(proc) = Proc::open() else {
        return false;
    };
    // Of a caller of which nothing could be learnt.
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
                "bytes that a call receives, or takes from several buffers, are not captured"
            }
            Self::Sandbox => "the kernel of the sandbox does not tell it",
            Self::Path(PathGap::Cut) => "the path of a file is longer than what is told of it",
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
            Self::Ended => "the thread had ended before it was looked at",
            Self::Result => "the call returned unseen",
            Self::Uncaptured => {
                "an argument is read by no engine, or something was gone when it was looked at"
            }
            Self::Elsewhere => {
                "a file, a descriptor or a container of its was gone when it was looked at, or did \
                 not come in time"
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
