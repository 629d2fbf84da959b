//! Receivers that are stuck with a caller.
//!
//! In a read of its memory: the workload decides when the page comes (userfaultfd, FUSE). As long as a
//! receiver is stuck with a process, only resident pages of that process are read. A process that takes pages
//! away between the check and the read holds a few receivers at most; then nothing of it is read.
//!
//! In attaching to it: the kernel makes that wait for an exec in the same process (`cred_guard_mutex`), and
//! the exec for its file, which the workload may serve as well. Until then no receiver attaches to another
//! thread of the process, and results of its calls are not learned.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::{Pid, Tid};

use super::ReceiverSlot;
use super::spare_threads::BlockingOperation;
use super::watchdog::STUCK_LIMIT;
use decoder::process_inspector::ProcessInspector;
use process_info::memory::Access;

/// Maximum number of receivers that one process may hold.
const PROCESS_LIMIT: usize = 4;

/// All receivers that are stuck now.
#[derive(Default)]
pub(crate) struct StuckReceivers {
    seats: Mutex<Vec<Held>>,
    /// Number of stuck receivers, or a higher one while no other may get stuck: the only field that every call reads.
    count: AtomicUsize,
    /// True if no spare thread is left.
    is_spared: AtomicBool,
}

struct Held {
    pid: Pid,
    hazard: BlockingOperation,
    seat: Arc<ReceiverSlot>,
}

impl StuckReceivers {
    /// Adds a receiver that is stuck with a call of this thread.
    pub(crate) fn add(
        &self,
        caller: Tid,
        hazard: BlockingOperation,
        seat: &Arc<ReceiverSlot>,
        inspector: &ProcessInspector,
    ) {
        let pid = process_of(caller, inspector);
        let seat = Arc::clone(seat);
        let mut seats = self.seats();
        seats.push(Held { pid, hazard, seat });
        self.count(&seats);
    }

    /// Removes receivers that have returned and left.
    pub(crate) fn forget_ended(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut seats = self.seats();
            seats.retain(|held| !held.seat.has_ended());
            self.count(&seats);
        }
    }

    /// Sets whether the remaining receivers must not be put at risk.
    pub(crate) fn spare(&self, is_spared: bool) {
        if self.is_spared.swap(is_spared, Ordering::AcqRel) != is_spared {
            self.count(&self.seats());
        }
    }

    /// Returns what may be read of this thread's memory.
    pub(crate) fn access(&self, caller: Tid, inspector: &ProcessInspector) -> Access {
        match self.count.load(Ordering::Acquire) {
            0 => Access::Free,
            STUCK_LIMIT.. => Access::Refused,
            _ => match self.held_by(caller, BlockingOperation::Reading, inspector) {
                0 => Access::Free,
                PROCESS_LIMIT.. => Access::Refused,
                _ => Access::Resident,
            },
        }
    }

    /// Returns whether a thread may be attached to.
    pub(crate) fn may_attach(&self, caller: Tid, inspector: &ProcessInspector) -> bool {
        match self.count.load(Ordering::Acquire) {
            0 => true,
            STUCK_LIMIT.. => false,
            _ => self.held_by(caller, BlockingOperation::Attaching, inspector) == 0,
        }
    }

    /// Returns the number of receivers that the caller's process holds.
    fn held_by(
        &self,
        caller: Tid,
        hazard: BlockingOperation,
        inspector: &ProcessInspector,
    ) -> usize {
        let pid = process_of(caller, inspector);
        let seats = self.seats();
        let is_one = |held: &&Held| held.pid == pid && held.hazard == hazard;
        seats.iter().filter(is_one).count()
    }

    fn count(&self, seats: &[Held]) {
        let count = if self.is_spared.load(Ordering::Acquire) {
            seats.len().max(STUCK_LIMIT)
        } else {
            seats.len()
        };
        self.count.store(count, Ordering::Release);
    }

    fn seats(&self) -> MutexGuard<'_, Vec<Held>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn process_of(caller: Tid, inspector: &ProcessInspector) -> Pid {
    inspector.thread_group(caller).unwrap_or(Pid(caller.0))
}
