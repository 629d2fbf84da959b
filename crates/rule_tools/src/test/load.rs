//! Loading of tests from YAML.

use std::path::{Path, PathBuf};

use rules::load::SYSCALL_SOURCE;
use rules::synthetic_event::{SyntheticEvent, UnsetFields};
use rules::{Level, UnknownLevel};
use yaml::settings::{self, Entry, Node, Origin, Problem, Value};

use crate::described_event;

/// A file of tests.
#[derive(Debug)]
pub(super) struct Suite {
    /// Rule files that the file names.
    pub(super) rules: Vec<PathBuf>,
    /// Rule files that the file adds to those, or to the built-in rules.
    pub(super) added: Vec<PathBuf>,
    /// Highest level of the rules that are on, if the file names one.
    pub(super) level: Option<Level>,
    pub(super) tests: Vec<Test>,
}

/// One test.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) events: Events,
    pub(super) expected: Vec<Expected>,
}

/// Source of the events of a test.
#[derive(Debug)]
pub(super) enum Events {
    /// A described event.
    Given(Box<SyntheticEvent>),
    /// The events of a capture.
    Capture(PathBuf),
}

/// An expected alert.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) rule: String,
    pub(super) origin: Origin,
    /// Number of alerts; at least one if absent.
    pub(super) count: Option<u64>,
    pub(super) priority: Option<String>,
    /// Text that the output must contain.
    pub(super) output: Option<String>,
    /// Fields with their printed values.
    pub(super) fields: Vec<(String, String)>,
}

/// Parses one file.
pub(super) fn read(path: &Path, text: &str) -> Result<Suite, Problem> {
    let root = settings::read(&path.display().to_string(), text)?;
    let entries = map(&root, "`tests:` with a list")?;
    check_keys(entries, &["rules", "add_rules", "level", "tests"])?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let files = |key: &str| match find(entries, key) {
        None => Ok(Vec::new()),
        Some(node) => {
            let names = node.list()?.iter().map(Node::text);
            names.map(|name| Ok(folder.join(name?))).collect()
        }
    };
    let (rules, added) = (files("rules")?, files("add_rules")?);
    let level = find(entries, "level").map(level).transpose()?;
    let tests = find(entries, "tests").ok_or_else(|| {
        Problem::new(&root.origin, "the key `tests` is missing")
            .help("write `tests:` with a list of tests; see the page about testing rules")
    })?;
    let tests: Vec<Test> = tests
        .list()?
        .iter()
        .map(|node| test(node, folder))
        .collect::<Result<_, _>>()?;
    if tests.is_empty() {
        let problem = Problem::new(&root.origin, "the list of tests is empty");
        return Err(
            problem.help("describe one: `- {name: N, event: {evt.type: T}, alerts: [RULE]}`")
        );
    }
    Ok(Suite {
        rules,
        added,
        level,
        tests,
    })
}

fn level(node: &Node) -> Result<Level, Problem> {
    node.text()?.parse().map_err(|error: UnknownLevel| {
        let problem = Problem::new(&node.origin, error.to_string());
        match error.suggestion() {
            Some(near) => problem.help(format!("did you mean `{near}`?")),
            None => problem,
        }
    })
}

fn test(node: &Node, folder: &Path) -> Result<Test, Problem> {
    let entries = map(node, "a test")?;
    check_keys(entries, &["name", "event", "others", "capture", "alerts"])?;
    let missing = |key: &str| Problem::new(&node.origin, format!("the test has no `{key}`"));
    let name = find(entries, "name")
        .ok_or_else(|| missing("name").help("add a name, such as `name: cat reads a secret`"))?;
    let others = find(entries, "others");
    let events = match (find(entries, "event"), find(entries, "capture")) {
        (Some(event), None) => {
            let others = others.map_or(Ok(UnsetFields::default()), self::others)?;
            refuse_other_source(event)?;
            Events::Given(Box::new(described_event::read(event, others)?))
        }
        (None, Some(capture)) => {
            if let Some(others) = others {
                let message = "`others` applies to the fields that `event` does not have";
                return Err(Problem::new(&others.origin, message).help("leave it out"));
            }
            Events::Capture(folder.join(capture.text()?))
        }
        (Some(_), Some(capture)) => {
            let message = "a test has either `event` or `capture`";
            return Err(Problem::new(&capture.origin, message).help("make two tests of it"));
        }
        (None, None) => {
            return Err(missing("event").help(
                "add its fields, such as `event: {evt.type: open, fd.name: /x}`, or `capture: FILE`",
            ));
        }
    };
    let alerts = find(entries, "alerts")
        .ok_or_else(|| missing("alerts").help("`alerts: []` means that no rule must match"))?;
    Ok(Test {
        name: name.text()?.to_owned(),
        origin: node.origin.clone(),
        events,
        expected: alerts
            .list()?
            .iter()
            .map(expected)
            .collect::<Result<_, _>>()?,
    })
}

/// Refuses an event of the source of a plugin, whose fields only the plugin knows.
fn refuse_other_source(event: &Node) -> Result<(), Problem> {
    let source = event.entry("evt.source").map(|entry| &entry.node);
    match source {
        Some(node) if node.text()? != SYSCALL_SOURCE => {
            let message = "events of plugins cannot be described";
            Err(Problem::new(&node.origin, message)
                .help("name a recording of them, such as `capture: events.scap`"))
        }
        _ => Ok(()),
    }
}

