//! Staying on a machine.

use super::*;

cases! {
hook_of_a_login => Case {
    rule: "Hook of a login written",
    fires: &[
        act("sh", script!("mkdir -p /root/.ssh; echo id > /root/.ssh/rc")).at(CONTAINER)
            .showing(&[("fd.name", "/root/.ssh/rc")]),
        act("mv", script!("mkdir -p /home/app/.config/fish/conf.d; echo id > %W/x; mv %W/x /home/app/.config/fish/conf.d/x.fish")),
        act("ln", script!("ln -s %W/x /home/app/.zshenv")).showing(&[("evt.arg.linkpath", "/home/app/.zshenv")]),
    ],
    near_misses: &[
        act("sh", script!("mkdir -p /root/.ssh; echo > /root/.ssh/known_hosts; echo > %W/.xprofile")),
    ],
};

hook_of_the_system => Case {
    rule: "Hook of the system written",
    fires: &[
        act("sh", script!("mkdir -p /usr/share/polkit-1/rules.d; echo > /usr/share/polkit-1/rules.d/0.rules")).at(CONTAINER)
            .showing(&[("fd.name", "/usr/share/polkit-1/rules.d/0.rules")]),
        act("mv", script!("mkdir -p /lib/modules/6/extra; : > %W/x; mv %W/x /lib/modules/6/extra/x.ko")),
    ],
    near_misses: &[
        act("sh", script!("mkdir -p /usr/share/polkit; echo > /usr/share/polkit/x; mkdir -p /boot/x; echo > /boot/x/y")),
        act("dpkg", script!("mkdir -p /usr/share/polkit-1; cp /bin/cp %W/dpkg; %W/dpkg /etc/hosts /usr/share/polkit-1/x")),
    ],
};

unit_of_an_unusual_directory => Case {
    rule: "Unit started from an unusual directory",
    fires: &[act("systemctl", stand_in!("systemctl", "$t enable --now /tmp/x.service")).at(&[Host, Below]).by(BOTH)],
    near_misses: &[
        act("systemctl", stand_in!("systemctl", "$t enable x.service", "$t link /opt/x/x.service",
            "$t --user enable /home/app/x.service")),
    ],
};
}
