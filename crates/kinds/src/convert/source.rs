//! A part of a foreign object, with its place.

use serde_json::Value;
use yaml::{Kind, Node};

/// A value, and its path from the root of the object.
#[derive(Clone, Debug)]
pub(super) struct Source<'n> {
    node: &'n Node,
    path: String,
    name: Option<&'n str>,
}

impl<'n> Source<'n> {
    pub(super) fn root(node: &'n Node) -> Self {
        Self {
            node,
            path: String::new(),
            name: None,
        }
    }

    /// Such as `spec.file.matchPaths[0]`.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The key of a mapping that has the value.
    pub(super) fn name(&self) -> Option<&'n str> {
        self.name
    }

    pub(super) fn line(&self) -> u32 {
        self.node.location.line
    }

    /// The values of a mapping that are not null.
    pub(super) fn keys(&self) -> Vec<Self> {
        let Kind::Mapping(pairs) = &self.node.kind else {
            return Vec::new();
        };
        let keys = pairs.iter().filter(|(_, value)| !value.is_null());
        keys.filter_map(|(key, value)| {
            let name = key.scalar()?.text();
            let path = match self.path.is_empty() {
                true => name.to_owned(),
                false => format!("{}.{name}", self.path),
            };
            Some(Self {
                node: value,
                path,
                name: Some(name),
            })
        })
        .collect()
    }

    /// The value of a key, unless it is null.
    pub(super) fn get(&self, key: &str) -> Option<Self> {
        self.keys().into_iter().find(|one| one.name == Some(key))
    }

    /// The items of the list `key`; none if it is absent or no list.
    pub(super) fn items(&self, key: &str) -> Vec<Self> {
        self.get(key)
            .map(|list| list.elements())
            .unwrap_or_default()
    }

    /// The items of a list.
    pub(super) fn elements(&self) -> Vec<Self> {
        let Kind::Sequence(items) = &self.node.kind else {
            return Vec::new();
        };
        let items = items.iter().enumerate();
        items
            .map(|(index, node)| Self {
                node,
                path: format!("{}[{index}]", self.path),
                name: None,
            })
            .collect()
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.kind, Kind::Sequence(_))
    }

    pub(super) fn is_mapping(&self) -> bool {
        matches!(self.node.kind, Kind::Mapping(_))
    }

    /// The text of a scalar.
    pub(super) fn text(&self) -> Option<String> {
        Some(self.node.scalar()?.text().to_owned())
    }

    /// The text of a key; empty if it is absent.
    pub(super) fn word(&self, key: &str) -> String {
        self.get(key).and_then(|one| one.text()).unwrap_or_default()
    }

    /// The texts of the list `key`; an error says what is none.
    pub(super) fn words(&self, key: &str) -> Result<Vec<String>, String> {
        let Some(list) = self.get(key) else {
            return Ok(Vec::new());
        };
        if !list.is_list() {
            return Err(format!("`{}` is no list", list.path));
        }
        let items = list.elements().into_iter();
        items
            .map(|one| {
                one.text()
                    .ok_or_else(|| format!("`{}` is no text", one.path))
            })
            .collect()
    }

    /// The value as JSON. Words `true` and `false` and whole numbers are no texts, even in quotes.
    pub(super) fn json(&self) -> Value {
        match &self.node.kind {
            Kind::Sequence(_) => self.elements().iter().map(Self::json).collect(),
            Kind::Mapping(_) => {
                let keys = self.keys();
                let pairs = keys
                    .iter()
                    .filter_map(|one| Some((one.name?.to_owned(), one.json())));
                Value::Object(pairs.collect())
            }
            _ => {
                // An empty value: YAML's null, which stands for an absent text in objects of Kubernetes.
                let text = self.text().unwrap_or_default();
                match (&*text, text.parse::<u64>()) {
                    ("true" | "false", _) => Value::Bool(text == "true"),
                    (_, Ok(number)) => number.into(),
                    _ => text.into(),
                }
            }
        }
    }

    /// A switch, which is off if it is absent.
    pub(super) fn flag(&self, key: &str) -> Result<bool, String> {
        match self.word(key).as_str() {
            "" if self.get(key).is_none() => Ok(false),
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("`{key}` is neither true nor false")),
        }
    }
}
