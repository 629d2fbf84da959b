//! Calls that a seccomp notify filter traps whatever the rules say.
//!
//! The filter of a running process tree can never be widened: the kernel refuses a second listener with
//! EBUSY. So every filter traps these calls, and rules that are loaded later rely on them. Hot calls are
//! deliberately absent (`prctl(PR_SET_NAME)`, `read`, `close`, `dup`, `mmap`).
//!
//! Calls that can reach another process are trapped so that the supervisor can keep them away from itself.
//! The filter does not compare the target: pids belong to the caller's namespace, and the supervisor may be
//! replaced by another process.

use crate::{RegisterTest, Syscall, TestOp};

/// One trapped call.
#[derive(Clone, Copy, Debug)]
pub struct TrappedCall {
    /// The system call.
    pub call: Syscall,
    /// Register tests: the call is trapped when all tests of one group hold. Empty means always.
    pub any_of: &'static [&'static [RegisterTest]],
    /// What the call can do, shown by `rules explain`.
    pub reason: &'static str,
}

impl TrappedCall {
    pub(crate) const fn always(call: Syscall, reason: &'static str) -> Self {
        Self {
            call,
            any_of: &[],
            reason,
        }
    }

    pub(crate) const fn when(
        call: Syscall,
        any_of: &'static [&'static [RegisterTest]],
        reason: &'static str,
    ) -> Self {
        Self {
            call,
            any_of,
            reason,
        }
    }

    /// Returns true if a call with these register arguments is trapped.
    #[must_use]
    pub fn holds(&self, args: &[u64; 6]) -> bool {
        self.any_of.is_empty()
            || self
                .any_of
                .iter()
                .any(|group| group.iter().all(|test| test.holds(args)))
    }
}

