//! Reading the workload's memory under a deadline.
//!
//! `process_vm_readv(2)` waits for as long as a page takes to arrive, and the workload decides how
//! long that is (userfaultfd, FUSE). The wait cannot be interrupted, so a read is announced in a
//! [`Gauge`] that the watchdog samples; a thread that stays in one read for longer than the
//! deadline is replaced, and the call it was reading for is treated as unreadable.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bumpalo::Bump;
use event::Tid;

/// Longest string read from a caller: `PATH_MAX`; the kernel reads no more of a path either.
pub(crate) const STRING_LIMIT: usize = 4096;
/// Most array elements (argv) read from a caller; Falco's own limit is of the same order.
pub(crate) const TEXTS_LIMIT: usize = 256;

/// Tells a watchdog whether its thread is inside something that may not return.
///
/// Odd: inside; even: outside. Seeing the same odd number twice means that one entry has lasted for
/// at least the time between. That costs the thread two relaxed writes and no clock.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn enter(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn leave(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// The entry number if inside.
    pub(crate) fn inside(&self) -> Option<u64> {
        let value = self.0.load(Ordering::Acquire);
        (value % 2 == 1).then_some(value)
    }
}

/// Why memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The address is not mapped; the call itself will most likely fail with `EFAULT`.
    Fault,
    /// The reader may not look into this process.
    Refused,
    /// The process is gone.
    Gone,
}

/// Access to the memory of callers for one thread.
#[derive(Debug)]
pub(crate) struct Memory {
    gauge: Arc<Gauge>,
    refused: Cell<bool>,
    buffer: RefCell<Vec<u8>>,
}

impl Memory {
    pub(crate) fn new(gauge: Arc<Gauge>) -> Self {
        let buffer = RefCell::new(Vec::with_capacity(STRING_LIMIT));
        Self {
            gauge,
            refused: Cell::new(false),
            buffer,
        }
    }

    /// While set, every read answers [`Unreadable::Refused`]: used for the call that made an
    /// earlier reader miss its deadline.
    pub(crate) fn refuse(&self, refused: bool) {
        self.refused.set(refused);
    }

    /// A NUL-terminated string of at most [`STRING_LIMIT`] bytes.
    pub(crate) fn text<'a>(
        &self,
        tid: Tid,
        address: u64,
        arena: &'a Bump,
    ) -> Result<&'a [u8], Unreadable> {
        let mut buffer = self.buffer.borrow_mut();
        self.guarded(|| {
            sys::process_memory::read_c_string(tid.0, address, &mut buffer, STRING_LIMIT)
        })?;
        Ok(arena.alloc_slice_copy(&buffer))
    }

    /// Fills `buffer` or nothing.
    pub(crate) fn read_exact(&self, tid: Tid, address: u64, buffer: &mut [u8]) -> Option<()> {
        let wanted = buffer.len();
        let len = self
            .guarded(|| sys::process_memory::read(tid.0, address, buffer))
            .ok()?;
        (len == wanted).then_some(())
    }

    /// As much as there is, up to `len` bytes.
    pub(crate) fn bytes<'a>(
        &self,
        tid: Tid,
        address: u64,
        len: usize,
        arena: &'a Bump,
    ) -> Result<&'a [u8], Unreadable> {
        let buffer = arena.alloc_slice_fill_copy(len, 0_u8);
        let got = self.guarded(|| sys::process_memory::read(tid.0, address, buffer))?;
        Ok(&buffer[..got.min(len)])
    }

    /// A NULL-terminated array of strings, at most [`TEXTS_LIMIT`] of them.
    pub(crate) fn texts<'a>(
        &self,
        tid: Tid,
        address: u64,
        pointer_bytes: usize,
        arena: &'a Bump,
    ) -> Result<&'a [&'a [u8]], Unreadable> {
        let mut texts = bumpalo::collections::Vec::new_in(arena);
        let mut at = address;
        while texts.len() < TEXTS_LIMIT && address != 0 {
            let mut pointer = [0_u8; 8];
            self.read_exact(tid, at, &mut pointer[..pointer_bytes])
                .ok_or(Unreadable::Fault)?;
            let pointer = u64::from_le_bytes(pointer);
            if pointer == 0 {
                break;
            }
            texts.push(self.text(tid, pointer, arena)?);
            at += pointer_bytes as u64;
        }
        Ok(texts.into_bump_slice())
    }

    fn guarded<T>(
        &self,
        read: impl FnOnce() -> Result<T, sys::SyscallError>,
    ) -> Result<T, Unreadable> {
        if self.refused.get() {
            return Err(Unreadable::Refused);
        }
        self.gauge.enter();
        let result = read();
        self.gauge.leave();
        result.map_err(|error| match error.errno() {
            errno::EFAULT | errno::EIO | errno::ENOMEM => Unreadable::Fault,
            errno::ESRCH => Unreadable::Gone,
            _ => Unreadable::Refused,
        })
    }
}

/// Numbers that are the same on every architecture this program runs on.
mod errno {
    pub(super) const ESRCH: i32 = 3;
    pub(super) const EIO: i32 = 5;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const EFAULT: i32 = 14;
}
