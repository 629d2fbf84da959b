//! Which alerts a response rule is for.

use event::field;
use rules::{Alert, AlertValue, Priority};
use yaml::{Location, Node};

use crate::diagnostic::Code;
use crate::load::reader::Reader;

/// Condition of a response rule: each kind of test that is there has to hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matcher {
    /// Names of the detector's rules, one of which has raised the alert.
    pub(crate) rules: Vec<(String, Location)>,
    /// Groups of tests on output fields; those of one group hold together.
    fields: Vec<Vec<FieldTest>>,
    /// Groups of tags; the alert has all tags of one group.
    tags: Vec<Vec<String>>,
    priority: Option<PriorityTest>,
    source: Option<String>,
}

/// Comparison with the urgency of an alert, `Emergency` being the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PriorityTest {
    comparison: Comparison,
    priority: Priority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// `FIELD=VALUE` or `FIELD!=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FieldTest {
    field: String,
    is_equal: bool,
    value: String,
}

const KEYS: [&str; 5] = ["output_fields", "priority", "rules", "source", "tags"];

impl Matcher {
    /// Reads the mapping of `match`.
    pub(crate) fn read(reader: &mut Reader, node: &Node) -> Self {
        let fields = reader.fields(node, "`match`", &KEYS);
        let rules = reader.words_of(&fields, "rules");
        let mut matcher = Self {
            rules,
            ..Self::default()
        };
        for (text, at) in reader.words_of(&fields, "output_fields") {
            let tests = parts(&text).filter_map(|test| field_test(reader, test, &at));
            let tests: Vec<_> = tests.collect();
            // A group with a wrong test must not become a wider one.
            if tests.len() == parts(&text).count() {
                matcher.fields.push(tests);
            }
        }
        for (text, at) in reader.words_of(&fields, "tags") {
            if parts(&text).any(str::is_empty) {
                let message = format!("`tags` has an empty tag in `{text}`");
                reader.problem(Code::UnknownValue, &at, message);
            }
            matcher.tags.push(parts(&text).map(str::to_owned).collect());
        }
        if let Some(node) = fields.find("priority") {
            let text = reader.text(node, "priority");
            matcher.priority = text.and_then(|text| priority(reader, text, &node.location));
        }
        matcher.source = reader.text_of(&fields, "source").map(str::to_owned);
        matcher
    }

    /// Returns true if there is no test.
    pub(crate) fn is_empty(&self) -> bool {
        let lists = [self.rules.len(), self.fields.len(), self.tags.len()];
        lists == [0; 3] && self.priority.is_none() && self.source.is_none()
    }

    /// Adds the tests of a later rule of the same name. Its priority and source replace those before, if it has any.
    pub(crate) fn change(&mut self, later: Self) {
        self.rules.extend(later.rules);
        self.fields.extend(later.fields);
        self.tags.extend(later.tags);
        self.priority = later.priority.or(self.priority);
        self.source = later.source.or(self.source.take());
    }

    /// Returns true if the alert is meant.
    ///
    /// A test with `!=` on a field that the alert does not have fails: what is not there is unknown. So does every test
    /// with `=`.
    pub(crate) fn matches(&self, alert: &Alert) -> bool {
        let is_of_rule = || self.rules.iter().any(|(name, _)| **name == *alert.rule);
        let has = |tag: &String| alert.tags.iter().any(|known| known == tag);
        (self.rules.is_empty() || is_of_rule())
            && (self.tags.is_empty() || self.tags.iter().any(|group| group.iter().all(has)))
            && self.priority.is_none_or(|test| test.holds(alert.priority))
            && self
                .source
                .as_ref()
                .is_none_or(|source| **source == *alert.source)
            && (self.fields.is_empty()
                || self
                    .fields
                    .iter()
                    .any(|group| group.iter().all(|test| test.holds(alert))))
    }
}

/// Splits a group at its commas.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim)
}

