//! Each stable rule of Falco's, fired by a real program, with a twin that must not fire it.
//!
//! What the rule file says of a rule (priority, tags, fields of the output) is read from the file
//! by plain text search; what the fields must hold is in the table.

use std::collections::BTreeSet;

use e2e::Environment::{self, Below, Host, HostNetwork, Inside};
use e2e::Identity::{Docker, Root, User};
use e2e::{Case, act, need_root, skip, with_listener};

const ANYWHERE: &[Environment] = &[Host, Inside, Below];
const CONTAINER: &[Environment] = &[Inside, Below];

/// Serves /etc with nginx, and asks for /etc/shadow when `DELAY` seconds have passed.
/// The file of the stock rules; skips a test where there is none.
macro_rules! need_stock_rules {
    () => {
        match e2e::stock_rules_file() {
            Some(file) => file,
            None => skip!("needs Falco's stable rules beside the repository", || Ok(
                "../shared/reference/upstream/falco_rules.yaml is no file".to_owned()
            )),
        }
    };
}

macro_rules! nginx_serves_shadow_after {
    ($delay:literal) => {
        &[
            "sh",
            "-c",
            concat!(
                "mkdir %W/nginx && cd %W/nginx && cat > conf <<END\n",
                "daemon off; master_process off; pid %W/nginx/pid; error_log stderr;\n",
                "events {}\n",
                "http { access_log off; client_body_temp_path body; proxy_temp_path proxy;\n",
                "fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n",
                "server { listen 127.0.0.1:8080; root /etc; } }\n",
                "END\n",
                "nginx -p %W/nginx -c %W/nginx/conf & server=$!\n",
                "sleep ",
                $delay,
                "; busybox wget -q -O out http://127.0.0.1:8080/shadow; kill $server; wait\n",
                "grep -q app out"
            ),
        ]
    };
}

/// Serves %W/www with busybox's httpd, whose CGI programs can be anything, and asks for `PATH`.
macro_rules! httpd_is_asked_for {
    ($path:literal) => {
        &[
            "sh",
            "-c",
            concat!(
                "mkdir -p %W/www/cgi-bin && cd %W && ln -s /bin/sh www/cgi-bin/sh\n",
                "ln -s /usr/bin/env www/cgi-bin/env; echo page > www/page\n",
                "/opt/busybox/httpd -f -p 127.0.0.1:8081 -h %W/www & server=$!\n",
                "until grep -q ' 0A ' /proc/net/tcp; do sleep 0.02; done\n",
                "busybox wget -q -O out http://127.0.0.1:8081/",
                $path,
                "; kill $server; wait"
            ),
        ]
    };
}

/// Perl with a connected socket S, an open file F, and then the statement.
macro_rules! perl_connected {
    ($statement:literal) => {
        &[
            "sh",
            "-c",
            concat!(
                "echo | nc -l -N 127.0.0.1 4444 &\n",
                "until grep -q \" 0A \" /proc/net/tcp; do sleep 0.02; done\n",
                "perl -e 'use Socket; use POSIX; open F, \"<\", \"/etc/hosts\" or die;",
                "socket(S, PF_INET, SOCK_STREAM, 0) or die;",
                "connect(S, sockaddr_in(4444, inet_aton(\"127.0.0.1\"))) or die;",
                $statement,
                "' || exit 9\nwait"
            ),
        ]
    };
}

/// Perl that runs a copy of /bin/true from memory, or from the file that the statement opens.
macro_rules! perl_executes {
    ($open:literal) => {
        &[
            "perl",
            "-e",
            concat!(
                "$^F = 99; open I, '<', '/bin/true' or die; local $/; my $image = <I>;",
                $open,
                "binmode $f; print $f $image; $f->flush; exec {$path} 'payload' or die $!"
            ),
        ]
    };
}

