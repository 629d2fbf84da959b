//! Calls and capabilities that no collector needs.

use std::fmt::Write as _;

use super::needs::Needs;

/// Built-in rules that hold for every collector.
pub(super) const HARDENING: [&str; 7] = [
    "disallow-create-user-ns",
    "disallow-insmod",
    "disallow-load-all-bpf-prog",
    "disallow-load-bpf-via-setsockopt",
    "disallow-mount",
    "disallow-umount",
    "disallow-userfaultfd-creation",
];

/// Capabilities that root keeps: to read keys and open a store of another user, whose owner SQLite gives its log, and to
/// listen on a port below 1024.
pub(super) const KEPT: [&str; 5] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "net_bind_service",
];

/// Calls that no collector makes, whatever its options are.
const CALLS: [&[&str]; 7] = [
    // Other programs, and processes.
    &[
        "execve",
        "execveat",
        "fork",
        "vfork",
        "kcmp",
        "pidfd_getfd",
        "process_madvise",
        "process_vm_readv",
        "process_vm_writev",
        "ptrace",
    ],
    // The kernel.
    &[
        "add_key",
        "bpf",
        "fanotify_init",
        "io_uring_enter",
        "io_uring_register",
        "io_uring_setup",
        "keyctl",
        "perf_event_open",
        "request_key",
        "syslog",
    ],
    // Namespaces, and files by another way than their path.
    &[
        "chroot",
        "fsmount",
        "fsopen",
        "mount",
        "move_mount",
        "name_to_handle_at",
        "open_by_handle_at",
        "pivot_root",
        "setns",
        "umount2",
        "unshare",
    ],
    // The machine.
    &[
        "acct",
        "adjtimex",
        "clock_adjtime",
        "clock_settime",
        "ioperm",
        "iopl",
        "modify_ldt",
        "personality",
        "quotactl",
        "reboot",
        "setdomainname",
        "sethostname",
        "settimeofday",
        "swapoff",
        "swapon",
        "vhangup",
    ],
    // Other users, and devices.
    &[
        "mknod",
        "mknodat",
        "setfsgid",
        "setfsuid",
        "setgid",
        "setgroups",
        "setregid",
        "setresgid",
        "setresuid",
        "setreuid",
        "setuid",
    ],
    // What Landlock leaves of files that are not granted: owner, times and attributes.
    &[
        "chown",
        "fchownat",
        "file_setattr",
        "futimesat",
        "lchown",
        "lremovexattr",
        "lsetxattr",
        "removexattr",
        "removexattrat",
        "setxattr",
        "setxattrat",
        "utime",
        "utimensat",
        "utimes",
    ],
    // Memory that is mapped twice, once to write and once to execute.
    &["memfd_create", "memfd_secret", "shmat", "shmget"],
];

/// Calls that are refused by what is in a register, as the list `args` of the runtime specification writes it.
const CALLS_WITH: [(&str, &str); 9] = [
    // A process: a thread shares its memory with its maker.
    (
        "clone",
        "{index: 0, value: 0x10000, valueTwo: 0, op: SCMP_CMP_MASKED_EQ}",
    ),
    // Memory that is written and executed, and such that becomes executable.
    (
        "mmap",
        "{index: 2, value: 6, valueTwo: 6, op: SCMP_CMP_MASKED_EQ}",
    ),
    (
        "mprotect",
        "{index: 2, value: 4, valueTwo: 4, op: SCMP_CMP_MASKED_EQ}",
    ),
    (
        "pkey_mprotect",
        "{index: 2, value: 4, valueTwo: 4, op: SCMP_CMP_MASKED_EQ}",
    ),
    // TCP fast open, whose port Landlock does not look at.
    (
        "sendto",
        "{index: 3, value: 0x20000000, valueTwo: 0x20000000, op: SCMP_CMP_MASKED_EQ}",
    ),
    (
        "sendmsg",
        "{index: 2, value: 0x20000000, valueTwo: 0x20000000, op: SCMP_CMP_MASKED_EQ}",
    ),
    (
        "sendmmsg",
        "{index: 3, value: 0x20000000, valueTwo: 0x20000000, op: SCMP_CMP_MASKED_EQ}",
    ),
    // TIOCSTI and TIOCLINUX: input for the shell outside.
    (
        "ioctl",
        "{index: 1, value: 0xffffffff, valueTwo: 0x5412, op: SCMP_CMP_MASKED_EQ}",
    ),
    (
        "ioctl",
        "{index: 1, value: 0xffffffff, valueTwo: 0x541c, op: SCMP_CMP_MASKED_EQ}",
    ),
];

