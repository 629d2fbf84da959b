//! `tollgate rules fields`.

use event::field::{ArgumentKind, Class, FieldSpec, Supplied, docs};
use rules::diagnostic::closest;
use serde_json::{Value, json};

use super::words;
use crate::args::Fields;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::terminal;

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
        format!("cannot list fields: there is no class `{class}`"),
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

fn note(field: &FieldSpec) -> Option<&'static str> {
    match field.supplied {
        Supplied::Yes => None,
        Supplied::No(reason) => Some(reason),
    }
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
        if let Some(reason) = note(field) {
            out.push_str(&format!("      never set: {reason}\n"));
        }
    }
    out
}

fn markdown_group((class, fields): &Group) -> String {
    let mut out = format!("## {}\n\n{}\n\n", class.name, class.description);
    out.push_str("| Field | Type | Description |\n|---|---|---|\n");
    for field in *fields {
        let ty = words::value_type(field.ty);
        let many = if field.multi { " list" } else { "" };
        let never = note(field)
            .map(|why| format!(" Never set: {why}."))
            .unwrap_or_default();
        let description = format!("{}{never}", field.description).replace('|', "\\|");
        let form = form(field).replace('|', "\\|");
        out.push_str(&format!("| `{form}` | {ty}{many} | {description} |\n"));
    }
    out.push('\n');
    out
}

fn json_group((class, fields): &Group) -> Value {
    let fields: Vec<_> = fields
        .iter()
        .map(|field| {
            json!({
                "name": field.name,
                "form": form(field),
                "type": words::value_type(field.ty),
                "list": field.multi,
                "supplied": note(field).is_none(),
                "reason": note(field),
                "description": field.description,
            })
        })
        .collect();
    json!({ "name": class.name, "description": class.description, "fields": fields })
}
