//! `tollgate runtime --runtime vm`: a container in a machine of its own, with the same rules and policies.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use e2e::runtime_fixture::{self, RuntimeFixture, fields};
use e2e::{
    Alert, Finished, Fixture, Guest, installed, kernel_with_modules, need_root, need_slow, skip,
};
use serde_json::json;

/// Several starts of emulated machines, on a busy one.
const LIMIT: Duration = Duration::from_secs(900);

const POLICY: &str = "policy:
  enforcer: SeccompLandlock
  mode: EnhanceProtect
  enhanceProtect:
    privileged: true
    auditViolations: true
    attackProtectionRules: [{rules: [disable-access-shadow, disable-udp]}]
";

/// Waits for a word in a container's state.
const FUNCTIONS: &str = r#"
is() {
    for try in $(seq 1200); do
        case $(rt state "$1") in *"\"$2\""*) return 0 ;; esac
        sleep 0.1
    done
    exit 93
}
pids() { for comm in $(grep -l "^$1" /proc/[0-9]*/comm); do echo $comm | cut -d / -f 3; done; }
machines() { grep -lE '^(qemu|tollgate)' /proc/[0-9]*/comm 2> /dev/null || true; }
ended() {
    for try in $(seq 200); do test -n "$(machines)" || return 0; sleep 0.05; done
    exit 94
}
"#;

/// Ends a test that needs machines.
macro_rules! ground {
    () => {{
        need_root!();
        if let Some(why) = Guest::missing() {
            skip!("needs QEMU and a kernel for it", || Ok(why));
        }
        let (kernel, modules) = kernel_with_modules();
        let ground = RuntimeFixture::new();
        let policies = ground.scratch.path().join("policies");
        ground.settings(&format!(
            "runtime:\n  vm_kernel: {}\n  vm_modules: {}\n  policies: {}\n  watch: annotated\n  \
             accept_partial: [disable-access-shadow]\n",
            kernel.display(),
            modules.display(),
            policies.display()
        ))
    }};
}

/// Without folders of this machine, which another does not see.
fn alone(config: &mut serde_json::Value) {
    let mounts = config["mounts"].as_array_mut().expect("there are some");
    mounts.retain(|mount| mount["destination"] != "/out");
}

/// One test at a time: an emulated machine takes a processor.
fn run(ground: &RuntimeFixture, script: &str) -> (Finished, Vec<Alert>) {
    static ONE: Mutex<()> = Mutex::new(());
    // A test that failed with it has ended all its processes.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    ground.run_within("vm", &format!("{FUNCTIONS}{script}"), LIMIT)
}

fn text(ground: &RuntimeFixture, file: &str) -> String {
    std::fs::read_to_string(ground.scratch.path().join(file)).unwrap_or_default()
}

/// From create to delete, with sessions.
const LIFE: &str = r#"
mkfifo input; sleep 1000 > input & feeder=$!
(echo typed; sleep 0.2) > input &
rt create --bundle b --pid-file pid $ID < input > out.txt 2> err.txt
test -d /proc/$(cat pid)
is $ID created
test ! -s alerts
rt start $ID
is $ID running
kill $feeder
for try in $(seq 600); do grep -q '^[0-9]*$' err.txt && break; sleep 0.1; done
rt list | grep -q "^$ID .* running "
echo question | rt exec --cwd /tmp -e X=7 $ID sh -c 'cat; echo $X; pwd; busybox hostname; busybox id -u; ls /proc | busybox grep -c "^1$"'
status=0; rt exec --user 12:13 $ID sh -c 'busybox id -u >&2; exit 3' 2> user.txt || status=$?
echo "status $status $(tail -n 1 user.txt)"
rt exec --detach --pid-file second $ID sh -c 'echo detached; exec sleep 1000' > detached.txt
for try in $(seq 100); do grep -q detached detached.txt && break; sleep 0.1; done
kill -KILL $(cat second)
rt delete $ID 2> /dev/null && exit 4
rt kill $ID KILL
is $ID stopped
rt delete $ID
status=0; rt state $ID 2> gone.txt || status=$?
echo "gone $status"
ended
test -z "$(remains $ID)"
"#;

