//! The workload as oracle: a program makes calls of every kind and says what a watcher must have
//! seen; the alerts of a rule that catches them all must be exactly that, no more and no less.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use abi::constant::O_CLOEXEC;
use e2e::account::{CONNECTS, EXECS, Family, Line, OPENS, VARIOUS};
use e2e::{
    BLACKHOLE_ADDRESS, Engine, Environment, Fixture, Identity, Scratch, Watch, need_root,
    need_slow, skip,
};
use serde_json::Value;

macro_rules! oracles {
    ($($name:ident => $family:expr, $place:expr, $identity:expr;)*) => {
        $(#[test]
        fn $name() {
            check(&$family, Engine::under_test(), $place, $identity);
        })*
    };
}

oracles! {
    opens_on_the_host_by_root => OPENS, Environment::Host, Identity::Root;
    opens_on_the_host_with_few_capabilities => OPENS, Environment::Host, Identity::Docker;
    opens_on_the_host_by_a_user => OPENS, Environment::Host, Identity::User;
    opens_in_a_container_by_root => OPENS, Environment::Inside, Identity::Docker;
    opens_in_a_container_by_a_user => OPENS, Environment::Inside, Identity::User;
    opens_in_a_container_below => OPENS, Environment::Below, Identity::Docker;
    execs_on_the_host_by_root => EXECS, Environment::Host, Identity::Root;
    execs_on_the_host_with_few_capabilities => EXECS, Environment::Host, Identity::Docker;
    execs_on_the_host_by_a_user => EXECS, Environment::Host, Identity::User;
    execs_in_a_container_by_root => EXECS, Environment::Inside, Identity::Docker;
    connects_in_a_container_by_all_mighty_root => CONNECTS, Environment::Inside, Identity::Root;
    connects_in_a_container_by_root => CONNECTS, Environment::Inside, Identity::Docker;
    connects_in_a_container_by_a_user => CONNECTS, Environment::Inside, Identity::User;
    connects_in_a_network_of_its_own => CONNECTS, Environment::HostNetwork, Identity::Root;
    various_calls_on_the_host_by_root => VARIOUS, Environment::Host, Identity::Root;
    various_calls_on_the_host_with_few_capabilities => VARIOUS, Environment::Host, Identity::Docker;
    various_calls_on_the_host_by_a_user => VARIOUS, Environment::Host, Identity::User;
    various_calls_in_a_container => VARIOUS, Environment::Inside, Identity::Docker;
}

macro_rules! traced_oracles {
    ($($name:ident => $family:expr, $place:expr, $identity:expr;)*) => {
        $(#[test]
        fn $name() {
            for engine in [Engine::Ptrace, Engine::EveryCall] {
                check(&$family, engine, $place, $identity);
            }
        })*
    };
}

traced_oracles! {
    traced_opens_by_root => OPENS, Environment::Host, Identity::Root;
    traced_opens_in_a_container_by_a_user => OPENS, Environment::Inside, Identity::User;
    traced_execs_with_few_capabilities => EXECS, Environment::Host, Identity::Docker;
    traced_connects_in_a_container => CONNECTS, Environment::Inside, Identity::Docker;
    traced_various_calls_by_a_user => VARIOUS, Environment::Host, Identity::User;
}

fn check(family: &Family, engine: Engine, place: Environment, identity: Identity) {
    need_root!();
    let fixture = Fixture::compile("calls");
    let script = format!(
        "cd %W && exec \"$0\" \"$1\" {} {BLACKHOLE_ADDRESS}",
        family.name
    );
    let files = Scratch::new();
    let watch = Watch::new(["sh", "-c", &script]);
    let program = watch.scratch().program(fixture.program(), "calls");
    let account = watch.scratch().file("account", 0o666, "");
    let command = ["sh", "-c", &script, path(&program), path(&account)].map(str::to_owned);
    let watched = watch
        .command(command)
        .rules(&family.rule("proc.vpid"))
        .engine(engine)
        .place(place)
        .identity(identity)
        .option("-o")
        .option("outputs_queue.capacity=100000")
        .run();
    drop(files);
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let text = fs::read_to_string(&account).expect("the program wrote it");
    let lines = Line::all(&text);
    assert!(lines.len() > 7, "{text}");
    let compared = family.compare(&watched.alerts, lines, path(&account), "proc.vpid");
    assert!(compared.is_exact(), "{compared}{}", watched.finished.stderr);
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}

