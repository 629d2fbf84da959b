//! Staying on a machine, blinding what watches it, and covering tracks.

use super::*;

cases! {
change_account => Case {
    rule: "Account changed by hand",
    fires: &[
        act("useradd", sh!("ln -s /bin/true %W/useradd; %W/useradd -o -u 0 x")).at(&[Host]),
        act("passwd", sh!("ln -s /bin/true %W/passwd; %W/passwd app")),
    ],
    near_misses: &[
        act("useradd", sh!("ln -s /bin/true %W/useradd; cp /bin/bash %W/dpkg; cp /bin/bash %W/puppet",
            "%W/dpkg -c '%W/useradd x; :'; %W/puppet -c '%W/useradd x; :'")),
        act("passwd", sh!("ln -s /bin/true %W/passwd; %W/passwd; ln -s /bin/true %W/chage; %W/chage -l app")).by(&[User]),
    ],
};

hook_of_python => Case {
    rule: "Hook into the start of Python",
    fires: &[
        act("sh", sh!("mkdir -p %W/site-packages; echo > %W/site-packages/x.pth")).at(&[Host]).by(&[User])
            .showing(&[("fd.name", "*/site-packages/x.pth")]),
        act("mv", sh!("echo > %W/x; mv %W/x %W/usercustomize.py"))
            .showing(&[("evt.arg.newpath", "*/usercustomize.py")]),
    ],
    near_misses: &[
        act("sh", sh!("mkdir -p %W/site-packages; echo > %W/site-packages/x.py; echo > %W/x.pth")),
        act("pip3", sh!("mkdir -p %W/site-packages; cp /bin/cp %W/pip3; echo > %W/x",
            "%W/pip3 %W/x %W/site-packages/x.pth")),
        act("python3", &["/usr/bin/python3", "-m", "venv", "--without-pip", "%W/env"]).at(&[Host]),
    ],
};

hook_of_git => Case {
    rule: "Git hook written",
    fires: &[
        act("sh", sh!("mkdir -p %W/.git/hooks; echo > %W/.git/hooks/pre-commit")).by(&[User])
            .showing(&[("fd.name", "*/.git/hooks/pre-commit")]),
        act("ln", sh!("mkdir -p %W/.git/hooks; ln -s %W/x %W/.git/hooks/post-merge"))
            .showing(&[("evt.arg.linkpath", "*/.git/hooks/post-merge")]),
    ],
    near_misses: &[
        act("sh", sh!("mkdir -p %W/.git/hooks; echo > %W/.git/hooks/pre-commit.sample; echo > %W/.git/config")),
        act("sh", sh!("mkdir -p %W/.git/hooks; echo > %W/.git/hooks/pre-commit")).at(&[Host]).on_terminal(),
        act("git", &["git", "init", "-q", "%W/r"]).at(&[Host]),
    ],
};

script_among_web_pages => Case {
    rule: "Script placed among web pages",
    fires: &[
        act("sh", sh!("mkdir -p /var/www/html; echo > /var/www/html/x.php"))
            .showing(&[("fd.name", "/var/www/html/x.php")]),
        act("mv", sh!("mkdir -p /var/www/html; echo > %W/x; mv %W/x /var/www/html/x.jsp"))
            .showing(&[("evt.arg.newpath", "/var/www/html/x.jsp")]),
        act("perl", perl_named!("nginx",
            "mkdir q(/srv/www) if mkdir q(/srv); system q(perl), q(-e), q(open my $file, q(>), q(/srv/www/x.php) or die)")),
    ],
    near_misses: &[
        act("sh", sh!("mkdir -p /var/www/html; echo > /var/www/html/x.html; echo > %W/x.php")),
        act("deploy", perl_named!("deploy",
            "mkdir q(/srv/www) if mkdir q(/srv); open my $file, q(>), q(/srv/www/x.php) or die")),
    ],
};

certificate_authority => Case {
    rule: "Certificate authority added",
    fires: &[
        act("cp", sh!("mkdir -p /usr/local/share/ca-certificates",
            "cp /etc/hosts /usr/local/share/ca-certificates/x.crt"))
            .showing(&[("fd.name", "/usr/local/share/ca-certificates/x.crt")]),
        act("ln", sh!("mkdir -p /usr/local/share/ca-certificates",
            "ln -s %W/x /usr/local/share/ca-certificates/y.crt"))
            .showing(&[("evt.arg.linkpath", "/usr/local/share/ca-certificates/y.crt")]),
    ],
    near_misses: &[
        act("dpkg", sh!("mkdir -p /usr/share/ca-certificates; cp /bin/cp %W/dpkg",
            "%W/dpkg /etc/hosts /usr/share/ca-certificates/x.crt")),
    ],
};

stop_security_service => Case {
    rule: "Security service stopped",
    // A stand-in: no process of this machine is looked for.
    fires: &[
        act("systemctl", sh!("ln -s /bin/true %W/systemctl; %W/systemctl kill -s KILL falco HUP")),
        act(concat!("p", "kill"), sh!("name=p; name=${name}kill; ln -s /bin/true %W/$name; %W/$name -9 falco")).at(&[Host]).by(&[User]),
    ],
    near_misses: &[
        // The last is how logrotate has rsyslog open its log again.
        act("systemctl", sh!("ln -s /bin/true %W/systemctl; %W/systemctl stop cron; %W/systemctl restart auditd",
            "%W/systemctl status auditd; %W/systemctl unmask auditd; %W/systemctl kill -s HUP rsyslog.service")),
        act(concat!("p", "kill"), sh!("name=p; name=${name}kill; ln -s /bin/true %W/$name",
            "%W/$name -HUP rsyslogd; %W/$name -9 cron")).at(&[Host]),
    ],
};

audit_rules => Case {
    rule: "Audit rules changed",
    fires: &[
        act("auditctl", sh!("ln -s /bin/true %W/auditctl; %W/auditctl -D")).at(&[Host]),
        act("auditctl", sh!("ln -s /bin/true %W/auditctl; %W/auditctl -R /opt/rules")),
    ],
    near_misses: &[
        act("auditctl", sh!("ln -s /bin/true %W/auditctl; %W/auditctl -l; %W/auditctl -s",
            "%W/auditctl -R /etc/audit/audit.rules")),
        act("auditctl", sh!("ln -s /bin/true %W/auditctl; cp /bin/bash %W/augenrules",
            "%W/augenrules -c '%W/auditctl -D; :'")),
    ],
};

open_firewall => Case {
    rule: "Firewall opened",
    fires: &[
        act("iptables", sh!("ln -s /bin/true %W/iptables; %W/iptables -t nat -F")).at(&[Host]),
        act("nft", sh!("ln -s /bin/true %W/nft; %W/nft flush ruleset")),
    ],
    near_misses: &[
        act("iptables", sh!("ln -s /bin/true %W/iptables; %W/iptables -L DOCKER-FORWARD; %W/iptables -A INPUT -j DROP")),
        act("nft", sh!("ln -s /bin/true %W/nft; %W/nft list ruleset; ln -s /bin/true %W/ufw; %W/ufw status verbose")),
        act("iptables", sh!("ln -s /bin/true %W/iptables; cp /bin/bash %W/dockerd; %W/dockerd -c 'sh -c \"%W/iptables -F; :\"; :'")),
    ],
};

weaken_kernel => Case {
    rule: "Protection of the kernel weakened",
    fires: &[
        // Opened, but nothing is written: the host has this file too.
        act("perl", perl!("open my $f, '+<', '/proc/sys/kernel/randomize_va_space' or die"))
            .showing(&[("fd.name", "/proc/sys/kernel/randomize_va_space")]),
        act("setenforce", sh!("ln -s /bin/true %W/setenforce; %W/setenforce 0")),
    ],
    near_misses: &[
        act("systemd-sysctl", perl_named!("systemd-sysctl",
            "open my $f, q(+<), q(/proc/sys/kernel/randomize_va_space) or die")),
        act("setenforce", sh!("ln -s /bin/true %W/setenforce; %W/setenforce 1",
            "perl -e 'open my $f, q(+<), q(/proc/sys/kernel/threads-max) or die'")),
    ],
};

log_led_to_nowhere => Case {
    rule: "Log or history led to nowhere",
    fires: &[
        act("ln", sh!("ln -s /dev/null %W/.bash_history")).at(&[Host]).by(&[User])
            .showing(&[("evt.arg.linkpath", "*/.bash_history")]),
        // The link gets a name of its own first.
        act("ln", sh!("cd /var/log; ln -sf /dev/null auth.log")).showing(&[("evt.arg.linkpath", "/var/log/*")]),
    ],
    near_misses: &[
        act("ln", sh!("ln -s /dev/null %W/x; ln -s %W/x %W/.zsh_history",
            ": > /var/log/current; ln -sf auth.log /var/log/current")),
    ],
};

shell_without_history => Case {
    rule: "Shell started without a history",
    fires: &[
        act("bash", sh!("HISTFILE=/dev/null bash -c :")).at(&[Host]).by(&[User])
            .showing(&[("proc.env[HISTFILE]", "/dev/null")]),
        act("bash", sh!("HISTSIZE=0 bash -c :")),
    ],
    near_misses: &[
        act("bash", sh!("HISTFILE=%W/x HISTSIZE=01000 OTHER_HISTSIZE=0 bash -c :")),
        act("id", sh!("HISTFILE=/dev/null id")),
    ],
};

remove_journal_or_mail => Case {
    rule: "Journal or mail removed",
    fires: &[
        act("rm", sh!("mkdir /var/mail; echo >> /var/mail/root; cd /var/mail; rm root"))
            .showing(&[("fs.path.name", "/var/mail/root")]),
        act("journalctl", sh!("ln -s /bin/true %W/journalctl; %W/journalctl --vacuum-time=1s")),
    ],
    near_misses: &[
        act("sh", sh!("mkdir /var/mail; echo line >> /var/mail/root; mkdir /var/mails; : > /var/mails/x")),
        act("procmail", perl_named!("procmail",
            "mkdir q(/var/mail); open my $f, q(>>), q(/var/mail/root) or die; unlink q(/var/mail/root) or die")),
        act("journalctl", sh!("ln -s /bin/true %W/journalctl; %W/journalctl -n 5; %W/journalctl --rotate")),
    ],
};

time_of_file => Case {
    rule: "Time of a file set by hand",
    fires: &[
        act("touch", sh!("touch -t 197001010000 %W/x")).at(&[Host]).by(&[User]),
        act("touch", sh!("touch -cmr /etc/hosts %W/x")),
    ],
    near_misses: &[
        act("touch", sh!("touch -c -a %W/part %W/x-d; touch -am %W/x")),
        act("touch", sh!("cp /bin/bash %W/make; %W/make -c 'touch -t 197001010000 %W/x; :'",
            "cp /bin/bash %W/cron; %W/cron -c 'touch -r /etc/hosts %W/x; :'")),
    ],
};

set_clock => Case {
    rule: "Clock of the machine set",
    fires: &[
        act("date", sh!("ln -s /bin/true %W/date; %W/date -s 2020-01-01")).at(&[Host]).by(&[User]),
        // settimeofday of a time zone alone, which is UTC: no clock changes.
        act("perl", perl!("my $zone = pack 'll', 0, 0; syscall(164, 0, $zone) == 0 or die"))
            .showing(&[("evt.type", "settimeofday")]),
    ],
    near_misses: &[
        act("date", sh!("ln -s /bin/true %W/date; %W/date +%s; %W/date -u -d 2020-01-01")),
        act("perl", perl!("my $zone = pack 'll', 0, 0; syscall(164, 0, $zone) == 0 and die")).by(&[User]),
        act("ntpd", perl_named!("ntpd", "my $zone = pack q(ll), 0, 0; syscall(164, 0, $zone) == 0 or die")),
    ],
};

remove_configuration => Case {
    rule: "Configuration removed",
    fires: &[
        act("rm", sh!("cd /etc; rm hosts")).showing(&[("fs.path.name", "/etc/hosts")]),
        act("mv", sh!("mv /etc/group %W/x")).showing(&[("fs.path.source", "/etc/group")]),
    ],
    near_misses: &[
        act("rm", sh!("rm /etc/hostname; echo > /etc/hosts.new; rm /etc/hosts.new")),
        // As sed -i does.
        act("mv", sh!("mkdir -p /etc/ssh; echo > /etc/ssh/sedX; echo > /etc/ssh/x; mv /etc/ssh/sedX /etc/ssh/x")),
        act("dpkg", sh!("cp /bin/rm %W/dpkg; %W/dpkg /etc/hosts")),
        act("systemctl", sh!("mkdir -p /etc/systemd/system; echo > /etc/systemd/system/x; cp /bin/rm %W/systemctl",
            "%W/systemctl /etc/systemd/system/x")),
    ],
};

remove_program => Case {
    rule: "Modify binary dirs",
    fires: &[
        act("rm", sh!("rm /usr/bin/wc")).by(&[Root, Docker])
            .showing(&[("fs.path.name", "/usr/bin/wc")]),
        act("mv", sh!("cd /usr/bin; mv wc wd")).showing(&[("fs.path.source", "/usr/bin/wc")]),
    ],
    near_misses: &[
        act("dpkg", sh!("cp /bin/rm %W/dpkg; %W/dpkg /usr/bin/wc")),
        act("rm", sh!("rm /usr/bin/none; cp /bin/wc /usr/local/bin/wc; rm /usr/local/bin/wc")),
    ],
};
}
