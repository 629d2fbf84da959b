//! Rate limit for alerts.

use std::time::Instant;

/// Rate limit for alerts: Falco's `outputs.rate` and `outputs.max_burst`, as in Falco up to version
/// 0.41.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThrottleRate {
    /// Average alerts per second. 0 means no limit.
    pub per_second: f64,
    /// Maximum burst after an idle period.
    pub max_burst: u32,
}

impl Default for ThrottleRate {
    fn default() -> Self {
        Self {
            per_second: 0.0,
            max_burst: 1000,
        }
    }
}

/// A token bucket: an alert takes a token; tokens return at a fixed rate.
#[derive(Debug)]
pub struct Throttle {
    rate: ThrottleRate,
    tokens: f64,
    filled: Instant,
}

impl Throttle {
    /// Creates a full bucket.
    pub fn new(rate: ThrottleRate, now: Instant) -> Self {
        Self {
            rate,
            tokens: f64::from(rate.max_burst),
            filled: now,
        }
    }

    /// Changes the rate. The bucket is refilled if the rate differs.
    pub fn set_rate(&mut self, rate: ThrottleRate, now: Instant) {
        if rate != self.rate {
            *self = Self::new(rate, now);
        }
    }

    /// Takes a token. Returns false if there is none.
    pub fn admit(&mut self, now: Instant) -> bool {
        if self.rate.per_second <= 0.0 {
            return true;
        }
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens =
            (self.tokens + passed * self.rate.per_second).min(f64::from(self.rate.max_burst));
        self.filled = self.filled.max(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn admitted(throttle: &mut Throttle, now: Instant, tries: u32) -> u32 {
        (0..tries).map(|_| u32::from(throttle.admit(now))).sum()
    }

    #[test]
    fn rate_zero_admits_everything() {
        let now = Instant::now();
        let mut throttle = Throttle::new(
            ThrottleRate {
                per_second: 0.0,
                max_burst: 0,
            },
            now,
        );
        assert_eq!(admitted(&mut throttle, now, 5000), 5000);
    }

    #[test]
    fn burst_first_then_the_rate() {
        let start = Instant::now();
        let mut throttle = Throttle::new(
            ThrottleRate {
                per_second: 2.0,
                max_burst: 10,
            },
            start,
        );
        assert_eq!(admitted(&mut throttle, start, 50), 10);
        assert_eq!(
            admitted(&mut throttle, start + Duration::from_secs(3), 50),
            6
        );
        assert_eq!(
            admitted(&mut throttle, start + Duration::from_secs(1000), 50),
            10
        );
    }

    #[test]
    fn fractions_of_a_token_add_up_and_time_never_runs_backwards() {
        let start = Instant::now();
        let mut throttle = Throttle::new(
            ThrottleRate {
                per_second: 1.0,
                max_burst: 1,
            },
            start,
        );
        assert!(throttle.admit(start));
        assert!(!throttle.admit(start + Duration::from_millis(600)));
        assert!(!throttle.admit(start + Duration::from_millis(500)));
        assert!(throttle.admit(start + Duration::from_millis(1001)));
    }
}
