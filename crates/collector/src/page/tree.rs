//! The process tree of an alert, from the fields that name ancestors.

use std::collections::BTreeMap;

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::view::plain;

/// Generations that are drawn at most: a sender names them.
const DEPTH: u32 = 32;

/// A process: name, number, and command line; empty for what the alert does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Process {
    name: String,
    pid: String,
    command: String,
}

/// Returns the value of a field as text; empty for none.
fn text(fields: &Map<String, Value>, name: &str) -> String {
    match fields.get(name) {
        Some(Value::String(text)) if text != "<NA>" => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Returns the processes that the fields name, the oldest first.
fn processes(fields: &Map<String, Value>) -> Vec<Process> {
    let mut found = BTreeMap::<u32, Process>::new();
    found.insert(
        0,
        Process {
            name: text(fields, "proc.name"),
            pid: text(fields, "proc.pid"),
            command: text(fields, "proc.cmdline"),
        },
    );
    found.insert(
        1,
        Process {
            name: text(fields, "proc.pname"),
            pid: text(fields, "proc.ppid"),
            command: text(fields, "proc.pcmdline"),
        },
    );
    for name in fields.keys() {
        let Some((list, generation)) = name.strip_suffix(']').and_then(|name| name.split_once('['))
        else {
            continue;
        };
        let Ok(generation @ 0..=DEPTH) = generation.parse::<u32>() else {
            continue;
        };
        let value = text(fields, name);
        if value.is_empty() {
            continue;
        }
        let process = found.entry(generation).or_default();
        match list {
            "proc.aname" => process.name = value,
            "proc.apid" => process.pid = value,
            "proc.acmdline" => process.command = value,
            "proc.aexepath" | "proc.aexe" if process.name.is_empty() => process.name = value,
            _ => {}
        }
    }
    let is_named = |process: &Process| *process != Process::default();
    found.into_values().rev().filter(is_named).collect()
}

/// Draws the tree; `None` if the alert names no process.
pub(super) fn draw(fields: &Map<String, Value>) -> Option<Markup> {
    let processes = processes(fields);
    let (last, ancestors) = processes.split_last()?;
    let mut inner = html! { li { (line(last, true)) } };
    for process in ancestors.iter().rev() {
        inner = html! { li { (line(process, false)) ul { (inner) } } };
    }
    Some(html! { ul.tree { (inner) } })
}

fn line(process: &Process, is_last: bool) -> Markup {
    let name = match process.name.is_empty() {
        true => "(unknown)",
        false => &process.name,
    };
    html! { div {
        span.here[is_last] { (plain(name)) }
        @if !process.pid.is_empty() { " " span.soft.small { (plain(&process.pid)) } }
        @if !process.command.is_empty() && process.command != process.name {
            br; code.soft { (plain(&process.command)) } }
    } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_the_ancestors_in_order_and_bounded() {
        let fields = serde_json::json!({
            "proc.name": "cat", "proc.pid": 7, "proc.pname": "bash", "proc.aname[2]": "sshd<b>",
            "proc.aname[3]": "<NA>", "proc.aname[4000000]": "x", "proc.aname[x]": "y"
        });
        let fields = fields.as_object().expect("an object");
        let names: Vec<_> = processes(fields).into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["sshd<b>", "bash", "cat"]);
        let drawn = draw(fields).expect("a tree").into_string();
        assert!(
            drawn.contains("sshd&lt;b&gt;") && !drawn.contains("<b>"),
            "{drawn}"
        );
        assert!(draw(&Map::new()).is_none());
    }
}
