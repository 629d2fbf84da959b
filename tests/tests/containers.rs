//! Containers of real runtimes: who they are is known at their first program.
//!
//! Runtimes run in a mount namespace with folders of their own, so that nothing of the machine's
//! is touched. Standard input and output of a container are its own, so it is recognised by alerts.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Alert, Engine, Finished, Limited, Scratch, installed, need_root, program, skip};

const LIMIT: Duration = Duration::from_secs(60);

const RULES: &str = r#"
- rule: Program in a container
  desc: every program that a container starts
  condition: evt.type = execve and proc.name = busybox and container.id != host
  output: >
    seen (id=%container.full_id name=%container.name image=%container.image
    tag=%container.image.tag digest=%container.image.digest image_id=%container.image.id
    type=%container.type labels=%container.labels team=%container.label[team]
    mount=%container.mount[/tmp] data=%container.mount.source[/data] writable=%container.mount.rdwr[/tm?]
    none=%container.mount[99] pid=%container.host_pid network=%container.host_network
    privileged=%container.privileged metadata=%container.metadata)
  priority: INFO
"#;

/// What is mounted over, so that it is the test's own.
const OWN_FOLDERS: &str = "/var/lib/containerd /run/containerd /var/lib/containers /run/containers \
                           /run/libpod /run/runc /run/netns /etc/cni /var/lib/cni";

/// Runs a script watched, with the runtimes' folders empty, and the image `localhost/tiny:1.2` in an
/// archive of the work folder.
fn watch(script: &str) -> (Finished, Vec<Alert>) {
    let scratch = Scratch::new();
    let rules = scratch.file("rules.yaml", 0o644, RULES);
    scratch.file("script.sh", 0o755, script);
    let outer = format!(
        "set -eu; for folder in {OWN_FOLDERS}; do \
             test ! -d $folder || mount -t tmpfs none $folder; done; \
         mkdir -p image/bin /var/lib/containerd /var/lib/containers; \
         cp /bin/busybox image/bin/; \
         exec \"$0\" run {} --quiet --json --rules \"$1\" -- sh -eu script.sh",
        Engine::under_test().options().join(" ")
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", &outer])
        .arg(program())
        .arg(rules)
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    let alerts = finished.stderr.lines().filter_map(Alert::parse);
    let alerts = alerts
        .filter(|alert| alert.rule == "Program in a container")
        .collect();
    (finished, alerts)
}

fn only<'a>(finished: &Finished, alerts: &'a [Alert]) -> &'a Alert {
    assert_eq!(finished.code(), 0, "{finished:?}");
    let [alert] = alerts else {
        panic!("one alert expected: {alerts:?} {finished:?}")
    };
    alert
}

fn check(alert: &Alert, fields: &[(&str, &str)]) {
    for (field, value) in fields {
        assert_eq!(alert.field(field), *value, "{field}: {alert}");
    }
    for (field, prefix) in [
        ("container.image.digest", "sha256:"),
        ("container.image.id", ""),
    ] {
        let hex = alert.field(field);
        let hex = hex
            .strip_prefix(prefix)
            .unwrap_or_else(|| panic!("{alert}"));
        let is_hash = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_hash, "{field}: {alert}");
    }
}

const IMPORT: &str = r#"
# The same image for all: one program, two labels.
tar -C image -c . | podman --runtime runc import --change 'LABEL maker=tests' - localhost/tiny:1.2
"#;

#[test]
fn podmans_are_known_by_name_image_labels_and_mounts() {
    need_root!();
    if let Some(missing) = ["podman", "runc"].into_iter().find(|name| !installed(name)) {
        skip!("needs podman and runc", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let (finished, alerts) = watch(&format!(
        "{IMPORT}
podman --runtime runc --cgroup-manager cgroupfs run --rm --name web --label team=red \
    --network none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 \
    --volume /tmp:/data:ro localhost/tiny:1.2 /bin/busybox true"
    ));
    let alert = only(&finished, &alerts);
    check(
        alert,
        &[
            ("container.name", "web"),
            ("container.image", "localhost/tiny:1.2"),
            ("container.image.tag", "1.2"),
            ("container.type", "podman"),
            ("container.labels", "maker:tests,team:red"),
            ("container.label[team]", "red"),
            ("container.mount[/tmp]", "/tmp:/data:ro:false:rprivate"),
            ("container.mount.source[/data]", "/tmp"),
            ("container.mount.rdwr[/tm?]", "false"),
            ("container.mount[99]", "none"),
            ("container.host_pid", "false"),
            ("container.host_network", "false"),
            ("container.privileged", "false"),
            ("container.metadata", "known"),
        ],
    );
    assert_eq!(alert.field("container.full_id").len(), 64, "{alert}");
}

#[test]
fn containerds_are_known_by_name_image_labels_and_mounts() {
    need_root!();
    let tools = ["containerd", "ctr", "podman", "runc"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr, podman and runc", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let (finished, alerts) = watch(&format!(
        "{IMPORT}
podman save --format oci-archive --output tiny.tar localhost/tiny:1.2
containerd 2> containerd.log & daemon=$!
for try in $(seq 100); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
ctr image import tiny.tar
status=0
ctr run --rm --label team=blue --net-host --mount type=bind,src=/tmp,dst=/data,options=rbind:rw \
    localhost/tiny:1.2 shop /bin/busybox true || status=$?
kill $daemon; wait $daemon || true
exit $status"
    ));
    check(
        only(&finished, &alerts),
        &[
            ("container.full_id", "shop"),
            ("container.name", "shop"),
            ("container.image", "localhost/tiny:1.2"),
            ("container.type", "containerd"),
            ("container.label[team]", "blue"),
            ("container.mount[/tmp]", "/tmp:/data::true:"),
            ("container.mount.source[/data]", "/tmp"),
            ("container.mount.rdwr[/tm?]", "true"),
            ("container.host_pid", "false"),
            ("container.host_network", "true"),
            ("container.metadata", "known"),
        ],
    );
}

/// The kernel's mark of a container alone, without any runtime's files.
#[test]
fn one_that_nobody_wrote_down_says_so() {
    need_root!();
    let pids = Path::new("/sys/fs/cgroup/pids");
    if !pids.join("cgroup.procs").is_file() {
        skip!("needs the first version of control groups", || Ok(format!(
            "{} is no hierarchy",
            pids.display()
        )));
    }
    let id = "0123456789abcdef".repeat(4);
    let group = pids.join("docker").join(&id);
    let (finished, alerts) = watch(&format!(
        "mkdir -p {0}
sh -c 'echo $$ > {0}/cgroup.procs; exec /bin/busybox true'
rmdir {0}",
        group.display()
    ));
    let _ = std::fs::remove_dir(pids.join("docker"));
    let alert = only(&finished, &alerts);
    assert_eq!(alert.field("container.full_id"), id);
    assert_eq!(alert.field("container.type"), "docker");
    assert_eq!(alert.field("container.name"), "<NA>");
    assert_eq!(
        alert.field("container.metadata"),
        "no files of docker about it below /"
    );
}
