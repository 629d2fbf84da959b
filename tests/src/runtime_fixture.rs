//! Environment for containers of `tollgate runtime`.
//!
//! Each test is a shell script that runs as the first process of a pid namespace, with mounts of its own.
//! Whatever the script leaves behind ends with the namespace, and can be counted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{Alert, Finished, Limited, Scratch, installed, program};

/// Time limit of a script.
pub const LIMIT: Duration = Duration::from_secs(175);

const RULES: &str = r#"
- rule: Program
  desc: every program
  condition: evt.type in (execve, execveat)
  output: >
    program %proc.name (id=%container.id name=%container.name image=%container.image
    annotation=%container.annotation[org.example.team] all=%container.annotations
    host=%container.host_pid type=%container.type result=%evt.res pod=%k8s.pod.name ns=%k8s.ns.name
    label=%container.label[team] metadata=%container.metadata)
  priority: INFO

- rule: Secret opened
  desc: what only the container's own programs open, and what every runtime opens
  condition: >
    evt.type in (open, openat, openat2) and
    (fd.name = /etc/secret or fd.name startswith /proc/self or fd.name endswith config.json)
  output: opened %fd.name (id=%container.id program=%proc.name)
  priority: INFO
"#;
/// Functions of all scripts. `rt` is the runtime under test.
const PRELUDE: &str = r#"
set -eu
# Scripts look for processes by name and end them: only where all that there are belong to this script.
test $$ = 1 && test /proc/1/cwd -ef . || exit 99
export TOLLGATE_RUNTIME_STATE=$PWD/state TOLLGATE_RUNTIME_CONFIG=$PWD/tollgate.yaml
# crun 1.8 refuses a machine with both hierarchies of control groups; the mounts are this script's own.
# It makes folders in the place of the second, and leaves them, also without us.
unified=/sys/fs/cgroup/unified
case "$RUNTIME" in
    *crun) if umount $unified 2> /dev/null; then mount -t tmpfs none $unified; fi ;;
    *) unified= ;;
esac
rt() { bin/tollgate-runtime --runtime "$RUNTIME" --root "$PWD/root" "$@"; }
# Processes of ours and of the runtime that are there.
left() { grep -lE '^(tollgate|runc|crun|sleep|exe$)' /proc/[0-9]*/comm 2> /dev/null || true; }
# Waits until there are none.
settle() {
    for try in $(seq 200); do test -n "$(left)" || return 0; sleep 0.05; done
    for file in $(left); do echo "left: $(cat "$file" || true)"; done
    exit 90
}
# How many sockets this script's processes have: in its name space of network other tests have some, too.
sockets() { find /proc/[0-9]*/fd -lname 'socket:*' 2> /dev/null | wc -l; }
# Waits until a container's first program says that it runs.
await() { for try in $(seq 400); do test ! -e "out/$1" || return 0; sleep 0.01; done; exit 91; }
await_stop() {
    for try in $(seq 400); do
        case $(rt state "$1") in *'"stopped"'*) return 0 ;; esac
        sleep 0.01
    done
    exit 92
}
# Everything that a container may have left on the machine.
remains() {
    find state root -mindepth 2 -name "$1*" 2> /dev/null || true
    find /sys/fs/cgroup -path "$unified/*" -prune -o -type d -name "$1*" -print 2> /dev/null || true
    grep -F "$1" /proc/self/mountinfo || true
}
"#;

/// Beginning of scripts that run in the pid namespace of the test.
const HOST_PRELUDE: &str = "set -eu
export TOLLGATE_RUNTIME_STATE=$PWD/state TOLLGATE_RUNTIME_CONFIG=$PWD/tollgate.yaml
";

/// A folder with the runtime under test, and a private namespace for its scripts.
#[derive(Debug)]
pub struct RuntimeFixture {
    /// The folder.
    pub scratch: Scratch,
    settings: String,
    /// Prefix of the ids of this test's containers. Control groups of the host are named by them.
    pub id: String,
}

