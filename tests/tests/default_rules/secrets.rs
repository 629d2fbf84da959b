//! Secrets: what looks for them, reads them or listens to them.

use super::*;

cases! {
search_credential_files => Case {
    rule: "Search for credential files",
    fires: &[
        act("find", sh!("find %W -name .git-credentials")).at(&[Host]).by(&[User]),
        act("grep", &["grep", "-irn", "password", "%W"]),
    ],
    near_misses: &[
        act("grep", sh!("find %W -name '*.conf'; grep -i password /etc/hosts; grep -r error %W")),
    ],
};

search_setuid_programs => Case {
    rule: "Search for setuid programs",
    fires: &[
        act("find", sh!("find %W -perm -4000 -type f")).at(&[Host]).by(&[User]),
        act("getcap", sh!("ln -s /bin/true %W/getcap; %W/getcap -r /")),
    ],
    near_misses: &[
        act("getcap", sh!("find %W -uid 1000 -perm 600 -size +4000; find %W -perm -u=rw",
            "ln -s /bin/true %W/getcap; %W/getcap /bin/ping")),
        act("find", sh!("cp /bin/bash %W/cron; %W/cron -c 'find %W -perm -4000; :'")),
    ],
};

read_private_key => Case {
    rule: "Read private key",
    fires: &[
        act("cat", sh!("mkdir %W/.ssh; echo > %W/.ssh/id_rsa; cat %W/.ssh/id_rsa")).at(&[Host]).by(&[User])
            .showing(&[("fd.name", "*/.ssh/id_rsa")]),
        act("python3", sh!("mkdir -p %W/.gnupg/private-keys-v1.d; echo > %W/.gnupg/private-keys-v1.d/x.key",
            "/usr/bin/python3 -c 'open(\"%W/.gnupg/private-keys-v1.d/x.key\")'")).at(&[Host]),
        act("tar", sh!("mkdir %W/.ssh; echo > %W/.ssh/id_rsa; tar cf %W/x.tar -C %W .ssh")).at(&[Host]),
        act("python3", sh!("mkdir %W/.ssh; echo > %W/.ssh/id_rsa", "/usr/bin/python3 -c 'import os; \
            at = os.open(\"%W/.ssh/id_rsa\", os.O_PATH); open(\"/proc/self/fd/%d\" % at)'")).at(&[Host]),
    ],
    near_misses: &[
        act("python3", sh!("mkdir %W/.ssh; echo > %W/.ssh/id_rsa", "/usr/bin/python3 -c 'import os; \
            os.open(\"%W/.ssh/id_rsa\", os.O_PATH)'")).at(&[Host]),
        act("cat", sh!("mkdir %W/.ssh; echo > %W/.ssh/id_rsa.pub; cat %W/.ssh/id_rsa.pub")),
        act("cp", sh!("mkdir -p %W/d/.ssh; echo > %W/d/.ssh/id_rsa; cp -a %W/d %W/e")),
        act("tar", sh!("mkdir -p %W/d/.ssh; echo > %W/d/.ssh/id_rsa; tar cf %W/x.tar -C %W d")).at(&[Host]),
        act("ssh-add", sh!("mkdir %W/.ssh; echo > %W/.ssh/id_rsa; cp /bin/cat %W/ssh-add; %W/ssh-add %W/.ssh/id_rsa")),
    ],
};

read_stored_credentials => Case {
    rule: "Read stored credentials by a general tool",
    fires: &[
        act("cat", sh!("mkdir %W/.aws; echo > %W/.aws/credentials; cat %W/.aws/credentials")).at(&[Host])
            .by(&[User]).showing(&[("fd.name", "*/.aws/credentials")]),
        act("sh", sh!("echo > %W/.netrc; read line < %W/.netrc")),
        act("perl", sh!("echo > %W/logins.json; perl -e 'open my $f, q(<), q(%W/logins.json) or die'")),
    ],
    near_misses: &[
        act("cat", sh!("mkdir %W/.aws; echo > %W/.aws/config; cat %W/.aws/config")),
        act("perl", sh!("mkdir %W/.aws; echo > %W/.aws/credentials; perl -e 'open my $f, q(<), q(%W/.aws/credentials) or die'")),
        act("aws", sh!("mkdir %W/.aws; echo > %W/.aws/credentials; cp /bin/cat %W/aws; %W/aws %W/.aws/credentials")),
    ],
};

read_shell_history => Case {
    rule: "Read shell history of a user",
    fires: &[
        act("grep", sh!("echo ls > %W/.bash_history; grep ssh %W/.bash_history")).at(&[Host]).by(&[User])
            .showing(&[("fd.name", "*/.bash_history")]),
    ],
    near_misses: &[
        act("bash", sh!("echo ls > %W/.bash_history", "bash -c 'HISTFILE=%W/.bash_history; history -r'")),
        act("cat", sh!("echo ls > %W/history; cat %W/history")),
    ],
};

read_environment_of_another => Case {
    rule: "Read environment of another process",
    fires: &[
        act("cat", sh!("sleep 5 & cat /proc/$!/environ; kill $!")).at(&[Host]).by(&[User])
            .showing(&[("fd.name", "/proc/*/environ")]),
        act("grep", sh!("sleep 5 & grep heap /proc/$!/maps; kill $!")),
    ],
    near_misses: &[
        act("cat", sh!("cat /proc/self/environ /proc/thread-self/maps", "sleep 5 & cat /proc/$!/status; kill $!")),
        act("ps", sh!("cp /usr/bin/perl %W/ps; %W/ps -e 'open my $file, q(<), q(/proc/1/environ)'")),
    ],
};

read_kernel_memory => Case {
    rule: "Read memory of the kernel",
    fires: &[act("cat", sh!(": > /dev/mem; cat /dev/mem")).showing(&[("fd.name", "/dev/mem")])],
    near_misses: &[
        act("dmidecode", sh!("mkdir /d; cp /bin/cat /d/dmidecode; cp /bin/cp /d/crash", "/d/crash /etc/hosts /dev/mem",
            "/d/dmidecode /dev/mem")),
        act("cat", &["cat", "/proc/iomem", "/dev/mem"]),
    ],
};

sniff_packets => Case {
    rule: "Sniff packets",
    fires: &[act("perl", perl!("socket(S, 17, 3, 0) or die")).at(&[Host]).showing(&[("evt.args", "*AF_PACKET*")])],
    near_misses: &[
        act("perl", perl!("socket(S, 17, 3, 0)")).at(&[Host]).by(&[User]),
        act("dhclient", perl_named!("dhclient", "socket(S, 17, 3, 0) or die")).at(&[Host]),
        act("perl", perl!("socket(S, 17, 3, 0)")),
    ],
};

password_by_pipe => Case {
    rule: "Password given to sudo by a pipe",
    fires: &[
        act("sudo", sh!("ln -s /bin/true %W/sudo; echo x | %W/sudo -kS id")).at(&[Host]).by(&[User]),
        act("su", sh!("ln -s /bin/true %W/su; echo x | %W/su - app")),
    ],
    near_misses: &[
        act("sudo", sh!("ln -s /bin/true %W/sudo; echo x | %W/sudo tee -a x; %W/sudo -S id < /dev/null",
            "echo x | %W/sudo -S -p '' sh -c 'echo BECOME-SUCCESS-x'")),
        act("su", sh!("ln -s /bin/true %W/su; echo x | %W/su app -c id")),
    ],
};
}
