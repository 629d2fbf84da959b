//! Actions of the demo, and the alerts that each must raise. Data only.
//!
//! Scripts run by `sh -c` in a directory tree of their own. [`PRELUDE`] precedes each.

/// Passes in which an action is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlayTarget {
    /// In both passes.
    Everywhere,
    /// Only as root in a container: it needs an image of layers, or a right that users lack.
    Container,
}

/// An action of an intruder, and something harmless that looks like it.
#[derive(Debug)]
pub(crate) struct Action {
    /// Short name, unique.
    pub(crate) name: &'static str,
    /// Passes in which it is tried.
    pub(crate) place: PlayTarget,
    /// Required programs. `busybox:APPLET` requires an applet.
    pub(crate) needs: &'static [&'static str],
    /// Script of the action.
    pub(crate) script: &'static str,
    /// Rules that must alert.
    pub(crate) expected: &'static [&'static str],
    /// Rules that may alert as well, because they detect another aspect of the action.
    pub(crate) allowed: &'static [&'static str],
    /// Script of the harmless twin: no rule may alert.
    pub(crate) twin: &'static str,
}

/// Prefix of every script. `up HEX` waits until a process listens on a port of this network.
pub(crate) const PRELUDE: &str = r#"
exec </dev/null >/run/demo/output 2>&1
up() {
    n=0
    until cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$1 .* 0A "; do
        n=$((n + 1)); [ $n -lt 100 ] || return 1; sleep 0.05
    done
}
"#;

/// Script that makes the files that actions use; not watched.
pub(crate) const PREPARATION: &str = r#"
set -e
mkdir -p /srv/www/cgi-bin /srv/bin /srv/keys /srv/package/DEBIAN
echo 'hello' >/srv/www/index.html
printf '#!/bin/sh\necho Content-Type: text/plain\necho\nsh -c "echo searched for: ${QUERY_STRING#q=}; id"\n' >/srv/www/cgi-bin/search.cgi
printf '#!/bin/sh\necho Content-Type: text/plain\necho\necho "you asked: $QUERY_STRING"\n' >/srv/www/cgi-bin/echo.cgi
chmod 755 /srv/www/cgi-bin/search.cgi /srv/www/cgi-bin/echo.cgi
if command -v busybox >/dev/null; then ln -s "$(command -v busybox)" /srv/bin/httpd; fi
echo 'not a key' >/srv/keys/id_rsa
echo 'one line' >/var/log/demo.log
echo 'make' >"$HOME/.bash_history"
echo 'buy milk' >"$HOME/notes"
mkdir -p "$HOME/.ssh"
cp /bin/true /srv/tool
printf 'Package: tollgate-demo\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: an empty package\n' >/srv/package/DEBIAN/control
if command -v dpkg-deb >/dev/null; then dpkg-deb --build -Znone /srv/package /srv/demo.deb; fi
"#;

