//! Reader of the workload's memory with a deadline.
//!
//! `process_vm_readv(2)` blocks until a page arrives, and the workload decides when that is (userfaultfd,
//! FUSE). The wait cannot be interrupted, so each read is announced in a [`BlockingMarker`] that a watchdog
//! samples; a thread that stays in one read for longer than the deadline is replaced, and the memory of its
//! call is treated as unreadable.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bumpalo::Bump;
use event::Tid;
use sys::SyscallError;
use sys::process_memory::{MemoryFile, ReadExtent};

use crate::procfs::Proc;

/// Maximum length of a string from a caller: `PATH_MAX`; the kernel reads no more of a path either.
pub const STRING_LIMIT: usize = 4096;
/// Maximum number of array elements (argv) from a caller; Falco's own limit is of the same order.
pub const TEXTS_LIMIT: usize = 256;

/// Marker that shows a watchdog whether its thread is in an operation that may never return.
///
/// Odd values mean inside, even values outside. If the watchdog reads the same odd number twice, one
/// operation has lasted for at least the time between. The marker costs the thread two relaxed writes and no
/// clock.
#[derive(Debug, Default)]
pub struct BlockingMarker(AtomicU64);

impl BlockingMarker {
    /// Marks the start of an operation.
    pub fn enter(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// Marks the end of an operation.
    pub fn leave(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// The number of the current operation, if any.
    pub fn inside(&self) -> Option<u64> {
        let value = self.0.load(Ordering::Acquire);
        (value % 2 == 1).then_some(value)
    }
}

/// The reason why memory could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The address is not mapped; the call itself will most likely fail with `EFAULT`.
    Fault,
    /// The reader has no permission to read the process.
    Refused,
    /// The process is gone.
    Gone,
}

/// The memory that a reader may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All memory.
    Free,
    /// Resident pages only: others may never arrive.
    Resident,
    /// No memory.
    Refused,
}

/// A thread's access to the memory of callers.
#[derive(Debug)]
pub struct Memory {
    gauge: Arc<BlockingMarker>,
    access: Cell<Access>,
    buffer: RefCell<Vec<u8>>,
    /// Cached page tables, if they are read for every call.
    tables: Option<RefCell<HashMap<Tid, File>>>,
    /// Pages that are read even if they are not resident.
    settled: RefCell<Vec<u64>>,
    /// The first page that was not read because it is not resident.
    missing: Cell<Option<u64>>,
    /// Set if a read since the last query returned memory that its process may not read.
    forced: Cell<bool>,
    captured: Option<RefCell<CapturedMemory>>,
    /// The page table of the last query for private pages.
    asked: RefCell<Option<OpenPageTable>>,
}

/// An open page table. It stays the table that its thread had at the time of opening.
#[derive(Debug)]
struct OpenPageTable {
    tid: Tid,
    execs: u64,
    since: Instant,
    file: File,
}

/// Number of execs that may have replaced the memory of a process.
static EXECS: AtomicU64 = AtomicU64::new(0);
/// Time for which a page table stays open: no thread id can mean another process so soon.
const ASKED_FOR: Duration = Duration::from_millis(10);

/// Records that a process may have different memory from now on.
pub fn note_exec() {
    EXECS.fetch_add(1, Ordering::AcqRel);
}

/// Memory of a caller that an engine copied at the call.
#[derive(Debug, Default)]
pub struct CapturedMemory {
    bytes: Vec<u8>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    address: u64,
    range: std::ops::Range<usize>,
    is_string: bool,
}

impl CapturedMemory {
    /// Removes all copies.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.parts.clear();
    }

    /// Adds bytes at an address; a string comes without its NUL.
    pub fn add(&mut self, address: u64, bytes: &[u8], is_string: bool) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.parts.push(Part {
            address,
            range: start..self.bytes.len(),
            is_string,
        });
    }

    fn text(&self, address: u64) -> Option<&[u8]> {
        let found = |part: &&Part| part.is_string && part.address == address;
        let part = self.parts.iter().find(found)?;
        Some(&self.bytes[part.range.clone()])
    }

    fn bytes(&self, address: u64) -> Option<&[u8]> {
        self.parts
            .iter()
            .filter(|part| !part.is_string)
            .find_map(|part| {
                let offset = usize::try_from(address.checked_sub(part.address)?).ok()?;
                let rest = self.bytes[part.range.clone()].get(offset..)?;
                (!rest.is_empty()).then_some(rest)
            })
    }
}