/// Opens by pid, path, flags and result.
type Opens = BTreeMap<(i64, String, i64, i64), i64>;

#[test]
fn a_storm_of_opens_by_root() {
    storm(
        Engine::under_test(),
        20_000,
        Environment::Host,
        Identity::Docker,
    );
}

#[test]
fn a_storm_of_opens_by_a_user() {
    storm(
        Engine::under_test(),
        20_000,
        Environment::Inside,
        Identity::User,
    );
}

#[test]
fn a_traced_storm_of_opens() {
    storm(Engine::Ptrace, 8_000, Environment::Host, Identity::Docker);
    storm(
        Engine::EveryCall,
        3_200,
        Environment::Inside,
        Identity::User,
    );
}

#[test]
fn a_storm_of_a_million_opens() {
    need_slow!();
    if Engine::under_test() == Engine::Ebpf {
        skip!("is about engines that hold calls", || Ok(String::from(
            "TOLLGATE_TEST_ENGINE is ebpf, which counts what finds no room"
        )));
    }
    storm(
        Engine::under_test(),
        1_000_000,
        Environment::Host,
        Identity::User,
    );
}

const STORM: &str = "\
- rule: Seen
  desc: every open
  condition: evt.type in (open, openat)
  output: \"|%proc.vpid|%evt.rawarg.flags|%evt.rawres|%evt.rawarg.name\"
  priority: DEBUG
";

/// Compares the opens that the load made with those that were printed.
fn differences(expected: &Opens, printed: &str, folder: &str) -> Vec<String> {
    let mut seen = Opens::new();
    for line in printed.lines() {
        let Some(open) = seen_open(line) else {
            continue;
        };
        *seen.entry(open).or_default() += 1;
    }
    let in_account = |(_, name, _, _): &(i64, String, i64, i64)| is_in_storm(name, folder);
    // What the load prepares (files, folders) it does before its threads start; those are opens of
    // the same names, and they are not in its account.
    let mut wrong = Vec::new();
    for (open, count) in expected {
        let found = seen.get(open).copied().unwrap_or_default();
        if found != *count {
            wrong.push(format!("{open:?}: made {count}, seen {found}"));
        }
    }
    for (open, count) in seen.iter().filter(|(open, _)| in_account(open)) {
        if !expected.contains_key(open) && !is_preparation(open) {
            wrong.push(format!("{open:?}: never made, seen {count}"));
        }
    }
    wrong
}

/// Eight processes of four threads each, under alarms, half of them without SA_RESTART.
fn storm(engine: Engine, opens: u64, place: Environment, identity: Identity) {
    need_root!();
    let mut watch = Watch::new(["true"]);
    if engine == Engine::Ebpf {
        // Nobody waits for the agent: room for all of it at once.
        watch = watch.option("--ring-kib").option("131072");
    }
    let oracle = watch.scratch().path().join("oracle");
    let each = (opens / 32).to_string();
    let program = watch.program().to_owned();
    let words = [
        path(&program),
        "workload",
        "opens_storm",
        "--processes",
        "8",
        "--threads",
        "4",
        "--operations",
        &each,
        "--oracle",
        path(&oracle),
    ];
    let words = words.map(str::to_owned);
    let watched = watch
        .command(words)
        .place(place)
        .identity(identity)
        .rules(STORM)
        .engine(engine)
        .text()
        .option("-o")
        .option("outputs_queue.capacity=2000000")
        .limit(Duration::from_secs(60 + opens / 1000))
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.finished.stderr);
    let text = fs::read_to_string(&oracle).expect("the load wrote it");
    let expected = expected_opens(&text);
    let sum: i64 = expected.values().sum();
    assert_eq!(
        u64::try_from(sum).expect("counts are positive"),
        opens / 32 * 32
    );
    let mut wrong = differences(&expected, &watched.log, &scratch_of(&text));
    wrong.truncate(20);
    assert!(
        wrong.is_empty(),
        "{}\n{}",
        wrong.join("\n"),
        watched.finished.stderr
    );
}

fn expected_opens(text: &str) -> Opens {
    let mut opens = Opens::new();
    for line in text.lines().skip(1) {
        let value: Value = serde_json::from_str(line).expect("the oracle is JSON");
        let number = |key: &str| value[key].as_i64().expect("a number");
        let name = value["path"].as_str().expect("a path").to_owned();
        let key = (number("pid"), name, number("flags"), number("result"));
        *opens.entry(key).or_default() += number("count");
    }
    opens
}

