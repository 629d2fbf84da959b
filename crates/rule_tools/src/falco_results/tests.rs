use config::rule_files::NoSink;
use rules::EngineOptions;

use super::*;

fn result(text: &str) -> FileResult {
    let file = RuleFile {
        name: "r.yaml".into(),
        text: Ok(text.to_owned()),
    };
    let compile = |loaded: &mut Loaded| {
        loaded.compile(&EngineOptions::default(), NoSink);
    };
    results(&[file], &Environment::default(), compile).remove(0)
}

fn rule(condition: &str, more: &str) -> String {
    format!("- rule: R\n  desc: d\n  condition: {condition}\n  output: o\n  priority: INFO\n{more}")
}

/// Returns the code of the only problem, and the types and names of what encloses it.
fn problem(text: &str) -> (String, String) {
    let result = result(text).json();
    let all = ["errors", "warnings"].map(|kind| result[kind].as_array().expect("a list").clone());
    let all = all.concat();
    assert_eq!(all.len(), 1, "{text}: {all:?}");
    let places = all[0]["context"]["locations"].as_array().expect("a list");
    let places = places.iter().map(|place| {
        let text = |key: &str| place[key].as_str().expect("text").to_owned();
        format!("{} {}", text("item_type"), text("item_name"))
            .trim_end()
            .to_owned()
    });
    let places: Vec<_> = places.collect();
    let code = all[0]["code"].as_str().expect("text").to_owned();
    (code, places.join(" / "))
}

/// Rules, the code of their problem, and what encloses it.
type Case = (String, &'static str, &'static str);

/// Problems of items, lists and macros.
fn of_items() -> Vec<Case> {
    vec![
        ("- rule: [".to_owned(), "LOAD_ERR_YAML_PARSE", "value for"),
        (
            "- a\n".to_owned(),
            "LOAD_ERR_YAML_VALIDATE",
            "rules content item",
        ),
        (
            "- other: x\n".to_owned(),
            "LOAD_UNKNOWN_ITEM",
            "rules content item",
        ),
        (
            "- required_engine_version: x\n".to_owned(),
            "LOAD_ERR_YAML_VALIDATE",
            "required_engine_version",
        ),
        (
            "- required_engine_version: 99.0.0\n".to_owned(),
            "LOAD_ERR_VALIDATE",
            "required_engine_version",
        ),
        (
            "- list: l\n  items: [a]\n".to_owned(),
            "LOAD_UNUSED_LIST",
            "list l",
        ),
        (
            "- list: l\n  items: x\n".to_owned(),
            "LOAD_ERR_YAML_VALIDATE",
            "list l / value for items",
        ),
        (
            "- macro: m\n".to_owned(),
            "LOAD_ERR_YAML_VALIDATE",
            "macro m",
        ),
        (
            "- macro: m\n  condition: (a.b = 1\n".to_owned(),
            "LOAD_ERR_COMPILE_CONDITION",
            "macro m / macro condition / condition expression",
        ),
    ]
}

/// Problems of rules.
fn of_rules() -> Vec<Case> {
    vec![
        (
            rule("[a]", ""),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / value for condition",
        ),
        (
            rule("no.field = 1", ""),
            "LOAD_ERR_COMPILE_CONDITION",
            "rule R / rule condition / condition expression",
        ),
        (
            rule("evt.type = open and m", ""),
            "LOAD_ERR_VALIDATE",
            "rule R / condition expression",
        ),
        (
            rule("evt.type = open", "").replace(": o", ": '%no.field'"),
            "LOAD_ERR_COMPILE_OUTPUT",
            "rule R / rule output",
        ),
        (
            rule("evt.type = open", "").replace(": o", ": '%evt.dir'"),
            "LOAD_DEPRECATED_ITEM",
            "rule R / rule output",
        ),
        (
            rule("evt.type = open", "").replace("INFO", "x"),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / rule priority",
        ),
        (
            rule("evt.type = open", "  x: y\n"),
            "LOAD_UNKNOWN_KEY",
            "rule R",
        ),
        (
            rule("evt.type = open", "  enabled: x\n"),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / value for enabled",
        ),
    ]
}

/// Problems of overrides and exceptions.
fn of_parts() -> Vec<Case> {
    let exceptions = |text: &str| rule("evt.type = open", &format!("  exceptions:\n{text}"));
    vec![
        (
            rule("evt.type = open", "  override: {condition: x}\n"),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / overrides / value for condition",
        ),
        (
            rule("evt.type = open", "  override: {condition: replace}\n"),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / overrides desc",
        ),
        (
            exceptions("  - {name: e, fields: [proc.name], comps: [=, =]}\n"),
            "LOAD_ERR_VALIDATE",
            "rule R / exception e",
        ),
        (
            exceptions("  - {name: e, fields: [proc.name], values: x}\n"),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / exception e / exception values",
        ),
        (
            exceptions("  - {fields: [proc.name]}\n"),
            "LOAD_ERR_YAML_VALIDATE",
            "rule R / exceptions / exception",
        ),
    ]
}

#[test]
fn places_are_named_as_falco_names_them() {
    for (text, code, expected) in [of_items(), of_rules(), of_parts()].concat() {
        let (found, places) = problem(&text);
        let expected = format!("rules content / {expected}");
        assert_eq!((found.as_str(), places), (code, expected), "{text}");
    }
}

#[test]
fn a_problem_has_the_keys_of_falcos_and_no_others() {
    let result = result(&rule("no.field = 1", "")).json();
    let error = result["errors"][0].as_object().expect("an object");
    let keys: Vec<_> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, ["code", "codedesc", "context", "message"]);
    let places = error["context"]["locations"].as_array().expect("a list");
    let at = |index: usize| &places[index]["position"];
    assert_eq!(at(0)["offset"], 0);
    assert_eq!((&at(1)["line"], &at(1)["column"]), (&json!(0), &json!(2)));
    assert_eq!((&at(2)["line"], &at(2)["column"]), (&json!(2), &json!(13)));
    assert_eq!(at(3)["name"], "\"no.field = 1\"");
    assert!(!error["message"].as_str().expect("text").is_empty());
}

#[test]
fn the_schema_is_the_union_of_all_keys() {
    let is_valid = |text: &str| result(text).schema_warnings.is_empty();
    for good in [
        "- macro: m\n  tags: [a]\n",
        "- {rule: R, items: [1]}\n",
        "- {required_engine_version: 10}\n",
        "",
    ] {
        assert!(is_valid(good), "{good}");
    }
    for bad in [
        "- {rule: R, priority: Warning}\n",
        "- {rule: R, enabled: yes}\n",
        "- {rule: R, tags: x}\n",
        "- {rule: R, colour: red}\n",
        "- {rule: R, exceptions: [{fields: a}]}\n",
        "- {rule: R, override: {condition: remove}}\n",
        "- text\n",
        "rule: R\n",
    ] {
        assert!(!is_valid(bad), "{bad}");
    }
}
