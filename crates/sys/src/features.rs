//! Kernel features that older kernels lack, and emulation of an older kernel.
//!
//! Every call of this crate passes this module on its way into the kernel. A feature that the emulated kernel
//! lacks fails here with the error number of that kernel, so that callers take the same fallback as on that
//! kernel; the crates above do not notice the emulation.

use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_long;

/// A version of Linux.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct KernelVersion {
    /// Major version.
    pub major: u16,
    /// Minor version.
    pub minor: u16,
}

impl KernelVersion {
    /// Creates a version from its two numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Parses the beginning of a release, such as `5.10.0-30-cloud-amd64`.
    #[must_use]
    pub fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?.parse().ok()?;
        Some(Self { major, minor })
    }

    const fn packed(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A kernel feature that tollgate uses and that some kernels from 5.5 on lack.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Feature {
    /// Name in man pages and headers.
    pub name: &'static str,
    /// First version with the feature.
    pub since: KernelVersion,
    call: c_long,
    /// The argument that distinguishes the feature from other uses of the call: index, mask and value.
    argument: Option<(usize, usize, usize)>,
    /// Error number of an older kernel.
    errno: i32,
}

/// All features, oldest first.
pub const FEATURES: &[Feature] = &[
    feature(
        "pidfd_getfd",
        (5, 6),
        libc::SYS_pidfd_getfd,
        None,
        libc::ENOSYS,
    ),
    feature("openat2", (5, 6), libc::SYS_openat2, None, libc::ENOSYS),
    feature(
        "close_range",
        (5, 9),
        libc::SYS_close_range,
        None,
        libc::ENOSYS,
    ),
    ioctl(
        "SECCOMP_IOCTL_NOTIF_ADDFD",
        (5, 9),
        0x4018_2103,
        libc::EINVAL,
    ),
    feature(
        "CLOSE_RANGE_CLOEXEC",
        (5, 11),
        libc::SYS_close_range,
        bits(2, libc::CLOSE_RANGE_CLOEXEC as usize),
        libc::EINVAL,
    ),
    feature(
        "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV",
        (5, 19),
        libc::SYS_seccomp,
        bits(1, 1 << 5),
        libc::EINVAL,
    ),
    ioctl(
        "SECCOMP_IOCTL_NOTIF_SET_FLAGS",
        (6, 6),
        0x4008_2104,
        libc::EINVAL,
    ),
    feature(
        "PIDFD_THREAD",
        (6, 9),
        libc::SYS_pidfd_open,
        bits(1, libc::O_EXCL as usize),
        libc::EINVAL,
    ),
    ioctl("PIDFD_GET_INFO", (6, 13), 0xc040_ff0b, libc::ENOTTY),
];

/// The emulated version; zero for none. Inherited by forked processes.
static PRETENDED: AtomicU32 = AtomicU32::new(0);

/// Emulates a kernel of this version from now on, for the features in [`FEATURES`]. For tests: hosts with old
/// kernels are rare, and the fallbacks have to work.
pub fn pretend(version: KernelVersion) {
    PRETENDED.store(version.packed(), Ordering::Relaxed);
}

/// The emulated version.
#[must_use]
pub fn pretended() -> Option<KernelVersion> {
    let packed = PRETENDED.load(Ordering::Relaxed);
    let half = |bits: u32| u16::try_from(bits & 0xffff).expect("sixteen bits fit");
    (packed != 0).then(|| KernelVersion::new(half(packed >> 16), half(packed)))
}

/// The error with which the emulated kernel refuses the call, if it does.
#[inline]
pub(crate) fn refusal(call: c_long, args: &[usize; 6]) -> Option<i32> {
    let packed = PRETENDED.load(Ordering::Relaxed);
    if packed == 0 {
        return None;
    }
    FEATURES
        .iter()
        .filter(|feature| feature.since.packed() > packed)
        .find(|feature| feature.is_used_by(call, args))
        .map(|feature| feature.errno)
}

impl Feature {
    fn is_used_by(&self, call: c_long, args: &[usize; 6]) -> bool {
        let fits = |(index, mask, value): (usize, usize, usize)| args[index] & mask == value;
        self.call == call && self.argument.is_none_or(fits)
    }
}

const fn feature(
    name: &'static str,
    (major, minor): (u16, u16),
    call: c_long,
    argument: Option<(usize, usize, usize)>,
    errno: i32,
) -> Feature {
    Feature {
        name,
        since: KernelVersion::new(major, minor),
        call,
        argument,
        errno,
    }
}

/// The feature of an ioctl(2) request number, of which the kernel reads 32 bits.
const fn ioctl(name: &'static str, since: (u16, u16), request: usize, errno: i32) -> Feature {
    let argument = Some((1, 0xffff_ffff, request));
    feature(name, since, libc::SYS_ioctl, argument, errno)
}

/// A test for a flag in an argument.
const fn bits(index: usize, flag: usize) -> Option<(usize, usize, usize)> {
    Some((index, flag, flag))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::notify::Listener;
    use crate::seccomp::{FilterFlags, SECCOMP_RET_ALLOW, SockFilter};
    use crate::{pidfd, seccomp, testing};

    const ALLOW: [SockFilter; 1] = [SockFilter::stmt(seccomp::BPF_RET, SECCOMP_RET_ALLOW)];

    /// Checks which of four features a child that emulates `version` has; the exit status has them as bits.
    fn seen_as(version: KernelVersion) -> Result<(), i32> {
        testing::in_child(|| {
            pretend(version);
            let check = || -> crate::Result<i32> {
                let own = pidfd::open(crate::syscall::getpid())?;
                let get_fd = match pidfd::take_fd(own.as_fd(), 2) {
                    Err(error) if error.is(libc::ENOSYS) => 0,
                    other => other.map(|_| 1)?,
                };
                seccomp::set_no_new_privs()?;
                let killable = FilterFlags::NEW_LISTENER | FilterFlags::WAIT_KILLABLE_RECV;
                let (listener, waits) = match seccomp::install_filter(&ALLOW, killable) {
                    Err(error) if error.is(libc::EINVAL) => (
                        seccomp::install_filter(&ALLOW, FilterFlags::NEW_LISTENER)?,
                        0,
                    ),
                    other => (other?, 2),
                };
                let listener = Listener::new(listener.expect("a listener was asked for"));
                let sync = match listener.set_sync_wake_up(true) {
                    Err(error) if error.is(libc::EINVAL) => 0,
                    other => other.map(|()| 4)?,
                };
                let thread = match pidfd::open_thread(crate::syscall::gettid()) {
                    Err(error) if error.is(libc::EINVAL) => 0,
                    other => other.map(|_| 8)?,
                };
                Ok(get_fd | waits | sync | thread)
            };
            Err(100 + check().unwrap_or(100))
        })
    }

    #[test]
    fn a_pretended_kernel_lacks_what_came_after_it() {
        for (version, has) in [((5, 5), 0), ((5, 10), 1), ((5, 19), 3), ((6, 6), 7)] {
            let version = KernelVersion::new(version.0, version.1);
            assert_eq!(seen_as(version), Err(100 + has), "{version}");
        }
    }

    #[test]
    fn request_numbers_are_those_of_the_wrappers() {
        let numbers: Vec<_> = FEATURES
            .iter()
            .filter(|feature| feature.call == libc::SYS_ioctl)
            .filter_map(|feature| feature.argument)
            .map(|(_, _, request)| request)
            .collect();
        // `_IOW('!', 3, 24)`, `_IOW('!', 4, 8)` and `_IOWR(0xff, 11, 64)`.
        let expected = [(1, 24, 0x21, 3), (1, 8, 0x21, 4), (3, 64, 0xff, 11)];
        let expected = expected
            .map(|(direction, size, kind, nr)| direction << 30 | size << 16 | kind << 8 | nr);
        assert_eq!(numbers, expected);
    }

    #[test]
    fn versions_are_read_from_releases() {
        let version = KernelVersion::new;
        assert_eq!(KernelVersion::parse("6.18.0-rc1+"), Some(version(6, 18)));
        let debian = KernelVersion::parse("5.10.0-30-cloud-amd64");
        assert_eq!(debian, Some(version(5, 10)));
        assert_eq!(KernelVersion::parse("6.6"), Some(version(6, 6)));
        assert_eq!(KernelVersion::parse("linux"), None);
        assert!(version(5, 19) < version(6, 1));
        assert_eq!(version(5, 5).to_string(), "5.5");
    }

    #[test]
    fn features_are_in_order() {
        assert!(FEATURES.is_sorted_by_key(|feature| feature.since));
    }
}
