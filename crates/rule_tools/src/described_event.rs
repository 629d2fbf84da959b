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
    let kinds: Vec<_> = EventKind::all()
        .filter(|kind| tracer.concerns(*kind))
        .collect();
    let Some(first) = kinds.first() else {
        return Err(missing("its rule uses no event type", "check the rule"));
    };
    // The values are read once for all types: a sender decides how long those of an alert are.
    let (of_type, others) = entries(fields)?
        .iter()
        .partition::<Vec<_>, _>(|entry| SyntheticEvent::type_decides(&entry.key));
    let mut given = SyntheticEvent::new(first.name(), UnsetFields::Unknown)
        .map_err(|error| problem(fields, &error))?;
    give(&mut given, others)?;
    of_the_best(&kinds, given, &of_type, &tracer)
}

/// Makes an event one of the type that fits the rule best, of these types, of which there is at least one.
fn of_the_best(
    kinds: &[EventKind],
    mut given: SyntheticEvent,
    of_type: &[&Entry],
    tracer: &Tracer,
) -> Result<Described, Problem> {
    let mut wrong = Ok(());
    let mut best: Option<(u8, EventKind)> = None;
    let mut others = Vec::new();
    for kind in kinds {
        given.change_kind(*kind);
        // Events of another type may have these fields.
        if let Err(problem) = give(&mut given, of_type.iter().copied()) {
            wrong = wrong.and(Err(problem));
            continue;
        }
        let misfit = misfit(tracer.holds_given(&given));
        match best {
            Some((least, _)) if least < misfit => {}
            Some((least, _)) if least == misfit => others.push(kind.name()),
            _ => {
                others.clear();
                best = Some((misfit, *kind));
            }
        }
    }
    match best {
        Some((_, kind)) => given.change_kind(kind),
        None => wrong?,
    }
    Ok(Described {
        given,
        may_be: Some(others),
    })
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
    give(&mut given, entries(node)?)?;
    Ok(given)
}

/// Sets these fields of an event.
fn give<'e>(
    given: &mut SyntheticEvent,
    fields: impl IntoIterator<Item = &'e Entry>,
) -> Result<(), Problem> {
    for entry in fields {
        let value = value(&entry.node)?;
        given
            .give(&entry.key, &value)
            .map_err(|error| problem(&entry.node, &error))?;
    }
    Ok(())
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