/// Maximum number of open page tables; more than the number of threads that work at a time.
const TABLES_LIMIT: usize = 256;

impl Memory {
    /// Access that reads from the process; `gauge` shows reads that do not return.
    pub fn new(gauge: Arc<BlockingMarker>) -> Self {
        let buffer = RefCell::new(Vec::with_capacity(STRING_LIMIT));
        Self {
            gauge,
            access: Cell::new(Access::Free),
            buffer,
            tables: None,
            settled: RefCell::default(),
            missing: Cell::new(None),
            forced: Cell::new(false),
            captured: None,
            asked: RefCell::default(),
        }
    }

    /// Access for a reader that must not wait for pages: it reads resident pages, and reports others
    /// ([`Memory::missing`]).
    pub fn of_resident_pages(gauge: Arc<BlockingMarker>) -> Self {
        let memory = Self {
            tables: Some(RefCell::default()),
            ..Self::new(gauge)
        };
        // Where page tables are hidden (a container may mask the file), waiting is the only option.
        if table(Tid(std::process::id().cast_signed())).is_ok() {
            memory.allow(Access::Resident);
        }
        memory
    }

    /// Starts a new attempt, with pages that may be read whether they are resident or not.
    pub fn settle(&self, pages: &[u64]) {
        let mut settled = self.settled.borrow_mut();
        settled.clear();
        settled.extend_from_slice(pages);
        self.missing.set(None);
    }

    /// The first page since [`Memory::settle`] that was needed and is not resident.
    pub fn missing(&self) -> Option<u64> {
        self.missing.get()
    }

    /// Drops the state of a thread that has ended or runs another program.
    pub fn forget(&self, tid: Tid) {
        if let Some(tables) = &self.tables {
            tables.borrow_mut().remove(&tid);
        }
    }

    /// Access to copies from the time of the call only: the caller may have continued long ago.
    pub fn captured() -> Self {
        Self {
            captured: Some(RefCell::default()),
            ..Self::new(Arc::default())
        }
    }

    /// Replaces the copies.
    pub fn capture(&self, fill: impl FnOnce(&mut CapturedMemory)) {
        if let Some(captured) = &self.captured {
            let mut captured = captured.borrow_mut();
            captured.clear();
            fill(&mut captured);
        }
    }

    /// Sets the access for the calls to come. Reads of other memory return [`Unreadable::Refused`].
    pub fn allow(&self, access: Access) {
        self.access.set(access);
    }

    /// Returns true if reads are limited to memory that cannot block.
    pub fn is_limited(&self) -> bool {
        self.access.get() != Access::Free
    }

