//! Operations of io_uring and the equivalent system calls (include/uapi/linux/io_uring.h).
//!
//! A ring performs operations without system calls, so a seccomp filter does not see them. The table has a
//! row for each opcode up to Linux 6.19. Every consumer must expect a higher opcode: the operations of newer
//! kernels are unknown.

use crate::{Syscall, is_harmless};

/// One io_uring opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOperation {
    /// Opcode number.
    pub number: u8,
    /// The name without `IORING_OP_`, in lower case.
    pub name: &'static str,
    /// Equivalent calls. The first one stands for the operation in rules and alerts. Empty if the operation
    /// concerns only the ring itself.
    pub calls: &'static [Syscall],
}

const fn op(number: u8, name: &'static str, calls: &'static [Syscall]) -> RingOperation {
    RingOperation {
        number,
        name,
        calls,
    }
}

type S = Syscall;
const READS: &[Syscall] = &[S::READ, S::PREAD64];
const WRITES: &[Syscall] = &[S::WRITE, S::PWRITE64];
const READS_PARTS: &[Syscall] = &[S::READV, S::PREADV, S::PREADV2];
const WRITES_PARTS: &[Syscall] = &[S::WRITEV, S::PWRITEV, S::PWRITEV2];
const OPENS: &[Syscall] = &[S::OPENAT, S::OPENAT2, S::OPEN, S::CREAT];
const SENDS: &[Syscall] = &[S::SENDTO, S::SEND];
const WAITS: &[Syscall] = &[S::POLL, S::PPOLL, S::SELECT, S::PSELECT6];
const EPOLL_WAITS: &[Syscall] = &[S::EPOLL_WAIT, S::EPOLL_PWAIT, S::EPOLL_PWAIT2];
const STATS: &[Syscall] = &[S::STATX, S::STAT, S::LSTAT, S::NEWFSTATAT, S::FSTAT];
const COMMANDS: &[Syscall] = &[
    S::IOCTL,
    S::SETSOCKOPT,
    S::GETSOCKOPT,
    S::GETSOCKNAME,
    S::GETPEERNAME,
];
/// Marks operations on the ring itself: its buffers, timeouts and files.
const OWN: &[Syscall] = &[];

