//! Each of the built-in rules that count, or sum weights: it alerts once when the count is reached, and not before.

use e2e::Environment::Inside;
use e2e::{Engine, Environment, Identity, Watch, WatchResult, builtin_rules, need_root};

const LOUD: &[&str] = &["Notice", "Warning", "Error", "Critical"];

/// Seven questions about the machine.
const SEVEN: &str = "id; uname -a; cat /etc/passwd; cat /etc/group; ip link; ip addr; ip route";

/// `repeat NUMBER WORDS`: runs the words, in which $i counts. `session WORDS`: runs them in a session of their own.
const WORDS: &str = "
repeat() { i=0; while [ $i -lt $1 ]; do i=$((i+1)); eval \"$2\"; done; }
session() { perl -e 'unless (fork) { syscall 112; exec @ARGV } wait' sh -c \"$1\" > /dev/null; }
";

/// Makes a run of a script as root in a container, with the rules that are built into the program.
fn watch(script: &str) -> Watch {
    Watch::new(["sh", "-c", &format!("{WORDS}{script}\n:")])
        .place(Inside)
        .identity(Identity::Root)
        .rules(&builtin_rules())
}

/// Runs a script as root in a container, with the rules that are built into the program.
fn run(script: &str) -> WatchResult {
    watch(script).run()
}

/// Asserts that `fires` raises one alert, of this rule, and `near_miss` none.
fn check(rule: &str, fires: &str, near_miss: &str) -> WatchResult {
    let loud = |watched: &WatchResult| {
        let alerts = watched.alerts.iter();
        let loud = alerts.filter(|alert| LOUD.contains(&alert.priority.as_str()));
        loud.map(|alert| alert.rule.clone()).collect::<Vec<_>>()
    };
    let quiet = run(near_miss);
    assert_eq!(quiet.finished.stderr, "", "{}", quiet.story());
    assert!(loud(&quiet).is_empty(), "{}", quiet.story());
    let watched = run(fires);
    assert_eq!(watched.finished.stderr, "", "{}", watched.story());
    assert_eq!(loud(&watched), [rule], "{}", watched.story());
    watched
}

#[test]
fn who_asks_eight_things_in_a_session_looks_the_machine_over() {
    need_root!();
    let watched = check(
        "Machine looked over",
        &format!("session '{SEVEN}; ip rule; ip neigh; :'"),
        // Seven things, besides what scripts ask, and more in other sessions; the same thing ten times.
        &format!(
            "session '{SEVEN}; uname -r; id -u; :'
         session 'id; ip addr; :'
         session 'for i in 1 2 3 4 5 6 7 8 9 10; do id; done; :'",
        ),
    );
    let alert = &watched.of("Machine looked over")[0];
    assert_eq!(alert.field("count.number"), "8");
    let values = alert.field("count.values");
    assert!(
        values.contains("uname -a") && values.contains("/etc/passwd"),
        "{values}"
    );
}

#[test]
fn who_removes_many_backups_is_reported_once() {
    need_root!();
    let script = |number: u32| {
        format!(
            "mkdir -p /var/backups/d; repeat {number} ': > /var/backups/d/$i'; rm /var/backups/d/*"
        )
    };
    let rule = "Many backups removed";
    check(rule, &script(50), &script(20));
}

#[test]
fn ports_in_a_row_are_a_scan_whatever_the_program() {
    need_root!();
    let script = |to: u32| {
        let one = "(exec 3<>/dev/tcp/127.0.0.1/$p) 2>/dev/null";
        format!("bash -c 'p=2000; while [ $p -lt {to} ]; do {one}; p=$((p+1)); done; :'")
    };
    let rule = "Ports of a machine tried";
    let watched = check(rule, &script(2040), &script(2020));
    assert_eq!(watched.of(rule)[0].field("count.number"), "21");
}

/// Name of the rule that sums weak signals.
const SUM: &str = "Weak signals of one process tree";

/// Programs of an intruder's first minute: `who`, `net`, `pack` and `send` give a signal each.
const SIGNALS: &str = "
ln -s /usr/bin/busybox /opt/busybox/tar
who() { id > /dev/null; }
net() { ip link > /dev/null; }
pack() { /opt/busybox/tar cf %W/all -C /etc hosts; }
send() { /opt/busybox/wget > /dev/null 2>&1 || :; }
";

/// The alerts of the sum that a script raises, under each engine that needs no privileges; a replay of the run raises
/// the same.
fn sums(script: &str) -> Vec<WatchResult> {
    let engines = [Engine::Notify, Engine::Ptrace].into_iter();
    let runs = engines.map(|engine| {
        let watched = watch(&format!("{SIGNALS}{script}"))
            .engine(engine)
            .recorded()
            .run();
        assert_eq!(watched.finished.stderr, "", "{}", watched.story());
        watched
    });
    runs.collect()
}

#[test]
fn weak_signals_of_a_process_tree_are_one_alert_that_lists_them() {
    need_root!();
    // What sends the files is an orphan by then: it is still of the tree.
    for watched in sums(
        "who; net; pack; (sh -c '(sleep 0.3; /opt/busybox/wget 2> /dev/null) &'); sleep 1; who; pack",
    ) {
        let alerts = watched.of(SUM);
        assert_eq!(alerts.len(), 1, "{}", watched.story());
        let alert = alerts[0];
        assert_eq!(alert.priority, "Warning");
        assert_eq!(alert.field("risk.sum"), "70", "{}", watched.story());
        assert_eq!(alert.field("risk.number"), "4");
        let shown = alert.output.as_str();
        for signal in [
            "10 Weak signal of discovery (id,",
            "10 Weak signal of network discovery (ip,",
            "30 Weak signal of collection (tar,",
            "20 Weak signal of transfer (wget,",
        ] {
            assert!(shown.contains(signal), "no {signal:?}: {shown}");
        }
        assert!(
            watched.of("Weak signal of collection").is_empty(),
            "signals are silent"
        );
    }
}

#[test]
fn a_copy_of_a_tree_with_secrets_is_a_signal_instead_of_an_alert() {
    need_root!();
    const SIGNAL: &str = "Weak signal of secrets taken along";
    let shown =
        format!("- rule: {SIGNAL}\n  risk: {{weight: 10}}\n  override: {{risk: replace}}\n");
    let of = |tree: &str| {
        let watched = watch(&format!("tar cf %W/all {tree} 2> /dev/null"))
            .place(Environment::Host)
            .rules(&shown)
            .run();
        let read = watched.of("Read sensitive file untrusted").len();
        (watched.of(SIGNAL).len(), read)
    };
    assert_eq!((of("/etc/apt"), of("/etc")), ((0, 0), (1, 0)));
}

#[test]
fn one_weak_signal_and_those_of_two_trees_are_no_alert() {
    need_root!();
    for watched in sums("repeat 5 pack; repeat 5 send") {
        assert!(watched.of(SUM).is_empty(), "{}", watched.story());
    }
    // A shell with the name of a program that starts trees: each of its children is one.
    let script = "cp /bin/sh /opt/init; exec /opt/init -c '
        sh -c \"id; ip link; /opt/busybox/tar cf %W/all -C /etc hosts; :\" > /dev/null
        sh -c \"/opt/busybox/wget 2> /dev/null; id > /dev/null\"; :'";
    for watched in sums(script) {
        assert!(watched.of(SUM).is_empty(), "{}", watched.story());
    }
}

#[test]
fn weak_signals_of_a_longer_time_are_no_alert() {
    need_root!();
    let shorter = format!(
        "- rule: {SUM}\n  count: {{risk_over: 59, within: 8s, below: []}}\n  override: {{count: replace}}\n"
    );
    let run = |pause: &str| {
        let script = format!("{SIGNALS}who; net; pack; sleep {pause}; send");
        let watched = watch(&script).rules(&shorter).run();
        watched.of(SUM).len()
    };
    assert_eq!((run("9"), run("0")), (0, 1));
}
