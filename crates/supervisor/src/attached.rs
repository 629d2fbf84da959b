//! Watches processes that already run. They depend on no process of ours, so one process of ours is
//! sufficient.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::poll::{self, PollFd};
use sys::signal::{SignalSet, SignalStream};

use super::{AgentStart, SharedState, Source, Start, agent, signals};

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
    // Best effort, as in an agent that was started again: a watch works with few descriptors, too, and says so where one
    // is missing.
    let _ = agent::raise_descriptor_limit();
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Set in the process that has a low limit.
    const LIMITED: &str = "TOLLGATE_TEST_HAS_A_LOW_LIMIT";

    #[test]
    fn a_watch_raises_its_limit_of_descriptors() {
        if std::env::var_os(LIMITED).is_some() {
            return begin_with_a_low_limit();
        }
        // The limit and the signals are those of a whole process, in which other tests run.
        let mut again = Command::new("sh");
        again.args(["-c", "ulimit -Sn 64; exec \"$0\" --exact \"$1\""]);
        again.arg(std::env::current_exe().unwrap());
        again.arg("attached::tests::a_watch_raises_its_limit_of_descriptors");
        let output = again.env(LIMITED, "1").output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{printed}");
        assert!(printed.contains("1 passed"), "{printed}");
    }

    fn begin_with_a_low_limit() {
        begin(Source::Nothing).unwrap();
        let limit = sys::resource::limit(0, abi::constant::RLIMIT_NOFILE.u32()).unwrap();
        assert!(limit.soft > 64, "{limit:?}");
        assert_eq!(limit.soft, limit.hard);
    }
}
