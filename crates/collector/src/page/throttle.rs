//! How often someone may try to log in.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Failures after which attempts wait: by name and address, so that nobody can lock others out from elsewhere;
/// by name, whatever the address; and by address, whatever the name.
const OF_BOTH: u32 = 5;
const OF_NAME: u32 = 50;
const OF_ADDRESS: u32 = 50;

/// Time after which one failure is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// Keys that are remembered at most.
const REMEMBERED: usize = 10_000;

/// Recent failures by key.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    failures: Mutex<HashMap<Key, (u32, Instant)>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    Both(String, String),
    Name(String),
    Address(String),
}

fn keys(name: &str, address: &str) -> [(Key, u32); 3] {
    let (name, address) = (name.to_owned(), address.to_owned());
    [
        (Key::Both(name.clone(), address.clone()), OF_BOTH),
        (Key::Name(name), OF_NAME),
        (Key::Address(address), OF_ADDRESS),
    ]
}

/// Returns the failures that are not forgotten yet.
fn current((count, since): (u32, Instant), now: Instant) -> u32 {
    let forgotten = now.saturating_duration_since(since).as_secs() / FORGET.as_secs();
    count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
}

impl Throttle {
    /// Counts an attempt before it is made, so that many at the same time count, too. Returns false if it has to wait.
    pub(super) fn admit(&self, name: &str, address: &str, now: Instant) -> bool {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let keys = keys(name, address);
        let is_over = |(key, limit): &(Key, u32)| {
            let seen = failures.get(key);
            seen.is_some_and(|seen| current(*seen, now) >= *limit)
        };
        if keys.iter().any(is_over) {
            return false;
        }
        if failures.len() > REMEMBERED {
            failures.retain(|_, seen| current(*seen, now) > 0);
        }
        // Still too many: an attack. Its own names are not worth remembering.
        let is_full = failures.len() > REMEMBERED;
        for (key, _) in keys {
            if is_full && !failures.contains_key(&key) {
                continue;
            }
            let seen = failures.entry(key).or_insert((0, now));
            *seen = (current(*seen, now) + 1, now);
        }
        true
    }

    /// Forgets the failures of someone who has logged in.
    pub(super) fn forgive(&self, name: &str, address: &str) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, _) in keys(name, address) {
            match key {
                // What one user of an address may do is no answer for the others.
                Key::Address(_) => {}
                key => drop(failures.remove(&key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sixth_attempt_waits_and_others_do_not() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for _ in 0..OF_BOTH {
            assert!(throttle.admit("ann", "a", now));
        }
        assert!(!throttle.admit("ann", "a", now));
        assert!(throttle.admit("ann", "b", now) && throttle.admit("bob", "a", now));
        assert!(throttle.admit("ann", "a", now + FORGET));
        assert!(!throttle.admit("ann", "a", now + FORGET));
        throttle.forgive("ann", "a");
        assert!(throttle.admit("ann", "a", now + FORGET));
    }

    #[test]
    fn many_addresses_guess_no_longer_than_many_passwords() {
        let throttle = Throttle::default();
        let now = Instant::now();
        let tried = (0..200).filter(|n| throttle.admit("ann", &n.to_string(), now));
        assert_eq!(tried.count(), usize::try_from(OF_NAME).expect("small"));
    }
}
