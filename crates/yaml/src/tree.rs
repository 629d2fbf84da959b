//! YAML as a tree with source positions.

use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, Span};

use crate::diagnostic::Location;
use crate::text::{File, Mark, SourceText, Style};

/// Maximum file size in bytes. Public rule sets stay below 1 MB.
pub const MAX_FILE_BYTES: usize = 16 << 20;

/// Maximum number of nodes in a file after aliases are followed: an alias of aliases of aliases could
/// otherwise exhaust memory from a few lines.
pub const MAX_NODES: usize = 500_000;

/// Length in bytes of copied text that counts as one more node.
const BYTES_PER_NODE: usize = 64;

/// Maximum nesting depth of sequences and mappings. Rules need 6: file, item, exceptions, exception, values,
/// tuple, list.
pub const MAX_NESTING: usize = 64;

/// A YAML value with its position.
#[derive(Debug, Clone)]
pub struct Node {
    /// Kind of the value, with its contents.
    pub kind: Kind,
    /// Position of the value.
    pub location: Location,
}

/// Kind of a node.
#[derive(Debug, Clone)]
pub enum Kind {
    /// No value, or a word for null.
    Null,
    /// A text, number or boolean.
    Scalar(SourceText),
    /// A list.
    Sequence(Vec<Node>),
    /// Keys with their values, in the order of the file; keys may repeat.
    Mapping(Vec<(Node, Node)>),
}

/// A YAML syntax error or an exceeded limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Position of the error.
    pub location: Location,
    /// Error message.
    pub message: String,
}

impl Node {
    /// Returns the text of a scalar.
    #[must_use]
    pub fn scalar(&self) -> Option<&SourceText> {
        match &self.kind {
            Kind::Scalar(text) => Some(text),
            _ => None,
        }
    }

    /// Returns true if the node has no value.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// Describes the node's kind for messages.
    #[must_use]
    pub fn describe(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Scalar(_) => "a scalar",
            Kind::Sequence(_) => "a list",
            Kind::Mapping(_) => "a mapping",
        }
    }

    /// Returns the cost of a copy, in nodes.
    fn count(&self) -> usize {
        1 + match &self.kind {
            Kind::Null => 0,
            Kind::Scalar(text) => text.text().len() / BYTES_PER_NODE,
            Kind::Sequence(items) => items.iter().map(Node::count).sum(),
            Kind::Mapping(pairs) => pairs.iter().map(|(k, v)| k.count() + v.count()).sum(),
        }
    }

    fn depth(&self) -> usize {
        1 + match &self.kind {
            Kind::Null | Kind::Scalar(_) => 0,
            Kind::Sequence(items) => items.iter().map(Node::depth).max().unwrap_or(0),
            Kind::Mapping(pairs) => pairs
                .iter()
                .map(|(k, v)| k.depth().max(v.depth()))
                .max()
                .unwrap_or(0),
        }
    }
}

/// Reads all documents of a file. On a syntax error, returns the documents before it and the error.
#[must_use]
pub fn read(name: &Arc<str>, text: &str) -> (Vec<Node>, Option<Problem>) {
    let file = &File::new(Arc::clone(name), text);
    if text.len() > MAX_FILE_BYTES {
        let message = format!(
            "the file has {} bytes, the limit is {MAX_FILE_BYTES}",
            text.len()
        );
        return (Vec::new(), Some(problem(file.location(1, 0), message)));
    }
    let mut builder = Builder::new(file);
    for event in Parser::new_from_str(text) {
        let outcome = match event {
            Ok((event, span)) => builder.event(event, span),
            Err(error) => {
                let mark = error.marker();
                let message = error.info().to_lowercase();
                Err(problem(file.location(mark.line(), mark.col()), message))
            }
        };
        if let Err(problem) = outcome {
            return (builder.documents, Some(problem));
        }
    }
    (builder.documents, None)
}

fn problem(location: Location, message: impl Into<String>) -> Problem {
    Problem {
        location,
        message: message.into(),
    }
}

