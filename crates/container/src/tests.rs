use std::path::PathBuf;

use super::*;

const ID: &str = "3f4b2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";

/// Lines of `/proc/PID/cgroup` as runtimes make them; `ID` stands for the id.
const CONTAINERS: [(&str, &str); 26] = [
    ("12:pids:/docker/ID", "docker"),
    ("0::/system.slice/docker-ID.scope", "docker"),
    ("0::/system.slice/docker-ID.scope/init.scope", "docker"),
    ("0::/docker/ID/docker/ID", "docker"),
    ("5:cpu,cpuacct:/moby/ID", "docker"),
    ("0::/../docker-ID.scope", "docker"),
    (
        "0::/kubepods.slice/kubepods-besteffort.slice/\
      kubepods-besteffort-pod1a2b3c4d_5e6f_7a8b_9c0d_1e2f3a4b5c6d.slice/cri-containerd-ID.scope",
        "containerd",
    ),
    (
        "0::/system.slice/containerd.service/kubepods-burstable-pod1.slice:cri-containerd:ID",
        "containerd",
    ),
    (
        "11:memory:/kubepods/burstable/pod1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d/ID",
        "",
    ),
    (
        "0::/kubepods.slice/kubepods-pod1.slice/crio-ID.scope",
        "cri-o",
    ),
    (
        "0::/kubepods.slice/kubepods-pod1.slice/crio-ID.scope/container",
        "cri-o",
    ),
    ("11:memory:/kubepods/besteffort/podx/crio-ID", "cri-o"),
    ("0::/machine.slice/libpod-ID.scope", "podman"),
    (
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
        "podman",
    ),
    ("0::/libpod_parent/libpod-ID", "podman"),
    (
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/nerdctl-ID.scope",
        "containerd",
    ),
    ("9:perf_event:/k8s.io/ID", "containerd"),
    ("0::/actions_job/ID", ""),
    ("4:devices:/ecs/0f9b2c7a1d3e4b5f8a6c/ID", "ecs"),
    ("0::/lxc.payload.web-1", "lxc"),
    ("3:freezer:/lxc/web-1", "lxc"),
    ("0::/default/redis", "containerd"),
    (
        "0::/machine.slice/systemd-nspawn@web-1.service/payload",
        "systemd-nspawn",
    ),
    ("0::/buildkit/w0m3l8r5nq2z6h", "buildkit"),
    ("6:cpu:/garden/6c2b5a1e-8f0d-4c3b", "garden"),
    (
        "2:cpu:/ecs/cd189a933e5849daa93386466019ab50/cd189a933e5849daa93386466019ab50-2495160603",
        "ecs",
    ),
];

const HOST: [&str; 10] = [
    "0::/",
    "0::/init.scope",
    "0::/user.slice/user-1000.slice/session-4.scope",
    "0::/system.slice/docker.service",
    "0::/system.slice/containerd.service",
    "0::/machine.slice/libpod-conmon-ID.scope",
    "0::/kubepods.slice/crio-conmon-ID.scope",
    "0::/lxc.monitor.web-1",
    "12:pids:/docker",
    "0::/system.slice/3f4b2a1c9d8e.service",
];

#[test]
fn cgroup_paths_of_runtimes_name_the_container() {
    for (line, runtime) in CONTAINERS {
        let line = line.replace("ID", ID);
        let identity = identify(line.as_bytes()).unwrap_or_else(|| panic!("not found: {line}"));
        assert_eq!(identity.runtime.unwrap_or_default(), runtime, "{line}");
        let container = identity.into_container();
        assert_eq!(container.containment, Containment::Known);
        if line.contains(ID) {
            assert_eq!(container.full_id.as_deref(), Some(ID), "{line}");
            assert_eq!(container.id, &ID[..12], "{line}");
        }
    }
}

#[test]
fn cgroup_paths_of_the_host_name_none() {
    for line in HOST {
        let line = line.replace("ID", ID);
        assert_eq!(identify(line.as_bytes()), None, "{line}");
    }
}

#[test]
fn names_that_people_gave_are_kept_whole() {
    let lxc = identify(b"0::/lxc.payload.database-server-1")
        .unwrap()
        .into_container();
    assert_eq!(lxc.id, "database-server-1");
    let ecs = CONTAINERS[25].0;
    assert_eq!(
        identify(ecs.as_bytes()).unwrap().into_container().id,
        "cd189a933e58"
    );
}

