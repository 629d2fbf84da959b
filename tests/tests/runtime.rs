//! `tollgate runtime`: an installed OCI runtime with the containers watched.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::runtime_fixture::{
    LIMIT, RuntimeFixture, VICTIM, fields, random_numbers, runsc, watching_sandboxes,
    with_own_folders,
};
use e2e::{
    Alert, Finished, Fixture, Limited, installed, need_root, need_runtime, program, skip, slow,
    which,
};

fn life(runtime: &str) {
    let ground = RuntimeFixture::new();
    ground.bundle(
        "b",
        "cat /etc/secret > /tmp/x; touch /out/one; exec sleep 1000",
    );
    let (finished, alerts) = ground.run(
        runtime,
        r#"
rt create --bundle b $ID < /dev/null > create.out 2> create.err
test ! -s create.out; grep -v "^+" create.err && exit 9 || true
case $(rt state $ID) in *'"created"'*) ;; *) exit 1 ;; esac
# Its programs begin with start, and so do alerts.
test ! -s alerts
rt start $ID
await one
rt exec $ID echo hello > exec.out
grep -qx hello exec.out
case $(rt list) in *"$ID"*) ;; *) exit 3 ;; esac
status=0; rt exec $ID sh -c 'exit 7' || status=$?
test $status = 7
rt exec --detach $ID sh -c 'touch /out/two; exec sleep 1000'
await two
rt kill $ID KILL
await_stop $ID
rt delete $ID
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let programs: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.rule == "Program")
        .collect();
    for alert in &programs {
        assert_eq!(alert.field("container.id"), ground.id, "{alert}");
        assert_eq!(alert.field("container.annotation[org.example.team]"), "red");
        assert_eq!(alert.field("container.metadata"), "known");
        assert_eq!(alert.field("container.host_pid"), "false");
        assert_eq!(alert.field("evt.res"), "SUCCESS");
    }
    // The first is the container's own first program, not one of the runtime.
    assert_eq!(programs[0].field("proc.name"), "sh", "{alerts:?}");
    let names: Vec<_> = programs
        .iter()
        .map(|alert| alert.field("proc.name"))
        .collect();
    let count = |name: &str| names.iter().filter(|found| *found == name).count();
    assert_eq!((count("sh"), count("echo")), (3, 1), "{names:?}");
    // Every runtime opens such files, in the container, too; its own opens are not evaluated.
    let opened = fields(&alerts, "Secret opened", "fd.name");
    assert_eq!(opened, ["/etc/secret"], "{alerts:?}");
    let others: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.source != "syscall")
        .collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_container_is_watched_from_its_first_program_to_its_last_exec_under_runc() {
    need_runtime!("runc");
    life("runc");
}

#[test]
fn a_container_is_watched_from_its_first_program_to_its_last_exec_under_crun() {
    need_runtime!("crun");
    life("crun");
}

#[test]
fn a_container_is_watched_from_its_first_program_to_its_last_exec_under_the_embedded_runtime() {
    need_runtime!("embedded");
    life("embedded");
}

/// What the container does to the program that enters it: see `fixtures/loader.c`. "Text file busy" says no
/// more than that somebody runs from the file at this moment, so it is asked again.
const ATTACK: &str = r#"busybox stat -L -c %s /proc/self/fd/9 > /out/held
{
    while :; do
        if ( echo changed >> /proc/self/fd/9 ) 2> /out/said; then echo written > /out/said; fi
        case $(cat /out/said) in *"Text file busy"*) sleep 0.01 ;; *) break ;; esac
    done
    touch /out/done
} < /dev/null > /dev/null 2>&1 &
# The session ends, a container does not.
test $$ != 1 || exec sleep 1000
"#;

/// The program that enters, in each way, and then one that is not kept from the container. For each: how long
/// the file is that the attacker holds, and what it was told.
const ATTACKS: &str = r#"
for program in bin/tollgate-runtime bin/unprotected; do
    name=$(ldd $program | grep -o '/[^ ]*/ld-[^ ]*')
    mkdir -p "rootfs/${name%/*}"; cp loader "rootfs/$name"
