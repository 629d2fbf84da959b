//! Receivers that are stuck in a read of a caller's memory.
//!
//! The page is the workload's, and so is the time until it comes (userfaultfd, FUSE). As long as a
//! receiver is stuck with a process, only pages that are there are read of it. A process that takes
//! them away between the look and the read holds a few receivers at most; then nothing of it is read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::{Pid, Tid};

use super::Seat;
use super::watchdog::STUCK_LIMIT;
use crate::live::census::Census;
use crate::memory::Access;

/// Receivers that one process may hold.
const PROCESS_LIMIT: usize = 4;

/// All that are stuck now.
#[derive(Default)]
pub(crate) struct Stuck {
    seats: Mutex<Vec<(Pid, Arc<Seat>)>>,
    /// How many: the only thing that is looked at for every call.
    count: AtomicUsize,
}

impl Stuck {
    /// A receiver is stuck with a call of this thread.
    pub(crate) fn add(&self, caller: Tid, seat: &Arc<Seat>, census: &Census) {
        let pid = census.thread_group(caller).unwrap_or(Pid(caller.0));
        let mut seats = self.seats();
        seats.push((pid, Arc::clone(seat)));
        self.count.store(seats.len(), Ordering::Release);
    }

    /// Lets go of those that have come back and left.
    pub(crate) fn forget_ended(&self) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut seats = self.seats();
            seats.retain(|(_, seat)| !seat.has_ended());
            self.count.store(seats.len(), Ordering::Release);
        }
    }

    /// What may be read of this thread's memory.
    pub(crate) fn access(&self, caller: Tid, census: &Census) -> Access {
        match self.count.load(Ordering::Acquire) {
            0 => Access::Free,
            STUCK_LIMIT.. => Access::Refused,
            _ => {
                let pid = census.thread_group(caller).unwrap_or(Pid(caller.0));
                match self.seats().iter().filter(|(held, _)| *held == pid).count() {
                    0 => Access::Free,
                    PROCESS_LIMIT.. => Access::Refused,
                    _ => Access::Resident,
                }
            }
        }
    }

    fn seats(&self) -> MutexGuard<'_, Vec<(Pid, Arc<Seat>)>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