/// Tests of the families of sockets that no collector has: all but Unix (1), IPv4 (2), IPv6 (10) and netlink (16).
const FAMILIES: [&str; 4] = [
    "{index: 0, value: 1, op: SCMP_CMP_LT}",
    "{index: 0, value: 3, op: SCMP_CMP_GE}, {index: 0, value: 9, op: SCMP_CMP_LE}",
    "{index: 0, value: 11, op: SCMP_CMP_GE}, {index: 0, value: 15, op: SCMP_CMP_LE}",
    "{index: 0, value: 17, op: SCMP_CMP_GE}",
];
/// Tests of protocols that no collector speaks: all but the family's own (0), TCP (6) and UDP (17). Landlock knows the ports of TCP
/// alone, and not those of multipath TCP, SCTP and others.
const PROTOCOLS: [&str; 3] = [
    "{index: 2, value: 1, op: SCMP_CMP_GE}, {index: 2, value: 5, op: SCMP_CMP_LE}",
    "{index: 2, value: 7, op: SCMP_CMP_GE}, {index: 2, value: 16, op: SCMP_CMP_LE}",
    "{index: 2, value: 18, op: SCMP_CMP_GE}",
];
/// Types of sockets that a collector has: streams and datagrams, and raw ones of netlink.
const TYPES: std::ops::RangeInclusive<u64> = 1..=3;
/// The mask of the kernel for types of sockets; the others of 32 bits are flags.
const TYPE_MASK: u64 = 0xf;
/// Raw sockets of IPv4 and IPv6.
const RAW: [&str; 2] = [
    "{index: 0, value: 2, op: SCMP_CMP_EQ}, {index: 1, value: 0xf, valueTwo: 3, op: SCMP_CMP_MASKED_EQ}",
    "{index: 0, value: 10, op: SCMP_CMP_EQ}, {index: 1, value: 0xf, valueTwo: 3, op: SCMP_CMP_MASKED_EQ}",
];
/// The same of Unix sockets that are not a pair, and of netlink.
const UNIX: &str = "{index: 0, value: 1, op: SCMP_CMP_EQ}";
const NETLINK: &str = "{index: 0, value: 16, op: SCMP_CMP_EQ}";

/// Writes the rules about calls.
pub(super) fn push_calls(text: &mut String, needs: &Needs) {
    let _ = writeln!(text, "    syscallRawRules:");
    let mut refuse = |names: &str, args: &str| {
        let args = match args {
            "" => String::new(),
            args => format!(", args: [{args}], argsMatch: all"),
        };
        let _ = writeln!(
            text,
            "    - {{names: [{names}], action: SCMP_ACT_ERRNO{args}}}"
        );
    };
    for names in CALLS {
        refuse(&names.join(", "), "");
    }
    for (name, args) in CALLS_WITH {
        refuse(name, args);
    }
    for test in [&FAMILIES[..], &PROTOCOLS, &RAW].concat() {
        refuse("socket", test);
    }
    for kind in (0..=TYPE_MASK).filter(|kind| !TYPES.contains(kind)) {
        let test =
            format!("{{index: 1, value: {TYPE_MASK}, valueTwo: {kind}, op: SCMP_CMP_MASKED_EQ}}");
        refuse("socket", &test);
    }
    if !needs.has_names {
        refuse("socket", NETLINK);
    }
    // The mode of the socket of `--listen unix://` is set by its path.
    if needs.listens.is_some() {
        refuse("chmod, fchmodat, fchmodat2", "");
    }
    if !needs.has_sockets {
        refuse("socket", UNIX);
        if needs.connects.is_empty() {
            refuse("connect", "");
        }
    }
}
