//! Retry schedule for a server that refuses connections.
//!
//! Receivers of alerts are restarted while programs are watched. Alerts that arrive meanwhile wait
//! in the channel's bounded queue and are delivered as soon as the server accepts connections
//! again. An alert is lost only if that takes too long.

use std::io;
use std::time::{Duration, Instant};

use crate::channel::Peer;

/// Pause before the second attempt. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between attempts: alerts must follow soon after the server returns.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// Maximum length of an outage. After that each alert is tried once, so that whoever waits for the
/// channel, for example at the end of a run, does not wait for every alert.
const LIMIT: Duration = Duration::from_secs(10);

/// Failed attempts since the server was last reachable.
#[derive(Debug)]
pub(crate) struct Outage {
    limit: Duration,
    began: Option<Instant>,
    pause: Duration,
}

impl Default for Outage {
    fn default() -> Self {
        Self::of_at_most(LIMIT)
    }
}

impl Outage {
    /// Creates the state without failures. After `limit`, an outage is no longer waited for.
    pub(crate) fn of_at_most(limit: Duration) -> Self {
        Self {
            limit,
            began: None,
            pause: Duration::ZERO,
        }
    }

    /// Waits before the next attempt and publishes the reason. Returns false if the outage has
    /// lasted too long.
    pub(crate) fn wait(&mut self, peer: &Peer, error: &io::Error) -> bool {
        let pause = self.refused(Instant::now());
        let Some(pause) = pause.filter(|_| !peer.is_killed()) else {
            peer.set_trouble(None);
            return false;
        };
        peer.set_trouble(Some(error.to_string()));
        std::thread::sleep(pause);
        true
    }

    /// Marks the server as reachable.
    pub(crate) fn is_over(&mut self, peer: &Peer) {
        if self.began.is_some() {
            self.end();
            peer.set_trouble(None);
        }
    }

    /// Returns the pause after a refused connection; `None` to give up.
    fn refused(&mut self, now: Instant) -> Option<Duration> {
        let began = *self.began.get_or_insert(now);
        if now.duration_since(began) >= self.limit {
            return None;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        Some(self.pause)
    }

    /// Resets the failed attempts.
    pub(crate) fn end(&mut self) {
        *self = Self::of_at_most(self.limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_a_twentieth_of_a_second_and_end() {
        let mut outage = Outage::default();
        let mut now = Instant::now();
        let began = now;
        let mut pauses = Vec::new();
        while let Some(pause) = outage.refused(now) {
            pauses.push(pause.as_millis());
            now += pause;
        }
        assert_eq!(pauses[..6], [50, 100, 200, 400, 800, 800]);
        assert!((LIMIT..LIMIT + LONGEST_PAUSE).contains(&(now - began)));
        assert_eq!(outage.refused(now), None, "nothing waits any more");
        outage.end();
        assert_eq!(outage.refused(now), Some(FIRST_PAUSE), "as the first time");
    }
}
