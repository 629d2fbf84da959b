//! The modes of policies: what is denied, with which error, and what is not.

use e2e::cluster::whole::Cluster;
use e2e::need_cluster;
use serde_json::{Value, json};

use super::{DENIED, PROD, apply, exec, namespace, no_mkdir, pod, protect};

const SLEEP: &str = "exec /bin/busybox sleep 1000";
const MKDIR: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];
const UNSHARE: [&str; 5] = ["/bin/busybox", "unshare", "-U", "/bin/busybox", "true"];
/// What busybox says of EPERM.
const NO_UNSHARE: &str = "unshare: unshare(0x10000000): Operation not permitted\n";
/// What kubectl says of the status of a program, after what the program says.
const FAILED: &str = "command terminated with exit code 1\n";
/// What the profile of the mode DefenseInDepth lets a program of busybox and its runtime do.
const ALLOWED: &str = "access arch_prctl brk capget capset chdir clock_gettime clock_nanosleep clone clone3 close \
    close_range dup dup2 dup3 epoll_create1 epoll_ctl epoll_pwait epoll_wait eventfd2 execve execveat exit exit_group \
    faccessat2 fchdir fchown fcntl fstat fstatfs futex getcwd getdents64 getegid geteuid getgid getpgrp getpid getppid \
    getrandom getrlimit gettid getuid ioctl lseek lstat madvise mmap mprotect mremap munmap nanosleep newfstatat open \
    openat openat2 pidfd_open pidfd_send_signal pipe2 poll ppoll prctl pread64 prlimit64 read readlink readlinkat \
    restart_syscall rseq rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend sched_getaffinity sched_yield seccomp \
    set_robust_list set_tid_address setgid setgroups setresgid setresuid setsid setuid sigaltstack stat statfs statx \
    sysinfo tgkill time umask uname unlink unlinkat rmdir wait4 waitid write writev";

/// A policy that allows what a list names, and denies the rest with an error of its own.
fn custom() -> Value {
    let names: Vec<&str> = ALLOWED.split_whitespace().collect();
    let profile = json!({ "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 33,
        "syscalls": [{ "names": names, "action": "SCMP_ACT_ALLOW" }] });
    json!({ "enforcer": "Seccomp", "mode": "DefenseInDepth", "defenseInDepth": { "seccomp": {
        "profileType": "Custom", "customProfile": profile.to_string() } } })
}

/// Mode, policy, and what mkdir and unshare say in its pod.
fn cases() -> [(&'static str, Value, String, String); 4] {
    let failed = |text: &str| format!("{text}{FAILED}");
    let of = |mode: &str| json!({ "enforcer": "Seccomp", "mode": mode });
    let no_unshare = NO_UNSHARE.replace(
        "Operation not permitted",
        "Numerical argument out of domain",
    );
    [
        ("allow", of("AlwaysAllow"), String::new(), String::new()),
        (
            "default",
            of("RuntimeDefault"),
            String::new(),
            failed(NO_UNSHARE),
        ),
        ("enhance", no_mkdir(), failed(DENIED), failed(NO_UNSHARE)),
        ("depth", custom(), failed(DENIED), failed(&no_unshare)),
    ]
}

#[test]
fn each_mode_denies_what_it_says_with_its_error_and_nothing_in_a_pod_without_it() {
    let programs = need_cluster!();
    let cluster = Cluster::start(&programs);
    apply(&cluster, &namespace(PROD));
    for (name, part, ..) in cases() {
        protect(&cluster, name, &part);
        apply(&cluster, &pod(PROD, name, SLEEP));
    }
    apply(&cluster, &pod(PROD, "twin", SLEEP));
    let wait = [
        "wait",
        "--for=condition=Ready",
        "-n",
        PROD,
        "--all",
        "pods",
        "--timeout=60s",
    ];
    let waited = cluster.kubectl(&wait);
    waited.unwrap_or_else(|error| panic!("{error}\n{}", cluster.state()));
    for (name, _, mkdir, unshare) in cases() {
        assert_eq!(exec(&cluster, name, &MKDIR), mkdir, "{name}");
        assert_eq!(exec(&cluster, name, &UNSHARE), unshare, "{name}");
    }
    assert_eq!(exec(&cluster, "twin", &MKDIR), "");
    assert_eq!(exec(&cluster, "twin", &UNSHARE), "");
    // AlwaysAllow has nothing to enforce, and its container is counted as well.
    for (name, ..) in cases() {
        cluster.until(&format!("the container of {name} is counted"), || {
            let found = cluster.get(PROD, &["varmorpolicy", name]);
            let covered = &found["status"]["coverage"];
            match covered["containers"] == 1 && covered["enforced"] == 1 {
                true => Ok(()),
                false => Err(found["status"].to_string()),
            }
        });
    }
}
