//! The form of rule files: known keys and types of values, as Falco's schema has them. An item may have any of the keys
//! of all kinds of items, and needs none of them.

use rules::load::item_keys;
use yaml::{Kind, Node};

/// Priorities as the schema spells them. Rules may spell them in other ways.
pub const PRIORITIES: [&str; 9] = [
    "EMERGENCY",
    "ALERT",
    "CRITICAL",
    "ERROR",
    "WARNING",
    "NOTICE",
    "INFO",
    "INFORMATIONAL",
    "DEBUG",
];

/// Returns how documents differ from the schema.
pub(super) fn warnings(documents: &[Node]) -> Vec<String> {
    let mut found = Vec::new();
    for document in documents.iter().filter(|document| !document.is_null()) {
        match &document.kind {
            Kind::Sequence(items) => {
                for (index, item) in items.iter().enumerate() {
                    let mut at = format!("<root>[{index}]");
                    self::item(item, &mut at, &mut found);
                }
            }
            _ => found.push("<root>: a list is expected".to_owned()),
        }
    }
    found
}

fn item(item: &Node, at: &mut String, found: &mut Vec<String>) {
    let Kind::Mapping(pairs) = &item.kind else {
        found.push(format!("{at}: keys with values are expected"));
        return;
    };
    for (key, value) in pairs {
        // What is no scalar is no key of the schema.
        let key = key.scalar().map_or("", |text| text.text());
        let place = format!("{at}.{key}");
        if !item_keys().flatten().any(|known| known == key) {
            found.push(format!("{place}: unknown key"));
        } else if let Some(expected) = mismatch(key, value) {
            found.push(format!("{place}: {expected}"));
        }
    }
}

/// Returns what is expected of the value of a key, if the value is something else.
fn mismatch(key: &str, value: &Node) -> Option<String> {
    let text = value.scalar().map(|text| text.text());
    let expected = match key {
        "append" | "capture" | "enabled" | "skip-if-unknown-filter" | "warn_evttypes" => {
            let fits = text.is_some_and(|text| ["true", "false"].contains(&text));
            (!fits).then_some("true or false is expected")
        }
        "capture_duration" => {
            let fits = text.is_some_and(|text| text.parse::<i64>().is_ok());
            (!fits).then_some("a number is expected")
        }
        "priority" => {
            let fits = text.is_some_and(|text| PRIORITIES.contains(&text));
            let names = PRIORITIES.join(", ");
            return (!fits).then(|| format!("one of {names} is expected"));
        }
        "items" | "tags" => (!is_list(value, |entry| entry.scalar().is_some()))
            .then_some("a list of texts is expected"),
        "exceptions" => (!is_list(value, is_exception))
            .then_some("a list of exceptions with name, fields, comps and values is expected"),
        "required_plugin_versions" => (!is_list(value, is_plugin))
            .then_some("a list of plugins with name and version is expected"),
        "override" => {
            (!is_override(value)).then_some("keys with `append` or `replace` are expected")
        }
        // Keys that Falco does not have are checked when they are read.
        "count" | "risk" => None,
        _ => text.is_none().then_some("a text is expected"),
    };
    expected.map(str::to_owned)
}

fn is_list(node: &Node, fits: impl Fn(&Node) -> bool) -> bool {
    match &node.kind {
        Kind::Sequence(entries) => entries.iter().all(fits),
        _ => false,
    }
}

/// Returns true for a mapping whose keys fit, and that has the needed ones.
fn is_mapping(node: &Node, needed: &[&str], fits: impl Fn(&str, &Node) -> bool) -> bool {
    let Kind::Mapping(pairs) = &node.kind else {
        return false;
    };
    let keys = pairs
        .iter()
        .map(|(key, _)| key.scalar().map(|text| text.text()));
    let keys: Vec<_> = keys.collect();
    let mut all = pairs.iter().zip(&keys);
    all.all(|((_, value), key)| key.is_some_and(|key| fits(key, value)))
        && needed.iter().all(|needed| keys.contains(&Some(*needed)))
}

fn is_exception(node: &Node) -> bool {
    is_mapping(node, &["name"], |key, value| match key {
        "name" => value.scalar().is_some(),
        _ => ["fields", "comps", "values"].contains(&key),
    })
}

fn is_plugin(node: &Node) -> bool {
    is_mapping(node, &["name", "version"], |key, value| match key {
        "name" | "version" => value.scalar().is_some(),
        "alternatives" => is_list(value, |other| {
            is_mapping(other, &["name", "version"], |key, value| {
                ["name", "version"].contains(&key) && value.scalar().is_some()
            })
        }),
        _ => false,
    })
}

fn is_override(node: &Node) -> bool {
    let is_empty = matches!(&node.kind, Kind::Mapping(pairs) if pairs.is_empty());
    !is_empty
        && is_mapping(node, &[], |key, value| {
            let word = value.scalar().map(|text| text.text());
            item_keys().flatten().any(|known| known == key)
                && word.is_some_and(|word| ["append", "replace"].contains(&word))
        })
}
