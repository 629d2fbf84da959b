//! Reads what a Sigma rule is, and where its events come from.

use yaml::{Kind, Node};

use super::Remark;
use super::fields::Category;

/// What a rule says about itself.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub(super) title: String,
    pub(super) id: String,
    pub(super) description: String,
    pub(super) author: String,
    pub(super) status: String,
    pub(super) level: String,
    pub(super) tags: Vec<String>,
    pub(super) references: Vec<String>,
}

impl Header {
    pub(super) fn read(document: &Node) -> Self {
        let text = |key| get(document, key).map_or_else(String::new, text_of);
        let texts = |key| get(document, key).map_or_else(Vec::new, texts_of);
        Self {
            title: text("title"),
            id: text("id"),
            description: text("description"),
            author: text("author"),
            status: text("status").to_ascii_lowercase(),
            level: text("level").to_ascii_lowercase(),
            tags: texts("tags"),
            references: texts("references"),
        }
    }
}

/// The part of a rule that says what it looks for.
#[derive(Debug)]
pub(super) struct Detection<'n> {
    pub(super) node: &'n Node,
    /// The conditions; a rule matches if one of them does.
    pub(super) conditions: Vec<&'n Node>,
    /// Named selections, in the order of the file.
    pub(super) selections: Vec<(&'n str, &'n Node)>,
}

/// Returns the value of a key.
pub(super) fn get<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Kind::Mapping(pairs) = &node.kind else {
        return None;
    };
    let has_key = |(name, _): &&(Node, Node)| name.scalar().is_some_and(|name| name.text() == key);
    pairs.iter().find(has_key).map(|(_, value)| value)
}

fn text_of(node: &Node) -> String {
    let text = node.scalar().map_or("", |text| text.text());
    // A title is printed, also on terminals.
    text.trim().replace(char::is_control, " ")
}

fn texts_of(node: &Node) -> Vec<String> {
    match &node.kind {
        Kind::Sequence(items) => items.iter().map(text_of).collect(),
        Kind::Scalar(_) => vec![text_of(node)],
        _ => Vec::new(),
    }
}

/// Returns the items of a list, or the value alone.
pub(super) fn items(node: &Node) -> Vec<&Node> {
    match &node.kind {
        Kind::Sequence(items) => items.iter().collect(),
        _ => vec![node],
    }
}

/// Returns the category of the rule's log source.
pub(super) fn category(document: &Node) -> Result<Category, Remark> {
    let at = &document.location;
    if !matches!(document.kind, Kind::Mapping(_)) {
        let message = format!("expected a Sigma rule, found {}", document.describe());
        return Err(Remark::new(at, message));
    }
    if let Some(node) = get(document, "correlation") {
        let message = "`correlation` joins the matches of several rules; write `count` in a converted rule instead";
        return Err(Remark::new(&node.location, message));
    }
    if let Some(node) = get(document, "action") {
        let message = "`action` joins documents of a file; write the rules out";
        return Err(Remark::new(&node.location, message));
    }
    let source = get(document, "logsource").ok_or_else(|| {
        Remark::new(
            at,
            "`logsource` is missing: without it nothing says which events the rule is for",
        )
    })?;
    let word = |key| get(source, key).map(text_of).unwrap_or_default();
    let (product, category, service) = (word("product"), word("category"), word("service"));
    if !matches!(product.as_str(), "" | "linux") {
        let message = format!("`product: {product}` has other events than Linux");
        return Err(Remark::new(&source.location, message));
    }
    if !service.is_empty() {
        let message = format!(
            "`service: {service}` is a log that a program writes, which events of system calls do not show"
        );
        return Err(Remark::new(&source.location, message));
    }
    if category.is_empty() {
        let message = format!(
            "`logsource` has no category; carried are {}",
            Category::names()
        );
        return Err(Remark::new(&source.location, message));
    }
    Category::named(&category).ok_or_else(|| {
        let message = format!(
            "`category: {category}` is not carried; carried are {}",
            Category::names()
        );
        Remark::new(&source.location, message)
    })
}

/// Returns the rule's selections and conditions.
pub(super) fn detection(document: &Node) -> Result<Detection<'_>, Remark> {
    let missing = |what: &str| Remark::new(&document.location, format!("`{what}` is missing"));
    let node = get(document, "detection").ok_or_else(|| missing("detection"))?;
    let Kind::Mapping(pairs) = &node.kind else {
        let message = format!("expected a mapping, found {}", node.describe());
        return Err(Remark::new(&node.location, message));
    };
    let named = pairs
        .iter()
        .filter_map(|(name, value)| Some((name.scalar()?.text(), value)));
    let selections = named
        .filter(|(name, _)| !matches!(*name, "condition" | "timeframe"))
        .collect();
    let condition = get(node, "condition").ok_or_else(|| missing("detection.condition"))?;
    Ok(Detection {
        node,
        conditions: items(condition),
        selections,
    })
}
