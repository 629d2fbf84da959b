//! Status of a supervisor's receivers, shared with the process that supervises it.
//!
//! The status is in memory that both processes share and that outlives the supervisor: the calls it holds,
//! the progress of its receivers, and its totals. Each receiver writes words of its own, so a call costs some
//! twenty stores, in two cache lines, and no locked instruction. The kernel itself writes there what a
//! receiver is given: a receiver that is killed in the same moment leaves no unknown call behind.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sys::notify::{Listener, Notification, Received, Slot};
use sys::shared::SharedWords;

use super::watchdog::STUCK_LIMIT;
use decoder::counters::CounterSnapshot;

/// Index of the id of the first call that was received; the kernel counts up from a random number.
const FIRST_ID: usize = 0;
/// Index of a counter that grows while the supervisor's threads are scheduled.
const TICKS: usize = 1;
/// Index of the first total.
const TOTALS: usize = 2;
/// Index of the claim to receive; see `claim.rs`.
const CLAIM: usize = 62;
/// Index of the number of slots in use: slots from this number on need not be read, nor have memory.
const SEATS_USED: usize = 63;
/// Index of the first receiver's words.
pub(super) const SEATS: usize = 64;
/// Maximum number of receivers at once: two, the thread that answers a runtime, and those that hostile pages hold up.
pub(super) const SEAT_COUNT: usize = 3 + STUCK_LIMIT;

/// Word indices of one receiver.
pub(super) mod seat {
    /// Calls received.
    pub(in crate::notify) const RECEIVED: usize = 0;
    /// Calls that the receiver has finished.
    pub(in crate::notify) const DONE: usize = 1;
    /// Id of the last call.
    pub(in crate::notify) const ID: usize = 2;
    /// Architecture and number of the last call.
    pub(in crate::notify) const CALL: usize = 3;
    /// Buffer where the kernel writes the received notification.
    pub(in crate::notify) const SLOT: usize = 4;
    /// Number of words: whole cache lines, so that no two receivers share one.
    pub(in crate::notify) const WORDS: usize = 16;
}

/// Shared memory of one supervisor's status.
#[derive(Debug)]
pub struct ReceiverStatus {
    words: Arc<SharedWords>,
    base: usize,
    free: Mutex<Vec<usize>>,
}

/// Signs that a supervisor works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Number of calls received plus number of calls finished.
    pub progress: u64,
    /// True if it is working on a call.
    pub is_busy: bool,
    /// Counter that grows while its threads are scheduled.
    pub ticks: u64,
}

/// Call that a receiver was working on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldCall {
    /// Notification id.
    pub id: u64,
    /// Architecture, as the kernel's audit number.
    pub audit: u32,
    /// Number of the call in its architecture.
    pub nr: u32,
    /// True if its receiver had begun, and may have let the call go.
    pub is_begun: bool,
}

impl ReceiverStatus {
    /// Number of words of a status.
    pub const WORDS: usize = SEATS + SEAT_COUNT * seat::WORDS;

    /// Creates a status from the words from `base` on.
    ///
    /// # Panics
    ///
    /// If there are fewer than [`ReceiverStatus::WORDS`].
    pub fn new(words: Arc<SharedWords>, base: usize) -> Self {
        assert!(words.words().len() >= base + Self::WORDS, "too few words");
        Self {
            words,
            base,
            free: Mutex::new((0..SEAT_COUNT).rev().collect()),
        }
    }

    /// Creates a status that no other process reads.
    ///
    /// # Errors
    ///
    /// If no memory is available.
    pub fn private() -> std::io::Result<Self> {
        let (words, _file): (SharedWords, OwnedFd) = SharedWords::create(Self::WORDS)?;
        Ok(Self::new(Arc::new(words), 0))
    }

