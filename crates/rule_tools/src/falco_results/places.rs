//! The items that enclose a problem, named as Falco names them.

use std::fmt;

use rules::Code;
use rules::diagnostic::{Diagnostic, Location};
use serde_json::{Value, json};
use yaml::{Kind, Node};

use super::document::{Documents, entry_at, pair_at, value};
use crate::check;

/// Maximum length of a condition that stands for the name of a file, and what is left of a longer one.
const CONDITION_NAME: (usize, usize) = (20, 17);

/// One of the items that enclose a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    item_type: &'static str,
    item_name: String,
    /// Name of the file, or the start of a condition.
    name: String,
    line: u32,
    column: u32,
    offset: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.item_type)?;
        if !self.item_name.is_empty() {
            write!(f, " '{}'", self.item_name)?;
        }
        write!(f, ": ({}:{}:{})", self.name, self.line, self.column)
    }
}

impl Place {
    pub(super) fn json(&self) -> Value {
        json!({
            "item_name": self.item_name,
            "item_type": self.item_type,
            "position": {
                "column": self.column, "line": self.line, "name": self.name, "offset": self.offset,
            },
        })
    }
}

/// Returns the items that enclose a problem, the whole file first.
pub(super) fn places(problem: &Diagnostic, documents: &Documents) -> Vec<Place> {
    let mut path = Path {
        documents,
        places: Vec::new(),
    };
    let at = &problem.location;
    path.places.push(Place {
        item_type: "rules content",
        item_name: String::new(),
        name: at.file.to_string(),
        line: 0,
        column: 0,
        offset: 0,
    });
    match problem.code {
        Code::FileRead => {}
        Code::YamlParse => path.push("value for", "", at),
        _ => path.item(problem),
    }
    path.places
}

struct Path<'d> {
    documents: &'d Documents,
    places: Vec<Place>,
}

