//! Which calls may notice the stop that tells their result.
//!
//! A thread is asked to stop while it is parked, and so the request is pending while the call is made
//! if that is simply let go ([`super::escalation`]). To much of the kernel a pending request is a
//! signal: what waits, copies or allocates for long gives up. That is cheap, and harmless for calls
//! that have done nothing when they give up, and fail as a whole, because those are made again. Any
//! other call could return less than it was asked for (a short write), or have begun what cannot begin
//! twice (a connect). It is taken back before it begins ([`super::tracer`]), which costs three stops
//! instead of one.

use abi::Syscall;
use event::{DescriptorSource, OpenFlags, Param};

use super::worker::Role;
use decoder::call::Call;
use decoder::decode::Decoded;

/// The kernel's own code for a call that is made again, whatever signal handlers run before:
/// `ERESTARTNOINTR` (include/linux/errno.h).
pub(super) const RESTART: i32 = 513;

/// Whether the call may notice that its thread is asked to stop: it either takes place as a whole or
/// has no effect. What is not named here is taken back.
pub(super) fn may_notice(call: &Call, decoded: &Decoded<'_>) -> bool {
    Role::of(call) == Role::Exec || opens_what_may_exist(call, decoded)
}

/// An open that was given up may have made its file. Made again it finds that, which counts only for
/// one that must make it.
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
