//! Exec sessions of containers of `tollgate runtime`, which the agents of their containers watch.

use e2e::runtime_fixture::{RuntimeFixture, VICTIM, fields, random_numbers};
use e2e::{Alert, need_runtime, slow};

/// Functions of the scripts of this file.
const PRELUDE: &str = r#"
# The agent of the container: the process in whose threads calls are received.
agent() {
    for file in /proc/[0-9]*/task/*/comm; do
        case $(cat $file 2> /dev/null || true) in
            containers) file=${file#/proc/}; echo ${file%%/*} ;;
        esac
    done
}
keeper() { file=$(grep -lx tollgate-keeper /proc/[0-9]*/comm); file=${file#/proc/}; echo ${file%/comm}; }
# Waits until only the container's own processes of ours are left: those of a session end after it.
none_else() {
    for try in $(seq 400); do
        test "$(cat /proc/[0-9]*/comm 2> /dev/null | grep -cx tollgate-keeper)" -gt 1 || return 0
        sleep 0.02
    done
    exit 94
}
begin() {
    rt create --bundle b $ID < /dev/null > create.out 2>&1 || { cat create.out; exit 1; }
    rt start $ID
    await one
    test -n "$(agent)"
}
# Waits until a text is among the alerts this often.
told() { for try in $(seq 400); do test "$(grep -c "$1" alerts)" -lt "$2" || return 0; sleep 0.02; done; exit 93; }
alone() { cat state/*/$ID/agent.log | grep -c 'got a separate agent' || true; }
end() {
    rt delete --force $ID
    settle
    test -z "$(remains $ID)"
}
"#;

const STAY: &str = "touch /out/one; exec sleep 1000";

fn ground(more: &str, first: &str) -> RuntimeFixture {
    let ground = RuntimeFixture::new().settings("watch_config_files: false\n");
    let ground = ground.settings(more);
    ground.bundle("b", first);
    std::os::unix::fs::symlink("busybox", ground.scratch.path().join("rootfs/bin/test"))
        .expect("it is our folder");
    ground
}

fn script(text: &str) -> String {
    format!("{PRELUDE}{text}")
}

/// Processes of ours for which a runtime waits are born with short turns. Nothing else has them: neither what is
/// watched nor, when it works, what watches.
#[test]
fn turns_of_containers_and_of_who_watches_them_are_the_usual_ones() {
    need_runtime!("runc");
    let ground = ground("", STAY);
    let (finished, _) = ground.run(
        "runc",
        &script(
            r#"
turns() { grep '^se.slice' "$@" || echo none; }
begin
turns /proc/self/sched
rt exec $ID /bin/cat /proc/1/sched < /dev/null | turns
rt exec $ID /bin/cat /proc/self/sched < /dev/null | turns
none_else
turns /proc/$(keeper)/sched
turns -h /proc/$(agent)/task/*/sched
end
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let mut turns: Vec<_> = finished.stdout.lines().collect();
    assert!(turns.len() > 5, "{finished:?}");
    // Kernels before 6.12 have `none` everywhere.
    turns.dedup();
    assert_eq!(turns.len(), 1, "{finished:?}");
}

/// How often a program has started that a rule is about.
fn started(alerts: &[Alert], rule: &str, program: &str) -> usize {
    let is_meant =
        |alert: &&Alert| alert.rule == rule && alert.field("proc.name").as_str() == program;
    alerts.iter().filter(is_meant).count()
}

/// Rules that are changed or gone are not asked, until the agent of the container is told to.
#[test]
fn a_session_is_judged_by_the_rules_that_are_in_force_in_its_container() {
    need_runtime!("runc");
    let ground = ground("", STAY);
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
begin
cp rules.yaml kept.yaml
rm rules.yaml
rt exec $ID true
sed 's/^- rule: Program$/- rule: Changed/' kept.yaml > rules.yaml
rt exec $ID echo
kill -HUP $(agent)
for try in $(seq 200); do
    rt exec $ID cat /etc/secret
    if grep -q '"rule":"Changed"' alerts; then break; fi
done
told '"rule":"Changed"' 1
rt exec --detach $ID mkdir /tmp/x
told '"proc.name":"mkdir"' 1
test "$(alone)" = 0
end
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    assert_eq!(started(&alerts, "Program", "true"), 1, "{alerts:?}");
    assert_eq!(started(&alerts, "Program", "echo"), 1, "{alerts:?}");
    assert_eq!(started(&alerts, "Changed", "mkdir"), 1, "{alerts:?}");
    assert_eq!(started(&alerts, "Program", "mkdir"), 0, "{alerts:?}");
    let of_programs = |alert: &&Alert| ["Program", "Changed"].contains(&alert.rule.as_str());
    for alert in alerts.iter().filter(of_programs) {
        assert_eq!(alert.field("container.id"), ground.id, "{alert}");
        assert_eq!(alert.field("container.metadata"), "known");
    }
}

/// Killed while a session runs, the agent of the container is replaced; that session and later ones are watched
/// by the next one.
#[test]
fn sessions_are_watched_on_when_the_agent_of_their_container_is_replaced() {
    need_runtime!("runc");
    let ground = ground("", STAY);
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
begin
rt exec --detach $ID sh -c 'touch /out/two; while ! test -e /out/go; do :; done; cat /etc/secret'
await two
first=$(agent)
kill -9 $first
told 'unwatched gap' 2
rt exec $ID echo
second=$(agent)
test "$second" != "$first"
touch out/go
told 'Secret opened' 1
test "$(alone)" = 0
end
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    assert_eq!(started(&alerts, "Program", "echo"), 1, "{alerts:?}");
    let opened = fields(&alerts, "Secret opened", "container.id");
    assert_eq!(opened, [ground.id.as_str()], "{alerts:?}");
    let gaps = alerts
        .iter()
        .filter(|alert| alert.rule == "Tollgate internal: unwatched gap");
    // The container's and the session's.
    assert_eq!(gaps.count(), 2, "{alerts:?}");
}

/// Who answered the runtime held its container's first exec, and left it to the receivers: when the agent is killed
/// later, idle, no call has passed unwatched.
#[test]
fn an_exec_that_was_held_before_there_were_rules_does_not_count_when_the_agent_is_killed() {
    need_runtime!("runc");
    let ground = ground("", STAY);
    ground.bundle("short", "true");
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
# Only where the filter is kept is a runtime let work before there are rules.
rt run --bundle short $ID-0 < /dev/null
settle
rt run --detach --bundle b $ID < /dev/null > run.out 2>&1 || { cat run.out; exit 1; }
await one
told '"proc.name":"sh"' 1
rt exec --detach $ID sh -c 'touch /out/two; exec sleep 1000'
await two
sleep 1
kill -9 $(agent)
told 'unwatched gap' 2
end
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    // The container's and the session's.
    let calls = "tollgate.gap.calls";
    let gaps = fields(&alerts, "Tollgate internal: unwatched gap", calls);
    assert_eq!(gaps, ["0", "0"], "{alerts:?}");
}

/// Where the keeper replaces an agent that is stopped, the session waits for the next one. Where it does not, a
/// session loads the rules itself, and says so, as it does where no filter was left.
#[test]
fn a_session_that_cannot_be_handed_over_has_an_agent_of_its_own_and_says_so() {
    need_runtime!("runc");
    let ground = ground("", STAY);
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
begin
stopped=$(agent)
kill -STOP $stopped
rt exec $ID mkdir /tmp/x
test "$(alone)" = 0
none_else
stopped="$(agent) $(keeper)"
kill -STOP $stopped
status=0; rt exec $ID sh -c 'cat /etc/secret; exit 7' > secret || status=$?
test $status = 7; grep -qx secret secret
test "$(alone)" = 1
kill -CONT $stopped
rt exec $ID echo
test "$(alone)" = 1
rm state/*/$ID/agent.filter
rt exec $ID true
test "$(alone)" = 2
end
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    for program in ["mkdir", "echo", "true"] {
        assert_eq!(started(&alerts, "Program", program), 1, "{alerts:?}");
    }
    // The container's first program, and the session's.
    assert_eq!(started(&alerts, "Program", "sh"), 2, "{alerts:?}");
    let opened = fields(&alerts, "Secret opened", "container.id");
    assert_eq!(opened, [ground.id.as_str()], "{alerts:?}");
}

/// Whoever calls `exec` has the runtime itself: its signals, its status, its descriptors, and nobody else's children.
#[test]
fn a_session_has_its_runtime_in_the_place_of_who_was_called() {
    for runtime in ["runc", "crun"] {
        need_runtime!(runtime);
        let ground = ground("", STAY);
        let (finished, alerts) = ground.run(
            runtime,
            &script(
                r#"
begin
ours="bin/tollgate-runtime --runtime $RUNTIME --root $PWD/root exec $ID"
$ours sh -c 'trap "exit 9" TERM; touch /out/two; while :; do sleep 0.02; done' & session=$!
await two
grep -qx "$RUNTIME" /proc/$session/comm
kill -TERM $session
status=0; wait $session || status=$?
test $status = 9
# As without the watch, with a descriptor of the caller's and without. That of `ls` is its own.
listed() { "$@" sh -c 'ls /proc/self/fd' < /dev/null 2> /dev/null 3< rules.yaml | tr '\n' ' '; }
test "$(listed $ours)" = "$(listed $RUNTIME --root $PWD/root exec $ID)"
(trap '' CHLD TERM; status=0; $ours sh -c 'exit 5' || status=$?; test $status = 5)
# Nobody waits for the pipes of those who stay a while.
test "$($ours echo said | cat)" = said
status=0; $ours no-such-program 2> not-found || status=$?
test $status != 0
test -s not-found
end
"#,
            ),
        );
        assert_eq!(finished.code(), 0, "{runtime}: {finished:?} {alerts:?}");
        assert_eq!(started(&alerts, "Program", "echo"), 1, "{alerts:?}");
    }
}

/// A session of which nobody could tell does not begin, and its caller learns why; one that is stopped with its
/// caller's group goes on when it alone is continued.
#[test]
fn a_session_that_cannot_be_watched_ends_and_one_that_is_continued_goes_on() {
    need_runtime!("runc");
    let ground = ground("", STAY);
    let (finished, alerts) = ground.run(
        "runc",
        &script(
            r#"
begin
folder=$(echo state/*/$ID)
ours="bin/tollgate-runtime --runtime runc --root $PWD/root --log $PWD/exec.log --log-format json exec $ID"
mv $folder/agent.log kept.log
mkdir $folder/agent.log
status=0; $ours echo unseen > said 2> told || status=$?
test $status = 4; test ! -s said
grep -q 'the log of the processes that watch' told
grep -q '"level":"error".*the log of the processes that watch' exec.log
rmdir $folder/agent.log
mv kept.log $folder/agent.log
# Its agent cannot be had, and the rules do not load.
mv $folder/agent.sock kept.sock
cp rules.yaml kept.yaml
echo '- rule: [' > rules.yaml
status=0; $ours echo unseen > said 2> told || status=$?
test $status = 137; test ! -s said
grep -q 'cannot start watching' told
grep -q '"level":"error".*cannot start watching' exec.log
mv kept.sock $folder/agent.sock
mv kept.yaml rules.yaml
setsid $ours sh -c 'touch /out/two; until test -e /out/go; do sleep 0.02; done; cat /etc/secret; exit 5' > secret &
session=$!
await two
kill -STOP -$session
touch out/go
sleep 0.1
kill -CONT $session
status=0; wait $session || status=$?
test $status = 5
# A runtime that somebody waits for, and what it has made meanwhile.
setsid bin/tollgate-runtime --runtime runc --root $PWD/root create --bundle b $ID-2 < /dev/null > /dev/null &
maker=$!
sleep 0.02
kill -STOP -$maker
sleep 0.1
kill -CONT -$maker
status=0; wait $maker || status=$?
test $status = 0
rt delete --force $ID-2
end
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    let opened = fields(&alerts, "Secret opened", "container.id");
    assert_eq!(opened, [ground.id.as_str()], "{alerts:?}");
}