impl Path<'_> {
    /// Adds an item. Positions count from 0.
    fn push(&mut self, item_type: &'static str, item_name: &str, at: &Location) {
        let text = self.documents.text(&at.file);
        self.places.push(Place {
            item_type,
            item_name: item_name.to_owned(),
            name: at.file.to_string(),
            line: at.line.saturating_sub(1),
            column: at.column.saturating_sub(1),
            offset: text.and_then(|text| check::offset(at, text)).unwrap_or(0),
        });
    }

    fn item(&mut self, problem: &Diagnostic) {
        let at = &problem.location;
        let found = self.documents.item(at);
        // A rule has the problems of its macros.
        let owner = problem.context.split_once(' ');
        let of_macro = owner.zip(found).and_then(|((kind, name), found)| {
            let is_other = value(found, kind)
                .and_then(Node::scalar)
                .is_none_or(|text| text.text() != name);
            let definition = self.documents.definition(kind, name);
            is_other.then_some(definition).flatten()
        });
        let Some(item) = of_macro.or(found) else {
            return;
        };
        let (kind, name) = kind_and_name(item);
        if kind == "required plugin versions" {
            return self.plugins(item, at, problem.code);
        }
        self.push(kind, name, &item.location);
        match problem.code {
            Code::YamlValidate => self.value(item, at),
            Code::ExceptionNameNotUnique | Code::AppendNoValues => self.exception_name(item, at),
            Code::UnknownKey
            | Code::UnknownSource
            | Code::NoEvtType
            | Code::UnusedMacro
            | Code::UnusedList
            | Code::UnknownItem
            | Code::InvalidMacroName
            | Code::InvalidListName => {}
            _ if of_macro.is_some() => self.condition(item, kind, problem),
            _ if at == &item.location => {}
            code => match key_at(item, at) {
                Some("output") => self.output(item),
                Some("condition") => self.condition(item, kind, problem),
                Some("exceptions") if code == Code::Validate => self.exception_name(item, at),
                // Falco compiles the exceptions as part of the condition.
                Some("exceptions") => self.condition(item, kind, problem),
                _ => {}
            },
        }
    }

    fn output(&mut self, item: &Node) {
        if let Some(output) = value(item, "output") {
            self.push("rule output", "", &output.location);
        }
    }

    /// Adds the condition, but for names that are not defined, and the expression in it.
    fn condition(&mut self, item: &Node, kind: &str, problem: &Diagnostic) {
        let Some(condition) = value(item, "condition") else {
            return;
        };
        if problem.code != Code::Validate {
            let whole = match kind {
                "macro" => "macro condition",
                _ => "rule condition",
            };
            self.push(whole, "", &condition.location);
        }
        self.push("condition expression", "", &problem.location);
        let text = condition.scalar().map_or("", |text| text.text());
        if let Some(place) = self.places.last_mut() {
            place.name = condition_name(text);
        }
    }

    /// Adds the exception at a position, which Falco names directly below its rule.
    fn exception_name(&mut self, item: &Node, at: &Location) {
        let exceptions = value(item, "exceptions");
        let entry = exceptions.and_then(|exceptions| entry_at(exceptions, at));
        if let Some(entry) = entry {
            self.push("exception", text_of(entry, "name"), &entry.location);
        }
    }

    /// Adds the value that has the wrong form.
    fn value(&mut self, item: &Node, at: &Location) {
        if at == &item.location || !matches!(item.kind, Kind::Mapping(_)) {
            return;
        }
        let Some((key, node)) = pair_at(item, at) else {
            return;
        };
        let name = key.scalar().map_or("", |text| text.text());
        let is_text = node.scalar().is_some_and(|text| !text.text().is_empty());
        match name {
            _ if at == &key.location && value(item, "override").is_some() => {
                self.push("overrides", name, &node.location);
            }
            _ if node.is_null() => {}
            "priority" if is_text => self.push("rule priority", "", &node.location),
            "required_engine_version" if is_text => {}
            "override" => self.overridden(item, node, at),
            "exceptions" => self.exceptions(node, at),
            _ => {
                self.push("value for", name, &node.location);
                if let Some(entry) = entry_at(node, at) {
                    self.push("list item", "", &entry.location);
                }
            }
        }
    }

    fn overridden(&mut self, item: &Node, node: &Node, at: &Location) {
        self.push("overrides", "", &item.location);
        let Some((key, operation)) = pair_at(node, at) else {
            return;
        };
        let name = key.scalar().map_or("", |text| text.text());
        match operation.scalar().map(|text| text.text()) {
            Some("append" | "replace") => self.push("overrides", name, &key.location),
            _ => self.push("value for", name, &operation.location),
        }
    }

    fn exceptions(&mut self, node: &Node, at: &Location) {
        let Some(entry) = entry_at(node, at) else {
            return self.push("exceptions", "", &node.location);
        };
        let name = text_of(entry, "name");
        if name.is_empty() {
            self.push("exceptions", "", &node.location);
        }
        self.push("exception", name, &entry.location);
        if at == &entry.location {
            return;
        }
        let Some((key, inner)) = pair_at(entry, at) else {
            return;
        };
        match key.scalar().map_or("", |text| text.text()) {
            "values" => {
                self.push("exception values", "", &inner.location);
                if let Some(row) = entry_at(inner, at) {
                    self.push("exception value", "", &row.location);
                    self.push("value for", "", &row.location);
                }
            }
            key => self.push("value for", key, &inner.location),
        }
    }

    fn plugins(&mut self, item: &Node, at: &Location, code: Code) {
        let node = value(item, "required_plugin_versions").unwrap_or(item);
        let whole = match code {
            Code::UnknownKey => item,
            _ => node,
        };
        self.push("required plugin versions", "", &whole.location);
        if let Some(entry) = entry_at(node, at).filter(|_| code != Code::UnknownKey) {
            let name = text_of(entry, "name");
            self.push("required plugin versions entry", name, &entry.location);
        }
    }
}

/// Returns what an item is, and its name. The order decides of an item with two of these keys, as in Falco.
fn kind_and_name(item: &Node) -> (&'static str, &str) {
    if value(item, "required_engine_version").is_some() {
        return ("required_engine_version", "");
    }
    if value(item, "required_plugin_versions").is_some() {
        return ("required plugin versions", "");
    }
    for kind in ["list", "macro", "rule"] {
        if value(item, kind).is_some() {
            return (kind, text_of(item, kind));
        }
    }
    ("rules content item", "")
}

fn text_of<'n>(node: &'n Node, key: &str) -> &'n str {
    let text = value(node, key).and_then(Node::scalar);
    text.map_or("", |text| text.text())
}

fn key_at<'n>(item: &'n Node, at: &Location) -> Option<&'n str> {
    let (key, _) = pair_at(item, at)?;
    key.scalar().map(|text| text.text())
}

/// Returns the start of a condition in quotes, on one line.
fn condition_name(condition: &str) -> String {
    let (longest, kept) = CONDITION_NAME;
    let name: String = match condition.chars().count() > longest {
        true => condition.chars().take(kept).chain("...".chars()).collect(),
        false => condition.to_owned(),
    };
    format!("\"{}\"", name.replace(['\n', '\r'], " "))
}
