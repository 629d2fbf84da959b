//! Calls that may notice the stop that shows their result.
//!
//! A thread is asked to stop while it is parked, so the request is pending while the call is made if that is
//! simply let go ([`super::escalation`]). To much of the kernel a pending request is a signal: long waits,
//! copies and allocations give up. That is cheap, and harmless for calls that have no effect when they give
//! up, and fail as a whole, because the kernel makes those again. Any other call could return less than it
//! was asked for (a short write), or have begun what cannot begin twice (a connect). Such a call is taken
//! back before it begins ([`super::tracer`]), which costs three stops instead of one.

use abi::Syscall;
use event::{DescriptorSource, OpenFlags, Param};

use super::worker::Role;
use decoder::call::Call;
use decoder::decode::Decoded;

/// The kernel's code for a call that is made again, whatever signal handlers run before: `ERESTARTNOINTR`
/// (include/linux/errno.h).
pub(super) const RESTART: i32 = 513;

/// Returns whether the call may notice that its thread is asked to stop: it either takes place as a whole or
/// has no effect. Calls not named here are taken back.
pub(super) fn may_notice(call: &Call, decoded: &Decoded<'_>) -> bool {
    Role::of(call) == Role::Exec || opens_what_may_exist(call, decoded)
}

/// Returns whether an open succeeds if its file exists. An open that gave up may have created its file; made
/// again it finds the file, which only matters to an open that must create it.
fn opens_what_may_exist(call: &Call, decoded: &Decoded<'_>) -> bool {
    let DescriptorSource::Opened { flags, .. } = call.kind.spec().descriptor else {
        return false;
    };
    match call.syscall.base() {
        Syscall::CREAT => true,
        Syscall::OPEN | Syscall::OPENAT | Syscall::OPENAT2 => {
            let flags = decoded.params.get(usize::from(flags));
            matches!(flags, Some(Param::Uint(flags)) if !OpenFlags(*flags).must_create())
        }
        _ => false,
    }
}
