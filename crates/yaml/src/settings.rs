//! Settings as a tree whose nodes record their origin: a file, or a command-line option.
//!
//! Unlike the tree of [`crate::read`], keys are text and unique, aliases are followed, and values have the
//! loose types of Falco's configuration (`yes` is a boolean).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Span};

/// Origin of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file; lines and columns count from 1.
    File {
        /// Name of the file, for messages.
        name: Arc<str>,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
    },
    /// A command-line option, as given after `-o`.
    Option(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { name, line, column } => write!(f, "{name}:{line}:{column}"),
            Origin::Option(text) => write!(f, "-o {text}"),
        }
    }
}

/// A setting or a group of settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Origin of the value.
    pub origin: Origin,
    /// Value of the setting.
    pub value: Value,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value, `~` or `null`.
    Null,
    /// Text, a number or a boolean. `quoted` text stays text even if it looks like nothing (`null`); numbers
    /// and booleans may be quoted, as in Falco.
    Scalar {
        /// The text without quotes.
        text: String,
        /// Whether the text was quoted.
        quoted: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A group of settings, in the order of the file.
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Origin of the key.
    pub origin: Origin,
    /// Value of the key.
    pub node: Node,
}

/// An error in a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Origin of the setting.
    pub origin: Origin,
    /// Error message.
    pub message: String,
    /// Suggested next step.
    pub help: Option<String>,
}

impl Problem {
    /// Creates an error without a next step.
    #[must_use]
    pub fn new(origin: &Origin, message: impl Into<String>) -> Self {
        Self {
            origin: origin.clone(),
            message: message.into(),
            help: None,
        }
    }

    /// Sets the next step.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self {
            help: Some(help.into()),
            ..self
        }
    }
}

/// Maximum nesting depth of a configuration file; Falco's own needs 4.
const MAX_DEPTH: usize = 32;

/// Maximum number of nodes in a file after aliases are followed.
const MAX_NODES: usize = 100_000;

/// Parses the first document of a file; `name` is the file's name in messages. An empty file is an empty
/// mapping.
///
/// # Errors
///
/// Returns the first syntax error, or fails for a repeated key, a key that is not text, or a file with too
/// many or too deeply nested settings.
pub fn read(name: &str, text: &str) -> Result<Node, Problem> {
    let (node, repeated) = read_repeated(name, text)?;
    match repeated.into_iter().next() {
        Some(problem) => Err(problem),
        None => Ok(node),
    }
}

/// Like [`read`], for readers to whom the first of repeated keys counts, as with yaml-cpp. Also returns an error for
/// each key that does not count.
///
/// # Errors
///
/// As [`read`], except for repeated keys.
pub fn read_repeated(name: &str, text: &str) -> Result<(Node, Vec<Problem>), Problem> {
    let mut builder = Builder {
        name: name.into(),
        open: Vec::new(),
        anchors: HashMap::new(),
        nodes: 0,
        root: None,
        repeated: Vec::new(),
    };
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| {
            let mark = error.marker();
            let origin = builder.origin(mark.line(), mark.col());
            Problem::new(&origin, error.info())
                .help("correct the YAML: check indentation and quotes")
        })?;
        builder.event(event, span)?;
        if builder.root.is_some() {
            break;
        }
    }
    let root = builder.root.unwrap_or_else(|| Node {
        origin: Origin::File {
            name: name.into(),
            line: 1,
            column: 1,
        },
        value: Value::Map(Vec::new()),
    });
    let mut repeated = builder.repeated;
    // A mapping ends after those in it.
    repeated.sort_by_key(|problem| match problem.origin {
        Origin::File { line, column, .. } => (line, column),
        _ => (0, 0),
    });
    Ok((root, repeated))
}

struct Builder {
    name: Arc<str>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
    /// Keys that are in their mapping already.
    repeated: Vec<Problem>,
}

/// A list or mapping that is still open; a mapping's children are keys and values in turn.
struct Open {
    children: Vec<Node>,
    is_map: bool,
    anchor: usize,
    origin: Origin,
}

