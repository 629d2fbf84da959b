//! The same in an emulated machine that has no control groups but those of version 2, all controllers enabled.

use std::path::Path;
use std::time::Duration;

use e2e::{Alert, Guest, Identity, need_slow};

use super::{assert_told_apart, files, script_of_groups};

const FOLDER: &str = "/srv/layouts";

/// Prepares the guest, whose kernel has overlayfs as a module.
const GUEST: &str = r#"
PATH=$PATH:/opt/busybox
insmod /overlay.ko || exit 90
busybox mount -t cgroup2 none /sys/fs/cgroup || exit 91
busybox mount -t bpf bpf /sys/fs/bpf || exit 92
mkdir /sys/fs/cgroup/script && echo $$ > /sys/fs/cgroup/script/cgroup.procs || exit 93
for name in $(cat /sys/fs/cgroup/cgroup.controllers); do echo +$name > /sys/fs/cgroup/cgroup.subtree_control || exit 94; done
for applet in rmdir seq umount; do ln -s /usr/bin/busybox /opt/busybox/$applet || exit 95; done
mkdir -p /srv && busybox mount -t tmpfs none /srv && mkdir -p FOLDER/bin && cd FOLDER || exit 96
cp /usr/local/bin/tollgate bin/tollgate-runtime
export TOLLGATE=/usr/local/bin/tollgate TOLLGATE_RUNTIME_STATE=$PWD/state TOLLGATE_RUNTIME_CONFIG=$PWD/tollgate.yaml
"#;

fn play_in_guest(engine: &str) {
    if let Some(why) = Guest::missing() {
        panic!("{why}");
    }
    let (script, containers) = script_of_groups();
    let mut commands = GUEST.replace("FOLDER", FOLDER);
    for (name, text) in files(Path::new(FOLDER), &script) {
        commands.push_str(&format!(
            "cat > {name} <<'END OF FILE'\n{text}\nEND OF FILE\n"
        ));
    }
    commands.push_str(&format!(
        "ENGINE={engine} unshare --mount --propagation private sh -eux script.sh >&2\nstatus=$?\n\
         cat alerts\nexit $status\n"
    ));
    let guest = Guest::new()
        .option("cgroup_no_v1=all")
        .module("fs/overlayfs/overlay.ko")
        .program("runc")
        .limit(Duration::from_secs(1200));
    let run = guest.run(0, Identity::Root, &commands);
    assert_eq!(run.code, 0, "{}\n{}", run.stderr, run.stdout);
    let alerts: Vec<_> = run.stdout.lines().filter_map(Alert::parse).collect();
    assert_told_apart(&alerts, &containers);
}

#[test]
fn groups_of_version_2_alone_tell_containers_to_watch() {
    need_slow!();
    play_in_guest("watch");
}

#[test]
fn containers_in_groups_of_version_2_alone_are_known_to_their_own_agent() {
    need_slow!();
    play_in_guest("runtime");
}
