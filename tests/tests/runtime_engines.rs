//! `tollgate runtime` as containerd and podman call it: what the engines pass on and what they leave out.

use std::path::{Path, PathBuf};
use std::thread;

use e2e::cri::Cri;
use e2e::runtime_fixture::{RuntimeFixture, fields, with_own_folders};
use e2e::{Alert, Finished, installed, need_root, need_runtime, repository, skip, slow, wait_for};

/// A rule that names no field of the container.
const RULES: &str = r#"
- rule: Dropped program
  desc: a program that is not of the image
  condition: evt.type in (execve, execveat) and proc.is_exe_upper_layer = true
  output: dropped
  priority: INFO
"#;
const PROBE: &str = r#"
- rule: Probe
  desc: a shell in a container
  condition: evt.type in (execve, execveat) and proc.name = sh and container.id != host
  output: probe %proc.pname %proc.pexepath %proc.pcmdline
  priority: INFO
"#;
const UNDECIDED: &str = "Tollgate internal: undecided event";

const POLICY: &str = "policy:
  enforcer: Seccomp
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    auditViolations: true
    syscallRawRules:
    - {names: [mkdir, mkdirat], action: SCMP_ACT_ERRNO}
";

/// Starts containerd with a configuration that `install` has written, and leaves it to the test.
const CONTAINERD: &str = r#"
ln -s busybox image/bin/sh
mkdir image/tmp
tar -C image -c . | podman --runtime runc import --change 'CMD ["/bin/busybox","sleep","1000"]' - \
    localhost/pod:1 > import.out 2>&1
podman save --format oci-archive --output pod.tar localhost/pod:1 > save.out 2>&1
mkdir -p "etc$PWD/bin" etc/etc/containerd
ln -s "$PWD/bin/tollgate-runtime" "etc$PWD/bin/"
config=$PWD/etc/etc/containerd/config.toml
mkdir data; mount -t tmpfs none data
cat > $config <<END
version = 2
root = "$PWD/data"
state = "$PWD/daemon"
[grpc]
  address = "$PWD/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pod:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
END
bin/tollgate-runtime install containerd --yes --prefix "$PWD/etc" --program "$PWD/bin/tollgate-runtime"
containerd --config $config > containerd.log 2>&1 & daemon=$!
for try in $(seq 100); do ctr -a containerd.sock version > /dev/null 2>&1 && break; sleep 0.1; done
ctr -a containerd.sock -n k8s.io image import pod.tar > import.out
touch ready
seen=
for try in $(seq 1200); do test ! -e done || break; test -n "$seen" || seen=$(entries); sleep 0.05; done
ln bin/tollgate-runtime bin/tollgate
bin/tollgate doctor --json > doctor.json || true
kill $daemon; wait $daemon || true
settle
find /sys/fs/cgroup -depth -type d -path "*/pod-$ID*" -exec rmdir {} + || true
rmdir /sys/fs/cgroup/*/kubepods/besteffort /sys/fs/cgroup/*/kubepods 2> /dev/null || true
# The check can fail: containers had entries while they lived.
test -n "$seen"
test -z "$(entries)"
"#;

/// Tells the script that the test is done, also if it fails.
struct Done(PathBuf);

impl Drop for Done {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, "");
    }
}

/// Runs containerd, and calls its CRI.
fn with_containerd<T: Send>(
    ground: &RuntimeFixture,
    drive: impl FnOnce(&mut Cri) -> T + Send,
) -> (T, Finished, Vec<Alert>) {
    let path = ground.scratch.path();
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let _done = Done(path.join("done"));
            wait_for(&path.join("ready"));
            drive(&mut Cri::connect(&path.join("containerd.sock")))
        });
        let (finished, alerts) = ground.run("runc", &with_own_folders(CONTAINERD));
        let outcome = client.join().unwrap_or_else(|_| panic!("{finished:?}"));
        (outcome, finished, alerts)
    })
}

