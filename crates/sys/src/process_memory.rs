//! Reads and writes of other processes' memory.
//!
//! A read can block for as long as the owner likes (userfaultfd, FUSE): never read from a thread that answers
//! notifications without a deadline.

use std::os::unix::fs::FileExt;

use crate::error::{Result, SyscallError};

/// Extent of a bounded read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReadExtent {
    /// The end was reached.
    Complete,
    /// The limit was reached first.
    Truncated,
}

/// Size of an element of `argv` in bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PointerWidth {
    /// i386 and x32.
    Four,
    /// The 64-bit architectures.
    Eight,
}

/// Copies from `address` of process `pid`; returns fewer bytes than requested if a page is missing.
///
/// # Errors
/// EFAULT if nothing could be read, EPERM (see ptrace(2) on access), ESRCH, ENOSYS where a container's
/// profile forbids the call.
pub fn read(pid: i32, address: u64, buf: &mut [u8]) -> Result<usize> {
    let local = libc::iovec {
        iov_base: buf.as_mut_ptr().cast(),
        iov_len: buf.len(),
    };
    // SAFETY: `local` describes `buf`, which the kernel fills.
    unsafe {
        transfer(
            "process_vm_readv",
            libc::SYS_process_vm_readv,
            pid,
            &local,
            address,
        )
    }
}

/// Makes process_vm_readv(2) or process_vm_writev(2) between `local` and as many bytes at `address`.
///
/// # Safety
/// `local` describes memory of this process that the call may read or write.
unsafe fn transfer(
    name: &'static str,
    number: libc::c_long,
    pid: i32,
    local: &libc::iovec,
    address: u64,
) -> Result<usize> {
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(address as usize),
        iov_len: local.iov_len,
    };
    // SAFETY: the caller answers for `local`; `remote` is an address of the other process, which the
    // kernel checks.
    unsafe {
        syscall!(
            name,
            number,
            pid,
            &raw const *local,
            1_usize,
            &raw const remote,
            1_usize,
            0_usize
        )
    }
}

/// Fills `buf` from `address` of process `pid`.
///
/// # Errors
/// As [`read`]; EFAULT also if only a part could be read.
pub fn read_exact(pid: i32, address: u64, buf: &mut [u8]) -> Result<()> {
    let got = read(pid, address, buf)?;
    whole("process_vm_readv", got, buf)
}

fn whole(call: &'static str, got: usize, wanted: &[u8]) -> Result<()> {
    match got == wanted.len() {
        true => Ok(()),
        false => Err(SyscallError::new(call, libc::EFAULT)),
    }
}

/// Copies to `address` of process `pid`; returns fewer bytes than given if a page is missing.
///
/// # Errors
/// EFAULT if nothing could be written, EPERM (see ptrace(2) on access), ESRCH.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> Result<usize> {
    let local = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: `local` describes `bytes`, which the kernel only reads.
    unsafe {
        transfer(
            "process_vm_writev",
            libc::SYS_process_vm_writev,
            pid,
            &local,
            address,
        )
    }
}

/// Returns true if two processes share one address space: writes of one are visible to the other.
///
/// # Errors
/// EPERM (see ptrace(2) on access, and a container's profile), ESRCH, ENOSYS where the kernel was built
/// without kcmp(2).
pub fn is_shared_by(one: i32, other: i32) -> Result<bool> {
    const KCMP_VM: usize = 1;
    share("kcmp(KCMP_VM)", one, other, KCMP_VM)
}

/// Returns true if two processes share one table of descriptors: one can exchange those of the other.
///
/// # Errors
/// As [`is_shared_by`].
pub fn are_descriptors_shared_by(one: i32, other: i32) -> Result<bool> {
    const KCMP_FILES: usize = 2;
    share("kcmp(KCMP_FILES)", one, other, KCMP_FILES)
}

fn share(name: &'static str, one: i32, other: i32, kind: usize) -> Result<bool> {
    // SAFETY: all arguments are numbers.
    let order = unsafe { syscall!(name, libc::SYS_kcmp, one, other, kind, 0_usize, 0_usize) }?;
    Ok(order == 0)
}

/// The smallest page size of all supported architectures. Reads never cross two page boundaries of this size
/// at once, so a string that ends before an unmapped page is read whole.
const PAGE: u64 = 4096;

