//! Code that nobody installed: programs that hide, scripts, commands of interpreters.

use super::*;

cases! {
misleading_name => Case {
    rule: "Misleading program name",
    fires: &[
        act("sleep", &["bash", "-c", "exec -a '[kworker/0:1]' sleep 0.1"]).by(&[User])
            .showing(&[("proc.exe", "[kworker/0:1]")]),
        act("photo.png", sh!("cp /bin/true %W/photo.png; %W/photo.png")),
        act("true", sh!("mkdir %W/...; cp /bin/true %W/...; %W/.../true")),
    ],
    near_misses: &[
        act("[", &["[", "1", "-eq", "1", "]"]).at(&[Host]),
        act("cat", sh!(": > %W/photo.png; cat %W/photo.png")),
    ],
};

run_from_data_directory => Case {
    rule: "Program run from a directory for data",
    // A file system of its own: its programs are not of the container's upper layer.
    fires: &[act("x", sh!("mkdir /var/www; busybox mount -t tmpfs none /var/www",
            "cp /bin/true /var/www/x; /var/www/x")).showing(&[("proc.exepath", "/var/www/x")])],
    near_misses: &[
        act("x", sh!("cp /bin/true /dev/shm/x; /dev/shm/x")),
        // The program of a script is its interpreter.
        act("x", sh!("mkdir /etc/cron.daily; echo '#!/bin/sh' > /etc/cron.daily/x",
            "chmod +x /etc/cron.daily/x; /etc/cron.daily/x")),
        act("x", sh!("cp /bin/true /etc/x; cp /bin/bash %W/dpkg; %W/dpkg -c '/etc/x; :'")),
    ],
};

library_in_temporary_directory => Case {
    rule: "Library loaded from a temporary directory",
    fires: &[
        act("ls", sh!("cp /lib/*/libm.so.6 /tmp/x.so; LD_PRELOAD=/tmp/x.so ls")).by(&[User])
            .showing(&[("fd.name", "/tmp/x.so")]),
    ],
    near_misses: &[
        act("cat", sh!("cp /lib/*/libm.so.6 /tmp/x.so; cat /tmp/x.so > %W/copy")),
        act("ls", sh!("mkdir /tmp/d; cp /lib/*/libm.so.6 /tmp/d/x.so; LD_PRELOAD=/tmp/d/x.so ls")),
    ],
};

library_preloaded => Case {
    rule: "Library preloaded from a writable directory",
    fires: &[
        act("ls", sh!("mkdir -p /tmp/a/b; cp /lib/*/libm.so.6 /tmp/a/b/x.so; LD_PRELOAD=/tmp/a/b/x.so ls")).by(&[User])
            .showing(&[("proc.env[LD_PRELOAD]", "/tmp/a/b/x.so")]),
        act("ls", sh!("cp /lib/*/libm.so.6 /dev/shm/x.so; LD_AUDIT=/dev/shm/x.so ls || :")).at(&[Host, Below]),
        act("ls", sh!("mkdir /tmp/a; cp /lib/*/libm.so.6 /tmp/a/x.so; cd /tmp/a; LD_PRELOAD=libdl.so.2:./x.so ls")),
    ],
    near_misses: &[
        act("ls", sh!("cd /tmp; LD_PRELOAD=libm.so.6 ls; LD_LIBRARY_PATH=/tmp/a ls; cd /usr; LD_PRELOAD=lib/x.so ls")),
        act("ls", sh!("ln -s /bin/bash /usr/bin/make; make -c 'LD_PRELOAD=/tmp/a/x.so ls; :'")),
    ],
};

script_in_temporary_directory => Case {
    rule: "Script run from a temporary directory",
    fires: &[
        act("go", sh!("echo '#!/bin/sh' > /tmp/go; chmod +x /tmp/go; /tmp/go")).by(&[User]),
        act("bash", sh!("echo : > /tmp/go; bash -ex /tmp/go /opt/x")),
        act("sh", sh!("echo : > /tmp/go; cd /tmp; sh ./go")),
    ],
    near_misses: &[
        act("sh", sh!("mkdir /tmp/d; echo : > /tmp/d/go; sh /tmp/d/go; cd /tmp; sh d/go")),
        act("awk", &["awk", "/tmp/ {print}", "/dev/null"]).at(&[Host]),
        act("python3", sh!("printf '#!/usr/bin/env sh\n:\n' > %W/python3; chmod +x %W/python3; cd /tmp; %W/python3")),
        act("perl", sh!(": > /tmp/go; cat /tmp/go; cd /tmp; cat go; perl -e 1; perl -Mstrict -e 1")),
    ],
};

shell_fed_by_pipe => Case {
    rule: "Shell reads its commands from a pipe",
    fires: &[
        act("sh", sh!("echo : | sh")).at(&[Host]).by(&[User]).showing(&[("proc.cmdline", "sh")]),
        act("bash", sh!("echo : | bash -s x; echo : | bash -ex")),
    ],
    near_misses: &[
        act("sh", sh!("echo : > %W/script; sh < %W/script; echo : | sh %W/script; echo : | sh -ec 'read line'")),
        act("sh", perl_named!("sshd", "open my $pipe, q(|-), q(sh) or die; close $pipe")),
    ],
};

inline_program => Case {
    rule: "Inline program opens a shell or a connection",
    fires: &[
        act("perl", sh!("perl -e 'exec \"/bin/sh\", \"-c\", \":\"'")).at(&[Host]).by(&[User]),
        act("perl", perl!("use MIME::Base64; print decode_base64(q(aWQK))")),
    ],
    near_misses: &[
        act("perl", sh!("perl -e 'print q(/bin/sh)'; perl -e 'system q(date)'; perl -e 'socket(S, 2, 2, 17)'",
            "echo 'exec q(/bin/sh), q(-c), q(:)' > %W/x; perl %W/x")),
    ],
};

shell_from_text_tool => Case {
    rule: "Shell started by a text tool",
    fires: &[
        act("sh", sh!("find /etc/hosts -exec sh ';' < /dev/null")).by(&[User])
            .showing(&[("proc.pname", "find"), ("proc.cmdline", "sh")]),
        act("sh", sh!("awk 'BEGIN {system(\"/bin/sh\")}' < /dev/null")).at(&[Host])
            .showing(&[("proc.cmdline", "sh -c /bin/sh")]),
    ],
    near_misses: &[
        act("find", sh!("find /etc/hosts -exec sh -c 'echo {}' ';'")),
        act("awk", sh!("awk 'BEGIN {system(\"date +%s\")}' < /dev/null")).at(&[Host]),
        act("sh", sh!("env sh < /dev/null; nice sh < /dev/null")),
    ],
};

netcat_on_host => Case {
    rule: "Netcat runs a program on the host",
    fires: &[
        act("ncat", &["ncat", "-e", "/bin/true", "127.0.0.1", "1"]).at(&[Host]).by(&[User]),
        act("socat", &["socat", "TCP:127.0.0.1:1", "EXEC:true"]).at(&[HostNetwork]),
        // Under another name, and as the last of several letters.
        act("x", sh!("cp /bin/true %W/ncat; ln -s %W/ncat %W/x; %W/x -nlve/bin/sh 4444")).at(&[Host]),
    ],
    near_misses: &[
        act("ncat", sh!("ncat --send-only -w 1 127.0.0.1 1; nc -z -C 127.0.0.1 1; socat TCP:127.0.0.1:1 STDOUT"))
            .at(&[Host]),
        act("ncat", &["ncat", "-e", "/bin/true", "127.0.0.1", "1"]),
    ],
};

command_handed_over => Case {
    rule: "Command handed to the service manager",
    fires: &[
        act("systemd-run", sh!("ln -s /bin/true %W/systemd-run; %W/systemd-run id")).at(&[Host]).by(&[User]),
        act("at", sh!("ln -s /bin/true %W/at; echo id | %W/at now")),
    ],
    near_misses: &[
        act("at", sh!("ln -s /bin/true %W/at; %W/at -l")),
        act("systemctl", sh!("ln -s /bin/true %W/systemctl; %W/systemctl start x")),
        act("systemd-run", sh!("ln -s /bin/true %W/systemd-run; cp /bin/bash %W/apt-get",
            "%W/apt-get -c '%W/systemd-run id; :'")),
    ],
};
}
