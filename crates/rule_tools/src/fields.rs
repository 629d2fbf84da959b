//! Lists the fields that conditions and outputs can use.

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::EngineKind;
use event::field::{ArgumentKind, Class, FieldSpec, docs};
use rules::diagnostic::closest;
use serde_json::{Value, json};

use crate::{ListFormat, words};

/// A class with its fields.
type Group = (&'static Class, &'static [FieldSpec]);

/// Prints the fields of a class, or of all classes.
///
/// # Errors
///
/// There is no such class.
pub fn execute(class: Option<&str>, format: ListFormat) -> Outcome {
    let wanted = |group: &Group| class.is_none_or(|class| group.0.name == class);
    let groups: Vec<Group> = docs().filter(wanted).collect();
    if let (Some(class), true) = (class, groups.is_empty()) {
        return Err(unknown_class(class));
    }
    terminal::print(&match format {
        ListFormat::Json => format!(
            "{}\n",
            json!({ "classes": groups.iter().map(json_group).collect::<Vec<_>>() })
        ),
        ListFormat::Markdown => groups.iter().map(markdown_group).collect(),
        ListFormat::Text => groups.iter().map(text_group).collect::<Vec<_>>().join("\n"),
    })
}

fn unknown_class(class: &str) -> Failure {
    let names: Vec<_> = docs().map(|(class, _)| class.name).collect();
    let failure = Failure::new(
        Exit::BadInput,
        format!("cannot list fields: no such class: `{class}`"),
    );
    failure.help(match closest(class, names.iter().copied()) {
        Some(similar) => format!("did you mean `{similar}`?"),
        None => format!("one of {}", names.join(", ")),
    })
}

/// Returns a field's name with the form of its argument.
fn form(field: &FieldSpec) -> String {
    let name = field.name;
    let form = |bracket: &str, required: bool| {
        if required {
            format!("{name}{bracket}")
        } else {
            format!("{name} {name}{bracket}")
        }
    };
    match field.argument {
        ArgumentKind::None => name.to_owned(),
        ArgumentKind::Index { required } => form("[N]", required),
        ArgumentKind::Name { required } => form("[NAME]", required),
        ArgumentKind::IndexOrName { required } => form("[N|NAME]", required),
        ArgumentKind::Suffix { required, .. } => form(".NAME", required),
        ArgumentKind::Label | ArgumentKind::Param => form(".NAME", true),
    }
}

/// Returns the reasons why engines never set a field, each with its engines.
fn never(field: &FieldSpec) -> Vec<(&'static str, Vec<EngineKind>)> {
    let mut reasons: Vec<(&str, Vec<EngineKind>)> = Vec::new();
    for engine in EngineKind::WITH_EVENTS {
        let Some(why) = field.never_by(engine) else {
            continue;
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, by)) => by.push(engine),
            None => reasons.push((why, vec![engine])),
        }
    }
    reasons
}

/// Formats `never set`, or the engines that never set it.
fn whom(by: &[EngineKind]) -> String {
    if by.len() == EngineKind::WITH_EVENTS.len() {
        return "never set".to_owned();
    }
    let names: Vec<_> = by.iter().map(|engine| engine.name()).collect();
    format!("never set by {}", names.join(", "))
}

fn text_group((class, fields): &Group) -> String {
    let mut out = format!("{}: {}\n", class.name, class.description);
    for field in *fields {
        let ty = words::value_type(field.ty);
        let many = if field.multi { " list" } else { "" };
        out.push_str(&format!(
            "  {}  ({ty}{many})\n      {}\n",
            form(field),
            field.description
        ));
        for (why, by) in never(field) {
            out.push_str(&format!("      {}: {why}\n", whom(&by)));
        }
    }
    out
}

fn markdown_group((class, fields): &Group) -> String {
    let mut out = format!("## {}\n\n{}\n\n", class.name, class.description);
    let names = EngineKind::WITH_EVENTS.map(EngineKind::name).join(" | ");
    out.push_str(&format!("| Field | Type | {names} | Description |\n"));
    out.push_str(&format!(
        "|---|---|{}---|\n",
        "---|".repeat(EngineKind::WITH_EVENTS.len())
    ));
    for field in *fields {
        let ty = words::value_type(field.ty);
        let many = if field.multi { " list" } else { "" };
        let filled = EngineKind::WITH_EVENTS.map(|engine| match field.never_by(engine) {
            None => "yes",
            Some(_) => "never",
        });
        let never = never(field).into_iter().map(|(why, by)| {
            let whom = whom(&by).replacen('n', "N", 1);
            format!(" {whom}: {why}.")
        });
        let never: String = never.collect();
        let description = format!("{}{never}", field.description).replace('|', "\\|");
        let form = form(field).replace('|', "\\|");
        let filled = filled.join(" | ");
        out.push_str(&format!(
            "| `{form}` | {ty}{many} | {filled} | {description} |\n"
        ));
    }
    out.push('\n');
    out
}

fn json_group((class, fields): &Group) -> Value {
    let fields: Vec<_> = fields
        .iter()
        .map(|field| {
            let reason = field.never(None);
            let never: serde_json::Map<String, Value> = EngineKind::WITH_EVENTS
                .into_iter()
                .filter_map(|engine| {
                    let why = field.never_by(engine)?;
                    Some((engine.name().to_owned(), why.into()))
                })
                .collect();
            json!({
                "name": field.name,
                "form": form(field),
                "type": words::value_type(field.ty),
                "list": field.multi,
                "supplied": reason.is_none(),
                "reason": reason,
                "never_set_by": never,
                "description": field.description,
            })
        })
        .collect();
    json!({ "name": class.name, "description": class.description, "fields": fields })
}
