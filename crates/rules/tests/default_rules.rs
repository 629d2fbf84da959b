//! The rules that are used if none are named: they load without diagnostics, cost nothing on hot calls, and
//! cover what the stock rules cover.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rules::{Alert, AlertSink, Engine, EngineOptions, Loader, Ruleset};

const TEXT: &str = include_str!("../../../rules/default.yaml");
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

fn names(ruleset: &Ruleset) -> BTreeSet<String> {
    ruleset
        .rules
        .iter()
        .map(|rule| rule.name.to_string())
        .collect()
}

#[test]
fn they_load_compile_and_plan_without_a_word() {
    let (ruleset, problems) = load("default.yaml", TEXT);
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
    let (ruleset, _) = load("default.yaml", TEXT);
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
