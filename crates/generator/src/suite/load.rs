//! Loading of tests from YAML: templates are expanded, and everything is checked before anything is played.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};
use yaml::settings::{self, Node, Problem, Value};

use super::schema::{Kind, Property, ROOT, active};
use super::template;
use crate::scenario::{ResourceKind, Scenario};

/// A test that can be played.
#[derive(Clone, Debug)]
pub(super) struct Test {
    /// The rule that the test is for; may be empty.
    pub(super) rule: String,
    pub(super) description: Option<String>,
    /// Values of the case, for a test that comes from a template.
    pub(super) case: Option<Json>,
    pub(super) expected: Expected,
    pub(super) scenario: Scenario,
}

/// Requirements on an alert.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Expected {
    pub(super) source: Option<String>,
    pub(super) hostname: Option<String>,
    pub(super) priority: Option<String>,
    pub(super) output_fields: Map<String, Json>,
}

/// Parses one file.
pub(super) fn read(name: &str, text: &str, needs_rule: bool) -> Result<Vec<Test>, Problem> {
    let root = settings::read(name, text)?;
    // The keys of templates are checked here, the rest below when they are expanded.
    let tests = entry(&root, "tests").ok_or_else(|| {
        Problem::new(&root.origin, "the key `tests` is missing")
            .help("`tollgate generate suite explain` shows the keys of a file")
    })?;
    let mut all = Vec::new();
    for node in tests.list()? {
        for (node, case) in template::expand(node)? {
            all.push(test(&node, case, needs_rule)?);
        }
    }
    if let Value::Map(entries) = &root.value
        && let Some(unknown) = entries.iter().find(|entry| entry.key != "tests")
    {
        return Err(unknown_key(&unknown.origin, &unknown.key, ROOT.iter()));
    }
    if all.is_empty() {
        return Err(Problem::new(&tests.origin, "the list of tests is empty"));
    }
    Ok(all)
}

pub(super) fn entry<'node>(node: &'node Node, key: &str) -> Option<&'node Node> {
    match &node.value {
        Value::Map(entries) => entries
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| &entry.node),
        _ => None,
    }
}

fn test(node: &Node, case: Option<Json>, needs_rule: bool) -> Result<Test, Problem> {
    let Kind::List(properties) = &ROOT[0].kind else {
        unreachable!("the root is a list of tests");
    };
    let json = object(node, properties)?;
    let describe_error = |error: serde_json::Error| {
        Problem::new(&node.origin, format!("cannot use the test: {error}"))
    };
    let scenario: Scenario = serde_json::from_value(json.clone()).map_err(describe_error)?;
    let expected = json
        .get("expectedOutcome")
        .cloned()
        .unwrap_or_else(|| Json::Object(Map::new()));
    let text = |key: &str| json.get(key).and_then(Json::as_str).map(str::to_owned);
    let rule = text("rule").unwrap_or_default();
    if needs_rule && rule.is_empty() {
        return Err(Problem::new(
            &node.origin,
            format!("the test {} has no rule", scenario.name),
        )
        .help("name the rule that must fire with `rule:`"));
    }
    check(&scenario).map_err(|message| {
        Problem::new(&node.origin, format!("test {}: {message}", scenario.name))
    })?;
    Ok(Test {
        rule,
        description: text("description"),
        case,
        expected: serde_json::from_value(expected).map_err(describe_error)?,
        scenario,
    })
}

