//! `tollgate rules list`, `lint`, `cost` and `test` with rules of plugins.

use std::process::Command;
use std::time::Duration;

use e2e::{Limited, program};

use super::captures::{capture, data, event};
use super::tools::rules_tool;
use super::{Toy, rule};

#[test]
fn rules_are_listed_and_priced_without_their_plugin() {
    let mut toy = Toy::new("refuse");
    for has_config in [false, true] {
        let (code, text) = rules_tool(&toy, &["list"], has_config);
        assert_eq!(code, 0, "{text}");
        for name in ["Odd ", "Wordless ", "Shell "] {
            assert!(text.contains(name), "{text}");
        }
    }
    let (code, text) = rules_tool(&toy, &["list", "--rule", "Odd"], false);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("  source     toy\n"), "{text}");
    let (code, text) = rules_tool(&toy, &["cost"], false);
    assert_eq!(code, 0, "{text}");
    let others = "Rules of plugins need no system call; what an event costs depends on the plugin:\n  Odd (toy)\n  Wordless (toy)\n";
    assert!(text.ends_with(others), "{text}");
    // What is wrong with a rule is found all the same.
    toy.rules += "- rule: Broken\n  source: toy\n";
    let (code, text) = rules_tool(&toy, &["list"], false);
    assert_eq!(code, 2, "{text}");
}

#[test]
fn rules_of_a_plugin_are_linted() {
    let mut toy = Toy::new("plain");
    let (code, text) = rules_tool(&toy, &["lint"], true);
    assert_eq!((code, text.as_str()), (0, "0 findings in 3 rules\n"));
    toy.rules = rule("All", "toy.number > 0", "o");
    toy.rules += &rule("Later", "toy.number > 0 and toy.odd = true", "o");
    let (code, text) = rules_tool(&toy, &["lint"], true);
    assert_eq!(code, 1, "{text}");
    for expected in [
        "shadowed: rule Later: `All`, which comes before it",
        "1 findings in 2 rules\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let (code, text) = rules_tool(&toy, &["lint"], false);
    assert_eq!(code, 2, "{text}");
    for expected in [
        "cannot lint rule All: ",
        "no events of source `toy` are produced",
        "`-c FILE` names the configuration",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

/// Runs tests of rules.
fn tested(toy: &Toy, tests: &str, has_config: bool) -> (i32, String) {
    let rules = toy.folder.file("tested.yaml", 0o644, &toy.rules);
    let tests = toy.folder.file("tests.yaml", 0o644, tests);
    let mut command = Command::new(program());
    command.args(["rules", "test", "-r"]).arg(rules).arg(tests);
    if has_config {
        command.arg("-c").arg(toy.config());
    }
    let finished = Limited::start(&mut command, Duration::from_secs(30)).finish(b"");
    (finished.code(), finished.stdout.clone() + &finished.stderr)
}

const TESTS: &str = "\
tests:
- name: recorded
  capture: events.scap
  alerts:
  - {rule: Wordless, count: 2}
  - {rule: Odd, count: 1, output: odd 3 of toy by, fields: {'toy.part[a/b]': a/b}}
";

#[test]
fn rules_of_a_plugin_are_tested_with_recorded_events() {
    let toy = Toy::new("plain");
    capture(&toy, (1..=4).map(|number| event(999, &data(number))));
    let (code, text) = tested(&toy, TESTS, true);
    assert_eq!(code, 0, "{text}");
    assert!(text.ends_with("1 passed, 0 failed\n"), "{text}");
    let wrong = TESTS.replace("rule: Odd, count: 1", "rule: Odd, count: 7");
    let (code, text) = tested(&toy, &wrong, true);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("1 alerts of `Odd`, expected 7"), "{text}");
    let (code, text) = tested(&toy, TESTS, false);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("missing plugin"), "{text}");
}

#[test]
fn tests_of_rules_whose_plugin_is_not_loaded_are_refused() {
    let mut toy = Toy::new("plain");
    toy.rules = rule("Each", "toy.number > 0", "o");
    capture(&toy, [event(999, &data(1)), event(5, b"x")]);
    let test = "tests:\n- name: t\n  capture: events.scap\n  alerts: [Each]\n";
    let (code, text) = tested(&toy, test, false);
    assert_eq!(code, 2, "{text}");
    let expected = "the rule `Each` has a source that no loaded plugin has";
    assert!(text.contains(expected), "{text}");
    let (code, text) = tested(&toy, test, true);
    assert_eq!(code, 2, "{text}");
    let expected = "it has 1 events of plugins that the rules do not ask for (numbers: 5)";
    assert!(text.contains(expected), "{text}");
    let test = "tests:\n- name: t\n  event: {evt.type: pluginevent, evt.source: toy, toy.number: 3}\n  alerts: [Each]\n";
    let (code, text) = tested(&toy, test, true);
    assert_eq!(code, 2, "{text}");
    assert!(
        text.contains("events of plugins cannot be described"),
        "{text}"
    );
}
