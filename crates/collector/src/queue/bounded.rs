//! A map with a bound, which forgets the oldest entries first.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Instant;

/// Part of the entries that is forgotten at once, so that a full map does not look for the oldest one with each new entry.
const PART: usize = 16;

/// A map of at most so many entries.
pub(super) struct Bounded<K, V> {
    entries: HashMap<K, (Instant, V)>,
    bound: usize,
}

impl<K: Copy + Eq + Hash, V> Bounded<K, V> {
    pub(super) fn new(bound: usize) -> Self {
        Self {
            entries: HashMap::new(),
            bound: bound.max(1),
        }
    }

    /// Returns the time and the value of an entry.
    pub(super) fn get(&self, key: &K) -> Option<(Instant, &V)> {
        let (time, value) = self.entries.get(key)?;
        Some((*time, value))
    }

    /// Adds or replaces an entry, which is as old as `time`.
    pub(super) fn insert(&mut self, key: K, time: Instant, value: V) {
        if self.entries.len() >= self.bound && !self.entries.contains_key(&key) {
            self.forget_oldest();
        }
        self.entries.insert(key, (time, value));
    }

    fn forget_oldest(&mut self) {
        let mut times: Vec<(Instant, K)> = Vec::with_capacity(self.entries.len());
        times.extend(self.entries.iter().map(|(key, (time, _))| (*time, *key)));
        let count = (self.bound / PART).max(1);
        times.select_nth_unstable_by_key(count - 1, |(time, _)| *time);
        for (_, key) in &times[..count] {
            self.entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_full_map_forgets_the_oldest_entries() {
        let began = Instant::now();
        let at = |second: u64| began + Duration::from_secs(second);
        let mut map = Bounded::new(32);
        for n in 0..32_u64 {
            map.insert(n, at(100 + n), n);
        }
        // It has been used since.
        map.insert(0, at(500), 0);
        map.insert(99, at(600), 99);
        let kept: Vec<u64> = (0..100).filter(|n| map.get(n).is_some()).collect();
        let mut expected: Vec<u64> = (3..32).collect();
        expected.insert(0, 0);
        expected.push(99);
        assert_eq!(kept, expected);
        assert_eq!(map.get(&99), Some((at(600), &99)));
    }
}
