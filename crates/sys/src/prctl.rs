//! Attributes of this process and thread.

use std::ffi::CStr;

use crate::error::Result;

/// Makes this process, instead of pid 1, the parent of its orphaned descendants.
///
/// # Errors
/// None are known since Linux 3.4.
pub fn set_child_subreaper(enabled: bool) -> Result<()> {
    let value = usize::from(enabled);
    scalar(
        "prctl(SET_CHILD_SUBREAPER)",
        libc::PR_SET_CHILD_SUBREAPER,
        [value, 0, 0, 0],
    )?;
    Ok(())
}

/// Requests a signal for the time when the thread that created this process ends; 0 for none. Exec of a
/// setuid program and a change of identity clear the request.
///
/// # Errors
/// EINVAL for an invalid signal number.
pub fn set_parent_death_signal(signal: i32) -> Result<()> {
    scalar(
        "prctl(SET_PDEATHSIG)",
        libc::PR_SET_PDEATHSIG,
        [signal as usize, 0, 0, 0],
    )?;
    Ok(())
}

/// Sets whether other processes of the same user may read and trace this process.
///
/// # Errors
/// None are known.
pub fn set_dumpable(enabled: bool) -> Result<()> {
    let value = usize::from(enabled);
    scalar(
        "prctl(SET_DUMPABLE)",
        libc::PR_SET_DUMPABLE,
        [value, 0, 0, 0],
    )?;
    Ok(())
}

/// Returns true if other processes of the same user may read and trace this process.
///
/// # Errors
/// None are known.
pub fn dumpable() -> Result<bool> {
    // The value 2 means root only.
    Ok(scalar("prctl(GET_DUMPABLE)", libc::PR_GET_DUMPABLE, [0; 4])? == 1)
}

/// Returns true if `no_new_privs` is set for this thread.
///
/// # Errors
/// EINVAL before Linux 3.5.
pub fn no_new_privs() -> Result<bool> {
    Ok(scalar("prctl(GET_NO_NEW_PRIVS)", libc::PR_GET_NO_NEW_PRIVS, [0; 4])? == 1)
}

/// Names this thread; the kernel keeps 15 bytes.
///
/// # Errors
/// None are known.
pub fn set_name(name: &CStr) -> Result<()> {
    // SAFETY: the kernel reads up to 16 bytes and stops at the NUL that a CStr has.
    unsafe { syscall!("prctl(SET_NAME)", libc::SYS_prctl, libc::PR_SET_NAME, name) }?;
    Ok(())
}

/// Lets any process of this user trace this one where Yama restricts tracing to ancestors.
///
/// # Errors
/// EINVAL on a kernel without Yama.
pub fn allow_any_tracer() -> Result<()> {
    scalar("prctl(SET_PTRACER)", PR_SET_PTRACER, [usize::MAX, 0, 0, 0])?;
    Ok(())
}

/// Sets whether this process keeps its capabilities when all of its user ids become nonzero. Exec resets it.
///
/// # Errors
/// EPERM where a secure bit forbids it.
pub fn keep_capabilities(enabled: bool) -> Result<()> {
    scalar(
        "prctl(SET_KEEPCAPS)",
        libc::PR_SET_KEEPCAPS,
        [usize::from(enabled), 0, 0, 0],
    )?;
    Ok(())
}

/// Adds a permitted and inheritable capability to the ambient set, which programs executed by this process
/// receive.
///
/// # Errors
/// EPERM if the capability is not permitted and inheritable, EINVAL for an unknown capability.
pub fn raise_ambient_capability(capability: u8) -> Result<()> {
    const RAISE: usize = 2;
    scalar(
        "prctl(CAP_AMBIENT)",
        libc::PR_CAP_AMBIENT,
        [RAISE, usize::from(capability), 0, 0],
    )?;
    Ok(())
}

/// Clears the ambient set: programs that this process executes receive only the capabilities of their files.
///
/// # Errors
/// EINVAL before Linux 4.3.
pub fn clear_ambient_capabilities() -> Result<()> {
    const CLEAR_ALL: usize = 4;
    scalar(
        "prctl(CAP_AMBIENT)",
        libc::PR_CAP_AMBIENT,
        [CLEAR_ALL, 0, 0, 0],
    )?;
    Ok(())
}

/// Removes a capability from the bounding set of this thread.
///
/// # Errors
/// EPERM without CAP_SETPCAP, EINVAL for an unknown capability.
pub fn drop_bounding_capability(capability: u8) -> Result<()> {
    let value = usize::from(capability);
    scalar(
        "prctl(CAPBSET_DROP)",
        libc::PR_CAPBSET_DROP,
        [value, 0, 0, 0],
    )?;
    Ok(())
}

/// Returns true if a capability is in the bounding set of this thread.
///
/// # Errors
/// EINVAL for an unknown capability.
pub fn bounding_capability(capability: u8) -> Result<bool> {
    let value = usize::from(capability);
    Ok(scalar(
        "prctl(CAPBSET_READ)",
        libc::PR_CAPBSET_READ,
        [value, 0, 0, 0],
    )? == 1)
}

/// `YAMA` in letters.
const PR_SET_PTRACER: i32 = 0x5961_6d61;

/// Calls an option whose arguments are all numbers.
pub(crate) fn scalar(name: &'static str, option: i32, args: [usize; 4]) -> Result<usize> {
    let [a, b, c, d] = args;
    // SAFETY: every caller is in this crate and passes an option that takes no address.
    unsafe { crate::kernel::call(name, libc::SYS_prctl, [option as usize, a, b, c, d, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn attributes_of_a_child_are_set_and_read() {
        let done = testing::in_child(|| {
            let check = || -> Result<bool> {
                let before = (dumpable()?, no_new_privs()?);
                set_dumpable(false)?;
                crate::seccomp::set_no_new_privs()?;
                set_child_subreaper(true)?;
                set_parent_death_signal(libc::SIGKILL)?;
                set_name(c"sys-prctl-test")?;
                Ok(before == (true, false) && !dumpable()? && no_new_privs()?)
            };
            match check() {
                Ok(true) => Ok(()),
                Ok(false) => Err(200),
                Err(error) => Err(error.errno()),
            }
        });
        assert_eq!(done, Ok(()));
        assert!(set_parent_death_signal(9999).is_err_and(|e| e.is(libc::EINVAL)));
        assert!(bounding_capability(200).is_err_and(|e| e.is(libc::EINVAL)));
    }
}
