//! Terminals of containers and of exec sessions, under `script`, as a person has them.

use e2e::need_runtime;
use e2e::runtime_fixture::RuntimeFixture;

/// What is typed, and how the terminal is before and afterwards.
const SCRIPT: &str = r#"
# Types into a terminal of a certain size in which a command is started; prints what is seen there, and its status.
attached() {
    rm -f out/*
    echo "tty > tty.txt; stty rows 33 cols 77; stty -g > before.txt; $*
        status=\$?; stty -g | cmp - before.txt || echo the terminal is not as it was; exit \$status" > typed.sh
    status=0
    {
        # Runtimes tell the size when the program runs already.
        echo 'touch /out/up'; await up; sleep 0.2
        echo 'busybox stty size; touch /out/first'; await first
        stty -F "$(cat tty.txt)" rows 40 cols 100; sleep 0.2
        echo 'busybox stty size; touch /out/second; sleep 1000'; await second; sleep 0.3
        printf '\003'
        echo 'echo interrupted $?; echo to $(busybox tty); touch /out/third; exit 7'; await third
    } | script -qec "sh typed.sh" /dev/null > said.txt || status=$?
    cat said.txt
    echo "status $status"
}
both() {
    attached $1 --root "$PWD/root" run --bundle shell $ID-1
    $1 --root "$PWD/root" create --bundle stays $ID-2 < /dev/null > create.out 2>&1 || { cat create.out; exit 1; }
    $1 --root "$PWD/root" start $ID-2
    attached $1 --root "$PWD/root" exec --tty $ID-2 sh
    $1 --root "$PWD/root" delete --force $ID-2
}
test "$RUNTIME" = embedded || both "$RUNTIME"
echo ===
both "bin/tollgate-runtime --runtime $RUNTIME"
settle
test -z "$(remains $ID)"
"#;

fn with_terminals(config: &mut serde_json::Value) {
    let devpts = serde_json::json!({
        "destination": "/dev/pts", "type": "devpts", "source": "devpts",
        "options": ["newinstance", "ptmxmode=0666", "mode=0620"],
    });
    let mounts = config["mounts"].as_array_mut().expect("it is a list");
    mounts.insert(2, devpts);
}

/// What is told of terminals without us, and with us.
fn terminals(runtime: &str) -> (Vec<String>, Vec<String>) {
    let ground = RuntimeFixture::new();
    ground.changed_bundle("shell", "", |config| {
        config["process"]["terminal"] = true.into();
        config["process"]["args"] = serde_json::json!(["sh"]);
        with_terminals(config);
    });
    ground.changed_bundle("stays", "exec sleep 1000", with_terminals);
    let (finished, alerts) = ground.run(runtime, SCRIPT);
    assert_eq!(finished.code(), 0, "{finished:?}");
    // They are watched as any other: a program each, and that of the container which is entered.
    let shells = alerts
        .iter()
        .filter(|alert| alert.rule == "Program" && alert.field("proc.name") == "sh");
    assert_eq!(shells.count(), 3, "{alerts:?}");
    let said = finished.stdout.replace('\r', "");
    let (without_us, with_us) = said.split_once("===\n").expect("it is printed");
    (told(without_us), told(with_us))
}

/// What programs have told of their terminal. The rest is what was typed, which is there once or twice.
fn told(said: &str) -> Vec<String> {
    let size = |line: &str| line.split(' ').all(|word| word.parse::<u16>().is_ok());
    let begins = ["stty: ", "interrupted ", "to /", "status ", "the terminal "];
    said.lines()
        .filter(|line| size(line) || begins.iter().any(|begin| line.starts_with(begin)))
        .map(str::to_owned)
        .collect()
}

/// How it is to be, for a container and for a session.
fn expected() -> Vec<String> {
    let once = [
        "33 77",
        "40 100",
        "interrupted 130",
        "to /dev/pts/0",
        "status 7",
    ];
    [once, once]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_container_and_a_session_have_a_terminal() {
    need_runtime!("runc");
    assert_eq!(terminals("runc"), (expected(), expected()));
}

/// crun does not pass a terminal's size on, and does not always put its caller's back, without us either: that is
/// not compared.
#[test]
fn a_container_and_a_session_have_the_terminal_that_they_have_without_us() {
    need_runtime!("crun");
    let compared = |mut told: Vec<String>| {
        told.retain(|line| !line.starts_with("the terminal "));
        told
    };
    let (without_us, with_us) = terminals("crun");
    let (without_us, with_us) = (compared(without_us), compared(with_us));
    assert_eq!(with_us, without_us);
    assert!(
        with_us.contains(&"interrupted 130".to_owned()),
        "{with_us:?}"
    );
}

#[test]
fn a_container_and_a_session_have_a_terminal_under_the_embedded_runtime() {
    need_runtime!("embedded");
    assert_eq!(terminals("embedded"), (Vec::new(), expected()));
}

/// What comes from a pipe is typed, and nothing of the output is lost at the end; the standard input's end is
/// not the session's.
#[test]
fn a_session_has_a_terminal_also_where_its_caller_has_none_under_the_embedded_runtime() {
    need_runtime!("embedded");
    let ground = RuntimeFixture::new();
    ground.changed_bundle("b", "exec sleep 1000", with_terminals);
    ground.changed_bundle("shell", "", |config| {
        config["process"]["terminal"] = true.into();
    });
    let (finished, _) = ground.run(
        "embedded",
        r#"
mkdir temporary; export TMPDIR=$PWD/temporary
rt create --bundle b $ID < /dev/null > create.out 2>&1 || { cat create.out; exit 1; }
rt start $ID
echo 'seq 20000' | rt exec --tty $ID sh -c 'read line; $line; test -t 0 && test -t 1 && exit 7' > said.txt || echo $?
wc -l < said.txt
tail -n 1 said.txt
# Whoever does not read any more has the session end, as a terminal would that is closed.
rt exec --tty $ID busybox yes < /dev/null | head -n 1
# The terminal goes on when its last user has closed it and opens it again.
rt exec --tty $ID sh -c 't=$(busybox tty); exec < /dev/null > /dev/null 2>&1; sleep 0.2; echo again > $t' < /dev/null
# Signals are the session's.
bin/tollgate-runtime --runtime embedded --root "$PWD/root" exec $ID \
    sh -c "trap 'exit 9' TERM; touch /out/traps; while :; do sleep 0.1; done" < /dev/null & session=$!
await traps
kill -TERM $session
status=0; wait $session || status=$?
echo "status $status"
# This program ignores SIGPIPE, as all of Rust; the fourth digit from the right has it.
rt exec $ID busybox sed -n 's/^SigIgn:.*\(.\)...$/ignored \1/p' /proc/self/status
# A terminal has to be told where it is to go, if nobody stays to have it.
! rt exec --detach --tty $ID true 2> refused.txt
grep -c 'nobody stays' refused.txt
! rt create --bundle shell $ID-2 2> refused.txt
grep -c 'nobody stays' refused.txt
! rt exec --cap CAP_KIL $ID true 2> refused.txt
cat refused.txt
rt delete --force $ID
settle
test -z "$(remains $ID)"
test -z "$(ls temporary)"
"#,
    );
    assert_eq!(finished.code(), 0, "{finished:?}");
    // A line more is the echo of what was typed.
    let said = finished.stdout.replace('\r', "");
    let expected = "7\n20001\n20000\ny\nagain\nstatus 9\nignored 0\n1\n1\n";
    assert!(said.starts_with(expected), "{finished:?}");
    assert!(said.contains("unknown capability CAP_KIL"), "{said}");
}
