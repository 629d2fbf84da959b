//! Dropping capabilities before the command starts.

use abi::constant::CAP_SETPCAP;
use abi::{Capabilities, Errno};
use policy::compile::caps::Profile;
use sys::credential::{self, CapabilitySets};
use sys::{SyscallError, prctl};

/// Drops the capabilities for good, from all five sets. Without CAP_SETPCAP the bounding set stays, which
/// `no_new_privs` makes harmless: no program gains anything from it.
///
/// Allocates nothing.
pub(crate) fn drop(profile: Profile) -> Result<(), SyscallError> {
    if profile.no_new_privs {
        sys::seccomp::set_no_new_privs()?;
    }
    if profile.dropped.0 == 0 {
        return Ok(());
    }
    prctl::clear_ambient_capabilities()?;
    let own = credential::capabilities(0)?;
    if own.effective.contains(CAP_SETPCAP.u8()) {
        drop_bounding(profile.dropped)?;
    }
    let without = |set: Capabilities| Capabilities(set.0 & !profile.dropped.0);
    credential::set_capabilities(CapabilitySets {
        effective: without(own.effective),
        permitted: without(own.permitted),
        inheritable: without(own.inheritable),
    })
}

fn drop_bounding(dropped: Capabilities) -> Result<(), SyscallError> {
    let numbers = (0..64).filter(|number| dropped.contains(*number));
    for number in numbers {
        match prctl::drop_bounding_capability(number) {
            // This kernel has no capability of this number or of a higher one.
            Err(error) if error.is(Errno::EINVAL) => break,
            outcome => outcome?,
        }
    }
    Ok(())
}
