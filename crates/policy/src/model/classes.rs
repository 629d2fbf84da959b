//! What belongs together: a workload that did one thing of a class in one run may do another in the next. Nothing
//! here gives a workload what it could attack others with.

use std::collections::{BTreeMap, BTreeSet};

use abi::{Capabilities, capability};

/// System calls that do the same in other forms, or that one program uses together.
const CALLS: [&[&str]; 20] = [
    &[
        "access",
        "faccessat",
        "faccessat2",
        "lstat",
        "newfstatat",
        "readlink",
        "readlinkat",
        "stat",
        "statx",
    ],
    &["open", "openat", "openat2"],
    &["pread64", "preadv", "preadv2", "readv"],
    &["pwrite64", "pwritev", "pwritev2"],
    &["recvfrom", "recvmmsg", "recvmsg"],
    &["sendmmsg", "sendmsg", "sendto"],
    &["accept", "accept4"],
    &[
        "getpeername",
        "getsockname",
        "getsockopt",
        "setsockopt",
        "shutdown",
    ],
    &["poll", "ppoll", "pselect6", "select"],
    &[
        "epoll_create",
        "epoll_create1",
        "epoll_ctl",
        "epoll_pwait",
        "epoll_pwait2",
        "epoll_wait",
    ],
    &["dup", "dup2", "dup3"],
    &["pipe", "pipe2"],
    &["fdatasync", "fsync", "sync_file_range"],
    &["fallocate", "ftruncate", "truncate"],
    &["rename", "renameat", "renameat2"],
    &["rmdir", "unlink", "unlinkat"],
    &["mkdir", "mkdirat"],
    &["chmod", "fchmod", "fchmodat", "fchmodat2"],
    &["chown", "fchown", "fchownat", "lchown"],
    &["copy_file_range", "sendfile"],
];

/// Calls that only read what the caller may know anyway, or that only concern its own waiting and descriptors.
const HARMLESS: [&str; 44] = [
    "alarm",
    "clock_getres",
    "eventfd",
    "eventfd2",
    "fadvise64",
    "fcntl",
    "flock",
    "fstatfs",
    "getcpu",
    "getcwd",
    "getdents",
    "getdents64",
    "getegid",
    "geteuid",
    "getgid",
    "getgroups",
    "getitimer",
    "getpgid",
    "getpgrp",
    "getppid",
    "getpriority",
    "getresgid",
    "getresuid",
    "getrlimit",
    "getrusage",
    "getsid",
    "gettimeofday",
    "getuid",
    "ioctl",
    "membarrier",
    "mincore",
    "msync",
    "prlimit64",
    "rt_sigpending",
    "rt_sigsuspend",
    "rt_sigtimedwait",
    "sched_getaffinity",
    "setitimer",
    "statfs",
    "sysinfo",
    "time",
    "times",
    "umask",
    "uname",
];

/// Requests of ioctl(2) that come together: the C library asks whether a descriptor is a terminal, and how much
/// can be read. None of them puts input into a terminal (`TIOCSTI`, `TIOCLINUX`).
const IOCTLS: [&[u64]; 2] = [
    // FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC
    &[0x541b, 0x5421, 0x5450, 0x5451, 0x5452],
    // TCGETS, TCSETS, TCSETSW, TCSETSF, TIOCGPGRP, TIOCSPGRP, TIOCGWINSZ, TIOCSWINSZ, TCFLSH
    &[
        0x5401, 0x5402, 0x5403, 0x5404, 0x540f, 0x5410, 0x5413, 0x5414, 0x540b,
    ],
];

/// Requests of ioctl(2) that every program may make: TCGETS, TIOCGWINSZ, and the class of FIONREAD.
const EVERYBODYS_IOCTLS: [u64; 7] = [0x5401, 0x5413, 0x541b, 0x5421, 0x5450, 0x5451, 0x5452];

/// Requests of prctl(2) that come together: PR_SET_NAME and PR_GET_NAME.
const NAMES: [u64; 2] = [15, 16];

/// Folders of libraries and of their data, which every user can read and no secret is kept in.
const LIBRARIES: [&str; 8] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/share",
];

/// Folders whose files have nothing to do with each other. Below `/etc` and `/var`, folders of one program have.
const UNRELATED: [&str; 28] = [
    "",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/local",
    "/usr/local/bin",
    "/usr/sbin",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/spool",
    "/var/tmp",
];

/// Number of files of a kind in a folder from which others of that kind are expected.
const ENOUGH: usize = 2;

/// The calls of the classes of which a workload made one.
pub(super) fn calls(made: &BTreeSet<String>) -> BTreeSet<String> {
    let classes = CALLS.iter();
    let begun = classes.filter(|class| class.iter().any(|call| made.contains(*call)));
    let more = begun.copied().flatten().chain(&HARMLESS);
    let more = more.map(|call| (*call).to_owned());
    made.iter().cloned().chain(more).collect()
}

/// The values of the selecting argument of a call that belong to those that a workload used.
pub(super) fn values(call: &str, used: &BTreeSet<u64>) -> BTreeSet<u64> {
    let mut found = used.clone();
    match call {
        "ioctl" => {
            let classes = IOCTLS.iter();
            let begun = classes.filter(|class| class.iter().any(|value| used.contains(value)));
            found.extend(begun.copied().flatten());
            found.extend(EVERYBODYS_IOCTLS);
        }
        "prctl" if NAMES.iter().any(|value| used.contains(value)) => found.extend(NAMES),
        _ => {}
    }
    found
}

