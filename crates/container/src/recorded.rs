//! Whole files `/proc/PID/cgroup` of containers and of processes beside them, as machines with version 1, with both
//! versions and with version 2 alone have them.

use event::{Container, Containment};

use super::{ContainerKey, Containers, INITIAL_CGROUP_NAMESPACE, INITIAL_PID_NAMESPACE, identify};

const ID: &str = "bd425f178bc56d2639a7fac568b92677024edeabd27228edbdb415724662fd2f";
const POD: &str = "aa3f2f99604b7045b45b00ce32a5c7784f7fb571cdba6e1d9324475622cdcf47";
/// Namespaces of mounts of the agent and of a container.
const HOST: u64 = 1;
const INSIDE: u64 = 2;

/// Files of containers; `ID` and `POD` stand for ids. The version, what made the groups, and the file.
const CONTAINERS: [(&str, &str, &str); 12] = [
    (
        "1",
        "podman, cgroupfs",
        "9:name=systemd:/libpod_parent/libpod-ID\n8:pids:/libpod_parent/libpod-ID\n\
      7:blkio:/libpod_parent/libpod-ID\n4:memory:/libpod_parent/libpod-ID\n3:cpuset:/libpod_parent/libpod-ID\n\
      2:cpuacct:/libpod_parent/libpod-ID\n1:cpu:/libpod_parent/libpod-ID\n",
    ),
    (
        "1",
        "docker",
        "12:pids:/docker/ID\n11:hugetlb:/docker/ID\n10:net_cls,net_prio:/docker/ID\n\
      5:cpu,cpuacct:/docker/ID\n1:name=systemd:/docker/ID\n",
    ),
    (
        "1",
        "the kubelet",
        "11:memory:/kubepods/burstable/pod1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d/ID\n\
      5:cpu,cpuacct:/kubepods/burstable/pod1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d/ID\n1:name=systemd:/\n",
    ),
    (
        "both",
        "podman's pods, cgroupfs",
        "9:name=systemd:/libpod_parent/POD/libpod-ID\n\
      8:pids:/libpod_parent/POD/libpod-ID\n4:memory:/libpod_parent/POD/libpod-ID\n0::/\n",
    ),
    (
        "both",
        "podman, systemd",
        "9:name=systemd:/machine.slice/libpod-ID.scope\n8:pids:/machine.slice/libpod-ID.scope\n\
      7:blkio:/\n6:freezer:/machine.slice/libpod-ID.scope\n3:cpuset:/\n0::/machine.slice/libpod-ID.scope\n",
    ),
    (
        "both",
        "podman's pods, systemd",
        "9:name=systemd:/machine.slice/machine-libpod_pod_POD.slice/libpod-ID.scope\n\
      8:pids:/machine.slice/machine-libpod_pod_POD.slice/libpod-ID.scope\n\
      0::/machine.slice/machine-libpod_pod_POD.slice/libpod-ID.scope\n",
    ),
    (
        "both",
        "podman in a container",
        "9:name=systemd:/libpod_parent/libpod-POD/libpod_parent/libpod-ID\n\
      8:pids:/libpod_parent/libpod-POD/libpod_parent/libpod-ID\n0::/libpod_parent/libpod-POD\n",
    ),
    (
        "2",
        "a unit with podman --cgroups split",
        "0::/system.slice/work.service/libpod-payload-ID\n",
    ),
    (
        "2",
        "podman, systemd",
        "0::/machine.slice/libpod-ID.scope/container\n",
    ),
    (
        "2",
        "containerd for the kubelet",
        "0::/kubepods.slice/kubepods-besteffort.slice/\
      kubepods-besteffort-pod1a2b3c4d_5e6f_7a8b_9c0d_1e2f3a4b5c6d.slice/cri-containerd-ID.scope\n",
    ),
    (
        "2",
        "a node in docker",
        "0::/system.slice/docker-POD.scope/kubelet.slice/kubelet-kubepods.slice/\
      kubelet-kubepods-pod1.slice/cri-containerd-ID.scope\n",
    ),
    (
        "2",
        "rootless podman",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container\n",
    ),
];

