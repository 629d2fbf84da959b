//! Tools for rules know the sources and fields of plugins.

use std::process::Command;
use std::time::Duration;

use e2e::{Limited, program};
use serde_json::{Value, json};

use super::{RULES, Toy, compile, rule};

/// Runs `tollgate rules VERB` with the configuration and the rules of a plugin.
pub(crate) fn rules_tool(toy: &Toy, words: &[&str], has_config: bool) -> (i32, String) {
    let rules = toy.folder.file("checked.yaml", 0o644, &toy.rules);
    let mut command = Command::new(program());
    command.arg("rules").args(words).arg(&rules);
    if has_config {
        command.arg("-c").arg(toy.config());
    }
    let finished = Limited::start(&mut command, Duration::from_secs(20)).finish(b"");
    (finished.code(), finished.stdout.clone() + &finished.stderr)
}

#[test]
fn rules_of_a_plugin_are_checked_listed_and_explained() {
    let mut toy = Toy::new("plain");
    let (code, text) = rules_tool(&toy, &["check"], true);
    assert_eq!(code, 0, "{text}");
    assert!(text.ends_with("checked.yaml: Ok\n"), "{text}");
    let (code, text) = rules_tool(&toy, &["list"], true);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("Odd ") && text.contains("Shell "), "{text}");
    let (code, text) = rules_tool(&toy, &["explain"], true);
    assert_eq!(code, 0, "{text}");
    for expected in [
        "\nexecve\n",
        "\nRULES of source toy, evaluated on each of its events\n\n  rule      Odd\n  rule      Wordless\n",
        "\n  field     toy.part[a/b]\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    toy.rules = RULES.replace("toy.odd = true", "toy.od = true");
    let (code, text) = rules_tool(&toy, &["check"], true);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("did you mean `toy.odd`?"), "{text}");
}

#[test]
fn a_rule_of_a_source_without_its_plugin_cannot_be_checked() {
    let mut toy = Toy::new("plain");
    toy.rules = rule("Odd", "toy.odd = true", "o");
    let (code, text) = rules_tool(&toy, &["check"], false);
    assert_eq!(code, 2, "{text}");
    for expected in [
        "LOAD_ERR_UNCHECKED_SOURCE",
        "no events of source `toy` are produced, the rule cannot be checked",
        "the known sources are syscall;",
        "`-c FILE` names the configuration",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // The built-in rules beside it do not help.
    assert!(!text.contains("--add-rules"), "{text}");
    toy.rules = toy.rules.replace("source: toy", "source: toyy");
    let (code, text) = rules_tool(&toy, &["check"], true);
    assert_eq!(code, 2, "{text}");
    let near = "did you mean `toy`? the known sources are syscall, toy;";
    assert!(text.contains(near), "{text}");
    // Rules that ask for no plugin load none.
    toy.rules = toy
        .rules
        .replace("  source: toyy\n", "")
        .replace("toy.odd", "evt.is_open_read");
    toy.init_config = "{mode: refuse}".to_owned();
    let (code, text) = rules_tool(&toy, &["check"], true);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn a_rule_of_a_plugin_is_described_with_its_plugins_and_fields() {
    let mut toy = Toy::new("plain");
    toy.extractor = Some(compile(&["-DEXTRACTOR", "-DSOURCES=\"[\\\"toy\\\"]\""]));
    toy.rules += &rule("Loud", "toyx.shout startswith 2", "loud %toyx.shout");
    let described = |name: &str| {
        let ran = toy.run(&["-l", name, "-o", "json_output=true"]);
        let all: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", ran.stdout, ran.stderr));
        all["rules"][0]["details"].clone()
    };
    let odd = described("Odd");
    assert_eq!(odd["plugins"], json!(["toy"]), "{odd}");
    assert_eq!(odd["events"], json!(["asyncevent", "pluginevent"]));
    let fields = odd["output_fields"].as_array().expect("a list");
    assert!(fields.contains(&Value::from("toy.number")), "{odd}");
    let loud = described("Loud");
    assert_eq!(loud["plugins"], json!(["toy", "toyx"]), "{loud}");
}
