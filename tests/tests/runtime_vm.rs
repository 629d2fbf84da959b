//! `tollgate runtime --runtime vm`: a container in a machine of its own, with the same rules and policies.

use std::time::Duration;

use e2e::ground::{Ground, fields};
use e2e::{Alert, Finished, Fixture, installed, kernel_with_modules, need_root, need_slow, skip};

/// Two starts of an emulated machine, on a busy one.
const LIMIT: Duration = Duration::from_secs(300);

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
    for try in $(seq 600); do
        case $(rt state "$1") in *"\"$2\""*) return 0 ;; esac
        sleep 0.1
    done
    exit 93
}
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
        need_slow!();
        if !installed("qemu-system-x86_64") {
            skip!("needs QEMU", || Ok("it is in no folder of PATH".to_owned()));
        }
        let (kernel, modules) = kernel_with_modules();
        let ground = Ground::new();
        let policies = ground.scratch.path().join("policies");
        ground.settings(&format!(
            "runtime: {{vm_kernel: {}, vm_modules: {}, policies: {}, watch: annotated, \
             accept_partial: [disable-access-shadow]}}\n",
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

fn run(ground: &Ground, script: &str) -> (Finished, Vec<Alert>) {
    ground.run_within("vm", &format!("{FUNCTIONS}{script}"), LIMIT)
}

fn text(ground: &Ground, file: &str) -> String {
    std::fs::read_to_string(ground.scratch.path().join(file)).unwrap_or_default()
}

#[test]
fn a_container_lives_in_a_machine_of_its_own_and_is_watched_there() {
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
    let (finished, alerts) = run(
        &ground,
        r#"
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
"#,
    );
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
    for alert in alerts.iter().filter(|alert| alert.rule == "Program") {
        assert_eq!(alert.field("container.id"), ground.id, "{alert}");
        assert_eq!(alert.field("container.annotation[org.example.team]"), "red");
    }
    let programs = fields(&alerts, "Program", "proc.name");
    assert_eq!(
        programs.first().map(String::as_str),
        Some("sh"),
        "{alerts:?}"
    );
    // The first program, what it starts, and three sessions.
    assert!(programs.len() >= 10, "{programs:?}");
    let opened = fields(&alerts, "Secret opened", "fd.name");
    assert_eq!(opened, ["/etc/secret"], "{alerts:?}");
    let others: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.source != "syscall")
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_policy_holds_in_a_machine_and_its_end_is_the_containers() {
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
    assert_eq!(ids, [ground.id.clone(), ground.id.clone()], "{alerts:?}");
    let rules = fields(&alerts, "Policy violation", "policy.rule");
    assert_eq!(rules, ["disable-udp", "disable-udp"], "{alerts:?}");
}

#[test]
fn the_status_of_a_container_in_a_machine_is_its_own_and_nothing_stays_of_what_is_killed() {
    let ground = ground!();
    ground.changed_bundle("plain", "echo said; exit 7", alone);
    ground.changed_bundle("long", "exec sleep 1000", alone);
    let (finished, alerts) = run(
        &ground,
        r#"
status=0; rt run --bundle plain $ID-plain < /dev/null || status=$?
echo "status $status"
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
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout, "said\nstatus 7\n", "{finished:?}");
    assert!(alerts.is_empty(), "{alerts:?}");
}

#[test]
fn what_a_machine_cannot_give_is_refused() {
    need_root!();
    let ground = Ground::new().settings("runtime: {vm_kernel: /no/such/kernel}\n");
    ground.bundle("bound", "true");
    ground.changed_bundle("plain", "true", alone);
    let (finished, _) = ground.run(
        "vm",
        r#"
for words in "create --bundle bound $ID" "create --bundle plain $ID" "pause $ID" "state $ID" "kill $ID"; do
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
        "is mounted into it",
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
    assert_eq!(refused.count(), 3, "{finished:?}");
}