done
attack() {
    rm -f out/*
    "$@" < /dev/null > /dev/null 2> err.txt || { cat err.txt; return 1; }
    await done
    echo "$(cat out/held) $(cat out/said)"
}
create() { rt create --pid-file pid --bundle b $ID; rt start $ID; }
attack create
attack rt run --detach --bundle b $ID-run
attack rt exec $ID /bin/trap
attack bin/unprotected --target $(cat pid) --mount --pid /bin/trap
for id in $ID $ID-run; do rt delete --force $id; done
settle
test -z "$(remains $ID)"
"#;

/// CVE-2019-5736: what is executed in the container is the program that enters it, by the name it has there,
/// `/proc/self/exe`, and with the container's loader. That keeps the file, which is written to when nobody
/// runs from it any more.
#[test]
fn a_container_cannot_write_to_the_program_that_enters_it() {
    need_runtime!("embedded");
    // The processes of a watch, and those of other tests, run from the same file, which is busy as long as
    // they are there.
    let ground = RuntimeFixture::new().settings("runtime: {watch: none}\n");
    let scratch = &ground.scratch;
    let own = scratch.path().join("bin/tollgate-runtime");
    std::fs::remove_file(&own).expect("it is our folder");
    testing::copy_program(program(), &own).expect("it is our folder");
    let unprotected = scratch.program(&which("nsenter"), "bin/unprotected");
    let loader = Fixture::try_compile("loader", &["-static", "-nostartfiles"])
        .unwrap_or_else(|text| panic!("{text}"));
    scratch.program(loader.program(), "loader");
    scratch.file("rootfs/bin/trap", 0o755, "#!/proc/self/exe\n");
    scratch.file("rootfs/attack.sh", 0o644, ATTACK);
    ground.changed_bundle("b", "", |config| {
        config["process"]["args"] = serde_json::json!(["/bin/trap"]);
    });
    let bytes = |path: &Path| std::fs::read(path).expect("it can be read");
    let [before, mut changed] = [&own, &unprotected].map(|path| bytes(path));
    let (finished, _) = ground.run("embedded", ATTACKS);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{finished:?}");
    for line in &lines[..3] {
        let told = line.strip_prefix(&format!("{} ", before.len()));
        let told = told.unwrap_or_else(|| panic!("it holds another file: {finished:?}"));
        // By a mount that is read-only, or by the seals of a copy.
        let is_refused = ["Read-only file system", "Operation not permitted"]
            .iter()
            .any(|refusal| told.ends_with(refusal));
        assert!(is_refused, "{finished:?}");
    }
    assert!(bytes(&own) == before, "{finished:?}");
    // The same does change a program that is not kept from containers.
    assert_eq!(lines[3], format!("{} written", changed.len()));
    changed.extend(b"changed\n");
    assert!(bytes(&unprotected) == changed, "{finished:?}");
}

/// A session is its container's user, with its limits, in its folder, but for what the command line says.
fn sessions_of_a_user(runtime: &str) {
    let ground = RuntimeFixture::new();
    ground.changed_bundle("b", "exec sleep 1000", |config| {
        let process = &mut config["process"];
        process["user"] = serde_json::json!({"uid": 1000, "gid": 1001, "additionalGids": [5]});
        process["rlimits"] = serde_json::json!([{"type": "RLIMIT_NOFILE", "hard": 77, "soft": 77}]);
        process["cwd"] = "/tmp".into();
        let kill = serde_json::json!(["CAP_KILL"]);
        process["capabilities"] =
            serde_json::json!({"bounding": kill, "effective": kill, "permitted": kill});
    });
    let (finished, _) = ground.run(
        runtime,
        r#"
rt create --bundle b $ID < /dev/null > /dev/null 2>&1
rt start $ID
told='echo $(busybox id -u) $(busybox id -g) $(busybox id -G) $(ulimit -n) $(pwd) "$A" \
    $(busybox grep CapBnd /proc/self/status)'
rt exec $ID sh -c "$told"
rt exec --user 7:8 --additional-gids 9 --cap CAP_NET_RAW --cwd / --env A=b=c $ID sh -c "$told"
rt exec --user 0 $ID sh -c "$told"
rt delete --force $ID
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    let expected = [
        "1000 1001 1001 5 77 /tmp  CapBnd: 0000000000000020",
        "7 8 8 5 9 77 / b=c CapBnd: 0000000000002020",
        "0 1001 1001 5 77 /tmp  CapBnd: 0000000000000020",
    ];
    assert_eq!(lines, expected, "{finished:?}");
}

/// A configuration that says nothing of capabilities gives none.
fn no_capabilities(runtime: &str) {
    let ground = RuntimeFixture::new();
    ground.bundle("b", "busybox grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status");
    let script = "rt run --bundle b $ID < /dev/null";
    let (finished, _) = ground.run(runtime, script);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let none = ["CapPrm", "CapEff", "CapBnd"].map(|set| format!("{set}:\t0000000000000000"));
    assert_eq!(finished.stdout.lines().collect::<Vec<_>>(), none);
}

#[test]
fn a_container_has_no_capabilities_that_it_was_not_given() {
    need_runtime!("runc");
    no_capabilities("runc");
}

#[test]
fn a_container_has_no_capabilities_that_it_was_not_given_under_the_embedded_runtime() {
    need_runtime!("embedded");
    no_capabilities("embedded");
}

#[test]
fn a_session_is_its_containers_user() {
    need_runtime!("runc");
    sessions_of_a_user("runc");
}

#[test]
fn a_session_is_its_containers_user_under_the_embedded_runtime() {
    need_runtime!("embedded");
    sessions_of_a_user("embedded");
}

#[test]
fn the_embedded_runtime_lists_and_limits_and_begins_a_configuration() {
    need_runtime!("embedded");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "sleep 1001 & touch /out/one; exec sleep 1000");
    let (finished, _) = ground.run(
        "embedded",
        r#"
rt create --bundle b $ID < /dev/null > /dev/null 2>&1
rt start $ID
await one
# What sessions left long ago is removed; what may be one's that begins is not.
touch -d '2 minutes ago' root/$ID/tenant-notify-old.sock
touch root/$ID/tenant-notify-new.sock
rt exec --detach $ID true
test ! -e root/$ID/tenant-notify-old.sock
test -e root/$ID/tenant-notify-new.sock
rt ps $ID
rt ps --format json $ID
rt update --pids-limit 77 --memory 300000000 $ID
cat $(find /sys/fs/cgroup -name pids.max -path "*$ID*" | head -n 1)
rt spec
grep -c ociVersion config.json
! rt spec 2> again.txt
rt delete --force $ID
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert!(lines[0].contains("PID"), "{finished:?}");
    assert!(
        lines[1..3].iter().all(|line| line.contains("sleep 100")),
        "{finished:?}"
    );
    assert_eq!(lines[3].split(',').count(), 2, "{finished:?}");
    assert_eq!(lines[4..], ["77", "1"], "{finished:?}");
}

/// Where the first process reaps nobody, as in many images, a session that failed must not hold its container up.
#[test]
fn what_could_not_enter_a_container_leaves_nothing_in_it_under_the_embedded_runtime() {
    need_runtime!("embedded");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "trap 'exit 3' TERM; trap 'touch /out/told' 40; touch /out/one; while :; do sleep 0.1; done");
    let (finished, _) = ground.run(
        "embedded",
        r#"
unshare --pid --mount-proc --fork sleep 1000 & outer=$!
for try in $(seq 100); do
    first=$(cat /proc/$outer/task/$outer/children 2> /dev/null || true)
    test -z "$first" || break
    sleep 0.02
done
there() { nsenter --target ${first% } --pid --mount --wd="$PWD" bin/tollgate-runtime --runtime embedded --root "$PWD/root" "$@"; }
there create --bundle b $ID < /dev/null > create.out 2>&1 || { cat create.out; exit 1; }
there start $ID
await one
status=0; there exec $ID nosuch 2> said.txt || status=$?
test $status = 255
grep -c "'nosuch' not found.*executable file not found" said.txt
# Signals without a name, and none at all.
there kill $ID 0
there kill $ID 40
await told
! there kill $ID 65 2> said.txt
grep -c 'cannot send 65' said.txt
there kill $ID
for try in $(seq 200); do
    case $(there state $ID) in *'"stopped"'*) break ;; esac
    sleep 0.02
done
! there kill $ID 0 2> said.txt
grep -c 'is not running' said.txt
there delete $ID
kill -KILL ${first% }
wait $outer || true
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout, "1\n1\n1\n", "{finished:?}");
}

#[test]
fn what_the_runtime_says_is_what_it_says_without_us() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "echo out; echo err >&2; exit 5");
    let (finished, alerts) = ground.run(
        "runc",
        r#"
for command in "$RUNTIME --root $PWD/root" "bin/tollgate-runtime --runtime $RUNTIME --root $PWD/root"; do
    status=0; $command run --bundle b $ID > out.txt 2> err.txt < /dev/null || status=$?
    cat out.txt err.txt; echo "run $status"
    status=0; $command state nobody > out.txt 2> err.txt || status=$?
    sed 's/time="[^"]*"//' out.txt err.txt; echo "state $status"
    status=0; $command --log log.json --log-format json delete nobody > out.txt 2>&1 || status=$?
    grep -c '"level":"error"' log.json; rm log.json; echo "delete $status"
    status=0; $command create --bundle nowhere $ID > out.txt 2>&1 || status=$?
    test $status != 0; echo "create fails"
    status=0; $command features > out.txt || status=$?
    cat out.txt; echo "features $status"
    $command list -q
    echo ===
done
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let halves: Vec<_> = finished.stdout.split("===\n").collect();
    assert_eq!(halves[0], halves[1]);
    assert!(halves[0].starts_with("out\nerr\nrun 5\n"), "{}", halves[0]);
    assert_eq!(
        fields(&alerts, "Program", "container.id").join(" "),
        ground.id
    );
}

/// Reads what a container says through a pipe, as the callers of runtimes do: it ends with the
/// container, and the watch does not hold it open.
#[test]
fn pipes_and_folders_of_the_caller_are_not_held() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle(
        "b",
        "echo said; touch /out/one; sleep 1000 > /out/null 2>&1 < /dev/null",
    );
    ground.scratch.file("out/null", 0o666, "");
    let (finished, _) = ground.run(
        "runc",
        r#"
mkdir mounted; mount -t tmpfs none mounted; cp -r b mounted/
mkfifo pipe
cat pipe > said.txt & reader=$!
(cd mounted/b && ../../bin/tollgate-runtime --runtime "$RUNTIME" --root "$OLDPWD/root" create $ID \
    < /dev/null > "$OLDPWD/pipe" 2>&1 9> "$OLDPWD/nine")
rt start $ID
await one
for process in $(grep -l '^tollgate' /proc/[0-9]*/comm); do
    process=${process%/comm}
    case $(readlink $process/cwd || true) in ""|/) ;; *) echo "cwd of $(cat $process/comm)"; exit 1 ;; esac
    for descriptor in $process/fd/*; do
        case $(readlink $descriptor) in
            *pipe|*nine) echo "$descriptor of $(cat $process/comm)"; exit 2 ;;
        esac
    done
done
rt kill $ID KILL
wait $reader
grep -qx said said.txt
await_stop $ID
rt delete $ID
umount mounted
settle
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
}

/// A profile that denies what the filter of the watch lets go on.
fn denying(config: &mut serde_json::Value) {
    config["linux"]["seccomp"] = serde_json::json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}],
    });
    config["process"]["noNewPrivileges"] = true.into();
}

#[test]
fn the_containers_own_seccomp_profile_is_as_strict_as_without_us() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    let script = "mkdir /tmp/x 2>&1; cat /etc/secret > /tmp/y; grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status";
    ground.changed_bundle("strict", script, denying);
    let lenient = |config: &mut serde_json::Value| {
        config["process"]["noNewPrivileges"] = false.into();
    };
    ground.changed_bundle("lenient", script, lenient);
    std::os::unix::fs::symlink("busybox", ground.scratch.path().join("rootfs/bin/grep"))
        .expect("it is our folder");
    let (finished, alerts) = ground.run(
        "runc",
        "for bundle in strict lenient; do rt run --bundle $bundle $ID-$bundle < /dev/null || true; done",
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(
        lines,
        [
            "mkdir: can't create directory '/tmp/x': Operation not supported",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
            // Without the bit: programs with the set-user-ID bit keep their effect.
            "NoNewPrivs:\t0",
            "Seccomp:\t2",
        ],
        "{finished:?}"
    );
    let secrets = alerts
        .iter()
        .filter(|alert| alert.fields.get("fd.name") == Some(&"/etc/secret".into()));
    let ids: Vec<_> = secrets.map(|alert| alert.field("container.id")).collect();
    let expected = ["strict", "lenient"].map(|name| format!("{}-{name}", ground.id));
    assert_eq!(ids, expected, "{alerts:?}");
}

#[test]
fn what_cannot_be_watched_is_refused_and_leaves_nothing() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.changed_bundle("taken", "true", |config| {
        config["linux"]["seccomp"] = serde_json::json!({
            "defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/nowhere",
            "syscalls": [{"names": ["mkdir"], "action": "SCMP_ACT_NOTIFY"}],
        });
    });
    let (finished, _) = ground.run(
        "runc",
        r#"
for words in "create --bundle taken one" \
             "--runtime no-such list" "restore one" "create --bundle nowhere one" \
             "--log log.json --log-format json create --bundle taken one" "--root"; do
    status=0; bin/tollgate-runtime --runtime runc $words 2>> said.txt || status=$?
    echo "$status: $words"
done
cat said.txt log.json
test -z "$(find state -mindepth 1 2> /dev/null)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let out = &finished.stdout;
    for expected in [
        "3: create --bundle taken one\n",
        "3: --runtime no-such list\n",
        "3: restore one\n",
        "2: create --bundle nowhere one\n",
        "2: --root\n",
        "its seccomp profile has a listener, /nowhere",
        "cannot find the runtime no-such\n",
        "\"level\":\"error\",\"msg\":\"tollgate: cannot watch container one",
    ] {
        assert!(out.contains(expected), "no {expected:?} in {out}");
    }
}

#[test]
fn an_annotation_asks_for_the_watch_where_the_configuration_says_so() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new().settings("runtime: {binary: runc, watch: annotated}\n");
    ground.bundle("plain", "true");
    ground.changed_bundle("asked", "true", |config| {
        config["annotations"]["tollgate.watch"] = "true".into();
    });
    let (finished, alerts) = ground.run(
        "runc",
        "for bundle in plain asked; do
    bin/tollgate-runtime --root $PWD/root run --bundle $bundle $ID-$bundle < /dev/null
done",
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(
        fields(&alerts, "Program", "container.id"),
        [format!("{}-asked", ground.id)]
    );
}

#[test]
fn a_container_sees_no_filter_where_configuration_and_annotation_say_so() {
    need_runtime!("runc");
    let show =
        "while read name value; do test $name != Seccomp: || echo $value; done < /proc/self/status";
    let of = |watch: &str| {
        let settings = format!("runtime: {{binary: runc, watch: {watch}}}\n");
        let ground = RuntimeFixture::new().settings(&settings);
        ground.bundle("plain", show);
        ground.changed_bundle("free", show, |config| {
            config["annotations"]["tollgate.watch"] = "false".into();
        });
        let (finished, alerts) = ground.run(
            "runc",
            "for bundle in plain free; do
    bin/tollgate-runtime --root $PWD/root run --bundle $bundle $ID-$bundle < /dev/null
done",
        );
        assert_eq!(finished.code(), 0, "{finished:?}");
        let ids = fields(&alerts, "Program", "container.id");
        let watched = |name: &str| ids.contains(&format!("{}-{name}", ground.id));
        (finished.stdout, watched("plain"), watched("free"))
    };
    assert_eq!(of("unless_annotated"), ("2\n0\n".to_owned(), true, false));
    // Who writes annotations cannot escape the watch by itself.
    assert_eq!(of("all"), ("2\n2\n".to_owned(), true, true));
}

/// Creates, starts, kills and deletes many containers: each first program is seen, nothing is left.
#[test]
fn many_containers_leave_nothing_and_none_begins_unseen() {
    need_runtime!("runc");
    many_containers(RuntimeFixture::new());
}

#[test]
fn many_containers_under_one_agent_leave_nothing_and_none_begins_unseen() {
    need_runtime!("runc");
    many_containers(RuntimeFixture::new().settings(ONE_AGENT));
}

/// One agent for all containers, which does not stay for long.
const ONE_AGENT: &str = "runtime: {agent: host, agent_linger: 1}\n";

fn many_containers(ground: RuntimeFixture) {
    let (count, limit) = if slow() {
        (1000, Duration::from_secs(1800))
    } else {
        (12, LIMIT)
    };
    for number in 1..=count {
        let script = format!("touch /out/cycle-{number}; exec sleep 1000");
        ground.bundle(&format!("b{number}"), &script);
    }
    let (finished, alerts) = ground.run_within(
        "runc",
        &format!(
            r#"
before=$(sockets)
for number in $(seq {count}); do
    id=$ID-$number
    rt create --bundle b$number $id < /dev/null > create.out 2>&1 || {{ cat create.out; exit 1; }}
    rt start $id
    await cycle-$number
    rt kill $id KILL
    await_stop $id
    rt delete $id
done
settle
test -z "$(remains $ID)"
test "$(sockets)" -le $before
"#
        ),
        limit,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let mut firsts: BTreeMap<String, usize> = BTreeMap::new();
    for alert in alerts.iter().filter(|alert| alert.rule == "Program") {
        if alert.field("proc.name") == "sh" {
            *firsts.entry(alert.field("container.id")).or_default() += 1;
        }
    }
    assert_eq!(firsts.len(), count, "{firsts:?}");
    assert!(firsts.values().all(|seen| *seen == 1), "{firsts:?}");
}

/// Kills one of our processes at some moment of a container's creation or life. Afterwards `delete
/// --force` leaves nothing.
#[test]
fn whichever_process_of_ours_is_killed_delete_cleans_up() {
    need_runtime!("runc");
    whichever_is_killed(&RuntimeFixture::new());
}

/// The same; the agent of the host is one of them.
#[test]
fn whichever_process_is_killed_where_there_is_one_agent_delete_cleans_up() {
    need_runtime!("runc");
    whichever_is_killed(&RuntimeFixture::new().settings(ONE_AGENT));
}

fn whichever_is_killed(ground: &RuntimeFixture) {
    let rounds = if slow() { 200 } else { 10 };
    let mut random = random_numbers();
    ground.bundle("b", "exec sleep 1000");
    let mut script = VICTIM.to_owned();
    for round in 0..rounds {
        let (delay, number) = (random(120), random(60));
        script.push_str(&format!(
            "echo round {round}: after {delay} ms
rt create --bundle b $ID-{round} < /dev/null > /dev/null 2>&1 & creator=$!
sleep 0.{delay:03}
victim {number}
wait $creator || true
rt start $ID-{round} > /dev/null 2>&1 || true
rt delete --force $ID-{round}
settle
test -z \"$(remains $ID-{round})\" || {{ remains $ID-{round}; exit 4; }}
"
        ));
    }
    let limit = if slow() {
        Duration::from_secs(1200)
    } else {
        LIMIT
    };
    let (finished, _) = ground.run_within("runc", &script, limit);
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(finished.stdout.contains("killed tollgate"), "{finished:?}");
}

/// A runc that is killed while it mounts its own file leaves the mount, and its `delete` does not look for it.
#[test]
fn what_a_killed_runtime_has_mounted_is_removed() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "exec sleep 1000");
    let (finished, _) = ground.run(
        "runc",
        r#"
left_behind() {
    mkdir -p "root/$ID/" && : > "root/$ID/runc.abcdef"
    mount --bind /bin/true "root/$ID/runc.abcdef"
}
left_behind
rt delete --force $ID
test -z "$(remains $ID)"
test ! -e root/$ID
# What is another container's stays.
mkdir -p "root/${ID}x"; : > "root/${ID}x/file"; mount --bind /bin/true "root/${ID}x/file"
rt delete --force $ID
grep -q "${ID}x/file" /proc/self/mountinfo
umount "root/${ID}x/file"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
}

/// The agent of a running container is killed; another takes over and watches on.
#[test]
fn another_agent_takes_over_a_running_container() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle(
        "b",
        "touch /out/one; while :; do test ! -e /out/go || cat /etc/secret; done",
    );
    std::os::unix::fs::symlink("busybox", ground.scratch.path().join("rootfs/bin/test"))
        .expect("it is our folder");
    let (finished, alerts) = ground.run(
        "runc",
        r#"
rt create --bundle b $ID < /dev/null > /dev/null 2>&1
rt start $ID
await one
agent=$(grep -l '^tollgate-runtim' /proc/[0-9]*/comm | head -n 1)
agent=${agent#/proc/}; agent=${agent%/comm}
kill -9 $agent
for try in $(seq 200); do grep -q 'unwatched gap' alerts && break; sleep 0.05; done
touch out/go
for try in $(seq 200); do grep -q secret alerts && break; sleep 0.05; done
cat state/*/$ID/agent.log
rt delete --force $ID
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let opened: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.rule == "Secret opened")
        .collect();
    assert!(!opened.is_empty(), "{alerts:?} {finished:?}");
    assert_eq!(opened[0].field("container.id"), ground.id);
    let gap = alerts
        .iter()
        .find(|alert| alert.rule == "Tollgate internal: unwatched gap");
    let gap = gap.unwrap_or_else(|| panic!("no gap: {alerts:?}"));
    assert_eq!(gap.field("container.id"), ground.id);
}

#[test]
fn podman_takes_it_for_its_runtime() {
    need_runtime!("runc");
    if !installed("podman") {
        skip!("needs podman", || Ok(
            "it is in no folder of PATH".to_owned()
        ));
    }
    let ground = RuntimeFixture::new();
    let (finished, alerts) = ground.run(
        "runc",
        &with_own_folders(
            r#"
podman="podman --runtime $PWD/bin/tollgate-runtime --runtime-flag config=$PWD/tollgate.yaml \
    --cgroup-manager cgroupfs"
common="--network none --ulimit nofile=1024:1024 --ulimit nproc=1000:1000"
$podman run --rm --name web --label team=red --annotation org.example.team=blue $common \
    localhost/tiny:1.2 /bin/busybox echo said
$podman run -d --name long $common localhost/tiny:1.2 /bin/busybox sleep 1000 > id
$podman exec long /bin/busybox echo inside
entries | grep -q "/$(cat id)/container.json$"
$podman stop --time 0 long > /dev/null
$podman rm long > /dev/null
settle
test -z "$(entries)"
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout, "said\ninside\n", "{finished:?}");
    let programs: Vec<_> = alerts
        .iter()
        .filter(|alert| alert.rule == "Program")
        .collect();
    let names = fields(&alerts, "Program", "container.name");
    assert_eq!(names, ["web", "long", "long"], "{alerts:?}");
    for (field, value) in [
        ("container.image", "localhost/tiny:1.2"),
        ("container.type", "podman"),
        ("container.label[team]", "red"),
        ("container.annotation[org.example.team]", "blue"),
        ("container.metadata", "known"),
    ] {
        assert_eq!(programs[0].field(field), value, "{}", programs[0]);
    }
}

#[test]
fn containerd_takes_it_for_its_runtime() {
    need_runtime!("runc");
    containerd_takes("runc");
}

#[test]
fn containerd_takes_the_embedded_runtime_for_its_own() {
    need_runtime!("embedded");
    containerd_takes("embedded");
}

fn containerd_takes(runtime: &str) {
    let tools = ["containerd", "ctr", "podman"];
    if let Some(missing) = tools.into_iter().find(|name| !installed(name)) {
        skip!("needs containerd, ctr and podman", || Ok(format!(
            "{missing} is in no folder of PATH"
        )));
    }
    // containerd names none.
    let ground = RuntimeFixture::new().settings(&format!("runtime: {{binary: {runtime}}}\n"));
    let (finished, alerts) = ground.run(
        runtime,
        &with_own_folders(
            r#"
podman save --format oci-archive --output tiny.tar localhost/tiny:1.2 > save.out 2>&1
containerd 2> containerd.log & daemon=$!
for try in $(seq 100); do ctr version > /dev/null 2>&1 && break; sleep 0.1; done
ctr image import tiny.tar > import.out
run="ctr run --runc-binary $PWD/bin/tollgate-runtime --label team=blue \
     --annotation io.kubernetes.cri.sandbox-name=app-7 \
     --annotation io.kubernetes.cri.sandbox-namespace=prod \
     --annotation io.kubernetes.cri.sandbox-uid=u-2"
$run --rm localhost/tiny:1.2 $ID-shop /bin/busybox echo said
$run -d localhost/tiny:1.2 $ID-long /bin/busybox sleep 1000
ctr task exec --exec-id e1 $ID-long /bin/busybox echo inside
# It is the one that was meant.
find state -path '*/'$ID'-long/*' -name '*.json' -exec cat {} + | grep -q "\"runtime\":\"[^\"]*$RUNTIME\""
ctr task kill --signal 9 $ID-long
for try in $(seq 100); do ctr task rm $ID-long > /dev/null 2>&1 && break; sleep 0.1; done
ctr container rm $ID-long
settle
test -z "$(find state -mindepth 2)"
kill $daemon; wait $daemon || true
"#,
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert_eq!(finished.stdout, "said\ninside\n", "{finished:?}");
    let ids = fields(&alerts, "Program", "container.id");
    let id = |name: &str| format!("{}-{name}", ground.id);
    assert_eq!(ids, [id("shop"), id("long"), id("long")], "{alerts:?}");
    let first = alerts
        .iter()
        .find(|alert| alert.rule == "Program")
        .expect("there are three");
    for (field, value) in [
        ("container.image", "localhost/tiny:1.2"),
        ("container.type", "containerd"),
        ("container.label[team]", "blue"),
        ("k8s.pod.name", "app-7"),
        ("k8s.ns.name", "prod"),
        ("container.metadata", "known"),
    ] {
        assert_eq!(first.field(field), value, "{first}");
    }
}

const SANDBOX_RULES: &str = r#"
- rule: Program
  desc: every program
  condition: evt.type in (execve, execveat) and evt.res = SUCCESS
  output: "program (line=%proc.cmdline parent=%proc.pname exe=%proc.exepath id=%container.id uid=%user.uid)"
  priority: INFO

- rule: Secret opened
  desc: a file that the test opens
  condition: evt.type in (open, openat) and fd.name = /etc/shadow
  output: "opened %fd.name (id=%container.id program=%proc.name result=%evt.res)"
  priority: INFO

- rule: Folder made
  desc: a call that gVisor tells by its registers
  condition: evt.type = mkdir and evt.res = SUCCESS
  output: "made (id=%container.id program=%proc.name)"
  priority: INFO
"#;

/// Starts the watch of sandboxes, runs what `script` says, and ends it.
fn watch_sandboxes(ground: &RuntimeFixture, script: &str) -> (Finished, Vec<Alert>) {
    ground.scratch.file("sandbox.yaml", 0o644, SANDBOX_RULES);
    ground.run("runc", &watching_sandboxes("sandbox.yaml", script))
}

/// Real messages of gVisor's, sent by a program that stands in for a sandbox.
#[test]
fn messages_of_a_sandbox_become_alerts_and_its_losses_are_told() {
    need_root!();
    let ground = RuntimeFixture::new();
    let fixture = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures")
            .join(name);
        let text = std::fs::read(path).expect("the fixture is there");
        ground.scratch.file(name, 0o644, text);
    };
    fixture("gvisor.hex");
    fixture("gvisor_sandbox.py");
    let (finished, alerts) = watch_sandboxes(
        &ground,
        "python3 gvisor_sandbox.py \"$PWD/sink\" gvisor.hex 5
printf 'no handshake' | python3 -c 'import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect(sys.argv[1])
s.send(b\"hello\"); assert s.recv(9) == b\"\"' \"$PWD/sink\"",
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines = fields(&alerts, "Program", "proc.cmdline");
    let expected = [
        "cat /etc/shadow",
        "busybox mkdir /tmp/zz",
        "busybox ls /",
        "sleep 0.1",
    ];
    assert_eq!(lines[1..], expected, "{alerts:?}");
    assert!(lines[0].starts_with("sh -c cat /etc/shadow;"), "{lines:?}");
    assert_eq!(fields(&alerts, "Program", "proc.pname")[1], "sh");
    assert_eq!(fields(&alerts, "Secret opened", "proc.name"), ["cat"]);
    assert_eq!(fields(&alerts, "Secret opened", "container.id"), ["gv1"]);
    assert_eq!(fields(&alerts, "Folder made", "container.id"), ["gv1"]);
    let drop = alerts
        .iter()
        .find(|alert| alert.rule.ends_with("syscall event drop"));
    assert_eq!(
        drop.map(|alert| alert.field("n_drops")).as_deref(),
        Some("5"),
        "{alerts:?}"
    );
    let stats: serde_json::Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    let counters = &stats["counters"];
    assert_eq!(
        (&counters["dropped_by_sandboxes"], &counters["malformed"]),
        (&5.into(), &0.into())
    );
    assert_eq!(
        (&counters["sandboxes"], &counters["refused"]),
        (&2.into(), &1.into()),
        "{stats}"
    );
}

#[test]
fn containers_of_gvisor_are_watched_by_its_own_kernel() {
    need_root!();
    let Some(runsc) = runsc() else {
        skip!(
            "needs runsc",
            || Ok("it is in no folder of PATH".to_owned())
        );
    };
    let ground = RuntimeFixture::new();
    let ground = ground.settings("");
    let session = ground.scratch.path().join("session.json");
    let setting = format!("runtime: {{gvisor_session: {}}}\n", session.display());
    let ground = ground.settings(&setting);
    std::fs::write(ground.scratch.path().join("rootfs/etc/shadow"), "x").expect("it is our folder");
    ground.bundle(
        "b",
        "busybox cat /etc/shadow; busybox mkdir -m 777 /tmp/x; /bin/busybox true",
    );
    let (finished, alerts) = watch_sandboxes(
        &ground,
        &format!(
            "mkdir gvisor
bin/tollgate-runtime --runtime {runsc} --root $PWD/gvisor --network=none --ignore-cgroups \
    --platform=systrap run --bundle b $ID < /dev/null > said.txt
grep -qx x said.txt"
        ),
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    let lines = fields(&alerts, "Program", "proc.cmdline");
    assert!(lines[0].starts_with("sh -c busybox cat"), "{lines:?}");
    assert!(
        lines.contains(&"busybox cat /etc/shadow".to_owned()),
        "{lines:?}"
    );
    assert!(lines.contains(&"busybox true".to_owned()), "{lines:?}");
    let ids = fields(&alerts, "Secret opened", "container.id");
    assert_eq!(ids.join(" "), ground.id, "{alerts:?}");
    let stats: serde_json::Value = serde_json::from_str(&finished.stdout).expect("it is JSON");
    assert_eq!(stats["counters"]["malformed"], 0, "{stats}");
    assert_eq!(stats["counters"]["unknown_messages"], 0, "{stats}");
}

#[test]
fn gvisors_runtime_without_a_session_is_a_clear_error() {
    need_root!();
    let ground = RuntimeFixture::new();
    ground.bundle("b", "true");
    ground.scratch.file("runsc", 0o755, "#!/bin/sh\nexit 0\n");
    let (finished, _) = ground.run(
        "./runsc",
        "status=0; rt create --bundle b one 2> said.txt || status=$?
cat said.txt; echo $status
echo 'runtime: {gvisor_session: /nowhere.json}' >> tollgate.yaml
status=0; rt run --bundle b one 2> said.txt || status=$?
cat said.txt; echo $status
rt list",
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(
        finished.stdout.contains("no trace session is configured"),
        "{finished:?}"
    );
    assert!(
        finished.stdout.contains("no such file: /nowhere.json"),
        "{finished:?}"
    );
    assert_eq!(finished.stdout.matches("\n3\n").count(), 2, "{finished:?}");
}

/// containerd understands what was written.
fn assert_understood(config: &Path) {
    if installed("containerd") {
        let mut command = Command::new("containerd");
        command.arg("--config").arg(config).args(["config", "dump"]);
        let dump = Limited::start(command.stdin(Stdio::null()), LIMIT).finish(b"");
        assert!(
            dump.stdout.contains("containerd.runtimes.tollgate]"),
            "{dump:?}"
        );
        assert!(
            dump.stdout
                .contains("BinaryName = \"/usr/local/bin/tollgate-runtime\""),
            "{dump:?}"
        );
        for list in ["pod_annotations", "container_annotations"] {
            let passes = format!("{list} = [\"tollgate.*\"]");
            assert!(dump.stdout.contains(&passes), "{dump:?}");
        }
        // containerd serves no pods without its default runtime.
        assert!(
            dump.stdout.contains("containerd.runtimes.runc]"),
            "{dump:?}"
        );
    } else {
        e2e::skip_part!("needs containerd", || Ok(
            "it is in no folder of PATH".to_owned()
        ));
    }
}

#[test]
fn engines_are_told_of_the_runtime_and_forget_it_again() {
    let ground = RuntimeFixture::new();
    let etc = ground.scratch.path().join("etc");
    let containerd = "version = 2\n\n[debug]\n  level = \"info\"\n";
    ground
        .scratch
        .file("etc/containerd/config.toml", 0o600, containerd);
    std::fs::create_dir_all(etc.join("containers")).expect("it is our folder");
    let runtime = ground.scratch.path().join("usr/local/bin");
    std::fs::create_dir_all(runtime).expect("it is our folder");
    ground
        .scratch
        .program(&program(), "usr/local/bin/tollgate-runtime");
    let run = |words: &[&str]| {
        let mut command = Command::new(program());
        command
            .args(["runtime"])
            .args(words)
            .arg("--prefix")
            .arg(ground.scratch.path());
        let finished = Limited::start(command.stdin(Stdio::null()), LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{finished:?}");
        finished.stdout
    };
    let text = |file: &str| std::fs::read_to_string(etc.join(file)).ok();
    let shown = run(&["install"]);
    assert!(
        shown.contains("+  BinaryName = \"/usr/local/bin/tollgate-runtime\"\n"),
        "{shown}"
    );
    assert!(shown.contains("not changed; --yes changes it"), "{shown}");
    assert_eq!(text("containerd/config.toml").as_deref(), Some(containerd));
    run(&["install", "--yes"]);
    let podman = text("containers/containers.conf.d/tollgate.conf").expect("it was written");
    assert!(podman.contains("[engine.runtimes]\ntollgate = [\"/usr/local/bin/tollgate-runtime\"]"));
    assert!(podman.contains("\"tollgate\", \"tollgate-runtime\"]\nruntime_supports_nocgroups"));
    assert_understood(&etc.join("containerd/config.toml"));
    let undone = run(&["uninstall", "--yes"]);
    assert!(!undone.contains("podman --runtime"), "{undone}");
    assert_eq!(text("containerd/config.toml").as_deref(), Some(containerd));
    assert_eq!(text("containers/containers.conf.d/tollgate.conf"), None);
    assert!(run(&["uninstall"]).contains("nothing to change"));
}

/// What rules come to is kept for the next container; other rules are other rules all the same.
#[test]
fn rules_that_have_changed_are_asked_and_broken_ones_start_nothing() {
    need_runtime!("runc");
    let ground = RuntimeFixture::new();
    ground.bundle("b", "touch /out/began");
    let (finished, alerts) = ground.run(
        "runc",
        r#"
rt run --bundle b $ID-1 < /dev/null
made=$(stat -c %i plans/*.rules)
rt run --bundle b $ID-2 < /dev/null
test "$(ls plans | wc -l)" = 2
# They were read; rules that are compiled are kept anew.
test "$(stat -c %i plans/*.rules)" = $made
head -c 5000 plans/*.rules > cut
cat cut > plans/*.rules
rt run --bundle b $ID-again < /dev/null
test "$(stat -c %i plans/*.rules)" != $made
sed -i 's/^- rule: Program$/- rule: Changed/' rules.yaml
rt run --bundle b $ID-3 < /dev/null
rm out/began
echo "- rule: broken" >> rules.yaml
status=0; rt run --bundle b $ID-4 < /dev/null 2> said.txt || status=$?
echo "$status"; cat said.txt
test ! -e out/began
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    assert!(finished.stdout.starts_with("2\n"), "{finished:?}");
    assert!(finished.stdout.contains("rules.yaml:"), "{finished:?}");
    let ids = |rule: &str| {
        let mut ids = fields(&alerts, rule, "container.id");
        ids.dedup();
        ids
    };
    let id = |name: &str| format!("{}-{name}", ground.id);
    assert_eq!(
        ids("Program"),
        [id("1"), id("2"), id("again")],
        "{alerts:?}"
    );
    assert_eq!(ids("Changed"), [id("3")], "{alerts:?}");
}

const INNER: &str = "aaaa2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";

/// Lets the container `outer` make containers from the bundles in `inner`.
fn configure_outer(config: &mut serde_json::Value, outer: &str, inner: &Path) {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let bounding = status
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:\t"));
    let bounding = u64::from_str_radix(bounding.expect("a set"), 16).expect("it is in hexadecimal");
    let all = (0..=40).filter(|number| bounding >> number & 1 == 1);
    let all: Vec<String> = all.map(capability).collect();
    config["process"]["capabilities"] = serde_json::json!({
        "bounding": all, "effective": all, "permitted": all, "inheritable": all
    });
    config["linux"]["cgroupsPath"] = format!("/{outer}").into();
    let mounts = config["mounts"].as_array_mut().expect("an array");
    for (source, kind) in [("/usr", "ro"), ("/sys/fs/cgroup", "rw")] {
        mounts.push(serde_json::json!({
            "destination": source, "type": "none", "source": source, "options": ["rbind", kind]
        }));
    }
    mounts.push(serde_json::json!({"destination": "/run", "type": "tmpfs", "source": "tmpfs"}));
    mounts.push(serde_json::json!({
        "destination": "/inner", "type": "none", "source": inner, "options": ["rbind"]
    }));
}

/// A container's bundle with what a runtime inside it needs, and bundles of containers that are made there.
fn ground_for_runc_inside() -> RuntimeFixture {
    let ground = RuntimeFixture::new();
    let path = ground.scratch.path();
    for folder in [
        "rootfs/usr",
        "rootfs/sys/fs/cgroup",
        "rootfs/run",
        "rootfs/inner",
    ] {
        std::fs::create_dir_all(path.join(folder)).expect("it is our folder");
    }
    for folder in ["inner/rootfs/proc", "inner/rootfs/dev", "inner/rootfs/bin"] {
        std::fs::create_dir_all(path.join(folder)).expect("it is our folder");
    }
    for name in ["sh", "cat"] {
        let program = Path::new("/bin/busybox");
        ground
            .scratch
            .program(program, &format!("inner/rootfs/bin/{name}"));
    }
    ground
        .scratch
        .file("inner/rootfs/etc/secret", 0o644, "secret\n");
    for name in ["lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), path.join("rootfs").join(name))
            .expect("it is our folder");
    }
    let script = "cat /etc/secret > /dev/null
for inner in known nameless grouped; do
    /usr/sbin/runc --root /run/runc run --bundle /inner/$inner $inner < /dev/null || exit 9
done
cat /etc/secret > /dev/null; touch /out/ended";
    let outer = ground.id.clone();
    ground.changed_bundle("b", script, |config| {
        configure_outer(config, &outer, &path.join("inner"));
    });
    for (name, group) in [
        ("known", format!("/{outer}/docker/{INNER}")),
        ("nameless", format!("/{outer}/nameless")),
        ("grouped", format!("/{outer}")),
    ] {
        ground.changed_bundle(
            &format!("inner/{name}"),
            "cat /etc/secret > /dev/null",
            |config| {
                config["root"]["path"] = "/inner/rootfs".into();
                config["linux"]["cgroupsPath"] = group.into();
                let mounts = config["mounts"].as_array_mut().expect("an array");
                mounts.retain(|mount| mount["destination"] == "/proc");
            },
        );
    }
    ground
}

fn capability(number: u8) -> String {
    const NAMES: &str = "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE \
        NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT SYS_PTRACE \
        SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE \
        AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF \
        CHECKPOINT_RESTORE";
    let name = NAMES.split_ascii_whitespace().nth(number.into());
    format!("CAP_{}", name.expect("there are 41"))
}

/// runc inside a container of runc: what the inner containers do is theirs where a control group names them, of an
/// unknown container where they have one without an id, and the outer one's where they have none.
#[test]
fn containers_inside_a_container_are_told_apart_where_that_is_proven() {
    need_runtime!("runc");
    let ground = ground_for_runc_inside();
    let (finished, alerts) = ground.run(
        "runc",
        r#"
rt run --bundle b $ID < /dev/null > run.out 2>&1 || { cat run.out; exit 1; }
test -e out/ended
settle
test -z "$(remains $ID)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?} {alerts:?}");
    let opens = alerts.iter().filter(|alert| {
        alert.rule == "Secret opened" && alert.field("fd.name").ends_with("/etc/secret")
    });
    let ids: Vec<String> = opens.map(|alert| alert.field("container.id")).collect();
    let outer = ground.id.as_str();
    assert_eq!(ids, [outer, &INNER[..12], "", outer, outer], "{alerts:?}");
}
