//! Blinding what watches a machine, and hiding on it.

use super::*;

cases! {
security_product_removed => Case {
    rule: "Security product removed",
    fires: &[act("apt-get", stand_in!("apt-get", "$t -y purge auditd")).at(&[Host]).by(BOTH),
        act("apt-get", stand_in!("apt-get", "$t -o Dpkg::Use-Pty=0 -y purge auditd")).at(&[Host]),
        act("rpm", stand_in!("rpm", "$t -e falcon-sensor")).at(&[Host])],
    near_misses: &[
        act("apt-get", stand_in!("apt-get", "$t -y install auditd", "$t -y remove cowsay")).at(&[Host]),
        act("apt-get", stand_in!("apt-get", "cp /bin/bash %W/puppet; %W/puppet -c '%W/apt-get -y purge auditd; :'")).at(&[Host]),
    ],
};

vendor_agent_stopped => Case {
    rule: "Security agent of a vendor stopped",
    fires: &[act("systemctl", stand_in!("systemctl", "$t stop ds_agent")).at(&[Host, Below]).by(BOTH)],
    near_misses: &[
        act("systemctl", stand_in!("systemctl", "$t status ds_agent", "$t restart ds_agent", "$t unmask xagt")),
    ],
};

kernel_messages => Case {
    rule: "Messages of the kernel cleared",
    fires: &[act("dmesg", stand_in!("dmesg", "$t -C")).at(&[Host, Below]).by(BOTH),
        act("dmesg", stand_in!("dmesg", "$t --read-clear"))],
    near_misses: &[act("dmesg", stand_in!("dmesg", "$t -T", "$t --color=always", "$t"))],
};

world_writable => Case {
    rule: "Anybody may write a file of the system",
    fires: &[
        act("chmod", script!("chmod 777 /etc/hosts")).at(CONTAINER).showing(&[("fs.path.name", "/etc/hosts")]),
        act("perl", &["perl", "-e", "chmod 0666, q(/usr/bin/env) or die"]),
        act("chmod", script!("chmod -R 777 /home")),
        act("chmod", script!("cd /tmp; chmod 777 ../usr/bin/../../etc/hosts")),
    ],
    near_misses: &[
        act("chmod", script!("chmod 755 /etc/hosts; chmod 1777 /opt; : > %W/x; chmod 777 %W/x")),
        act("chmod", script!("chmod 777 /etc/hosts")).by(&[User]),
    ],
};

tree_given_away => Case {
    rule: "Tree of the system given to another owner",
    fires: &[act("chown", stand_in!("chown", "$t -R app /etc")).at(&[Host, Below]).by(BOTH)],
    near_misses: &[
        act("chown", stand_in!("chown", "$t -R root:root /etc", "$t -R app /home/app", "$t app /etc")),
    ],
};

hidden_behind_a_mount => Case {
    rule: "Process hidden behind a mount",
    // A file system that the kernel does not know: nothing is mounted.
    fires: &[act("perl", &["perl", "-e",
        "my ($from, $to, $type) = (q(none), q(/proc/1), q(nosuchfs)); syscall(165, $from, $to, $type, 0, 0)"]).at(&[Host])
        .by(BOTH)],
    near_misses: &[act("perl", &["perl", "-e",
        "my ($from, $to, $type) = (q(none), q(/proc/sys/fs/binfmt_misc), q(nosuchfs)); syscall(165, $from, $to, $type, 0, 0)"])
        .at(&[Host])],
};

misleading_directory => Case {
    rule: "Hidden directory with a misleading name",
    fires: &[
        act("mkdir", script!("mkdir %W/...")).at(&[Host, Below]).by(BOTH),
        act("sh", script!("mkdir '/tmp/.. '; echo > '/tmp/.. /x'")).showing(&[("fd.name", "/tmp/.. /x")]),
    ],
    near_misses: &[
        act("mkdir", script!("mkdir %W/..x %W/.x; cp -r /etc/skel/. %W/.x; cp /etc/hosts %W/.x/..")),
    ],
};

hidden_file => Case {
    rule: "Ordinary file hidden among devices or libraries",
    fires: &[
        act("sh", script!("echo > /dev/x")).at(CONTAINER).showing(&[("fd.name", "/dev/x")]),
        act("sh", script!("echo > /usr/lib/.x")),
    ],
    near_misses: &[
        act("sh", script!("echo > /dev/null; echo > /dev/shm/x; echo > /usr/lib/x; mkdir -p /opt/x; echo > /opt/x/.env")),
    ],
};

name_of_a_service => Case {
    rule: "Program with the name of a system service",
    // A file system of its own: its programs are not of the container's upper layer.
    fires: &[act("crond", script!("mkdir -p /srv; busybox mount -t tmpfs none /srv; cp /bin/true /srv/crond; /srv/crond"))
        .showing(&[("proc.exepath", "/srv/crond")])],
    near_misses: &[
        act("x", script!("mkdir -p /srv; busybox mount -t tmpfs none /srv; cp /bin/true /srv/x; /srv/x")),
        act("crond", script!("cp /bin/true /usr/sbin/crond; /usr/sbin/crond")),
    ],
};

security_products_searched => Case {
    rule: "Security products searched for",
    fires: &[act("grep", script!("grep -iE 'Falcon|wazuh|osquery' /dev/null")).at(&[Host, Below]).by(BOTH)],
    near_misses: &[act("grep", script!("grep -E 'falco|auditd' /dev/null; echo 'falco wazuh osquery' > /dev/null"))],
};

times_by_an_inline_program => Case {
    rule: "Inline program changes times of files",
    fires: &[act("perl", &["perl", "-e", "utime 0, 0, q(%W/x)"]).at(&[Host, Below]).by(BOTH)],
    near_misses: &[act("perl", &["perl", "-e", "print((stat q(/etc/hosts))[9])"])],
};

packed => Case {
    rule: "Program packed or data hidden in a picture",
    fires: &[act("upx", stand_in!("upx", "$t -9 %W/x")).at(&[Host, Below]).by(BOTH)],
    near_misses: &[
        act("upx", stand_in!("upx", "$t --version", "cp /bin/bash %W/make; %W/make -c '%W/upx -9 x; :'")),
    ],
};
}
