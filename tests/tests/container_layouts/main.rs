//! In each layout of control groups a program of the image is told from one that was dropped, and both are told to be
//! of their container: under `tollgate watch` and under `tollgate runtime`.

mod guest;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use e2e::{Alert, Limited, Scratch, need_root, need_runtime, need_slow, program, repository, skip};

const LIMIT: Duration = Duration::from_secs(175);
const DROP: &str = "Drop and execute new binary in container";

/// Every container plays `true own-NAME` by its image's program, then `true drop-NAME` by a copy of it, and
/// `true late-NAME` by another of the image's programs, which it has changed in its place.
const RULES: &str = r#"
- rule: Marked
  desc: a program with a mark
  condition: >
    evt.type in (execve, execveat) and (proc.args startswith "true own-" or proc.args startswith "true host-")
  output: mark %proc.args %container.id %container.full_id %container.name upper=%proc.is_exe_upper_layer
  priority: INFO
"#;

/// Functions of scripts. `$ENGINE` is `watch` or `runtime`.
const PRELUDE: &str = r#"
set -eu
for folder in /var/lib/containerd /run/containerd /var/lib/containers /run/containers /run/libpod /run/runc \
    /run/netns /etc/cni /var/lib/cni; do test ! -d $folder || mount -t tmpfs none $folder; done
mkdir -p image/opt image/bin image/srv image/tmp image/proc image/dev image/sys /var/lib/containerd /var/lib/containers
cp /bin/busybox image/bin/
cp /bin/busybox image/opt/true
ln -s busybox image/bin/sh
cat > functions <<'END'
# The deeds of a container.
deeds() {
    echo "/bin/busybox true own-$1; /bin/busybox cp /bin/busybox /srv/true; /srv/true drop-$1;
        /bin/busybox cat /bin/busybox > /opt/true; /opt/true late-$1" | tr -d '\n'
}
# bundle NAME PROGRAM LOWER MORE_MOUNTS: makes the folder NAME, with layers for the files of a container, which LAYERS
# goes before the name of, if it is set.
bundle() {
    mkdir -p $1/layers $1/root
    mount -t tmpfs none $1/layers
    mkdir $1/layers/upper $1/layers/work
    layers=${LAYERS-$PWD/}$1/layers
    mount -t overlay -o lowerdir=$3,upperdir=$layers/upper,workdir=$layers/work none $1/root
    rights='"CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE", "CAP_MKNOD", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP", "CAP_CHOWN",
        "CAP_FOWNER", "CAP_KILL", "CAP_SYS_CHROOT", "CAP_NET_ADMIN", "CAP_SYS_PTRACE"'
    cat > $1/config.json <<CONFIG
{"ociVersion": "1.0.2", "root": {"path": "root"},
 "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", "$2"], "env": ["PATH=/bin:/usr/sbin:/usr/bin"], "cwd": "/",
    "capabilities": {"bounding": [$rights], "effective": [$rights], "permitted": [$rights]}},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]}$4],
 "linux": {"cgroupsPath": "$PATH_OF_GROUP", "namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}$NAMESPACES]}}
CONFIG
}
# container NAME GROUP ID [NAMESPACES]: runs a container that plays its deeds.
container() {
    PATH_OF_GROUP=$2 NAMESPACES=${4-}
    bundle $1 "$(deeds $1)" $PWD/image ""
    runtime run --bundle $1 $3 < /dev/null
    umount $1/root
    umount $1/layers
}
END
. ./functions
runtime() {
    case $ENGINE in
        watch) runc --root "$PWD/state-runc" "$@" ;;
        *) bin/tollgate-runtime --root "$PWD/state-runc" "$@" ;;
    esac
}
# Enters a control group of podman's pods, in the hierarchies that podman would take.
enter() {
    moved=
    for hierarchy in /sys/fs/cgroup/pids /sys/fs/cgroup/systemd /sys/fs/cgroup; do
        test -e $hierarchy/cgroup.procs || continue
        mkdir -p $hierarchy/$1
        echo $$ > $hierarchy/$1/cgroup.procs
        moved=yes
    done
    test -n "$moved"
}
seen() { for try in $(seq 400); do ! grep -q "$1" alerts || return 0; sleep 0.05; done; return 97; }
begin() {
    case $ENGINE in watch) ;; *) return 0 ;; esac
    "$TOLLGATE" watch --quiet --json -r default.yaml -r marked.yaml -P pid > alerts & watcher=$!
    trap 'kill $watcher' EXIT
    for try in $(seq 600); do test ! -s pid || break; sleep 0.05; done
    test -s pid
}
end() {
    case $ENGINE in watch) ;; *) seen "late-$1"; sleep 0.5; return 0 ;; esac
    /bin/busybox true host-end
    seen host-end
    trap - EXIT
    kill $watcher
    wait $watcher
}
# Removes what is empty of the groups that containers had.
sweep() { find /sys/fs/cgroup -depth -type d \( -path '*/kubepods*' -o -path '/sys/fs/cgroup/*/docker*' -o -path '*/libpod_parent*' \
    -o -path '*/k8s.io*' -o -path '*/tollgate-layouts*' -o -path '*/default' -o -path '*/moby' \) \
    -exec rmdir {} + 2> /dev/null || true; }
