//! Shells and programs by a detour.

use super::*;

cases! {
shell_of_an_editor => Case {
    rule: "Shell started by an editor or a pager",
    fires: &[act("sh", script!("cp /usr/bin/perl %W/vim; %W/vim -e 'system {q(sh)} q(sh), q(-c), q(sh)' < /dev/null"))
        .at(CONTAINER).by(BOTH).showing(&[("proc.pname", "vim")])],
    near_misses: &[
        act("sh", script!("cp /usr/bin/perl %W/vim; %W/vim -e 'system {q(sh)} q(sh), q(-c), q(date)' > /dev/null")),
        act("sh", script!("cp /usr/bin/perl %W/vim; %W/vim -e 'system {q(sh)} q(sh), q(-c), q(sh)' < /dev/null")).at(&[Host])
            .on_terminal(),
    ],
};

program_by_an_option => Case {
    rule: "Tool runs a program by an option",
    fires: &[
        act("tar", stand_in!("tar", "$t cf x --checkpoint=1 --checkpoint-action=exec=true y")).at(&[Host, Below]).by(BOTH),
        act("tcpdump", stand_in!("tcpdump", "$t -i lo -w x -z %W/y")).by(&[User]),
        act("zip", stand_in!("zip", "$t x y -T -TT 'sh #'")),
    ],
    near_misses: &[
        act("tar", stand_in!("tar", "$t cf x --checkpoint=.1000 y", "$t cf x --use-compress-program=zstd y")),
        act("zip", stand_in!("zip", "$t -T x")),
    ],
};

shell_of_busybox => Case {
    rule: "Shell of busybox called by its applet",
    fires: &[act("busybox", &["busybox", "sh", "-c", ":"]).at(&[Host]).by(BOTH)],
    near_misses: &[
        act("busybox", script!("busybox ls > /dev/null")).at(&[Host]),
        act("busybox", &["busybox", "sh", "-c", ":"]),
    ],
};

compiled_in_a_temporary_directory => Case {
    rule: "Program compiled in a temporary directory",
    fires: &[
        act("gcc", stand_in!("gcc", "$t -o x /tmp/x.c")).at(&[Host, Below]).by(BOTH),
        act("cc", stand_in!("cc", "cd /tmp; $t -O2 x.c")),
    ],
    near_misses: &[
        act("gcc", stand_in!("gcc", "$t -o x /tmp/d/x.c", "$t -o /tmp/x x.c", "cd /tmp; $t -o x d/x.c")),
        act("gcc", stand_in!("gcc", "cp /bin/bash %W/make; %W/make -c '%W/gcc /tmp/x.c; :'")),
    ],
};

root_of_the_host => Case {
    rule: "Root directory of the host entered",
    fires: &[act("chroot", stand_in!("chroot", "$t /host sh")).at(CONTAINER).by(BOTH)],
    near_misses: &[
        act("chroot", stand_in!("chroot", "$t /srv/chroot sh")),
        act("chroot", stand_in!("chroot", "$t /host sh")).at(&[Host]),
    ],
};
}
