//! Calls that policies deny, to measure the cost of a denial, reported or not. Without a policy all of them
//! succeed.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::kernel_path;
use crate::Error;
use crate::measure::{Batch, Setup};

fn repeat<T>(mut call: impl FnMut() -> Result<T, Errno> + 'static) -> Result<Batch, Error> {
    let mut first = None;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let got = call().map(drop);
            let expected = *first.get_or_insert(got);
            if got != expected {
                return Err(Error::Unexpected {
                    expected: format!("{expected:?} as at first"),
                    got: format!("{got:?}"),
                });
            }
        }
        Ok(())
    }))
}

/// Opens a file; by default /etc/shadow, which rules match.
pub(crate) fn open(setup: &Setup) -> Result<Batch, Error> {
    let path = setup.options.path.as_deref();
    let path = kernel_path(path.unwrap_or("/etc/shadow".as_ref()))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    repeat(move || rustix::fs::open(&path, flags, Mode::empty()))
}

/// Makes a datagram socket.
pub(crate) fn socket(_: &Setup) -> Result<Batch, Error> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    repeat(move || rustix::net::socket_with(family, SocketType::DGRAM, flags, None))
}

/// Uses a capability: chroot(2).
pub(crate) fn chroot(_: &Setup) -> Result<Batch, Error> {
    repeat(|| rustix::process::chroot("/"))
}
