//! Watching processes that run already. Nothing of theirs is ours, so one process of ours is enough.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::poll::{self, PollFd};
use sys::signal::{SignalSet, SignalStream};

use super::{AgentStart, SharedState, Source, Start, signals};

/// Time between two looks whether the last process has ended.
const POLL: Duration = Duration::from_millis(20);
/// Number of the only agent.
const GENERATION: u64 = 0;

/// Why a watch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The time was over, or a signal asked for it.
    Asked,
    /// No watched process is left.
    NoneLeft,
    /// More events were lost than the configuration allows.
    TooManyLost,
}

/// Watches until the processes have ended, or the time is over, or a signal asks for the end.
///
/// Preconditions: the process has one thread.
///
/// # Errors
///
/// If the services do not start, for example because a process may not be traced.
pub fn watch(source: Source, limit: Option<Duration>, start: Start) -> anyhow::Result<End> {
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
        ticket: None,
    };
    let services = start(listening, None)?;
    let mut end = End::Asked;
    // A limit that no clock reaches is none.
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
        let mut polled = [PollFd::new(ends.as_fd(), poll::IN)];
        // An interruption is a reason to look again, too.
        let _ = poll::poll(&mut polled, Some(POLL));
        if matches!(ends.next(), Ok(Some(_))) {
            break;
        }
    }
    services.let_go();
    services.finish();
    Ok(end)
}