"#;

/// Held while a script runs: another would make the same control groups, and `watch` would see its containers.
static TURN: Mutex<()> = Mutex::new(());

/// What the script of an engine does, and the alerts.
fn play(engine: &str, script: &str) -> (Scratch, Vec<Alert>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    for (name, text) in files(scratch.path(), script) {
        scratch.file(name, 0o755, text);
    }
    std::fs::create_dir_all(scratch.path().join("bin")).expect("it is our folder");
    scratch.program(&program(), "bin/tollgate-runtime");
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-eux",
            "script.sh",
        ])
        .env("ENGINE", engine)
        .env("TOLLGATE", program())
        .env("TOLLGATE_RUNTIME_STATE", scratch.path().join("state"))
        .env(
            "TOLLGATE_RUNTIME_CONFIG",
            scratch.path().join("tollgate.yaml"),
        )
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    let text = std::fs::read_to_string(scratch.path().join("alerts"));
    // Nothing wrote the file if the script failed early; its status says that.
    let text = text.unwrap_or_default();
    assert_eq!(finished.code(), 0, "{finished:?}\n{text}");
    let alerts = text.lines().filter_map(Alert::parse).collect();
    (scratch, alerts)
}

/// The files that a script needs in its folder, with their texts.
fn files(folder: &Path, script: &str) -> [(&'static str, String); 4] {
    let path = folder.display();
    let rules = std::fs::read_to_string(repository().join("rules/default.yaml"));
    let settings = format!(
        "rules_files: [{path}/default.yaml, {path}/marked.yaml]\njson_output: true\n\
         file_output: {{enabled: true, filename: {path}/alerts}}\nruntime: {{binary: runc}}\n"
    );
    [
        ("default.yaml", rules.expect("it is in the repository")),
        ("marked.yaml", RULES.to_owned()),
        ("tollgate.yaml", settings),
        ("script.sh", format!("{PRELUDE}{script}")),
    ]
}

/// A full id that begins with a number.
fn id(number: u32) -> String {
    format!("{number:012x}7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e")
}

/// Checks that both deeds of each container are seen to be of it, and nothing else that it did raised an alert.
fn assert_told_apart(alerts: &[Alert], containers: &BTreeMap<String, String>) {
    for (name, id) in containers {
        let short = if id.len() == 64 { &id[..12] } else { id };
        let own = marked(alerts, &format!("own-{name}"));
        assert_eq!(own, [format!("{short} {id} upper=false")], "{name}");
        for deed in ["drop", "late"] {
            let line = format!("true {deed}-{name}");
            let dropped = alerts
                .iter()
                .filter(|alert| alert.rule == DROP && alert.field("proc.cmdline") == line);
            let dropped: Vec<String> = dropped.map(|alert| alert.field("container.id")).collect();
            assert_eq!(dropped, [short], "{name}: {deed}");
        }
        let others = alerts.iter().filter(|alert| {
            // Alerts of this program about itself have the full id.
            let is_about_it = alert
                .fields
                .get("container.id")
                .is_some_and(|found| found == short || found == id);
            is_about_it && !["Marked", DROP].contains(&alert.rule.as_str())
        });
        let others: Vec<_> = others.collect();
        assert!(others.is_empty(), "{name}: {others:?}");
    }
}

/// Returns id, full id and layer of the programs with a mark.
fn marked(alerts: &[Alert], mark: &str) -> Vec<String> {
    let of_mark = alerts.iter().filter(|alert| {
        alert.rule == "Marked" && alert.field("proc.args") == format!("true {mark}")
    });
    let fields = ["container.id", "container.full_id"];
    let line = |alert: &Alert| {
        let [id, full_id] = fields.map(|field| alert.field(field));
        let upper = alert.field("proc.is_exe_upper_layer");
        format!("{id} {full_id} upper={upper}")
    };
    of_mark.map(line).collect()
}

/// Control groups as runtimes name them, and the ids of their containers.
fn groups() -> Vec<(&'static str, String, String)> {
    let pod = "pod1a2b3c4d-5e6f-7a8b-9c0d-1e2f3a4b5c6d";
    let slice = format!(
        "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-{}.slice",
        pod.replace('-', "_")
    );
    let rows = [
        ("kubelet-cgroupfs", format!("/kubepods/besteffort/{pod}/ID")),
        (
            "kubelet-systemd",
            format!("/{slice}/cri-containerd-ID.scope"),
        ),
        (
            "kubelet-colons",
            String::from("/kubepods-burstable-pod1.slice:cri-containerd:ID"),
        ),
        ("cri-o", format!("/{slice}/crio-ID.scope/container")),
        ("containerd-cri", String::from("/k8s.io/ID")),
        ("docker-cgroupfs", String::from("/docker/ID")),
        (
            "docker-systemd",
            String::from("/tollgate-layouts/system.slice/docker-ID.scope"),
        ),
        (
            "podman-split",
            String::from("/tollgate-layouts/web.service/libpod-payload-ID"),
        ),
        ("podman-parent", String::from("/tollgate-layouts/libpod-ID")),
        (
            "node-in-docker",
            format!("/docker/OUTER/kubelet.slice/kubelet-{slice}/cri-containerd-ID.scope"),
        ),
        ("moby", String::from("/moby/ID")),
    ];
    let rows = rows.into_iter().zip(0x10..);
    rows.map(|((name, group), number)| {
        let id = id(number);
        let group = group.replace("ID", &id).replace("OUTER", &self::id(1));
        (name, group, id)
    })
    .collect()
}

/// A script with a container in each of the groups, and the containers' ids.
fn script_of_groups() -> (String, BTreeMap<String, String>) {
    let mut script = String::from("begin\n");
    let mut containers = BTreeMap::new();
    for (name, group, id) in groups() {
        script.push_str(&format!("container {name} {group} {id}\n"));
        containers.insert(name.to_owned(), id);
    }
    // Engines name layers relative to their folder if there are many.
    let (private, relative) = (id(2), id(3));
    script.push_str(&format!(
        "container private-groups /docker/{private} {private} ', {{\"type\": \"cgroup\"}}'\n\
         container named /default/redis redis\n\
         LAYERS= container relative-layers /docker/{relative} {relative}\nend relative-layers\nsweep\n"
    ));
    containers.insert("private-groups".to_owned(), private);
    containers.insert("relative-layers".to_owned(), relative);
    containers.insert("named".to_owned(), "redis".to_owned());
    (script, containers)
}

fn play_groups(engine: &str) {
    need_root!();
    need_runtime!("runc");
    let (script, containers) = script_of_groups();
    let (_scratch, alerts) = play(engine, &script);
    assert_told_apart(&alerts, &containers);
}

#[test]
fn groups_as_runtimes_name_them_tell_containers_to_watch() {
    play_groups("watch");
}

#[test]
fn containers_in_groups_as_runtimes_name_them_are_known_to_their_own_agent() {
    play_groups("runtime");
}

/// A container with the programs of the host in which runc runs another one.
const NESTED: &str = r#"
begin
PATH_OF_GROUP=/docker/OUTER NAMESPACES=
bundle outer "cd $PWD && . ./inner.sh" / ", {\"destination\": \"$PWD\", \"type\": \"bind\", \"source\": \"$PWD\", \"options\": [\"rbind\"]},
    {\"destination\": \"/sys\", \"type\": \"sysfs\", \"source\": \"sysfs\"},
    {\"destination\": \"/sys/fs/cgroup\", \"type\": \"cgroup\", \"source\": \"cgroup\", \"options\": [\"rw\"]},
    {\"destination\": \"/run\", \"type\": \"tmpfs\", \"source\": \"tmpfs\"}"
cat > inner.sh <<'END'
set -eux
. ./functions
runtime() { runc --root /run/inner "$@"; }
container inner /docker/INNER INNER
END
runtime run --bundle outer OUTER < /dev/null
umount outer/root
umount outer/layers
end inner
sweep
"#;

fn play_nested(engine: &str) {
    need_root!();
    need_runtime!("runc");
    let (outer, inner) = (id(0x20), id(0x21));
    let script = NESTED.replace("OUTER", &outer).replace("INNER", &inner);
    let (_scratch, alerts) = play(engine, &script);
    let containers = BTreeMap::from([("inner".to_owned(), inner)]);
    assert_told_apart(&alerts, &containers);
}

/// The runtime in the container makes groups in the hierarchies that it sees; in the others the process is in the
/// outer container's.
#[test]
fn a_container_of_runc_in_runc_is_told_from_the_outer_one_by_watch() {
    play_nested("watch");
}

#[test]
fn a_container_of_runc_in_runc_is_told_from_the_outer_one_by_the_agent_of_that() {
    play_nested("runtime");
}

/// Whoever starts the monitor may be in a group of a pod.
#[test]
fn a_watch_that_begins_in_the_group_of_a_pod_knows_the_host() {
    need_root!();
    need_runtime!("runc");
    let (pod, container, other) = (id(0x30), id(0x31), id(0x32));
    let script = format!(
        "enter libpod_parent/{pod}/conmon
begin
/bin/busybox true host-in-group
container in-pod /libpod_parent/{pod}/libpod-{container} {container}
enter .
/bin/busybox true host-outside
container outside /docker/{other} {other}
end outside
sweep
"
    );
    let (_scratch, alerts) = play("watch", &script);
    for mark in ["host-in-group", "host-outside"] {
        assert_eq!(marked(&alerts, mark), ["host <NA> upper=false"], "{mark}");
    }
    let containers = [("in-pod", container), ("outside", other)];
    let containers = containers.map(|(name, id)| (name.to_owned(), id));
    assert_told_apart(&alerts, &BTreeMap::from(containers));
}

/// systemd as the first process of a container, and podman with control groups that systemd makes.
const SYSTEMD: &str = r#"
begin
cat > containers.conf <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
netns = "none"
[engine]
events_logger = "file"
END
cat > work.sh <<'END'
set -eux
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root CONTAINERS_CONF=$PWD/containers.conf
case $ENGINE in
    watch) set -- --runtime runc ;;
    *) set -- --runtime $PWD/bin/tollgate-runtime --runtime-flag config=$PWD/tollgate.yaml ;;
esac
runtime=$*
. ./functions
p() { podman $runtime --cgroup-manager systemd "$@"; }
tar -C image -c . | p import - localhost/tiny:1.2
start() {
    name=$1; shift
    p run -d --name $name "$@" localhost/tiny:1.2 /bin/busybox sleep 1000 > $name.id
    grep -q "$GROUP" /proc/$(p inspect -f '{{.State.Pid}}' $name)/cgroup
    p exec $name sh -c "$(deeds $name)"
}
GROUP=/machine.slice/libpod- start alone
p pod create --name pod --infra-image localhost/tiny:1.2 --infra-command "/bin/busybox sleep 1000"
GROUP=/machine.slice/machine-libpod_pod_ start in-pod --pod pod
GROUP=/tollgate.slice/libpod- start in-slice --cgroup-parent tollgate.slice
GROUP=/system.slice/work.service/libpod-payload- start split --cgroups split
p rm --all --force --time 0
p pod rm --all --force --time 0
touch worked
END
mkdir -p etc/systemd/system
cat > boot.sh <<'END'
set -eux
mount -t proc proc /proc
for folder in /run /var/lib/containers; do mount -t tmpfs none $folder; done
umount -l /sys/fs/cgroup
mount -t tmpfs none /sys/fs/cgroup
# Controllers of the first version, where the machine has them.
for controller in cpu cpuacct cpuset memory devices freezer blkio pids name=systemd; do
    folder=/sys/fs/cgroup/${controller#name=}
    case $controller in name=*) options=none,$controller ;; *) options=$controller ;; esac
    mkdir $folder
    mount -t cgroup -o $options none $folder || rmdir $folder
done
test -d /sys/fs/cgroup/pids || mount -t cgroup2 none /sys/fs/cgroup
cp -a /etc/passwd /etc/group /etc/containers /etc/os-release etc/
: > etc/machine-id
cat > etc/systemd/system/work.service <<UNIT
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
Environment=ENGINE=$ENGINE TOLLGATE_CONFIG_DIR=
WorkingDirectory=$PWD
ExecStart=/bin/sh work.sh
ExecStopPost=/bin/systemctl --force --force exit
StandardOutput=file:$PWD/work.log
StandardError=file:$PWD/work.log
UNIT
mount --bind etc /etc
export container=tollgate
exec /lib/systemd/systemd --system --unit=work.service --log-target=null --show-status=no
END
for hierarchy in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do
    test -e $hierarchy/cgroup.procs || continue
    mkdir -p $hierarchy/tollgate-layouts/systemd
    case $hierarchy in *cpuset*) for folder in tollgate-layouts tollgate-layouts/systemd; do
        for file in cpuset.cpus cpuset.mems; do cat $hierarchy/$file > $hierarchy/$folder/$file; done; done ;;
    esac
    echo $$ > $hierarchy/tollgate-layouts/systemd/cgroup.procs
