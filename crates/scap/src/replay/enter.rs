//! Enter events, kept until their exit events.

use crate::read::{KeptParams, Params};

/// The last enter event of each thread, by slot. Storage is reused for the next call.
#[derive(Debug, Default)]
pub(super) struct PendingEnters {
    kept: Vec<Enter>,
    /// Total size of the storage in bytes.
    size: usize,
}

#[derive(Debug, Default)]
struct Enter {
    tid: i64,
    /// Number of the event type; `None` if empty.
    code: Option<u16>,
    params: KeptParams,
}

/// Maximum size of one event in bytes; no known program writes longer ones.
const MAX_ONE: usize = 64 << 10;
/// Maximum total size in bytes. A machine with a thousand busy threads needs a hundredth of it.
const MAX_ALL: usize = 32 << 20;

impl PendingEnters {
    /// Keeps an enter event. Returns false if there is no room.
    #[inline]
    pub(super) fn keep(&mut self, slot: usize, tid: i64, code: u16, params: &Params<'_>) -> bool {
        if self.kept.len() <= slot {
            self.kept.resize_with(slot + 1, Enter::default);
        }
        let enter = &mut self.kept[slot];
        enter.code = None;
        let before = enter.params.capacity();
        if !enter.params.replace(params, MAX_ONE) {
            return false;
        }
        enter.tid = tid;
        enter.code = Some(code);
        self.size = self.size + enter.params.capacity() - before;
        if self.size > MAX_ALL {
            *self = Self::default();
            return false;
        }
        true
    }

    /// Returns the enter parameters of the call that ends with an event of type `code`.
    #[inline]
    pub(super) fn end(&mut self, slot: usize, tid: i64, code: u16) -> Params<'_> {
        let Some(enter) = self.kept.get_mut(slot) else {
            return Params::NONE;
        };
        let begun = enter.code.take();
        if begun.is_some() && begun == code.checked_sub(1) && enter.tid == tid {
            enter.params.params()
        } else {
            Params::NONE
        }
    }

    /// Drops the enter event of a thread.
    #[inline]
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(enter) = self.kept.get_mut(slot) {
            enter.code = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Starts;

    fn kept(bytes: &[u8]) -> KeptParams {
        let mut starts = Starts::default();
        let params = Params::one(bytes, &mut starts);
        let mut kept = KeptParams::default();
        assert!(kept.replace(&params, usize::MAX));
        kept
    }

    #[test]
    fn a_beginning_takes_one_line() {
        assert_eq!(size_of::<Enter>(), 64);
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let long = kept(&[7; 0x8000]);
        let params = long.params();
        let mut enters = PendingEnters::default();
        let mut refused = 0;
        for slot in 0..4000 {
            refused += u32::from(!enters.keep(slot, 1, 4, &params));
            assert!(enters.size <= MAX_ALL);
        }
        assert!(refused > 0);
        assert_eq!(enters.end(3999, 1, 5).get(0), params.get(0));
        // Each ends once.
        assert!(enters.end(3999, 1, 5).is_empty());
        assert!(!enters.keep(0, 1, 4, &kept(&vec![7; MAX_ONE + 1]).params()));
    }

    #[test]
    fn the_end_of_another_call_or_thread_has_no_beginning() {
        let params = kept(&[7]);
        let params = params.params();
        let mut enters = PendingEnters::default();
        for (tid, code) in [(2, 5), (1, 7)] {
            assert!(enters.keep(0, 1, 4, &params));
            assert!(enters.end(0, tid, code).is_empty());
        }
        assert!(enters.keep(0, 1, 4, &params));
        enters.forget(0);
        assert!(enters.end(0, 1, 5).is_empty());
    }
}
