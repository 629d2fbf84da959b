//! Typed values from YAML nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::item::{Item, ItemKind, Key};
use crate::diagnostic::{Code, Diagnostic, Location, closest};
use crate::ruleset::Priority;
use crate::version::number;
use yaml::SourceText;
use yaml::{Kind, Node};

/// Result of reading a node.
pub(super) struct ReadResult {
    pub(super) item: Option<Item>,
    /// Item that could not be read, so that references to it are not reported as unknown.
    pub(super) broken: Option<(ItemKind, String)>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// Reads the keys and values of one item and collects its problems.
pub(super) struct Reader<'n> {
    pub(super) pairs: &'n [(Node, Node)],
    pub(super) location: Location,
    pub(super) context: String,
    diagnostics: Vec<Diagnostic>,
    failed: bool,
}

impl<'n> Reader<'n> {
    pub(super) fn new(node: &Node) -> Self {
        Self {
            pairs: &[],
            location: node.location.clone(),
            context: String::new(),
            diagnostics: Vec::new(),
            failed: false,
        }
    }

    pub(super) fn finish(self, item: Option<Item>, name: Option<(ItemKind, String)>) -> ReadResult {
        let item = item.filter(|_| !self.failed);
        let broken = if item.is_none() { name } else { None };
        ReadResult {
            item,
            broken,
            diagnostics: self.diagnostics,
        }
    }

