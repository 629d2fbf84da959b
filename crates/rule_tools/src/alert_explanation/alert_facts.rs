//! What an alert itself says.

use std::collections::BTreeMap;

use rules::synthetic_event::SyntheticValue;
use serde_json::Value;

use crate::silence::alert::Alert;

/// A process of the alert's tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ancestor {
    pub(super) name: Option<String>,
    pub(super) cmdline: Option<String>,
    pub(super) pid: Option<String>,
}

/// What an alert says.
#[derive(Clone, Debug)]
pub(super) struct AlertFacts {
    pub(super) rule: String,
    pub(super) priority: Option<String>,
    pub(super) time: Option<String>,
    pub(super) host: Option<String>,
    pub(super) tags: Vec<String>,
    /// The text of the output before its fields.
    pub(super) title: String,
    /// The process at 0, its parent at 1, and so on.
    pub(super) ancestors: BTreeMap<usize, Ancestor>,
    /// Program, user, place and object, as parts of a sentence.
    pub(super) circumstances: Vec<String>,
}

impl AlertFacts {
    pub(super) fn of(object: &Value, alert: &Alert) -> Self {
        let text = |key: &str| object[key].as_str().map(str::to_owned);
        let tags = object["tags"].as_array().into_iter().flatten();
        Self {
            rule: alert.rule.clone(),
            priority: text("priority"),
            time: text("time"),
            host: text("hostname"),
            tags: tags
                .filter_map(|tag| tag.as_str().map(str::to_owned))
                .collect(),
            title: title(&alert.output, object["priority"].as_str()),
            ancestors: ancestors(alert),
            circumstances: circumstances(alert),
        }
    }
}

/// Returns the sentence of an output without time, priority and fields: `12:00:00.1: Warning It ran (command=x)`.
fn title(output: &str, priority: Option<&str>) -> String {
    let after = priority.and_then(|priority| output.split_once(&format!(": {priority} ")));
    let text = after.map_or(output, |(_, text)| text);
    // Ours lists fields in parentheses, Falco's after a bar.
    let ends = [" (", " | "].iter().filter_map(|start| text.find(start));
    let end = ends.min().unwrap_or(text.len());
    text[..end].trim().to_owned()
}

fn ancestors(alert: &Alert) -> BTreeMap<usize, Ancestor> {
    let mut all: BTreeMap<usize, Ancestor> = BTreeMap::new();
    for (field, value) in &alert.fields {
        let Some((level, set)) = level(field) else {
            continue;
        };
        match value {
            SyntheticValue::One(text) if !text.is_empty() => {
                set(all.entry(level).or_default(), text.clone());
            }
            // All of them: the parent first.
            SyntheticValue::Many(texts) if level == ALL => {
                for (at, text) in texts.iter().enumerate() {
                    set(all.entry(at + 1).or_default(), text.clone());
                }
            }
            _ => {}
        }
    }
    all.remove(&ALL);
    all
}

/// Stands for a field without an index, which has the values of all ancestors.
const ALL: usize = usize::MAX;

type Set = fn(&mut Ancestor, String);

/// Returns the process that a field is about, and what the field says of it.
fn level(field: &str) -> Option<(usize, Set)> {
    let name: Set = |ancestor, text| ancestor.name = Some(text);
    let cmdline: Set = |ancestor, text| ancestor.cmdline = Some(text);
    let pid: Set = |ancestor, text| ancestor.pid = Some(text);
    let of_ancestors = [
        ("proc.aname", name),
        ("proc.acmdline", cmdline),
        ("proc.apid", pid),
    ];
    match field {
        "proc.name" => Some((0, name)),
        "proc.cmdline" => Some((0, cmdline)),
        "proc.pid" => Some((0, pid)),
        "proc.pname" => Some((1, name)),
        "proc.pcmdline" => Some((1, cmdline)),
        "proc.ppid" => Some((1, pid)),
        _ => of_ancestors.into_iter().find_map(|(start, set)| {
            let rest = field.strip_prefix(start)?;
            if rest.is_empty() {
                return Some((ALL, set));
            }
            let index = rest.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?;
            Some((index, set))
        }),
    }
}

fn circumstances(alert: &Alert) -> Vec<String> {
    let text = |field: &str| alert.text(field);
    let program = text("proc.cmdline")
        .or_else(|| text("proc.name"))
        .map(|command| match text("proc.exepath") {
            Some(file) => format!("by `{command}` ({file})"),
            None => format!("by `{command}`"),
        });
    let user = match (text("user.name"), text("user.uid")) {
        (Some(name), _) => Some(format!("as user {name}")),
        (None, Some(id)) => Some(format!("as user {id}")),
        (None, None) => None,
    };
    let container = text("container.name").or_else(|| text("container.id"));
    let image = text("container.image.repository").or_else(|| text("container.image"));
    let place = match (text("container.id"), container) {
        (Some("host"), _) => Some("on the host".to_owned()),
        (_, Some(name)) => Some(match image {
            Some(image) => format!("in container {name} of image {image}"),
            None => format!("in container {name}"),
        }),
        (_, None) => None,
    };
    let object = text("fd.name").map(|name| format!("object {name}"));
    let failed = text("evt.res").filter(|result| *result != "SUCCESS");
    let failed = failed.map(|result| format!("result {result}"));
    let all = [program, user, place, object, failed];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_has_no_time_no_priority_and_no_fields() {
        let priority = Some("Warning");
        for (output, expected) in [
            ("10:00:00.1: Warning It ran (command=x)", "It ran"),
            ("10:00:00.1: Warning It ran | command=x y=(z)", "It ran"),
            ("It ran", "It ran"),
        ] {
            assert_eq!(title(output, priority), expected);
        }
    }
}