#[test]
fn of_many_sessions_at_once_none_is_lost_and_nothing_is_left() {
    need_runtime!("runc");
    let count = if slow() { 200 } else { 50 };
    let ground = ground("", STAY);
    let (finished, alerts) = ground.run(
        "runc",
        &script(&format!(
            r#"
begin
before=$(sockets)
descriptors=$(ls /proc/$(agent)/fd | wc -l)
threads=$(ls /proc/$(agent)/task | wc -l)
for number in $(seq {count}); do
    (status=0; rt exec $ID sh -c "echo $number; exit $((number % 100))" > said-$number || status=$?
    echo $status > status-$number) &
done
wait
for number in $(seq {count}); do
    test "$(cat said-$number)" = $number
    test "$(cat status-$number)" = $((number % 100))
done
test "$(alone)" = 0
none_else
# The last threads may be about to end.
for try in $(seq 100); do
    test "$(ls /proc/$(agent)/task | wc -l)" -gt $threads || break
    sleep 0.05
done
echo "descriptors $descriptors $(ls /proc/$(agent)/fd | wc -l)"
test "$(ls /proc/$(agent)/fd | wc -l)" -le $descriptors
test "$(ls /proc/$(agent)/task | wc -l)" -le $threads
test "$(sockets)" -le $before
end
"#
        )),
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    // Their container's first program, and theirs.
    assert_eq!(started(&alerts, "Program", "sh"), count + 1);
}

/// Kills one of our processes at some moment of a session. What was said to have succeeded was watched;
/// afterwards nothing is left.
#[test]
fn whichever_process_of_ours_is_killed_while_there_are_sessions_nothing_is_left() {
    need_runtime!("runc");
    let rounds = if slow() { 200 } else { 12 };
    let mut random = random_numbers();
    let ground = ground("", STAY);
    let mut text = VICTIM.to_owned();
    for round in 0..rounds {
        let (delay, number) = (random(60), random(60));
        text.push_str(&format!(
            "echo round {round}: after {delay} ms
rm -f out/one
begin
rt exec $ID sleep 1000 & long=$!
rt exec $ID cat /etc/secret > /dev/null 2>&1 & short=$!
sleep 0.{delay:03}
victim {number}
wait $short || true
end
wait $long || true
"
        ));
    }
    let (finished, _) = ground.run("runc", &script(&text));
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(finished.stdout.contains("killed tollgate"), "{finished:?}");
}