    // Values.

    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.get_pair(key).map(|(_, value)| value)
    }

    pub(super) fn get_pair(&self, key: &str) -> Option<&'n (Node, Node)> {
        self.pairs
            .iter()
            .find(|(k, _)| k.scalar().is_some_and(|text| text.text() == key))
    }

    pub(super) fn required(&mut self, key: &str) -> Option<&'n Node> {
        let node = self.get(key);
        if node.is_none() {
            self.fail_at_item(format!("the key `{key}` is missing"));
        }
        node
    }

    pub(super) fn required_text(&mut self, key: &str) -> Option<SourceText> {
        self.required(key).and_then(|node| self.scalar(key, node))
    }

    pub(super) fn required_string(&mut self, key: &str) -> Option<String> {
        self.required_text(key).map(|text| text.text().to_owned())
    }

    /// Reads the source of an update; if empty, it is that of the rule.
    pub(super) fn optional_source(&mut self) -> Option<String> {
        let empty = |node: &&Node| {
            node.scalar()
                .map_or(node.is_null(), |text| text.text().is_empty())
        };
        let node = self.get("source").filter(|node| !empty(node))?;
        self.scalar("source", node)
            .map(|text| text.text().to_owned())
    }

    pub(super) fn scalar(&mut self, key: &str, node: &Node) -> Option<SourceText> {
        let message = match &node.kind {
            Kind::Scalar(text) if !text.text().is_empty() => return Some(text.clone()),
            Kind::Scalar(_) | Kind::Null => format!("`{key}` is empty"),
            _ => format!("`{key}` has to be a scalar, found {}", node.describe()),
        };
        self.fail(&node.location, message);
        None
    }

    pub(super) fn boolean(&mut self, key: &str, node: &Node) -> Option<bool> {
        let text = self.scalar(key, node)?;
        match text.text().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => return Some(true),
            "false" | "no" | "off" | "n" => return Some(false),
            _ => {}
        }
        self.fail(
            &node.location,
            format!("`{key}` has to be true or false, found `{}`", text.text()),
        );
        None
    }

    pub(super) fn milliseconds(&mut self, key: &str, node: &Node) -> Option<u32> {
        let text = self.scalar(key, node)?;
        let value = number(text.text());
        if value.is_none() {
            let found = text.text();
            self.fail(
                &node.location,
                format!("`{key}` has to be milliseconds, found `{found}`"),
            );
        }
        value
    }

    pub(super) fn priority(&mut self, node: &Node) -> Option<Priority> {
        let text = self.scalar("priority", node)?;
        let priority = Priority::parse(text.text());
        if priority.is_none() {
            let names = Priority::ALL.map(|p| p.name().to_ascii_lowercase());
            let help = match closest(
                &text.text().to_ascii_lowercase(),
                names.iter().map(String::as_str),
            ) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("priorities are {}", names.join(", ")),
            };
            let message = format!("unknown priority `{}`", text.text());
            self.fail(&node.location, message).help = Some(help);
        }
        priority
    }

    pub(super) fn tags(&mut self, node: &'n Node) -> Option<BTreeSet<String>> {
        let tags = self.texts("tags", node)?;
        Some(tags.into_iter().map(|tag| tag.text().to_owned()).collect())
    }

    pub(super) fn texts(&mut self, key: &str, node: &'n Node) -> Option<Vec<SourceText>> {
        let items = self.sequence(key, node)?;
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match &item.kind {
                Kind::Scalar(text) => texts.push(text.clone()),
                Kind::Null => {
                    self.fail(&item.location, format!("an entry of `{key}` is empty"))
                        .help = Some("put null in quotes if you mean the text".to_owned());
                }
                _ => {
                    let message = format!(
                        "an entry of `{key}` has to be a scalar, found {}",
                        item.describe()
                    );
                    self.fail(&item.location, message);
                }
            }
        }
        (texts.len() == items.len()).then_some(texts)
    }

    pub(super) fn sequence(&mut self, key: &str, node: &'n Node) -> Option<&'n [Node]> {
        if let Kind::Sequence(items) = &node.kind {
            return Some(items);
        }
        let help = (!node.is_null()).then(|| format!("write `{key}: [ .. ]`"));
        self.fail(
            &node.location,
            format!("`{key}` has to be a list, found {}", node.describe()),
        )
        .help = help;
        None
    }

    /// Reads the keys of a mapping. The first of repeated keys counts, as in Falco.
    pub(super) fn mapping(
        &mut self,
        what: &str,
        node: &'n Node,
    ) -> Option<BTreeMap<&'n str, &'n Node>> {
        let Kind::Mapping(pairs) = &node.kind else {
            let message = format!("{what} has to be a mapping, found {}", node.describe());
            self.fail(&node.location, message);
            return None;
        };
        let mut keys = BTreeMap::new();
        for (key, value) in pairs {
            if let Some(text) = key.scalar() {
                keys.entry(text.text()).or_insert(value);
            }
        }
        Some(keys)
    }

    pub(super) fn check_keys(&mut self, known: &[Key]) {
        let mut seen = BTreeSet::new();
        for (key, _) in self.pairs {
            let Some(name) = key.scalar().map(SourceText::text) else {
                let message = format!("a key has to be a scalar, found {}", key.describe());
                self.warn_at(Code::UnknownKey, &key.location, message);
                continue;
            };
            self.check_key(name, &key.location, known);
            if !seen.insert(name) {
                let message = format!("duplicate key `{name}`; the first one is used");
                self.warn_at(Code::UnknownKey, &key.location, message);
            }
        }
    }

    pub(super) fn check_keys_of(&mut self, keys: &BTreeMap<&str, &Node>, known: &[Key]) {
        for (name, value) in keys {
            self.check_key(name, &value.location, known);
        }
    }

    pub(super) fn check_key(&mut self, name: &str, location: &Location, known: &[Key]) {
        if known.iter().any(|key| key.name == name) {
            return;
        }
        let near = closest(name, known.iter().map(|key| key.name));
        let message = format!("unknown key `{name}` is ignored");
        self.warn_at(Code::UnknownKey, location, message).help =
            near.map(|near| format!("did you mean `{near}`?"));
    }

    // Problems.

    pub(super) fn fail(&mut self, location: &Location, message: String) -> &mut Diagnostic {
        self.fail_with(Code::YamlValidate, location, message)
    }

    pub(super) fn fail_at_item(&mut self, message: String) -> &mut Diagnostic {
        let location = self.location.clone();
        self.fail(&location, message)
    }

    pub(super) fn fail_with(
        &mut self,
        code: Code,
        location: &Location,
        message: String,
    ) -> &mut Diagnostic {
        self.failed = true;
        self.push(Diagnostic::new(code, location.clone(), message))
    }

    pub(super) fn warn(&mut self, code: Code, message: String) -> &mut Diagnostic {
        let location = self.location.clone();
        self.warn_at(code, &location, message)
    }

    pub(super) fn warn_at(
        &mut self,
        code: Code,
        location: &Location,
        message: String,
    ) -> &mut Diagnostic {
        self.push(Diagnostic::new(code, location.clone(), message))
    }

    pub(super) fn push(&mut self, diagnostic: Diagnostic) -> &mut Diagnostic {
        self.diagnostics
            .push(diagnostic.in_item(self.context.clone()));
        self.diagnostics.last_mut().expect("it was pushed just now")
    }
}
