//! Receivers that are stuck with a caller.
//!
//! In a read of its memory: the page is the workload's, and so is the time until it comes
//! (userfaultfd, FUSE). As long as a receiver is stuck with a process, only pages that are there are
//! read of it. A process that takes them away between the look and the read holds a few receivers at
//! most; then nothing of it is read.
//!
//! Attaching to it: the kernel makes that wait for an exec in the same process (`cred_guard_mutex`),
//! and the exec for its file, which may be the workload's own as well. As long, nobody attaches to
//! another thread of the process, and results of its calls are not learnt.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::{Pid, Tid};

use super::ReceiverSlot;
use super::spare_threads::BlockingOperation;
use super::watchdog::STUCK_LIMIT;
use decoder::process_inspector::ProcessInspector;
use process_info::memory::Access;

/// Receivers that one process may hold.
const PROCESS_LIMIT: usize = 4;

/// All that are stuck now.
#[derive(Default)]
pub(crate) struct StuckReceivers {
    seats: Mutex<Vec<Held>>,
    /// How many, or more where no other may be: the only thing that is looked at for every call.
    count: AtomicUsize,
    /// No thread is left that could take another one's place.
    is_spared: AtomicBool,
}

struct Held {
    pid: Pid,
    hazard: BlockingOperation,
    seat: Arc<ReceiverSlot>,
}

impl StuckReceivers {
    /// A receiver is stuck with a call of this thread.
    pub(crate) fn add(
        &self,
        caller: Tid,
        hazard: BlockingOperation,
        seat: &Arc<ReceiverSlot>,
        census: &ProcessInspector,
    ) {
        let pid = process_of(caller, census);
        let seat = Arc::clone(seat);
        let mut seats = self.seats();
        seats.push(Held { pid, hazard, seat });
        self.count(&seats);
    }

    /// Lets go of those that have come back and left.
    pub(crate) fn forget_ended(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut seats = self.seats();
            seats.retain(|held| !held.seat.has_ended());
            self.count(&seats);
        }
    }

    /// Whether those that are left are to be put at no risk.
    pub(crate) fn spare(&self, is_spared: bool) {
        if self.is_spared.swap(is_spared, Ordering::AcqRel) != is_spared {
            self.count(&self.seats());
        }
    }

    /// What may be read of this thread's memory.
    pub(crate) fn access(&self, caller: Tid, census: &ProcessInspector) -> Access {
        match self.count.load(Ordering::Acquire) {
            0 => Access::Free,
            STUCK_LIMIT.. => Access::Refused,
            _ => match self.held_by(caller, BlockingOperation::Reading, census) {
                0 => Access::Free,
                PROCESS_LIMIT.. => Access::Refused,
                _ => Access::Resident,
            },
        }
    }

    /// Whether a thread may be attached to.
    pub(crate) fn may_attach(&self, caller: Tid, census: &ProcessInspector) -> bool {
        match self.count.load(Ordering::Acquire) {
            0 => true,
            STUCK_LIMIT.. => false,
            _ => self.held_by(caller, BlockingOperation::Attaching, census) == 0,
        }
    }

    /// How many receivers the caller's process holds.
    fn held_by(&self, caller: Tid, hazard: BlockingOperation, census: &ProcessInspector) -> usize {
        let pid = process_of(caller, census);
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

fn process_of(caller: Tid, census: &ProcessInspector) -> Pid {
    census.thread_group(caller).unwrap_or(Pid(caller.0))
}