/// Checks what the schema cannot express.
fn check(scenario: &Scenario) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for resource in &scenario.resources {
        if !known.insert(resource.name.as_str()) {
            return Err(format!("duplicate name `{}`", resource.name));
        }
        if let ResourceKind::Process { env, .. } = &resource.kind {
            variables(env.keys())?;
        }
    }
    for step in &scenario.steps {
        for value in step.args.values().flat_map(leaves) {
            if let Some(path) = value
                .strip_prefix("${")
                .and_then(|rest| rest.strip_suffix('}'))
            {
                let name = path.trim().split('.').next().unwrap_or_default();
                if !known.contains(name) {
                    return Err(format!(
                        "step {} refers to `{name}`, which is not before it",
                        step.name
                    ));
                }
            }
        }
        if !known.insert(step.name.as_str()) {
            return Err(format!("duplicate name `{}`", step.name));
        }
    }
    let mut processes = scenario.context.processes.iter().rev();
    for process in &scenario.context.processes {
        variables(process.env.keys())?;
    }
    processes.next();
    if processes.any(|process| process.capabilities.is_some()) {
        return Err("capabilities belong to the last process of the chain".to_owned());
    }
    let container = scenario.context.container.as_ref();
    container.map_or(Ok(()), |container| variables(container.env.keys()))
}

fn variables<'key>(mut keys: impl Iterator<Item = &'key String>) -> Result<(), String> {
    match keys.find(|key| key.starts_with("TOLLGATE_")) {
        Some(key) => Err(format!("the variable {key} is the generator's own")),
        None => Ok(()),
    }
}

fn leaves(value: &Json) -> Vec<&str> {
    match value {
        Json::String(text) => vec![text],
        Json::Object(parts) => parts.values().flat_map(leaves).collect(),
        _ => Vec::new(),
    }
}

/// Checks an object and converts it to JSON.
fn object(node: &Node, properties: &'static [Property]) -> Result<Json, Problem> {
    let Value::Map(entries) = &node.value else {
        return Err(Problem::new(
            &node.origin,
            format!("expected keys and values, found {}", node.describe()),
        ));
    };
    let choice = |name: &str| entry(node, name)?.text().ok().map(str::to_owned);
    let properties = active(properties, &choice);
    let mut object = Map::new();
    for found in entries {
        let property = properties
            .iter()
            .find(|property| property.name == found.key)
            .ok_or_else(|| unknown_key(&found.origin, &found.key, properties.iter().copied()))?;
        object.insert(found.key.clone(), value(&found.node, &property.kind)?);
    }
    let missing = properties
        .iter()
        .find(|property| property.required && !object.contains_key(property.name));
    match missing {
        Some(property) => Err(Problem::new(
            &node.origin,
            format!("the key `{}` is missing", property.name),
        )
        .help(property.text)),
        None => Ok(Json::Object(object)),
    }
}

fn unknown_key<'p>(
    origin: &settings::Origin,
    key: &str,
    properties: impl Iterator<Item = &'p Property>,
) -> Problem {
    let names: Vec<_> = properties.map(|property| property.name).collect();
    Problem::new(origin, format!("unknown key `{key}`"))
        .help(format!("one of {}", names.join(", ")))
}

fn value(node: &Node, kind: &'static Kind) -> Result<Json, Problem> {
    match kind {
        Kind::Text => Ok(Json::from(node.text()?)),
        Kind::Value => Ok(scalar(node)?),
        Kind::Anything => Ok(anything(node)),
        Kind::Texts => texts(node),
        Kind::Object(properties) => match &node.value {
            // `expectedOutcome:` with nothing after it.
            Value::Null => Ok(Json::Object(Map::new())),
            _ => object(node, properties),
        },
        Kind::List(properties) => node
            .list()?
            .iter()
            .map(|item| object(item, properties))
            .collect::<Result<_, _>>()
            .map(Json::Array),
        Kind::Choice(variants) => {
            let text = node.text()?;
            if variants.iter().any(|(word, _)| *word == text) {
                return Ok(Json::from(text));
            }
            let words: Vec<_> = variants.iter().map(|(word, _)| *word).collect();
            Err(
                Problem::new(&node.origin, format!("no such value: `{text}`"))
                    .help(format!("one of {}", words.join(", "))),
            )
        }
    }
}

