//! Matches opens that the file system reports with opens that the engine saw.
//!
//! Either may come first: the engine sees a call before the file is open, and learns what a racy caller
//! really opened only afterwards. An open that the engine has not entered within [`PATIENCE_NS`] has bypassed
//! it.

use std::collections::{HashMap, HashSet, VecDeque};

/// Maximum delay, in nanoseconds, of the engine behind the file system.
pub(crate) const PATIENCE_NS: u64 = 50_000_000;
/// Maximum delay, in nanoseconds, of the file system behind the engine: its events wait in a queue.
const CREDIT_NS: u64 = 1_000_000_000;
/// Maximum number of files remembered that the engine saw opened for writing.
const WRITTEN_LIMIT: usize = 4096;
/// Minimum number of files in the ledger before those without credit are dropped.
const SWEEP_AFTER: usize = 1024;

/// Key of a watched file: the watch, and the name below it if that is a folder.
pub(crate) type Key = (i32, Vec<u8>);

/// Opens as each side reported them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Times of opens that the engine saw and the file system has not reported.
    seen: HashMap<Key, VecDeque<u64>>,
    /// Files that the engine saw opened for writing.
    written: HashSet<Key>,
    /// Events that the file system reported and the engine has not, oldest first.
    pending: VecDeque<(Key, FileEvent, u64)>,
    /// Files added to `seen` since the last sweep.
    added: usize,
}

/// Event that the file system reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEvent {
    /// An open.
    Open,
    /// The end of an open for writing.
    Write,
}

impl Ledger {
    /// Enters an open that the engine saw.
    pub(crate) fn saw(&mut self, key: Key, writes: bool, now_ns: u64) {
        if writes {
            if self.written.len() >= WRITTEN_LIMIT {
                self.written.clear();
            }
            self.written.insert(key.clone());
            let is_known =
                |(known, act, _): &(Key, FileEvent, u64)| *known == key && *act == FileEvent::Write;
            self.pending.retain(|pending| !is_known(pending));
        }
        let is_open =
            |(known, act, _): &(Key, FileEvent, u64)| *known == key && *act == FileEvent::Open;
        if let Some(at) = self.pending.iter().position(is_open) {
            self.pending.remove(at);
            return;
        }
        self.sweep(now_ns);
        self.seen.entry(key).or_default().push_back(now_ns);
    }

    /// Drops entries without credit, once as many opens were added as there are files: names that are opened
    /// only once are forgotten after a second.
    fn sweep(&mut self, now_ns: u64) {
        self.added += 1;
        if self.added <= SWEEP_AFTER.max(self.seen.len() / 2) {
            return;
        }
        self.added = 0;
        self.seen.retain(|_, times| {
            times.retain(|time| now_ns.saturating_sub(*time) <= CREDIT_NS);
            !times.is_empty()
        });
    }

    /// Takes back an open that failed, or opened another file. If the entry was matched with another open in
    /// the meantime, that one bypassed the engine after all.
    pub(crate) fn unsaw(&mut self, key: Key, now_ns: u64) {
        let times = self.seen.get_mut(&key);
        if times.and_then(VecDeque::pop_back).is_none() {
            self.pending.push_back((key, FileEvent::Open, now_ns));
        } else if self.seen.get(&key).is_some_and(VecDeque::is_empty) {
            self.seen.remove(&key);
        }
    }

    /// Enters an open that the file system reported. Returns whether the engine saw it.
    pub(crate) fn opened(&mut self, key: Key, now_ns: u64) -> bool {
        if let Some(times) = self.seen.get_mut(&key) {
            let is_old = |time: &u64| now_ns.saturating_sub(*time) > CREDIT_NS;
            while times.front().is_some_and(is_old) {
                times.pop_front();
            }
            if times.pop_front().is_some() {
                return true;
            }
        }
        self.pending.push_back((key, FileEvent::Open, now_ns));
        false
    }

    /// Enters the close of a file that had been open for writing, or created. Returns whether the engine ever
    /// saw it opened for writing.
    pub(crate) fn wrote(&mut self, key: Key, now_ns: u64) -> bool {
        if self.written.contains(&key) {
            return true;
        }
        self.pending.push_back((key, FileEvent::Write, now_ns));
        false
    }

