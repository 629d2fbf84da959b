//! `tollgate generate list`: prints the actions.

use std::fmt::Write as _;

use diagnostics::failure::Outcome;
use diagnostics::terminal;
use serde_json::{Value, json};

use crate::action::{Action, ActionContext, Requirement};
use crate::options::ListOptions;

/// Prints actions.
///
/// # Errors
///
/// If no action is selected, or nothing can be printed.
pub fn execute(args: &ListOptions) -> Outcome {
    let mut text = String::new();
    for action in super::select(&args.selection)? {
        if args.json {
            let _ = writeln!(text, "{}", object(action));
        } else if args.long {
            text += &paragraph(action);
        } else {
            let _ = writeln!(text, "{}", action.name);
        }
    }
    terminal::print(&text)
}

fn object(action: &Action) -> Value {
    json!({
        "action": action.name,
        "summary": action.summary,
        "rule": action.rule,
        "also": action.also,
        "enabled": action.enabled,
        "place": action.place,
        "needs": needs(action),
        "changes": action.changes(),
    })
}

fn paragraph(action: &Action) -> String {
    let mut text = format!("{}\n    {}\n", action.name, action.summary);
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            let _ = writeln!(text, "    {name:8} {value}");
        }
    };
    let rules: Vec<&str> = action.rule.iter().chain(action.also).copied().collect();
    line("rule", &rules.join("; "));
    line(
        "where",
        match action.place {
            ActionContext::Anywhere => "",
            ActionContext::Container => "only in containers",
            ActionContext::Host => "only outside containers",
        },
    );
    line("needs", &needs(action).join(", "));
    line("changes", &action.changes());
    line(
        "default",
        if action.enabled {
            "on"
        } else {
            "off, see --all"
        },
    );
    text
}

fn needs(action: &Action) -> Vec<String> {
    let word = |need: &Requirement| match need {
        Requirement::Root => "root".to_owned(),
        Requirement::Readable(file) => format!("to read {file}"),
        Requirement::Program(program) => format!("`{program}`"),
        Requirement::Capability(name) => (*name).to_owned(),
        Requirement::NoCapability(name) => format!("a process without {name}"),
        Requirement::Address(address) => format!("a private network with {address}"),
    };
    action.needs.iter().map(word).collect()
}
