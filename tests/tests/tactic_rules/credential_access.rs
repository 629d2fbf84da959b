//! Passwords and keys that other programs keep, and packets.

use super::*;

cases! {
credentials_of_services => Case {
    rule: "Read credentials of a service by a general tool",
    fires: &[
        act("cat", script!(": > /tmp/krb5cc_7; cat /tmp/krb5cc_7")).by(&[User]).showing(&[("fd.name", "/tmp/krb5cc_7")]),
        act("base64", script!("mkdir -p /etc/rancher/k3s; : > /etc/rancher/k3s/k3s.yaml; base64 /etc/rancher/k3s/k3s.yaml")),
    ],
    near_misses: &[
        act("cat", script!(": > /tmp/krb5; cat /tmp/krb5")),
        act("perl", script!(": > /tmp/krb5cc_7; perl -e 'open my $file, q(<), q(/tmp/krb5cc_7) or die'")),
    ],
};

tool_of_attackers => Case {
    rule: "Tool of attackers started",
    fires: &[
        act("john", stand_in!("john", "$t --wordlist=x y")).at(&[Host, Below]).by(BOTH),
        act("sh", script!("mkdir %W/d; echo : > %W/d/linpeas.sh; sh %W/d/linpeas.sh -a")),
    ],
    near_misses: &[
        act("sh", script!("mkdir %W/d; echo : > %W/d/peas.sh; sh %W/d/peas.sh; cat %W/d/peas.sh > %W/d/linpeas.sh")),
    ],
};

secrets_of_a_cluster => Case {
    rule: "Secrets of a cluster read by a command",
    fires: &[act("kubectl", stand_in!("kubectl", "$t -n x get secret y -o yaml", "$t config view --raw")).at(&[Host])
        .by(BOTH)],
    near_misses: &[
        act("kubectl", stand_in!("kubectl", "$t get pods", "$t get secretstores -A", "$t config view")).at(&[Host]),
        act("kubectl", stand_in!("kubectl", "$t get secrets")).at(&[Host]).on_terminal(),
        act("kubectl", stand_in!("kubectl", "cp /bin/bash %W/cron; %W/cron -c '%W/kubectl get secrets; :'")).at(&[Host]),
    ],
};

raw_socket => Case {
    rule: "Raw socket opened",
    fires: &[act("perl", &["perl", "-e", "socket(S, 2, 3, 1) or die"]).at(&[Host, Below])
        .showing(&[("evt.args", "*AF_INET*")]),
        // Anybody can give a program this name.
        act("ping", script!("cp /usr/bin/perl /tmp/ping; /tmp/ping -e 'socket(S, 2, 3, 1) or die'"))],
    near_misses: &[
        act("perl", &["perl", "-e", "socket(S, 2, 2, 17) && socket(S, 2, 1, 6) && socket(S, 16, 3, 0) or die"]),
        act("ping", script!("cp /usr/bin/perl /usr/local/bin/ping; ping -e 'socket(S, 2, 3, 1) or die'")).by(&[Root]),
    ],
};

passwords_tried => Case {
    rule: "Passwords tried one after another",
    fires: &[act("sshpass", stand_in!("sshpass", "for i in 1 2 3 4 5 6 7; do $t -p $i ssh 127.0.0.1; done")).at(&[Host, Below])
        .by(BOTH)],
    near_misses: &[
        act("sshpass", stand_in!("sshpass", "for i in 1 2 3 4 5 6; do $t -p $i ssh 127.0.0.1; done")),
        act("su", stand_in!("su", "for i in 1 2 3 4 5 6 7 8; do $t postgres -c id; done")),
    ],
};
}