/// Rare security-relevant calls. A call has at most one row.
pub static FLOOR: &[TrappedCall] = &[
    // Processes.
    TrappedCall::always(Syscall::EXECVE, "a new program runs"),
    TrappedCall::always(Syscall::EXECVEAT, "a new program runs"),
    // Plain forks and exits are not trapped, useful as they would be. A signal that arrives before the
    // supervisor has taken a notification makes the call fail with EINTR if its handler was installed
    // without SA_RESTART. Callers of fork do not expect that: shells print "Cannot fork" and give up.
    // exit_group is not expected to return at all.
    TrappedCall::when(
        Syscall::CLONE,
        LEAVING_CLONE,
        "a new process in namespaces of its own, or hidden from tracers",
    ),
    TrappedCall::always(
        Syscall::CLONE3,
        "a new process; whether in namespaces of its own is in memory",
    ),
    // Reaching into other processes and into memory.
    TrappedCall::always(Syscall::PTRACE, "reads or changes another process"),
    TrappedCall::always(
        Syscall::PROCESS_VM_WRITEV,
        "reads or changes another process",
    ),
    TrappedCall::always(
        Syscall::PROCESS_VM_READV,
        "reads or changes another process",
    ),
    TrappedCall::always(
        Syscall::PIDFD_GETFD,
        "takes a descriptor out of another process",
    ),
    TrappedCall::when(Syscall::KILL, SIGNAL_1_HARMS, HARMS_WATCHER),
    TrappedCall::when(Syscall::TKILL, SIGNAL_1_HARMS, HARMS_WATCHER),
    TrappedCall::when(Syscall::TGKILL, SIGNAL_2_HARMS, HARMS_WATCHER),
    TrappedCall::when(Syscall::RT_SIGQUEUEINFO, SIGNAL_1_HARMS, HARMS_WATCHER),
    TrappedCall::when(Syscall::RT_TGSIGQUEUEINFO, SIGNAL_2_HARMS, HARMS_WATCHER),
    TrappedCall::when(Syscall::PIDFD_SEND_SIGNAL, SIGNAL_1_HARMS, HARMS_WATCHER),
    TrappedCall::when(Syscall::FCNTL, SETS_SIGNAL, "has the kernel send a signal"),
    TrappedCall::when(
        Syscall::FCNTL64,
        SETS_SIGNAL,
        "has the kernel send a signal",
    ),
    TrappedCall::always(
        Syscall::PIDFD_OPEN,
        "a handle to signal or search another process by",
    ),
    TrappedCall::when(
        Syscall::PROCESS_MADVISE,
        SLOWS_MEMORY,
        "makes another process wait for its memory",
    ),
    TrappedCall::when(Syscall::PRLIMIT64, SETS_OTHERS_LIMIT, STARVES),
    TrappedCall::when(
        Syscall::SETRLIMIT,
        SETS_MARK,
        "would hide whose child it is",
    ),
    TrappedCall::when(Syscall::SCHED_SETSCHEDULER, OTHER_THREAD, STARVES),
    TrappedCall::when(Syscall::SCHED_SETPARAM, OTHER_THREAD, STARVES),
    TrappedCall::when(Syscall::SCHED_SETATTR, OTHER_THREAD, STARVES),
    TrappedCall::when(Syscall::SCHED_SETAFFINITY, OTHER_THREAD, STARVES),
    TrappedCall::when(Syscall::SETPRIORITY, OTHERS_PRIORITY, STARVES),
    TrappedCall::when(Syscall::IOPRIO_SET, OTHERS_IO_PRIORITY, STARVES),
    TrappedCall::always(
        Syscall::MEMFD_CREATE,
        "a file without a name, the usual home of a program without a file",
    ),
    TrappedCall::always(
        Syscall::USERFAULTFD,
        "can stop the kernel in the middle of reading arguments",
    ),
    TrappedCall::always(
        Syscall::IO_URING_SETUP,
        "a ring does calls that no filter sees",
    ),
    // The kernel itself.
    TrappedCall::always(Syscall::INIT_MODULE, "changes the kernel"),
    TrappedCall::always(Syscall::FINIT_MODULE, "changes the kernel"),
    TrappedCall::always(Syscall::DELETE_MODULE, "changes the kernel"),
    TrappedCall::always(Syscall::CREATE_MODULE, "changes the kernel"),
    TrappedCall::always(Syscall::BPF, "loads or steers a program in the kernel"),
    TrappedCall::always(
        Syscall::PERF_EVENT_OPEN,
        "watches the kernel or other processes",
    ),
    TrappedCall::always(Syscall::KEXEC_LOAD, "replaces the kernel"),
    TrappedCall::always(Syscall::KEXEC_FILE_LOAD, "replaces the kernel"),
    TrappedCall::always(Syscall::REBOOT, "stops or restarts the machine"),
    TrappedCall::always(Syscall::SWAPON, "changes the machine"),
    TrappedCall::always(Syscall::SWAPOFF, "changes the machine"),
    TrappedCall::always(Syscall::ACCT, "changes the machine"),
    TrappedCall::always(Syscall::QUOTACTL, "changes the machine"),
    TrappedCall::always(Syscall::QUOTACTL_FD, "changes the machine"),
    TrappedCall::always(Syscall::SETTIMEOFDAY, "changes the clock"),
    TrappedCall::always(Syscall::CLOCK_SETTIME, "changes the clock"),
    TrappedCall::always(Syscall::CLOCK_SETTIME64, "changes the clock"),
    TrappedCall::always(Syscall::STIME, "changes the clock"),
    TrappedCall::always(Syscall::ADJTIMEX, "changes the clock"),
    TrappedCall::always(Syscall::CLOCK_ADJTIME, "changes the clock"),
    TrappedCall::always(Syscall::CLOCK_ADJTIME64, "changes the clock"),
    TrappedCall::always(Syscall::SETHOSTNAME, "changes the name of the machine"),
    TrappedCall::always(Syscall::SETDOMAINNAME, "changes the name of the machine"),
    TrappedCall::always(
        Syscall::IOPL,
        "opens hardware or descriptor tables to a program",
    ),
    TrappedCall::always(
        Syscall::IOPERM,
        "opens hardware or descriptor tables to a program",
    ),
    TrappedCall::always(
        Syscall::MODIFY_LDT,
        "opens hardware or descriptor tables to a program",
    ),
    TrappedCall::always(Syscall::LOOKUP_DCOOKIE, "has no ordinary use"),
    TrappedCall::always(Syscall::NFSSERVCTL, "has no ordinary use"),
    TrappedCall::when(
        Syscall::SYSLOG,
        LOG_CLEAR_OR_SILENCE,
        "clears or silences the kernel log",
    ),
    // Confinement.
    TrappedCall::when(
        Syscall::SECCOMP,
        SETS_FILTER,
        "a filter of its own can hide calls from an observer",
    ),
    TrappedCall::when(
        Syscall::PRCTL,
        PRCTL_SECURITY,
        "changes privileges, confinement or who may look",
    ),
    TrappedCall::always(Syscall::LANDLOCK_RESTRICT_SELF, "confines itself"),
    TrappedCall::when(
        Syscall::PERSONALITY,
        SETS_PERSONALITY,
        "changes address-space or execution rules",
    ),
    // Mounts, namespaces and roots.
    TrappedCall::always(Syscall::MOUNT, "changes the view of the file system"),
    TrappedCall::always(Syscall::UMOUNT, "changes the view of the file system"),
    TrappedCall::always(Syscall::UMOUNT2, "changes the view of the file system"),
    TrappedCall::always(Syscall::PIVOT_ROOT, "changes the view of the file system"),
    TrappedCall::always(Syscall::CHROOT, "changes the view of the file system"),
    TrappedCall::always(Syscall::MOVE_MOUNT, "changes the view of the file system"),
    TrappedCall::always(Syscall::OPEN_TREE, "changes the view of the file system"),
    TrappedCall::always(
        Syscall::OPEN_TREE_ATTR,
        "changes the view of the file system",
    ),
    TrappedCall::always(Syscall::FSOPEN, "changes the view of the file system"),
    TrappedCall::always(Syscall::FSMOUNT, "changes the view of the file system"),
    TrappedCall::always(Syscall::FSCONFIG, "changes the view of the file system"),
    TrappedCall::always(Syscall::FSPICK, "changes the view of the file system"),
    TrappedCall::always(
        Syscall::MOUNT_SETATTR,
        "changes the view of the file system",
    ),
    TrappedCall::always(Syscall::UNSHARE, "enters or makes a namespace"),
    TrappedCall::always(Syscall::SETNS, "enters or makes a namespace"),
    // Identity.
    TrappedCall::always(Syscall::SETUID, "changes identity"),
    TrappedCall::always(Syscall::SETUID32, "changes identity"),
    TrappedCall::always(Syscall::SETGID, "changes identity"),
    TrappedCall::always(Syscall::SETGID32, "changes identity"),
    TrappedCall::always(Syscall::SETREUID, "changes identity"),
    TrappedCall::always(Syscall::SETREUID32, "changes identity"),
    TrappedCall::always(Syscall::SETREGID, "changes identity"),
    TrappedCall::always(Syscall::SETREGID32, "changes identity"),
    TrappedCall::always(Syscall::SETRESUID, "changes identity"),
    TrappedCall::always(Syscall::SETRESUID32, "changes identity"),
    TrappedCall::always(Syscall::SETRESGID, "changes identity"),
    TrappedCall::always(Syscall::SETRESGID32, "changes identity"),
    TrappedCall::always(Syscall::SETFSUID, "changes identity"),
    TrappedCall::always(Syscall::SETFSUID32, "changes identity"),
    TrappedCall::always(Syscall::SETFSGID, "changes identity"),
    TrappedCall::always(Syscall::SETFSGID32, "changes identity"),
    TrappedCall::always(Syscall::SETGROUPS, "changes identity"),
    TrappedCall::always(Syscall::SETGROUPS32, "changes identity"),
    TrappedCall::always(Syscall::CAPSET, "changes capabilities"),
    TrappedCall::always(Syscall::ADD_KEY, "reads or changes kernel keys"),
    TrappedCall::always(Syscall::REQUEST_KEY, "reads or changes kernel keys"),
    TrappedCall::always(Syscall::KEYCTL, "reads or changes kernel keys"),
    // Files with a special function.
    TrappedCall::when(
        Syscall::CHMOD,
        MODE_1_SETID,
        "sets the set-user-id or set-group-id bit",
    ),
    TrappedCall::when(
        Syscall::FCHMOD,
        MODE_1_SETID,
        "sets the set-user-id or set-group-id bit",
    ),
    TrappedCall::when(
        Syscall::FCHMODAT,
        MODE_2_SETID,
        "sets the set-user-id or set-group-id bit",
    ),
    TrappedCall::when(
        Syscall::FCHMODAT2,
        MODE_2_SETID,
        "sets the set-user-id or set-group-id bit",
    ),
    TrappedCall::always(Syscall::MKNOD, "makes a device or pipe"),
    TrappedCall::always(Syscall::MKNODAT, "makes a device or pipe"),
    TrappedCall::always(Syscall::LINK, "gives a file another name"),
    TrappedCall::always(Syscall::LINKAT, "gives a file another name"),
    TrappedCall::always(Syscall::SYMLINK, "gives a file another name"),
    TrappedCall::always(Syscall::SYMLINKAT, "gives a file another name"),
    TrappedCall::always(Syscall::OPEN_BY_HANDLE_AT, "opens a file past its path"),
    TrappedCall::always(Syscall::FANOTIFY_INIT, "can hold up the opens of others"),
    // Network.
    TrappedCall::always(Syscall::CONNECT, "a connection or a service"),
    TrappedCall::always(Syscall::BIND, "a connection or a service"),
    TrappedCall::always(Syscall::LISTEN, "a connection or a service"),
    TrappedCall::when(
        Syscall::SOCKET,
        SPECIAL_SOCKET,
        "a socket below or beside the usual protocols",
    ),
    TrappedCall::when(
        Syscall::SOCKETCALL,
        SOCKETCALL_FIRST_FOUR,
        "socket, bind, connect or listen of a 32-bit program; the rest is in memory",
    ),
];

