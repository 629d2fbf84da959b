//! The rules that are used if none are named: they load without diagnostics, cost nothing on hot calls, and
//! cover what the stock rules cover.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rules::{Alert, AlertSink, Engine, EngineOptions, Loader, Ruleset};

const TEXT: &str = include_str!("../../../rules/default.yaml");
/// Files of rules by tactic, in the order in which they are loaded after [`TEXT`].
const TACTICS: [&str; 7] = [
    include_str!("../../../rules/command_and_control.yaml"),
    include_str!("../../../rules/credential_access.yaml"),
    include_str!("../../../rules/defense_evasion.yaml"),
    include_str!("../../../rules/execution.yaml"),
    include_str!("../../../rules/exfiltration.yaml"),
    include_str!("../../../rules/impact.yaml"),
    include_str!("../../../rules/persistence.yaml"),
];
const README: &str = include_str!("../../../rules/README.md");

struct Nowhere;

impl AlertSink for Nowhere {
    fn emit(&self, _: Alert) {}
}

fn load(name: &str, text: &str) -> (Ruleset, Vec<String>) {
    let (ruleset, diagnostics) = Loader::new().add(name, text).finish();
    let problems = diagnostics.iter().map(ToString::to_string).collect();
    (ruleset, problems)
}

/// Returns the text of all built-in rules but those that count for themselves and the weak signals.
fn first_texts() -> String {
    [&[TEXT], &TACTICS[..]].concat().join("\n")
}

fn names(ruleset: &Ruleset) -> BTreeSet<String> {
    ruleset
        .rules
        .iter()
        .map(|rule| rule.name.to_string())
        .collect()
}

#[test]
fn they_load_compile_and_plan_without_a_word() {
    let (ruleset, problems) = load("default.yaml", &first_texts());
    assert_eq!(problems, Vec::<String>::new());
    let (engine, problems) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(Nowhere));
    assert!(problems.is_empty(), "{problems:?}");
    let (plan, warnings) = engine.plan();
    assert!(warnings.is_empty(), "{warnings:?}");
    for call in [
        "read",
        "write",
        "mmap",
        "stat",
        "fstat",
        "newfstatat",
        "getppid",
        "umask",
        "dup",
    ] {
        let call = abi::Syscall::from_name(call).expect("a call");
        assert!(
            !plan.calls.contains_key(&call),
            "{} is trapped",
            call.name()
        );
    }
}

#[test]
fn every_rule_says_what_it_is_for() {
    let (ruleset, _) = load("default.yaml", &first_texts());
    for rule in &ruleset.rules {
        let tags: Vec<&str> = rule.tags.iter().map(AsRef::as_ref).collect();
        let has = |start: &str| tags.iter().any(|tag| tag.starts_with(start));
        assert!(has("maturity_"), "{}: {tags:?}", rule.name);
        assert!(has("mitre_"), "{}: {tags:?}", rule.name);
        assert!(has("T1") || has("TA"), "{}: {tags:?}", rule.name);
        assert!(has("host") || has("container"), "{}: {tags:?}", rule.name);
        assert!(
            README.contains(&format!("| {} |", rule.name)),
            "{} is not in the README",
            rule.name
        );
    }
}

/// Reads the published rules of others if they are present; without them there is nothing to compare.
#[test]
fn what_the_stock_rules_detect_has_a_rule_of_the_same_name() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/reference/upstream/falco_rules.yaml");
    let Ok(text) = std::fs::read_to_string(&path) else {
        testing::skip!("needs Falco's stable rules beside the repository", || Ok(
            format!("cannot read {}", path.display())
        ));
    };
    let (stock, _) = load("falco_rules.yaml", &text);
    let (own, _) = load("default.yaml", TEXT);
    let missing: Vec<_> = names(&stock).difference(&names(&own)).cloned().collect();
    assert_eq!(missing, Vec::<String>::new());
    assert!(names(&stock).len() >= 25);
}

#[test]
fn weights_are_data_of_which_none_raises_an_alert_alone() {
    let first = first_texts();
    let texts = [
        first.as_str(),
        include_str!("../../../rules/counted.yaml"),
        include_str!("../../../rules/risk.yaml"),
    ];
    let (ruleset, problems) = load("risk.yaml", &texts.join("\n"));
    assert_eq!(problems, Vec::<String>::new());
    let (engine, problems) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(Nowhere));
    assert!(problems.is_empty(), "{problems:?}");
    let (with, warnings) = engine.plan();
    assert!(warnings.is_empty(), "{warnings:?}");
    let sums: Vec<_> = ruleset
        .rules
        .iter()
        .filter(|rule| rule.sums_risk())
        .collect();
    let [sum] = sums[..] else {
        panic!("one rule sums weights: {sums:?}");
    };
    let limit = sum.count.as_ref().expect("it sums").over;
    let weights: Vec<_> = ruleset
        .rules
        .iter()
        .filter_map(|rule| Some((rule, rule.risk?)))
        .collect();
    assert!(
        weights.iter().all(|(_, risk)| risk.weight <= limit),
        "no signal is an alert by itself"
    );
    // Packing and sending files is a backup, and alerts only with a third signal.
    let silent = weights.iter().filter(|(_, risk)| risk.is_silent);
    let mut silent: Vec<_> = silent.map(|(_, risk)| risk.weight).collect();
    silent.sort_unstable();
    assert_eq!(silent, [10, 10, 10, 10, 15, 15, 20, 20, 25, 30]);
    assert!(silent.iter().rev().take(2).sum::<u32>() <= limit);
    for (rule, risk) in &weights {
        let is_stable = rule.level() == rules::Level::Stable;
        assert!(
            is_stable && (risk.is_silent || rule.priority <= rules::Priority::Notice),
            "{}",
            rule.name
        );
        assert!(
            !risk.is_silent || README.contains(&format!("| {} | {} |", rule.name, risk.weight)),
            "{}",
            rule.name
        );
    }
    assert!(README.contains(&format!("| {} |", sum.name)));
    // The signals ask for no call that the other rules do not ask for.
    let (before, _) = load("default.yaml", &texts[..2].join("\n"));
    let (before, _) = Engine::new(&before, &EngineOptions::default(), Box::new(Nowhere));
    let calls = |plan: event::Plan| plan.calls.into_keys().collect::<Vec<_>>();
    assert_eq!(calls(before.plan().0), calls(with));
}