done
unshare -C -p -f -m -i -u --kill-child --propagation private sh -eux boot.sh || status=$?
for hierarchy in /sys/fs/cgroup/*/ /sys/fs/cgroup/; do
    test ! -e $hierarchy/cgroup.procs || echo $$ > $hierarchy/cgroup.procs
done
cat work.log >&2
test -e worked
end split
sweep
"#;

fn play_systemd(engine: &str) {
    need_root!();
    need_runtime!("runc");
    let needed = [
        Path::new("/lib/systemd/systemd"),
        Path::new("/usr/bin/podman"),
    ];
    if let Some(missing) = needed.into_iter().find(|path| !path.exists()) {
        skip!("needs systemd and podman", || Ok(format!(
            "{} is not there",
            missing.display()
        )));
    }
    let (scratch, alerts) = play(engine, SYSTEMD);
    let names = ["alone", "in-pod", "in-slice", "split"];
    let containers = names.map(|name| {
        let id = std::fs::read_to_string(scratch.path().join(format!("{name}.id")));
        (
            name.to_owned(),
            id.expect("podman wrote it").trim().to_owned(),
        )
    });
    assert_told_apart(&alerts, &BTreeMap::from(containers));
}

#[test]
fn containers_that_podman_has_systemd_make_groups_for_are_told_apart_by_watch() {
    need_slow!();
    play_systemd("watch");
}

/// The engine is in a container itself, so its images are younger than that.
#[test]
fn containers_of_an_engine_in_a_container_are_told_apart_by_their_own_agent() {
    need_slow!();
    play_systemd("runtime");
}