fn field_test(reader: &mut Reader, text: &str, at: &Location) -> Option<FieldTest> {
    let parts = match text.split_once("!=") {
        Some((field, value)) => Some((field, false, value)),
        None => text
            .split_once('=')
            .map(|(field, value)| (field, true, value)),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._[]-/".contains(c);
    let test = parts.map(|(field, is_equal, value)| FieldTest {
        field: field.trim().to_owned(),
        is_equal,
        value: value.trim().replace('"', ""),
    });
    let test = test.filter(|test| !test.field.is_empty() && test.field.chars().all(is_name));
    let Some(test) = test else {
        let message = format!("`{text}` is no test: expected FIELD=VALUE or FIELD!=VALUE");
        reader.problem(Code::UnknownValue, at, message);
        return None;
    };
    // Fields of plugins, such as `ka.`, are not known here.
    let class = test.field.split('.').next().unwrap_or_default();
    let is_own = field::docs().any(|(known, _)| known.name == class);
    if let (true, Err(problem)) = (is_own, field::Field::parse(&test.field)) {
        reader.problem(Code::UnknownValue, at, problem.to_string());
    }
    Some(test)
}

fn priority(reader: &mut Reader, text: &str, at: &Location) -> Option<PriorityTest> {
    use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    let signs = [
        ("<=", LessOrEqual),
        (">=", GreaterOrEqual),
        ("<", Less),
        (">", Greater),
        ("=", Equal),
        ("", Equal),
    ];
    let text = text.trim();
    let found = signs.iter().find_map(|(sign, comparison)| {
        let name = text.strip_prefix(sign)?;
        Some((name.trim(), *comparison))
    });
    let (name, comparison) = found?;
    if let Some(priority) = Priority::parse(name) {
        return Some(PriorityTest {
            comparison,
            priority,
        });
    }
    let known = Priority::ALL.map(Priority::name);
    let message = format!("there is no priority `{name}`");
    reader.unknown(Code::UnknownValue, at, message, (name, &known));
    None
}

impl PriorityTest {
    fn holds(self, priority: Priority) -> bool {
        // The most urgent priority is the smallest.
        let order = self.priority.cmp(&priority);
        match self.comparison {
            Comparison::Equal => order.is_eq(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        }
    }
}

impl FieldTest {
    fn holds(&self, alert: &Alert) -> bool {
        let mut fields = alert.fields.iter();
        let value = fields.find(|(name, _)| **name == *self.field);
        value.is_some_and(|(_, value)| equals(value, &self.value) == self.is_equal)
    }
}

/// Compares as text; a list equals each of its values.
fn equals(value: &AlertValue, text: &str) -> bool {
    match value {
        AlertValue::Absent => false,
        AlertValue::Bool(value) => text == if *value { "true" } else { "false" },
        AlertValue::Int(value) => value.to_string() == text,
        AlertValue::Uint(value) => value.to_string() == text,
        AlertValue::Float(value) => value.to_string() == text,
        AlertValue::Text(value) => value == text,
        AlertValue::List(values) => values.iter().any(|value| equals(value, text)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rules::AlertDetails;

    use super::*;

    fn alert() -> Alert {
        let text = |text: &str| AlertValue::Text(text.to_owned());
        Alert {
            time_ns: 1,
            made_ns: 2,
            rule: "Shell".into(),
            priority: Priority::Warning,
            source: "syscall".into(),
            tags: vec!["host".to_owned(), "T1059".into()].into(),
            hostname: "box".into(),
            message: String::new(),
            fields: vec![
                ("proc.name".into(), text("sh")),
                ("proc.pid".into(), AlertValue::Int(7)),
                ("container.name".into(), AlertValue::Absent),
            ],
            details: AlertDetails::default(),
        }
    }

    fn matches(text: &str) -> bool {
        let (nodes, problem) = yaml::read(&Arc::from("m.yaml"), text);
        assert_eq!(problem, None);
        let mut reader = Reader::default();
        let matcher = Matcher::read(&mut reader, &nodes[0]);
        assert!(reader.diagnostics.is_empty(), "{:?}", reader.diagnostics);
        matcher.matches(&alert())
    }

    #[test]
    fn each_kind_of_test_decides() {
        for (text, expected) in [
            ("rules: [Shell]", true),
            ("rules: [Other, Shell]", true),
            ("rules: [Other]", false),
            ("rules: [shell]", false),
            ("tags: [host]", true),
            ("tags: ['host, T1059']", true),
            ("tags: ['host, T1060']", false),
            ("tags: ['host, T1060', T1059]", true),
            ("source: syscall", true),
            ("source: k8s_audit", false),
            ("priority: Warning", true),
            ("priority: '=warning'", true),
            ("priority: '>=Warning'", true),
            ("priority: '>Warning'", false),
            ("priority: '>Notice'", true),
            ("priority: '<Error'", true),
            ("priority: '<=Notice'", false),
            ("priority: Critical", false),
            ("output_fields: [proc.name=sh]", true),
            ("output_fields: ['proc.name=\"sh\"']", true),
            ("output_fields: ['proc.name=sh, proc.pid=7']", true),
            ("output_fields: ['proc.name=sh, proc.pid=8']", false),
            ("output_fields: ['proc.name=sh, proc.pid!=7']", false),
            ("output_fields: [proc.pid=8, proc.name!=bash]", true),
            // Proven absent, and not in the alert at all.
            ("output_fields: [container.name!=a]", true),
            ("output_fields: [container.name=a]", false),
            ("output_fields: [k8s.ns.name!=kube-system]", false),
            ("{rules: [Shell], priority: Notice}", false),
        ] {
            assert_eq!(matches(text), expected, "{text}");
        }
    }

    #[test]
    fn wrong_tests_are_named_with_a_suggestion() {
        for (text, message, help) in [
            (
                "priority: '>=Critcal'",
                "there is no priority `Critcal`",
                Some("did you mean `Critical`?"),
            ),
            (
                "output_fields: [proc.naem=a]",
                "cannot find a field named `proc.naem`; did you mean `proc.name`?",
                None,
            ),
            (
                "output_fields: [a]",
                "`a` is no test: expected FIELD=VALUE or FIELD!=VALUE",
                None,
            ),
            (
                "rule: [a]",
                "`match` has no key `rule`",
                Some("did you mean `rules`?"),
            ),
        ] {
            let (nodes, _) = yaml::read(&Arc::from("m.yaml"), text);
            let mut reader = Reader::default();
            Matcher::read(&mut reader, &nodes[0]);
            let problem = reader.diagnostics.first().expect(text);
            assert!(problem.message.starts_with(message), "{}", problem.message);
            if help.is_some() {
                assert_eq!(problem.help.as_deref(), help);
            }
        }
    }

    #[test]
    fn a_group_with_a_wrong_test_matches_nothing_wider() {
        let text = "output_fields: ['proc.name=sh, nonsense']";
        let (nodes, _) = yaml::read(&Arc::from("m.yaml"), text);
        let mut reader = Reader::default();
        let matcher = Matcher::read(&mut reader, &nodes[0]);
        assert!(reader.diagnostics[0].is_error());
        assert!(matcher.fields.is_empty());
    }
}
