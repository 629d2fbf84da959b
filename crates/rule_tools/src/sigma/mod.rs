//! Rules of Sigma (sigma-specification 2) as rules of this program.
//!
//! Carried: rules for Linux whose log source is `process_creation`, `file_event` or `network_connection`. A rule that
//! cannot be carried whole is refused with the reasons; what a carried rule does not see as Sigma's would is listed.

mod condition;
mod fields;
mod pattern;
mod selection;
mod source;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;

use config::rule_files::NoSink;
use rules::{Diagnostic, Engine, EngineOptions, Loader};
use yaml::{Location, Node};

/// A part of a document that cannot be carried, or only in part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    /// Position in the file of the Sigma rule.
    pub(crate) location: Location,
    /// Description of what is lost or refused, and why.
    pub(crate) message: String,
}

impl Remark {
    fn new(location: &Location, message: impl Into<String>) -> Self {
        Self {
            location: location.clone(),
            message: message.into(),
        }
    }
}

/// A Sigma rule and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Conversion {
    /// Position of the rule.
    pub(crate) location: Location,
    /// Title of the rule; empty if it has none.
    pub(crate) title: String,
    /// Identifier of the rule, a UUID; empty if it has none.
    pub(crate) id: String,
    /// The rule, as an item of a rule file, or the reasons why it is refused.
    pub(crate) outcome: Result<Carried, Vec<Remark>>,
}

/// A rule that was carried over.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// Name of the rule.
    pub(crate) name: String,
    /// Item of a rule file, in YAML.
    pub(crate) text: String,
    /// What the rule does not see as Sigma's would.
    pub(crate) lost: Vec<Remark>,
}

/// Converts every rule of a file. `names` has the names that are taken, and gets those of the new rules.
#[must_use]
pub(crate) fn convert(file: &str, text: &str, names: &mut BTreeSet<String>) -> Vec<Conversion> {
    let file: Arc<str> = file.into();
    let (documents, error) = yaml::read(&file, text);
    let documents = documents.iter().filter(|document| !document.is_null());
    let mut all: Vec<_> = documents.map(|document| one(document, names)).collect();
    if let Some(problem) = error {
        all.push(Conversion {
            location: problem.location.clone(),
            title: String::new(),
            id: String::new(),
            outcome: Err(vec![Remark::new(&problem.location, problem.message)]),
        });
    }
    all
}

fn one(document: &Node, names: &mut BTreeSet<String>) -> Conversion {
    let header = source::Header::read(document);
    let outcome = carry(document, &header, names);
    Conversion {
        location: document.location.clone(),
        title: header.title,
        id: header.id,
        outcome,
    }
}

fn carry(
    document: &Node,
    header: &source::Header,
    names: &mut BTreeSet<String>,
) -> Result<Carried, Vec<Remark>> {
    let category = source::category(document).map_err(|remark| vec![remark])?;
    let detection = source::detection(document).map_err(|remark| vec![remark])?;
    let mut reader = selection::Reader::new(category);
    let condition = condition::read(&detection, &mut reader).map_err(|remark| vec![remark])?;
    if !reader.refused.is_empty() {
        return Err(reader.refused);
    }
    let name = write::unique(header, names);
    let text = write::item(&name, header, category, &condition);
    // Each expression must stand alone: in the written rule it is a group.
    let expressions = reader.regexes.iter().map(|regex| write::probe(regex));
    for text in expressions.chain([text.clone()]) {
        let refused = refused(&text, &detection.node.location);
        if !refused.is_empty() {
            return Err(refused);
        }
    }
    names.insert(name.clone());
    let mut lost = category.lost(&document.location);
    lost.extend(reader.lost);
    Ok(Carried { name, text, lost })
}

/// Returns the errors of the written rule: only the compiler knows the dialect of regular expressions, for example.
fn refused(text: &str, location: &Location) -> Vec<Remark> {
    let (ruleset, mut problems) = Loader::new().add("converted", text).finish();
    let (_, found) = Engine::new(&ruleset, &EngineOptions::default(), Box::new(NoSink));
    problems.extend(found);
    let errors = problems.into_iter().filter(Diagnostic::is_error);
    errors
        .map(|problem| Remark::new(location, problem.message))
        .collect()
}

#[cfg(test)]
mod tests;