#[test]
fn any_hierarchy_of_a_hybrid_setup_counts() {
    let text = format!("0::/\n1:name=systemd:/\n7:pids:/docker/{ID}\n");
    assert_eq!(identify(text.as_bytes()).unwrap().full_id, ID);
}

#[test]
fn junk_does_not_panic() {
    for text in [
        &b"0::/\xff\xfe"[..],
        b"0::",
        b"::::",
        b"0::////:",
        b"0::/lxc.payload.",
        b"",
    ] {
        assert_eq!(identify(text), None);
    }
}

#[test]
fn this_process_is_on_the_host_only_if_the_kernel_says_so() {
    let proc = Proc::open().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let containers = Containers::new(&proc, ContainerOptions::default()).unwrap();
    let container = containers.of(&proc, own).unwrap();
    let pid_namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    if pid_namespace.to_str() != Some("pid:[4026531836]") {
        assert_ne!(container.containment, Containment::Host);
    }
    assert_eq!(container, *containers.own());
}

/// The container of the first child of a command, looked up while the child runs.
fn container_of_child(command: &[&str]) -> Option<Arc<Container>> {
    let proc = Proc::open().unwrap();
    let containers = Containers::new(&proc, ContainerOptions::default()).unwrap();
    let spawned = std::process::Command::new(command[0])
        .args(&command[1..])
        .spawn();
    let mut child = spawned.unwrap();
    let parent = i32::try_from(child.id()).unwrap();
    let children = format!("/proc/{parent}/task/{parent}/children");
    let end = Instant::now() + Duration::from_secs(10);
    let mut inner = None;
    while inner.is_none() && Instant::now() < end {
        let text = std::fs::read_to_string(&children).unwrap_or_default();
        inner = text
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse::<i32>().ok())
            // Past its own setup: the namespaces are those of the program that runs.
            .filter(|pid| {
                proc.comm(*pid)
                    .is_ok_and(|comm| comm.as_bytes() == b"sleep")
            });
    }
    let found = inner.map(|inner| containers.of(&proc, inner).unwrap());
    if let Some(inner) = inner.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(inner, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
    found
}

#[test]
fn a_pid_namespace_alone_makes_no_container() {
    ::testing::need_root!();
    let proc = Proc::open().unwrap();
    let containers = Containers::new(&proc, ContainerOptions::default()).unwrap();
    let own = containers.own().containment;
    if own != Containment::Host {
        ::testing::skip!("needs to run on a host", || Ok(format!("{own:?}")));
    }
    let containment = |options: &[&str]| {
        let command = [&["unshare", "-f"], options].concat();
        container_of_child(&command).map(|container| container.containment)
    };
    assert_eq!(containment(&["-p", "sleep", "30"]), Some(Containment::Host));
    // A container has such mounts too, until it changes its root.
    let own_mounts = ["-pm", "sleep", "30"];
    assert_eq!(containment(&own_mounts), Some(Containment::Unknown));
    // Its control group is no longer known, as in a container.
    let own_groups = ["-pC", "sleep", "30"];
    assert_eq!(containment(&own_groups), Some(Containment::Unknown));
}

#[test]
fn an_id_given_by_the_user_is_believed() {
    let proc = Proc::open().unwrap();
    let own = i32::try_from(std::process::id()).unwrap();
    let options = ContainerOptions {
        own_id: Some(ID.to_owned()),
        state_root: None,
        told: None,
        registry: None,
    };
    let containers = Containers::new(&proc, options).unwrap();
    let container = containers.of(&proc, own).unwrap();
    assert_eq!(
        (container.containment, container.id.as_str()),
        (Containment::Known, &ID[..12])
    );
}

