//! The entries of response files before they are merged: action definitions and rules.

use yaml::{Kind, Location, Node};

use super::reader::{Fields, Reader};
use crate::diagnostic::Code;
use crate::matching::Matcher;

/// Named values whose meaning an actionner knows.
pub(super) type Parameters = Vec<(String, Node)>;

/// An action as one place of a file describes it.
#[derive(Clone, Debug)]
pub(super) struct ActionEntry {
    pub(super) name: String,
    pub(super) location: Location,
    /// Name of the actionner, with its position.
    pub(super) actionner: Option<(String, Location)>,
    pub(super) continues: Option<bool>,
    pub(super) ignores_errors: Option<bool>,
    pub(super) parameters: Parameters,
    /// Where `output` or `additional_contexts` stand, which only actionners of a cluster have.
    pub(super) foreign: Vec<(&'static str, Location)>,
}

/// A rule as one place of a file describes it.
#[derive(Clone, Debug)]
pub(super) struct RuleEntry {
    pub(super) name: String,
    pub(super) location: Location,
    pub(super) continues: Option<bool>,
    pub(super) dry_run: Option<bool>,
    pub(super) matcher: Matcher,
    pub(super) actions: Vec<ActionEntry>,
}

/// All entries of the files, in their order.
#[derive(Default)]
pub(super) struct Entries {
    pub(super) actions: Vec<ActionEntry>,
    pub(super) rules: Vec<RuleEntry>,
}

const ACTION_KEYS: [&str; 8] = [
    "action",
    "actionner",
    "additional_contexts",
    "continue",
    "description",
    "ignore_errors",
    "output",
    "parameters",
];
const RULE_KEYS: [&str; 7] = [
    "actions",
    "continue",
    "description",
    "dry_run",
    "match",
    "notifiers",
    "rule",
];

impl Entries {
    /// Adds the entries of a document.
    pub(super) fn read(&mut self, reader: &mut Reader, document: &Node) {
        for item in reader.items(document, "the file") {
            let (of_rule, of_action) = (value(item, "rule"), value(item, "action"));
            let kind = if of_rule.is_some() { "rule" } else { "action" };
            let name = of_rule.or(of_action).and_then(Node::scalar);
            reader.item = name.map_or_else(String::new, |name| format!("{kind} {}", name.text()));
            match (of_rule, of_action) {
                (Some(_), _) => self.rules.extend(rule(reader, item)),
                (None, Some(_)) => self.actions.extend(action(reader, item)),
                (None, None) => {
                    let known = [&RULE_KEYS[..], &ACTION_KEYS[..]].concat();
                    reader.fields(item, "an entry", &known);
                    let message = "an entry needs the key `rule` or `action`";
                    reader.problem(Code::Shape, &item.location, message);
                }
            }
            reader.item.clear();
        }
    }
}

/// Returns the value of a key of a mapping, whatever else is wrong with it.
fn value<'n>(node: &'n Node, key: &str) -> Option<&'n Node> {
    let Kind::Mapping(pairs) = &node.kind else {
        return None;
    };
    let is_it = |name: &Node| name.scalar().is_some_and(|name| name.text() == key);
    let found = pairs.iter().find(|(name, _)| is_it(name));
    found.map(|(_, value)| value)
}

/// Reads the name of an entry, which must not be empty.
fn name(reader: &mut Reader, fields: &Fields<'_>, key: &str) -> Option<String> {
    match reader.text_of(fields, key) {
        Some(name) if !name.trim().is_empty() => Some(name.to_owned()),
        _ => {
            let message = format!("an entry needs a name in `{key}`");
            reader.problem(Code::Shape, &fields.location, message);
            None
        }
    }
}

fn action(reader: &mut Reader, node: &Node) -> Option<ActionEntry> {
    let fields = reader.fields(node, "an action", &ACTION_KEYS);
    let name = name(reader, &fields, "action")?;
    reader.text_of(&fields, "description");
    let actionner = fields.find("actionner").and_then(|node| {
        let text = reader.text(node, "actionner")?.to_owned();
        Some((text, node.location.clone()))
    });
    let parameters = fields.find("parameters");
    let parameters = parameters.map(|node| named(reader, node));
    let foreign = ["additional_contexts", "output"].into_iter();
    let foreign = foreign.filter_map(|key| Some((key, fields.find(key)?.location.clone())));
    Some(ActionEntry {
        continues: reader.switch(&fields, "continue"),
        ignores_errors: reader.switch(&fields, "ignore_errors"),
        parameters: parameters.unwrap_or_default(),
        foreign: foreign.collect(),
        location: fields.location,
        name,
        actionner,
    })
}

/// Reads a mapping whose keys depend on the actionner.
fn named(reader: &mut Reader, node: &Node) -> Parameters {
    let Kind::Mapping(pairs) = &node.kind else {
        let message = format!(
            "`parameters` has to be a mapping, found {}",
            node.describe()
        );
        reader.problem(Code::Shape, &node.location, message);
        return Vec::new();
    };
    let mut parameters: Parameters = Vec::new();
    for (key, value) in pairs {
        match key.scalar().map(yaml::SourceText::text) {
            Some(name) if parameters.iter().any(|(known, _)| known == name) => {
                let message = format!("`parameters` has the key `{name}` twice");
                reader.problem(Code::Shape, &key.location, message);
            }
            Some(name) => parameters.push((name.to_owned(), value.clone())),
            None => {
                let message = "a key of `parameters` has to be a name";
                reader.problem(Code::Shape, &key.location, message);
            }
        }
    }
    parameters
}

fn rule(reader: &mut Reader, node: &Node) -> Option<RuleEntry> {
    let fields = reader.fields(node, "a rule", &RULE_KEYS);
    let name = name(reader, &fields, "rule")?;
    reader.text_of(&fields, "description");
    if let Some(node) = fields.find("notifiers") {
        reader.words(node, "notifiers");
        let message = "notifiers have no effect: each action is an alert, which every output gets";
        reader.problem(Code::NoNotifier, &node.location, message);
    }
    let matcher = fields.find("match");
    let matcher = matcher.map(|node| Matcher::read(reader, node));
    let actions = fields.find("actions");
    let actions = actions.map_or(&[][..], |node| reader.items(node, "actions"));
    let actions = actions.iter().filter_map(|node| action(reader, node));
    let actions = actions.collect();
    Some(RuleEntry {
        continues: reader.switch(&fields, "continue"),
        dry_run: reader.switch(&fields, "dry_run"),
        matcher: matcher.unwrap_or_default(),
        location: fields.location,
        name,
        actions,
    })
}