fn scalar(node: &Node) -> Result<Json, Problem> {
    let text = node.text()?;
    let is_quoted = matches!(&node.value, Value::Scalar { quoted: true, .. });
    Ok(match text.parse::<i64>() {
        Ok(number) if !is_quoted => Json::from(number),
        _ => Json::from(text),
    })
}

fn texts(node: &Node) -> Result<Json, Problem> {
    let Value::Map(entries) = &node.value else {
        return Err(Problem::new(
            &node.origin,
            format!("expected names and texts, found {}", node.describe()),
        ));
    };
    let mut object = Map::new();
    for entry in entries {
        object.insert(entry.key.clone(), Json::from(entry.node.text()?));
    }
    Ok(Json::Object(object))
}

/// Converts a node to JSON without checks.
pub(super) fn anything(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Scalar { .. } => scalar(node).unwrap_or(Json::Null),
        Value::List(items) => items.iter().map(anything).collect(),
        Value::Map(entries) => entries
            .iter()
            .map(|entry| (entry.key.clone(), anything(&entry.node)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: &str = "\
tests:
  - name: t
    runner: HostRunner
    rule: R
    context:
      processes: [{name: a}, {name: b, capabilities: all=ep}]
    resources:
      - {type: fd, name: f, subtype: file, filePath: /etc/shadow}
    steps:
      - type: syscall
        name: r
        syscall: read
        args: {fd: '${f.fd}', len: 16}
    expectedOutcome:
      priority: WARNING
      outputFields: {proc.name: b}
";

    fn refusal(text: &str) -> String {
        let problem = read("t.yaml", text, true).unwrap_err();
        format!(
            "{}: {} ({})",
            problem.origin,
            problem.message,
            problem.help.unwrap_or_default()
        )
    }

    #[test]
    fn a_description_becomes_a_scenario() {
        let tests = read("t.yaml", TEST, true).unwrap();
        let [test] = tests.as_slice() else {
            panic!("{tests:?}")
        };
        assert_eq!(
            (test.rule.as_str(), test.scenario.name.as_str()),
            ("R", "t")
        );
        assert_eq!(
            test.scenario.context.processes[1].name.as_deref(),
            Some("b")
        );
        assert_eq!(test.scenario.steps[0].args["len"], 16);
        assert_eq!(test.expected.output_fields["proc.name"], "b");
        let ResourceKind::Fd { file_path, .. } = &test.scenario.resources[0].kind else {
            panic!()
        };
        assert_eq!(file_path.as_deref(), Some("/etc/shadow"));
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        for (from, to, message) in [
            (
                "len: 16",
                "length: 16",
                "t.yaml:13:31: unknown key `length` (one of fd, buffer, len)",
            ),
            (
                "syscall: read",
                "syscall: reed",
                "no such value: `reed` (one of connect, dup",
            ),
            (
                ", filePath: /etc/shadow",
                "",
                "the key `filePath` is missing",
            ),
            (
                "'${f.fd}'",
                "'${g.fd}'",
                "step r refers to `g`, which is not before it",
            ),
            ("name: r\n", "name: f\n", "duplicate name `f`"),
            (
                "{name: a}",
                "{name: a, capabilities: all=e}",
                "capabilities belong to the last process",
            ),
            (
                "{name: a}",
                "{name: a, env: {TOLLGATE_X: y}}",
                "is the generator's own",
            ),
            ("    rule: R\n", "", "the test t has no rule"),
            (
                "runner: HostRunner",
                "runner: Other",
                "no such value: `Other` (one of HostRunner)",
            ),
            ("tests:", "test:", "the key `tests` is missing"),
        ] {
            let text = TEST.replacen(from, to, 1);
            assert_ne!(text, TEST, "{from}");
            let refusal = refusal(&text);
            assert!(refusal.contains(message), "{refusal}");
        }
        assert!(read("t.yaml", &TEST.replacen("    rule: R\n", "", 1), false).is_ok());
    }
}