/// Creates a root directory for the files of runtimes.
fn runtimes_root(name: &str) -> PathBuf {
    let root = std::env::temp_dir().join(format!("container-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    root
}

#[test]
fn state_of_docker_describes_containers() {
    let root = runtimes_root("docker");
    let docker = root.join("var/lib/docker/containers").join(ID);
    std::fs::create_dir_all(&docker).unwrap();
    let config = r#"{"Name":"/web","Image":"sha256:abc","Config":{"Image":"nginx:1.25","Labels":{
        "io.kubernetes.pod.name":"web-0","io.kubernetes.pod.namespace":"shop",
        "io.kubernetes.pod.uid":"u-1"},"Healthcheck":{"Test":["CMD","curl","-f","x"]}},
        "MountPoints":{"/d":{"Source":"/s","Destination":"/d","Mode":"z","RW":true,"Propagation":"rprivate"}},
        "NetworkSettings":{"Networks":{"bridge":{"IPAddress":"172.17.0.2"}}}}"#;
    let host =
        r#"{"Privileged":true,"PidMode":"host","NetworkMode":"default","IpcMode":"private"}"#;
    std::fs::write(docker.join("config.v2.json"), config).unwrap();
    std::fs::write(docker.join("hostconfig.json"), host).unwrap();
    let mut container = Identity::named(ID.to_owned()).into_container();
    state::describe(&mut container, &root);
    assert_eq!(container.name.as_deref(), Some("web"));
    assert_eq!(container.image.as_deref(), Some("nginx:1.25"));
    assert_eq!(container.privileged, Some(true));
    assert_eq!(container.pod.unwrap().1, "shop");
    assert_eq!(container.undescribed, None);
    let details = &container.details;
    assert_eq!(details.image_id.as_deref(), Some("abc"));
    assert_eq!(details.health_check.as_deref(), Some("curl -f x"));
    assert_eq!(details.ip.as_deref(), Some("172.17.0.2"));
    assert_eq!(details.labels.len(), 3);
    assert_eq!(details.mounts[0].destination, "/d");
    let shared = (details.host_pid, details.host_network, details.host_ipc);
    assert_eq!(shared, (Some(true), Some(false), Some(false)));
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn state_of_containerd_and_podman_describes_containers() {
    let root = runtimes_root("others");
    let other = ID.replace('3', "4");
    let bundle = root
        .join("run/containerd/io.containerd.runtime.v2.task/k8s.io")
        .join(&other);
    std::fs::create_dir_all(&bundle).unwrap();
    let spec = r#"{"annotations":{"io.kubernetes.cri.container-name":"app",
        "io.kubernetes.cri.image-name":"registry/app:2","io.kubernetes.cri.sandbox-name":"app-7",
        "io.kubernetes.cri.sandbox-namespace":"prod","io.kubernetes.cri.sandbox-uid":"u-2"}}"#;
    std::fs::write(bundle.join("config.json"), spec).unwrap();
    let mut container = Identity::named(other).into_container();
    state::describe(&mut container, &root);
    assert_eq!(container.name.as_deref(), Some("app"));
    assert_eq!(container.runtime.as_deref(), Some("containerd"));
    assert_eq!(container.pod.unwrap().0, "app-7");

    let storage = root.join("var/lib/containers/storage/overlay-containers");
    std::fs::create_dir_all(&storage).unwrap();
    let list = r#"[{"id":"abc","names":["db"],"metadata":"{\"image-name\":\"postgres:16\"}"}]"#;
    std::fs::write(storage.join("containers.json"), list).unwrap();
    let mut container = Identity::named("abc".to_owned()).into_container();
    state::describe(&mut container, &root);
    assert_eq!(container.name.as_deref(), Some("db"));
    assert_eq!(container.image.as_deref(), Some("postgres:16"));
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn storage_that_was_moved_is_found_by_the_bundle() {
    use state::database::{Item, write};
    let root = runtimes_root("moved");
    let elsewhere = root.join("srv/podman");
    for driver in ["overlay", "vfs"] {
        let lists = elsewhere.join(format!("{driver}-containers"));
        let images = elsewhere.join(format!("{driver}-images"));
        let bundle = lists.join("abc/userdata");
        std::fs::create_dir_all(&bundle).unwrap();
        std::fs::create_dir_all(&images).unwrap();
        std::fs::write(bundle.join("config.json"), "{}").unwrap();
        let list =
            r#"[{"id":"abc","names":["db"],"image":"i1","metadata":"{\"image-name\":\"pg:16\"}"}]"#;
        std::fs::write(lists.join("containers.json"), list).unwrap();
        std::fs::write(
            images.join("images.json"),
            r#"[{"id":"i1","digest":"sha256:d"}]"#,
        )
        .unwrap();
        let id = "abc".to_owned();
        let container = KnownContainer { id, bundle }.describe(&root);
        assert_eq!(container.name.as_deref(), Some("db"), "{driver}");
        assert_eq!(container.image.as_deref(), Some("pg:16"), "{driver}");
        assert_eq!(container.runtime.as_deref(), Some("podman"), "{driver}");
        let digest = container.details.image_digest.as_deref();
        assert_eq!(digest, Some("sha256:d"), "{driver}");
    }

    let (state, data) = (root.join("srv/state"), root.join("srv/data"));
    let tasks = "io.containerd.runtime.v2.task/default/web";
    let (bundle, work) = (state.join(tasks), data.join(tasks));
    let database = data.join("io.containerd.metadata.v1.bolt");
    for folder in [&bundle, &work, &database] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(bundle.join("config.json"), "{}").unwrap();
    std::os::unix::fs::symlink(&work, bundle.join("work")).unwrap();
    let image = vec![Item::Text("image", "registry/web:3".to_owned())];
    let containers = Item::Bucket("containers", vec![Item::Bucket("web", image)]);
    let all = [Item::Bucket(
        "v1",
        vec![Item::Bucket("default", vec![containers])],
    )];
    write(&database.join("meta.db"), &all);
    let id = "web".to_owned();
    let container = KnownContainer { id, bundle }.describe(&root);
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(container.image.as_deref(), Some("registry/web:3"));
    assert_eq!(container.name.as_deref(), Some("web"));
}