impl RuntimeFixture {
    /// Creates a folder with the runtime under test, rules, and a root file system.
    ///
    /// # Panics
    /// If it cannot be made.
    #[expect(clippy::new_without_default, reason = "it makes files and folders")]
    pub fn new() -> Self {
        let scratch = Scratch::new();
        for folder in [
            "bin",
            "out",
            "root",
            "rootfs/bin",
            "rootfs/etc",
            "rootfs/proc",
        ] {
            std::fs::create_dir_all(scratch.path().join(folder)).expect("it is our folder");
        }
        for folder in ["rootfs/out", "rootfs/dev", "rootfs/tmp"] {
            std::fs::create_dir_all(scratch.path().join(folder)).expect("it is our folder");
        }
        scratch.program(&program(), "bin/tollgate-runtime");
        scratch.program(Path::new("/bin/busybox"), "rootfs/bin/busybox");
        for name in ["sh", "sleep", "true", "cat", "mkdir", "echo", "touch"] {
            let target = scratch.path().join("rootfs/bin").join(name);
            std::os::unix::fs::symlink("busybox", target).expect("it is our folder");
        }
        scratch.file("rootfs/etc/secret", 0o644, "secret\n");
        scratch.file("rules.yaml", 0o644, RULES);
        let path = scratch.path().display();
        let settings = format!(
            "rules_files: [{path}/rules.yaml]\njson_output: true\n\
             file_output: {{enabled: true, filename: {path}/alerts}}\n"
        );
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let id = format!("t{}n{number}", std::process::id());
        Self {
            scratch,
            settings,
            id,
        }
    }

    /// Appends to the configuration.
    #[must_use]
    pub fn settings(mut self, more: &str) -> Self {
        self.settings.push_str(more);
        self
    }

    /// Makes a bundle whose first program is a shell script.
    pub fn bundle(&self, name: &str, script: &str) -> &Self {
        self.changed_bundle(name, script, |_| {})
    }

    /// Makes a bundle whose configuration is changed before it is written.
    pub fn changed_bundle(
        &self,
        name: &str,
        script: &str,
        change: impl FnOnce(&mut serde_json::Value),
    ) -> &Self {
        let path = self.scratch.path();
        let namespaces = ["pid", "mount", "ipc", "uts", "network"];
        let namespaces = namespaces.map(|kind| serde_json::json!({"type": kind}));
        let mut config = serde_json::json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": ["sh", "-c", script],
                "env": ["PATH=/bin"],
                "cwd": "/",
            },
            "root": {"path": path.join("rootfs"), "readonly": true},
            "annotations": {"org.example.team": "red"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc"},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
                {"destination": "/out", "type": "none", "source": path.join("out"),
                 "options": ["rbind", "rw"]},
            ],
            "linux": {"namespaces": namespaces},
        });
        change(&mut config);
        let text = serde_json::to_string(&config).expect("it is JSON");
        self.scratch
            .file(&format!("{name}/config.json"), 0o644, text);
        self
    }

    /// Runs a script. Returns its result and the alerts.
    pub fn run(&self, runtime: &str, script: &str) -> (Finished, Vec<Alert>) {
        self.run_within(runtime, script, LIMIT)
    }

    /// Runs a script within a time limit.
    pub fn run_within(
        &self,
        runtime: &str,
        script: &str,
        limit: Duration,
    ) -> (Finished, Vec<Alert>) {
        let namespace = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        self.run_in(&namespace, runtime, &format!("{PRELUDE}{script}"), limit)
    }

    /// Runs a script in the pid namespace of this test, so that what it starts is on the host if the test is. The
    /// script must end what it starts.
    pub fn run_on_host(&self, script: &str) -> (Finished, Vec<Alert>) {
        let script = format!("{HOST_PRELUDE}{script}");
        self.run_in(&[], "runc", &script, LIMIT)
    }

    fn run_in(
        &self,
        namespaces: &[&str],
        runtime: &str,
        script: &str,
        limit: Duration,
    ) -> (Finished, Vec<Alert>) {
        self.scratch.file("tollgate.yaml", 0o644, &self.settings);
        self.scratch.file("script.sh", 0o755, script);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private"])
            .args(namespaces)
            .args(["sh", "-eux", "script.sh"])
            .env("RUNTIME", runtime)
            .env("ID", &self.id)
            .current_dir(self.scratch.path())
            .stdin(Stdio::null());
        let finished = Limited::start(&mut command, limit).finish(b"");
        let text = std::fs::read_to_string(self.scratch.path().join("alerts"));
        let alerts = text
            .unwrap_or_default()
            .lines()
            .filter_map(Alert::parse)
            .collect();
        (finished, alerts)
    }
}

/// Folders that are mounted over, so that the test has its own.
const OWN_FOLDERS: &str = "/var/lib/containerd /run/containerd /var/lib/containers /run/containers \
                           /run/libpod /run/runc /run/netns /etc/cni /var/lib/cni";