/// Assembles the parser's events into nodes, without recursion.
struct Builder<'f, 'a> {
    file: &'f File<'a>,
    documents: Vec<Node>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
}

/// A sequence or mapping that is still open.
struct Open {
    /// Completed children; for a mapping, keys and values in turn.
    children: Vec<Node>,
    mapping: bool,
    location: Location,
    anchor: usize,
}

impl<'f, 'a> Builder<'f, 'a> {
    fn new(file: &'f File<'a>) -> Self {
        Self {
            file,
            documents: Vec::new(),
            open: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
        }
    }

    fn event(&mut self, event: Event<'_>, span: Span) -> Result<(), Problem> {
        let location = self.file.location(span.start.line(), span.start.col());
        match event {
            Event::Scalar(value, style, anchor, tag) => {
                let tagged = tag.is_some();
                let kind = self.scalar_kind(&value, style, tagged, span);
                self.complete(Node { kind, location }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.start(false, anchor, location),
            Event::MappingStart(_, anchor, _) => self.start(true, anchor, location),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => self.alias(anchor, location),
            Event::DocumentStart(..) => {
                self.anchors.clear();
                Ok(())
            }
            // Comments, and the start and end of stream and documents.
            _ => Ok(()),
        }
    }

    fn scalar_kind(&self, value: &str, style: ScalarStyle, tagged: bool, span: Span) -> Kind {
        let style = match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted => Style::SingleQuoted,
            ScalarStyle::DoubleQuoted => Style::DoubleQuoted,
            ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
        };
        let null = matches!(value, "" | "~" | "null" | "Null" | "NULL");
        if style == Style::Plain && !tagged && null {
            return Kind::Null;
        }
        let start = Mark {
            line: span.start.line(),
            column: span.start.col(),
            byte: span.start.byte_offset(),
        };
        Kind::Scalar(self.file.align(value, style, start))
    }

    fn start(&mut self, mapping: bool, anchor: usize, location: Location) -> Result<(), Problem> {
        if self.open.len() >= MAX_NESTING {
            return Err(problem(
                location,
                format!("nested deeper than {MAX_NESTING} levels"),
            ));
        }
        self.open.push(Open {
            children: Vec::new(),
            mapping,
            location,
            anchor,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Problem> {
        let Some(open) = self.open.pop() else {
            return Ok(());
        };
        let kind = if open.mapping {
            let mut pairs = Vec::with_capacity(open.children.len() / 2);
            let mut children = open.children.into_iter();
            while let (Some(key), Some(value)) = (children.next(), children.next()) {
                pairs.push((key, value));
            }
            Kind::Mapping(pairs)
        } else {
            Kind::Sequence(open.children)
        };
        self.complete(
            Node {
                kind,
                location: open.location,
            },
            open.anchor,
        )
    }

    fn alias(&mut self, anchor: usize, location: Location) -> Result<(), Problem> {
        let Some(node) = self.anchors.get(&anchor) else {
            return Err(problem(location, "an alias inside the node that it names"));
        };
        if self.open.len() + node.depth() > MAX_NESTING {
            return Err(problem(
                location,
                format!("nested deeper than {MAX_NESTING} levels"),
            ));
        }
        self.nodes = self.nodes.saturating_add(node.count());
        self.check_nodes(&location)?;
        let node = node.clone();
        self.place(node);
        Ok(())
    }

    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        self.nodes += 1;
        self.check_nodes(&node.location)?;
        if anchor > 0 {
            // A copy counts too: nested anchors multiply the stored nodes.
            self.nodes = self.nodes.saturating_add(node.count());
            self.check_nodes(&node.location)?;
            self.anchors.insert(anchor, node.clone());
        }
        self.place(node);
        Ok(())
    }

    fn place(&mut self, node: Node) {
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.documents.push(node),
        }
    }

    fn check_nodes(&self, location: &Location) -> Result<(), Problem> {
        if self.nodes <= MAX_NODES {
            return Ok(());
        }
        let message = format!("more than {MAX_NODES} values after following aliases");
        Err(problem(location.clone(), message))
    }
}