#[test]
fn containers_without_state_and_ids_that_are_paths_are_described_by_nothing() {
    let root = runtimes_root("none");
    let mut nobodys = Identity::named("feed".repeat(16)).into_container();
    state::describe(&mut nobodys, &root);
    let reason = nobodys.undescribed.unwrap();
    assert!(reason.starts_with("no files of any runtime"), "{reason}");

    let mut escaping = Identity::named("../abc".to_owned()).into_container();
    state::describe(&mut escaping, &root);
    assert_eq!(escaping.name, None);
    std::fs::remove_dir_all(&root).unwrap();
}

#[test]
fn databases_tell_images_labels_and_the_labels_of_pods() {
    use state::database::{Item, write};
    let root = std::env::temp_dir().join(format!("container-bolt-{}", std::process::id()));
    let folder = root.join("var/lib/containerd/io.containerd.metadata.v1.bolt");
    let bundle = root.join("run/containerd/io.containerd.runtime.v2.task/k8s.io/app1");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::create_dir_all(&bundle).unwrap();
    let spec = r#"{"annotations":{"io.kubernetes.cri.sandbox-id":"sand1"},
        "linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/proc/1/ns/net"}]}}"#;
    std::fs::write(bundle.join("config.json"), spec).unwrap();
    let text = |key, value: &str| Item::Text(key, value.to_owned());
    let labelled =
        |labels: Vec<Item>, image: &str| vec![text("image", image), Item::Bucket("labels", labels)];
    let own = vec![
        text("io.cri-containerd.kind", "container"),
        text("io.kubernetes.container.name", "app"),
        text("io.kubernetes.pod.name", "app-7"),
        text("io.kubernetes.pod.namespace", "prod"),
        text("io.kubernetes.pod.uid", "u-2"),
    ];
    let containers = vec![
        Item::Bucket("app1", labelled(own, "registry/app:2")),
        Item::Bucket("sand1", labelled(vec![text("tier", "front")], "pause")),
    ];
    let config = text("containerd.io/gc.ref.content.config", "sha256:cfg");
    let blob = Item::Bucket("sha256:man", vec![Item::Bucket("labels", vec![config])]);
    let target = Item::Bucket("target", vec![text("digest", "sha256:man")]);
    let namespace = vec![
        Item::Bucket("containers", containers),
        Item::Bucket("content", vec![Item::Bucket("blob", vec![blob])]),
        Item::Bucket("images", vec![Item::Bucket("registry/app:2", vec![target])]),
    ];
    let all = [Item::Bucket("v1", vec![Item::Bucket("k8s.io", namespace)])];
    write(&folder.join("meta.db"), &all);

    let mut container = Identity::named("app1".to_owned()).into_container();
    state::describe(&mut container, &root);
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(container.name.as_deref(), Some("app"));
    assert_eq!(container.image.as_deref(), Some("registry/app:2"));
    assert_eq!(container.pod.as_ref().unwrap().1, "prod");
    let details = &container.details;
    assert_eq!(details.image_digest.as_deref(), Some("sha256:man"));
    assert_eq!(details.image_id.as_deref(), Some("cfg"));
    assert_eq!(details.sandbox_id.as_deref(), Some("sand1"));
    assert_eq!(details.pod_labels["tier"], "front");
    // A namespace with a path belongs to the pod; without a path it would belong to the host.
    let shared = (details.host_pid, details.host_network, details.host_ipc);
    assert_eq!(shared, (Some(false), Some(false), Some(true)));
}