/// Calls that change what an engine remembers about a process. A call has at most one row.
///
/// Descriptors, directories and credentials are absent because the engine looks them up when an event needs
/// them. Parentage is absent for the reason that [`FLOOR`] gives.
pub static STATE: &[TrappedCall] = &[
    TrappedCall::always(Syscall::EXECVE, "image, arguments and credentials change"),
    TrappedCall::always(Syscall::EXECVEAT, "image, arguments and credentials change"),
];

/// `CLONE_UNTRACED` and the `CLONE_NEW*` flags except `CLONE_NEWTIME`, whose bit is part of the exit signal.
const LEAVING: u64 = 0x7e82_0000;
const LEAVING_CLONE: &[&[RegisterTest]] = &[&[RegisterTest::low(0, TestOp::AnyBit, LEAVING)]];

const HARMS_WATCHER: &str = "can end, stop or give orders to whoever watches";
const STARVES: &str = "can take processor, memory or descriptors from another process";

const fn signal(arg: u8, number: u64) -> RegisterTest {
    RegisterTest::low(arg, TestOp::Eq, number)
}

/// Signals that a supervisor cannot or does not ignore: faults, the signals of the C library, SIGKILL,
/// SIGSTOP, and the supervisor's own control signals (SIGHUP, SIGUSR1, SIGUSR2). All others pass untrapped,
/// because a trapped call may fail with EINTR, which callers of `kill` do not expect. SIGURG is by far the
/// most frequent: Go interrupts its threads with it.
const SIGNAL_1_HARMS: &[&[RegisterTest]] = &[
    &[signal(1, 1)],
    &[
        RegisterTest::low(1, TestOp::Ge, 4),
        RegisterTest::low(1, TestOp::Le, 5),
    ],
    &[
        RegisterTest::low(1, TestOp::Ge, 7),
        RegisterTest::low(1, TestOp::Le, 12),
    ],
    &[signal(1, 19)],
    &[
        RegisterTest::low(1, TestOp::Ge, 31),
        RegisterTest::low(1, TestOp::Le, 33),
    ],
];
const SIGNAL_2_HARMS: &[&[RegisterTest]] = &[
    &[signal(2, 1)],
    &[
        RegisterTest::low(2, TestOp::Ge, 4),
        RegisterTest::low(2, TestOp::Le, 5),
    ],
    &[
        RegisterTest::low(2, TestOp::Ge, 7),
        RegisterTest::low(2, TestOp::Le, 12),
    ],
    &[signal(2, 19)],
    &[
        RegisterTest::low(2, TestOp::Ge, 31),
        RegisterTest::low(2, TestOp::Le, 33),
    ],
];

