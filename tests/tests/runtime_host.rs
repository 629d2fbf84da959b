//! `tollgate runtime --agent host`: one agent for all containers of a machine.

use std::collections::BTreeMap;

use e2e::runtime_fixture::{RuntimeFixture, fields};
use e2e::{Alert, need_runtime};

/// Functions of the scripts of this file.
const PRELUDE: &str = r#"
hosts() { grep -lx tollgate-host /proc/[0-9]*/comm 2> /dev/null || true; }
count() { echo $#; }
host() { set -- $(hosts); file=${1#/proc/}; echo ${file%/comm}; }
# Waits until a text is among the alerts this often.
told() { for try in $(seq 400); do test "$(grep -c "$1" alerts)" -lt "$2" || return 0; sleep 0.02; done; exit 93; }
"#;

fn ground(more: &str) -> RuntimeFixture {
    RuntimeFixture::new().settings(&format!(
        "runtime: {{agent: host, agent_linger: 1{more}}}\n"
    ))
}

fn script(text: &str) -> String {
    format!("{PRELUDE}{text}")
}

/// How many programs of a name started in each container.
fn programs(alerts: &[Alert], name: &str) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for alert in alerts.iter().filter(|alert| alert.rule == "Program") {
        if alert.field("proc.name") == name {
            *found.entry(alert.field("container.id")).or_default() += 1;
        }
    }
    found
}

#[test]
fn one_agent_watches_all_containers_and_their_sessions() {
    need_runtime!("runc");
    let ground = ground("");
    for number in 1..=4 {
        let script = format!("cat /etc/secret > /tmp/x; touch /out/c{number}; exec sleep 1000");
        ground.bundle(&format!("b{number}"), &script);
    }
    ground.bundle("short", "echo out; exit 5");
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
for number in 1 2 3 4; do
    rt create --bundle b$number $ID-$number < /dev/null > create.out 2>&1 &
done
wait
for number in 1 2 3 4; do rt start $ID-$number; done
for number in 1 2 3 4; do await c$number; done
test $(count $(hosts)) = 1
rt exec $ID-2 echo hello > exec.out
grep -qx hello exec.out
status=0; rt exec $ID-3 sh -c 'exit 7' || status=$?
test $status = 7
rt exec --detach $ID-4 sh -c 'touch /out/two; exec sleep 1000'
await two
status=0; rt run --bundle short $ID-5 < /dev/null > run.out || status=$?
test $status = 5; grep -qx out run.out
test $(count $(hosts)) = 1
for number in 1 2 3 4; do
    rt kill $ID-$number KILL
    await_stop $ID-$number
    rt delete $ID-$number
done
settle
test -z "$(remains $ID)"
test -z "$(ls agents)"
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let id = |number: usize| format!("{}-{number}", ground.id);
    // Their own first programs, and the sessions of two of them.
    let expected = BTreeMap::from([(id(1), 1), (id(2), 1), (id(3), 2), (id(4), 2), (id(5), 1)]);
    assert_eq!(programs(&alerts, "sh"), expected, "{alerts:?}");
    assert_eq!(programs(&alerts, "echo"), BTreeMap::from([(id(2), 1)]));
    for alert in alerts.iter().filter(|alert| alert.rule == "Program") {
        assert_eq!(alert.field("container.annotation[org.example.team]"), "red");
        assert_eq!(alert.field("container.metadata"), "known");
        assert_eq!(alert.field("container.host_pid"), "false");
    }
    let mut opened = fields(&alerts, "Secret opened", "container.id");
    opened.sort();
    assert_eq!(opened, [id(1), id(2), id(3), id(4)], "{alerts:?}");
    let others: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.source != "syscall")
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

/// Kills the agent of the host, those of the containers, and ends the agent of the host.
const KILL_EACH: &str = r#"
for number in 1 2; do
    rt create --bundle b$number $ID-$number < /dev/null > create.out 2>&1
    rt start $ID-$number
    await c$number
done
first=$(host)
kill -9 $first
told 'unwatched gap' 2
second=$(host)
test $second != $first
for file in $(grep -l '^tollgate-runtim\|^tollgate-agent' /proc/[0-9]*/comm); do
    pid=${file#/proc/}
    kill -9 ${pid%/comm}
done
told 'unwatched gap' 4
test $(host) = $second
kill -TERM $second
told 'unwatched gap' 6
test $(host) != $second
touch out/go
told 'Secret opened' 1
for try in $(seq 400); do
    test "$(grep 'Secret opened' alerts | grep -o "$ID-[12]" | sort -u | wc -l)" != 2 || break
    sleep 0.02
done
for number in 1 2; do rt delete --force $ID-$number; done
settle
test -z "$(remains $ID)"
test -z "$(ls agents)"
"#;

/// The agent of the host is killed, then those of the containers, then it is told to end: each time the
/// keepers stand in, tell of it, and containers are watched on.
#[test]
fn whoever_of_them_is_killed_containers_are_watched_on() {
    need_runtime!("runc");
    let ground = ground("");
    for number in 1..=2 {
        let script = format!(
            "touch /out/c{number}; while :; do if test -e /out/go; then cat /etc/secret; fi; sleep 0.1; done"
        );
        ground.bundle(&format!("b{number}"), &script);
    }
    std::os::unix::fs::symlink("busybox", ground.scratch.path().join("rootfs/bin/test"))
        .expect("it is our folder");
    let (finished, alerts) = ground.run("runc", &script(KILL_EACH));
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    let ids = [1, 2].map(|number| format!("{}-{number}", ground.id));
    for id in &ids {
        let of_one = |rule: &str| {
            let found = fields(&alerts, rule, "container.id");
            found.iter().filter(|found| *found == id).count()
        };
        assert!(
            of_one("Tollgate internal: unwatched gap") >= 3,
            "{alerts:?}"
        );
        assert!(of_one("Secret opened") >= 1, "{alerts:?}");
    }
}

/// One of its outputs takes nothing: the agent of the host is killed with alerts in a queue, and the next one says how
/// many, once, of no container.
#[test]
fn alerts_that_a_killed_agent_of_the_host_had_queued_are_counted_as_lost() {
    need_runtime!("runc");
    let ground = ground("").settings(
        "program_output: {enabled: true, keep_alive: false, program: \"exec sleep 1000\"}\n",
    );
    for number in 1..=2 {
        let script = format!(
            "touch /out/c{number}; for i in 1 2 3 4 5 6 7 8; do cat /etc/secret > /dev/null; done; \
             touch /out/d{number}; exec sleep 1000"
        );
        ground.bundle(&format!("b{number}"), &script);
    }
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
for number in 1 2; do
    rt create --bundle b$number $ID-$number < /dev/null > create.out 2>&1
    rt start $ID-$number
    await d$number
done
told 'Secret opened' 16
sleep 0.3
kill -9 $(host)
told 'unwatched gap' 2
told 'alerts lost' 1
sleep 1
for number in 1 2; do rt delete --force $ID-$number; done
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    let lost = fields(&alerts, "Tollgate internal: alerts lost", "tollgate.lost");
    let lost: u64 = match &lost[..] {
        [lost] => lost.parse().expect("a number"),
        other => panic!("{other:?}"),
    };
    // What each container's programs did, but for the one that the output was taking.
    assert!((15..40).contains(&lost), "{lost}");
}

/// The agent of the host is stopped while it holds calls, the container's agent is told to hand over to another one,
/// and the agent of the host dies before it has: what it held is answered, and counted as passed.
#[test]
fn what_the_agent_of_the_host_holds_when_it_dies_in_a_hand_over_is_answered() {
    need_runtime!("runc");
    let ground = ground("");
    let script = "for n in 1 2 3 4 5 6; do
while ! test -e /out/stop; do i=$((i+1)); : < /etc/secret; test $((i % 16)) != 0 || echo $i > /out/n$n; done &
done; touch /out/one; wait; touch /out/ended; exec sleep 1000";
    ground.bundle("b", script);
    std::os::unix::fs::symlink("busybox", ground.scratch.path().join("rootfs/bin/test"))
        .expect("it is our folder");
    let (finished, alerts) = ground.run("runc", &script_of_upgrades());
    assert_eq!(finished.code(), 0, "{finished:?} {}", alerts.len());
    let gaps: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.rule == "Tollgate internal: unwatched gap")
        .collect();
    assert!(gaps.len() >= 4, "{gaps:?}");
    for gap in &gaps {
        assert_eq!(gap.field("container.id"), ground.id, "{gap}");
    }
}

fn script_of_upgrades() -> String {
    script(
        r#"
keeper() { file=$(grep -lx tollgate-keeper /proc/[0-9]*/comm); file=${file#/proc/}; echo ${file%/comm}; }
# Each of the loops goes on: none waits for a call that nobody answers.
goes_on() {
    for n in 1 2 3 4 5 6; do
        before=$(cat out/n$n 2> /dev/null || true)
        for try in $(seq 300); do
            test "$(cat out/n$n 2> /dev/null || true)" = "$before" || break
            sleep 0.02
        done
        test "$(cat out/n$n 2> /dev/null || true)" != "$before" || { echo "loop $n hangs"; exit 95; }
    done
}
rt create --bundle b $ID < /dev/null > create.out 2>&1
rt start $ID
await one
goes_on
for round in 1 2 3 4; do
    first=$(host)
    kill -USR2 $(keeper)
    kill -STOP $first
    sleep 2
    kill -9 $first
    told 'unwatched gap' $round
    goes_on
done
touch out/stop
await ended
rt delete --force $ID
settle
test -z "$(remains $ID)"
"#,
    )
}

/// Containers whose filters are the same are watched by the rules of the latest; others by an agent that
/// has others.
#[test]
fn containers_are_watched_by_the_rules_that_they_were_made_with_or_later_ones() {
    need_runtime!("runc");
    let ground = ground("");
    for number in 1..=3 {
        let script = format!("touch /out/c{number}; exec sleep 1000");
        ground.bundle(&format!("b{number}"), &script);
    }
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
make() {
    rt create --bundle b$1 $ID-$1 < /dev/null > create.out 2>&1 || { cat create.out; exit 1; }
    rt start $ID-$1
    await c$1
}
make 1
sed -i 's/program %proc.name/PROGRAM %proc.name/' rules.yaml
make 2
test $(count $(hosts)) = 1
printf -- '- rule: Folder\n  desc: d\n  condition: evt.type in (mkdir, mkdirat)\n  output: made (id=%%container.id)\n  priority: INFO\n' >> rules.yaml
make 3
test $(count $(hosts)) = 2
rt exec $ID-3 mkdir /tmp/x
told '"rule":"Folder"' 1
for number in 1 2 3; do rt delete --force $ID-$number; done
settle
test -z "$(remains $ID)"
test -z "$(ls agents)"
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    let starts = |number: usize| {
        let id = format!("{}-{number}", ground.id);
        let mut found = alerts.iter().filter(|alert| {
            alert.rule == "Program"
                && alert.field("container.id") == id
                && alert.field("proc.name") == "sh"
        });
        found.next().map(|alert| alert.output.contains("PROGRAM"))
    };
    assert_eq!([1, 2, 3].map(starts), [Some(false), Some(true), Some(true)]);
    let made = fields(&alerts, "Folder", "container.id");
    assert_eq!(made, [format!("{}-3", ground.id)]);
}

/// An agent of the host that does not move is replaced; what it would have watched is told.
#[test]
fn an_agent_that_is_stopped_is_replaced() {
    need_runtime!("runc");
    let ground = ground("");
    for number in 1..=2 {
        let script = format!("touch /out/c{number}; exec sleep 1000");
        ground.bundle(&format!("b{number}"), &script);
    }
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
rt create --bundle b1 $ID-1 < /dev/null > create.out 2>&1
rt start $ID-1
await c1
stopped=$(host)
kill -STOP $stopped
rt create --bundle b2 $ID-2 < /dev/null > create.out 2>&1 || { cat create.out; exit 1; }
rt start $ID-2
await c2
test $(host) != $stopped
for number in 1 2; do rt delete --force $ID-$number; done
settle
test -z "$(remains $ID)"
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    let id = format!("{}-2", ground.id);
    assert_eq!(programs(&alerts, "sh").get(&id), Some(&1), "{alerts:?}");
}

#[test]
fn what_is_no_way_to_watch_is_refused() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new().settings("capture: {enabled: true}\n");
    ground.bundle("b", "true");
    let (finished, _) = ground.run(
        "runc",
        r#"
! rt --agent nobody create --bundle b $ID < /dev/null 2> wrong.txt
! rt --agent host create --bundle b $ID < /dev/null 2> capture.txt
cat wrong.txt capture.txt
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished.stdout.contains("watched by `nobody`"),
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("`capture` is enabled"),
        "{finished:?}"
    );
}
