//! The supervisor's side of seccomp user notification.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Result, SyscallError};
use crate::kernel::number;

/// A trapped call that waits for a response, `struct seccomp_notif` with its data inlined.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Notification {
    /// Id of the notification for responses; never reused.
    pub id: u64,
    /// Tid of the caller in the pid namespace of the listener; 0 if it is not visible there.
    pub tid: i32,
    /// Always 0 so far.
    pub flags: u32,
    /// The raw call number, with the x32 bit if the caller set it.
    pub nr: u32,
    /// The audit architecture.
    pub arch: u32,
    /// Address of the instruction after the call.
    pub ip: u64,
    /// The register arguments.
    pub args: [u64; 6],
}

/// Memory shared with other processes into which the kernel writes the received call. A receiver that is
/// killed dies either after the write or before the call is delivered to it: at no time does only the
/// receiver know of a call.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a>(&'a [AtomicU64; SLOT_WORDS]);

const SLOT_WORDS: usize = size_of::<Notification>() / size_of::<u64>();

impl<'a> Slot<'a> {
    /// Number of words in a slot.
    pub const WORDS: usize = SLOT_WORDS;

    /// Creates a slot from the first [`Slot::WORDS`] words.
    ///
    /// # Panics
    /// Panics if there are fewer words.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Self {
        Self(words.first_chunk().expect("as many words as a slot takes"))
    }

    /// The last received call; `None` before the first one, and while the receiver waits for the next one.
    #[must_use]
    pub fn call(&self) -> Option<Notification> {
        Some(self.read()).filter(|call| call.id != 0)
    }

    /// Id of that call, or 0.
    #[must_use]
    pub fn id(&self) -> u64 {
        // The id is the first field.
        self.0[0].load(Ordering::Acquire)
    }

    fn read(&self) -> Notification {
        let words = self.0.each_ref().map(|word| word.load(Ordering::Acquire));
        // SAFETY: the structure is as long as these words, which the compiler checks, and all of its fields are
        // numbers, which any bytes are.
        unsafe { std::mem::transmute::<[u64; SLOT_WORDS], Notification>(words) }
    }

    /// Clears the slot.
    pub fn clear(&self) {
        for word in self.0 {
            word.store(0, Ordering::Relaxed);
        }
    }
}

#[repr(C)]
struct Response {
    id: u64,
    val: i64,
    error: i32,
    flags: u32,
}

#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    srcfd: u32,
    newfd: u32,
    newfd_flags: u32,
}

/// Response flag: let the kernel make the call.
pub const SECCOMP_USER_NOTIF_FLAG_CONTINUE: u32 = 1;

const ADDFD_SETFD: u32 = 1;
const ADDFD_SEND: u32 = 2;
const FD_SYNC_WAKE_UP: u32 = 1;

/// `_IOC` of include/uapi/asm-generic/ioctl.h with seccomp's magic `!`. The number contains the structure's
/// size, so a kernel with a larger structure cannot write past ours.
const fn ioc(direction: u32, nr: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'!' as u32) << 8 | nr
}

const WRITE: u32 = 1;
const READ_WRITE: u32 = 3;
const RECV: u32 = ioc(READ_WRITE, 0, size_of::<Notification>());
const SEND: u32 = ioc(READ_WRITE, 1, size_of::<Response>());
const ID_VALID: u32 = ioc(WRITE, 2, size_of::<u64>());
const ADDFD: u32 = ioc(WRITE, 3, size_of::<AddFd>());
const SET_FLAGS: u32 = ioc(WRITE, 4, size_of::<u64>());

/// Outcome of [`Listener::receive`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Received {
    /// The caller was killed or interrupted before the notification was delivered; or, from Linux
    /// 6.11, no process has the filter any more. `poll` tells the two apart by POLLHUP.
    CallerGone,
    /// A signal interrupted the wait.
    Interrupted,
    /// The structure is filled.
    Notification,
    /// No notification is waiting (listener in non-blocking mode).
    WouldBlock,
}

/// Outcome of a response.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// The caller no longer waits: killed, interrupted, or restarted under another id.
    CallerGone,
    /// The caller continues.
    Delivered,
}