/// `F_SETSIG`: the kernel sends the signal to the file's owner, which may be any process, when input arrives.
const SETS_SIGNAL: &[&[RegisterTest]] = &[&[
    RegisterTest::low(1, TestOp::Eq, 10),
    RegisterTest::low(2, TestOp::Ne, 0),
]];

/// `MADV_COLD`, `MADV_PAGEOUT`, `MADV_COLLAPSE`.
const SLOWS_MEMORY: &[&[RegisterTest]] = &[
    &[RegisterTest::low(3, TestOp::Eq, 20)],
    &[RegisterTest::low(3, TestOp::Eq, 21)],
    &[RegisterTest::low(3, TestOp::Eq, 25)],
];

/// Any thread but the caller, which is 0.
const OTHER_THREAD: &[&[RegisterTest]] = &[&[RegisterTest::low(0, TestOp::Ne, 0)]];

/// `RLIMIT_LOCKS`, whose only effect is to tell the supervisor whose child a process is.
const LIMIT_ON_LOCKS: u64 = 10;

/// A new limit for a named process, or a new limit on locks for any process.
const SETS_OTHERS_LIMIT: &[&[RegisterTest]] = &[
    &[
        RegisterTest::low(0, TestOp::Ne, 0),
        RegisterTest::full(2, TestOp::Ne, 0),
    ],
    &[
        RegisterTest::low(1, TestOp::Eq, LIMIT_ON_LOCKS),
        RegisterTest::full(2, TestOp::Ne, 0),
    ],
];
const SETS_MARK: &[&[RegisterTest]] = &[&[RegisterTest::low(0, TestOp::Eq, LIMIT_ON_LOCKS)]];