fn undecided(alerts: &[Alert]) -> Vec<&Alert> {
    let is_one = |alert: &&Alert| alert.rule == UNDECIDED;
    alerts.iter().filter(is_one).collect()
}

/// Returns true if a hierarchy that containerd uses has the control group.
fn has_group(path: &str) -> bool {
    let folders =
        ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(|hierarchy| format!("{hierarchy}{path}"));
    folders.iter().any(|folder| Path::new(folder).exists())
}

fn assert_dropped_in_pod(alerts: &[Alert], container: &str, pod: &str) {
    let rule = "Drop and execute new binary in container";
    let dropped = |field| fields(alerts, rule, field);
    assert_eq!(dropped("container.id"), [container], "{alerts:?}");
    assert_eq!(dropped("container.name"), ["app"], "{alerts:?}");
    assert_eq!(dropped("k8s.pod.name"), [pod], "{alerts:?}");
}

#[test]
fn annotations_of_pods_arrive_through_cri() {
    need_runtime!("runc");
    let tools = ["containerd", "ctr", "podman"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr and podman", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let ground = RuntimeFixture::new();
    let policies = ground.scratch.path().join("policies");
    let ground = ground.settings(&format!(
        "runtime: {{binary: runc, policies: {}}}\n",
        policies.display()
    ));
    rules_for_probes(&ground);
    ground.scratch.file("policies/web.yaml", 0o644, POLICY);
    let probes = if slow() { 50 } else { 10 };
    let mkdir = ["/bin/busybox", "mkdir", "/tmp/x"];
    let sleep = ["/bin/busybox", "sleep", "1000"];
    let group = format!("/kubepods/besteffort/pod-{}", ground.id);
    let ((refused, made, denied, plain), finished, alerts) = with_containerd(&ground, |cri| {
        cri.set_parent_group(&group);
        let named = [("tollgate.policy", "missing")];
        let refused = cri.run_pod("lost", "tollgate", &named).unwrap_err();
        let plain = cri.run_pod("plain", "tollgate", &[]).unwrap();
        let container = cri.run_container(&plain, "localhost/pod:1", &sleep);
        let container = container.unwrap();
        let container_of_plain = container.clone();
        let made = cri.exec(&container, &mkdir).unwrap();
        for _ in 0..probes {
            cri.exec(&container, &["/bin/sh", "-c", "true"]).unwrap();
        }
        assert!(has_group(&format!("{group}/{container}")));
        let copy = ["/bin/busybox", "cp", "/bin/busybox", "/tmp/true"];
        for command in [&copy[..], &["/tmp/true"]] {
            let done = cri.exec(&container, command).unwrap();
            assert_eq!(done.code, 0, "{command:?}: {done:?}");
        }
        cri.remove_pod(&plain).unwrap();
        let named = [("tollgate.policy", "web")];
        let web = cri.run_pod("web", "tollgate", &named).unwrap();
        let container = cri.run_container(&web, "localhost/pod:1", &sleep);
        let denied = cri.exec(&container.unwrap(), &mkdir).unwrap();
        cri.remove_pod(&web).unwrap();
        (refused, made, denied, container_of_plain)
    });
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(refused.contains("missing.yaml"), "{refused}");
    assert_eq!(made.code, 0, "{made:?}");
    assert_ne!(denied.code, 0, "{denied:?} {alerts:?}");
    let pods = fields(&alerts, "Policy violation", "k8s.pod.name");
    assert_eq!(pods, ["web"], "{alerts:?}");
    assert_decided(&alerts, probes);
    assert_dropped_in_pod(&alerts, &plain[..12], "plain");
    let doctor = std::fs::read_to_string(ground.scratch.path().join("doctor.json"));
    let doctor = doctor.expect("the script wrote it");
    assert!(doctor.contains("gets the annotations of pods"), "{doctor}");
}

/// Functions for podman with control groups of its own. Storage is not where it usually is.
const PODMAN: &str = r#"
cat > containers.conf <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
END
export CONTAINERS_CONF=$PWD/containers.conf
podman() {
    command podman --root "$PWD/storage" --runroot "$PWD/run" --runtime "$PWD/bin/tollgate-runtime" \
        --runtime-flag "config=$PWD/tollgate.yaml" --cgroup-manager cgroupfs "$@"
}
end() { podman rm --all --force --time 0; podman pod rm --all --force; }
unmount() { for n in $(seq 100); do umount "$PWD/storage" && return; sleep 0.1; done; return 1; }
trap 'end > end.out 2>&1; unmount' EXIT
mkdir storage; mount -t tmpfs none storage
ln -s busybox image/bin/sh
mkdir image/tmp
tar -C image -c . | podman import - localhost/tiny:1.2 > import.out 2>&1
drop() { podman exec $1 sh -c '/bin/busybox cp /bin/busybox /true; /true'; }
start() { name=$1; shift; podman run -d --name $name "$@" localhost/tiny:1.2 /bin/busybox sleep 1000 > $name.id; }
"#;

fn podman_on_host(ground: &RuntimeFixture, script: &str) -> Vec<Alert> {
    ground.scratch.file("rules.yaml", 0o644, RULES);
    let script = with_own_folders(&format!("{PODMAN}{script}"));
    let (finished, alerts) = ground.run_on_host(&script);
    assert_eq!(finished.code(), 0, "{finished:?}");
    alerts
}

/// Skips where podman is not installed.
macro_rules! need_podman_on_host {
    () => {
        need_root!();
        need_runtime!("runc");
        if !installed("podman") {
            skip!("needs podman", || Ok(
                "it is in no folder of PATH".to_owned()
            ));
        }
    };
}

fn assert_dropped(alerts: &[Alert], names: &[&str]) {
    let dropped = fields(alerts, "Dropped program", "container.name");
    assert_eq!(dropped, names, "{alerts:?}");
    let images = fields(alerts, "Dropped program", "container.image.repository");
    assert!(
        images.iter().all(|image| image == "localhost/tiny"),
        "{alerts:?}"
    );
    assert!(undecided(alerts).is_empty(), "{alerts:?}");
}

/// The monitor is on the host, whatever control group its engine has put it into.
#[test]
fn dropped_programs_are_seen_in_every_layout_of_control_groups() {
    need_podman_on_host!();
    let ground = RuntimeFixture::new().settings("runtime: {binary: runc}\n");
    let alerts = podman_on_host(
        &ground,
        r#"
podman pod create --name pod --network none --infra-image localhost/tiny:1.2 \
    --infra-command "/bin/busybox sleep 1000" > pod.id
start in-pod --pod pod
grep -q "$(cat pod.id)/conmon" /proc/$(cat run/*-containers/$(cat in-pod.id)/userdata/conmon.pid)/cgroup
drop in-pod
for probe in 1 2 3; do podman exec in-pod sh -c true; done
start alone --network none
drop alone
start elsewhere --network none --cgroup-parent "/$ID"
drop elsewhere
end > end.out 2>&1
find /sys/fs/cgroup -depth -type d -path "*/$ID*" -exec rmdir {} + 2> /dev/null || true
"#,
    );
    assert_dropped(&alerts, &["in-pod", "alone", "elsewhere"]);
}

#[test]
fn an_agent_of_the_host_that_a_pod_has_started_sees_containers_outside_of_it() {
    need_podman_on_host!();
    let ground =
        RuntimeFixture::new().settings("runtime: {binary: runc, agent: host, agent_linger: 1}\n");
    let alerts = podman_on_host(
        &ground,
        r#"
podman pod create --name pod --network none --infra-image localhost/tiny:1.2 \
    --infra-command "/bin/busybox sleep 1000" > pod.id
start in-pod --pod pod
drop in-pod
start alone --network none
drop alone
"#,
    );
    assert_dropped(&alerts, &["in-pod", "alone"]);
}

/// Writes the built-in rules, and one that shows the parents of probes.
fn rules_for_probes(ground: &RuntimeFixture) {
    let rules = std::fs::read_to_string(repository().join("rules/default.yaml"));
    let rules = rules.expect("it is in the repository");
    let text = format!("{rules}\n{RULES}\n{PROBE}");
    ground.scratch.file("rules.yaml", 0o644, text);
}

/// Nothing about probes is unknown, whether their runtime has ended or not: they are the ordinary life of a container.
fn assert_decided(alerts: &[Alert], probes: usize) {
    let of_probes = undecided(alerts);
    assert!(of_probes.is_empty(), "{}: {of_probes:?}", of_probes.len());
    let parents = fields(alerts, "Probe", "proc.pname");
    assert_eq!(parents, vec!["runc"; probes]);
    let programs = fields(alerts, "Probe", "proc.pexepath");
    assert!(
        programs.iter().all(|program| program.ends_with("/runc")),
        "{programs:?}"
    );
    let lines = fields(alerts, "Probe", "proc.pcmdline");
    assert!(
        lines.iter().all(|line| line.contains(" exec ")),
        "{lines:?}"
    );
}

#[test]
fn nothing_about_exec_probes_is_undecided() {
    need_podman_on_host!();
    let ground = RuntimeFixture::new().settings("runtime: {binary: runc}\n");
    rules_for_probes(&ground);
    // Before facts about the runtime were recorded, a quarter of them was undecided.
    let probes = if slow() { 25 } else { 8 };
    let script = with_own_folders(&format!(
        "{PODMAN}
start probed --network none
for probe in $(seq {probes}); do podman exec probed sh -c true; done
for probe in $(seq {probes}); do podman exec -d probed sh -c true; done
"
    ));
    let (finished, alerts) = ground.run_on_host(&script);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_decided(&alerts, 2 * probes);
}

/// podman repeats the flags of the runtime for most commands, and not for `state`.
#[test]
fn later_commands_know_the_runtime_and_the_configuration_of_a_container() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "touch /out/one; exec sleep 1000");
    let (finished, alerts) = ground.run(
        "runc",
        r#"
printf '#!/bin/sh\nexec runc --root %s/hidden "$@"\n' "$PWD" > other
chmod +x other
cat tollgate.yaml > other.yaml
echo "runtime: {binary: $PWD/other}" >> other.yaml
plain() { bin/tollgate-runtime "$@"; }
live() {
    plain start $ID
    await one
    case $(plain state $ID) in *'"running"'*) ;; *) exit 93 ;; esac
    plain exec $ID echo $1
    test -n "$(find state -mindepth 2)"
    plain kill $ID KILL
    plain delete --force $ID
    rm out/one
    settle
    test -z "$(remains $ID)"
}
plain --config other.yaml create --bundle b $ID < /dev/null > create.out 2>&1
live config
plain --runtime "$PWD/other" create --bundle b $ID < /dev/null > create.out 2>&1
live runtime
sed -i 's/runtime: {/&watch: none, /' other.yaml
plain --config other.yaml create --bundle b $ID < /dev/null > create.out 2>&1
live unwatched
if plain state $ID > state.out 2>&1; then exit 94; fi
grep -q 'does not exist' state.out
# What cannot be created leaves no record.
sed 's/"sh"/"no-such-program"/' b/config.json > changed; mv changed b/config.json
if plain --config other.yaml create --bundle b $ID < /dev/null > create.out 2>&1; then exit 95; fi
test -d state
test -z "$(find state -mindepth 2)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(
        finished.stdout, "config\nruntime\nunwatched\n",
        "{finished:?}"
    );
    assert!(!alerts.is_empty());
}