/// Effect of [`Listener::add_fd`] on the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AddMode {
    /// Only add the descriptor; the caller keeps waiting.
    Add,
    /// Add the descriptor and respond with its number, in one step. Linux 5.14.
    AddAndRespond,
}

/// A seccomp listener.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl Listener {
    /// Takes ownership of a listener from [`crate::seccomp::install_filter`] or from another process.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Waits for the next notification.
    ///
    /// # Errors
    /// Anything but the outcomes of [`Received`]: EBADF, ENOTTY for a descriptor of another kind.
    pub fn receive(&self, notification: &mut Notification) -> Result<Received> {
        // The kernel refuses a structure that is not zero (EINVAL).
        *notification = Notification::default();
        // SAFETY: there is a structure to write to, which nobody else uses.
        unsafe { self.receive_at(std::ptr::from_mut(notification)) }
    }

    /// Receives like [`Self::receive`], and makes the call visible to other processes as soon as it is
    /// received. Each slot belongs to one receiver.
    ///
    /// # Errors
    /// As [`Self::receive`]. EINVAL if another process writes to the slot.
    pub fn receive_into(
        &self,
        slot: Slot<'_>,
        notification: &mut Notification,
    ) -> Result<Received> {
        slot.clear();
        // SAFETY: the slot is as long as the structure and aligned as it is; others use it by atomic
        // operations alone, for which the kernel is one more processor that stores.
        let received = unsafe { self.receive_at(slot.0.as_ptr().cast_mut().cast()) }?;
        *notification = slot.read();
        Ok(received)
    }

    /// # Safety
    /// The kernel may write a `Notification` there.
    unsafe fn receive_at(&self, notification: *mut Notification) -> Result<Received> {
        // SAFETY: RECV carries the size of `Notification`, so the kernel writes exactly that.
        let result = unsafe {
            syscall!(
                "ioctl(SECCOMP_IOCTL_NOTIF_RECV)",
                libc::SYS_ioctl,
                self.as_fd(),
                RECV,
                notification
            )
        };
        match result {
            Ok(_) => Ok(Received::Notification),
            Err(error) if error.is(libc::EINTR) => Ok(Received::Interrupted),
            Err(error) if error.is(libc::ENOENT) => Ok(Received::CallerGone),
            Err(error) if error.is(libc::EAGAIN) => Ok(Received::WouldBlock),
            Err(error) => Err(error),
        }
    }

    /// Lets the kernel make the call. Not suitable for security decisions: memory behind the arguments may
    /// have changed since it was read.
    ///
    /// # Errors
    /// EINVAL for a notification that already has a response.
    pub fn respond_continue(&self, id: u64) -> Result<Delivery> {
        self.respond(&Response {
            id,
            val: 0,
            error: 0,
            flags: SECCOMP_USER_NOTIF_FLAG_CONTINUE,
        })
    }

    /// Fails the call with a positive error number.
    ///
    /// # Errors
    /// EINVAL for a notification that already has a response.
    pub fn respond_errno(&self, id: u64, errno: i32) -> Result<Delivery> {
        self.respond(&Response {
            id,
            val: 0,
            error: -errno.abs(),
            flags: 0,
        })
    }

    /// Makes the call return `value` without executing it.
    ///
    /// # Errors
    /// EINVAL for a notification that already has a response.
    pub fn respond_value(&self, id: u64, value: i64) -> Result<Delivery> {
        self.respond(&Response {
            id,
            val: value,
            error: 0,
            flags: 0,
        })
    }

    fn respond(&self, response: &Response) -> Result<Delivery> {
        // SAFETY: SEND carries the size of `Response`; the kernel copies it during the call.
        let result = unsafe {
            syscall!(
                "ioctl(SECCOMP_IOCTL_NOTIF_SEND)",
                libc::SYS_ioctl,
                self.as_fd(),
                SEND,
                std::ptr::from_ref(response)
            )
        };
        delivery(result)
    }

    /// Returns true if the caller still waits. Check after reading its memory or `/proc` entries: only then
    /// is it certain that they were its own and not those of a reused pid.
    ///
    /// # Errors
    /// EBADF or ENOTTY for a descriptor of another kind.
    pub fn is_valid(&self, id: u64) -> Result<bool> {
        // SAFETY: ID_VALID carries the size of a u64, which the kernel reads during the call.
        let result = unsafe {
            syscall!(
                "ioctl(SECCOMP_IOCTL_NOTIF_ID_VALID)",
                libc::SYS_ioctl,
                self.as_fd(),
                ID_VALID,
                &raw const id
            )
        };
        delivery(result).map(|outcome| outcome == Delivery::Delivered)
    }

    /// Gives the caller a copy of `source`; returns its number there, or `None` if the caller is gone.
    ///
    /// `newfd` requests that number (replacing an open descriptor); `fd_flags` is `O_CLOEXEC` or 0.
    ///
    /// # Kernel
    /// 5.9.
    ///
    /// # Errors
    /// EINVAL on older kernels, EBADF, EBUSY, EMFILE.
    pub fn add_fd(
        &self,
        id: u64,
        source: BorrowedFd<'_>,
        newfd: Option<u32>,
        fd_flags: u32,
        mode: AddMode,
    ) -> Result<Option<i32>> {
        use std::os::fd::AsRawFd;
        let set = if newfd.is_some() { ADDFD_SETFD } else { 0 };
        let send = if mode == AddMode::AddAndRespond {
            ADDFD_SEND
        } else {
            0
        };
        let request = AddFd {
            id,
            flags: set | send,
            srcfd: source.as_raw_fd().cast_unsigned(),
            newfd: newfd.unwrap_or(0),
            newfd_flags: fd_flags,
        };
        // SAFETY: ADDFD carries the size of `AddFd`; the kernel copies it during the call.
        let result = unsafe {
            syscall!(
                "ioctl(SECCOMP_IOCTL_NOTIF_ADDFD)",
                libc::SYS_ioctl,
                self.as_fd(),
                ADDFD,
                &raw const request
            )
        };
        match result {
            Ok(fd) => Ok(Some(number(fd))),
            Err(error) if error.is(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets whether wake-ups move caller and supervisor to one CPU: best for one busy caller, bad for
    /// parallel ones. May be changed at any time.
    ///
    /// # Kernel
    /// 6.6.
    ///
    /// # Errors
    /// EINVAL on older kernels.
    pub fn set_sync_wake_up(&self, enabled: bool) -> Result<()> {
        let flags = if enabled { FD_SYNC_WAKE_UP } else { 0 };
        // SAFETY: this command takes its argument by value.
        unsafe {
            syscall!(
                "ioctl(SECCOMP_IOCTL_NOTIF_SET_FLAGS)",
                libc::SYS_ioctl,
                self.as_fd(),
                SET_FLAGS,
                flags
            )
        }?;
        Ok(())
    }

    /// Duplicates the listener, e.g. for a keeper process.
    ///
    /// # Errors
    /// EMFILE.
    pub fn try_clone(&self) -> Result<Self> {
        crate::fd::duplicate(self.as_fd()).map(Self)
    }

    /// Returns the descriptor, e.g. to send it.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn delivery(result: std::result::Result<usize, SyscallError>) -> Result<Delivery> {
    match result {
        Ok(_) => Ok(Delivery::Delivered),
        Err(error) if error.is(libc::ENOENT) => Ok(Delivery::CallerGone),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use super::*;
    use crate::poll::{self, PollFd};
    use crate::seccomp::{self, FilterFlags};
    use crate::shared::SharedPage;
    use crate::{ptrace, socket, syscall, testing, wait};

    /// Starts a child that hands over its listener for `getppid` and then runs `work`.
    fn supervised(work: impl FnOnce() -> std::result::Result<(), i32>) -> (i32, Listener) {
        let (ours, theirs) = socket::pair(libc::SOCK_SEQPACKET).expect("socketpair");
        let program = testing::filter_for(libc::SYS_getppid, seccomp::SECCOMP_RET_USER_NOTIF);
        let child = testing::spawn(|| {
            let hand_over = || -> Result<()> {
                seccomp::set_no_new_privs()?;
                let flags = FilterFlags::NEW_LISTENER | FilterFlags::WAIT_KILLABLE_RECV;
                let listener = seccomp::install_filter(&program, flags)?;
                socket::send_fd(theirs.as_fd(), b"L", listener.as_ref().map(AsFd::as_fd))?;
                Ok(())
            };
            hand_over().map_err(|e| e.errno())?;
            work()
        });
        let (_, fd) = socket::receive_fd(ours.as_fd(), &mut [0]).expect("the child sends");
        (
            child,
            Listener::new(fd.expect("the filter was installed with a listener")),
        )
    }

    fn next(listener: &Listener) -> Notification {
        let mut notification = Notification::default();
        let received = listener.receive(&mut notification);
        assert_eq!(received, Ok(Received::Notification));
        notification
    }

    #[test]
    fn layouts_and_numbers_are_the_kernels() {
        assert_eq!(size_of::<Notification>(), 80);
        assert_eq!(std::mem::offset_of!(Notification, nr), 16);
        assert_eq!(std::mem::offset_of!(Notification, ip), 24);
        assert_eq!(std::mem::offset_of!(Notification, args), 32);
        assert_eq!(RECV, 0xc050_2100);
        assert_eq!(SEND, 0xc018_2101);
        assert_eq!(ID_VALID, 0x4008_2102);
        assert_eq!(ADDFD, 0x4018_2103);
        assert_eq!(SET_FLAGS, 0x4008_2104);
    }

    #[test]
    fn a_caller_gets_each_kind_of_answer() {
        let page = SharedPage::new().expect("one page");
        let (child, listener) = supervised(|| {
            for slot in 0..3 {
                page.int(slot)
                    .store(syscall::getppid_raw() as i32, Ordering::Release);
            }
            let fd = syscall::getppid_raw();
            // SAFETY: the descriptor is the child's own; one byte is read from a literal.
            let wrote = unsafe {
                crate::kernel::call(
                    "write",
                    libc::SYS_write,
                    [fd as usize, b"x".as_ptr() as usize, 1, 0, 0, 0],
                )
            };
            wrote.map(|_| ()).map_err(|e| e.errno())
        });
        if let Err(error) = listener.set_sync_wake_up(true) {
            assert!(error.is(libc::EINVAL), "before 6.6: {error}");
        }
        let first = next(&listener);
        assert_eq!((first.tid, i64::from(first.nr)), (child, libc::SYS_getppid));
        let native = abi::Arch::native().expect("a known architecture");
        assert_eq!(first.arch, native.audit());
        assert_eq!(listener.is_valid(first.id), Ok(true));
        assert_eq!(listener.respond_continue(first.id), Ok(Delivery::Delivered));
        assert_ne!(listener.is_valid(first.id), Ok(true));
        let second = next(&listener);
        assert_eq!(
            listener.respond_errno(second.id, libc::EXDEV),
            Ok(Delivery::Delivered)
        );
        let third = next(&listener);
        assert_eq!(
            listener.respond_value(third.id, 4242),
            Ok(Delivery::Delivered)
        );
        let fourth = next(&listener);
        let (reader, writer) = crate::fd::pipe(0).expect("pipe");
        let flags = libc::O_CLOEXEC.cast_unsigned();
        let mode = AddMode::AddAndRespond;
        let added = listener.add_fd(fourth.id, writer.as_fd(), Some(77), flags, mode);
        assert_eq!(added, Ok(Some(77)));
        assert_eq!(testing::reap(child), Ok(()));
        assert_eq!(crate::fd::read(reader.as_fd(), &mut [0]), Ok(1));
        let results = [0, 1, 2].map(|slot| page.int(slot).load(Ordering::Acquire));
        assert_eq!(results, [syscall::getpid(), -libc::EXDEV, 4242]);
        let mut fds = [PollFd::new(listener.as_fd(), poll::IN)];
        assert_eq!(poll::poll(&mut fds, Some(Duration::from_secs(5))), Ok(1));
        assert_eq!(
            fds[0].found() & poll::HUP,
            poll::HUP,
            "the last process is gone"
        );
    }

    #[test]
    fn a_killed_caller_is_noticed_by_every_answer() {
        let (child, listener) = supervised(|| {
            syscall::getppid_raw();
            Ok(())
        });
        let waiting = next(&listener);
        testing::kill_and_reap(child);
        assert_eq!(listener.is_valid(waiting.id), Ok(false));
        assert_eq!(
            listener.respond_continue(waiting.id),
            Ok(Delivery::CallerGone)
        );
        let null = std::fs::File::open("/dev/null").expect("a device");
        let added = listener.add_fd(waiting.id, null.as_fd(), None, 0, AddMode::Add);
        assert_eq!(added, Ok(None));
    }

    /// A receiver that is stopped at the very end of its receiving call has not reported anything yet.
    #[test]
    fn what_a_killed_receiver_had_just_received_is_known() {
        let (child, listener) = supervised(|| {
            syscall::getppid_raw();
            Ok(())
        });
        let (words, _file) = crate::shared::SharedWords::create(Slot::WORDS).expect("memory");
        let slot = Slot::new(words.words());
        assert_eq!(slot.call(), None);
        let (mut gate, mut opener) = std::io::pipe().expect("descriptors");
        let receiver = testing::spawn(|| {
            // Nothing is received before the tracer is there.
            gate.read_exact(&mut [0]).map_err(|_error| 201)?;
            let mut call = Notification::default();
            // The tracer's first stop interrupts the wait.
            while listener.receive_into(slot, &mut call) == Ok(Received::Interrupted) {}
            Err(200)
        });
        ptrace::seize(receiver, ptrace::OPTION_TRACESYSGOOD).expect("our child");
        ptrace::interrupt(receiver).expect("seized");
        opener.write_all(&[0]).expect("the receiver reads");
        while slot.call().is_none() {
            let stopped = wait::wait(wait::Target::Pid(receiver), wait::ALL);
            assert!(
                !matches!(stopped, Ok(Some((_, end))) if end.is_end()),
                "{stopped:?}"
            );
            if slot.call().is_none() {
                ptrace::resume_to_syscall(receiver, 0).expect("stopped");
            }
        }
        testing::kill_and_reap(receiver);
        let call = slot.call().expect("it was received");
        assert_eq!((call.tid, i64::from(call.nr)), (child, libc::SYS_getppid));
        assert_eq!(listener.respond_continue(call.id), Ok(Delivery::Delivered));
        assert_eq!(testing::reap(child), Ok(()));
    }

    #[test]
    fn a_filter_without_listener_and_other_descriptors_are_errors() {
        let null = std::fs::File::open("/dev/null").expect("a device");
        let wrong = Listener::new(null.into());
        let received = wrong.receive(&mut Notification::default());
        assert!(received.is_err_and(|e| e.is(libc::ENOTTY)));
        let (child, listener) = supervised(|| {
            let program = testing::filter_for(libc::SYS_getuid, seccomp::SECCOMP_RET_USER_NOTIF);
            match seccomp::install_filter(&program, FilterFlags::NEW_LISTENER) {
                Err(error) if error.is(libc::EBUSY) => Ok(()),
                _ => Err(200),
            }
        });
        drop(listener.try_clone().expect("a copy"));
        assert_eq!(testing::reap(child), Ok(()), "a second listener is refused");
    }

    /// The way to a result: suspend the call, seize, interrupt, continue; one stop, right after the call.
    #[test]
    fn the_result_of_a_notified_call_is_read_in_one_stop() {
        const ROUNDS: usize = 50;
        let (child, listener) = supervised(|| {
            let parent = syscall::getppid_raw();
            for _ in 1..ROUNDS {
                if syscall::getppid_raw() != parent {
                    return Err(200);
                }
            }
            Ok(())
        });
        for _ in 0..ROUNDS {
            let call = next(&listener);
            ptrace::seize(call.tid, ptrace::OPTION_TRACESYSGOOD).expect("our child");
            ptrace::interrupt(call.tid).expect("seized");
            assert_eq!(listener.respond_continue(call.id), Ok(Delivery::Delivered));
            let stop = wait::wait(wait::Target::Pid(call.tid), wait::ALL | wait::NO_THREAD);
            let event = wait::Status::PtraceEvent {
                signal: libc::SIGTRAP,
                event: ptrace::EVENT_STOP,
            };
            assert_eq!(stop, Ok(Some((call.tid, event))));
            let registers = ptrace::registers(call.tid).expect("stopped");
            assert_eq!(registers.result(), i64::from(syscall::getpid()));
            ptrace::detach(call.tid, 0).expect("stopped");
        }
        assert_eq!(testing::reap(child), Ok(()));
    }
}
