//! Calls that start programs, connect, and open files for writing: those that can be withheld from running processes.
//!
//! Whoever withholds them from a process has to see each of them, and to decide by what cannot change meanwhile: by registers.
//! Where the caller's memory says what a call does, the call counts, whatever the memory says now. So `openat2`, whose flags
//! are in memory, counts as an open for writing, and `sendmsg` as a connection.
//!
//! Calls by an io_uring are not here: a ring makes them without a call. Its users are refused the ring.

use crate::{RegisterTest, Syscall, TestOp, TrappedCall};

/// What can be withheld.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deniable {
    /// Calls that start a program.
    Exec,
    /// Calls that connect, or send to an address.
    Connect,
    /// Calls that open a file for writing, create or truncate it.
    OpenForWrite,
}

impl Deniable {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Exec, Self::Connect, Self::OpenForWrite];

    /// Returns its calls, each at most once. Tests are on the x86-64/aarch64 argument positions.
    #[must_use]
    pub fn calls(self) -> &'static [TrappedCall] {
        match self {
            Self::Exec => EXEC,
            Self::Connect => CONNECT,
            Self::OpenForWrite => OPEN_FOR_WRITE,
        }
    }

    /// Returns what a call with these arguments does, as registers say. `holds` decides about a group of tests: on some
    /// architectures an argument is elsewhere.
    pub fn of(syscall: Syscall, holds: impl Fn(&[RegisterTest]) -> bool) -> Option<Self> {
        Self::ALL.into_iter().find(|deniable| {
            let mut calls = deniable.calls().iter();
            let row = calls.find(|row| row.call == syscall);
            row.is_some_and(|row| row.any_of.is_empty() || row.any_of.iter().any(|all| holds(all)))
        })
    }
}

const STARTS: &str = "may be denied by a response: starts a program";
const CONNECTS: &str = "may be denied by a response: connects, or sends to an address";
const WRITES: &str = "may be denied by a response: opens for writing";

static EXEC: &[TrappedCall] = &[
    TrappedCall::always(Syscall::EXECVE, STARTS),
    TrappedCall::always(Syscall::EXECVEAT, STARTS),
];

static CONNECT: &[TrappedCall] = &[
    TrappedCall::when(Syscall::SOCKET, SENDING_FAMILY, CONNECTS),
    TrappedCall::always(Syscall::CONNECT, CONNECTS),
    TrappedCall::when(Syscall::SENDTO, HAS_ADDRESS, CONNECTS),
    // Whether there is an address is in memory.
    TrappedCall::always(Syscall::SENDMSG, CONNECTS),
    TrappedCall::always(Syscall::SENDMMSG, CONNECTS),
    TrappedCall::when(Syscall::SOCKETCALL, CONNECTING_SOCKETCALL, CONNECTS),
    TrappedCall::when(Syscall::SETSOCKOPT, CONNECTING_OPTION, CONNECTS),
    TrappedCall::when(Syscall::GETSOCKOPT, CONNECTING_OPTION, CONNECTS),
];

static OPEN_FOR_WRITE: &[TrappedCall] = &[
    TrappedCall::when(Syscall::OPEN, WRITING_1, WRITES),
    TrappedCall::when(Syscall::OPENAT, WRITING_2, WRITES),
    TrappedCall::when(Syscall::OPEN_BY_HANDLE_AT, WRITING_2, WRITES),
    TrappedCall::when(Syscall::MQ_OPEN, WRITING_1, WRITES),
    // The flags are in memory.
    TrappedCall::always(Syscall::OPENAT2, WRITES),
    TrappedCall::always(Syscall::CREAT, WRITES),
    TrappedCall::always(Syscall::TRUNCATE, WRITES),
    TrappedCall::always(Syscall::TRUNCATE64, WRITES),
    // Whoever reads its events gets descriptors with these flags.
    TrappedCall::when(Syscall::FANOTIFY_INIT, WRITING_1, WRITES),
    // The kernel writes the file.
    TrappedCall::always(Syscall::ACCT, WRITES),
    TrappedCall::always(Syscall::SWAPON, WRITES),
];

