//! The effective value of each key, with its origin.

use std::fmt;

use serde_json::{Map, Number, Value as Json};
use yaml::settings::{self, Node, Origin, Value};

use super::Effective;
use super::defaults::DEFAULTS;
use super::keys::KEYS;

/// A key with its effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// Path of the key, with dots between the names.
    pub path: &'static str,
    /// The value.
    pub value: Json,
    /// Where the value comes from.
    pub origin: ShownOrigin,
}

/// Where the value of a key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShownOrigin {
    /// A line of a file, counted from 1.
    File {
        /// The file.
        file: String,
        /// The line.
        line: usize,
    },
    /// An option of the command line, as written.
    Option(String),
    /// Nothing sets it.
    Default,
}

impl fmt::Display for ShownOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { file, line } => write!(f, "{file}:{line}"),
            Self::Option(option) => f.write_str(option),
            Self::Default => f.write_str("default"),
        }
    }
}

impl From<&Origin> for ShownOrigin {
    fn from(origin: &Origin) -> Self {
        match origin {
            Origin::File { name, line, .. } => Self::File {
                file: name.to_string(),
                line: *line,
            },
            Origin::Option(_) => Self::Option(origin.to_string()),
        }
    }
}

impl Effective {
    /// Returns every key that has an effect, sorted by path. Of two names of one setting, returns the one that is set.
    #[must_use]
    pub fn shown(&self) -> Vec<Shown> {
        let [new, old] = ["rules_files", "rules_file"];
        let unused = match find(&self.root, old) {
            Some(_) => new,
            None => old,
        };
        let keys = KEYS.iter().zip(DEFAULTS);
        let keys = keys.filter(|(key, _)| key.path != unused);
        keys.map(|(key, (_, default))| {
            let is_text = key.json_type == "string";
            match find(&self.root, key.path) {
                Some(node) => Shown {
                    path: key.path,
                    value: top(node, is_text),
                    origin: ShownOrigin::from(node.option().unwrap_or(&node.origin)),
                },
                None => Shown {
                    path: key.path,
                    value: top(&default_of(key.path, default), is_text),
                    origin: ShownOrigin::Default,
                },
            }
        })
        .collect()
    }
}

fn find<'n>(root: &'n Node, path: &str) -> Option<&'n Node> {
    let mut names = path.split('.');
    names.try_fold(root, |node, name| Some(&node.entry(name)?.node))
}

fn default_of(path: &str, text: &str) -> Node {
    settings::read(path, text).expect("a test parses every default")
}

/// Converts the value of a key. Numbers and booleans may be quoted.
fn top(node: &Node, is_text: bool) -> Json {
    match &node.value {
        Value::Scalar { text, .. } if !is_text => scalar(node, text),
        _ => json(node, is_text),
    }
}

/// Converts a value. Text stays text where the key has text, such as `log_level: 1`.
fn json(node: &Node, is_text: bool) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Scalar { text, quoted } if is_text || *quoted => Json::String(text.clone()),
        Value::Scalar { text, .. } => scalar(node, text),
        Value::List(items) => items.iter().map(|item| json(item, false)).collect(),
        Value::Map(entries) => {
            let entries = entries.iter();
            let pairs = entries.map(|entry| (entry.key.clone(), json(&entry.node, false)));
            Json::Object(pairs.collect::<Map<_, _>>())
        }
    }
}

fn scalar(node: &Node, text: &str) -> Json {
    if let Ok(value) = node.boolean() {
        return Json::Bool(value);
    }
    if let Ok(number) = text.parse::<i64>() {
        return Json::Number(number.into());
    }
    let number = text.parse().ok().and_then(Number::from_f64);
    number.map_or_else(|| Json::String(text.to_owned()), Json::Number)
}