/// Every opcode, in order.
pub static RING_OPERATIONS: &[RingOperation] = &[
    op(0, "nop", OWN),
    op(1, "readv", READS_PARTS),
    op(2, "writev", WRITES_PARTS),
    op(3, "fsync", &[S::FSYNC, S::FDATASYNC]),
    op(4, "read_fixed", READS),
    op(5, "write_fixed", WRITES),
    op(6, "poll_add", WAITS),
    op(7, "poll_remove", OWN),
    op(8, "sync_file_range", &[S::SYNC_FILE_RANGE]),
    op(9, "sendmsg", &[S::SENDMSG, S::SENDMMSG]),
    op(10, "recvmsg", &[S::RECVMSG, S::RECVMMSG]),
    op(11, "timeout", &[S::NANOSLEEP, S::CLOCK_NANOSLEEP]),
    op(12, "timeout_remove", OWN),
    op(13, "accept", &[S::ACCEPT4, S::ACCEPT]),
    op(14, "async_cancel", OWN),
    op(15, "link_timeout", OWN),
    op(16, "connect", &[S::CONNECT]),
    op(17, "fallocate", &[S::FALLOCATE]),
    op(18, "openat", OPENS),
    op(19, "close", &[S::CLOSE, S::CLOSE_RANGE]),
    op(20, "files_update", OWN),
    op(21, "statx", STATS),
    op(22, "read", READS),
    op(23, "write", WRITES),
    op(24, "fadvise", &[S::FADVISE64]),
    op(25, "madvise", &[S::MADVISE]),
    op(26, "send", SENDS),
    op(27, "recv", &[S::RECVFROM, S::RECV]),
    // Falco has one event for both calls.
    op(28, "openat2", OPENS),
    op(29, "epoll_ctl", &[S::EPOLL_CTL]),
    op(30, "splice", &[S::SPLICE, S::SENDFILE]),
    op(31, "provide_buffers", OWN),
    op(32, "remove_buffers", OWN),
    op(33, "tee", &[S::TEE]),
    op(34, "shutdown", &[S::SHUTDOWN]),
    op(35, "renameat", &[S::RENAMEAT2, S::RENAMEAT, S::RENAME]),
    op(36, "unlinkat", &[S::UNLINKAT, S::UNLINK, S::RMDIR]),
    op(37, "mkdirat", &[S::MKDIRAT, S::MKDIR]),
    op(38, "symlinkat", &[S::SYMLINKAT, S::SYMLINK]),
    op(39, "linkat", &[S::LINKAT, S::LINK]),
    // Passes descriptors from one ring to another.
    op(40, "msg_ring", OWN),
    op(41, "fsetxattr", &[S::FSETXATTR, S::SETXATTRAT]),
    op(42, "setxattr", &[S::SETXATTR, S::LSETXATTR, S::SETXATTRAT]),
    op(43, "fgetxattr", &[S::FGETXATTR, S::GETXATTRAT]),
    op(44, "getxattr", &[S::GETXATTR, S::LGETXATTR, S::GETXATTRAT]),
    op(45, "socket", &[S::SOCKET]),
    // Commands to a driver, and options of sockets.
    op(46, "uring_cmd", COMMANDS),
    op(47, "send_zc", SENDS),
    op(48, "sendmsg_zc", &[S::SENDMSG, S::SENDMMSG]),
    op(49, "read_multishot", READS),
    op(50, "waitid", &[S::WAITID, S::WAIT4]),
    op(51, "futex_wait", &[S::FUTEX_WAIT, S::FUTEX]),
    op(52, "futex_wake", &[S::FUTEX_WAKE, S::FUTEX]),
    op(53, "futex_waitv", &[S::FUTEX_WAITV]),
    // Converts a descriptor of the ring into one of the process.
    op(54, "fixed_fd_install", &[S::DUP, S::DUP2, S::DUP3]),
    op(55, "ftruncate", &[S::FTRUNCATE, S::TRUNCATE]),
    op(56, "bind", &[S::BIND]),
    op(57, "listen", &[S::LISTEN]),
    op(58, "recv_zc", &[S::RECVFROM]),
    op(59, "epoll_wait", EPOLL_WAITS),
    op(60, "readv_fixed", READS_PARTS),
    op(61, "writev_fixed", WRITES_PARTS),
    op(62, "pipe", &[S::PIPE2, S::PIPE]),
    op(63, "nop128", OWN),
    op(64, "uring_cmd128", COMMANDS),
];

/// The calls that make or use a ring. A ring made by another process is of no use without them, unless its
/// maker has the kernel poll it for requests (`IORING_SETUP_SQPOLL`): the ring then acts as its maker.
pub const RING_CALLS: [Syscall; 3] = [
    Syscall::IO_URING_SETUP,
    Syscall::IO_URING_ENTER,
    Syscall::IO_URING_REGISTER,
];

/// Returns true if a workload that is denied this call must be denied rings too: a known opcode does the
/// same, or a newer kernel's might. A call may be denied while rings stay allowed only if it is harmless and
/// has no opcode.
#[must_use]
pub fn ring_may_do(call: Syscall) -> bool {
    let base = call.base();
    let does = |operation: &&RingOperation| operation.calls.contains(&base);
    RING_OPERATIONS.iter().find(does).is_some() || !is_harmless(call, None)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn the_table_has_every_opcode_once_and_in_order() {
        for (at, operation) in RING_OPERATIONS.iter().enumerate() {
            assert_eq!(usize::from(operation.number), at, "{}", operation.name);
        }
    }

    #[test]
    fn an_operation_that_has_a_call_of_its_name_names_it() {
        for operation in RING_OPERATIONS {
            let Some(call) = Syscall::from_name(operation.name) else {
                continue;
            };
            assert!(operation.calls.contains(&call), "{}", operation.name);
        }
    }

    #[test]
    fn every_call_of_the_table_may_be_done_by_a_ring_but_those_that_are_proven_harmless() {
        let spared: Vec<_> = Syscall::all().filter(|call| !ring_may_do(*call)).collect();
        assert!(spared.iter().all(|call| is_harmless(*call, None)));
        for name in ["getpid", "dup", "exit_group", "pause", "sched_yield"] {
            let call = Syscall::from_name(name).unwrap();
            assert_eq!(spared.contains(&call), name != "dup", "{name}");
        }
        // `select` on i386 is `_newselect`.
        assert!(ring_may_do(Syscall::_NEWSELECT));
    }
}