#[test]
fn a_container_lives_in_a_machine_of_its_own_and_is_watched_there() {
    need_slow!();
    let ground = ground!();
    ground.changed_bundle(
        "b",
        "echo begun; cat; cat /etc/secret /etc/hosts; cat /proc/sys/kernel/osrelease; ls /proc >&2; exec sleep 1000",
        |config| {
            alone(config);
            config["hostname"] = "inner".into();
            config["annotations"]["tollgate.watch"] = "true".into();
            let file = serde_json::json!({"destination": "/etc/hosts", "type": "bind",
                "source": "/etc/hosts", "options": ["rbind", "ro"]});
            config["mounts"].as_array_mut().expect("a list").push(file);
        },
    );
    let ls = ground.scratch.path().join("rootfs/bin/ls");
    std::os::unix::fs::symlink("busybox", ls).expect("it is our folder");
    let (finished, alerts) = run(&ground, LIFE);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    let expected = [
        "question",
        "7",
        "/tmp",
        "inner",
        "0",
        "1",
        "status 3 12",
        "gone 1",
    ];
    assert_eq!(lines, expected, "{finished:?}");
    let said = text(&ground, "out.txt");
    assert!(said.starts_with("begun\ntyped\nsecret\n"), "{said:?}");
    assert!(
        said.contains("localhost"),
        "a file was taken along: {said:?}"
    );
    let own = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("procfs");
    assert_ne!(
        said.lines().last(),
        Some(own.trim()),
        "it is another kernel"
    );
    // The agent and the first process of the machine are not among its processes.
    let error = text(&ground, "err.txt");
    let pids = error.lines().filter(|name| name.parse::<u32>().is_ok());
    assert!(pids.count() <= 3, "{error}");
    assert_watched(&ground, &alerts);
}

/// Asserts which alerts a container gave that had a life as in [`LIFE`].
fn assert_watched(ground: &RuntimeFixture, alerts: &[Alert]) {
    for alert in alerts.iter().filter(|alert| alert.rule == "Program") {
        assert_eq!(alert.field("container.id"), ground.id, "{alert}");
        assert_eq!(alert.field("container.annotation[org.example.team]"), "red");
    }
    let programs = fields(alerts, "Program", "proc.name");
    assert_eq!(
        programs.first().map(String::as_str),
        Some("sh"),
        "{alerts:?}"
    );
    // The first program, what it starts, and three sessions.
    assert!(programs.len() >= 10, "{programs:?}");
    let opened = fields(alerts, "Secret opened", "fd.name");
    assert_eq!(opened, ["/etc/secret"], "{alerts:?}");
    let others: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.source != "syscall")
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_policy_holds_in_a_machine_and_its_end_is_the_containers() {
    need_slow!();
    let ground = ground!();
    ground.scratch.file("policies/p.yaml", 0o644, POLICY);
    ground.scratch.file("rootfs/etc/shadow", 0o600, "secret\n");
    let violate = Fixture::compile("violate");
    ground
        .scratch
        .program(violate.program(), "rootfs/bin/violate");
    let deeds = "violate udp reads=/etc/shadow tcp reads=/etc/secret";
    ground.changed_bundle("b", &format!("{deeds}; read line; exit 7"), |config| {
        alone(config);
        config["annotations"]["tollgate.policy"] = "p".into();
        let all = serde_json::json!(["CAP_SYS_ADMIN", "CAP_DAC_OVERRIDE"]);
        for set in ["bounding", "effective", "permitted"] {
            config["process"]["capabilities"][set] = all.clone();
        }
    });
    let (finished, alerts) = run(
        &ground,
        &format!(
            r#"
mkfifo input; sleep 1000 > input & feeder=$!
rt run --detach --pid-file pid --bundle b $ID < input > out.txt
for try in $(seq 600); do grep -q etc/secret out.txt && break; sleep 0.1; done
rt exec $ID {deeds}
echo go > input
is $ID stopped
rt delete $ID
kill $feeder
ended
"#
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let expected = "udp 1\nreads=/etc/shadow 13\ntcp 0\nreads=/etc/secret 0\n";
    assert_eq!(finished.stdout, expected, "{finished:?}");
    assert_eq!(text(&ground, "out.txt"), expected);
    let ids = fields(&alerts, "Policy violation", "container.id");
    assert_eq!(ids, [&*ground.id; 4], "{alerts:?}");
    // What Landlock denies is told, too.
    let each = ["disable-udp", "disable-access-shadow"];
    let rules = fields(&alerts, "Policy violation", "policy.rule");
    assert_eq!(rules, [each, each].concat(), "{alerts:?}");
}

/// Says what the container sees of its configuration.
const LOOK: &str = "umask; busybox env | busybox grep -E '^(HOME|A)='; busybox id -u; busybox id -g; \
    cat /proc/self/oom_score_adj /sys/fs/cgroup/memory.max /sys/fs/cgroup/pids.max /sys/fs/cgroup/cpu.max \
    /proc/self/cgroup /proc/sys/kernel/domainname /var/inner/file /run/inner/file /tmp/covered; \
    touch /run/inner/file 2> /dev/null || echo read-only; \
    mkdir /tmp/x 2> /dev/null || echo refused; \
    busybox stat -c '%F %t:%T %a %u:%g' /dev/fuse; \
    busybox grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status; \
    (sleep 9 & sleep 9 & sleep 9 & sleep 9) 2>&1 | busybox head -n 1";

/// Asks for much, some of which a machine cannot have.
fn configure(config: &mut serde_json::Value, volume: &std::path::Path) {
    let process = &mut config["process"];
    process["user"] = json!({"uid": 12, "gid": 13, "umask": 0o27});
    process["env"] = json!(["PATH=/bin", "A=1"]);
    process["oomScoreAdj"] = 300.into();
    process["noNewPrivileges"] = true.into();
    process["scheduler"] = json!({"policy": "SCHED_BATCH"});
    config["domainname"] = "domain".into();
    config["mounts"] = json!([
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
        {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["ro"]},
        {"destination": "/run", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
            "options": ["tmpcopyup", "mode=1777"]},
        {"destination": "/var/inner", "type": "bind", "source": volume, "options": ["rbind", "ro"]},
    ]);
    let linux = &mut config["linux"];
    linux["devices"] = json!([{"path": "/dev/fuse", "type": "c", "major": 10, "minor": 229,
        "fileMode": 0o640, "uid": 5, "gid": 6}]);
    linux["resources"] = json!({"memory": {"limit": 64 << 20}, "pids": {"limit": 4},
        "cpu": {"quota": 50_000, "period": 100_000, "cpus": "0"}});
    linux["seccomp"] = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]});
}