const HAS_ADDRESS: &[&[RegisterTest]] = &[&[RegisterTest::full(4, TestOp::Ne, 0)]];

const fn socketcall(number: u64) -> RegisterTest {
    RegisterTest::low(0, TestOp::Eq, number)
}

const fn family(number: u64) -> RegisterTest {
    RegisterTest::low(0, TestOp::Eq, number)
}

/// Families whose sockets send without a connection or an address, once they are bound to an interface or a channel: `AF_PACKET`,
/// `AF_CAN`, `AF_ISDN`, `AF_IEEE802154` and `AF_XDP`, and `AF_BLUETOOTH` with `BTPROTO_HCI`.
const SENDING_FAMILY: &[&[RegisterTest]] = &[
    &[family(17)],
    &[family(29)],
    &[family(34)],
    &[family(36)],
    &[family(44)],
    &[family(31), RegisterTest::low(2, TestOp::Eq, 1)],
];

/// `socket`, `connect`, `sendto`, `setsockopt`, `getsockopt`, `sendmsg` and `sendmmsg`, whose arguments are in memory.
const CONNECTING_SOCKETCALL: &[&[RegisterTest]] = &[
    &[socketcall(1)],
    &[socketcall(3)],
    &[socketcall(11)],
    &[socketcall(14)],
    &[socketcall(15)],
    &[socketcall(16)],
    &[socketcall(20)],
];

/// `SOL_SCTP` with `SCTP_SOCKOPT_CONNECTX_OLD`, `SCTP_SOCKOPT_CONNECTX` and `SCTP_SOCKOPT_CONNECTX3`.
const CONNECTING_OPTION: &[&[RegisterTest]] = &[
    &[SCTP, RegisterTest::low(2, TestOp::Eq, 107)],
    &[
        SCTP,
        RegisterTest::low(2, TestOp::Ge, 110),
        RegisterTest::low(2, TestOp::Le, 111),
    ],
];
const SCTP: RegisterTest = RegisterTest::low(1, TestOp::Eq, 132);

