//! Types of fields of the shared state: each is one 64-bit atomic, with the operations of its kind
//! of value.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::crash;

sys::shared_layout! {
    /// A number.
    #[derive(Debug)]
    pub(crate) struct SharedNumber {
        value: AtomicU64,
    }
}

impl SharedNumber {
    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, value: u64) {
        crash::point();
        self.value.store(value, Ordering::Release);
    }

    pub(crate) fn add(&self, value: u64) {
        crash::point();
        self.value.fetch_add(value, Ordering::AcqRel);
    }

    /// Sets the number to `value` if that is more.
    pub(crate) fn raise(&self, value: u64) {
        crash::point();
        self.value.fetch_max(value, Ordering::AcqRel);
    }

    /// Subtracts `value`, but not below 0.
    pub(crate) fn subtract(&self, value: u64) {
        crash::point();
        let less = |before: u64| Some(before.saturating_sub(value));
        let updated = self
            .value
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        debug_assert!(updated.is_ok(), "there is always a difference");
    }

    /// Returns by how much the number is above `other`; 0 if it is not.
    pub(crate) fn above(&self, other: &Self) -> u64 {
        self.get().saturating_sub(other.get())
    }

    /// Returns the number and leaves 0.
    pub(crate) fn take(&self) -> u64 {
        crash::point();
        self.value.swap(0, Ordering::AcqRel)
    }

    /// Replaces `before` by `after`. Returns true if the number was `before`.
    pub(crate) fn replace(&self, before: u64, after: u64) -> bool {
        crash::point();
        self.value
            .compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

sys::shared_layout! {
    /// A pid; 0 if unknown.
    #[derive(Debug)]
    pub(crate) struct SharedPid {
        pid: SharedNumber,
    }
}

impl SharedPid {
    pub(crate) fn get(&self) -> i32 {
        i32::try_from(self.pid.get()).unwrap_or(0)
    }

    pub(crate) fn set(&self, pid: i32) {
        self.pid.set(u64::try_from(pid).unwrap_or(0));
    }
}

sys::shared_layout! {
    /// A flag.
    #[derive(Debug)]
    pub(crate) struct SharedFlag {
        flag: SharedNumber,
    }
}

impl SharedFlag {
    pub(crate) fn get(&self) -> bool {
        self.flag.get() != 0
    }

    pub(crate) fn set(&self, holds: bool) {
        self.flag.set(u64::from(holds));
    }
}

sys::shared_layout! {
    /// A set of bits.
    #[derive(Debug)]
    pub(crate) struct SharedBits {
        bits: AtomicU64,
    }
}

impl SharedBits {
    pub(crate) fn get(&self) -> u64 {
        self.bits.load(Ordering::Acquire)
    }

    pub(crate) fn insert(&self, bits: u64) {
        crash::point();
        self.bits.fetch_or(bits, Ordering::AcqRel);
    }

    /// Removes bits and returns those that were set.
    pub(crate) fn remove(&self, bits: u64) -> u64 {
        crash::point();
        self.bits.fetch_and(!bits, Ordering::AcqRel) & bits
    }

    /// Returns all bits and clears them.
    pub(crate) fn take(&self) -> u64 {
        crash::point();
        self.bits.swap(0, Ordering::AcqRel)
    }
}
