//! The YAML of rule files, for finding what encloses a position.

use std::collections::HashMap;
use std::sync::Arc;

use config::rule_files::RuleFile;
use rules::diagnostic::Location;
use yaml::{Kind, Node};

/// The files by name, with their documents.
pub(super) struct Documents {
    files: HashMap<Arc<str>, (String, Vec<Node>)>,
}

impl Documents {
    pub(super) fn of(files: &[RuleFile]) -> Self {
        let parsed = files.iter().filter_map(|file| {
            let text = file.text.as_ref().ok()?;
            let (documents, _) = yaml::read(&file.name, text);
            Some((Arc::clone(&file.name), (text.clone(), documents)))
        });
        Self {
            files: parsed.collect(),
        }
    }

    pub(super) fn text(&self, file: &str) -> Option<&str> {
        self.files.get(file).map(|(text, _)| text.as_str())
    }

    pub(super) fn of_file(&self, file: &str) -> &[Node] {
        self.files.get(file).map_or(&[], |(_, documents)| documents)
    }

    /// Returns the item at a position; `None` if the position is before all items.
    pub(super) fn item(&self, at: &Location) -> Option<&Node> {
        let items = self.of_file(&at.file).iter().flat_map(items);
        items.rev().find(|item| starts(item, at))
    }

    /// Returns the definition of a rule or macro.
    pub(super) fn definition(&self, kind: &str, name: &str) -> Option<&Node> {
        let files = self.files.values();
        let mut items = files.flat_map(|(_, documents)| documents.iter().flat_map(items));
        items.find(|item| {
            let is_named = value(item, kind).and_then(Node::scalar);
            is_named.is_some_and(|text| text.text() == name)
                && value(item, "condition").is_some()
                && value(item, "override").is_none()
        })
    }
}

fn items(document: &Node) -> &[Node] {
    match &document.kind {
        Kind::Sequence(items) => items,
        _ => &[],
    }
}

/// Returns true if a node starts at a position or before it.
fn starts(node: &Node, at: &Location) -> bool {
    (node.location.line, node.location.column) <= (at.line, at.column)
}

/// Returns the value of a key.
pub(super) fn value<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let is_key = |node: &Node| node.scalar().is_some_and(|text| text.text() == key);
    match &node.kind {
        Kind::Mapping(pairs) => pairs
            .iter()
            .find(|(key, _)| is_key(key))
            .map(|(_, value)| value),
        _ => None,
    }
}

/// Returns the key with its value that a position is in.
pub(super) fn pair_at<'n>(node: &'n Node, at: &Location) -> Option<&'n (Node, Node)> {
    match &node.kind {
        Kind::Mapping(pairs) => pairs.iter().rfind(|(key, _)| starts(key, at)),
        _ => None,
    }
}

/// Returns the entry of a list that a position is in.
pub(super) fn entry_at<'n>(node: &'n Node, at: &Location) -> Option<&'n Node> {
    match &node.kind {
        Kind::Sequence(entries) => entries.iter().rfind(|entry| starts(entry, at)),
        _ => None,
    }
}
