//! Waiting for several descriptors.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::Result;
use crate::kernel::own;

/// Data can be read.
pub const IN: i16 = libc::POLLIN;
/// Data can be written.
pub const OUT: i16 = libc::POLLOUT;
/// Error; always reported.
pub const ERR: i16 = libc::POLLERR;
/// The other end is closed, or the last process of a listener has ended (Linux 5.8); always reported.
pub const HUP: i16 = libc::POLLHUP;

/// One descriptor to wait for.
#[repr(transparent)]
#[derive(Debug)]
pub struct PollFd<'fd>(libc::pollfd, PhantomData<BorrowedFd<'fd>>);

impl<'fd> PollFd<'fd> {
    /// Creates an entry that waits for `events`, a sum of [`IN`] and [`OUT`].
    #[must_use]
    pub fn new(fd: BorrowedFd<'fd>, events: i16) -> Self {
        Self(
            libc::pollfd {
                fd: fd.as_raw_fd(),
                events,
                revents: 0,
            },
            PhantomData,
        )
    }

    /// The events that the last [`poll`] reported.
    #[must_use]
    pub fn found(&self) -> i16 {
        self.0.revents
    }
}

/// Waits until a descriptor is ready; returns the number of ready descriptors, 0 after a time-out.
///
/// # Errors
/// EINTR.
pub fn poll(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<usize> {
    let limit = timeout.map(crate::time::timespec);
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `PollFd` has pollfd's layout and the kernel writes to `fds.len()` of them; the
    // timeout is null or lives to the end of this function; the signal mask may be null.
    unsafe {
        syscall!(
            "ppoll",
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            limit,
            0_usize,
            8_usize
        )
    }
}

/// A set of descriptors to wait for, `epoll(7)`.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// An event of [`Epoll::wait`].
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct EpollEvent(libc::epoll_event);

impl EpollEvent {
    /// A value to initialise the array for [`Epoll::wait`].
    pub const EMPTY: Self = Self(libc::epoll_event { events: 0, u64: 0 });

    /// The token given to [`Epoll::add`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.u64
    }

    /// The reported events: `libc::EPOLL*` bits.
    #[must_use]
    pub fn found(&self) -> u32 {
        self.0.events
    }
}

impl Epoll {
    /// Creates an empty set.
    ///
    /// # Errors
    /// EMFILE.
    pub fn new() -> Result<Self> {
        // SAFETY: the argument is a number.
        let fd = unsafe {
            syscall!(
                "epoll_create1",
                libc::SYS_epoll_create1,
                libc::EPOLL_CLOEXEC
            )
        }?;
        // SAFETY: epoll_create1 returns a new descriptor.
        Ok(Self(unsafe { own(fd) }))
    }

    /// Adds a descriptor. It leaves the set when its last copy is closed.
    ///
    /// # Errors
    /// EEXIST, EPERM for a kind that cannot be waited for, ENOSPC.
    pub fn add(&self, fd: BorrowedFd<'_>, token: u64, events: u32) -> Result<()> {
        let event = libc::epoll_event { events, u64: token };
        // SAFETY: the kernel reads `event` during the call.
        unsafe {
            syscall!(
                "epoll_ctl(ADD)",
                libc::SYS_epoll_ctl,
                self.0.as_fd(),
                libc::EPOLL_CTL_ADD,
                fd,
                &raw const event
            )
        }?;
        Ok(())
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// ENOENT.
    pub fn remove(&self, fd: BorrowedFd<'_>) -> Result<()> {
        // SAFETY: the event pointer may be null for this operation.
        unsafe {
            syscall!(
                "epoll_ctl(DEL)",
                libc::SYS_epoll_ctl,
                self.0.as_fd(),
                libc::EPOLL_CTL_DEL,
                fd,
                0_usize
            )
        }?;
        Ok(())
    }

    /// Waits until a descriptor is ready; returns the number of elements of `events` that were filled.
    ///
    /// The time is rounded up to milliseconds.
    ///
    /// # Errors
    /// EINTR, EINVAL for an empty array.
    pub fn wait(&self, events: &mut [EpollEvent], timeout: Option<Duration>) -> Result<usize> {
        let millis = timeout.map_or(-1, |limit| {
            i32::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
        });
        let len = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: `EpollEvent` has epoll_event's layout and the kernel writes at most `len` of
        // them; the signal mask may be null.
        unsafe {
            syscall!(
                "epoll_pwait",
                libc::SYS_epoll_pwait,
                self.0.as_fd(),
                events.as_mut_ptr(),
                len,
                millis,
                0_usize,
                8_usize
            )
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_and_epoll_see_the_same() {
        let (reader, writer) = crate::fd::pipe(libc::O_CLOEXEC).expect("pipe");
        let epoll = Epoll::new().expect("epoll");
        epoll
            .add(reader.as_fd(), 42, libc::EPOLLIN as u32)
            .expect("a pipe can be waited for");
        let mut events = [EpollEvent::EMPTY; 4];
        let soon = Some(Duration::from_millis(1));
        let mut fds = [PollFd::new(reader.as_fd(), IN)];
        assert_eq!(poll(&mut fds, soon), Ok(0));
        assert_eq!(epoll.wait(&mut events, soon), Ok(0));
        crate::fd::write(writer.as_fd(), b"x").expect("the reader is open");
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!(fds[0].found(), IN);
        assert_eq!(epoll.wait(&mut events, None), Ok(1));
        assert_eq!(
            (events[0].token(), events[0].found()),
            (42, libc::EPOLLIN as u32)
        );
        drop(writer);
        // Children of tests that run beside this one may hold copies for a moment: wait for HUP.
        let mut hang_up = [PollFd::new(reader.as_fd(), 0)];
        assert_eq!(poll(&mut hang_up, Some(Duration::from_secs(20))), Ok(1));
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!(fds[0].found(), IN | HUP);
        epoll.remove(reader.as_fd()).expect("it is in the set");
        assert_eq!(epoll.wait(&mut events, soon), Ok(0));
    }
}