fn others(node: &Node) -> Result<UnsetFields, Problem> {
    match node.text()? {
        "absent" => Ok(UnsetFields::Absent),
        "unknown" => Ok(UnsetFields::Unknown),
        _ => {
            let message = format!("expected absent or unknown, found {}", node.describe());
            Err(Problem::new(&node.origin, message)
                .help("fields that `event` lacks are absent, or unknown"))
        }
    }
}

/// Parses the name of a rule, or a mapping with more requirements.
fn expected(node: &Node) -> Result<Expected, Problem> {
    let mut expected = Expected {
        rule: String::new(),
        origin: node.origin.clone(),
        count: None,
        priority: None,
        output: None,
        fields: Vec::new(),
    };
    if !matches!(node.value, Value::Map(_)) {
        expected.rule = node.text()?.to_owned();
        return Ok(expected);
    }
    let entries = map(node, "an alert")?;
    check_keys(entries, &["rule", "count", "priority", "output", "fields"])?;
    let rule = find(entries, "rule")
        .ok_or_else(|| Problem::new(&node.origin, "the alert has no `rule`"))
        .map_err(|problem| problem.help("name the rule that has to match, as in `rule: NAME`"))?;
    expected.rule = rule.text()?.to_owned();
    expected.count = find(entries, "count").map(Node::integer).transpose()?;
    let text = |key: &str| find(entries, key).map(Node::text).transpose();
    expected.priority = text("priority")?.map(str::to_owned);
    expected.output = text("output")?.map(str::to_owned);
    if let Some(fields) = find(entries, "fields") {
        for entry in map(fields, "fields and their values")? {
            let value = entry.node.text()?.to_owned();
            expected.fields.push((entry.key.clone(), value));
        }
    }
    Ok(expected)
}

fn map<'n>(node: &'n Node, what: &str) -> Result<&'n [Entry], Problem> {
    match &node.value {
        Value::Map(entries) => Ok(entries),
        _ => Err(Problem::new(
            &node.origin,
            format!("expected {what}, found {}", node.describe()),
        )),
    }
}

fn find<'n>(entries: &'n [Entry], key: &str) -> Option<&'n Node> {
    let entry = entries.iter().find(|entry| entry.key == key)?;
    Some(&entry.node)
}

fn check_keys(entries: &[Entry], known: &[&str]) -> Result<(), Problem> {
    let Some(unknown) = entries.iter().find(|entry| !known.contains(&&*entry.key)) else {
        return Ok(());
    };
    let problem = Problem::new(&unknown.origin, format!("unknown key `{}`", unknown.key));
    let near = rules::diagnostic::closest(&unknown.key, known.iter().copied());
    Err(match near {
        Some(near) => problem.help(format!("did you mean `{near}`?")),
        None => problem.help(format!("known keys are {}", known.join(", "))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> String {
        let problem = read(Path::new("t.yaml"), text).expect_err(text);
        format!("{}: {}", problem.origin, problem.message)
    }

    #[test]
    fn a_file_of_tests_is_read() {
        let text = "rules: a.yaml\nadd_rules: [../b.yaml]\nlevel: hunting\ntests:\n- name: one\n  event: {evt.type: open, fd.name: /x}\n  alerts: [R]\n\
            - name: two\n  capture: c.scap\n  alerts:\n  - {rule: S, count: 2, fields: {fd.num: 3}}\n";
        let suite = read(Path::new("dir/t.yaml"), text).expect("it is right");
        assert_eq!(suite.rules, [PathBuf::from("dir/a.yaml")]);
        assert_eq!(suite.added, [PathBuf::from("dir/../b.yaml")]);
        assert_eq!(suite.level, Some(Level::Hunting));
        let [one, two] = &suite.tests[..] else {
            panic!("{suite:?}");
        };
        assert!(matches!(one.events, Events::Given(_)));
        assert_eq!(one.expected[0].rule, "R");
        assert!(matches!(&two.events, Events::Capture(path) if path == Path::new("dir/c.scap")));
        assert_eq!(two.expected[0].count, Some(2));
        assert_eq!(
            two.expected[0].fields,
            [("fd.num".to_owned(), "3".to_owned())]
        );
    }

    #[test]
    fn what_is_wrong_names_its_line() {
        for (text, expected) in [
            ("a: 1\n", "t.yaml:1:1: unknown key `a`"),
            ("rules: []\n", "t.yaml:1:1: the key `tests` is missing"),
            ("tests: []\n", "t.yaml:1:1: the list of tests is empty"),
            (
                "level: huntin\ntests: []\n",
                "t.yaml:1:8: unknown level `huntin`: expected stable, hunting, forensic",
            ),
            (
                "tests:\n- name: x\n  alerts: []\n",
                "t.yaml:2:3: the test has no `event`",
            ),
            (
                "tests:\n- name: x\n  event: {evt.type: open}\n",
                "t.yaml:2:3: the test has no `alerts`",
            ),
            (
                "tests:\n- name: x\n  event:\n    evt.type: opn\n  alerts: []\n",
                "t.yaml:4:15: unknown event type `opn`",
            ),
            (
                "tests:\n- name: x\n  event:\n    evt.type: open\n    fd.num: x\n  alerts: []\n",
                "t.yaml:5:13: `fd.num` has to be a number, found `x`",
            ),
            (
                "tests:\n- name: x\n  event: {fd.num: 1}\n  alerts: []\n",
                "t.yaml:3:10: `evt.type` is missing",
            ),
        ] {
            assert_eq!(problem(text), expected);
        }
    }
}
