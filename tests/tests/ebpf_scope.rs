//! `tollgate watch` of containers and control groups: what is outside does not leave the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use e2e::{Alert, Finished, Limited, Scratch, installed, need_root, program, skip, watch_host};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

const RULES: &str = "\
- rule: Program
  desc: every program
  condition: evt.type = execve and evt.res = SUCCESS and proc.name in (busybox, echo, true)
  output: seen %proc.cmdline in %container.name %container.id
  priority: INFO
";

/// A control group that is removed again.
struct Group(PathBuf);

impl Group {
    fn new(hierarchy: &Path, name: &str) -> Self {
        let path = hierarchy.join(format!("tollgate-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("root makes control groups");
        Self(path)
    }

    /// Runs `echo WORD` in it.
    fn echo(&self, word: &str) {
        let script = "echo $$ > $0/cgroup.procs; exec /bin/echo $1";
        let mut echo = Command::new("sh");
        echo.args(["-c", script]).arg(&self.0).arg(word);
        let done = echo.stdout(Stdio::null()).status();
        assert!(done.expect("a shell").success());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last process may not be gone yet.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A hierarchy of each version that there is.
fn hierarchies() -> Vec<PathBuf> {
    let second = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    let second = second
        .into_iter()
        .find(|folder| folder.join("cgroup.controllers").exists());
    let first = Path::new("/sys/fs/cgroup/pids");
    let first = Some(first).filter(|folder| folder.join("tasks").exists());
    second
        .into_iter()
        .chain(first)
        .map(Path::to_owned)
        .collect()
}

fn rejected(stats: &Value) -> u64 {
    let count = &stats["counters"]["rejected_scope"];
    count.as_u64().expect("it is counted")
}

#[test]
fn a_control_group_is_watched_with_those_below_and_nothing_else() {
    need_root!();
    let hierarchies = hierarchies();
    if hierarchies.is_empty() {
        skip!("has no control groups", || Ok(String::from(
            "none below /sys/fs/cgroup"
        )));
    }
    for hierarchy in hierarchies {
        let (group, other) = (
            Group::new(&hierarchy, "seen"),
            Group::new(&hierarchy, "unseen"),
        );
        let folder = group.0.display().to_string();
        let (printed, stats) = watch_host(&["--cgroup", &folder], RULES, || {
            // One that is made later, and one whose name begins in the same way.
            let below = Group::new(&group.0, "below");
            let like = Group::new(&hierarchy, "seen-not");
            group.echo("inside");
            below.echo("below");
            for _ in 0..50 {
                other.echo("other");
                like.echo("alike");
            }
            group.echo("last");
        });
        let names = |word: &str| printed.matches(&format!("seen echo {word} ")).count();
        let counts = ["inside", "below", "last", "other", "alike"].map(names);
        assert_eq!(counts, [1, 1, 1, 0, 0], "{folder}: {printed} {stats}");
        assert_eq!(stats["cur"]["drops"], 0, "{stats}");
    }
}

#[test]
fn what_is_outside_does_not_leave_the_kernel() {
    need_root!();
    let Some(hierarchy) = hierarchies().into_iter().next() else {
        skip!("has no control groups", || Ok(String::from(
            "none below /sys/fs/cgroup"
        )));
    };
    let group = Group::new(&hierarchy, "kept");
    let folder = group.0.display().to_string();
    let rules = "- rule: Each\n  desc: x\n  condition: evt.type in (open, openat)\n  output: x\n  priority: DEBUG\n";
    let (_, stats) = watch_host(&["--cgroup", &folder], rules, || {
        for _ in 0..2000 {
            fs::read("/proc/self/stat").expect("every process has one");
        }
    });
    // The first records of a place are sent, for the agent to decide about it.
    assert!(rejected(&stats) >= 1500, "{stats}");
    // A share, because other processes of the host open files, too.
    let counter = |name: &str| stats["counters"][name].as_u64().expect("it is counted");
    assert!(counter("sent") * 4 < counter("seen_in_kernel"), "{stats}");
}

#[test]
fn a_container_that_is_not_there_is_said_to_be_waited_for() {
    need_root!();
    let Some(hierarchy) = hierarchies().into_iter().next() else {
        skip!("has no control groups", || Ok(String::from(
            "none below /sys/fs/cgroup"
        )));
    };
    // As a runtime names the control group of a container.
    let outer = Group::new(&hierarchy, "waited");
    let id = format!(
        "{:064x}",
        0xc0_ffee_0000_0000_u64 + u64::from(std::process::id())
    );
    let inner = Group(outer.0.join(&id));
    fs::create_dir(&inner.0).expect("root makes control groups");
    let mut inside = Command::new("sh");
    inside
        .args(["-c", "echo $$ > $0/cgroup.procs; echo in; exec sleep 100"])
        .arg(&inner.0)
        .stdout(Stdio::piped());
    let mut inside = inside.spawn().expect("a shell");
    let mut word = [0; 2];
    let mut out = inside.stdout.take().expect("it is a pipe");
    std::io::Read::read_exact(&mut out, &mut word).expect("it has joined");
    let said = |options: &[&str]| {
        let mut command = Command::new(program());
        command.args(["watch", "-M", "1", "--container", &id]);
        let finished = Limited::start(command.args(options), LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{finished:?}");
        let lines = finished.stderr.lines();
        let waited: Vec<String> = lines
            .filter(|line| line.contains("waiting for one"))
            .map(str::to_owned)
            .collect();
        waited
    };
    let mistyped = said(&["--container", "web-typo"]);
    let quiet = said(&["--container", "web-typo", "-q"]);
    let there = said(&[]);
    inside.kill().expect("it runs");
    inside.wait().expect("it is a child");
    assert!(
        matches!(&mistyped[..], [line] if line.contains("no container has the name or ID `web-typo` yet")),
        "{mistyped:?}"
    );
    assert!(quiet.is_empty() && there.is_empty(), "{quiet:?} {there:?}");
}

#[test]
fn while_a_container_is_waited_for_no_other_process_is_shown() {
    need_root!();
    let Some(hierarchy) = hierarchies().into_iter().next() else {
        skip!("has no control groups", || Ok(String::from(
            "none below /sys/fs/cgroup"
        )));
    };
    // A container of a runtime that wrote down no name, and the one that is waited for by the beginning of its id.
    let outer = Group::new(&hierarchy, "others");
    let id = |number: u64| format!("{number:064x}");
    let own = 0xc0_ffee_0000_0000_u64 + u64::from(std::process::id());
    let (other, waited) = (id(own), id(own + (1 << 60)));
    let script = r#"
"$0" watch -M 6 --rules "$1" --container "$2" > alerts 2> messages & watcher=$!
while ! grep -q 'Ctrl-C stops' messages; do sleep 0.05; done
/bin/echo host
# Nobody can say whose namespaces these are.
unshare --mount --pid --fork --cgroup /bin/busybox echo namespaces
sh -c 'echo $$ > $0/cgroup.procs; exec unshare --mount --pid --fork /bin/echo nameless' "$3/$4"
sh -c 'echo $$ > $0/cgroup.procs; exec unshare --mount --pid --fork /bin/echo wanted' "$3/$2"
wait $watcher
cat alerts messages
"#;
    let groups = [&other, &waited].map(|id| Group(outer.0.join(id)));
    for group in &groups {
        fs::create_dir(&group.0).expect("root makes control groups");
    }
    let scratch = Scratch::new();
    let rules = scratch.file("rules.yaml", 0o644, RULES);
    let mut command = Command::new("sh");
    command.args(["-euc", script]).arg(program()).arg(rules);
    command.arg(&waited).arg(&outer.0).arg(&other);
    let finished = Limited::start(command.current_dir(scratch.path()), LIMIT).finish(b"");
    assert_eq!(finished.code(), 0, "{finished:?}");
    let printed = &finished.stdout;
    assert!(printed.contains("waiting for one"), "{finished:?}");
    let seen: Vec<_> = printed
        .lines()
        .filter(|line| line.contains("seen "))
        .collect();
    assert!(
        matches!(&seen[..], [line] if line.contains("seen echo wanted")),
        "{finished:?}"
    );
}

#[test]
fn what_is_no_control_group_is_refused() {
    need_root!();
    for (path, words) in [
        (
            "/sys/fs/cgroup/no/such/group",
            "cannot find the control group",
        ),
        ("/etc", "it is in no file system of cgroups"),
    ] {
        let mut command = Command::new(program());
        command.args(["watch", "--cgroup", path]);
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), 2, "{finished:?}");
        assert!(finished.stderr.contains(words), "{finished:?}");
        assert!(finished.stderr.contains("help: "), "{finished:?}");
    }
}

/// What is mounted over, so that it is the test's own.
const OWN_FOLDERS: &str = "/var/lib/containerd /run/containerd /var/lib/containers /run/containers \
                           /run/libpod /run/runc /run/netns /etc/cni /var/lib/cni";

/// Watches the container `NAME` from before it is there, while a script starts it and others; the image
/// `localhost/tiny:1.2` is there.
fn watch_container(name: &str, script: &str) -> (Finished, Vec<Alert>) {
    // Containers of the other test have their names in folders that this one does not see.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let scratch = Scratch::new();
    let rules = scratch.file("rules.yaml", 0o644, RULES);
    scratch.file("script.sh", 0o755, script);
    let outer = format!(
        "set -eu; for folder in {OWN_FOLDERS}; do \
             test ! -d $folder || mount -t tmpfs none $folder; done; \
         mkdir -p image/bin /var/lib/containerd /var/lib/containers; \
         cp /bin/busybox image/bin/
         tar -C image -c . | podman --runtime runc import - localhost/tiny:1.2 > /dev/null
         \"$0\" watch --quiet --json --rules \"$1\" -P pid --container {name} > alerts & watcher=$!
         while ! test -s pid; do sleep 0.05; done
         status=0; sh -eu script.sh || status=$?
         sleep 0.5; kill $watcher; wait $watcher || status=$?
         cat alerts; exit $status"
    );
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "sh", "-c", &outer])
        .arg(program())
        .arg(rules)
        .current_dir(scratch.path())
        .stdin(Stdio::null());
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(finished.code(), 0, "{finished:?}");
    let alerts = finished.stdout.lines().filter_map(Alert::parse);
    let alerts = alerts.filter(|alert| alert.rule == "Program").collect();
    (finished, alerts)
}

fn outputs(alerts: &[Alert]) -> Vec<String> {
    let words = |alert: &Alert| {
        let said = alert
            .output
            .split_once("seen ")
            .map_or("", |(_, said)| said);
        said.split(" in ").next().unwrap_or_default().to_owned()
    };
    let mut said: Vec<_> = alerts.iter().map(words).collect();
    said.sort();
    said
}

#[test]
fn a_container_of_podman_is_watched_by_its_name_before_it_is_there() {
    need_root!();
    if let Some(missing) = ["podman", "runc"].into_iter().find(|name| !installed(name)) {
        skip!("needs podman and runc", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let run = "podman --runtime runc --cgroup-manager cgroupfs run --rm --network none \
               --ulimit nofile=1024:1024 --ulimit nproc=1000:1000";
    let (finished, alerts) = watch_container(
        "web",
        &format!(
            "/bin/echo on-the-host
{run} --name other localhost/tiny:1.2 /bin/busybox echo other
{run} --name web localhost/tiny:1.2 /bin/busybox sh -c '/bin/busybox echo first; /bin/busybox true'
{run} --name webs localhost/tiny:1.2 /bin/busybox echo webs
{run} --name web localhost/tiny:1.2 /bin/busybox echo again"
        ),
    );
    let expected = [
        "busybox echo again",
        "busybox echo first",
        "busybox sh -c /bin/busybox echo first; /bin/busybox true",
        "busybox true",
    ];
    assert_eq!(outputs(&alerts), expected, "{finished:?}");
    let named = |alert: &Alert| alert.field("container.name") == "web";
    assert!(alerts.iter().all(named), "{alerts:?}");
}

#[test]
fn a_container_of_containerd_is_watched_with_who_enters_it() {
    need_root!();
    let tools = ["containerd", "ctr", "podman", "runc"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr, podman and runc", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let (finished, alerts) = watch_container(
        "shop",
        "podman save --quiet --format oci-archive --output tiny.tar localhost/tiny:1.2
containerd 2> containerd.log & daemon=$!
for try in $(seq 100); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
ctr image import tiny.tar > /dev/null
status=0
ctr run --detach --net-host localhost/tiny:1.2 shop /bin/busybox sleep 100 || status=$?
ctr run --rm --net-host localhost/tiny:1.2 other /bin/busybox echo other || status=$?
ctr task exec --exec-id one shop /bin/busybox echo entered || status=$?
/bin/echo on-the-host
ctr task kill --signal KILL shop || status=$?
sleep 1; ctr task delete shop || true; ctr container delete shop || true
kill $daemon; wait $daemon || true
exit $status",
    );
    let expected = ["busybox echo entered", "busybox sleep 100"];
    assert_eq!(outputs(&alerts), expected, "{finished:?}");
    let named = |alert: &Alert| alert.field("container.name") == "shop";
    assert!(alerts.iter().all(named), "{alerts:?}");
}