macro_rules! cases {
    ($($name:ident => $case:expr;)*) => {
        $(#[test]
        fn $name() {
            const CASE: Case = $case;
            let file = need_stock_rules!();
            need_root!();
            let _reported = CASE.check(&file);
        })*

        #[test]
        fn every_stock_rule_has_a_case() {
            let file = need_stock_rules!();
            let named: BTreeSet<String> =
                e2e::stock_rules(&file).into_iter().map(|rule| rule.name).collect();
            let tested: BTreeSet<String> = [$({
                    const CASE: Case = $case;
                    CASE.rule.to_owned()
                }),*]
                .into();
            assert_eq!(named, tested);
            assert_eq!(named.len(), 25);
        }
    };
}

cases! {
directory_traversal => Case {
    rule: "Directory traversal monitored file read",
    fires: &[
        act("cat", &["cat", "/usr/bin/../../etc/hosts"]).at(ANYWHERE).showing(&[
            ("fd.name", "/etc/hosts"),
            ("fd.nameraw", "/usr/bin/../../etc/hosts"),
        // What is typed at a shell is left out.
        ]).apart_from_logins(),
        act("head", &["head", "../../../../../../etc/none"]).at(ANYWHERE).showing(&[
            ("fd.name", "/etc/none"),
            ("fd.nameraw", "../../../../../../etc/none"),
        ]).apart_from_logins(),
    ],
    near_misses: &[
        act("cat", &["cat", "/usr/../etc/hosts"]).at(ANYWHERE),
        act("cat", &["sh", "-c", "cat /usr/bin/../../etc/hosts; :"]).at(ANYWHERE),
        act("cat", &["cat", "/usr/bin/../../var/log-archive"]),
    ],
};

read_sensitive_file_after_startup => Case {
    rule: "Read sensitive file trusted after startup",
    fires: &[act("nginx", nginx_serves_shadow_after!("6")).at(CONTAINER).waiting().showing(&[
        ("fd.name", "/etc/shadow"),
        ("proc.pcmdline", "sh -c *"),
        ("proc.exepath", "/usr/sbin/nginx"),
    ])],
    near_misses: &[act("nginx", nginx_serves_shadow_after!("1")).at(CONTAINER).waiting()],
};

read_sensitive_file => Case {
    rule: "Read sensitive file untrusted",
    fires: &[
        act("cat", &["cat", "/etc/shadow"]).at(CONTAINER).showing(&[
            ("fd.name", "/etc/shadow"),
            ("proc.cmdline", "cat /etc/shadow"),
            ("proc.exepath", "/usr/bin/cat"),
        ]),
        act("cat", &["cat", "/etc/shadow"]).at(&[Host]).by(&[Root, Docker]).showing(&[
            ("fd.name", "/etc/shadow"),
        ]),
        // A relative path, and a link that only the kernel follows.
        act("tail", &["sh", "-c", "cd /etc && tail -n 1 shadow; :"]).showing(&[
            ("fd.name", "/etc/shadow"),
            ("proc.pname", "sh"),
        ]),
        act("perl", &["perl", "-e", "chdir '/etc'; my $name = 'shadow';
            syscall(257, -100, $name, 0) >= 0 or die"]).showing(&[("fd.name", "/etc/shadow")]),
    ],
    near_misses: &[
        act("cat", &["cat", "/etc/passwd"]).at(ANYWHERE),
        act("bash", &["bash", "-c", "read line < /etc/shadow"]).at(CONTAINER),
        act("cat", &["cat", "/etc/shadow"]).at(&[Host]).by(&[User]),
        act("sh", &["sh", "-c", "echo >> /etc/shadow"]).by(&[Root]),
    ],
};

run_shell_below_server => Case {
    rule: "Run shell untrusted",
    fires: &[act("sh", httpd_is_asked_for!("cgi-bin/sh")).at(CONTAINER).showing(&[
        ("proc.pname", "httpd"),
        ("proc.pexepath", "/usr/bin/busybox"),
        ("proc.pcmdline", "httpd -f -p 127.0.0.1:8081 *"),
        ("proc.exepath", "/usr/bin/*sh"),
    ])],
    near_misses: &[
        act("httpd", httpd_is_asked_for!("page")).at(CONTAINER),
        act("env", httpd_is_asked_for!("cgi-bin/env")).at(CONTAINER),
        act("bash", &["env", "bash", "-c", ":"]).at(ANYWHERE),
    ],
};

system_user_interactive => Case {
    rule: "System user interactive",
    fires: &[act("id", &["sh", "-c", "cp /usr/bin/timeout %W/sshd; %W/sshd 10 \
        setpriv --reuid=daemon --regid=daemon --clear-groups id"])
        .at(ANYWHERE).by(&[Root]).showing(&[
            ("user.name", "daemon"),
            ("user.uid", "1"),
            ("proc.pname", "sshd"),
            ("proc.cmdline", "id"),
            ("evt.type", "execve"),
        ])],
    near_misses: &[
        // A user who may log in; and one who may not, but not below sshd.
        act("id", &["sh", "-c", "cp /usr/bin/timeout %W/sshd; %W/sshd 10 \
            setpriv --reuid=1000 --regid=1000 --clear-groups id"])
            .at(ANYWHERE).by(&[Root]),
        act("id", &["timeout", "10", "setpriv", "--reuid=daemon", "--regid=daemon",
            "--clear-groups", "id"]).at(ANYWHERE).by(&[Root]),
    ],
};

terminal_shell => Case {
    rule: "Terminal shell in container",
    fires: &[act("bash", &["bash", "-c", ":"]).on_terminal().showing(&[
        ("proc.pname", "<NA>"),
        ("proc.cmdline", "bash -c :"),
        // It is about the first process of a container.
    ]).apart_from_logins()],
    near_misses: &[
        act("bash", &["bash", "-c", ":"]),
        act("bash", &["timeout", "--foreground", "9", "bash", "-c", ":"]).on_terminal(),
        act("bash", &["bash", "-c", ":"]).at(&[Host]).on_terminal(),
    ],
};

contact_api_server => Case {
    rule: "Contact K8S API Server From Container",
    // Names are looked up where the program is, so it has to be inside.
    fires: &[act("nc", &["nc", "-z", "-w1", "203.0.113.10", "6443"]).from_inside().showing(&[
        ("fd.name", "*203.0.113.10:6443"),
        ("fd.rport", "6443"),
        ("fd.type", "ipv4"),
        ("fd.l4proto", "tcp"),
        ("evt.type", "connect"),
    ])],
    near_misses: &[
        act("nc", &["nc", "-z", "-w1", "203.0.113.5", "6443"]).at(CONTAINER),
        act("nc", &["nc", "-z", "-w1", "127.0.0.1", "6443"]).at(CONTAINER),
    ],
};

netcat_with_program => Case {
    rule: "Netcat Remote Code Execution in Container",
    fires: &[
        act("nc", &["/opt/busybox/nc", "127.0.0.1", "4445", "-e", "/bin/sh"]).at(CONTAINER)
            .showing(&[("proc.cmdline", "nc 127.0.0.1 4445 -e /bin/sh"), ("evt.type", "execve")]),
        act("ncat", with_listener!("127.0.0.1 4446", "exit", "ncat --sh-exec sh 127.0.0.1 4446"))
            .at(CONTAINER)
            .showing(&[("proc.cmdline", "ncat --sh-exec sh 127.0.0.1 4446")]),
    ],
    near_misses: &[
        act("nc", &["nc", "-z", "-w1", "127.0.0.1", "4445"]).at(CONTAINER),
        act("ncat", &["ncat", "--version"]).at(CONTAINER),
        act("ncat", &["ncat", "-e", "/bin/sh", "127.0.0.1", "1"]).at(&[Host]),
    ],
};

search_private_keys => Case {
    rule: "Search Private Keys or Passwords",
    fires: &[
        act("grep", &["grep", "-r", "BEGIN RSA PRIVATE", "%W"]).at(ANYWHERE)
            .showing(&[("proc.cmdline", "grep -r BEGIN RSA PRIVATE *")]),
        act("find", &["find", "%W", "-name", "id_rsa"]).at(ANYWHERE)
            .showing(&[("proc.cmdline", "find * -name id_rsa")]),
    ],
    near_misses: &[
        act("grep", &["grep", "-r", "BEGIN CERTIFICATE", "%W"]).at(ANYWHERE),
        act("find", &["find", "%W", "-name", "id_card"]).at(ANYWHERE),
    ],
};

clear_log => Case {
    rule: "Clear Log Activities",
    fires: &[
        act("cp", &["cp", "/dev/null", "/var/log/auth.log"]).at(CONTAINER)
            .showing(&[("fd.name", "/var/log/auth.log"), ("evt.type", "openat")]),
        act("bash", &["bash", "-c", ": > %W/syslog"]).at(ANYWHERE)
            .showing(&[("fd.name", "*/syslog")]),
    ],
    near_misses: &[
        act("sh", &["sh", "-c", "echo more >> /var/log/auth.log"]).at(CONTAINER),
        act("bash", &["bash", "-c", ": > %W/system"]).at(ANYWHERE),
        act("cp", &["cp", "/var/log/auth.log", "%W/copy"]).at(CONTAINER),
    ],
};

remove_bulk_data => Case {
    rule: "Remove Bulk Data from Disk",
    fires: &[act("shred", &["sh", "-c", "echo x > %W/file; shred -u %W/file; :"]).at(ANYWHERE)
        .showing(&[("proc.cmdline", "shred -u *"), ("proc.pname", "sh"), ("evt.type", "execve")])],
    near_misses: &[
        act("dd", &["dd", "if=/dev/zero", "of=%W/file", "count=1"]).at(ANYWHERE),
        act("rm", &["rm", "-f", "%W/shred"]).at(ANYWHERE),
    ],
};

symlink_to_sensitive_file => Case {
    rule: "Create Symlink Over Sensitive Files",
    fires: &[
        act("ln", &["ln", "-s", "/etc/shadow", "%W/link"]).at(ANYWHERE).showing(&[
            ("evt.arg.target", "/etc/shadow"),
            ("evt.arg.linkpath", "*/link"),
            ("evt.type", "symlink*"),
        ]),
        act("perl", &["perl", "-e", "symlink('/root/', '%W/link') or die"]).at(ANYWHERE)
            .showing(&[("evt.arg.target", "/root/"), ("evt.type", "symlink")]),
    ],
    near_misses: &[
        act("ln", &["ln", "-s", "/etc/hostname", "%W/link"]).at(ANYWHERE),
        act("ln", &["ln", "-s", "shadow", "%W/link"]).at(ANYWHERE),
    ],
};

hardlink_to_sensitive_file => Case {
    rule: "Create Hardlink Over Sensitive Files",
    fires: &[act("ln", &["ln", "/etc/shadow", "%W/link"]).at(CONTAINER).showing(&[
        ("evt.arg.oldpath", "/etc/shadow"),
        ("evt.arg.newpath", "/var/tmp/e2e/link"),
        ("evt.type", "linkat"),
    ])],
    near_misses: &[
        act("ln", &["ln", "/etc/passwd", "%W/link"]).at(CONTAINER),
        act("ln", &["ln", "-s", "/etc/shadow", "%W/link"]).at(CONTAINER),
    ],
};

packet_socket => Case {
    rule: "Packet socket created in container",
    fires: &[
        act("arping", &["sh", "-c", "/opt/busybox/arping -c 1 -w 1 -I lo 203.0.113.77; :"])
            .at(CONTAINER).showing(&[("evt.type", "socket"), ("evt.args", "*AF_PACKET*")]),
        act("perl", &["perl", "-e", "socket(S, 17, 3, 0)"]).at(CONTAINER)
            .showing(&[("evt.args", "*AF_PACKET*")]),
    ],
    near_misses: &[
        act("perl", &["perl", "-e", "socket(S, 2, 2, 17) && socket(S, 10, 1, 6) && socket(S, 1, 1, 0) && socket(S, 16, 3, 0) or die"])
            .at(CONTAINER),
        act("perl", &["perl", "-e", "socket(S, 17, 3, 0)"]).at(&[Host]),
    ],
};

redirect_to_network => Case {
    rule: "Redirect STDOUT/STDIN to Network Connection in Container",
    fires: &[
        act("bash", with_listener!("127.0.0.1 4444", "exit",
            "bash -i >& /dev/tcp/127.0.0.1/4444 0>&1")).at(CONTAINER).showing(&[
                ("fd.type", "ipv4"),
                ("fd.name", "127.0.0.1:*->127.0.0.1:4444"),
                ("fd.rport", "4444"),
            ]),
        act("perl", perl_connected!("POSIX::dup2(fileno(S), 1) == 1 or die")).at(CONTAINER)
            .showing(&[("evt.type", "dup2"), ("fd.name", "127.0.0.1:*->127.0.0.1:4444")]),
        // The number that dup returns is the lowest free one, which closing made 0.
        act("perl", perl_connected!("POSIX::close(0); POSIX::dup(fileno(S)) == 0 or die"))
            .at(CONTAINER).showing(&[("evt.type", "dup"), ("fd.type", "ipv4")]),
    ],
    near_misses: &[
        act("perl", perl_connected!("POSIX::dup2(fileno(F), $_) == $_ or die for 0, 1, 2"))
            .at(CONTAINER),
        act("perl", perl_connected!("POSIX::dup(fileno(S)) > 2 or die; POSIX::dup2(fileno(S), 9) == 9 or die"))
            .at(CONTAINER),
        act("perl", perl_connected!("POSIX::close(0); POSIX::dup(fileno(F)) == 0 or die; POSIX::dup(fileno(S)) > 2 or die"))
            .at(CONTAINER),
    ],
};

kernel_module => Case {
    rule: "Linux Kernel Module Injection Detected",
    fires: &[act("insmod", &["sh", "-c", "cp /bin/true %W/junk.ko; insmod %W/junk.ko; :"])
        .at(CONTAINER).by(&[Root]).showing(&[
            ("proc.args", "/var/tmp/e2e/junk.ko"),
            ("evt.res", "E*"),
            ("evt.type", "*init_module"),
            ("proc.pexepath", "/usr/bin/*sh"),
        ])],
    near_misses: &[
        act("insmod", &["sh", "-c", "cp /bin/true %W/junk.ko; insmod %W/junk.ko; :"])
            .at(CONTAINER).by(&[Docker, User]),
        act("insmod", &["sh", "-c", "insmod %W/none.ko; :"]).at(CONTAINER).by(&[Root]),
    ],
};

debugfs => Case {
    rule: "Debugfs Launched in Privileged Container",
    fires: &[act("debugfs", &["debugfs", "-V"]).known().by(&[Root])
        .showing(&[("proc.cmdline", "debugfs -V"), ("evt.type", "execve")])],
    near_misses: &[
        act("debugfs", &["debugfs", "-V"]).known().by(&[Docker]),
        act("mke2fs", &["mke2fs", "-V"]).known().by(&[Root]),
        act("debugfs", &["debugfs", "-V"]).at(&[Host]).by(&[Root]),
    ],
};

release_agent => Case {
    rule: "Detect release_agent File Container Escapes",
    fires: &[act("bash", &["bash", "-c", "echo /cmd > %W/release_agent"]).at(CONTAINER).by(&[Root])
        .showing(&[
            ("fd.name", "/var/tmp/e2e/release_agent"),
            ("thread.cap_effective", "*CAP_SYS_ADMIN*"),
        ])],
    near_misses: &[
        act("bash", &["bash", "-c", "echo /cmd > %W/release_agent"]).at(CONTAINER)
            .by(&[Docker, User]),
        act("bash", &["bash", "-c", "echo /cmd > %W/release_agents"]).at(CONTAINER).by(&[Root]),
        act("bash", &["bash", "-c", "echo /cmd > %W/release_agent"]).at(&[Host]).by(&[Root]),
    ],
};

ptrace_attach => Case {
    rule: "PTRACE attached to process",
    fires: &[
        act("strace", &["sh", "-c", "sleep 1 & strace -qq -o %W/out -e trace=none -p $!; :"])
            .at(ANYWHERE).showing(&[("evt.type", "ptrace"), ("proc.pcmdline", "sh -c *")]),
        act("perl", &["perl", "-e", "my $child = fork // die; if (!$child) { sleep 9; exit }
            syscall(101, 16, $child, 0, 0) == 0 or die; kill 9, $child"]).at(ANYWHERE),
        // PTRACE_POKEDATA at nobody: an attempt.
        act("perl", &["perl", "-e", "syscall(101, 5, $$, 0, 0)"]).at(ANYWHERE),
    ],
    near_misses: &[
        act("perl", &["perl", "-e", "syscall(101, 0, 0, 0, 0)"]).at(ANYWHERE),
        act("perl", &["perl", "-e", "syscall(101, 7, $$, 0, 0)"]).at(ANYWHERE),
        act("strace", &["strace", "-V"]).at(ANYWHERE),
    ],
};

ptrace_traceme => Case {
    rule: "PTRACE anti-debug attempt",
    fires: &[act("perl", &["perl", "-e", "syscall(101, 0, 0, 0, 0) == 0 or die"]).at(ANYWHERE)
        .showing(&[("evt.type", "ptrace"), ("proc.cmdline", "perl -e *")])],
    near_misses: &[
        act("perl", &["perl", "-e", "syscall(101, 7, $$, 0, 0)"]).at(ANYWHERE),
        act("perl", &["perl", "-e", "my $child = fork // die; if (!$child) { sleep 9; exit }
            syscall(101, 16, $child, 0, 0) == 0 or die; kill 9, $child"]).at(ANYWHERE),
    ],
};

aws_credentials => Case {
    rule: "Find AWS Credentials",
    fires: &[
        act("grep", &["sh", "-c", "cd %W; grep -r aws_secret_access_key .; :"]).at(ANYWHERE)
            .showing(&[
                ("proc.cmdline", "grep -r aws_secret_access_key ."),
                ("proc.cwd", "/*"),
                ("group.gid", "*0"),
            ]),
        act("find", &["find", "%W", "-path", "x/.aws/credentials"]).at(ANYWHERE),
    ],
    near_misses: &[
        act("grep", &["grep", "-r", "aws_region", "%W"]).at(ANYWHERE),
        act("find", &["find", "%W", "-path", "x/.aws/config"]).at(ANYWHERE),
    ],
};

execution_from_shared_memory => Case {
    rule: "Execution from /dev/shm",
    fires: &[
        act("payload", &["sh", "-c", "cp /bin/true /dev/shm/payload; /dev/shm/payload; :"])
            .at(CONTAINER).showing(&[
                ("proc.exepath", "/dev/shm/payload"),
                ("proc.cmdline", "payload"),
                ("evt.res", "SUCCESS"),
            ]),
        act("payload", &["sh", "-c", "mkdir /dev/shm/d; cp /bin/true /dev/shm/d/payload; \
            cd /dev/shm/d; ./payload; :"]).at(CONTAINER).showing(&[("proc.cwd", "/dev/shm/d/")]),
        act("sh", &["sh", "-c", "echo : > /dev/shm/script; sh /dev/shm/script; :"]).at(CONTAINER),
    ],
    near_misses: &[
        act("payload", &["sh", "-c", "cp /bin/true %W/payload; %W/payload; :"]).at(CONTAINER),
        act("true", &["sh", "-c", "cd /dev/shm; true; /bin/true; :"]).at(CONTAINER),
    ],
};

drop_and_execute => Case {
    rule: "Drop and execute new binary in container",
    fires: &[
        act("new", &["sh", "-c", "cp /bin/true %W/new; %W/new; :"]).at(CONTAINER).showing(&[
            ("proc.exepath", "/var/tmp/e2e/new"),
            ("proc.pname", "sh"),
            ("evt.type", "execve"),
        ]),
        // Replacing a file of the image puts it into the upper layer.
        act("false", &["sh", "-c", "cp /bin/true %W/f; mv %W/f /usr/bin/false; /usr/bin/false; :"])
            .at(CONTAINER).by(&[Root, Docker]).showing(&[("proc.exepath", "/usr/bin/false")]),
    ],
    near_misses: &[
        act("true", &["env", "true"]).at(CONTAINER),
        act("new", &["sh", "-c", "cp /bin/true /dev/shm/new; /dev/shm/new; :"]).at(CONTAINER),
        act("new", &["sh", "-c", "cp /bin/true %W/new; %W/new; :"]).at(&[Host]),
    ],
};

ssh_on_other_port => Case {
    rule: "Disallowed SSH Connection Non Standard Port",
    fires: &[
        act("ssh", with_listener!("203.0.113.5 443", "no ssh", "ssh -o BatchMode=yes -p 443 203.0.113.5"))
            .at(&[HostNetwork, Inside, Below]).by(&[Root, Docker]).showing(&[
                ("fd.name", "*203.0.113.5:443"),
                ("fd.rport", "443"),
                ("fd.l4proto", "tcp"),
                ("proc.cmdline", "ssh -o BatchMode=yes -p 443 203.0.113.5"),
            ]),
        act("ssh", with_listener!("203.0.113.5 443", "no ssh", "ssh -o BatchMode=yes -o ConnectTimeout=5 -p 443 203.0.113.5"))
            .at(CONTAINER).showing(&[("fd.rport", "443")]),
    ],
    near_misses: &[
        act("ssh", with_listener!("203.0.113.5 2222", "no ssh", "ssh -o BatchMode=yes -p 2222 203.0.113.5"))
            .at(CONTAINER),
        act("ssh", with_listener!("127.0.0.1 443", "no ssh", "ssh -o BatchMode=yes -p 443 127.0.0.1"))
            .at(CONTAINER),
        // Nobody listens: the call fails.
        act("ssh", &["ssh", "-o", "BatchMode=yes", "-p", "443", "203.0.113.5"]).at(CONTAINER),
        act("nc", with_listener!("203.0.113.5 443", "no ssh", "nc -N 203.0.113.5 443 < /dev/null"))
            .at(CONTAINER),
    ],
};

fileless_execution => Case {
    rule: "Fileless execution via memfd_create",
    fires: &[act("*", perl_executes!("use IO::Handle; my $name = 'name'; \
            my $fd = syscall(319, $name, 0); open my $f, '>&=', $fd or die; \
            my $path = \"/proc/self/fd/$fd\";"))
        .at(ANYWHERE).showing(&[
            ("proc.exepath", "*memfd:name*"),
            ("evt.res", "SUCCESS"),
            ("evt.type", "execve"),
        ])],
    near_misses: &[
        act("file", &["sh", "-c", "cp /bin/true %W/file; %W/file; :"]).at(ANYWHERE),
        act("perl", &["perl", "-e", "my $name = 'name'; syscall(319, $name, 0) >= 0 or die"])
            .at(ANYWHERE),
    ],
};
}