    /// Reads a NUL-terminated string of at most [`STRING_LIMIT`] bytes.
    pub fn text<'a>(
        &self,
        tid: Tid,
        address: u64,
        arena: &'a Bump,
    ) -> Result<&'a [u8], Unreadable> {
        if let Some(captured) = &self.captured {
            let captured = captured.borrow();
            let text = captured.text(address).ok_or(Unreadable::Fault)?;
            return Ok(arena.alloc_slice_copy(text));
        }
        let mut buffer = self.buffer.borrow_mut();
        let limit = self.readable(tid, address, STRING_LIMIT);
        let extent = self.guarded(tid, address, limit, |source| {
            source.text(address, &mut buffer, limit)
        })?;
        if limit < STRING_LIMIT && extent == ReadExtent::Truncated {
            self.note_missing(address, limit);
            return Err(Unreadable::Refused);
        }
        Ok(arena.alloc_slice_copy(&buffer))
    }

    /// Returns true if a read since the last query returned memory that its process may not read. The kernel
    /// may have failed to read it too: pages without any permission.
    pub fn take_forced(&self) -> bool {
        self.forced.take()
    }

    /// Fills `buffer` completely, or fails.
    pub fn read_exact(&self, tid: Tid, address: u64, buffer: &mut [u8]) -> Result<(), Unreadable> {
        let wanted = buffer.len();
        if let Some(captured) = &self.captured {
            let captured = captured.borrow();
            let bytes = captured
                .bytes(address)
                .and_then(|bytes| bytes.get(..wanted));
            buffer.copy_from_slice(bytes.ok_or(Unreadable::Fault)?);
            return Ok(());
        }
        let readable = self.readable(tid, address, wanted);
        if readable < wanted {
            self.note_missing(address, readable);
            return Err(Unreadable::Refused);
        }
        self.guarded(tid, address, readable, |source| {
            source.exact(address, buffer)
        })
    }

    /// Reads exactly `len` bytes: a part could be mistaken for the whole.
    pub fn bytes<'a>(
        &self,
        tid: Tid,
        address: u64,
        len: usize,
        arena: &'a Bump,
    ) -> Result<&'a [u8], Unreadable> {
        if let Some(captured) = &self.captured {
            let captured = captured.borrow();
            let bytes = captured.bytes(address).and_then(|bytes| bytes.get(..len));
            return Ok(arena.alloc_slice_copy(bytes.ok_or(Unreadable::Fault)?));
        }
        let buffer = arena.alloc_slice_fill_copy(len, 0_u8);
        self.read_exact(tid, address, buffer)?;
        Ok(buffer)
    }

    /// Checks that nothing is mapped at address 0: only a process that may map memory there can pass data by
    /// a null pointer.
    pub fn is_null_empty(&self, tid: Tid) -> Result<(), Unreadable> {
        if self.captured.is_some() {
            return Ok(());
        }
        self.gauge.enter();
        let first = first_mapping(tid);
        self.gauge.leave();
        match first {
            Ok(0) => Err(Unreadable::Fault),
            Ok(_) => Ok(()),
            Err(_) => Err(Unreadable::Refused),
        }
    }

    /// Returns true if all bytes lie in private pages: pages of no file and of no other process. Returns
    /// false if that cannot be determined.
    pub fn is_private(&self, tid: Tid, address: u64, len: u64) -> bool {
        if self.captured.is_some() {
            return true;
        }
        // The kernel reads page tables under a lock of the process, which the process can hold forever.
        self.gauge.enter();
        let found = self.asks_table(tid, |table| are_private(table, address, len));
        self.gauge.leave();
        found.unwrap_or(false)
    }

    fn asks_table(&self, tid: Tid, ask: impl Fn(&File) -> Option<bool>) -> Option<bool> {
        let execs = EXECS.load(Ordering::Acquire);
        let mut asked = self.asked.borrow_mut();
        let is_current = |asked: &&OpenPageTable| {
            asked.tid == tid && asked.execs == execs && asked.since.elapsed() < ASKED_FOR
        };
        if let Some(asked) = asked.as_ref().filter(is_current) {
            return ask(&asked.file);
        }
        let file = table(tid).ok()?;
        let answer = ask(&file);
        *asked = Some(OpenPageTable {
            tid,
            execs,
            since: Instant::now(),
            file,
        });
        answer
    }

    /// Reads a NULL-terminated array of strings, at most [`TEXTS_LIMIT`] of them.
    pub fn texts<'a>(
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
            self.read_exact(tid, at, &mut pointer[..pointer_bytes])?;
            let pointer = u64::from_le_bytes(pointer);
            if pointer == 0 {
                break;
            }
            texts.push(self.text(tid, pointer, arena)?);
            at += pointer_bytes as u64;
        }
        Ok(texts.into_bump_slice())
    }

    /// Number of bytes from an address on that may be read.
    fn readable(&self, tid: Tid, address: u64, wanted: usize) -> usize {
        match self.access.get() {
            Access::Free => wanted,
            // The kernel reads page tables under a lock of the process, which the process can hold forever.
            Access::Resident => {
                self.gauge.enter();
                let found = self.resident(tid, address, wanted);
                self.gauge.leave();
                found
            }
            Access::Refused => 0,
        }
    }

    /// Number of bytes from an address on that are resident or settled. Reads only page tables, so it does
    /// not wait for a page.
    fn resident(&self, tid: Tid, address: u64, wanted: usize) -> usize {
        let Some(tables) = &self.tables else {
            return table(tid).map_or(0, |table| self.resident_in(&table, address, wanted));
        };
        let mut tables = tables.borrow_mut();
        if tables.len() >= TABLES_LIMIT && !tables.contains_key(&tid) {
            tables.clear();
        }
        let table = match tables.entry(tid) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(vacant) => match table(tid) {
                Ok(table) => vacant.insert(table),
                // The process may not be read at all; the read reports that.
                Err(_) => return wanted,
            },
        };
        self.resident_in(table, address, wanted)
    }

    fn resident_in(&self, table: &File, address: u64, wanted: usize) -> usize {
        const PRESENT: u64 = 1 << 63;
        // A string spans two pages at most.
        const AT_ONCE: usize = 2;
        let page_size = page_size();
        let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
        let settled = self.settled.borrow();
        let mut found = 0;
        while found < wanted {
            let mut entries = [0; 8 * AT_ONCE];
            let first = address.wrapping_add(found) / page_size;
            let len = table.read_at(&mut entries, first.wrapping_mul(8));
            if len.as_ref().is_ok_and(|len| *len == 0) {
                // The address is above all that a process can map: the read fails at once.
                return usize::try_from(wanted).expect("it was one");
            }
            let (entries, _) = entries[..len.unwrap_or(0)].as_chunks::<8>();
            if entries.is_empty() {
                break;
            }
            for (page, entry) in (first..).zip(entries) {
                let is_there = u64::from_ne_bytes(*entry) & PRESENT != 0;
                if !is_there && !settled.contains(&page.wrapping_mul(page_size)) {
                    return usize::try_from(found.min(wanted)).expect("no more than was wanted");
                }
                found += page_size - address.wrapping_add(found) % page_size;
            }
        }
        usize::try_from(found.min(wanted)).expect("no more than was wanted")
    }

    fn note_missing(&self, address: u64, readable: usize) {
        if self.missing.get().is_none() {
            let at = address.wrapping_add(u64::try_from(readable).unwrap_or(0));
            self.missing.set(Some(at - at % page_size()));
        }
    }

    /// Reads with the marker set, and retries through the file where the call fails. The kernel reads
    /// arguments from pages that their owner may only write; process_vm_readv(2) does not, the file does.
    fn guarded<T>(
        &self,
        tid: Tid,
        address: u64,
        readable: usize,
        mut read: impl FnMut(&Source) -> Result<T, SyscallError>,
    ) -> Result<T, Unreadable> {
        if readable == 0 && self.is_limited() {
            self.note_missing(address, 0);
            return Err(Unreadable::Refused);
        }
        self.gauge.enter();
        let result = read(&Source::Call(tid)).or_else(|error| match error.errno() {
            errno::ESRCH => Err(error),
            first => match forced(tid).map(|file| read(&Source::File(file))) {
                Some(Ok(read)) => {
                    self.forced.set(true);
                    Ok(read)
                }
                // The file refuses offsets above the address space.
                Some(Err(again)) if first != errno::EFAULT || again.errno() == errno::ESRCH => {
                    Err(again)
                }
                _ => Err(error),
            },
        });
        self.gauge.leave();
        result.map_err(|error| match error.errno() {
            errno::EFAULT | errno::EIO | errno::ENOMEM => Unreadable::Fault,
            errno::ESRCH => Unreadable::Gone,
            _ => Unreadable::Refused,
        })
    }
}

