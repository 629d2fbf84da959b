//! Watches processes that already run. They depend on no process of ours, so one process of ours is
//! sufficient.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::poll::{self, PollFd};
use sys::signal::{SignalSet, SignalStream};

use super::{AgentStart, SharedState, Source, Start, signals};

/// Interval of checks whether the last process has ended.
const POLL: Duration = Duration::from_millis(20);
/// Generation of the only agent.
const GENERATION: u64 = 0;

/// Reason for the end of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time limit has passed, or a signal requested the end.
    Asked,
    /// No watched process is left.
    NoneLeft,
    /// More events were lost than the configuration allows.
    TooManyLost,
}

/// Signals that ask for the end of a watch.
#[derive(Debug)]
pub struct Ends(SignalStream);

impl Ends {
    /// Waits for such a signal, at most so long; true if there was one.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let mut polled = [PollFd::new(self.0.as_fd(), poll::IN)];
        // An interruption is a reason to check again, too.
        let _ = poll::poll(&mut polled, Some(limit));
        matches!(self.0.next(), Ok(Some(_)))
    }
}

/// Prepares a watch whose services the caller starts itself.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The process cannot be hidden, or its memory or signals cannot be set up.
pub fn begin(source: Source) -> anyhow::Result<(AgentStart, Ends)> {
    super::hide()?;
    let (shared_state, file) = SharedState::create()?;
    // Before the services block all signals, and before there is a thread.
    let ends = SignalStream::new(SignalSet::of(&signals::ENDS))?;
    let listening = AgentStart {
        source,
        transparent: Vec::new(),
        shared_state: Arc::new(shared_state),
        generation: GENERATION,
        is_resumed: false,
        held: None,
        shared_state_file: Some(file),
        runtime: None,
        ticket: None,
    };
    Ok((listening, Ends(ends)))
}

/// Watches until the processes have ended, the time limit has passed, or a signal requests the end.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// The services do not start, for example because a process may not be traced.
pub fn watch(source: Source, limit: Option<Duration>, start: Start) -> anyhow::Result<End> {
    let (listening, ends) = begin(source)?;
    let services = start(listening, None)?;
    let mut end = End::Asked;
    // A limit beyond the clock's range is no limit.
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        if services.has_ended() {
            end = if services.has_given_up() {
                End::TooManyLost
            } else {
                End::NoneLeft
            };
            break;
        }
        if ends.wait(POLL) {
            break;
        }
    }
    services.let_go();
    services.finish();
    Ok(end)
}
