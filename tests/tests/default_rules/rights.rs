//! More rights: known tricks, and the engines of containers.

use super::*;

cases! {
pkexec_without_arguments => Case {
    rule: "Polkit Local Privilege Escalation Vulnerability (CVE-2021-4034)",
    fires: &[
        act("pkexec", sh!("ln -s /bin/true %W/pkexec; %W/pkexec")).at(&[Host]).by(&[User]),
        // With the setuid bit the user of the event is root.
        act("pkexec", sh!("cp /bin/true %W/pkexec; chmod 4755 %W/pkexec",
            "setpriv --reuid 1000 --clear-groups %W/pkexec")).at(&[Host]),
    ],
    near_misses: &[act("pkexec", sh!("ln -s /bin/true %W/pkexec; %W/pkexec id")).by(&[User])],
};

trick_sudo => Case {
    rule: "Sudo Potential Privilege Escalation",
    fires: &[
        act("sudoedit", sh!("ln -s /bin/true %W/sudoedit; %W/sudoedit -s 'x\\'")).at(&[Host]).by(&[User]),
        act("sudo", sh!("ln -s /bin/true %W/sudo; %W/sudo -u#-1 id")).by(&[User]),
    ],
    near_misses: &[
        act("sudo", sh!("ln -s /bin/true %W/sudo; %W/sudo -s x; %W/sudo -u#1000 id; %W/sudo -i 'x\\'")).by(&[User]),
    ],
};

container_socket => Case {
    rule: "Container socket used by another program",
    fires: &[act("nc", with_listener!("-U %W/docker.sock", "x", "nc -N -U %W/docker.sock < /dev/null"))
        .at(&[Host]).by(&[User]).showing(&[("fd.name", "*/docker.sock")])],
    near_misses: &[
        act("nc", with_listener!("-U %W/app.sock", "x", "nc -N -U %W/app.sock < /dev/null")),
        act("crictl", with_listener!("-U %W/docker.sock", "x",
            "ln -s /bin/nc %W/crictl; %W/crictl -N -U %W/docker.sock < /dev/null")),
    ],
};

privileged_container => Case {
    rule: "Container started with the host's rights",
    fires: &[
        act("docker", sh!("ln -s /bin/true %W/docker; %W/docker run --privileged x")).at(&[Host]).by(&[User]),
        act("podman", sh!("ln -s /bin/true %W/podman; %W/podman run -v /:/host x")).at(&[Host]),
    ],
    near_misses: &[
        act("docker", sh!("ln -s /bin/true %W/docker; %W/docker run -v /srv:/data --cap-add=NET_ADMIN x")).at(&[Host]),
        act("docker", sh!("ln -s /bin/true %W/docker; cp /bin/bash %W/make; %W/make -c '%W/docker run --privileged x; :'"))
            .at(&[Host]),
    ],
};

client_in_container => Case {
    rule: "Client of a cluster or of containers in a container",
    fires: &[act("kubectl", sh!("ln -s /bin/true %W/kubectl; %W/kubectl get pods")).by(&[User])],
    near_misses: &[
        act("kubectl", sh!("ln -s /bin/true %W/kubectl; %W/kubectl get pods")).at(&[Host]),
        act("ls", sh!("mkdir %W/kubectl; ls %W/kubectl")),
    ],
};
}
