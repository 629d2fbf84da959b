//! Lists the event types that conditions can name.

use diagnostics::failure::Outcome;
use diagnostics::terminal;
use event::{EventKind, ParamSpec};
use serde_json::{Value, json};

use crate::{ListFormat, words};

/// Prints the event types.
///
/// # Errors
///
/// The list cannot be printed.
pub fn execute(format: ListFormat) -> Outcome {
    terminal::print(&match format {
        ListFormat::Json => format!(
            "{}\n",
            json!({ "events": EventKind::all().map(json_event).collect::<Vec<_>>() })
        ),
        ListFormat::Markdown => markdown(),
        ListFormat::Text => EventKind::all()
            .map(|kind| format!("{}\n", signature(kind)))
            .collect(),
    })
}

/// Formats an event type as Falco lists it: `openat(fd FD, fd DIRFD, ...)`.
fn signature(kind: EventKind) -> String {
    let params: Vec<_> = kind
        .spec()
        .params
        .iter()
        .map(|param| format!("{} {}", type_word(param), param.name))
        .collect();
    format!("{}({})", kind.name(), params.join(", "))
}

fn type_word(param: &ParamSpec) -> String {
    // The variant's name without its data.
    let debug = format!("{:?}", param.ty);
    let word = debug.split(['(', ' ']).next().unwrap_or(&debug);
    word.to_ascii_uppercase()
}

fn json_event(kind: EventKind) -> Value {
    let params: Vec<_> = kind
        .spec()
        .params
        .iter()
        .map(|param| json!({ "name": param.name, "type": type_word(param) }))
        .collect();
    json!({
        "name": kind.name(),
        "category": words::category(kind.spec().category),
        "generic": kind.is_generic(),
        "params": params,
    })
}

fn markdown() -> String {
    let mut out = String::from("| Event | Category | Parameters |\n|---|---|---|\n");
    for kind in EventKind::all() {
        let params: Vec<_> = kind
            .spec()
            .params
            .iter()
            .map(|param| format!("`{}`", param.name))
            .collect();
        let category = words::category(kind.spec().category);
        out.push_str(&format!(
            "| `{}` | {category} | {} |\n",
            kind.name(),
            params.join(", ")
        ));
    }
    out
}
