//! Strict reader of YAML nodes: unknown content is a problem, and all problems are collected.

use std::time::Duration;

use yaml::{Kind, Location, Node, closest};

use crate::diagnostic::{Code, Diagnostic};

/// The keys of a mapping, each at most once.
pub(crate) struct Fields<'n> {
    pub(crate) location: Location,
    entries: Vec<(&'n str, &'n Node)>,
}

impl<'n> Fields<'n> {
    /// Returns the value of a key, if it has one.
    pub(crate) fn find(&self, key: &str) -> Option<&'n Node> {
        let entry = self.entries.iter().find(|(known, _)| *known == key);
        entry.map(|(_, node)| *node).filter(|node| !node.is_null())
    }
}

/// Collects problems while reading.
#[derive(Default)]
pub(crate) struct Reader {
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Item that problems are about, such as `rule NAME`.
    pub(crate) item: String,
}

impl Reader {
    pub(crate) fn report(&mut self, diagnostic: Diagnostic) {
        self.diagnostics.push(diagnostic.in_item(self.item.clone()));
    }

    pub(crate) fn problem(&mut self, code: Code, at: &Location, message: impl Into<String>) {
        self.report(Diagnostic::new(code, at.clone(), message));
    }

    /// Reports a word that is none of the known ones, with the nearest of these.
    pub(crate) fn unknown(
        &mut self,
        code: Code,
        at: &Location,
        message: String,
        (word, known): (&str, &[&str]),
    ) {
        let help = match closest(word, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "remove it".to_owned(),
            None => format!("expected one of {}", known.join(", ")),
        };
        self.report(Diagnostic::new(code, at.clone(), message).with_help(help));
    }

    /// Reads the keys of a mapping. `what` names the mapping in messages.
    pub(crate) fn fields<'n>(&mut self, node: &'n Node, what: &str, known: &[&str]) -> Fields<'n> {
        let mut fields = Fields {
            location: node.location.clone(),
            entries: Vec::new(),
        };
        let Kind::Mapping(pairs) = &node.kind else {
            let message = format!("{what} has to be a mapping, found {}", node.describe());
            self.problem(Code::Shape, &node.location, message);
            return fields;
        };
        for (key, value) in pairs {
            let Some(name) = key.scalar().map(yaml::SourceText::text) else {
                let message = format!("a key of {what} has to be a name");
                self.problem(Code::Shape, &key.location, message);
                continue;
            };
            if !known.contains(&name) {
                let message = format!("{what} has no key `{name}`");
                self.unknown(Code::UnknownKey, &key.location, message, (name, known));
            } else if fields.entries.iter().any(|(other, _)| *other == name) {
                let message = format!("{what} has the key `{name}` twice");
                self.problem(Code::Shape, &key.location, message);
            } else {
                fields.entries.push((name, value));
            }
        }
        fields
    }

    /// Reads a scalar.
    pub(crate) fn text<'n>(&mut self, node: &'n Node, what: &str) -> Option<&'n str> {
        let text = node.scalar().map(yaml::SourceText::text);
        if text.is_none() {
            let message = format!("`{what}` has to be a text, found {}", node.describe());
            self.problem(Code::Shape, &node.location, message);
        }
        text
    }

    /// Reads the scalar of a key.
    pub(crate) fn text_of<'n>(&mut self, fields: &Fields<'n>, key: &str) -> Option<&'n str> {
        let node = fields.find(key)?;
        self.text(node, key)
    }

    /// Reads a boolean; `None` if the key is absent.
    pub(crate) fn switch(&mut self, fields: &Fields<'_>, key: &str) -> Option<bool> {
        let node = fields.find(key)?;
        match self.text(node, key)? {
            "true" => Some(true),
            "false" => Some(false),
            other => {
                let message = format!("`{key}` cannot be `{other}`");
                let known = (other, &["true", "false"][..]);
                self.unknown(Code::UnknownValue, &node.location, message, known);
                None
            }
        }
    }

    /// Reads whole seconds from 1 to a day.
    pub(crate) fn seconds(&mut self, node: &Node, what: &str) -> Option<Duration> {
        const LONGEST: u64 = 24 * 60 * 60;
        let text = self.text(node, what)?;
        let number = text.strip_suffix('s').unwrap_or(text).parse::<u64>();
        match number {
            Ok(number) if (1..=LONGEST).contains(&number) => Some(Duration::from_secs(number)),
            _ => {
                let message =
                    format!("`{what}` has to be seconds from 1 to {LONGEST}, found `{text}`");
                self.problem(Code::UnknownValue, &node.location, message);
                None
            }
        }
    }

    /// Reads the items of a list.
    pub(crate) fn items<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Node] {
        match &node.kind {
            Kind::Sequence(items) => items,
            _ => {
                let message = format!("`{what}` has to be a list, found {}", node.describe());
                self.problem(Code::Shape, &node.location, message);
                &[]
            }
        }
    }

    /// Reads the texts of a list, each with its position.
    pub(crate) fn words(&mut self, node: &Node, what: &str) -> Vec<(String, Location)> {
        let items = self.items(node, what);
        let words = items.iter().filter_map(|item| {
            let word = self.text(item, what)?;
            Some((word.to_owned(), item.location.clone()))
        });
        words.collect()
    }

    /// Reads the texts of the list of a key; absent means empty.
    pub(crate) fn words_of(&mut self, fields: &Fields<'_>, key: &str) -> Vec<(String, Location)> {
        match fields.find(key) {
            Some(node) => self.words(node, key),
            None => Vec::new(),
        }
    }
}