#[test]
fn what_a_runtime_writes_down_late_is_found_later() {
    let root = std::env::temp_dir().join(format!("container-late-{}", std::process::id()));
    let looked = |undescribed: Option<&str>, ago: Duration, misses| CachedContainer {
        container: Arc::new(Container {
            undescribed: undescribed.map(str::to_owned),
            ..Container::unknown()
        }),
        looked: Instant::now().checked_sub(ago).unwrap(),
        misses,
        changes: 0,
        told: None,
        is_outdated: false,
    };
    let second = Duration::from_secs(1);
    assert!(looked(Some("nothing"), second, 0).is_due());
    assert!(!looked(Some("nothing"), Duration::ZERO, 0).is_due());
    assert!(
        !looked(Some("nothing"), second, 6).is_due(),
        "ever more rarely"
    );
    assert!(!looked(None, second, 0).is_due());
    let mut container = Identity::named("abc".to_owned()).into_container();
    state::describe(&mut container, &root);
    assert!(container.undescribed.is_some());
    let folder = root.join("var/lib/docker/containers/abc");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.v2.json"), r#"{"Name":"/late"}"#).unwrap();
    state::describe(&mut container, &root);
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(
        (container.name.as_deref(), container.undescribed),
        (Some("late"), None)
    );
}

#[test]
fn a_container_that_is_told_is_known_by_its_bundle_wherever_it_is() {
    let root = std::env::temp_dir().join(format!("container-known-{}", std::process::id()));
    let bundle = root.join("run/containerd/io.containerd.runtime.v2.task/k8s.io/app");
    std::fs::create_dir_all(&bundle).unwrap();
    let spec = r#"{"annotations":{"io.kubernetes.cri.container-name":"shop","a":"b"}}"#;
    std::fs::write(bundle.join("config.json"), spec).unwrap();
    let known = KnownContainer {
        id: "app".to_owned(),
        bundle,
    };
    let container = known.describe(&root);
    let nowhere = KnownContainer {
        bundle: root.join("none"),
        ..known
    };
    let undescribed = nowhere.describe(&root.join("empty")).undescribed;
    std::fs::remove_dir_all(&root).unwrap();
    assert_eq!(
        (container.id.as_str(), container.name.as_deref()),
        ("app", Some("shop"))
    );
    assert_eq!(container.runtime.as_deref(), Some("containerd"));
    assert_eq!(container.details.annotations["a"], "b");
    assert_eq!(container.undescribed, None);
    assert!(undescribed.unwrap().starts_with("no config.json in "));
}

#[test]
fn a_known_container_is_looked_up_again_when_the_runtime_tells_something_new_of_it() {
    let registry = Registry::default();
    let container = Identity::named(ID.to_owned()).into_container();
    let mut cached = CachedContainer {
        container: Arc::new(container),
        looked: Instant::now(),
        misses: 0,
        changes: 0,
        told: None,
        is_outdated: false,
    };
    let facts = |name: &str| ContainerFacts {
        name: Some(name.to_owned()),
        ..ContainerFacts::default()
    };
    registry.insert("another", facts("a"));
    cached.ask(&registry);
    assert!(!cached.is_due(), "the change is about another container");
    registry.insert(ID, facts("a"));
    cached.ask(&registry);
    assert!(cached.is_due());
    cached.is_outdated = false;
    cached.told = registry.facts(ID);
    registry.insert(ID, facts("a"));
    registry.insert("another", facts("b"));
    registry.end(ID);
    cached.ask(&registry);
    assert!(!cached.is_due(), "nothing new is said");
}
