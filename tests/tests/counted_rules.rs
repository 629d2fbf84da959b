//! Each of the built-in rules that count: it alerts once when the count is reached, and not before.

use std::fs;

use e2e::Environment::Inside;
use e2e::{Identity, Watch, WatchResult, default_rules, need_root};

const LOUD: &[&str] = &["Notice", "Warning", "Error", "Critical"];

/// Seven questions about the machine.
const SEVEN: &str = "id; uname -a; cat /etc/passwd; cat /etc/group; ip link; ip addr; ip route";

/// `repeat NUMBER WORDS`: runs the words, in which $i counts. `session WORDS`: runs them in a session of their own.
const WORDS: &str = "
repeat() { i=0; while [ $i -lt $1 ]; do i=$((i+1)); eval \"$2\"; done; }
session() { perl -e 'unless (fork) { syscall 112; exec @ARGV } wait' sh -c \"$1\" > /dev/null; }
";

/// Runs a script as root in a container, with the rules that are built into the program.
fn run(script: &str) -> WatchResult {
    let file = default_rules().expect("rules/default.yaml is part of the repository");
    let read = |name| fs::read_to_string(file.with_file_name(name)).expect("a rule file");
    let rules = [read("default.yaml"), read("counted.yaml")].join("\n");
    Watch::new(["sh", "-c", &format!("{WORDS}{script}\n:")])
        .place(Inside)
        .identity(Identity::Root)
        .rules(&rules)
        .run()
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