/// Reads a string up to its NUL, which is dropped, or up to `max` bytes, replacing `out`.
///
/// # Errors
/// As [`read`]; data read before a missing page stays in `out`.
pub fn read_c_string(pid: i32, address: u64, out: &mut Vec<u8>, max: usize) -> Result<ReadExtent> {
    read_string_with(address, out, max, |from, buf| read(pid, from, buf))
}

/// Reads pointers up to a null pointer, which is dropped, or up to `max` of them, replacing `out`.
///
/// # Errors
/// As [`read`]; data read before a missing page stays in `out`.
pub fn read_pointers(
    pid: i32,
    address: u64,
    width: PointerWidth,
    max: usize,
    out: &mut Vec<u64>,
) -> Result<ReadExtent> {
    out.clear();
    let bytes: usize = if width == PointerWidth::Eight { 8 } else { 4 };
    let mut block = [0_u8; 512];
    let mut at = address;
    while out.len() < max {
        let wanted = block.len().min((max - out.len()) * bytes);
        // A short read ends at a page boundary; whole pointers before it are used, the rest is read again.
        let got = read(pid, at, &mut block[..wanted])?;
        let whole = got / bytes * bytes;
        if whole == 0 {
            return Err(SyscallError::new("process_vm_readv", libc::EFAULT));
        }
        for chunk in block[..whole].chunks_exact(bytes) {
            let mut word = [0_u8; 8];
            word[..bytes].copy_from_slice(chunk);
            let pointer = u64::from_le_bytes(word);
            if pointer == 0 {
                return Ok(ReadExtent::Complete);
            }
            out.push(pointer);
        }
        at = at.wrapping_add(whole as u64);
    }
    Ok(ReadExtent::Truncated)
}

/// An open `/proc/PID/mem`, for hosts that forbid process_vm_readv. Open it once per process.
///
/// The file stays with the process it was opened for: a reused pid cannot be read by mistake.
#[derive(Debug)]
pub struct MemoryFile(std::fs::File);

impl MemoryFile {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// EACCES, ENOENT when there is no such process.
    pub fn open(pid: i32) -> Result<Self> {
        let file = std::fs::File::open(format!("/proc/{pid}/mem"));
        file.map(Self)
            .map_err(|error| of_file("open(/proc/PID/mem)", &error))
    }

    /// Wraps an open `mem` file.
    #[must_use]
    pub fn from_file(file: std::fs::File) -> Self {
        Self(file)
    }

    /// Reads like [`read`], including memory that the owner itself may not read (write-only pages,
    /// `PROT_NONE`): the kernel ignores page protection here, unless configured otherwise
    /// (`proc_mem.force_override`, Linux 6.12).
    ///
    /// # Errors
    /// EIO for an address without memory; EINVAL above the largest file offset.
    pub fn read(&self, address: u64, buf: &mut [u8]) -> Result<usize> {
        let read = self.0.read_at(buf, address);
        let got = read.map_err(|error| of_file("pread(/proc/PID/mem)", &error))?;
        // The kernel returns 0 for a process that no longer has memory.
        if got == 0 && !buf.is_empty() {
            return Err(SyscallError::new("pread(/proc/PID/mem)", libc::ESRCH));
        }
        Ok(got)
    }

    /// Reads like [`read_exact`].
    ///
    /// # Errors
    /// As [`Self::read`]; EFAULT if only a part could be read.
    pub fn read_exact(&self, address: u64, buf: &mut [u8]) -> Result<()> {
        let got = self.read(address, buf)?;
        whole("pread(/proc/PID/mem)", got, buf)
    }

    /// Reads like [`read_c_string`].
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_c_string(&self, address: u64, out: &mut Vec<u8>, max: usize) -> Result<ReadExtent> {
        read_string_with(address, out, max, |from, buf| self.read(from, buf))
    }
}

fn of_file(call: &'static str, error: &std::io::Error) -> SyscallError {
    SyscallError::new(call, error.raw_os_error().unwrap_or(libc::EIO))
}