    pub(super) fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[self.base + index]
    }

    /// Returns the claim word. [`ReceiverStatus::reset`] keeps it: a withdrawn claim stays withdrawn.
    pub(super) fn claim_word(&self) -> &AtomicU64 {
        self.word(CLAIM)
    }

    pub(super) fn seat_word(&self, seat: usize, index: usize) -> &AtomicU64 {
        self.word(SEATS + seat * seat::WORDS + index)
    }

    pub(super) fn slot(&self, seat: usize) -> Slot<'_> {
        let at = self.base + SEATS + seat * seat::WORDS + seat::SLOT;
        Slot::new(&self.words.words()[at..])
    }

    /// Notes the id of a call that may be the first: receivers may note theirs in another order than they
    /// received them in.
    fn note_first(&self, id: u64) {
        let first = self.word(FIRST_ID);
        let is_older = |known: u64| known == 0 || id.wrapping_sub(known) > u64::MAX / 2;
        let mut known = first.load(Ordering::Relaxed);
        while is_older(known) {
            match first.compare_exchange_weak(known, id, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => known = now,
            }
        }
    }

    /// Returns words for a receiver. There are as many as there can be receivers; should they ever run out
    /// the last ones are shared, which blurs the status.
    pub fn seat(self: &Arc<Self>) -> SlotStatus {
        let free = self
            .free
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let number = free.unwrap_or(SEAT_COUNT - 1);
        let used = u64::try_from(number + 1).expect("a small number");
        self.word(SEATS_USED).fetch_max(used, Ordering::AcqRel);
        SlotStatus {
            pulse: Arc::clone(self),
            number,
            is_own: free.is_some(),
            is_left: false,
        }
    }

    /// Returns the range of slots in use.
    pub(super) fn used(&self) -> std::ops::Range<usize> {
        let used = self.word(SEATS_USED).load(Ordering::Acquire);
        0..usize::try_from(used).map_or(SEAT_COUNT, |used| used.min(SEAT_COUNT))
    }

    /// Publishes the totals and increments the tick counter.
    pub(crate) fn tick(&self, totals: &CounterSnapshot) {
        for (index, total) in totals.values().into_iter().enumerate() {
            self.word(TOTALS + index).store(total, Ordering::Relaxed);
        }
        self.word(TICKS).fetch_add(1, Ordering::Release);
    }

    /// Returns the totals as last published.
    pub fn totals(&self) -> CounterSnapshot {
        CounterSnapshot::from_values(|index| self.word(TOTALS + index).load(Ordering::Relaxed))
    }

    /// Returns the signs that the supervisor works.
    pub fn vitals(&self) -> Health {
        let mut vitals = Health {
            ticks: self.word(TICKS).load(Ordering::Acquire),
            ..Health::default()
        };
        for number in self.used() {
            // Read in this order, a receiver that finishes between the two reads looks busy at most.
            let done = self.seat_word(number, seat::DONE).load(Ordering::Acquire);
            let received = self
                .seat_word(number, seat::RECEIVED)
                .load(Ordering::Acquire);
            vitals.progress = vitals.progress.wrapping_add(received).wrapping_add(done);
            vitals.is_busy |= received != done;
        }
        vitals
    }

    /// Returns the calls that receivers are working on, and those that they have just been given. The list is
    /// complete only when the supervisor has ended, for the kernel may be writing. A call that one receiver
    /// has taken over from another counts once.
    pub fn held(&self) -> Vec<HeldCall> {
        let mut all = Vec::<HeldCall>::new();
        for held in self.used().flat_map(|number| self.held_by(number)) {
            match all.iter_mut().find(|other| other.id == held.id) {
                Some(other) => other.is_begun |= held.is_begun,
                None => all.push(held),
            }
        }
        all
    }

    fn held_by(&self, number: usize) -> impl Iterator<Item = HeldCall> {
        let load = |index| self.seat_word(number, index).load(Ordering::Acquire);
        let id = load(seat::ID);
        let at_work = (load(seat::RECEIVED) != load(seat::DONE)).then(|| {
            let call = load(seat::CALL);
            HeldCall {
                id,
                audit: u32::try_from(call >> 32).expect("32 bits are left"),
                nr: u32::try_from(call & u64::from(u32::MAX)).expect("masked"),
                is_begun: true,
            }
        });
        let given = self.slot(number).call().filter(|given| given.id != id);
        let given = given.map(|given| HeldCall {
            id: given.id,
            audit: given.arch,
            nr: given.nr,
            is_begun: false,
        });
        at_work.into_iter().chain(given)
    }

    /// Marks a call of a supervisor that has ended as finished: it is no longer [held](Self::held).
    pub fn settle(&self, id: u64) {
        for number in self.used() {
            let word = |index| self.seat_word(number, index);
            if self.slot(number).id() == id {
                word(seat::ID).store(id, Ordering::Release);
            }
            if word(seat::ID).load(Ordering::Acquire) == id {
                let received = word(seat::RECEIVED).load(Ordering::Acquire);
                word(seat::DONE).store(received, Ordering::Release);
            }
        }
    }

    /// Returns the ids of the first and the newest call that were received; `None` before the first.
    pub fn ids(&self) -> Option<(u64, u64)> {
        let first = self.word(FIRST_ID).load(Ordering::Acquire);
        if first == 0 {
            return None;
        }
        let age = |number| {
            let id = self.seat_word(number, seat::ID).load(Ordering::Acquire);
            // A slot that was never used would be as old as the kernel's random start.
            if id == 0 { 0 } else { id.wrapping_sub(first) }
        };
        let newest = self.used().map(age).filter(|age| *age < u64::MAX / 2);
        Some((first, first.wrapping_add(newest.max().unwrap_or(0))))
    }

    /// Clears the totals and the ticks.
    pub(super) fn reset_totals(&self) {
        for index in TICKS..CLAIM {
            self.word(index).store(0, Ordering::Release);
        }
    }

    /// Resets the words for a new supervisor. Only allowed when the former one has ended.
    pub fn reset(&self) {
        for index in SEATS..SEATS + self.used().end * seat::WORDS {
            self.word(index).store(0, Ordering::Release);
        }
        self.reset_totals();
        self.word(FIRST_ID).store(0, Ordering::Release);
        // Last: a process that is killed meanwhile leaves it to the next one.
        self.word(SEATS_USED).store(0, Ordering::Release);
    }
}