/// The means by which memory is read.
enum Source {
    /// process_vm_readv(2): needs no descriptor, and respects page protection.
    Call(Tid),
    /// `/proc/PID/mem`: also reads pages that are write-only or have no permission.
    File(MemoryFile),
}

impl Source {
    fn text(
        &self,
        address: u64,
        to: &mut Vec<u8>,
        limit: usize,
    ) -> Result<ReadExtent, SyscallError> {
        match self {
            Self::Call(tid) => sys::process_memory::read_c_string(tid.0, address, to, limit),
            Self::File(file) => file.read_c_string(address, to, limit),
        }
    }

    /// Reads all bytes: a read that stops at an unreadable page is an error.
    fn exact(&self, address: u64, to: &mut [u8]) -> Result<(), SyscallError> {
        match self {
            Self::Call(tid) => sys::process_memory::read_exact(tid.0, address, to),
            Self::File(file) => file.read_exact(address, to),
        }
    }
}

fn forced(tid: Tid) -> Option<MemoryFile> {
    let file = Proc::open().ok()?.file(&format!("{}/mem", tid.0)).ok()?;
    Some(MemoryFile::from_file(file))
}

/// Makes the kernel fetch a page of a process, and waits for it.
pub fn touch(tid: Tid, page: u64) {
    let mut byte = [0];
    if sys::process_memory::read(tid.0, page, &mut byte).is_err()
        && let Some(file) = forced(tid)
    {
        let _ = file.read(page, &mut byte);
    }
}

