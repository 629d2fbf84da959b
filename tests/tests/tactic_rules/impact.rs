//! Destruction, extortion and abuse. The programs are links to `true`: nothing is destroyed.

use super::*;

cases! {
tree_removed => Case {
    rule: "Tree of the system removed",
    fires: &[
        act("rm", stand_in!("rm", "$t -rf --no-preserve-root /")).at(&[Host, Below]).by(BOTH),
        act("rm", stand_in!("rm", "$t -rf '/home/*'", "$t -r /etc")),
        act("find", stand_in!("find", "$t /home -type f -delete")),
    ],
    near_misses: &[
        act("rm", stand_in!("rm", "$t -rf /home/app/x /var/cache/apt", "$t /etc", "$t -rf '/var/lib/apt/lists/*'", "$t -rf ./etc")),
        act("find", stand_in!("find", "$t /var/log -mtime +7 -delete", "$t /home -name core -delete")),
    ],
};

overwritten => Case {
    rule: "File overwritten by zeros or noise",
    fires: &[
        act("dd", stand_in!("dd", "$t of=/var/log/syslog if=/dev/zero count=9")).at(&[Host, Below]).by(BOTH),
        act("dd", stand_in!("dd", "$t if=/dev/urandom of=/home/app/x conv=notrunc")),
    ],
    near_misses: &[
        act("dd", stand_in!("dd", "$t if=/dev/zero of=/swapfile bs=1M count=9", "$t if=/dev/zero of=%W/x count=1",
            "$t if=/dev/zero of=/var/lib/images/x.img count=1", "$t if=/etc/hosts of=/var/lib/x")),
    ],
};

files_encrypted => Case {
    rule: "Files encrypted from a command line",
    fires: &[
        act("openssl", stand_in!("openssl", "$t des3 -in x -out y -k z")).at(&[Host, Below]).by(BOTH),
        act("gpg", stand_in!("gpg", "$t --batch --yes --passphrase x -ac y")),
    ],
    near_misses: &[
        act("openssl", stand_in!("openssl", "$t des3 -d -in x -out y -k z", "$t dgst -sha256 x", "$t rsa -in x")),
        act("gpg", stand_in!("gpg", "$t --batch --passphrase x -d y", "$t --verify x")),
    ],
};

arguments_of_a_miner => Case {
    rule: "Arguments of a miner",
    fires: &[
        act("x", stand_in!("x", "$t -o pool.supportxmr.com:3333 -u w")).at(&[Host, Below]).by(BOTH),
        act("x", stand_in!("x", "$t --donate-level 1")),
    ],
    near_misses: &[
        act("x", stand_in!("x", "$t -o out.txt -u app", "$t -a sha256 x")),
        act("grep", script!("grep -r -- --donate-level %W")),
    ],
};

prepared_for_a_load => Case {
    rule: "Memory or processor prepared for a load",
    fires: &[
        act("swapoff", stand_in!("swapoff", "$t -a")).at(&[Host, Below]).by(BOTH),
        // Opened, but nothing is written.
        act("perl", &["perl", "-e", "open my $file, '+<', '/proc/sys/vm/nr_hugepages' or die"]).at(&[Host]),
    ],
    near_misses: &[
        act("swapon", stand_in!("swapon", "$t -a")),
        act("cat", script!("cat /proc/sys/vm/nr_hugepages > /dev/null")).at(&[Host]),
    ],
};

service_stopped => Case {
    rule: "Service stopped without a terminal",
    fires: &[act("systemctl", stand_in!("systemctl", "$t stop mysql")).at(&[Host, Below]).by(BOTH),
        act("service", stand_in!("service", "$t cron stop"))],
    near_misses: &[
        act("systemctl", stand_in!("systemctl", "$t restart mysql", "$t stop my-app", "$t status nginx")),
        act("systemctl", stand_in!("systemctl", "cp /bin/bash %W/puppet; %W/puppet -c '%W/systemctl stop mysql; :'")),
        act("systemctl", stand_in!("systemctl", "$t stop mysql")).at(&[Host]).on_terminal(),
    ],
};

services_stopped => Case {
    rule: "Several services stopped",
    fires: &[act("systemctl", stand_in!("systemctl", "for s in mysql nginx postfix; do $t stop $s; done")).at(&[Host])
        .by(BOTH).on_terminal()],
    near_misses: &[
        act("systemctl", stand_in!("systemctl", "for s in mysql nginx mysql nginx my-app; do $t stop $s; done")).at(&[Host])
            .on_terminal(),
    ],
};

another_ending => Case {
    rule: "Many files get another ending",
    fires: &[
        act("perl", &["perl", "-e", "for (1 .. 25) { open my $file, q(>), qq(%W/$_.doc) or die;
            rename qq(%W/$_.doc), qq(%W/$_.doc.locked) or die }"]).at(CONTAINER).by(BOTH),
        act("perl", &["perl", "-e", "for (1 .. 25) { open my $file, q(>), qq(%W/$_.doc.enc) or die }"]),
    ],
    near_misses: &[
        act("perl", &["perl", "-e", "for (1 .. 25) { open my $file, q(>), qq(%W/$_.doc) or die;
            rename qq(%W/$_.doc), qq(%W/$_.doc.bak) or die }"]),
        act("perl", &["perl", "-e", "for (1 .. 20) { open my $file, q(>), qq(%W/$_.doc.enc) or die }"]),
    ],
};
}
