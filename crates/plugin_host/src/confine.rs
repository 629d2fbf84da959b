//! What a plugin may not do: run programs, reach other processes, change the machine, and use the network unless its
//! configuration has an address.
//!
//! A seccomp filter, which is in force before a library is loaded and cannot be removed. It is against mistakes and against
//! code that was not meant to run, not against a hostile plugin: a plugin still reads and writes files and connects to local
//! sockets as the user that started it, which for root is everything.

use abi::{Arch, RegisterTest, Syscall, TestOp};
use seccomp::Action;
use seccomp::table::{self, Rule, Table};
use sys::seccomp::{FilterFlags, install_filter, set_no_new_privs};

/// Calls that fail.
const DENIED: &[&str] = &[
    // Programs.
    "execve",
    "execveat",
    // Other processes.
    "kill",
    "pidfd_getfd",
    "pidfd_send_signal",
    "process_madvise",
    "process_vm_readv",
    "process_vm_writev",
    "ptrace",
    "rt_sigqueueinfo",
    "setns",
    "tkill",
    // Processes of its own, which would outlive it.
    "fork",
    "vfork",
    // The machine.
    "acct",
    "adjtimex",
    "bpf",
    "chroot",
    "clock_adjtime",
    "clock_settime",
    "delete_module",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "init_module",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_by_handle_at",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "reboot",
    "setdomainname",
    "sethostname",
    "settimeofday",
    "swapoff",
    "swapon",
    "umount2",
    "unshare",
    // A ring makes calls that no filter sees.
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "userfaultfd",
];

/// Calls whose first argument is a process, which must be the own one.
const OWN: &[&str] = &["rt_tgsigqueueinfo", "tgkill"];
/// Commands of `fcntl` by which the kernel sends signals to a process that the caller names.
const SIGNALLING: [u64; 3] = [8, 10, 15];
/// Flag of `clone`: the new task is a thread.
const CLONE_THREAD: u64 = 0x1_0000;

const EPERM: u16 = 1;
const ENOSYS: u16 = 38;
const EACCES: u16 = 13;
/// Family of sockets of one machine.
const AF_UNIX: u64 = 1;

/// Confines this process and all its later threads. Precondition: it has one thread.
pub(crate) fn confine(has_network: bool) -> Result<(), String> {
    let native = Arch::native().ok_or("this architecture has no table of calls")?;
    let own = u64::from(std::process::id());
    let rules = rules(native, own, has_network);
    let program =
        table::compile(native, &[rules], Action::KillProcess).map_err(|error| error.to_string())?;
    set_no_new_privs().map_err(|error| error.to_string())?;
    install_filter(program.instructions(), FilterFlags(0)).map_err(|error| error.to_string())?;
    Ok(())
}

/// `own` is the number of this process.
fn rules(native: Arch, own: u64, has_network: bool) -> Table {
    // A name that this architecture does not have needs no rule.
    let numbers = |names: &[&str]| {
        let known = names.iter().filter_map(|name| Syscall::from_name(name));
        known.filter_map(|call| call.number(native)).collect()
    };
    let denied = |names: &[&str], when: Vec<RegisterTest>| Rule {
        numbers: numbers(names),
        when,
        action: Action::Errno(EPERM),
    };
    let is_not = |value| RegisterTest::low(0, TestOp::Ne, value);
    let no_thread = RegisterTest::low(0, TestOp::NoBit, CLONE_THREAD);
    let mut rules = vec![
        denied(DENIED, Vec::new()),
        denied(OWN, vec![is_not(own)]),
        denied(&["prlimit64"], vec![is_not(0), is_not(own)]),
        denied(&["clone"], vec![no_thread]),
        // Its flags are in memory; libraries go on with `clone`.
        Rule {
            numbers: numbers(&["clone3"]),
            when: Vec::new(),
            action: Action::Errno(ENOSYS),
        },
    ];
    let signalling = SIGNALLING.map(|command| RegisterTest::low(1, TestOp::Eq, command));
    rules.extend(signalling.map(|test| denied(&["fcntl"], vec![test])));
    if !has_network {
        rules.push(Rule {
            numbers: numbers(&["socket"]),
            when: vec![RegisterTest::low(0, TestOp::Ne, AF_UNIX)],
            action: Action::Errno(EACCES),
        });
    }
    Table {
        arch: native,
        rules,
        otherwise: Action::Allow,
        newer: Action::Allow,
    }
}

#[cfg(test)]
mod tests {
    use seccomp::run::{SeccompData, run};

    use super::*;

    #[test]
    fn programs_are_denied_and_the_network_without_an_address() {
        let native = Arch::native().expect("tests run on a known architecture");
        let action_of = |has_network, name: &str, args| {
            let tables = [rules(native, 7, has_network)];
            let program =
                table::compile(native, &tables, Action::KillProcess).expect("it is short");
            let call = Syscall::from_name(name).and_then(|call| call.number(native));
            let data = SeccompData {
                number: native.raw_number(call.expect("it has this call")),
                audit: native.audit(),
                args,
            };
            run(&program, &data).expect("it decides").action
        };
        let action = |has_network, name: &str, argument| {
            action_of(has_network, name, [argument, 0, 0, 0, 0, 0])
        };
        let is_here = |name: &&&str| {
            let call = Syscall::from_name(name).expect("it is a call of some architecture");
            call.number(native).is_some()
        };
        for name in DENIED.iter().filter(is_here) {
            assert_eq!(action(true, name, 0), Action::Errno(EPERM), "{name}");
        }
        for name in OWN {
            assert_eq!(action(true, name, 8), Action::Errno(EPERM), "{name}");
            assert_eq!(action(true, name, 7), Action::Allow, "{name}");
        }
        for (pid, expected) in [
            (8, Action::Errno(EPERM)),
            (7, Action::Allow),
            (0, Action::Allow),
        ] {
            assert_eq!(action(true, "prlimit64", pid), expected, "{pid}");
        }
        for command in SIGNALLING {
            let args = [0, command, 0, 0, 0, 0];
            assert_eq!(action_of(true, "fcntl", args), Action::Errno(EPERM));
        }
        assert_eq!(action_of(true, "fcntl", [0, 4, 0, 0, 0, 0]), Action::Allow);
        assert_eq!(action(true, "clone", CLONE_THREAD), Action::Allow);
        assert_eq!(action(true, "clone", 17), Action::Errno(EPERM));
        assert_eq!(action(true, "clone3", 0), Action::Errno(ENOSYS));
        for (has_network, family, expected) in [
            (true, 2, Action::Allow),
            (false, 2, Action::Errno(EACCES)),
            (false, 10, Action::Errno(EACCES)),
            (false, AF_UNIX, Action::Allow),
        ] {
            assert_eq!(action(has_network, "socket", family), expected, "{family}");
        }
        assert_eq!(action(false, "openat", 0), Action::Allow);
    }
}
