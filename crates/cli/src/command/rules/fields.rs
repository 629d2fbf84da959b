//! `tollgate rules fields`.

use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use event::field::{ArgumentKind, Class, FieldSpec, Mechanism, docs};
use rules::diagnostic::closest;
use serde_json::{Value, json};

use super::words;
use crate::args::Fields;

/// A class with its fields.
type Group = (&'static Class, &'static [FieldSpec]);

/// Runs the verb.
pub(crate) fn execute(args: &Fields) -> Outcome {
    let wanted = |group: &Group| {
        args.class
            .as_deref()
            .is_none_or(|class| group.0.name == class)
    };
    let groups: Vec<Group> = docs().filter(wanted).collect();
    if groups.is_empty() {
        return Err(unknown_class(args.class.as_deref().unwrap_or_default()));
    }
    terminal::print(&if args.json {
        format!(
            "{}\n",
            json!({ "classes": groups.iter().map(json_group).collect::<Vec<_>>() })
        )
    } else if args.markdown {
        groups.iter().map(markdown_group).collect()
    } else {
        groups.iter().map(text_group).collect::<Vec<_>>().join("\n")
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

/// Name with the form of its argument.
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

/// Why some mechanisms never fill a field, and which; those with the same reason together.
fn never(field: &FieldSpec) -> Vec<(&'static str, Vec<Mechanism>)> {
    let mut reasons: Vec<(&str, Vec<Mechanism>)> = Vec::new();
    for mechanism in Mechanism::ALL {
        let Some(why) = field.never_by(mechanism) else {
            continue;
        };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, by)) => by.push(mechanism),
            None => reasons.push((why, vec![mechanism])),
        }
    }
    reasons
}

/// `never set`, or by whom it is not.
fn whom(by: &[Mechanism]) -> String {
    if by.len() == Mechanism::ALL.len() {
        return "never set".to_owned();
    }
    let names: Vec<_> = by.iter().map(|mechanism| mechanism.name()).collect();
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
    let names = Mechanism::ALL.map(Mechanism::name).join(" | ");
    out.push_str(&format!("| Field | Type | {names} | Description |\n"));
    out.push_str(&format!(
        "|---|---|{}---|\n",
        "---|".repeat(Mechanism::ALL.len())
    ));
    for field in *fields {
        let ty = words::value_type(field.ty);
        let many = if field.multi { " list" } else { "" };
        let filled = Mechanism::ALL.map(|mechanism| match field.never_by(mechanism) {
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
            let never: serde_json::Map<String, Value> = Mechanism::ALL
                .into_iter()
                .filter_map(|mechanism| {
                    let why = field.never_by(mechanism)?;
                    Some((mechanism.name().to_owned(), why.into()))
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
