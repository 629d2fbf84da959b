//! Test templates: `%{item.NAME}` is replaced by each case's value of NAME.

use serde_json::Value as Json;
use yaml::settings::{Node, Problem, Value};

use super::load::{anything, entry};

/// Largest number of tests that one template may expand to.
const MOST: usize = 10_000;

/// Names and values of one case.
type Case = Vec<(String, Node)>;

/// Expands a node to tests, each with the values of its case.
pub(super) fn expand(node: &Node) -> Result<Vec<(Node, Option<Json>)>, Problem> {
    let Some(cases) = entry(node, "cases") else {
        return Ok(vec![(node.clone(), None)]);
    };
    let mut all: Vec<Case> = Vec::new();
    for case in cases.list()? {
        all.extend(combinations(case)?);
        if all.len() > MOST {
            return Err(Problem::new(
                &case.origin,
                format!("more than {MOST} tests of one template"),
            ));
        }
    }
    let names = |case: &Case| {
        case.iter()
            .map(|(name, _)| name.clone())
            .collect::<std::collections::BTreeSet<_>>()
    };
    if all.iter().any(|case| names(case) != names(&all[0])) {
        return Err(Problem::new(
            &cases.origin,
            "the cases do not have the same names",
        ));
    }
    all.iter()
        .enumerate()
        .map(|(index, case)| concrete(node, index, case))
        .collect()
}

fn combinations(case: &Node) -> Result<Vec<Case>, Problem> {
    let missing = |key: &str| Problem::new(&case.origin, format!("the key `{key}` is missing"));
    let strategy = entry(case, "strategy").ok_or_else(|| missing("strategy"))?;
    let values = entry(case, "values").ok_or_else(|| missing("values"))?;
    let Value::Map(entries) = &values.value else {
        return Err(Problem::new(&values.origin, "expected names and values"));
    };
    match strategy.text()? {
        "vector" => Ok(vec![
            entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.clone()))
                .collect(),
        ]),
        "matrix" => {
            let mut all: Vec<Case> = vec![Vec::new()];
            for entry in entries {
                let mut more = Vec::new();
                for case in &all {
                    for value in entry.node.list()? {
                        let mut case = case.clone();
                        case.push((entry.key.clone(), value.clone()));
                        more.push(case);
                    }
                }
                all = more;
            }
            Ok(all)
        }
        other => Err(
            Problem::new(&strategy.origin, format!("there is no `{other}`"))
                .help("one of vector, matrix"),
        ),
    }
}

fn concrete(node: &Node, index: usize, case: &Case) -> Result<(Node, Option<Json>), Problem> {
    let Value::Map(entries) = &node.value else {
        return Ok((node.clone(), None));
    };
    let mut filled = Vec::new();
    for entry in entries.iter().filter(|entry| entry.key != "cases") {
        let mut entry = entry.clone();
        entry.node = fill(&entry.node, case)?;
        if entry.key == "name"
            && let Value::Scalar { text, .. } = &mut entry.node.value
        {
            *text += &format!("_testCase#{index}");
        }
        filled.push(entry);
    }
    let values = case
        .iter()
        .map(|(name, value)| (name.clone(), anything(value)))
        .collect();
    let node = Node {
        origin: node.origin.clone(),
        value: Value::Map(filled),
    };
    Ok((node, Some(Json::Object(values))))
}

fn fill(node: &Node, case: &Case) -> Result<Node, Problem> {
    let value = match &node.value {
        Value::Null => Value::Null,
        Value::List(items) => Value::List(
            items
                .iter()
                .map(|item| fill(item, case))
                .collect::<Result<_, _>>()?,
        ),
        Value::Map(entries) => {
            let filled = entries.iter().map(|entry| {
                let mut entry = entry.clone();
                entry.node = fill(&entry.node, case)?;
                Ok(entry)
            });
            Value::Map(filled.collect::<Result<_, Problem>>()?)
        }
        Value::Scalar { text, quoted } => return scalar(node, text, *quoted, case),
    };
    Ok(Node {
        origin: node.origin.clone(),
        value,
    })
}

fn scalar(node: &Node, text: &str, quoted: bool, case: &Case) -> Result<Node, Problem> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("%{") {
        let (path, after) = after
            .split_once('}')
            .ok_or_else(|| Problem::new(&node.origin, "`%{` without `}`"))?;
        let name = path.trim().strip_prefix("item.").unwrap_or("");
        let value = case.iter().find(|(known, _)| known == name);
        let (_, value) = value
            .ok_or_else(|| Problem::new(&node.origin, format!("no case has `{}`", path.trim())))?;
        // A placeholder that is the whole text is replaced by the value itself, so that numbers remain numbers.
        if before.is_empty() && after.is_empty() && filled.is_empty() {
            return Ok(Node {
                origin: node.origin.clone(),
                value: value.value.clone(),
            });
        }
        filled += before;
        filled += value.text()?;
        rest = after;
    }
    filled += rest;
    Ok(Node {
        origin: node.origin.clone(),
        value: Value::Scalar {
            text: filled,
            quoted,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::load::read;

    const TEMPLATE: &str = "\
tests:
  - name: t
    runner: HostRunner
    steps:
      - {type: syscall, name: d, syscall: '%{ item.call }', args: {oldFd: 1, newFd: '%{item.fd}'}}
      - {type: syscall, name: w, syscall: write, args: {fd: 1, buffer: 'to %{item.fd}'}}
    cases:
      - strategy: vector
        values: {call: dup2, fd: 20}
      - strategy: matrix
        values: {call: [dup2, dup3], fd: [21, 22]}
";

    #[test]
    fn a_template_is_a_test_for_each_case() {
        let tests = read("t", TEMPLATE, false).unwrap();
        let shown: Vec<_> = tests
            .iter()
            .map(|test| {
                let step = &test.scenario.steps[0];
                (
                    test.scenario.name.as_str(),
                    step.syscall.as_str(),
                    step.args["newFd"].as_i64().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("t_testCase#0", "dup2", 20),
                ("t_testCase#1", "dup2", 21),
                ("t_testCase#2", "dup2", 22),
                ("t_testCase#3", "dup3", 21),
                ("t_testCase#4", "dup3", 22)
            ]
        );
        assert_eq!(tests[4].scenario.steps[1].args["buffer"], "to 22");
        assert_eq!(tests[3].case.as_ref().unwrap()["call"], "dup3");
    }

    #[test]
    fn cases_must_have_what_the_test_asks_for() {
        let refusal = |from, to| {
            read("t", &TEMPLATE.replacen(from, to, 1), false)
                .unwrap_err()
                .message
        };
        assert_eq!(
            refusal("fd: 20", "df: 20"),
            "the cases do not have the same names"
        );
        assert_eq!(refusal("item.call", "item.none"), "no case has `item.none`");
        assert_eq!(refusal("vector", "victor"), "there is no `victor`");
    }
}
