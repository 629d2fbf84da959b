//! Memory shared between processes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::time::Duration;

use crate::error::{Result, SyscallError};

/// Content of the page: 4096 bytes, the smallest page of every supported architecture.
#[repr(C)]
struct Page {
    words: [AtomicU64; WORDS],
    ints: [AtomicI32; INTS],
    futexes: [AtomicU32; INTS],
}

const WORDS: usize = 256;
const INTS: usize = 256;

/// Zeroed memory that stays shared with every child created after it, until exec.
#[derive(Debug)]
pub struct SharedPage(std::ptr::NonNull<Page>);

// SAFETY: the page holds nothing but atomics, and the mapping lives as long as the owner.
unsafe impl Send for SharedPage {}
// SAFETY: as above: every access is through a shared reference to an atomic.
unsafe impl Sync for SharedPage {}

impl SharedPage {
    /// Maps a page.
    ///
    /// # Errors
    /// ENOMEM.
    pub fn new() -> Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice replaces nothing.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(SyscallError::last("mmap"));
        }
        let page = std::ptr::NonNull::new(address.cast::<Page>());
        page.map(Self)
            .ok_or(SyscallError::new("mmap", libc::EFAULT))
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is of the size and alignment of a page, zero bytes are a value of
        // every field, and it is unmapped only when `self` is dropped.
        unsafe { self.0.as_ref() }
    }

    /// 64-bit slot `index`, below 256.
    ///
    /// # Panics
    /// Panics if `index` is 256 or more.
    #[must_use]
    pub fn word(&self, index: usize) -> &AtomicU64 {
        &self.page().words[index]
    }

    /// Signed 32-bit slot `index`, below 256.
    ///
    /// # Panics
    /// Panics if `index` is 256 or more.
    #[must_use]
    pub fn int(&self, index: usize) -> &AtomicI32 {
        &self.page().ints[index]
    }

    /// Unsigned 32-bit slot `index`, below 256; [`Self::wait`] and [`Self::wake`] work on these slots.
    ///
    /// # Panics
    /// Panics if `index` is 256 or more.
    #[must_use]
    pub fn futex(&self, index: usize) -> &AtomicU32 {
        &self.page().futexes[index]
    }

    /// Sleeps while futex slot `index` is `expected`, until woken, interrupted or out of time.
    ///
    /// Does not return the cause of the wake-up: read the slot again.
    ///
    /// # Errors
    /// Any error other than those outcomes.
    pub fn wait(&self, index: usize, expected: u32, timeout: Option<Duration>) -> Result<()> {
        let limit = timeout.map(crate::time::timespec);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the slot is a live 32-bit word; the timeout is null or lives to the end of this
        // function.
        let result = unsafe {
            syscall!(
                "futex(WAIT)",
                libc::SYS_futex,
                self.futex(index).as_ptr(),
                libc::FUTEX_WAIT,
                expected,
                limit
            )
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) if [libc::EAGAIN, libc::EINTR, libc::ETIMEDOUT].contains(&error.errno()) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Wakes all waiters on futex slot `index`, in any process.
    ///
    /// # Errors
    /// None are known for a live slot.
    pub fn wake(&self, index: usize) -> Result<()> {
        // SAFETY: the slot is a live 32-bit word, whose address is all that the call uses.
        unsafe {
            syscall!(
                "futex(WAKE)",
                libc::SYS_futex,
                self.futex(index).as_ptr(),
                libc::FUTEX_WAKE,
                i32::MAX
            )
        }?;
        Ok(())
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this size, and no reference outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Page>()) };
    }
}

/// 64-bit slots in memory with a descriptor, so that a program started later can share the memory too.
#[derive(Debug)]
pub struct SharedWords {
    first: std::ptr::NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: there is nothing but atomics, and the mapping lives as long as the owner.
unsafe impl Send for SharedWords {}
// SAFETY: as above: every access is through a shared reference to an atomic.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Creates `count` zeroed slots in an anonymous file that is sealed against shrinking and growing.
    ///
    /// # Errors
    /// ENOMEM, EMFILE, EFBIG below a limit on the size of files that may not be raised, ENOSYS where memory
    /// files are disabled.
    pub fn create(count: usize) -> Result<(Self, OwnedFd)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let file = crate::fd::memory_file(c"tollgate-shared-state", flags)?;
        crate::resource::beyond_file_size(|| {
            // SAFETY: both arguments are numbers.
            unsafe {
                syscall!(
                    "ftruncate",
                    libc::SYS_ftruncate,
                    file.as_fd(),
                    count * size_of::<AtomicU64>()
                )
            }
        })?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: all arguments are numbers.
        unsafe {
            syscall!(
                "fcntl(F_ADD_SEALS)",
                libc::SYS_fcntl,
                file.as_fd(),
                libc::F_ADD_SEALS,
                seals
            )
        }?;
        let words = Self::open(file.as_fd(), count)?;
        Ok((words, file))
    }

    /// Maps a file that [`Self::create`] created with the same number of slots.
    ///
    /// # Errors
    /// EINVAL for a file that is too small or not sealed against shrinking, ENOMEM, EBADF.
    pub fn open(file: BorrowedFd<'_>, count: usize) -> Result<Self> {
        let size = count * size_of::<AtomicU64>();
        // A page past the end of the file would be a fault, not an error.
        // SAFETY: all arguments are numbers.
        let seals = unsafe {
            syscall!(
                "fcntl(F_GET_SEALS)",
                libc::SYS_fcntl,
                file,
                libc::F_GET_SEALS
            )
        }?;
        // SAFETY: all arguments are numbers.
        let end = unsafe { syscall!("lseek", libc::SYS_lseek, file, 0_usize, libc::SEEK_END) }?;
        if crate::kernel::number(seals) & libc::F_SEAL_SHRINK == 0 || end < size || count == 0 {
            return Err(SyscallError::new("mmap", libc::EINVAL));
        }
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing; the file is
        // as large as the mapping and stays so.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                std::os::fd::AsRawFd::as_raw_fd(&file),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(SyscallError::last("mmap"));
        }
        match std::ptr::NonNull::new(address.cast::<AtomicU64>()) {
            Some(first) => Ok(Self { first, count }),
            None => Err(SyscallError::new("mmap", libc::EFAULT)),
        }
    }

    /// All slots.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is `count` words long, page-aligned, zero bytes are a value, and it
        // is unmapped only when `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl SharedWords {
    /// The slots from `first` on as a structure with named fields.
    ///
    /// # Panics
    /// Panics if there are too few slots, or if `first` violates the structure's alignment.
    #[must_use]
    pub fn view<T: SharedLayout>(&self, first: usize) -> &T {
        let words = &self.words()[first..][..size_of::<T>() / size_of::<AtomicU64>()];
        let start = words.as_ptr().cast::<T>();
        assert!(start.is_aligned(), "a structure begins at its alignment");
        // SAFETY: the slots are as long as the structure and aligned as it is, any bytes are a value of it, and it is
        // read and written by atomic operations alone.
        unsafe { &*start }
    }
}

