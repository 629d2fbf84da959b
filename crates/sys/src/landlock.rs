//! Restriction of this thread by an existing Landlock ruleset.
//!
//! The crate `landlock` creates rulesets. It is not used for the last step, which happens between clone and
//! exec, where nothing may allocate.

use std::os::fd::BorrowedFd;

use crate::error::Result;

/// ABI version of the running kernel's Landlock.
///
/// # Errors
/// ENOSYS if the kernel was built without Landlock, EOPNOTSUPP if it was booted without.
pub fn version() -> Result<i32> {
    const VERSION: u32 = 1;
    // SAFETY: with this flag the kernel looks at no attributes, and demands null and 0 for them.
    let version = unsafe {
        syscall!(
            "landlock_create_ruleset(VERSION)",
            libc::SYS_landlock_create_ruleset,
            0_usize,
            0_usize,
            VERSION
        )
    }?;
    Ok(i32::try_from(version).unwrap_or(i32::MAX))
}

/// Restricts this thread and its future descendants, irrevocably.
///
/// # Kernel
/// 5.13. Needs `set_no_new_privs` or CAP_SYS_ADMIN in the user namespace.
///
/// # Errors
/// EPERM without no_new_privs, E2BIG after 16 rulesets, EBADFD for a descriptor that is not a ruleset.
pub fn restrict_self(ruleset: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: both arguments are numbers.
    unsafe {
        syscall!(
            "landlock_restrict_self",
            libc::SYS_landlock_restrict_self,
            ruleset,
            0
        )
    }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_no_ruleset_is_refused() {
        let (reader, _writer) = crate::fd::pipe(libc::O_CLOEXEC).unwrap();
        assert!(restrict_self(reader.as_fd()).is_err());
    }
}