#[test]
fn what_a_configuration_says_holds_in_a_machine() {
    need_slow!();
    let ground = ground!();
    let volume = ground.scratch.path().join("volume");
    std::fs::create_dir(&volume).expect("it is our folder");
    ground.scratch.file("volume/file", 0o644, "volume\n");
    ground
        .scratch
        .file("rootfs/etc/passwd", 0o644, "me:x:12:13::/home/me:/bin/sh\n");
    ground
        .scratch
        .file("rootfs/tmp/covered", 0o644, "covered\n");
    std::os::unix::fs::symlink("/run", ground.scratch.path().join("rootfs/var"))
        .expect("it is our folder");
    for folder in ["sys", "run", "home"] {
        std::fs::create_dir(ground.scratch.path().join("rootfs").join(folder))
            .expect("it is our folder");
    }
    ground.changed_bundle("b", LOOK, |config| configure(config, &volume));
    let (finished, _) = run(
        &ground,
        r#"
rt --log log run --bundle b $ID < /dev/null
cat log
ended
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    let expected = [
        "0027",
        "HOME=/home/me",
        "A=1",
        "12",
        "13",
        "300",
        "67108864",
        "4",
        "50000 100000",
        "0::/",
        "domain",
        "volume",
        "volume",
        "covered",
        "read-only",
        "refused",
        "character special file a:e5 640 5:6",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "sh: can't fork: Resource temporarily unavailable",
        "level=warning msg=\"process.scheduler is ignored in a virtual machine\"",
        "level=warning msg=\"linux.resources.cpu.cpus is ignored in a virtual machine: a machine has one \
         processor, which runs on any of the host's\"",
    ];
    assert_eq!(lines, expected, "{finished:?}");
}

/// The one of these that every run of the tests has.
#[test]
fn the_status_of_a_container_in_a_machine_is_its_own() {
    let ground = ground!();
    ground.changed_bundle("plain", "cat /etc/secret; exit 7", |config| {
        alone(config);
        config["annotations"]["tollgate.watch"] = "true".into();
    });
    let (finished, alerts) = run(
        &ground,
        r#"
status=0; rt run --bundle plain $ID-plain < /dev/null || status=$?
echo "status $status"
ended
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout, "secret\nstatus 7\n", "{finished:?}");
    let opened = fields(&alerts, "Secret opened", "fd.name");
    assert_eq!(opened, ["/etc/secret"], "{alerts:?}");
}

#[test]
fn nothing_stays_of_what_is_killed() {
    need_slow!();
    let ground = ground!();
    ground.changed_bundle("long", "exec sleep 1000", alone);
    let (finished, alerts) = run(
        &ground,
        r#"
for victim in tollgate qemu; do
    rt run --detach --pid-file pid --bundle long $ID-$victim < /dev/null > /dev/null 2>&1
    case $victim in
        tollgate) kill -KILL $(cat pid) ;;
        *) for comm in /proc/[0-9]*/comm; do
               grep -q '^qemu' $comm && kill -KILL $(echo $comm | cut -d / -f 3) || true
           done ;;
    esac
    is $ID-$victim stopped
    rt delete --force $ID-$victim
    ended
done
# A caller that is killed before it has told anybody of the container takes it along.
for pause in 0.01 0.05 0.2 1 3; do
    bin/tollgate-runtime --runtime vm --root $PWD/root create --bundle long $ID-late \
        < /dev/null > /dev/null 2>&1 & maker=$!
    sleep $pause
    kill -KILL $maker
    wait $maker || true
    ended
    test -z "$(remains $ID)"
    echo "after $pause"
done
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 5, "{finished:?}");
    assert!(alerts.is_empty(), "{alerts:?}");
}