/// `O_WRONLY`, `O_RDWR` and 3, `O_CREAT`, `O_TRUNC`: the same on every architecture here.
const WRITING: u64 = 3 | 0o100 | 0o1000;
const WRITING_1: &[&[RegisterTest]] = &[&[RegisterTest::low(1, TestOp::AnyBit, WRITING)]];
const WRITING_2: &[&[RegisterTest]] = &[&[RegisterTest::low(2, TestOp::AnyBit, WRITING)]];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArgKind, flags};

    fn of(syscall: Syscall, args: [u64; 6]) -> Option<Deniable> {
        Deniable::of(syscall, |all| all.iter().all(|test| test.holds(&args)))
    }

    fn has_row(syscall: Syscall) -> bool {
        let mut rows = Deniable::ALL.into_iter().flat_map(Deniable::calls);
        rows.any(|row| row.call == syscall)
    }

    /// Calls that look like one that is withheld by name or arguments, each with the reason why it is not.
    const OTHERS: [(&str, &str); 28] = [
        ("accept", "gets the address of the peer"),
        ("accept4", "gets the address of the peer"),
        (
            "bind",
            "names the own end; a family that sends after it is denied its socket",
        ),
        ("create_module", "makes no file"),
        ("epoll_create", "makes no file"),
        ("epoll_create1", "makes no file"),
        ("fsopen", "a descriptor of a file system to be mounted"),
        ("ftruncate", "the file is open for writing already"),
        ("ftruncate64", "the file is open for writing already"),
        ("getpeername", "gets the address of the peer"),
        ("getsockname", "gets the own address"),
        ("kexec_file_load", "loads a kernel"),
        ("kexec_load", "loads a kernel"),
        ("landlock_create_ruleset", "makes no file"),
        ("memfd_create", "memory that no other process names"),
        ("mq_timedsend", "the queue is open for writing already"),
        (
            "mq_timedsend_time64",
            "the queue is open for writing already",
        ),
        ("open_tree", "a descriptor that cannot be written by"),
        ("open_tree_attr", "a descriptor that cannot be written by"),
        ("perf_event_open", "a counter"),
        ("pidfd_open", "a process"),
        ("pidfd_send_signal", "a signal"),
        ("recvfrom", "gets the address of the sender"),
        (
            "send",
            "to the peer that is connected already, or by a family that is denied its socket",
        ),
        ("sendfile", "between open files"),
        ("sendfile64", "between open files"),
        ("timer_create", "makes no file"),
        ("timerfd_create", "makes no file"),
    ];

    /// Parts of the names of calls that do what is withheld.
    const NAMES: [&str; 6] = ["open", "creat", "truncate", "exec", "connect", "send"];

    /// A call that a later kernel adds fails here until somebody has decided about it.
    #[test]
    fn every_call_of_the_table_is_withheld_or_known_not_to_be() {
        for syscall in Syscall::all() {
            let name = syscall.name();
            let has_argument = syscall.args().iter().any(|arg| match arg.kind {
                ArgKind::Argv | ArgKind::Sockaddr => true,
                ArgKind::Flags(set) => core::ptr::eq(set, &raw const flags::OPEN),
                ArgKind::Struct(what) => what == "open_how",
                _ => false,
            });
            let is_called = NAMES.iter().any(|part| name.contains(part));
            let is_other = OTHERS.iter().any(|(other, _)| *other == name);
            assert!(
                !(has_argument || is_called) || has_row(syscall) != is_other,
                "`{name}` looks like a call that a response withholds: add a row, or say why not"
            );
        }
        for (name, _) in OTHERS {
            assert!(
                Syscall::from_name(name).is_some(),
                "there is no call `{name}`"
            );
        }
    }

    #[test]
    fn each_call_has_one_row() {
        let rows = || Deniable::ALL.into_iter().flat_map(Deniable::calls);
        for (at, row) in rows().enumerate() {
            let again = rows().skip(at + 1).any(|other| other.call == row.call);
            assert!(!again, "{} has two rows", row.call);
            for variant in Syscall::all().filter(|call| call.alias_of() == Some(row.call)) {
                assert!(has_row(variant), "{variant} is {}", row.call);
            }
        }
    }

    #[test]
    fn registers_tell_reads_and_connected_sockets_apart() {
        let open = |flags| of(Syscall::OPENAT, [0, 0, flags, 0, 0, 0]);
        for flags in [1, 2, 3, 0o100, 0o1000, 0o102 | 0o2_000_000] {
            assert_eq!(open(flags), Some(Deniable::OpenForWrite), "{flags:o}");
        }
        // O_CLOEXEC, O_DIRECTORY, and what the kernel does not read.
        for flags in [0, 0o2_000_000, 0o200_000, 1 << 32] {
            assert_eq!(open(flags), None, "{flags:o}");
        }
        let to = |address| of(Syscall::SENDTO, [3, 1, 1, 0, address, 16]);
        assert_eq!(to(0), None);
        assert_eq!(to(1 << 40), Some(Deniable::Connect));
        let option = |level, name| of(Syscall::SETSOCKOPT, [3, level, name, 0, 0, 0]);
        assert_eq!(option(132, 110), Some(Deniable::Connect));
        assert_eq!(option(132, 109), None);
        assert_eq!(option(6, 110), None);
        let socket = |family, protocol| of(Syscall::SOCKET, [family, 3, protocol, 0, 0, 0]);
        // AF_PACKET, AF_CAN, AF_ISDN, AF_IEEE802154, AF_XDP; the kernel reads 32 bits.
        for family in [17, 29, 34, 36, 44, 17 | 1 << 40] {
            assert_eq!(socket(family, 0), Some(Deniable::Connect), "{family}");
        }
        // AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_VSOCK.
        for family in [1, 2, 10, 16, 40] {
            assert_eq!(socket(family, 1), None, "{family}");
        }
        // AF_BLUETOOTH with BTPROTO_HCI and BTPROTO_RFCOMM.
        assert_eq!(socket(31, 1), Some(Deniable::Connect));
        assert_eq!(socket(31, 3), None);
        assert_eq!(of(Syscall::EXECVE, [0; 6]), Some(Deniable::Exec));
        assert_eq!(of(Syscall::READ, [0; 6]), None);
    }
}