/// All actions, in the order of the demo.
pub(crate) const ACTIONS: &[Action] = &[
    Action {
        name: "read the password hashes",
        place: PlayTarget::Everywhere,
        needs: &["cat"],
        script: "cat /etc/shadow",
        expected: &["Read sensitive file untrusted"],
        allowed: &[],
        twin: "cat /etc/passwd /etc/hostname",
    },
    Action {
        name: "read them by climbing directories",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e 'open my $f, "<", "/srv/www/../../etc/passwd" or die; print <$f>; system "cat", "/srv/www/../../etc/hostname"'"#,
        expected: &["Directory traversal monitored file read"],
        allowed: &[],
        twin: r#"perl -e 'system "cat", "/srv/www/../www/index.html"'"#,
    },
    Action {
        name: "make a web server run a shell",
        place: PlayTarget::Everywhere,
        needs: &["busybox:httpd", "busybox:wget"],
        script: "/srv/bin/httpd -f -p 127.0.0.1:8080 -h /srv/www & server=$!; up 1F90 &&
            busybox wget -q -O - 'http://127.0.0.1:8080/cgi-bin/search.cgi?q=;id'; kill $server",
        expected: &["Run shell untrusted"],
        allowed: &[],
        twin: "/srv/bin/httpd -f -p 127.0.0.1:8080 -h /srv/www & server=$!; up 1F90 &&
            busybox wget -q -O - 'http://127.0.0.1:8080/index.html' &&
            busybox wget -q -O - 'http://127.0.0.1:8080/cgi-bin/echo.cgi?q=1'; kill $server",
    },
    Action {
        name: "open a reverse shell (loopback)",
        place: PlayTarget::Everywhere,
        needs: &["bash", "busybox:nc"],
        script: r#"(echo id; echo exit; sleep 0.5) | busybox nc -l -p 4444 & up 115C &&
            HISTFILE= bash -c 'bash --norc -i >&/dev/tcp/127.0.0.1/4444 0>&1'; wait"#,
        expected: &["Reverse shell"],
        allowed: &[],
        twin: r#"echo hello | busybox nc -l -p 4444 & up 115C &&
            bash -c 'exec 5<>/dev/tcp/127.0.0.1/4444 && read -r -u 5 line'; wait"#,
    },
    Action {
        name: "let netcat run a program",
        place: PlayTarget::Everywhere,
        needs: &["ncat", "busybox:nc"],
        script: r#"busybox nc -l -p 4444 </dev/null & up 115C &&
            ncat -e /bin/date 127.0.0.1 4444; wait"#,
        expected: &["Netcat Remote Code Execution in Container"],
        allowed: &["Redirect STDOUT/STDIN to Network Connection in Container"],
        twin: r#"busybox nc -l -p 4444 </dev/null & up 115C &&
            echo hello | ncat --send-only 127.0.0.1 4444; wait"#,
    },
    Action {
        name: "drop a program in /tmp and run it",
        place: PlayTarget::Everywhere,
        needs: &["cp"],
        script: "cp /bin/true /tmp/dropped && /tmp/dropped",
        expected: &["Execution from a temporary directory"],
        allowed: &[],
        twin: "cp /bin/true /tmp/kept && cat /tmp/kept",
    },
    Action {
        name: "drop a program in /dev/shm and run it",
        place: PlayTarget::Everywhere,
        needs: &["cp"],
        script: "cp /bin/true /dev/shm/dropped && /dev/shm/dropped",
        expected: &["Execution from /dev/shm"],
        allowed: &[],
        twin: "cp /bin/true /dev/shm/kept && cat /dev/shm/kept",
    },
    Action {
        name: "run a program that is not of the image",
        place: PlayTarget::Container,
        needs: &["cp"],
        script: "cp /bin/true /opt/dropped && /opt/dropped",
        expected: &["Drop and execute new binary in container"],
        allowed: &[],
        twin: "cp /bin/true /opt/kept && true && /bin/true",
    },
    Action {
        name: "run a program from memory (memfd)",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e '$fd = syscall($ENV{NR_memfd_create} + 0, $name = "x", 0); die if $fd < 0;
            open my $f, "<", "/bin/true"; binmode $f; undef $/; $code = <$f>;
            syscall($ENV{NR_write} + 0, $fd, $code, length $code);
            exec { "/proc/self/fd/$fd" } "kworker"'"#,
        expected: &["Fileless execution via memfd_create"],
        allowed: &[],
        twin: r#"perl -e 'syscall($ENV{NR_memfd_create} + 0, $name = "x", 0); exec "true"'"#,
    },
    Action {
        name: "use the package manager",
        place: PlayTarget::Everywhere,
        needs: &["dpkg", "dpkg-deb"],
        script: "dpkg --force-unsafe-io --force-depends -i /srv/demo.deb",
        expected: &["Launch Package Management Process in Container"],
        allowed: &[],
        twin: "cat /srv/demo.deb",
    },
    Action {
        name: "link to the password hashes",
        place: PlayTarget::Everywhere,
        needs: &["ln"],
        script: "ln -s /etc/shadow /tmp/innocent; ln /etc/shadow /tmp/innocent2",
        expected: &[
            "Create Symlink Over Sensitive Files",
            "Create Hardlink Over Sensitive Files",
        ],
        allowed: &[],
        twin: "ln -s /etc/hostname /tmp/harmless; ln /tmp/harmless /tmp/harmless2",
    },
    Action {
        name: "look for private keys",
        place: PlayTarget::Everywhere,
        needs: &["find", "grep"],
        script: "find /srv -name id_rsa; grep -r 'BEGIN RSA PRIVATE' /srv/www",
        expected: &["Search Private Keys or Passwords"],
        allowed: &[],
        twin: "find /srv -name index.html; grep -r hello /srv/www",
    },
    Action {
        name: "look for cloud keys",
        place: PlayTarget::Everywhere,
        needs: &["grep"],
        script: "grep -ri aws_secret_access_key /srv/www",
        expected: &["Find AWS Credentials"],
        allowed: &[],
        twin: "grep -ri aws /srv/www",
    },
    Action {
        name: "empty a log",
        place: PlayTarget::Everywhere,
        needs: &[],
        script: ": >/var/log/demo.log",
        expected: &["Clear Log Activities"],
        allowed: &[],
        twin: "echo 'one more line' >>/var/log/demo.log",
    },
    Action {
        name: "delete a log",
        place: PlayTarget::Everywhere,
        needs: &["rm"],
        script: "rm /var/log/demo.log",
        expected: &["Delete log files"],
        allowed: &[],
        twin: "echo x >/tmp/demo.log; rm /tmp/demo.log",
    },
    Action {
        name: "delete the shell's history",
        place: PlayTarget::Everywhere,
        needs: &["rm"],
        script: "cd && rm .bash_history",
        expected: &["Delete or rename shell history"],
        allowed: &[],
        twin: "cd && rm notes",
    },
    Action {
        name: "add a key to an account",
        place: PlayTarget::Everywhere,
        needs: &[],
        script: "echo 'ssh-ed25519 AAAA' >>~/.ssh/authorized_keys",
        expected: &["Adding ssh keys to authorized_keys"],
        allowed: &[],
        twin: "cat ~/.ssh/authorized_keys; echo 'localhost' >>~/.ssh/known_hosts",
    },
    Action {
        name: "schedule a command",
        place: PlayTarget::Container,
        needs: &["mkdir"],
        script: "mkdir -p /etc/cron.d; echo '* * * * * root true' >/etc/cron.d/demo",
        expected: &["Schedule Cron Jobs"],
        allowed: &[],
        twin: "cat /etc/cron.d/demo",
    },
    Action {
        name: "let a file lend root's rights",
        place: PlayTarget::Everywhere,
        needs: &["chmod"],
        script: "chmod u+s /srv/tool",
        expected: &["Set Setuid or Setgid bit"],
        allowed: &[],
        twin: "chmod 755 /srv/tool",
    },
    Action {
        name: "put a program below /usr/bin",
        place: PlayTarget::Container,
        needs: &["cp", "mv"],
        script: "cp /bin/true /usr/bin/demo-tool; cp /bin/true /srv/t; mv /srv/t /usr/local/bin/t",
        expected: &["Write below binary dir"],
        allowed: &[],
        twin: "cp /usr/bin/env /srv/t2; mv /srv/t2 /srv/t3",
    },
    Action {
        name: "change the system's configuration",
        place: PlayTarget::Container,
        needs: &[],
        script: "echo '127.0.0.1 update.example' >>/etc/hosts.demo",
        expected: &["Write below etc"],
        allowed: &[],
        twin: "cat /etc/hosts.demo",
    },
    Action {
        name: "take over a process by ptrace",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e '$pid = fork; if (!$pid) { sleep 5; exit }
            syscall($ENV{NR_ptrace} + 0, 16, $pid, 0, 0); waitpid $pid, 0; kill 9, $pid; waitpid $pid, 0'"#,
        expected: &["PTRACE attached to process"],
        allowed: &[],
        twin: r#"perl -e '$pid = fork; if (!$pid) { sleep 5; exit } kill 9, $pid; waitpid $pid, 0'"#,
    },
    Action {
        name: "keep debuggers away",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e 'syscall($ENV{NR_ptrace} + 0, 0, 0, 0, 0)'"#,
        expected: &["PTRACE anti-debug attempt"],
        allowed: &[],
        twin: "perl -e 'getppid'",
    },
    Action {
        name: "write into another process",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e '$text = "x" x 8; $part = pack "PQ", $text, 8;
            $pid = fork; if (!$pid) { sleep 5; exit }
            syscall($ENV{NR_process_vm_writev} + 0, $pid, $part, 1, $part, 1, 0);
            kill 9, $pid; waitpid $pid, 0'"#,
        expected: &["Write to memory of another process"],
        allowed: &[],
        twin: r#"perl -e 'open my $f, "<", "/proc/self/maps"; print <$f>'"#,
    },
    Action {
        name: "become root again",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e '$> = 1000; $> = 0'"#,
        expected: &["Become root without a login program"],
        allowed: &[],
        twin: "perl -e '$> = 1000'",
    },
    Action {
        name: "make a namespace",
        place: PlayTarget::Everywhere,
        needs: &["unshare", "nice"],
        script: "unshare --user true",
        expected: &["Change thread namespace"],
        allowed: &[],
        twin: "nice true",
    },
    Action {
        name: "mount something",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e 'syscall($ENV{NR_mount} + 0, $d = "tmpfs", $p = "/tmp", $t = "tmpfs", 0, 0)'"#,
        expected: &["Mount in container"],
        allowed: &[],
        twin: "cat /proc/self/mounts",
    },
    Action {
        name: "listen below IP",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: "perl -e 'socket my $s, 17, 3, 0x0300'",
        expected: &["Packet socket created in container"],
        allowed: &[],
        twin: "perl -e 'socket my $s, 2, 2, 0'",
    },
    Action {
        name: "load a kernel module",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e 'syscall($ENV{NR_init_module} + 0, $m = "no module", 9, $o = "")'"#,
        expected: &["Load kernel module"],
        allowed: &[],
        twin: "cat /proc/modules",
    },
    Action {
        name: "set up io_uring",
        place: PlayTarget::Everywhere,
        needs: &["perl"],
        script: r#"perl -e '$p = "\0" x 120; syscall($ENV{NR_io_uring_setup} + 0, 4, $p)'"#,
        expected: &["Set up io_uring"],
        allowed: &[],
        twin: "perl -e 'select undef, undef, undef, 0.001'",
    },
    Action {
        name: "destroy a file for good",
        place: PlayTarget::Everywhere,
        needs: &["shred"],
        script: "cp /etc/passwd /tmp/victim; shred -u /tmp/victim",
        expected: &["Remove Bulk Data from Disk"],
        allowed: &[],
        twin: "cp /etc/passwd /tmp/victim; rm /tmp/victim",
    },
];