#[test]
fn machines_are_kept_ready_and_taken() {
    need_slow!();
    let ground = ground!();
    let watched = |config: &mut serde_json::Value| {
        alone(config);
        config["annotations"]["tollgate.watch"] = "true".into();
    };
    ground.changed_bundle("hello", "cat /etc/secret", watched);
    ground.changed_bundle("long", "exec sleep 1000", watched);
    let (finished, alerts) = run(
        &ground,
        r#"
now() { echo $(($(date +%s%N) / 1000000)); }
hello() { begun=$(now); rt run --bundle hello $ID-$1 < /dev/null > $1.txt; echo $(($(now) - begun)) > $1.ms; cat $1.txt; }
ready() {
    for try in $(seq 1200); do
        case $(rt pool status --json) in *"\"ready\":$1,"*) return 0 ;; esac
        sleep 0.1
    done
    exit 95
}
qemus() { grep -l '^qemu' /proc/[0-9]*/comm 2> /dev/null | wc -l; }
rt pool status
hello cold
rt pool start 2
test $(qemus) = 2
rt pool start 1 2> again.txt && exit 4
grep -q 'there is one' again.txt
hello warm
ready 2
echo "cold $(cat cold.ms) warm $(cat warm.ms)" > figures.txt
# One that is taken is not the pool's any more.
rt run --detach --bundle long $ID-long < /dev/null > /dev/null 2>&1
ready 2
test $(qemus) = 3
rt exec $ID-long cat /etc/secret
# A machine that ends is replaced.
before=$(pids qemu)
kill -KILL $(pids qemu | sort -n | tail -n 1)
for try in $(seq 100); do test "$(pids qemu)" = "$before" || break; sleep 0.1; done
ready 2
rt pool stop
for try in $(seq 100); do test $(qemus) != 1 || break; sleep 0.1; done
is $ID-long running
rt kill $ID-long KILL
is $ID-long stopped
rt delete $ID-long
ended
rt pool status
# With its keeper a pool ends.
rt pool start
kill -KILL $(pids tollgate-pool)
ended
rt pool status
hello after
rt pool stop
test ! -e machines
test -z "$(remains $ID)"
"#,
    );
    println!("{}", text(&ground, "figures.txt"));
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    let expected = [
        "no pool is running",
        "secret",
        "2 ready",
        "secret",
        "secret",
        "no pool is running",
        "1 ready",
        "no pool is running",
        "secret",
    ];
    assert_eq!(lines, expected, "{finished:?}");
    let figures = text(&ground, "figures.txt");
    let words: Vec<u64> = figures
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(words[1] < words[0], "{figures}");
    let opened = fields(&alerts, "Secret opened", "fd.name");
    assert_eq!(opened, ["/etc/secret"; 4], "{alerts:?}");
    let ids = fields(&alerts, "Secret opened", "container.id");
    let expected = ["cold", "warm", "long", "after"].map(|name| format!("{}-{name}", ground.id));
    assert_eq!(ids, expected);
}

