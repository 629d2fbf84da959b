//! The file of an exception, and the file of its test, as text.

use std::hash::{DefaultHasher, Hash, Hasher};

use rules::Level;
use rules::synthetic_event::{SyntheticValue, UnsetFields};
use yaml::quote;

use super::alert::Alert;
use super::candidate::Candidate;
use super::evaluation::EventText;

/// Returns the append to the rule, in Falco's format.
pub(super) fn rule_file(alert: &Alert, candidate: &Candidate, test: &str) -> String {
    let column = |text: &dyn Fn(&super::candidate::Test) -> String| {
        let cells: Vec<_> = candidate.tests.iter().map(text).collect();
        cells.join(", ")
    };
    let (rule, name) = (quote::scalar(&alert.rule), name(candidate));
    format!(
        "# An exception that `tollgate rules silence` wrote. Alert:\n#   {}\n# It is not raised if {}.\n# \
         Test: {}. Delete both files to undo this.\n- rule: {rule}\n  exceptions:\n    - name: {name}\n      \
         fields: [{}]\n      comps: [{}]\n      values:\n        - [{}]\n  override:\n    exceptions: append\n",
        quote::comment(&alert.output),
        candidate.condition(),
        quote::comment(test),
        column(&|test| test.field.to_owned()),
        column(&|test| quote::scalar(test.comparison.word())),
        column(&|test| quote::scalar(&operand(&test.value))),
    )
}

/// Returns a name that no other exception has: appended values of the same name need the same fields.
fn name(candidate: &Candidate) -> String {
    let mut hasher = DefaultHasher::new();
    for test in &candidate.tests {
        (test.field, test.comparison.word(), &test.value).hash(&mut hasher);
    }
    format!("silence_{:016x}", hasher.finish())
}

/// Returns a value as conditions write it: with quotes, unless it has plain characters only. Falco parses the values of
/// exceptions as parts of a condition.
fn operand(value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | ':');
    if !value.is_empty() && value.chars().all(is_plain) {
        return value.to_owned();
    }
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            // A string cannot end in an escaped backslash.
            '"' | '\\' => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if c.is_ascii_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The rule files that a test needs.
pub(super) struct TestRules {
    /// Instead of the built-in rules.
    pub(super) named: Vec<String>,
    /// The file of the exception, and others beside the built-in rules.
    pub(super) added: Vec<String>,
    /// Level of the rule. Rules of higher levels are off.
    pub(super) level: Level,
}

/// One test: an event, and the alerts that it raises.
pub(super) struct TestCase<'e> {
    pub(super) name: String,
    pub(super) event: &'e EventText,
    pub(super) alerts: Vec<String>,
}

/// Returns the file that `tollgate rules test` reads.
pub(super) fn test_file(files: &TestRules, tests: &[TestCase<'_>]) -> String {
    let list = |texts: &[String]| {
        let texts: Vec<_> = texts.iter().map(|text| quote::scalar(text)).collect();
        format!("[{}]", texts.join(", "))
    };
    let mut out = String::from("# Test of an exception that `tollgate rules silence` wrote.\n");
    if !files.named.is_empty() {
        out.push_str(&format!("rules: {}\n", list(&files.named)));
    }
    out.push_str(&format!(
        "add_rules: {}\nlevel: {}\ntests:\n",
        list(&files.added),
        files.level
    ));
    for test in tests {
        out.push_str(&format!(
            "  - name: {}\n    event:\n",
            quote::scalar(&test.name)
        ));
        for (field, value) in &test.event.fields {
            let value = match value {
                SyntheticValue::Absent => "null".to_owned(),
                SyntheticValue::One(text) => quote::scalar(text),
                SyntheticValue::Many(texts) => list(texts),
            };
            out.push_str(&format!("      {}: {value}\n", quote::scalar(field)));
        }
        if test.event.others == UnsetFields::Unknown {
            out.push_str("    others: unknown\n");
        }
        out.push_str(&format!("    alerts: {}\n", list(&test.alerts)));
    }
    out
}

#[cfg(test)]
mod tests {
    use rules::Loader;
    use serde_json::json;

    use super::super::alert::tests::alert;
    use super::super::candidate::candidates;
    use super::*;

    const RULE: &str = "- rule: \"R: \\\"x\\\"\"\n  desc: d\n  condition: evt.type = openat\n  \
        output: o\n  priority: INFO\n";

    #[test]
    fn no_name_of_a_file_breaks_the_yaml_or_the_condition() {
        for name in [
            "/tmp/plain",
            "/tmp/a b",
            "/tmp/a\"b' c",
            "/tmp/x\n- rule: \"R: \\\"x\\\"\"\n  enabled: false\n",
            "/tmp/\\",
            "/tmp/(a, b) or true",
            "/tmp/\u{1b}]0;x\u{7}\u{202e}",
            "/tmp/#: {[&*!|>%@`",
        ] {
            let alert = alert("R: \"x\"", json!({ "proc.exepath": name, "fd.name": name }));
            let text = rule_file(&alert, &candidates(&alert)[0], name);
            let loader = Loader::new().add("r.yaml", RULE).add("s.yaml", &text);
            let (ruleset, diagnostics) = loader.finish();
            assert!(diagnostics.is_empty(), "{text}\n{diagnostics:?}");
            let [rule] = &ruleset.rules[..] else {
                panic!("{text}");
            };
            assert!(rule.enabled && rule.exceptions.len() == 1, "{text}");
            assert_eq!(text.lines().count(), 13, "{text}");
        }
    }
}