/// System calls that scripts name by number, which depends on the architecture.
pub(crate) const NUMBERS: &[&str] = &[
    "init_module",
    "io_uring_setup",
    "memfd_create",
    "mount",
    "process_vm_writev",
    "ptrace",
    "write",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rules that the demo runs with.
    const BUILTIN: &str = include_str!("../../../../rules/default.yaml");

    #[test]
    fn every_rule_that_is_named_exists_and_names_are_unique() {
        let (ruleset, _) = rules::Loader::new().add("default.yaml", BUILTIN).finish();
        let rules: BTreeSet<&str> = ruleset.rules.iter().map(|rule| &*rule.name).collect();
        for action in ACTIONS {
            assert!(!action.expected.is_empty(), "{}", action.name);
            for rule in action.expected.iter().chain(action.allowed) {
                assert!(rules.contains(rule), "{}: {rule}", action.name);
            }
        }
        let names: BTreeSet<_> = ACTIONS.iter().map(|action| action.name).collect();
        assert_eq!(names.len(), ACTIONS.len());
    }

    #[test]
    fn numbers_that_scripts_use_are_provided_and_known() {
        for action in ACTIONS {
            for text in [action.script, action.twin] {
                for used in text.split("NR_").skip(1) {
                    let name = used.split('}').next().unwrap();
                    assert!(NUMBERS.contains(&name), "{}: {name}", action.name);
                }
            }
        }
        for name in NUMBERS {
            assert!(abi::Syscall::from_name(name).is_some(), "{name}");
        }
    }
}