/// Twelve times, while the pool starts or while one of its machines is taken. The seed is in the script's trace.
#[test]
fn nothing_stays_of_a_pool_of_which_something_is_killed_at_any_moment() {
    need_slow!();
    let ground = ground!();
    ground.changed_bundle("hello", "cat /etc/secret", alone);
    let (finished, alerts) = run(
        &ground,
        r#"
seed=${TOLLGATE_TEST_SEED:-$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')}
random() { seed=$(((seed * 1103515245 + 12345) % 2147483648)); drawn=$((seed / 65536 % $1)); }
for round in $(seq 12); do
    rt pool start 2 > start.txt 2>&1 & starter=$!
    runner=
    if test $((round % 2)) = 0; then
        wait $starter
        rt run --bundle hello $ID-$round < /dev/null > said.txt 2>&1 & runner=$!
    fi
    random 3000
    sleep $((drawn / 1000)).$(printf %03d $((drawn % 1000)))
    random 3
    victim=$(echo tollgate-pool tollgate-vm qemu | cut -d ' ' -f $((drawn + 1)))
    random 3
    pid=$(pids $victim | tail -n +$((drawn + 1)) | head -n 1)
    test -n "$pid" || pid=$(pids $victim | head -n 1)
    # There is none yet.
    test -z "$pid" || kill -KILL $pid
    wait $starter || true
    test -z "$runner" || wait $runner || true
    rt pool stop
    rt delete --force $ID-$round
    ended
    test ! -e machines
    test -z "$(remains $ID)"
    echo "$round: $victim ${pid:+killed}"
done
"#,
    );
    println!("{}", finished.stdout);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout.lines().count(), 12, "{finished:?}");
    assert!(alerts.is_empty(), "{alerts:?}");
}

