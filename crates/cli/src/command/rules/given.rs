//! Described events out of YAML: fields with their values.

use rules::given::{Given, GivenError, GivenValue, Others};

use crate::config::tree::{Node, Problem, Value};

/// What is printed for a value that does not exist.
const ABSENT: &str = "<NA>";

/// The field that says of which type an event is.
const TYPE: &str = "evt.type";

/// Reads an event: a mapping from fields to values.
pub(super) fn read(node: &Node, others: Others) -> Result<Given, Problem> {
    let Value::Map(entries) = &node.value else {
        let message = format!(
            "expected fields and their values, found {}",
            node.describe()
        );
        return Err(Problem::new(&node.origin, message).help("write `evt.type: openat`, and so on"));
    };
    let Some(kind) = entries.iter().find(|entry| entry.key == TYPE) else {
        return Err(Problem::new(&node.origin, format!("`{TYPE}` is missing"))
            .help("`tollgate rules events` lists the types of events"));
    };
    let name = kind.node.text()?;
    let mut given = Given::new(name, others).map_err(|error| problem(&kind.node, &error))?;
    for entry in entries {
        let value = value(&entry.node)?;
        given
            .give(&entry.key, &value)
            .map_err(|error| problem(&entry.node, &error))?;
    }
    Ok(given)
}

fn value(node: &Node) -> Result<GivenValue, Problem> {
    Ok(match &node.value {
        Value::Null => GivenValue::Absent,
        Value::Scalar { text, .. } if text == ABSENT => GivenValue::Absent,
        Value::Scalar { text, .. } => GivenValue::One(text.clone()),
        Value::List(items) => {
            let texts: Result<Vec<_>, _> = items.iter().map(Node::text).collect();
            GivenValue::Many(texts?.into_iter().map(str::to_owned).collect())
        }
        Value::Map(_) => {
            let message = format!("expected a value, found {}", node.describe());
            return Err(Problem::new(&node.origin, message));
        }
    })
}

fn problem(node: &Node, error: &GivenError) -> Problem {
    let problem = Problem::new(&node.origin, error.to_string());
    match error {
        GivenError::Kind {
            suggestion: Some(near),
            ..
        } => problem.help(format!("did you mean `{near}`?")),
        GivenError::Kind { .. } => problem.help("`tollgate rules events` lists them"),
        GivenError::Field { .. } => problem.help("`tollgate rules fields` lists them"),
        _ => problem,
    }
}