    /// Returns opens that bypassed the engine.
    pub(crate) fn overdue(&mut self, now_ns: u64) -> Vec<(Key, FileEvent)> {
        let mut overdue = Vec::new();
        while let Some((_, _, time)) = self.pending.front()
            && now_ns.saturating_sub(*time) >= PATIENCE_NS
        {
            overdue.extend(self.pending.pop_front().map(|(key, act, _)| (key, act)));
        }
        overdue
    }

    /// Returns whether an event waits for the engine.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        (1, b"shadow".to_vec())
    }

    #[test]
    fn an_open_that_the_engine_saw_is_none_past_it() {
        let mut ledger = Ledger::default();
        ledger.saw(key(), false, 1000);
        assert!(ledger.opened(key(), 2000));
        assert!(ledger.overdue(u64::MAX).is_empty());
    }

    #[test]
    fn what_is_remembered_of_opens_is_bounded() {
        let mut ledger = Ledger::default();
        // A second later none of the entries counts any more.
        for number in 0..200_000_u64 {
            let name = (1, number.to_string().into_bytes());
            let now_ns = number * CREDIT_NS / 1000;
            ledger.saw(name.clone(), false, now_ns);
            ledger.saw(key(), false, now_ns);
            // Half of the opens failed.
            if number % 2 == 0 {
                ledger.unsaw(name, now_ns);
            }
            assert!(ledger.seen.len() <= 2 * SWEEP_AFTER + 2);
        }
        let times: usize = ledger.seen.values().map(VecDeque::len).sum();
        assert!(times <= 4 * SWEEP_AFTER, "{times}");
        let now_ns = 200_000 * CREDIT_NS / 1000;
        assert!(ledger.opened(key(), now_ns), "the last second counts");
    }

    #[test]
    fn the_engine_may_be_late_but_not_too_late() {
        let mut ledger = Ledger::default();
        assert!(!ledger.opened(key(), 1000));
        assert!(ledger.overdue(1000 + PATIENCE_NS - 1).is_empty());
        ledger.saw(key(), false, 1000 + PATIENCE_NS - 1);
        assert!(ledger.overdue(u64::MAX).is_empty() && !ledger.is_waiting());
        assert!(!ledger.opened(key(), 1000));
        assert_eq!(
            ledger.overdue(1000 + PATIENCE_NS),
            [(key(), FileEvent::Open)]
        );
    }

    #[test]
    fn each_open_needs_its_own_account() {
        let mut ledger = Ledger::default();
        ledger.saw(key(), false, 1000);
        let told = [2000, 3000, 4000].map(|time| ledger.opened(key(), time));
        assert_eq!(told, [true, false, false]);
        assert_eq!(ledger.overdue(u64::MAX).len(), 2);
    }

    #[test]
    fn what_the_engine_saw_long_ago_or_took_back_does_not_count() {
        let mut ledger = Ledger::default();
        ledger.saw(key(), false, 1000);
        assert!(!ledger.opened(key(), 1001 + CREDIT_NS));
        ledger.overdue(u64::MAX);
        ledger.saw(key(), false, 1000);
        ledger.unsaw(key(), 1000);
        assert!(!ledger.opened(key(), 1001));
    }

    #[test]
    fn an_account_that_is_taken_back_cannot_have_covered_another_open() {
        let mut ledger = Ledger::default();
        ledger.saw(key(), false, 1000);
        assert!(ledger.opened(key(), 1001));
        ledger.unsaw(key(), 1002);
        assert_eq!(
            ledger.overdue(1002 + PATIENCE_NS),
            [(key(), FileEvent::Open)]
        );
    }

    #[test]
    fn a_file_stays_open_for_writing_as_long_as_it_likes() {
        let mut ledger = Ledger::default();
        ledger.saw(key(), true, 1000);
        assert!(ledger.opened(key(), 1001));
        assert!(ledger.wrote(key(), u64::MAX));
        let other = (1, b"other".to_vec());
        assert!(!ledger.wrote(other.clone(), 5));
        assert_eq!(ledger.overdue(5 + PATIENCE_NS), [(other, FileEvent::Write)]);
    }
}