#[test]
fn podman_takes_machines_for_containers() {
    need_slow!();
    if !installed("podman") {
        skip!("needs podman", || Ok(
            "it is in no folder of PATH".to_owned()
        ));
    }
    let ground = ground!();
    let (finished, alerts) = run(
        &ground,
        &runtime_fixture::with_own_folders(
            r#"
podman="podman --runtime $PWD/bin/tollgate-runtime --runtime-flag config=$PWD/tollgate.yaml \
    --runtime-flag runtime=vm --cgroup-manager cgroupfs"
common="--network none --annotation tollgate.watch=true"
kernel=$($podman run --rm --name web $common localhost/tiny:1.2 /bin/busybox uname -r)
test "$kernel" != "$(uname -r)"
echo typed | $podman run -i --rm $common localhost/tiny:1.2 /bin/busybox cat
status=0; $podman run --rm $common localhost/tiny:1.2 /bin/busybox sh -c 'exit 9' || status=$?
echo "status $status"
$podman run -d --name long $common localhost/tiny:1.2 /bin/busybox sleep 1000 > id
$podman exec long /bin/busybox echo inside
test -n "$(entries)"
$podman stop --time 0 long > /dev/null
$podman inspect --format '{{.State.Status}}' long
$podman rm long > /dev/null
$podman run --rm -t $common localhost/tiny:1.2 /bin/busybox true 2> terminal.txt && exit 5
grep -q 'terminals are not supported' terminal.txt
ended
test -z "$(entries)"
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let expected = "typed\nstatus 9\ninside\nexited\n";
    assert_eq!(finished.stdout, expected, "{finished:?}");
    let lines = fields(&alerts, "Program", "proc.name");
    assert!(lines.len() >= 5, "{alerts:?}");
}

#[test]
fn containerd_takes_machines_for_containers() {
    need_slow!();
    let tools = ["containerd", "ctr", "podman"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr and podman", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let ground = ground!().settings("  binary: vm\n");
    let (finished, alerts) = run(
        &ground,
        &runtime_fixture::with_own_folders(
            r#"
podman save --format oci-archive --output tiny.tar localhost/tiny:1.2 > save.out 2>&1
containerd 2> containerd.log & daemon=$!
for try in $(seq 100); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
ctr image import tiny.tar > import.out
run="ctr run --runc-binary $PWD/bin/tollgate-runtime --annotation tollgate.watch=true"
kernel=$($run --rm localhost/tiny:1.2 shop /bin/busybox uname -r)
test "$kernel" != "$(uname -r)"
status=0; $run --rm localhost/tiny:1.2 failing /bin/busybox sh -c 'exit 9' || status=$?
echo "status $status"
$run -d localhost/tiny:1.2 long /bin/busybox sleep 1000
ctr task exec --exec-id e1 long /bin/busybox echo inside
ctr task ls | grep -q '^long .*RUNNING'
test -n "$(entries)"
ctr task kill --signal 9 long
for try in $(seq 100); do ctr task rm long > /dev/null 2>&1 && break; sleep 0.1; done
ctr container rm long
test -z "$(entries)"
kill $daemon; wait $daemon || true
ended
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout, "status 9\ninside\n", "{finished:?}");
    let lines = fields(&alerts, "Program", "proc.name");
    assert!(lines.len() >= 4, "{alerts:?}");
}

#[test]
fn what_a_machine_cannot_give_is_refused() {
    need_root!();
    let ground = RuntimeFixture::new().settings("runtime: {vm_kernel: /no/such/kernel}\n");
    ground.bundle("bound", "true");
    ground.changed_bundle("plain", "true", alone);
    ground.changed_bundle("hooked", "true", |config| {
        alone(config);
        config["hooks"] = json!({"prestart": [{"path": "/bin/true"}]});
    });
    ground.changed_bundle("disk", "true", |config| {
        alone(config);
        config["mounts"][1] = json!({"destination": "/d", "type": "ext4", "source": "/dev/d"});
    });
    ground.changed_bundle("filtered", "true", |config| {
        alone(config);
        config["linux"]["seccomp"] = json!({"defaultAction": "SCMP_ACT_NOTIFY"});
    });
    let (finished, _) = ground.run(
        "vm",
        r#"
for words in "create --bundle bound $ID" "create --bundle plain $ID" "create --bundle hooked $ID" \
    "create --bundle disk $ID" "create --bundle filtered $ID" "create --preserve-fds 1 --bundle plain $ID" \
    "exec --cgroup x $ID true" "pause $ID" "state $ID" "kill $ID"; do
    status=0; rt $words 2> said.txt || status=$?
    echo "$status: $(cat said.txt)"
done
rt list
test -z "$(remains $ID)"
echo "syslog_output: {enabled: true}" >> tollgate.yaml
rt create --bundle plain $ID 2>&1 || true
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    for said in [
        "is a writable mount",
        "hooks: a hook expects",
        "does not support type `ext4`",
        "the action \"SCMP_ACT_NOTIFY\" is not supported there",
        "the runtime vm has no --preserve-fds",
        "the runtime vm has no --cgroup",
        "cannot use the kernel /no/such/kernel",
        "the runtime vm has no such command",
        "does not exist",
        "syslog_output is enabled",
    ] {
        assert!(
            finished.stdout.contains(said),
            "no {said:?} in {finished:?}"
        );
    }
    let refused = finished
        .stdout
        .lines()
        .filter(|line| line.starts_with("3: "));
    assert_eq!(refused.count(), 8, "{finished:?}");
}

/// In the place of Kata's shim, which cannot run here: notes what it is asked for.
fn shim(ground: &RuntimeFixture) {
    let calls = ground.scratch.path().join("calls");
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\nexit 1\n", calls.display());
    ground
        .scratch
        .file("shim/containerd-shim-kata-v2", 0o755, script);
}

#[test]
fn kata_is_found_and_not_driven() {
    need_root!();
    let ground = RuntimeFixture::new();
    ground.bundle("b", "true");
    shim(&ground);
    let (finished, _) = ground.run(
        "kata",
        r#"
ln bin/tollgate-runtime bin/tollgate
row() { bin/tollgate doctor | grep '^ *kata ' | grep -oE 'is installed; containerd drives it|not found' || true; }
row
export PATH=$PWD/shim:$PATH
row
for name in kata kata-runtime $PWD/shim/containerd-shim-kata-v2; do
    status=0; bin/tollgate-runtime --runtime $name create --bundle b $ID 2> said.txt || status=$?
    echo "$status $(grep -o 'as `io.containerd.kata.v2`' said.txt)"
done
test ! -e calls
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let refused = "3 as `io.containerd.kata.v2`\n".repeat(3);
    let expected = format!("not found\nis installed; containerd drives it\n{refused}");
    assert_eq!(finished.stdout, expected, "{finished:?}");
}

#[test]
fn containerd_drives_katas_shim_by_the_name_that_we_tell() {
    need_root!();
    let tools = ["containerd", "ctr", "podman"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr and podman", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    let ground = RuntimeFixture::new();
    shim(&ground);
    let (finished, _) = ground.run(
        "kata",
        &runtime_fixture::with_own_folders(
            r#"
export PATH=$PWD/shim:$PATH
containerd 2> containerd.log & daemon=$!
for try in $(seq 100); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
ctr run --runtime io.containerd.kata.v2 --rootfs $PWD/rootfs shop /bin/true 2> said.txt && exit 4
kill $daemon; wait $daemon || true
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let calls = text(&ground, "calls");
    assert!(
        calls.contains("-id shop") && calls.trim_end().ends_with("start"),
        "{calls:?} {finished:?}"
    );
}