/// Start address of the first mapping of a process.
fn first_mapping(tid: Tid) -> std::io::Result<u64> {
    let proc = Proc::open().map_err(|error| std::io::Error::from(error.errno()))?;
    let mut line = [0; 17];
    let len = proc
        .file(&format!("{}/maps", tid.0))?
        .read_at(&mut line, 0)?;
    let start = line[..len].split(|byte| *byte == b'-').next();
    let start = start.and_then(|digits| std::str::from_utf8(digits).ok());
    start
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

/// Returns `None` if the address space is gone.
fn are_private(table: &File, address: u64, len: u64) -> Option<bool> {
    // Documentation/admin-guide/mm/pagemap.rst.
    const PRESENT: u64 = 1 << 63;
    const FILE_OR_SHARED: u64 = 1 << 61;
    let page_size = page_size();
    let last = address.checked_add(len.max(1) - 1)? / page_size;
    for page in address / page_size..=last {
        let mut entry = [0; 8];
        let read = table.read_at(&mut entry, page.checked_mul(8)?).ok()?;
        if read < entry.len() {
            return None;
        }
        // A page that is absent now may come from anywhere.
        if u64::from_ne_bytes(entry) & (PRESENT | FILE_OR_SHARED) != PRESENT {
            return Some(false);
        }
    }
    Some(true)
}

fn table(tid: Tid) -> std::io::Result<File> {
    let proc = Proc::open().map_err(|error| std::io::Error::from(error.errno()))?;
    proc.file(&format!("{}/pagemap", tid.0))
}

fn page_size() -> u64 {
    // No supported architecture has smaller pages; a larger page is checked several times.
    u64::try_from(sys::machine::page_size()).unwrap_or(4096)
}

/// Error numbers that are the same on every supported architecture.
mod errno {
    pub(super) const ESRCH: i32 = abi::Errno::ESRCH.0;
    pub(super) const EIO: i32 = abi::Errno::EIO.0;
    pub(super) const ENOMEM: i32 = abi::Errno::ENOMEM.0;
    pub(super) const EFAULT: i32 = abi::Errno::EFAULT.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_that_are_there_are_read_when_others_may_never_come() {
        let tid = Tid(std::process::id().cast_signed());
        let memory = Memory::new(Arc::default());
        let arena = Bump::new();
        let text = c"a string on a page of the heap".to_owned();
        let there = u64::try_from(text.as_ptr().addr()).unwrap();
        // Large enough for a fresh mapping, so that no page of it is resident.
        let absent: Vec<u8> = vec![0; 64 << 20];
        let absent = u64::try_from(absent.as_ptr().addr()).unwrap() + (32 << 20);
        let mut eight = [0; 8];
        for (access, expected) in [
            (Access::Resident, Ok(text.as_bytes())),
            (Access::Refused, Err(Unreadable::Refused)),
            (Access::Free, Ok(text.as_bytes())),
        ] {
            memory.allow(access);
            assert_eq!(memory.text(tid, there, &arena), expected, "{access:?}");
            assert_eq!(
                memory.read_exact(tid, there, &mut eight).is_ok(),
                expected.is_ok()
            );
        }
        memory.allow(Access::Resident);
        assert_eq!(memory.text(tid, absent, &arena), Err(Unreadable::Refused));
        assert_eq!(
            memory.bytes(tid, absent, 80, &arena),
            Err(Unreadable::Refused)
        );
        assert_eq!(
            memory.read_exact(tid, absent, &mut eight),
            Err(Unreadable::Refused)
        );
        memory.allow(Access::Free);
        assert_eq!(memory.text(tid, absent, &arena), Ok(&b""[..]));
    }

    #[test]
    fn a_page_that_is_missing_is_told_and_read_once_it_is_settled() {
        let tid = Tid(std::process::id().cast_signed());
        let memory = Memory::of_resident_pages(Arc::default());
        let arena = Bump::new();
        let absent: Vec<u8> = vec![0; 64 << 20];
        let absent = u64::try_from(absent.as_ptr().addr()).unwrap() + (32 << 20);
        let page = absent - absent % 4096;
        assert_eq!(memory.text(tid, absent, &arena), Err(Unreadable::Refused));
        assert_eq!(memory.missing(), Some(page));
        memory.settle(&[page]);
        assert_eq!(memory.missing(), None);
        assert_eq!(memory.text(tid, absent, &arena), Ok(&b""[..]));
        assert_eq!(memory.missing(), None);
        // The page is resident now.
        memory.settle(&[]);
        assert_eq!(memory.text(tid, absent, &arena), Ok(&b""[..]));
        // An unmapped address counts as missing, and as a fault once it is settled.
        assert_eq!(memory.text(tid, 8, &arena), Err(Unreadable::Refused));
        assert_eq!(memory.missing(), Some(0));
        memory.settle(&[0]);
        assert_eq!(memory.text(tid, 8, &arena), Err(Unreadable::Fault));
    }

    #[test]
    fn only_anonymous_pages_of_its_own_are_private() {
        static LITERAL: &str = "a string in the file of the program";
        let tid = Tid(std::process::id().cast_signed());
        let memory = Memory::new(Arc::default());
        let own = vec![7_u8; 3 * 4096];
        let shared = sys::shared::SharedPage::new().expect("memory is there");
        let address = |at: *const u8| u64::try_from(at.addr()).unwrap();
        let first = shared.word(0);
        first.store(1, Ordering::Release);
        let first = std::ptr::from_ref(first).cast();
        for _ in 0..2 {
            assert!(memory.is_private(tid, address(own.as_ptr()), 3 * 4096));
            assert!(!memory.is_private(tid, address(LITERAL.as_ptr()), 5));
            assert!(!memory.is_private(tid, address(first), 8));
            // Nothing is mapped there, and there is no such address.
            assert!(!memory.is_private(tid, 8, 8));
            assert!(!memory.is_private(tid, u64::MAX - 4, 8));
        }
        // A program has other memory after an exec, and so has another process.
        note_exec();
        assert!(memory.is_private(tid, address(own.as_ptr()), 8));
        assert!(!memory.is_private(Tid(i32::MAX), address(own.as_ptr()), 8));
    }

    #[test]
    fn no_page_is_missing_where_no_process_can_have_one() {
        let tid = Tid(std::process::id().cast_signed());
        let memory = Memory::of_resident_pages(Arc::default());
        let arena = Bump::new();
        for address in [u64::MAX, 1 << 63, u64::MAX - 4096] {
            let text = memory.text(tid, address, &arena);
            assert_eq!(text, Err(Unreadable::Fault), "{address:x}");
            assert_eq!(memory.missing(), None, "{address:x}");
        }
    }
}
