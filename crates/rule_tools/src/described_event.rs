//! Synthetic events from YAML: fields with their values.

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use event::EventKind;
use rules::Ruleset;
use rules::synthetic_event::{SyntheticEvent, SyntheticEventError, SyntheticValue, UnsetFields};
use rules::trace::Tracer;
use yaml::settings::{Entry, Node, Problem, Value};

/// Text that stands for a value that does not exist.
const ABSENT: &str = "<NA>";

/// The field that holds the type of an event.
const TYPE: &str = "evt.type";

/// Key of the fields in an alert in JSON.
const FIELDS: &str = "output_fields";

/// A synthetic event. Fields, and its type, may be missing from the description.
#[derive(Debug)]
pub(super) struct Described {
    pub(super) given: SyntheticEvent,
    /// Other types that the event may have, if the description has none.
    pub(super) may_be: Option<Vec<&'static str>>,
}

/// Reads an event, or the fields of an alert. Fields that are not given are unknown.
pub(super) fn describe(root: &Node, ruleset: &Ruleset) -> Result<Described, Problem> {
    let fields = root.entry(FIELDS).map_or(root, |entry| &entry.node);
    let is_alert = root.entry(FIELDS).is_some();
    if is_alert && fields.entry(TYPE).is_none() {
        return of_a_rule(root, fields, ruleset);
    }
    let given = read(fields, UnsetFields::Unknown)?;
    Ok(Described {
        given,
        may_be: None,
    })
}

/// Infers the type of an alert's event: of the types that the alert's rule uses, those with which it would
/// match, or might.
fn of_a_rule(root: &Node, fields: &Node, ruleset: &Ruleset) -> Result<Described, Problem> {
    let missing = |why: &str, help: &str| {
        Problem::new(&fields.origin, format!("`{TYPE}` is missing, and {why}")).help(help)
    };
    let name = match root.entry("rule") {
        Some(entry) => entry.node.text()?,
        None => {
            return Err(missing(
                "the alert has no `rule` to infer it from",
                "add either",
            ));
        }
    };
    let Some(rule) = ruleset.rule(name) else {
        let why = format!("the rule `{name}` of the alert is not loaded");
        return Err(missing(
            &why,
            "name the file with that rule, too, or add the type",
        ));
    };
    let tracer = Tracer::new(ruleset, rule);
    let mut wrong = None;
    // Only the best is kept: a sender decides how long the values of an alert are.
    let mut best: Option<(u8, SyntheticEvent)> = None;
    let mut others = Vec::new();
    for kind in EventKind::all().filter(|kind| tracer.concerns(*kind)) {
        let given = match read_as(fields, kind.name(), UnsetFields::Unknown) {
            Ok(given) => given,
            // Events of another type may have these fields.
            Err(problem) => {
                wrong = wrong.or(Some(problem));
                continue;
            }
        };
        let misfit = misfit(tracer.explain_given(&given).holds);
        match &best {
            Some((least, _)) if *least < misfit => {}
            Some((least, _)) if *least == misfit => others.push(kind.name()),
            _ => {
                others.clear();
                best = Some((misfit, given));
            }
        }
    }
    match (best, wrong) {
        (Some((_, given)), _) => Ok(Described {
            given,
            may_be: Some(others),
        }),
        (None, Some(problem)) => Err(problem),
        (None, None) => Err(missing("its rule uses no event type", "check the rule")),
    }
}

/// Rank of a type; lower is better.
fn misfit(holds: Option<bool>) -> u8 {
    match holds {
        Some(true) => 0,
        None => 1,
        Some(false) => 2,
    }
}

/// Reads an event, which must have a type: a mapping from fields to values.
pub(super) fn read(node: &Node, others: UnsetFields) -> Result<SyntheticEvent, Problem> {
    let entries = entries(node)?;
    let Some(kind) = entries.iter().find(|entry| entry.key == TYPE) else {
        return Err(Problem::new(&node.origin, format!("`{TYPE}` is missing"))
            .help("`tollgate rules events` lists the types of events"));
    };
    read_as(node, kind.node.text()?, others)
}

fn entries(node: &Node) -> Result<&[Entry], Problem> {
    let Value::Map(entries) = &node.value else {
        let message = format!(
            "expected fields and their values, found {}",
            node.describe()
        );
        return Err(Problem::new(&node.origin, message).help("write `evt.type: openat`, and so on"));
    };
    Ok(entries)
}

/// Reads an event as one of this type, whether its type is given or not.
fn read_as(node: &Node, name: &str, others: UnsetFields) -> Result<SyntheticEvent, Problem> {
    let place = node.entry(TYPE).map_or(node, |entry| &entry.node);
    let mut given = SyntheticEvent::new(name, others).map_err(|error| problem(place, &error))?;
    for entry in entries(node)? {
        let value = value(&entry.node)?;
        given
            .give(&entry.key, &value)
            .map_err(|error| problem(&entry.node, &error))?;
    }
    Ok(given)
}

fn value(node: &Node) -> Result<SyntheticValue, Problem> {
    Ok(match &node.value {
        Value::Null => SyntheticValue::Absent,
        Value::Scalar { text, .. } if text == ABSENT => SyntheticValue::Absent,
        Value::Scalar { text, .. } => SyntheticValue::One(text.clone()),
        Value::List(items) => {
            let texts: Result<Vec<_>, _> = items.iter().map(Node::text).collect();
            SyntheticValue::Many(texts?.into_iter().map(str::to_owned).collect())
        }
        Value::Map(_) => {
            let message = format!("expected a value, found {}", node.describe());
            return Err(Problem::new(&node.origin, message));
        }
    })
}

fn problem(node: &Node, error: &SyntheticEventError) -> Problem {
    let problem = Problem::new(&node.origin, error.to_string());
    match error {
        SyntheticEventError::Kind {
            suggestion: Some(near),
            ..
        } => problem.help(format!("did you mean `{near}`?")),
        SyntheticEventError::Kind { .. } => problem.help("`tollgate rules events` lists them"),
        SyntheticEventError::Field { .. } => problem.help("`tollgate rules fields` lists them"),
        _ => problem,
    }
}

/// Returns the failure for a described event or test that cannot be used.
pub(super) fn unusable(problem: &Problem) -> Failure {
    let message = format!("cannot use {}: {}", problem.origin, problem.message);
    let failure = Failure::new(Exit::BadInput, message);
    match &problem.help {
        Some(help) => failure.help(help.clone()),
        None => failure,
    }
}