/// Whoever can choose an id must not be able to have the container of another engine ended.
#[test]
fn a_container_of_another_state_folder_is_reported_and_not_changed() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "touch /out/one; exec sleep 1000");
    ground.bundle("other", "exec sleep 1000");
    let (finished, _) = ground.run(
        "runc",
        r#"
plain() { bin/tollgate-runtime "$@"; }
refused() {
    ! plain "$@" > refused.out 2>&1
    grep -q "cannot $1 $ID: its runtime keeps it in $PWD/root" refused.out
    grep -q "name that folder: --root $PWD/root" refused.out
}
plain --root root create --bundle b $ID < /dev/null > create.out 2>&1
plain --root "$PWD/root" start $ID
await one
echo stray > state/stray
case $(plain --log log state $ID) in *'"running"'*) ;; *) exit 93 ;; esac
grep -q "cannot read $PWD/state/stray" log
refused kill $ID KILL
refused exec $ID true
refused pause $ID
refused delete --force $ID
case $(plain --root "$PWD/root" state $ID) in *'"running"'*) ;; *) exit 94 ;; esac
# A container of this id that the runtime has without us is the one that is meant.
runc create --bundle other $ID < /dev/null > create.out 2>&1
case $(plain state $ID) in *'"created"'*) ;; *) exit 95 ;; esac
plain kill $ID KILL
plain delete --force $ID
case $(plain state $ID) in *'"running"'*) ;; *) exit 96 ;; esac
plain --root "$PWD/root" delete --force $ID
rm state/stray
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
}