/// `PRIO_PROCESS` of another process, or the priority of a group or a user.
const OTHERS_PRIORITY: &[&[RegisterTest]] = &[
    &[RegisterTest::low(0, TestOp::Ne, 0)],
    &[RegisterTest::low(1, TestOp::Ne, 0)],
];

/// `IOPRIO_WHO_PROCESS` (1) of another process, or the I/O priority of a group or a user.
const OTHERS_IO_PRIORITY: &[&[RegisterTest]] = &[
    &[RegisterTest::low(0, TestOp::Ne, 1)],
    &[RegisterTest::low(1, TestOp::Ne, 0)],
];

/// Set-user-id and set-group-id bits.
const SETID_BITS: u64 = 0o6000;
const MODE_1_SETID: &[&[RegisterTest]] = &[&[RegisterTest::low(1, TestOp::AnyBit, SETID_BITS)]];
const MODE_2_SETID: &[&[RegisterTest]] = &[&[RegisterTest::low(2, TestOp::AnyBit, SETID_BITS)]];

/// Any value but 0xffffffff, which only queries the personality.
const SETS_PERSONALITY: &[&[RegisterTest]] = &[&[RegisterTest::low(0, TestOp::Ne, 0xffff_ffff)]];

/// From `SYSLOG_ACTION_READ_CLEAR` to `SYSLOG_ACTION_CONSOLE_LEVEL`.
const LOG_CLEAR_OR_SILENCE: &[&[RegisterTest]] = &[&[
    RegisterTest::low(0, TestOp::Ge, 4),
    RegisterTest::low(0, TestOp::Le, 8),
]];

/// `SYS_SOCKET`, `SYS_BIND`, `SYS_CONNECT`, `SYS_LISTEN`.
const SOCKETCALL_FIRST_FOUR: &[&[RegisterTest]] = &[&[RegisterTest::low(0, TestOp::Le, 4)]];

const fn option(value: u64) -> RegisterTest {
    RegisterTest::low(0, TestOp::Eq, value)
}

/// `SECCOMP_SET_MODE_STRICT` and `SECCOMP_SET_MODE_FILTER`; the other operations only query.
const SETS_FILTER: &[&[RegisterTest]] = &[&[RegisterTest::low(0, TestOp::Le, 1)]];