impl Builder {
    fn origin(&self, line: usize, column: usize) -> Origin {
        Origin::File {
            name: Arc::clone(&self.name),
            line,
            column: column + 1,
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        let origin = self.origin(span.start.line(), span.start.col());
        match event {
            Event::Scalar(text, style, anchor, _) => {
                let quoted = style != ScalarStyle::Plain;
                let value = if !quoted && matches!(&*text, "" | "~" | "null") {
                    Value::Null
                } else {
                    Value::Scalar {
                        text: text.into_owned(),
                        quoted,
                    }
                };
                self.complete(Node { origin, value }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.start(origin, false, anchor),
            Event::MappingStart(_, anchor, _) => self.start(origin, true, anchor),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => {
                    self.nodes += node.count();
                    self.complete(Node { origin, ..node }, 0)
                }
                None => Err(Problem::new(&origin, "the alias names nothing before it")),
            },
            // Comments, and the start and end of stream and documents.
            _ => Ok(()),
        }
    }

    fn start(&mut self, origin: Origin, is_map: bool, anchor: usize) -> Result<(), Problem> {
        if self.open.len() >= MAX_DEPTH {
            return Err(Problem::new(
                &origin,
                format!("nested deeper than {MAX_DEPTH} levels"),
            ));
        }
        self.open.push(Open {
            children: Vec::new(),
            is_map,
            anchor,
            origin,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Problem> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let value = if open.is_map {
            map(open.children, &mut self.repeated)?
        } else {
            Value::List(open.children)
        };
        self.complete(
            Node {
                origin: open.origin,
                value,
            },
            open.anchor,
        )
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return Err(Problem::new(
                &node.origin,
                format!("more than {MAX_NODES} settings"),
            ));
        }
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }
}

fn map(children: Vec<Node>, repeated: &mut Vec<Problem>) -> Result<Value, Problem> {
    let mut entries: Vec<Entry> = Vec::with_capacity(children.len() / 2);
    let mut children = children.into_iter();
    while let (Some(key), Some(node)) = (children.next(), children.next()) {
        let Value::Scalar { text, .. } = key.value else {
            return Err(Problem::new(&key.origin, "the key is not text"));
        };
        if let Some(first) = entries.iter().find(|entry| entry.key == text) {
            let message = format!("duplicate key `{text}`");
            repeated.push(Problem::new(&key.origin, message).help(format!(
                "the first is at {}; remove one of them",
                first.origin
            )));
            continue;
        }
        entries.push(Entry {
            key: text,
            origin: key.origin,
            node,
        });
    }
    Ok(Value::Map(entries))
}

impl Node {
    fn count(&self) -> usize {
        1 + match &self.value {
            Value::Null | Value::Scalar { .. } => 0,
            Value::List(items) => items.iter().map(Node::count).sum(),
            Value::Map(entries) => entries.iter().map(|entry| entry.node.count()).sum(),
        }
    }

    /// Returns the entry of a group with this key.
    #[must_use]
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Null | Value::Scalar { .. } | Value::List(_) => None,
        }
    }

    /// Returns the command-line option that set this node or a node below it.
    #[must_use]
    pub fn option(&self) -> Option<&Origin> {
        let children: Box<dyn Iterator<Item = &Self>> = match &self.value {
            Value::Null | Value::Scalar { .. } => Box::new(std::iter::empty()),
            Value::List(items) => Box::new(items.iter()),
            Value::Map(entries) => Box::new(entries.iter().map(|entry| &entry.node)),
        };
        let own = matches!(self.origin, Origin::Option(_)).then_some(&self.origin);
        own.or_else(|| children.into_iter().find_map(Self::option))
    }

    /// Describes the value for messages.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Scalar { text, .. } => format!("`{text}`"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a group of settings".to_owned(),
        }
    }

    fn expected(&self, what: &str) -> Problem {
        Problem::new(
            &self.origin,
            format!("expected {what}, found {}", self.describe()),
        )
    }

    /// Returns the value as a boolean.
    ///
    /// # Errors
    ///
    /// Fails if the value is not a boolean.
    pub fn boolean(&self) -> Result<bool, Problem> {
        match &self.value {
            // Accepts YAML 1.1's words too, as Falco's parser does.
            Value::Scalar { text, .. } => match text.to_ascii_lowercase().as_str() {
                "true" | "yes" | "on" | "y" => Ok(true),
                "false" | "no" | "off" | "n" => Ok(false),
                _ => Err(self.expected("true or false")),
            },
            _ => Err(self.expected("true or false")),
        }
    }

    /// Returns the value as text.
    ///
    /// # Errors
    ///
    /// Fails if the value is a list, a group or null.
    pub fn text(&self) -> Result<&str, Problem> {
        match &self.value {
            Value::Scalar { text, .. } => Ok(text),
            _ => Err(self.expected("text")),
        }
    }

    /// Returns the value as a finite number of at least 0.
    ///
    /// # Errors
    ///
    /// Fails if the value is not such a number.
    pub fn number(&self) -> Result<f64, Problem> {
        let number = match &self.value {
            Value::Scalar { text, .. } => text.parse().ok(),
            _ => None,
        };
        number
            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| self.expected("a number from 0 on"))
    }

    /// Returns the value as a whole number of at least 0.
    ///
    /// # Errors
    ///
    /// Fails if the value is not such a number.
    pub fn integer(&self) -> Result<u64, Problem> {
        let number = match &self.value {
            Value::Scalar { text, .. } => text.parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.expected("a whole number from 0 on"))
    }

    /// Returns the items of a list; a scalar counts as a list of one, null as an empty list.
    ///
    /// # Errors
    ///
    /// Fails if the value is a group.
    pub fn list(&self) -> Result<&[Node], Problem> {
        match &self.value {
            Value::List(items) => Ok(items),
            Value::Scalar { .. } => Ok(std::slice::from_ref(self)),
            Value::Null => Ok(&[]),
            Value::Map(_) => Err(self.expected("a list")),
        }
    }

    /// Returns the value as a whole number that fits `T`.
    ///
    /// # Errors
    ///
    /// Fails if the value is not a whole number or does not fit.
    pub fn small<T: TryFrom<u64>>(&self) -> Result<T, Problem> {
        let number = self.integer()?;
        T::try_from(number)
            .map_err(|_too_large| Problem::new(&self.origin, format!("{number} is too large")))
    }

    /// Returns the `T` that the value's word stands for.
    ///
    /// # Errors
    ///
    /// Fails if the value is none of the words.
    pub fn word<T: Copy>(&self, words: &[(&str, T)]) -> Result<T, Problem> {
        let text = self.text()?;
        let known = words.iter().find(|(word, _)| *word == text);
        known.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            let message = format!("expected {}, found `{text}`", words.join(" or "));
            Problem::new(&self.origin, message)
        })
    }

    /// Returns the items of a list as texts.
    ///
    /// # Errors
    ///
    /// Fails if the value is a group, or an item is not text.
    pub fn texts(&self) -> Result<Vec<String>, Problem> {
        let items = self.list()?.iter();
        items.map(|item| item.text().map(str::to_owned)).collect()
    }

    /// Returns the settings of a group; null counts as an empty group.
    ///
    /// # Errors
    ///
    /// Fails if the value is not a group.
    pub fn group(&self) -> Result<&[Entry], Problem> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            Value::Null => Ok(&[]),
            Value::Scalar { .. } | Value::List(_) => Err(self.expected("a group of settings")),
        }
    }

    /// Returns the settings of a group as (name, text) pairs.
    ///
    /// # Errors
    ///
    /// Fails if the value is not a group, or a setting is not text.
    pub fn texts_by_name(&self) -> Result<Vec<(String, String)>, Problem> {
        let entries = self.group()?.iter();
        entries
            .map(|Entry { key, node, .. }| Ok((key.clone(), node.text()?.to_owned())))
            .collect()
    }
}
