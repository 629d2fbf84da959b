//! A server at which nobody listens: when to try again, and when to give up.
//!
//! Receivers of alerts are restarted while programs are watched. What comes meanwhile waits in the
//! channel's queue, which is bounded, and is delivered as soon as somebody listens again; an alert is
//! lost only if that takes too long.

use std::io;
use std::time::{Duration, Instant};

use crate::channel::Peer;

/// Before the second try; each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Long enough not to be felt, short enough that alerts come soon after the server.
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How long a server may be away. Later each alert is tried once, so that those who wait for the
/// channel, at the end of a run for example, do not wait for every one of them.
const LIMIT: Duration = Duration::from_secs(10);

/// Tries in vain since the server was last there.
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
    /// None yet; of one that lasts longer no end is waited for.
    pub(crate) fn of_at_most(limit: Duration) -> Self {
        Self {
            limit,
            began: None,
            pause: Duration::ZERO,
        }
    }

    /// Nobody listens: waits a while, and shows why; false if that has taken too long.
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

    /// Somebody listens.
    pub(crate) fn is_over(&mut self, peer: &Peer) {
        if self.began.is_some() {
            self.end();
            peer.set_trouble(None);
        }
    }

    /// A connection was refused: how long to wait before the next try; `None`: no more.
    fn refused(&mut self, now: Instant) -> Option<Duration> {
        let began = *self.began.get_or_insert(now);
        if now.duration_since(began) >= self.limit {
            return None;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        Some(self.pause)
    }

    /// Forgets the tries in vain.
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
