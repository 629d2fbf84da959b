//! Evaluator of records for one thread.

use std::sync::Arc;

use bumpalo::Bump;
use event::{Evaluator, PathGap};
use sys::time::{Clock, now_ns};

use super::Shared;
use super::record::Header;
use process_info::memory::Memory;
use process_info::sockets::ResolvedDescriptor;

/// State of one thread that evaluates records.
pub(super) struct RecordEvaluator<J: Evaluator> {
    pub(super) shared: Arc<Shared<J>>,
    pub(super) evaluator: Arc<J>,
    pub(super) scratch: J::Scratch,
    pub(super) memory: Memory,
    pub(super) arena: Bump,
    pub(super) directories: Vec<(i32, Vec<u8>)>,
    /// Reason why a path of the record is unknown.
    pub(super) path_gap: Option<PathGap>,
    /// Standard streams of the process that a record is about; `None` for one that is closed.
    pub(super) streams: Vec<(i32, Option<ResolvedDescriptor>)>,
    /// Offset from time since boot to time since the epoch, in nanoseconds.
    pub(super) epoch: u64,
}

impl<J: Evaluator + 'static> RecordEvaluator<J> {
    pub(super) fn new(shared: Arc<Shared<J>>) -> Self {
        let evaluator = shared.evaluator.load_full();
        Self {
            scratch: evaluator.scratch(),
            evaluator,
            memory: Memory::captured(),
            arena: Bump::with_capacity(64 * 1024),
            directories: Vec::new(),
            path_gap: None,
            streams: Vec::new(),
            epoch: epoch(),
            shared,
        }
    }

    /// Updates rules and clock offset.
    pub(super) fn follow_rules(&mut self) {
        let evaluator = self.shared.evaluator.load();
        if !Arc::ptr_eq(&evaluator, &self.evaluator) {
            self.scratch = evaluator.scratch();
            self.evaluator = Arc::clone(&evaluator);
        }
        self.epoch = epoch();
    }

    /// Evaluates the records that belong to one of several threads.
    pub(super) fn evaluate_share<'r>(
        &mut self,
        records: impl Iterator<Item = &'r [u8]>,
        share: usize,
        count: usize,
    ) {
        let own = records.filter(|record| owner(record, count) == share);
        own.for_each(|record| self.evaluate(record));
    }
}

/// Returns which of several threads evaluates a record: all records of one process belong to the same thread.
pub(super) fn owner(record: &[u8], count: usize) -> usize {
    // A malformed record belongs to no process; the first thread counts it.
    let pid = Header::pid(record).unwrap_or(0);
    usize::try_from(pid).unwrap_or(0) % count
}

/// Computes the offset anew, as the clock may have been set.
fn epoch() -> u64 {
    now_ns(Clock::Real).wrapping_sub(now_ns(Clock::Boot))
}
