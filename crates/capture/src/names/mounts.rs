//! Which mounts are of `/proc`.
//!
//! statfs(2) asks the server of a file system, which may be the workload and never answer. A mount that the
//! kernel numbers once and for all (Linux 6.8) is asked about once.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Statx, StatxFlags};
use rustix::io::Errno;

use super::walk::Caller;

/// `PROC_SUPER_MAGIC`.
const PROC_MAGIC: u64 = 0x9fa0;
/// `STATX_MNT_ID_UNIQUE`.
pub(super) const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// Mounts that are known at once.
const LIMIT: usize = 1024;

/// What is known of mounts, by number.
#[derive(Debug, Default)]
pub(crate) struct Mounts {
    are_proc: Mutex<HashMap<u64, bool>>,
}

impl Mounts {
    /// Whether a file is one of `/proc`.
    pub(super) fn is_proc(
        &self,
        file: &OwnedFd,
        stat: &Statx,
        caller: Caller<'_>,
    ) -> Result<bool, Errno> {
        if stat.stx_dev_major != 0 {
            // What the kernel makes up is on no device.
            return Ok(false);
        }
        let known = || self.are_proc.lock().unwrap_or_else(PoisonError::into_inner);
        let is_unique = stat.stx_mask & UNIQUE_ID.bits() != 0;
        let number = is_unique.then_some(stat.stx_mnt_id);
        if let Some(found) = number.and_then(|number| known().get(&number).copied()) {
            return Ok(found);
        }
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0)?;
        let kind = caller.ask(move || rustix::fs::fstatfs(&file))?.f_type;
        let is_proc = u64::try_from(kind) == Ok(PROC_MAGIC);
        if let Some(number) = number {
            let mut known = known();
            if known.len() >= LIMIT {
                known.clear();
            }
            known.insert(number, is_proc);
        }
        Ok(is_proc)
    }
}
