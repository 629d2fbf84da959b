//! What a plugin may not do: run programs, reach other processes, change the machine, and use the network unless its
//! configuration has an address.
//!
//! A seccomp filter, which is in force before a library is loaded and cannot be removed. It protects other processes from
//! mistakes and from code that was not meant to run; a plugin still reads and writes files as the user that started it.

use abi::{Arch, RegisterTest, Syscall, TestOp};
use plugin::protocol::PluginSpec;
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
    // The machine.
    "bpf",
    "chroot",
    "delete_module",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "init_module",
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

const EPERM: u16 = 1;
const EACCES: u16 = 13;
/// Family of sockets of one machine.
const AF_UNIX: u64 = 1;

/// Confines this process and all its later threads. Precondition: it has one thread.
pub(crate) fn confine(has_network: bool) -> Result<(), String> {
    let native = Arch::native().ok_or("this architecture has no table of calls")?;
    let program = table::compile(native, &[rules(native, has_network)], Action::KillProcess)
        .map_err(|error| error.to_string())?;
    set_no_new_privs().map_err(|error| error.to_string())?;
    install_filter(program.instructions(), FilterFlags(0)).map_err(|error| error.to_string())?;
    Ok(())
}

fn rules(native: Arch, has_network: bool) -> Table {
    // A name that this architecture does not have needs no rule.
    let numbers = |names: &[&str]| {
        let known = names.iter().filter_map(|name| Syscall::from_name(name));
        known.filter_map(|call| call.number(native)).collect()
    };
    let mut rules = vec![Rule {
        numbers: numbers(DENIED),
        when: Vec::new(),
        action: Action::Errno(EPERM),
    }];
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

/// Returns true if the configuration of a plugin has an address: a URL, or a name or number with a port.
pub(crate) fn has_address(spec: &PluginSpec) -> bool {
    let texts = [&spec.init_config, &spec.open_params];
    texts
        .iter()
        .any(|text| text.contains("://") || has_port(text))
}

/// Returns true if a word ends with a colon and a number.
fn has_port(text: &str) -> bool {
    // The colon after a key of JSON is none of an address.
    let text = text.replace("\":", " ");
    let is_end = |c: char| c.is_whitespace() || "\"',;/[]{}".contains(c);
    text.split(is_end).any(|word| {
        let port = word.rsplit_once(':').map(|(_, port)| port);
        port.is_some_and(|port| port.parse::<u16>().is_ok())
    })
}

#[cfg(test)]
mod tests {
    use seccomp::run::{SeccompData, run};

    use super::*;

    #[test]
    fn programs_are_denied_and_the_network_without_an_address() {
        let native = Arch::native().expect("tests run on a known architecture");
        let action = |has_network, name: &str, argument| {
            let tables = [rules(native, has_network)];
            let program =
                table::compile(native, &tables, Action::KillProcess).expect("it is short");
            let call = Syscall::from_name(name).and_then(|call| call.number(native));
            let data = SeccompData {
                number: native.raw_number(call.expect("it has this call")),
                audit: native.audit(),
                args: [argument, 0, 0, 0, 0, 0],
            };
            run(&program, &data).expect("it decides").action
        };
        for name in ["execve", "execveat", "ptrace", "io_uring_setup"] {
            assert_eq!(action(true, name, 0), Action::Errno(EPERM), "{name}");
        }
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

    #[test]
    fn an_address_is_a_url_or_has_a_port() {
        let spec = |init_config: &str, open_params: &str| PluginSpec {
            name: String::new(),
            library: String::new(),
            init_config: init_config.to_owned(),
            open_params: open_params.to_owned(),
        };
        for (config, params, expected) in [
            ("{\"maxEventSize\":262144}", "", false),
            ("{\"mode\":\"a\",\"n\":4}", "4", false),
            ("", "/var/log/audit.json", false),
            ("", "http://:9765/k8s-audit", true),
            ("{\"server\":\"collector.example:443\"}", "", true),
            ("", ":9765", true),
        ] {
            assert_eq!(
                has_address(&spec(config, params)),
                expected,
                "{config} {params}"
            );
        }
    }
}