/// A structure to which other processes may write at any time.
///
/// # Safety
/// The type is `repr(C)`, consists only of 64-bit atomics (padding aside), and is valid for any bytes.
pub unsafe trait SharedLayout: Sync {}

// SAFETY: it is a 64-bit atomic itself, and any bytes are a number.
unsafe impl SharedLayout for AtomicU64 {}
// SAFETY: an array is its elements, one after the other.
unsafe impl<T: SharedLayout, const N: usize> SharedLayout for [T; N] {}

/// Defines a structure whose fields are all [`SharedLayout`], and implements the trait for it. `FIELDS` has
/// the names and the byte offsets of its fields.
#[macro_export]
macro_rules! shared_layout {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $type:ty,)+
        }
    ) => {
        $(#[$meta])*
        #[repr(C)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $type,)+
        }

        // SAFETY: the structure is `repr(C)`, and the bounds hold of its fields, or this does not compile.
        unsafe impl $crate::shared::SharedLayout for $name
        where
            $($type: $crate::shared::SharedLayout,)+
        {
        }

        impl $name {
            /// Name and byte offset of each field.
            #[allow(dead_code, reason = "structures within others do not need it")]
            pub(crate) const FIELDS: &[(&str, usize)] =
                &[$((stringify!($field), ::core::mem::offset_of!($name, $field)),)+];
        }
    };
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        let size = self.count * size_of::<AtomicU64>();
        // SAFETY: the mapping was made by `open` with this size, and no reference outlives `self`.
        unsafe { libc::munmap(self.first.as_ptr().cast(), size) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn parent_and_child_wake_each_other() {
        assert_eq!(size_of::<Page>(), 4096);
        let page = SharedPage::new().expect("one page");
        let child = crate::testing::spawn(|| {
            while page.futex(0).load(Ordering::Acquire) == 0 {
                page.wait(0, 0, None).map_err(|e| e.errno())?;
            }
            page.word(255).store(u64::MAX, Ordering::Release);
            Ok(())
        });
        page.futex(0).store(1, Ordering::Release);
        page.wake(0).expect("the slot is live");
        assert_eq!(crate::testing::reap(child), Ok(()));
        assert_eq!(page.word(255).load(Ordering::Acquire), u64::MAX);
        page.wait(1, 0, Some(Duration::from_millis(1)))
            .expect("a timeout is not an error");
    }

    crate::shared_layout! {
        #[derive(Debug)]
        struct Pair {
            one: AtomicU64,
            others: [AtomicU64; 2],
        }
    }

    #[test]
    fn a_structure_names_slots() {
        let (words, _file) = SharedWords::create(8).expect("memory");
        words.view::<Pair>(5).others[1].store(7, Ordering::Release);
        assert_eq!(words.words()[7].load(Ordering::Acquire), 7);
        assert_eq!(words.view::<Pair>(5).one.load(Ordering::Acquire), 0);
        assert_eq!(Pair::FIELDS, [("one", 0), ("others", 8)]);
        let past_the_end = std::panic::catch_unwind(|| words.view::<Pair>(6).one.as_ptr());
        assert!(past_the_end.is_err());
    }

    #[test]
    fn words_are_shared_by_their_file() {
        let (words, file) = SharedWords::create(1024).expect("memory");
        let again = SharedWords::open(file.as_fd(), 1024).expect("the same file");
        words.words()[1023].store(7, Ordering::Release);
        assert_eq!(again.words()[1023].load(Ordering::Acquire), 7);
        let larger = SharedWords::open(file.as_fd(), 1025 * 4096);
        assert!(larger.is_err_and(|error| error.is(libc::EINVAL)));
        let unsealed = crate::fd::memory_file(c"x", libc::MFD_CLOEXEC).expect("memory");
        assert!(SharedWords::open(unsealed.as_fd(), 1).is_err());
    }
}