/// Runs podman as a user that is known only here.
const ROOTLESS: &str = r#"
for file in passwd group subuid subgid; do
    cat /etc/$file > $file 2> /dev/null || true
    test -e /etc/$file || continue
    echo "e2euser:x:54321:54321::$PWD/home:/bin/sh" >> $file
done
sed -i '$d' group subuid subgid
echo 'e2euser:x:54321:' >> group
for file in subuid subgid; do echo 'e2euser:2000000:65536' >> $file; done
for file in passwd group subuid subgid; do mount --bind $file /etc/$file; done
mkdir -p home run tmp
touch alerts
chown 54321:54321 home run tmp alerts
chmod 700 run
chmod 755 . bin
cat > user.sh <<'END'
set -eu
engine() {
    podman --root "$PWD/home/storage" --runroot "$PWD/home/run" --cgroup-manager cgroupfs --storage-driver vfs \
        --events-backend file --runtime "$PWD/bin/tollgate-runtime" --runtime-flag "config=$PWD/tollgate.yaml" "$@"
}
# podman leaves a process that keeps the user namespace.
end() {
    engine rm --all --force --time 0 > home/end.out 2>&1
    podman unshare rm -rf "$PWD/home/storage"
    kill "$(cat run/libpod/tmp/pause.pid)"
}
trap end EXIT
tar -C image -c . | engine import - localhost/tiny:1.2 > home/import.out 2>&1
engine run -d --name mine --network none localhost/tiny:1.2 /bin/busybox sleep 1000 > home/id
engine exec mine sh -c true
test -e "run/tollgate/runtime/default/$(cat home/id)/container.json"
engine rm --force --time 0 mine
test -z "$(find run/tollgate/runtime -mindepth 2)"
END
setpriv --reuid 54321 --regid 54321 --clear-groups \
    env -i PATH="$PATH" HOME="$PWD/home" XDG_RUNTIME_DIR="$PWD/run" TMPDIR="$PWD/tmp" sh -eux user.sh
"#;

#[test]
fn rootless_podman_has_its_containers_watched_and_removed() {
    need_podman_on_host!();
    if !installed("newuidmap") {
        skip!("needs newuidmap", || Ok(
            "it is in no folder of PATH".to_owned()
        ));
    }
    let ground = RuntimeFixture::new().settings("runtime: {binary: runc}\n");
    ground.scratch.file("rules.yaml", 0o644, PROBE);
    let image =
        "mkdir -p image/bin image/tmp; cp /bin/busybox image/bin/; ln -s busybox image/bin/sh\n";
    let (finished, alerts) = ground.run_on_host(&format!("{image}{ROOTLESS}"));
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(
        fields(&alerts, "Probe", "container.name"),
        ["mine"],
        "{alerts:?}"
    );
    assert!(undecided(&alerts).is_empty(), "{alerts:?}");
}
