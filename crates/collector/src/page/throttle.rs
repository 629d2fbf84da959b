//! How often someone may try to log in.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Failures after which attempts wait: by name and address; by name, whatever the address; and by address, whatever
/// the name.
const OF_BOTH: u32 = 5;
const OF_NAME: u32 = 50;
const OF_ADDRESS: u32 = 50;

/// Time after which one failure is forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// Pairs of name and address that are known to belong together at most.
const KNOWN: usize = 10_000;

/// Recent failures.
///
/// Keys that hash to the same slot share a counter, so the number of counters is bounded and every attempt is counted,
/// whatever names and addresses come. Whoever shares a slot waits earlier. Nobody outside knows the hash.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    failures: HashMap<Slot, (u32, Instant)>,
    /// Hashes of a name and the address from which its user has logged in: failures elsewhere do not lock it out.
    known: HashSet<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Both(u16),
    Name(u16),
    Address(u16),
}

/// Returns the failures that are not forgotten yet.
fn current((count, since): (u32, Instant), now: Instant) -> u32 {
    let forgotten = now.saturating_duration_since(since).as_secs() / FORGET.as_secs();
    count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
}

impl Throttle {
    fn slots(&self, name: &str, address: &str) -> [(Slot, u32); 3] {
        // The low 16 bits.
        let slot = |hash: u64| (hash & 0xffff) as u16;
        [
            (Slot::Both(slot(self.pair(name, address))), OF_BOTH),
            (Slot::Name(slot(self.hasher.hash_one(name))), OF_NAME),
            (
                Slot::Address(slot(self.hasher.hash_one(address))),
                OF_ADDRESS,
            ),
        ]
    }

    fn pair(&self, name: &str, address: &str) -> u64 {
        self.hasher.hash_one((name, address))
    }

    /// Counts an attempt before it is made, so that many at the same time count, too. Returns false if it has to wait.
    pub(super) fn admit(&self, name: &str, address: &str, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let slots = self.slots(name, address);
        let is_known = state.known.contains(&self.pair(name, address));
        let is_over = |(slot, limit): &(Slot, u32)| {
            let seen = state.failures.get(slot);
            let is_exempt = is_known && matches!(slot, Slot::Name(_));
            !is_exempt && seen.is_some_and(|seen| current(*seen, now) >= *limit)
        };
        if slots.iter().any(is_over) {
            return false;
        }
        for (slot, _) in slots {
            let seen = state.failures.entry(slot).or_insert((0, now));
            *seen = (current(*seen, now) + 1, now);
        }
        true
    }

    /// Takes back an attempt that has succeeded and does not come again.
    pub(super) fn take_back(&self, name: &str, address: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, _) in self.slots(name, address) {
            if let Some((count, _)) = state.failures.get_mut(&slot) {
                *count = count.saturating_sub(1);
            }
        }
    }

    /// Forgets the failures of someone who has logged in.
    pub(super) fn forgive(&self, name: &str, address: &str) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (slot, _) in self.slots(name, address) {
            match slot {
                // What one user of an address may do is no answer for the others.
                Slot::Address(_) => {}
                slot => drop(state.failures.remove(&slot)),
            }
        }
        if state.known.len() >= KNOWN {
            state.known.clear();
        }
        state.known.insert(self.pair(name, address));
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
    fn attempts_that_are_taken_back_leave_those_that_are_not() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for n in 0..200 {
            let name = n.to_string();
            assert!(throttle.admit(&name, "a", now), "{name}");
            throttle.take_back(&name, "a");
        }
        let tried = (0..200).filter(|n| throttle.admit(&n.to_string(), "a", now));
        assert_eq!(tried.count(), usize::try_from(OF_ADDRESS).expect("small"));
    }

    #[test]
    fn many_addresses_guess_no_longer_than_many_passwords() {
        let throttle = Throttle::default();
        let now = Instant::now();
        let tried = (0..200).filter(|n| throttle.admit("ann", &n.to_string(), now));
        assert_eq!(tried.count(), usize::try_from(OF_NAME).expect("small"));
    }

    #[test]
    fn many_names_and_addresses_do_not_make_room_for_guesses() {
        let throttle = Throttle::default();
        let now = Instant::now();
        for n in 0..40_000 {
            throttle.admit(&format!("name {n}"), &format!("address {n}"), now);
        }
        let tried = (0..100).filter(|_| throttle.admit("ann", "a", now));
        assert!(tried.count() <= usize::try_from(OF_BOTH).expect("small"));
        let tried = (0..200).filter(|n| throttle.admit("bob", &n.to_string(), now));
        assert!(tried.count() <= usize::try_from(OF_NAME).expect("small"));
    }

    #[test]
    fn failures_elsewhere_lock_nobody_out_of_a_known_address() {
        let throttle = Throttle::default();
        let now = Instant::now();
        assert!(throttle.admit("ann", "home", now));
        throttle.forgive("ann", "home");
        let tried = (0..200).filter(|n| throttle.admit("ann", &n.to_string(), now));
        assert_eq!(tried.count(), usize::try_from(OF_NAME).expect("small"));
        assert!(throttle.admit("ann", "home", now) && !throttle.admit("ann", "hotel", now));
        let more = (0..100).filter(|_| throttle.admit("ann", "home", now));
        assert_eq!(more.count(), usize::try_from(OF_BOTH - 1).expect("small"));
    }
}
