//! Hints which paths lead through a symbolic link.
//!
//! A hint saves a lookup that would fail. It decides nothing about the file: a wrong one costs a read of the file's path.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

/// Number of hints. A program loads a few dozen libraries.
const HINTS: usize = 512;

struct Hints {
    secret: RandomState,
    /// Hashes of paths, each in the slot of its lowest bits; 0 for none.
    paths: [u64; HINTS],
}

thread_local! {
    static KNOWN: RefCell<Hints> = RefCell::new(Hints {
        secret: RandomState::new(),
        paths: [0; HINTS],
    });
}

impl Hints {
    fn place(&self, path: &[u8]) -> (usize, u64) {
        let hash = self.secret.hash_one(path);
        let slot = usize::try_from(hash % HINTS as u64).unwrap_or(0);
        (slot, hash)
    }
}

/// Returns whether this thread has met a link at this path, as far as it remembers.
pub(super) fn was_met(path: &[u8]) -> bool {
    KNOWN.with_borrow(|known| {
        let (slot, hash) = known.place(path);
        known.paths[slot] == hash
    })
}

/// Notes that a path leads through a link.
pub(super) fn note(path: &[u8]) {
    KNOWN.with_borrow_mut(|known| {
        let (slot, hash) = known.place(path);
        known.paths[slot] = hash;
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_remembered_until_another_takes_its_place() {
        assert!(!was_met(b"/lib/a.so"));
        note(b"/lib/a.so");
        assert!(was_met(b"/lib/a.so"));
        assert!(!was_met(b"/lib/b.so"));
        for number in 0..100 * HINTS {
            note(number.to_string().as_bytes());
        }
        assert!(!was_met(b"/lib/a.so"));
    }
}
