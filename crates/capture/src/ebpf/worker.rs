//! What one thread needs to judge records.

use std::sync::Arc;

use bumpalo::Bump;
use event::{Evaluator, PathGap};
use sys::time::{Clock, now_ns};

use super::Shared;
use super::record::Header;
use process_info::memory::Memory;
use process_info::sockets::ResolvedDescriptor;

/// What one thread needs to judge records.
pub(super) struct RecordEvaluator<J: Evaluator> {
    pub(super) shared: Arc<Shared<J>>,
    pub(super) judge: Arc<J>,
    pub(super) scratch: J::Scratch,
    pub(super) memory: Memory,
    pub(super) arena: Bump,
    pub(super) directories: Vec<(i32, Vec<u8>)>,
    /// Why a path of the record's is not known.
    pub(super) path_gap: Option<PathGap>,
    /// Standard streams of the process that a record is about; `None` of one that is closed.
    pub(super) streams: Vec<(i32, Option<ResolvedDescriptor>)>,
    /// Added to a time since boot to get one since the epoch.
    pub(super) epoch: u64,
}

impl<J: Evaluator + 'static> RecordEvaluator<J> {
    pub(super) fn new(shared: Arc<Shared<J>>) -> Self {
        let judge = shared.judge.load_full();
        Self {
            scratch: judge.scratch(),
            judge,
            memory: Memory::captured(),
            arena: Bump::with_capacity(64 * 1024),
            directories: Vec::new(),
            path_gap: None,
            streams: Vec::new(),
            epoch: epoch(),
            shared,
        }
    }

    /// Goes by the rules, and by the clock, as they are now.
    pub(super) fn follow_rules(&mut self) {
        let judge = self.shared.judge.load();
        if !Arc::ptr_eq(&judge, &self.judge) {
            self.scratch = judge.scratch();
            self.judge = Arc::clone(&judge);
        }
        self.epoch = epoch();
    }

    /// Judges those records that fall to one of so many threads.
    pub(super) fn judge_share<'r>(
        &mut self,
        records: impl Iterator<Item = &'r [u8]>,
        share: usize,
        count: usize,
    ) {
        let own = records.filter(|record| owner(record, count) == share);
        own.for_each(|record| self.judge(record));
    }
}

/// Which of so many threads judges a record: all those of one process fall to the same.
pub(super) fn owner(record: &[u8], count: usize) -> usize {
    // One that makes no sense is nobody's, and counted by the first.
    let pid = Header::pid(record).unwrap_or(0);
    usize::try_from(pid).unwrap_or(0) % count
}

/// The clock may have been set since.
fn epoch() -> u64 {
    now_ns(Clock::Real).wrapping_sub(now_ns(Clock::Boot))
}