/// `prctl` options with a security effect. Options that only drop capabilities are absent: container runtimes
/// call them some eighty times at each start, once for each capability.
const PRCTL_SECURITY: &[&[RegisterTest]] = &[
    &[option(4)],                                       // PR_SET_DUMPABLE
    &[option(22)],                                      // PR_SET_SECCOMP
    &[option(28)],                                      // PR_SET_SECUREBITS
    &[option(35)],                                      // PR_SET_MM
    &[option(36)],                                      // PR_SET_CHILD_SUBREAPER
    &[option(38)],                                      // PR_SET_NO_NEW_PRIVS
    &[option(47), RegisterTest::low(1, TestOp::Eq, 2)], // PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE
    &[option(0x5961_6d61)],                             // PR_SET_PTRACER
];

const fn domain(value: u64) -> RegisterTest {
    RegisterTest::low(0, TestOp::Eq, value)
}

/// Tests the low four bits of the type; the other bits are SOCK_CLOEXEC and SOCK_NONBLOCK.
const fn socket_type(value: u64) -> RegisterTest {
    RegisterTest::low(1, TestOp::MaskedEq { mask: 0xf }, value)
}

const SPECIAL_SOCKET: &[&[RegisterTest]] = &[
    &[domain(15)], // AF_KEY
    &[domain(17)], // AF_PACKET
    &[domain(38)], // AF_ALG
    &[domain(40)], // AF_VSOCK
    &[domain(44)], // AF_XDP
    // libc lists addresses by raw netlink sockets; raw AF_UNIX is the same as datagram.
    &[
        socket_type(3), // SOCK_RAW
        RegisterTest::low(0, TestOp::Ne, 1),
        RegisterTest::low(0, TestOp::Ne, 16),
    ],
    &[socket_type(10)], // SOCK_PACKET
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arch, flags};

    fn trapped(table: &[TrappedCall], call: Syscall, args: [u64; 6]) -> bool {
        table
            .iter()
            .any(|trap| trap.call == call && trap.holds(&args))
    }

    #[test]
    fn each_call_has_one_row() {
        for table in [FLOOR, STATE] {
            for (index, trap) in table.iter().enumerate() {
                let again = table[index + 1..]
                    .iter()
                    .any(|other| other.call == trap.call);
                assert!(!again, "{} has two rows", trap.call);
                assert!(!trap.reason.is_empty());
            }
        }
    }

    /// What arm64 lacks is reached there by another call, which has a row, or exists on x86 alone.
    #[test]
    fn rows_hold_on_arm64_too() {
        let lacks = |arch| move |trap: &&TrappedCall| trap.call.number(arch).is_none();
        let missing = FLOOR
            .iter()
            .filter(lacks(Arch::Aarch64))
            .map(|trap| trap.call.base());
        let missing: alloc::vec::Vec<_> = missing
            .filter(|call| call.number(Arch::Aarch64).is_none())
            .collect();
        let replaced = [
            (Syscall::CHMOD, Some(Syscall::FCHMODAT)),
            (Syscall::MKNOD, Some(Syscall::MKNODAT)),
            (Syscall::LINK, Some(Syscall::LINKAT)),
            (Syscall::SYMLINK, Some(Syscall::SYMLINKAT)),
            (Syscall::UMOUNT, Some(Syscall::UMOUNT2)),
            (Syscall::STIME, Some(Syscall::SETTIMEOFDAY)),
            (Syscall::SOCKETCALL, Some(Syscall::CONNECT)),
            (Syscall::CREATE_MODULE, None),
            (Syscall::IOPERM, None),
            (Syscall::IOPL, None),
            (Syscall::MODIFY_LDT, None),
        ];
        for call in missing {
            let row = replaced.iter().find(|(lacking, _)| *lacking == call);
            let (_, other) = row.unwrap_or_else(|| panic!("{call} is not on arm64"));
            if let Some(other) = other {
                assert!(FLOOR.iter().any(|trap| trap.call == *other), "{other}");
                assert!(other.number(Arch::Aarch64).is_some(), "{other}");
            }
        }
        // 32-bit programs of arm64 have every call that 64-bit ones have, but for the one that takes memory away
        // from the kernel's map.
        let wide = Syscall::all().filter(|call| call.number(Arch::Aarch64).is_some());
        let only_wide = wide.filter(|call| FLOOR.iter().any(|trap| trap.call == *call));
        assert!(only_wide.clone().count() > 80);
        for call in only_wide {
            assert!(call.number(Arch::Arm).is_some(), "{call}");
        }
    }

    #[test]
    fn variants_are_trapped_like_their_base() {
        for table in [FLOOR, STATE] {
            for call in Syscall::all().filter(|call| call.alias_of().is_some()) {
                let has = |wanted| table.iter().any(|trap| trap.call == wanted);
                assert_eq!(has(call), has(call.base()), "{call}");
            }
        }
    }

    #[test]
    fn plain_forks_and_threads_are_let_through_and_new_namespaces_are_not() {
        let flag = |name: &str| {
            let value = flags::CLONE.value_of(Arch::X86_64, name);
            value.expect("in clone.txt")
        };
        for plain in [17, flag("CLONE_THREAD") | 0x100, flag("CLONE_VFORK") | 17] {
            assert!(!trapped(FLOOR, Syscall::CLONE, [plain, 0, 0, 0, 0, 0]));
        }
        let namespaces = [
            "CLONE_NEWNS",
            "CLONE_NEWCGROUP",
            "CLONE_NEWUTS",
            "CLONE_NEWIPC",
            "CLONE_NEWUSER",
            "CLONE_NEWPID",
            "CLONE_NEWNET",
            "CLONE_UNTRACED",
        ];
        let all = namespaces.iter().fold(0, |all, name| all | flag(name));
        assert_eq!(all, LEAVING);
        for name in namespaces {
            assert!(trapped(
                FLOOR,
                Syscall::CLONE,
                [flag(name) | 17, 0, 0, 0, 0, 0]
            ));
        }
    }

    #[test]
    fn prctl_options_are_those_of_the_data_file() {
        let set = [
            "PR_SET_DUMPABLE",
            "PR_SET_SECCOMP",
            "PR_SET_SECUREBITS",
            "PR_SET_MM",
            "PR_SET_CHILD_SUBREAPER",
            "PR_SET_NO_NEW_PRIVS",
            "PR_CAP_AMBIENT",
            "PR_SET_PTRACER",
        ];
        for entry in flags::PRCTL.entries() {
            // PR_CAP_AMBIENT_RAISE; other calls ignore this argument.
            let args = [entry.value(Arch::X86_64), 2, 0, 0, 0, 0];
            let expected = set.contains(&entry.name());
            assert_eq!(
                trapped(FLOOR, Syscall::PRCTL, args),
                expected,
                "{}",
                entry.name()
            );
        }
    }

    #[test]
    fn capabilities_that_are_given_up_are_not_trapped() {
        let prctl = |args| trapped(FLOOR, Syscall::PRCTL, args);
        // PR_CAPBSET_DROP.
        assert!(!prctl([24, 21, 0, 0, 0, 0]));
        // PR_CAP_AMBIENT operations: is set, lower, clear all; raise is the trapped one.
        for what in [1, 3, 4] {
            assert!(!prctl([47, what, 21, 0, 0, 0]), "{what}");
        }
        assert!(prctl([47, 2, 21, 0, 0, 0]));
    }

    #[test]
    fn filters_that_are_set_are_trapped_and_questions_are_not() {
        let seccomp = |operation| trapped(FLOOR, Syscall::SECCOMP, [operation, 0, 0, 0, 0, 0]);
        assert_eq!([0, 1, 2, 3].map(seccomp), [true, true, false, false]);
    }

    #[test]
    fn only_signals_that_could_harm_the_supervisor_are_trapped() {
        let harmful = [1, 4, 5, 7, 8, 9, 10, 11, 12, 19, 31, 32, 33];
        for number in 0..=64_u64 {
            let expected = harmful.contains(&number);
            for call in [
                Syscall::KILL,
                Syscall::TKILL,
                Syscall::RT_SIGQUEUEINFO,
                Syscall::PIDFD_SEND_SIGNAL,
            ] {
                let args = [77, number, 0, 0, 0, 0];
                assert_eq!(trapped(FLOOR, call, args), expected, "{call} {number}");
            }
            for call in [Syscall::TGKILL, Syscall::RT_TGSIGQUEUEINFO] {
                let args = [77, 78, number, 0, 0, 0];
                assert_eq!(trapped(FLOOR, call, args), expected, "{call} {number}");
            }
        }
    }

    #[test]
    fn what_a_process_does_to_itself_alone_is_not_trapped() {
        let trapped =
            |call, args: [u64; 3]| trapped(FLOOR, call, [args[0], args[1], args[2], 0, 0, 0]);
        assert!(trapped(Syscall::PRLIMIT64, [77, 7, 0x7fff_0000]));
        assert!(trapped(Syscall::PRLIMIT64, [77, 7, 0x7f00_0000_0000]));
        assert!(!trapped(Syscall::PRLIMIT64, [77, 7, 0]));
        assert!(!trapped(Syscall::PRLIMIT64, [0, 7, 0x7fff_0000]));
        assert!(trapped(Syscall::PRLIMIT64, [0, 10, 0x7fff_0000]));
        assert!(!trapped(Syscall::PRLIMIT64, [0, 10, 0]));
        assert!(trapped(Syscall::SETRLIMIT, [10, 0x7fff_0000, 0]));
        assert!(!trapped(Syscall::SETRLIMIT, [7, 0x7fff_0000, 0]));
        assert!(trapped(Syscall::SCHED_SETAFFINITY, [77, 8, 1]));
        assert!(!trapped(Syscall::SCHED_SETAFFINITY, [0, 8, 1]));
        assert!(trapped(Syscall::SETPRIORITY, [0, 77, 19]));
        assert!(trapped(Syscall::SETPRIORITY, [1, 0, 19]));
        assert!(!trapped(Syscall::SETPRIORITY, [0, 0, 19]));
        assert!(trapped(Syscall::IOPRIO_SET, [1, 77, 0]));
        assert!(trapped(Syscall::IOPRIO_SET, [2, 0, 0]));
        assert!(!trapped(Syscall::IOPRIO_SET, [1, 0, 0]));
        assert!(trapped(Syscall::FCNTL, [3, 10, 9]));
        assert!(!trapped(Syscall::FCNTL, [3, 10, 0]));
        assert!(!trapped(Syscall::FCNTL, [3, 4, 9]));
    }

    #[test]
    fn only_special_sockets_are_trapped() {
        let socket = |domain, kind| trapped(FLOOR, Syscall::SOCKET, [domain, kind, 0, 0, 0, 0]);
        assert!(socket(17, 0x80002));
        assert!(socket(2, 0x80003));
        assert!(socket(38, 5));
        assert!(!socket(2, 0x80001));
        assert!(!socket(16, 3));
        assert!(!socket(1, 1));
    }

    #[test]
    fn setid_modes_and_other_predicates() {
        assert!(trapped(FLOOR, Syscall::CHMOD, [0, 0o4755, 0, 0, 0, 0]));
        assert!(!trapped(FLOOR, Syscall::CHMOD, [0, 0o755, 0, 0, 0, 0]));
        assert!(trapped(FLOOR, Syscall::FCHMODAT, [0, 0, 0o2755, 0, 0, 0]));
        assert!(!trapped(
            FLOOR,
            Syscall::PERSONALITY,
            [0xffff_ffff, 0, 0, 0, 0, 0]
        ));
        assert!(trapped(
            FLOOR,
            Syscall::PERSONALITY,
            [0x4_0000, 0, 0, 0, 0, 0]
        ));
        assert!(trapped(FLOOR, Syscall::SYSLOG, [5, 0, 0, 0, 0, 0]));
        assert!(!trapped(FLOOR, Syscall::SYSLOG, [3, 0, 0, 0, 0, 0]));
        assert!(trapped(FLOOR, Syscall::SOCKETCALL, [3, 0, 0, 0, 0, 0]));
        assert!(!trapped(FLOOR, Syscall::SOCKETCALL, [9, 0, 0, 0, 0, 0]));
    }
}
