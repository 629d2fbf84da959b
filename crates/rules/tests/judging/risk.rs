//! Rules that sum the weights of others by process tree.

use abi::Syscall;
use event::Stage;
use rules::{AlertValue, EngineOptions, Loader, Priority};

use crate::case::Case;
use crate::engine::{conclude, engine, rule_text, try_engine};

const SECOND: u64 = 1_000_000_000;

/// A process of this tree opens a file: `names` are those of the process and its ancestors.
fn open(path: &str, names: &[&'static str], second: u64) -> Case {
    let mut case = Case::new(Syscall::OPENAT, [0xffff_ff9c, 0x1000, 0, 0, 0, 0]);
    case.text = Some(path.as_bytes().to_vec());
    case.result = Some(3);
    case.names = names.to_vec();
    case.time_ns = 1_700_000_000 * SECOND + second * SECOND;
    case
}

fn signal(name: &str, condition: &str, risk: &str) -> String {
    rule_text(name, condition) + &format!("  risk: {risk}\n")
}

fn sum(condition: &str, over: u32) -> String {
    let count = format!("{{risk_over: {over}, within: 60s, below: [init]}}");
    rule_text("sum", condition) + &format!("  count: {count}\n")
}

/// Three silent signals: /a of 20, /b of 30 and /c of 40. The sum stands before them.
fn rules(over: u32) -> String {
    let signals = [("a", 20), ("b", 30), ("c", 40)].map(|(name, weight)| {
        let condition = format!("evt.type = openat and fd.name startswith /{name}");
        signal(
            name,
            &condition,
            &format!("{{weight: {weight}, silent: true}}"),
        )
    });
    sum("not proc.name = backup", over) + &signals.concat()
}

const TREE: &[&str] = &["tar", "sh", "init"];
const OTHER: &[&str] = &["tar", "sh", "sh", "init"];

#[test]
fn signals_of_a_tree_become_one_alert_that_lists_them() {
    let (engine, kept) = engine(&rules(59), &EngineOptions::default());
    for (path, second) in [("/a", 0), ("/a1", 1), ("/a2", 2), ("/b", 4)] {
        conclude(&engine, &open(path, TREE, second), Stage::Exit);
    }
    assert!(kept.take().is_empty());
    conclude(
        &engine,
        &open("/c", &["curl", "sh", "init"], 9),
        Stage::Exit,
    );
    conclude(&engine, &open("/c", TREE, 10), Stage::Exit);
    let alerts = kept.take();
    assert_eq!(alerts.len(), 1, "what goes on is one alert: {alerts:?}");
    let alert = &alerts[0];
    assert_eq!((&*alert.rule, alert.priority), ("sum", Priority::Warning));
    assert_eq!(
        alert.message,
        "matched risk=90 in 7 s: 20 a (tar, 7 s before); 30 b (tar, 5 s before); 40 c (curl, 0 s before)"
    );
    let value = |name: &str| {
        let mut fields = alert.fields.iter();
        let found = fields.find(|(known, _)| &**known == name);
        found.map(|(_, value)| value.clone()).expect(name)
    };
    let texts = |texts: &[&str]| {
        let texts = texts
            .iter()
            .map(|text| AlertValue::Text((*text).to_owned()));
        AlertValue::List(texts.collect())
    };
    assert_eq!(value("risk.sum"), AlertValue::Uint(90));
    assert_eq!(value("risk.within_ns"), AlertValue::Uint(7 * SECOND));
    assert_eq!(value("risk.tree.pid"), AlertValue::Int(99));
    assert_eq!(value("risk.tree.program"), AlertValue::Text("sh".into()));
    assert_eq!(value("risk.number"), AlertValue::Uint(3));
    assert_eq!(value("risk.signals"), texts(&["a", "b", "c"]));
    assert_eq!(value("risk.programs"), texts(&["tar", "tar", "curl"]));
    let numbers = |numbers: [u64; 3]| AlertValue::List(numbers.map(AlertValue::Uint).to_vec());
    assert_eq!(value("risk.weights"), numbers([20, 30, 40]));
    let at = |second: u64| (1_700_000_000 + second) * SECOND;
    assert_eq!(value("risk.times_ns"), numbers([at(2), at(4), at(9)]));
}

#[test]
fn one_signal_and_signals_of_two_trees_or_of_a_long_time_are_no_alert() {
    let (engine, kept) = engine(&rules(59), &EngineOptions::default());
    for second in 0..100 {
        conclude(&engine, &open("/c", TREE, second), Stage::Exit);
    }
    conclude(&engine, &open("/b", OTHER, 100), Stage::Exit);
    conclude(&engine, &open("/b", TREE, 160), Stage::Exit);
    conclude(&engine, &open("/a", TREE, 190), Stage::Exit);
    // The condition of the sum leaves it out.
    conclude(
        &engine,
        &open("/c", &["backup", "sh", "init"], 191),
        Stage::Exit,
    );
    assert!(kept.take().is_empty());
    conclude(&engine, &open("/c", TREE, 192), Stage::Exit);
    assert_eq!(kept.take().len(), 1);
}

#[test]
fn an_event_adds_its_heaviest_signal_once() {
    let text = signal("light", "evt.type = openat", "30")
        + &signal(
            "heavy",
            "evt.type = openat and fd.name = /x",
            "{weight: 50, silent: true}",
        )
        + &sum("evt.num > 0", 79);
    // Of an event that two rules match, by the first of them: it alerts, and hides the other.
    let (first, kept) = engine(&text, &EngineOptions::default());
    conclude(&first, &open("/x", TREE, 0), Stage::Exit);
    conclude(&first, &open("/y", TREE, 1), Stage::Exit);
    let names = |kept: &crate::engine::Kept| {
        let alerts = kept.take();
        alerts
            .iter()
            .map(|alert| alert.rule.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&kept), ["light", "light"]);
    let (all, kept) = engine(&text, &crate::engine::all_matching());
    conclude(&all, &open("/x", TREE, 0), Stage::Exit);
    assert_eq!(names(&kept), ["light"]);
    conclude(&all, &open("/y", TREE, 1), Stage::Exit);
    assert_eq!(names(&kept), ["light", "sum"]);
}

#[test]
fn a_silent_rule_hides_no_other_and_needs_no_priority() {
    let text = signal("quiet", "evt.type = openat", "{weight: 10, silent: true}")
        .replace("WARNING", "DEBUG")
        + &rule_text("loud", "evt.type = openat")
        + &sum("evt.num > 0", 9);
    let options = EngineOptions {
        priority: Priority::Warning,
        ..EngineOptions::default()
    };
    let (engine, kept) = engine(&text, &options);
    conclude(&engine, &open("/x", TREE, 0), Stage::Exit);
    let alerts = kept.take();
    let names: Vec<_> = alerts.iter().map(|alert| &*alert.rule).collect();
    assert_eq!(names, ["loud", "sum"]);
    let findings = engine.lint(&[event::EngineKind::Notify]);
    assert!(
        findings
            .iter()
            .all(|finding| finding.message.find("no alert").is_none()),
        "{findings:?}"
    );
}

#[test]
fn a_sum_asks_for_no_event_that_no_signal_asks_for() {
    let alone = signal(
        "a",
        "evt.type = openat and fd.name = /x",
        "{weight: 10, silent: true}",
    );
    let (before, _) = engine(&alone, &EngineOptions::default());
    let (after, _) = engine(&(alone + &sum("evt.num > 0", 9)), &EngineOptions::default());
    let calls = |engine: &rules::Engine| {
        let calls = engine.plan().0.calls;
        calls
            .into_keys()
            .map(|call| call.name())
            .collect::<Vec<_>>()
    };
    assert_eq!(calls(&before), calls(&after));
}

#[test]
fn faulty_risks_are_told_with_their_place() {
    for (risk, expected) in [
        ("0", "`risk` has to be a number from 1 to 1000, found `0`"),
        (
            "heavy",
            "`risk` has to be a number from 1 to 1000, found `heavy`",
        ),
        ("{silent: true}", "the key `weight` of `risk` is missing"),
        (
            "{weight: 1001}",
            "`weight` has to be a number from 1 to 1000, found `1001`",
        ),
        (
            "{weight: 3, slient: true}",
            "unknown key `slient` is ignored",
        ),
    ] {
        let text = signal("a", "evt.type = openat", risk);
        check(risk, &text, expected);
    }
    for (count, expected) in [
        (
            "{risk_over: 3, within: 1s, distinct: fd.name}",
            "`distinct` cannot be used with `risk_over`",
        ),
        (
            "{risk_over: 3, over: 3, within: 1s}",
            "`over` cannot be used with `risk_over`",
        ),
        (
            "{over: 3, within: 1s, below: init}",
            "`below` needs `risk_over`",
        ),
        (
            "{risk_over: 3, within: 1s, below: containerd-shim-runc-v2}",
            "cuts names of programs to 15 bytes",
        ),
        (
            "{risk_over: 0, within: 1s}",
            "`risk_over` has to be a number from 1 to 1000, found `0`",
        ),
    ] {
        let text = rule_text("a", "evt.type = openat") + &format!("  count: {count}\n");
        check(count, &text, expected);
    }
    let alone = sum("evt.type = openat", 3);
    let (_, _, problems) = try_engine(&alone, &EngineOptions::default());
    let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(text[0].contains("no enabled rule has one"), "{text:?}");
    let looping = alone + "  risk: 3\n";
    let (_, _, problems) = try_engine(&looping, &EngineOptions::default());
    let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(text[0].contains("cannot have `risk`"), "{text:?}");
}

fn check(what: &str, text: &str, expected: &str) {
    let (_, found) = Loader::new().add("r.yaml", text).finish();
    let text: Vec<_> = found.iter().map(ToString::to_string).collect();
    assert!(
        text.iter().any(|it| it.contains(expected)),
        "{what}: {text:?}"
    );
    assert!(
        text.iter().all(|it| it.starts_with("r.yaml:6:")),
        "{text:?}"
    );
}