/// Words of one receiver.
#[derive(Debug)]
pub struct SlotStatus {
    pulse: Arc<ReceiverStatus>,
    number: usize,
    /// True if no other receiver shares the words.
    is_own: bool,
    /// True if the received call is left for another to finish.
    is_left: bool,
}

impl SlotStatus {
    fn word(&self, index: usize) -> &AtomicU64 {
        self.pulse.seat_word(self.number, index)
    }

    /// Waits for a call. The call is [held](ReceiverStatus::held) from the moment on in which the kernel gives it.
    pub(crate) fn receive(
        &self,
        listener: &Listener,
        notification: &mut Notification,
    ) -> sys::Result<Received> {
        match self.is_own {
            true => listener.receive_into(self.pulse.slot(self.number), notification),
            false => listener.receive(notification),
        }
    }

    /// Notes that the receiver begins with a call, which it has received or taken over from another.
    pub fn received(&self, notification: &Notification) {
        let slot = self.pulse.slot(self.number);
        // The receiver has finished any call that this slot held before.
        if slot.id() != notification.id {
            slot.clear();
        }
        let call = u64::from(notification.arch) << 32 | u64::from(notification.nr);
        self.word(seat::ID)
            .store(notification.id, Ordering::Relaxed);
        self.word(seat::CALL).store(call, Ordering::Relaxed);
        let received = self.word(seat::RECEIVED);
        received.store(received.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.pulse.note_first(notification.id);
    }

    /// Notes that the receiver has taken over a call from another one, which left or is stuck and does not
    /// finish it. That one no longer holds it.
    pub(crate) fn took_over(&self, notification: &Notification) {
        for number in self.pulse.used().filter(|number| *number != self.number) {
            let word = |index| self.pulse.seat_word(number, index);
            if word(seat::ID).load(Ordering::Acquire) == notification.id {
                let received = word(seat::RECEIVED).load(Ordering::Acquire);
                word(seat::DONE).store(received, Ordering::Release);
            }
        }
    }

    /// Notes that the call is finished.
    pub(crate) fn done(&self) {
        let received = self.word(seat::RECEIVED).load(Ordering::Relaxed);
        self.word(seat::DONE).store(received, Ordering::Release);
    }

    /// Leaves the words as they are to the next receiver, which finishes the received call.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for SlotStatus {
    fn drop(&mut self) {
        if !self.is_left {
            self.done();
        }
        if self.is_own {
            let free = self.pulse.free.lock();
            let mut free = free.unwrap_or_else(PoisonError::into_inner);
            free.push(self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: u64) -> Notification {
        Notification {
            id,
            nr: 257,
            arch: 0xc000_003e,
            ..Notification::default()
        }
    }

    #[test]
    fn what_a_receiver_holds_shows_until_it_is_done() {
        let (words, file) = SharedWords::create(ReceiverStatus::WORDS + 8).expect("memory");
        let pulse = Arc::new(ReceiverStatus::new(Arc::new(words), 8));
        let seen = SharedWords::open(std::os::fd::AsFd::as_fd(&file), ReceiverStatus::WORDS + 8);
        let seen = ReceiverStatus::new(Arc::new(seen.expect("the same file")), 8);
        let (first, second) = (pulse.seat(), pulse.seat());
        assert_eq!((seen.vitals(), seen.ids()), (Health::default(), None));
        first.received(&call(41));
        second.received(&call(42));
        first.done();
        let held = seen.held();
        let expected = HeldCall {
            id: 42,
            audit: 0xc000_003e,
            nr: 257,
            is_begun: true,
        };
        assert_eq!(held, [expected]);
        assert_eq!(seen.ids(), Some((41, 42)));
        let vitals = seen.vitals();
        assert!(vitals.is_busy);
        drop(second);
        assert!(!seen.vitals().is_busy);
        assert_eq!(seen.vitals().progress, vitals.progress + 1);
        seen.reset();
        assert_eq!(seen.vitals(), Health::default());
    }

    #[test]
    fn no_two_receivers_are_given_calls_in_one_place() {
        let pulse = Arc::new(ReceiverStatus::private().expect("memory"));
        assert_eq!(pulse.used(), 0..0);
        let mut seats: Vec<_> = (0..SEAT_COUNT).map(|_| pulse.seat()).collect();
        assert!(seats.iter().all(|seat| seat.is_own));
        // More receivers cannot exist; an extra one leaves the others their words.
        assert!(!pulse.seat().is_own && !pulse.seat().is_own);
        assert_eq!(pulse.used(), 0..SEAT_COUNT);
        let left = seats.pop().expect("there are some").number;
        let next = pulse.seat();
        assert!(next.is_own && next.number == left);
        assert!(!pulse.seat().is_own);
        pulse.reset();
        assert_eq!(pulse.used(), 0..0);
    }

    #[test]
    fn a_call_is_held_by_who_took_it_over_and_by_nobody_when_that_is_done() {
        let pulse = Arc::new(ReceiverStatus::private().expect("memory"));
        let ids =
            |pulse: &ReceiverStatus| pulse.held().iter().map(|held| held.id).collect::<Vec<_>>();
        let (answering, receiver) = (pulse.seat(), pulse.seat());
        answering.received(&call(41));
        answering.leave();
        assert_eq!(ids(&pulse), [41], "it waits for the next one");
        receiver.received(&call(41));
        assert_eq!(ids(&pulse), [41], "of two that show it, it is one");
        receiver.took_over(&call(41));
        assert_eq!(ids(&pulse), [41]);
        receiver.done();
        assert!(pulse.held().is_empty());
        assert!(!pulse.vitals().is_busy);
        // One that is stuck for ever, and a neighbour, whose own call stays.
        let (stuck, next, neighbour) = (pulse.seat(), pulse.seat(), pulse.seat());
        stuck.received(&call(42));
        neighbour.received(&call(43));
        next.received(&call(42));
        next.took_over(&call(42));
        next.done();
        assert_eq!(ids(&pulse), [43]);
    }

    #[test]
    fn ids_may_wrap_around() {
        let pulse = Arc::new(ReceiverStatus::private().expect("memory"));
        let seat = pulse.seat();
        seat.received(&call(u64::MAX - 1));
        seat.received(&call(3));
        assert_eq!(pulse.ids(), Some((u64::MAX - 1, 3)));
    }

    #[test]
    fn the_first_id_is_the_oldest_whoever_tells_of_it_first() {
        let pulse = Arc::new(ReceiverStatus::private().expect("memory"));
        let (early, late) = (pulse.seat(), pulse.seat());
        late.received(&call(1));
        early.received(&call(u64::MAX));
        late.received(&call(2));
        assert_eq!(pulse.ids(), Some((u64::MAX, 2)));
    }

    #[test]
    fn what_the_kernel_has_given_is_held_before_the_receiver_tells_of_it() {
        let pulse = Arc::new(ReceiverStatus::private().expect("memory"));
        let seat = pulse.seat();
        seat.received(&call(7));
        seat.done();
        let given = |id: u64| {
            // As the kernel lays it out: the id, then the number with the architecture above it.
            let at = |index| pulse.seat_word(0, seat::SLOT + index);
            at(0).store(id, Ordering::Release);
            at(2).store(0xc000_003e << 32 | 257, Ordering::Release);
        };
        let ids = || pulse.held().iter().map(|held| held.id).collect::<Vec<_>>();
        given(8);
        let expected = HeldCall {
            id: 8,
            audit: 0xc000_003e,
            nr: 257,
            is_begun: false,
        };
        assert_eq!(pulse.held(), [expected]);
        seat.received(&call(8));
        assert_eq!(ids(), [8]);
        seat.done();
        assert!(ids().is_empty());
        // A call that is taken over from another receiver is not in this slot.
        seat.received(&call(5));
        assert_eq!(ids(), [5]);
        seat.done();
        assert!(ids().is_empty());
    }

    #[test]
    fn totals_come_back_as_they_were() {
        let pulse = ReceiverStatus::private().expect("memory");
        let totals = CounterSnapshot::from_values(|index| index as u64 + 1);
        assert!(totals.values().len() <= SEATS_USED - TOTALS);
        pulse.tick(&totals);
        assert_eq!((pulse.totals(), pulse.vitals().ticks), (totals, 1));
    }
}