/// Returns a script with an image, `localhost/tiny:1.2`, and private folders of container engines.
pub fn with_own_folders(script: &str) -> String {
    format!(
        "for folder in {OWN_FOLDERS}; do test ! -d $folder || mount -t tmpfs none $folder; done
mkdir -p image/bin /var/lib/containerd /var/lib/containers /run/tollgate
mount -t tmpfs none /run/tollgate
# podman starts the runtime without TOLLGATE_RUNTIME_STATE, so the state is in the default folder.
entries() {{ find state /run/tollgate/runtime -mindepth 2 2> /dev/null || true; }}
cp /bin/busybox image/bin/
tar -C image -c . | podman --runtime runc import --change 'LABEL maker=tests' - localhost/tiny:1.2 \
    > import.out 2>&1
{script}"
    )
}

/// Returns gVisor's runtime, which distributions do not have: `TOLLGATE_TEST_RUNSC` names it.
pub fn runsc() -> Option<String> {
    std::env::var("TOLLGATE_TEST_RUNSC")
        .ok()
        .or_else(|| installed("runsc").then(|| "runsc".to_owned()))
}

/// Returns a script that runs while a monitor watches sandboxes by the rules of a file. The script prints the
/// last line of the statistics.
pub fn watching_sandboxes(rules: &str, script: &str) -> String {
    format!(
        r#"
bin/tollgate-runtime --help > help.txt
test -e bin/tollgate || ln bin/tollgate-runtime bin/tollgate
bin/tollgate watch --gvisor "$PWD/sink" --gvisor-session session.json --rules {rules} --json \
    -s stats.jsonl -o stdout_output.enabled=false -o file_output.enabled=true \
    -o file_output.filename=$PWD/alerts & watch=$!
for try in $(seq 200); do test ! -s session.json || break; sleep 0.05; done
{script}
for try in $(seq 100); do ! grep -q ' 00010000 .* 01 ' /proc/net/unix || break; sleep 0.02; done
sleep 0.3
kill -TERM $watch; wait $watch
test ! -e sink
tail -n 1 stats.jsonl
"#
    )
}

/// Returns the reason why a runtime does not work here by itself. `None` if it works.
pub fn hindrance(runtime: &str) -> Option<String> {
    if runtime == "embedded" {
        let mut command = Command::new(program());
        command.args(["runtime", "--runtime", "embedded", "list"]);
        let finished = Limited::start(command.stdin(Stdio::null()), LIMIT).finish(b"");
        return (finished.code() != 0).then(|| finished.stderr.trim().to_owned());
    }
    if !installed(runtime) {
        return Some(format!("{runtime} is in no folder of PATH"));
    }
    let ground = RuntimeFixture::new();
    // youki's `run` waits for ever for a container that ends before it looks.
    ground.bundle("b", "sleep 0.3");
    let script = "\"$RUNTIME\" --root $PWD/root run --bundle b $ID < /dev/null";
    let (finished, _) = ground.run(runtime, script);
    (finished.code() != 0).then(|| format!("{runtime}: {}", finished.stderr.trim()))
}

/// Ends a test that needs a runtime that does not work here.
#[macro_export]
macro_rules! need_runtime {
    ($runtime:expr) => {
        $crate::need_root!();
        if let Some(why) = $crate::runtime_fixture::hindrance($runtime) {
            $crate::skip!(&format!("needs the runtime {}", $runtime), || Ok(why));
        }
    };
}

/// Returns the values of a field in the alerts of a rule.
pub fn fields(alerts: &[Alert], rule: &str, field: &str) -> Vec<String> {
    let alerts = alerts.iter().filter(|alert| alert.rule == rule);
    alerts.map(|alert| alert.field(field)).collect()
}

/// Function `victim NUMBER PID...` of a script: kills one of these processes, or of ours, and says which.
pub const VICTIM: &str = r#"
victim() {
    list=$(grep -l '^tollgate' /proc/[0-9]*/comm 2> /dev/null || true)
    set -- $1 $list
    number=$1; shift
    test $# -gt 0 || return 0
    shift $((number % $#))
    pid=${1#/proc/}; pid=${pid%/comm}
    echo "killed $(cat $1 || true)"
    kill -9 $pid || true
}
"#;

/// Returns pseudo-random numbers below the given one, from the seed in `SEED`, which it prints.
///
/// # Panics
/// If `SEED` is no number.
pub fn random_numbers() -> impl FnMut(u64) -> u64 {
    let seed = std::env::var("SEED").map_or(4_711, |seed| seed.parse().expect("a number"));
    println!("SEED={seed}");
    let mut state: u64 = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}