/// Files of processes of the host, and whether their groups are like those of containers.
const BESIDE: [(&str, bool); 5] = [
    ("9:name=systemd:/\n8:pids:/\n4:memory:/\n0::/\n", false),
    (
        "12:pids:/system.slice/docker.service\n1:name=systemd:/system.slice/docker.service\n0::/system.slice/docker.service\n",
        false,
    ),
    ("0::/machine.slice/libpod-conmon-ID.scope\n", false),
    (
        "8:pids:/libpod_parent/POD/conmon\n4:memory:/libpod_parent/POD/conmon\n0::/\n",
        true,
    ),
    ("0::/libpod_parent/POD/conmon\n", true),
];

fn file(text: &str) -> Vec<u8> {
    text.replace("ID", ID).replace("POD", POD).into_bytes()
}

/// A file as records have it: without names of controllers, and without hierarchies that have none.
fn record(file: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(file);
    let lines = text.lines().filter(|line| !line.contains(":name="));
    let lines = lines.map(|line| {
        let mut parts = line.splitn(3, ':');
        let mut part = |index| parts.nth(index).expect("a line has three parts");
        let (hierarchy, path) = (part(0), part(1));
        format!("{hierarchy}::{path}\n")
    });
    lines.collect::<String>().into_bytes()
}

/// An agent on the host in a group.
fn agent_in(cgroup: Vec<u8>) -> Containers {
    Containers {
        own: ContainerKey {
            pid_namespace: INITIAL_PID_NAMESPACE,
            cgroup_namespace: INITIAL_CGROUP_NAMESPACE,
            mount_namespace: HOST,
            cgroup,
        },
        own_container: Container::host().into(),
        agent_on_host: true,
        state_root: "/no/such".into(),
        runtime_container: None,
        registry: None,
        known: std::sync::Mutex::default(),
    }
}

#[test]
fn files_of_containers_name_them() {
    for (version, maker, text) in CONTAINERS {
        let found = identify(&file(text)).map(|found| found.full_id);
        assert_eq!(found.as_deref(), Some(ID), "version {version}, {maker}");
    }
}

#[test]
fn records_of_containers_name_them_to_an_agent_in_any_group() {
    let groups = BESIDE.map(|(text, _)| file(text));
    for (version, maker, text) in CONTAINERS {
        for group in &groups {
            let containers = agent_in(group.clone());
            // `--cgroupns host`, and a namespace of its own.
            for initial in [true, false] {
                let found = containers.of_ended(&record(&file(text)), initial, INSIDE);
                assert_eq!(
                    found.full_id.as_deref(),
                    Some(ID),
                    "version {version}, {maker}"
                );
            }
        }
    }
}

#[test]
fn what_is_in_the_group_of_the_agent_with_its_mounts_is_on_the_host() {
    for (text, is_like_a_container) in BESIDE {
        let own = file(text);
        assert_eq!(identify(&own).is_some(), is_like_a_container, "{text}");
        let containers = agent_in(own.clone());
        let of = |mounts| containers.of_ended(&record(&own), true, mounts).containment;
        assert_eq!(of(HOST), Containment::Host, "{text}");
        // `--pid host --cgroupns host`, and control groups that the engine did not make.
        assert_ne!(of(INSIDE), Containment::Host, "{text}");
        let elsewhere = containers.of_ended(&record(&own), false, HOST);
        assert_ne!(elsewhere.containment, Containment::Host, "{text}");
    }
    // Another group of the same pod.
    let containers = agent_in(file(BESIDE[3].0));
    let other = record(&file(&BESIDE[3].0.replace("conmon", "other")));
    let container = containers.of_ended(&other, true, HOST);
    assert_eq!(container.full_id.as_deref(), Some(POD));
}

/// Nothing says which of two containers side by side contains the other.
#[test]
fn of_containers_in_different_hierarchies_the_first_counts() {
    let text = file("0::/libpod_parent/libpod-ID\n8:pids:/docker/POD\n");
    let found = identify(&text).map(|found| found.full_id);
    assert_eq!(found.as_deref(), Some(ID));
}