/// The capabilities that come with those that a workload used: what it gave to another user in one run it has to
/// open in the next, and processes that it gave to another user it has to end.
pub(super) fn capabilities(used: Capabilities) -> Capabilities {
    const TOGETHER: [(&str, &[&str]); 3] = [
        ("chown", &["dac_override", "fowner"]),
        ("setuid", &["kill", "setgid"]),
        ("setgid", &["setuid"]),
    ];
    let bit = |name: &str| capability::from_name(name).map_or(0, |number| 1 << number);
    let begun = TOGETHER.iter().filter(|(name, _)| used.0 & bit(name) != 0);
    let more = begun.flat_map(|(_, others)| others.iter());
    Capabilities(more.fold(used.0, |sum, name| sum | bit(name)))
}

/// Folders in which a workload read several files of a kind, as `FOLDER/*`, and the folders of libraries that it
/// uses.
pub(super) fn folders(files: &BTreeSet<String>) -> BTreeSet<String> {
    let mut kinds: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for file in files {
        let library = LIBRARIES.iter().find(|folder| {
            let rest = file.strip_prefix(**folder);
            rest.is_some_and(|rest| rest.starts_with('/'))
        });
        if let Some(folder) = library {
            found.insert(format!("{folder}/*"));
            continue;
        }
        let Some((folder, name)) = file.rsplit_once('/') else {
            continue;
        };
        if let Some(kind) = kind(name).filter(|_| is_of_one_thing(folder)) {
            *kinds.entry((folder, kind)).or_default() += 1;
        }
    }
    let several = kinds.into_iter().filter(|(_, count)| *count >= ENOUGH);
    found.extend(several.map(|((folder, _), _)| format!("{folder}/*")));
    found
}

/// The kind of a file: its extension, or that its name is a number.
fn kind(name: &str) -> Option<&str> {
    if name.starts_with('.') || name.contains('*') {
        return None;
    }
    match name.rsplit_once('.') {
        Some((_, extension)) => Some(extension),
        None if name.bytes().all(|byte| byte.is_ascii_digit()) => Some("0"),
        None => None,
    }
}

/// Returns true for a folder whose files belong together: no folder of the system, no home, nothing hidden.
fn is_of_one_thing(folder: &str) -> bool {
    let is_generated = ["/proc/", "/sys/", "/dev/"]
        .iter()
        .any(|top| folder.starts_with(top));
    let is_home = folder
        .strip_prefix("/home/")
        .is_some_and(|rest| !rest.contains('/'));
    let is_hidden = folder.contains("/.");
    !UNRELATED.contains(&folder) && !is_generated && !is_home && !is_hidden
}

#[cfg(test)]
mod tests {
    use abi::Syscall;

    use super::*;

    fn texts(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn every_name_of_the_tables_is_a_call_and_none_reaches_another_process() {
        let named = CALLS.iter().copied().flatten().chain(&HARMLESS);
        for name in named {
            let call = Syscall::from_name(name);
            assert!(call.is_some(), "{name}");
        }
        for risky in [
            "ptrace",
            "kill",
            "splice",
            "vmsplice",
            "mount",
            "bpf",
            "io_uring_setup",
            "socket",
            "connect",
        ] {
            assert!(
                !calls(&texts(&["open", "accept"])).contains(risky),
                "{risky}"
            );
        }
    }

    #[test]
    fn files_of_a_kind_make_a_folder_and_single_ones_do_not() {
        let read = texts(&[
            "/srv/site/a.html",
            "/srv/site/b.html",
            "/srv/site/img/one.png",
            "/etc/passwd",
            "/etc/group",
            "/etc/a.conf",
            "/etc/b.conf",
            "/etc/web/a.conf",
            "/etc/web/b.conf",
            "/home/ada/a.txt",
            "/home/ada/b.txt",
            "/home/ada/.ssh/a.pub",
            "/home/ada/.ssh/b.pub",
            "/proc/a.x",
            "/tmp/a.x",
            "/tmp/b.x",
            "/usr/lib/x/libx.so.1",
            "/var/db/base/1259",
            "/var/db/base/1260",
        ]);
        let expected = texts(&["/etc/web/*", "/srv/site/*", "/usr/lib/*", "/var/db/base/*"]);
        assert_eq!(folders(&read), expected);
    }

    #[test]
    fn requests_and_capabilities_bring_their_class_and_no_more() {
        let of = |used: &[u64]| values("ioctl", &used.iter().copied().collect());
        assert!(of(&[0x5421]).contains(&0x541b), "FIONBIO brings FIONREAD");
        assert!(of(&[0x5402]).contains(&0x5404), "TCSETS brings TCSETSF");
        assert!(!of(&[0x5421]).contains(&0x5402));
        assert!(!of(&[0x5401, 0x5402]).contains(&0x5412), "TIOCSTI");
        let bit = |name| 1 << capability::from_name(name).unwrap();
        let chown = capabilities(Capabilities(bit("chown")));
        assert_eq!(chown.0, bit("chown") | bit("dac_override") | bit("fowner"));
        assert_eq!(capabilities(Capabilities(bit("net_raw"))).0, bit("net_raw"));
    }
}
