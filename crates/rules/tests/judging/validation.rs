//! What `-V` of Falco refuses and accepts, beyond the grammar.

use abi::Syscall;
use event::Stage;
use rules::{AppendOutput, Code, Diagnostic, EngineOptions, ExtraField, Loader};

use crate::case::Case;
use crate::engine::{conclude, engine, rule_text, try_engine};

/// Returns what loading and compilation say of rules.
fn problems(text: &str) -> Vec<Diagnostic> {
    problems_with(text, &EngineOptions::default())
}

fn problems_with(text: &str, options: &EngineOptions) -> Vec<Diagnostic> {
    let (ruleset, mut found) = Loader::new().add("test.yaml", text).finish();
    let (_, _, compiled) = crate::engine::compile(&ruleset, options);
    found.extend(compiled);
    found
}

fn errors(text: &str) -> Vec<(Code, String)> {
    let found = problems(text).into_iter().filter(Diagnostic::is_error);
    found.map(|it| (it.code, it.message)).collect()
}

#[test]
fn disabled_rules_are_checked_and_never_match() {
    let text = rule_text("R", "evt.type = openat and no.such = 1") + "  enabled: false\n";
    let found = errors(&text);
    assert!(
        matches!(&found[..], [(Code::CompileCondition, message)] if message.contains("no.such")),
        "{found:?}"
    );
    let text = rule_text("R", "evt.type = openat and evt.dir = <") + "  enabled: false\n";
    let found = problems(&text);
    assert!(
        found.iter().any(|it| it.code == Code::DeprecatedItem),
        "{found:?}"
    );
    assert!(errors(&text).is_empty());
    let (engine, _, _) = try_engine(&text, &EngineOptions::default());
    assert_eq!(engine.matches().count(), 0);
}

#[test]
fn deprecated_fields_in_outputs_are_warned_of() {
    let deprecated = |text: &str, options: &EngineOptions| {
        let found = problems_with(text, options).into_iter();
        let found = found.filter(|it| it.code == Code::DeprecatedItem);
        found.map(|it| it.message).collect::<Vec<_>>()
    };
    let rule = |output: &str| {
        rule_text("R", "evt.type = openat").replace("matched", &format!("'x {output}'"))
    };
    let plain = EngineOptions::default();
    assert!(deprecated(&rule("%evt.type"), &plain).is_empty());
    for output in ["%evt.dir", "%toupper(evt.dir)", "%evt.wait_latency"] {
        let found = deprecated(&rule(output), &plain);
        assert!(
            matches!(&found[..], [message] if message.contains("output")),
            "{output}: {found:?}"
        );
    }
    // The name of another field begins with `evt.latency`.
    assert_eq!(deprecated(&rule("%evt.latency.ns"), &plain).len(), 2);
    let added = AppendOutput {
        extra_output: Some("dir=%evt.dir".to_owned()),
        extra_fields: vec![
            ExtraField::Field("evt.latency".to_owned()),
            ExtraField::Formatted {
                name: "waited".to_owned(),
                format: "%evt.wait_latency".to_owned(),
            },
        ],
        ..AppendOutput::default()
    };
    let options = EngineOptions {
        append_output: vec![added],
        ..EngineOptions::default()
    };
    assert_eq!(deprecated(&rule("x"), &options).len(), 3);
}

#[test]
fn a_join_of_numbers_is_evaluated() {
    let text = rule_text(
        "R",
        r#"evt.type = openat and join(",", (evt.num, evt.num)) = "7,7""#,
    );
    let text = text.replace("matched", "'%join(\"-\", (evt.num, proc.name))'");
    let (engine, kept) = engine(&text, &EngineOptions::default());
    let case = Case::new(Syscall::OPENAT, [0xffff_ff9c, 0x1000, 0, 0, 0, 0]);
    conclude(&engine, &case, Stage::Exit);
    let alerts = kept.take();
    assert_eq!(alerts.len(), 1);
    assert_eq!(alerts[0].message, "7-cat");
}

#[test]
fn exceptions_without_values_need_known_fields() {
    let rule = rule_text("R", "evt.type = openat");
    let with =
        |field: &str| format!("{rule}  exceptions:\n    - name: x\n      fields: [{field}]\n");
    assert!(errors(&with("proc.name, tolower(fd.name)")).is_empty());
    let found = errors(&with("no.such"));
    assert!(
        matches!(&found[..], [(Code::Validate, message)] if message.contains("no.such")),
        "{found:?}"
    );
}

#[test]
fn bytes_and_texts_take_operators_of_their_own() {
    let refused = |comparison: &str| {
        let found = errors(&rule_text(
            "R",
            &format!("evt.type = write and {comparison}"),
        ));
        matches!(&found[..], [(Code::CompileCondition, message)] if message.contains("does not apply"))
    };
    for op in [
        "regex a",
        "glob a*",
        "iglob a*",
        "pmatch (a)",
        "icontains a",
    ] {
        assert!(refused(&format!("evt.buffer {op}")), "evt.buffer {op}");
        assert!(!refused(&format!("proc.name {op}")), "proc.name {op}");
    }
    for op in ["< 5", "<= 5", "> 5", ">= 5"] {
        assert!(refused(&format!("evt.buffer {op}")), "evt.buffer {op}");
    }
    for op in ["bcontains 6162", "bstartswith 6162"] {
        assert!(!refused(&format!("evt.buffer {op}")), "evt.buffer {op}");
        assert!(refused(&format!("proc.name {op}")), "proc.name {op}");
        assert!(refused(&format!("fd.name {op}")), "fd.name {op}");
    }
    for op in [
        "= a",
        "!= a",
        "in (a, b)",
        "contains a",
        "startswith a",
        "endswith a",
    ] {
        assert!(!refused(&format!("evt.buffer {op}")), "evt.buffer {op}");
    }
}

#[test]
fn lists_may_have_names_with_blanks() {
    let list = "- list: my own list\n  items: [a, b]\n";
    let rule = rule_text(
        "R",
        "evt.type = openat and proc.name in (c, my own  list, d)",
    );
    assert_eq!(errors(&format!("{list}{rule}")), []);
    let found = errors(&rule);
    assert!(
        matches!(&found[..], [(Code::CompileCondition, message)]
            if message.contains("`my own list`, which is not the name of a list")),
        "{found:?}"
    );
}

#[test]
fn a_text_with_nul_is_refused() {
    for (key, value) in [("output", "\"a\\0b\""), ("desc", "\"\\0\"")] {
        let text = rule_text("R", "evt.type = openat");
        let text: String = text
            .lines()
            .map(|line| {
                let key = format!("  {key}: ");
                if line.starts_with(&key) {
                    format!("{key}{value}\n")
                } else {
                    format!("{line}\n")
                }
            })
            .collect();
        let found = errors(&text);
        assert!(
            matches!(&found[..], [(_, message)] if message.contains("NUL")),
            "{found:?}"
        );
    }
}

#[test]
fn a_negative_number_compares_with_an_unsigned_field_as_it_wraps() {
    for condition in ["user.uid = -1", "evt.num > -1", "user.uid in (-1, 5)"] {
        let text = rule_text("R", &format!("evt.type = openat and {condition}"));
        assert_eq!(errors(&text), [], "{condition}");
    }
}
