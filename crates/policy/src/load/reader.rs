//! Strict reader of YAML nodes: unknown content is a problem, and all problems are collected.

use yaml::{Kind, Location, Node, closest};

use super::recorded::RecordedModel;
use crate::diagnostic::{Code, Diagnostic};

/// Collects problems while reading.
#[derive(Default)]
pub(super) struct Reader {
    pub(super) diagnostics: Vec<Diagnostic>,
    /// The models of the file, for policies that use them.
    pub(super) models: Vec<RecordedModel>,
}

/// The known keys of a mapping, each at most once.
pub(super) struct Fields<'n> {
    pub(super) location: Location,
    entries: Vec<(&'n str, &'n Node)>,
}

impl<'n> Fields<'n> {
    /// The value of a key, if present.
    pub(super) fn find(&self, key: &str) -> Option<&'n Node> {
        let entry = self.entries.iter().find(|(known, _)| *known == key);
        entry.map(|(_, node)| *node).filter(|node| !node.is_null())
    }
}

impl Reader {
    pub(super) fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic);
    }

    pub(super) fn problem(&mut self, code: Code, at: &Location, message: impl Into<String>) {
        self.report(Diagnostic::new(code, at.clone(), message));
    }

    /// Reads the keys of a mapping. `what` names the mapping in messages; `known` lists the valid keys.
    pub(super) fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Fields<'n> {
        let mut fields = Fields {
            location: node.location.clone(),
            entries: Vec::new(),
        };
        let Kind::Mapping(pairs) = &node.kind else {
            let message = format!("`{what}` has to be a mapping, found {}", node.describe());
            self.problem(Code::Shape, &node.location, message);
            return fields;
        };
        for (key, value) in pairs {
            let Some(name) = key.scalar().map(yaml::SourceText::text) else {
                let message = format!("a key of `{what}` has to be a name");
                self.problem(Code::Shape, &key.location, message);
                continue;
            };
            if !known.contains(&name) {
                self.unknown_field(&key.location, what, name, known);
            } else if fields.entries.iter().any(|(other, _)| *other == name) {
                let message = format!("`{what}` has the key `{name}` twice");
                self.problem(Code::Shape, &key.location, message);
            } else {
                fields.entries.push((name, value));
            }
        }
        fields
    }

    fn unknown_field(&mut self, at: &Location, what: &str, name: &str, known: &[&str]) {
        let message = format!("`{what}` has no field `{name}`");
        let help = match closest(name, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("its fields are {}", known.join(", ")),
        };
        self.report(Diagnostic::new(Code::UnknownField, at.clone(), message).with_help(help));
    }

    pub(super) fn unknown_value(&mut self, at: &Location, what: &str, word: &str, known: &[&str]) {
        let message = format!("`{what}` cannot be `{word}`");
        let help = match closest(word, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("it can be {}", known.join(", ")),
        };
        self.report(Diagnostic::new(Code::UnknownValue, at.clone(), message).with_help(help));
    }

    /// Reads a scalar.
    pub(super) fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        let text = node.scalar().map(yaml::SourceText::text);
        if text.is_none() {
            let message = format!("`{what}` has to be a text, found {}", node.describe());
            self.problem(Code::Shape, &node.location, message);
        }
        text
    }

    /// Reads the scalar of a key.
    pub(super) fn text_of<'n>(&mut self, fields: &Fields<'n>, key: &str) -> Option<&'n str> {
        let node = fields.find(key)?;
        self.text(node, key)
    }

    /// Reads the scalar of a mandatory key.
    pub(super) fn required<'n>(
        &mut self,
        fields: &Fields<'n>,
        what: &str,
        key: &str,
    ) -> Option<&'n Node> {
        let node = fields.find(key);
        if node.is_none() {
            let message = format!("`{what}` needs the key `{key}`");
            self.problem(Code::Shape, &fields.location, message);
        }
        node
    }

    /// Reads a boolean; absent means false.
    pub(super) fn switch(&mut self, fields: &Fields<'_>, key: &str) -> bool {
        let Some(node) = fields.find(key) else {
            return false;
        };
        match self.text(node, key) {
            Some("true") => true,
            Some("false") | None => false,
            Some(other) => {
                self.unknown_value(&node.location, key, other, &["true", "false"]);
                false
            }
        }
    }

    /// Reads a number in decimal, hexadecimal (`0x`) or octal (`0o`).
    pub(super) fn number(&mut self, node: &Node, what: &str, largest: u64) -> Option<u64> {
        let text = self.text(node, what)?;
        let parsed = if let Some(digits) = text.strip_prefix("0x") {
            u64::from_str_radix(digits, 16)
        } else if let Some(digits) = text.strip_prefix("0o") {
            u64::from_str_radix(digits, 8)
        } else {
            text.parse()
        };
        match parsed {
            Ok(number) if number <= largest => Some(number),
            _ => {
                let message =
                    format!("`{what}` has to be a number from 0 to {largest}, found `{text}`");
                self.problem(Code::UnknownValue, &node.location, message);
                None
            }
        }
    }

    /// Reads the items of a list.
    pub(super) fn items<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Node] {
        match &node.kind {
            Kind::Sequence(items) => items,
            _ => {
                let message = format!("`{what}` has to be a list, found {}", node.describe());
                self.problem(Code::Shape, &node.location, message);
                &[]
            }
        }
    }

    /// Reads the items of the list of a key; absent means empty.
    pub(super) fn items_of<'n>(&mut self, fields: &Fields<'n>, key: &str) -> &'n [Node] {
        fields.find(key).map_or(&[], |node| self.items(node, key))
    }

    /// Reads the strings of the list of a key, with their nodes.
    pub(super) fn words_of<'n>(
        &mut self,
        fields: &Fields<'n>,
        key: &str,
    ) -> Vec<(&'n Node, &'n str)> {
        let items = self.items_of(fields, key);
        items
            .iter()
            .filter_map(|item| Some((item, self.text(item, key)?)))
            .collect()
    }
}