fn scratch_of(text: &str) -> String {
    let head: Value = serde_json::from_str(text.lines().next().expect("a head")).expect("JSON");
    head["scratch"].as_str().expect("a path").to_owned()
}

fn seen_open(line: &str) -> Option<(i64, String, i64, i64)> {
    let mut parts = line.split_once('|')?.1.splitn(4, '|');
    let mut number = || parts.next()?.parse().ok();
    let (pid, flags, result) = (number()?, number()?, number()?);
    Some((pid, parts.next()?.to_owned(), flags, result))
}

fn is_in_storm(name: &str, scratch: &str) -> bool {
    name.starts_with(scratch) || matches!(name, "file" | "created" | "missing" | "loop")
}

/// Files that are written before the storm begins, and folders that are removed after it.
fn is_preparation((_, name, flags, _): &(i64, String, i64, i64)) -> bool {
    let cloexec = flags & i64::from(O_CLOEXEC.i32()) != 0;
    cloexec && name.starts_with('/')
}

/// A call that nobody returns from has been made all the same.
#[test]
fn a_call_that_kills_its_caller_is_told() {
    let rule = "
- rule: Killed
  desc: a signal that ends its sender
  condition: evt.type = kill and evt.arg.sig = SIGKILL
  output: killed (result=%evt.rawres name=%proc.name)
  priority: NOTICE
";
    let watched = Watch::new(["bash", "-c", "kill -9 $$"]).rules(rule).run();
    assert_eq!(watched.code(), 137, "{}", watched.story());
    let alerts = watched.of("Killed");
    assert_eq!(alerts.len(), 1, "{}", watched.story());
    // The signal is dealt with after the kernel has told of the result.
    let is_seen = Engine::under_test() == Engine::Ebpf;
    let result = if is_seen { "0" } else { "<NA>" };
    assert_eq!(alerts[0].field("evt.rawres"), result);
    assert_eq!(alerts[0].field("proc.name"), "bash");
}

/// What no engine takes is not taken for absent.
#[test]
fn received_bytes_are_unknown_and_that_is_told() {
    let rule = "
- rule: Received
  desc: a word in a datagram
  condition: evt.type = recvfrom and evt.buffer contains hello
  output: received (%evt.buffer)
  priority: NOTICE
- rule: Sent
  desc: a word in a datagram
  condition: evt.type = sendto and evt.buffer contains hello
  output: sent (%evt.buffer)
  priority: NOTICE
";
    let program = "import socket as s
a = s.socket(s.AF_INET, s.SOCK_DGRAM); a.bind(('127.0.0.1', 0))
b = s.socket(s.AF_INET, s.SOCK_DGRAM); b.sendto(b'hello there', a.getsockname())
assert a.recvfrom(100)[0] == b'hello there'";
    let watched = Watch::new(["python3", "-c", program]).rules(rule).run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    assert_eq!(watched.of("Sent").len(), 1, "{}", watched.story());
    let undecided = watched.of("Tollgate internal: undecided event");
    assert_eq!(undecided.len(), 1, "{}", watched.story());
    assert_eq!(undecided[0].field("evt.type"), "recvfrom");
    let cause = undecided[0].field("tollgate.cause");
    assert!(cause.contains("are not captured"), "{cause}");
    assert_eq!(undecided[0].field("tollgate.undecided"), "[\"Received\"]");
}

/// Of a call that does not return, all is printed but its result.
#[test]
fn one_argument_that_is_unknown_hides_none_of_the_others() {
    if Engine::under_test() == Engine::Ebpf {
        skip!("needs an engine that sees calls before they return", || Ok(
            "TOLLGATE_TEST_ENGINE is ebpf".to_owned()
        ));
    }
    let rule = "
- rule: Ends
  desc: the end of a process
  condition: evt.type = exit_group and proc.name = bash
  output: ends (%evt.args)
  priority: NOTICE
";
    let watched = Watch::new(["bash", "-c", "exit 7"]).rules(rule).run();
    assert_eq!(watched.code(), 7, "{}", watched.story());
    let alerts = watched.of("Ends");
    assert_eq!(alerts.len(), 1, "{}", watched.story());
    assert_eq!(alerts[0].field("evt.args"), "res=<NA> status=7");
    assert!(alerts[0].output.ends_with("ends (res=<NA> status=7)"));
}