fn read_string_with(
    address: u64,
    out: &mut Vec<u8>,
    max: usize,
    read: impl Fn(u64, &mut [u8]) -> Result<usize>,
) -> Result<ReadExtent> {
    out.clear();
    let mut at = address;
    while out.len() < max {
        let to_page_end = (PAGE - at % PAGE) as usize;
        // Most strings are short: read little first, then the rest of the page.
        let wanted = if out.is_empty() {
            to_page_end.min(FIRST_READ)
        } else {
            to_page_end
        };
        let start = out.len();
        out.resize(start + wanted.min(max - start), 0);
        let got = match read(at, &mut out[start..]) {
            Ok(got) => got,
            Err(error) => {
                out.truncate(start);
                return Err(error);
            }
        };
        out.truncate(start + got);
        if let Some(end) = out[start..].iter().position(|byte| *byte == 0) {
            out.truncate(start + end);
            return Ok(ReadExtent::Complete);
        }
        at = at.wrapping_add(got as u64);
    }
    Ok(ReadExtent::Truncated)
}

const FIRST_READ: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        crate::syscall::getpid()
    }

    /// Maps a page followed by a hole, for strings that end with the last mapped byte and strings without an
    /// end.
    fn with_guard_page(test: impl FnOnce(u64, &mut [u8])) {
        let pages = 2 * PAGE as usize;
        // SAFETY: a new anonymous mapping replaces nothing.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                pages,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let second = base.wrapping_byte_add(PAGE as usize);
        // Unreadable instead of unmapped: a thread of another test cannot map into the hole.
        // SAFETY: the second page is part of the mapping above and nobody refers to it.
        let done = unsafe { libc::mprotect(second, PAGE as usize, libc::PROT_NONE) };
        assert_eq!(done, 0);
        // SAFETY: the first page stays mapped until the end of this function.
        let first = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), PAGE as usize) };
        test(base as u64, first);
        // SAFETY: `first` is not used any more.
        unsafe { libc::munmap(base, pages) };
    }

    #[test]
    fn strings_up_to_an_unmapped_page_are_whole() {
        let memory = MemoryFile::open(own()).expect("own memory");
        with_guard_page(|base, page| {
            page.fill(b'a');
            page[4095] = 0;
            let mut out = Vec::new();
            for offset in [0_u64, 100, 3000, 4094, 4095] {
                let done = read_c_string(own(), base + offset, &mut out, 8192);
                assert_eq!(done, Ok(ReadExtent::Complete));
                assert_eq!(out.len() as u64, 4095 - offset);
                let done = memory.read_c_string(base + offset, &mut out, 8192);
                assert_eq!(done, Ok(ReadExtent::Complete));
                assert_eq!(out.len() as u64, 4095 - offset);
            }
            let limited = read_c_string(own(), base, &mut out, 300);
            assert_eq!((limited, out.len()), (Ok(ReadExtent::Truncated), 300));
            page[4095] = b'a';
            let broken = read_c_string(own(), base + 4000, &mut out, 8192);
            assert!(broken.is_err_and(|e| e.is(libc::EFAULT)));
            assert_eq!(out.len(), 96, "what was there is kept");
        });
    }

    #[test]
    fn partial_reads_stop_at_the_hole() {
        with_guard_page(|base, _| {
            let mut buf = [0; 100];
            assert_eq!(read(own(), base + 4090, &mut buf), Ok(6));
            assert!(read(own(), base + 4096, &mut buf).is_err_and(|e| e.is(libc::EFAULT)));
            assert!(read(own(), u64::MAX, &mut buf).is_err());
        });
    }

    #[test]
    fn pointer_arrays_end_at_null() {
        let mut out = Vec::new();
        let wide: Vec<u64> = (1..=300).chain([0]).collect();
        let at = wide.as_ptr() as u64;
        let done = read_pointers(own(), at, PointerWidth::Eight, 1000, &mut out);
        assert_eq!((done, out.len()), (Ok(ReadExtent::Complete), 300));
        assert_eq!(out[..300], wide[..300]);
        let done = read_pointers(own(), at, PointerWidth::Eight, 70, &mut out);
        assert_eq!((done, out.len()), (Ok(ReadExtent::Truncated), 70));
        let narrow: [u32; 4] = [7, 8, 9, 0];
        let at = narrow.as_ptr() as u64;
        let done = read_pointers(own(), at, PointerWidth::Four, 10, &mut out);
        assert_eq!((done, out), (Ok(ReadExtent::Complete), vec![7, 8, 9]));
    }

    #[test]
    fn missing_processes_are_errors() {
        assert!(MemoryFile::open(i32::MAX).is_err_and(|e| e.is(libc::ENOENT)));
        assert!(read(i32::MAX, 4096, &mut [0]).is_err_and(|e| e.is(libc::ESRCH)));
    }
}
