//! Loader of response files.
//!
//! The format is Falco Talon's: a list of action definitions (`- action:`) and rules (`- rule:`). Entries of the same
//! name are merged, over several files, too. Everything unknown is an error with its place.

mod entry;
mod merge;
pub(crate) mod reader;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;

use config::trust;
use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::text_file;
use yaml::{Location, closest};

use self::entry::{ActionEntry, Entries, RuleEntry};
use self::reader::Reader;
use crate::actionner;
use crate::diagnostic::{Code, Diagnostic};
use crate::matching::Matcher;
use crate::parameters::Operation;

/// The text of a response file, or the reason why there is none.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path, as the user wrote it.
    pub name: String,
    /// Text, or the error.
    pub text: Result<String, String>,
}

/// The rules of all files.
#[derive(Clone, Debug, Default)]
pub struct Responses {
    pub(crate) rules: Vec<ResponseRule>,
}

/// A rule: which alerts start which actions.
#[derive(Clone, Debug)]
pub(crate) struct ResponseRule {
    pub(crate) name: Arc<str>,
    /// Rules after this one are asked, too.
    pub(crate) continues: bool,
    /// Actions are reported and not done.
    pub(crate) dry_run: bool,
    pub(crate) matcher: Matcher,
    /// None if all were left out.
    pub(crate) actions: Vec<Action>,
}

/// An action of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Action {
    pub(crate) name: Arc<str>,
    pub(crate) act: Operation,
    /// The next action follows.
    pub(crate) continues: bool,
    /// The next action follows even if this one fails.
    pub(crate) ignores_errors: bool,
}

/// Loaded files with their diagnostics.
#[derive(Debug)]
pub struct Loaded {
    /// The rules without errors.
    pub responses: Responses,
    /// Errors and warnings, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
    files: Vec<SourceFile>,
}

/// Reads response files. Those that cannot be read, or that all users can write although root reads them, have an error
/// instead of a text: a response runs programs and ends processes with the rights of this one.
#[must_use]
pub fn read_files(paths: &[PathBuf]) -> Vec<SourceFile> {
    let read = |path: &PathBuf| {
        let text = match trust::check_named(path) {
            Ok(()) => text_file::read(path).map_err(|error| error.to_string()),
            Err(untrusted) => Err(format!("{}; {}", untrusted.cause(), untrusted.fix())),
        };
        SourceFile {
            name: path.display().to_string(),
            text,
        }
    };
    paths.iter().map(read).collect()
}

/// Loads response files. Actions whose actionners are in `accepted` are left out with a warning if this program does not
/// have them.
///
/// ```
/// let file = response::SourceFile {
///     name: "r.yaml".to_owned(),
///     text: Ok("- rule: Stop\n  actions:\n    - action: Kill\n      actionner: process:terminat\n".to_owned()),
/// };
/// let loaded = response::load::load(vec![file], &[]);
/// assert!(loaded.render().starts_with(
///     "r.yaml:4:18: error[RESPONSE_UNKNOWN_ACTIONNER]: rule Stop: there is no actionner `process:terminat`"
/// ));
/// ```
#[must_use]
pub fn load(files: Vec<SourceFile>, accepted: &[String]) -> Loaded {
    let mut reader = Reader::default();
    let mut entries = Entries::default();
    for name in accepted {
        if let Err(problem) = actionner::check_accepted(name) {
            let at = whole("responses.accept_partial");
            reader.problem(Code::UnknownActionner, &at, problem);
        }
    }
    for file in &files {
        read_entries(&mut reader, &mut entries, file);
    }
    let entries = entries.merged();
    let refused = check_definitions(&mut reader, &entries, accepted);
    let mut responses = Responses::default();
    for entry in entries.rules {
        reader.item = format!("rule {}", entry.name);
        let rule = rule(&mut reader, entry, &entries.actions, (accepted, &refused));
        responses.rules.extend(rule);
    }
    let mut diagnostics = reader.diagnostics;
    if diagnostics.iter().any(Diagnostic::is_error) {
        // A rule whose `match` is wrong only seems to match every alert.
        diagnostics.retain(|problem| problem.code != Code::MatchesAll);
    }
    let order = |at: &Location| files.iter().position(|file| *file.name == *at.file);
    diagnostics.sort_by_key(|problem| {
        let at = &problem.location;
        (order(at), at.line, at.column)
    });
    Loaded {
        responses,
        diagnostics,
        files,
    }
}

/// The location of something that has no line.
fn whole(name: &str) -> Location {
    Location {
        file: name.into(),
        line: 0,
        column: 0,
    }
}

fn read_entries(reader: &mut Reader, entries: &mut Entries, file: &SourceFile) {
    let text = match &file.text {
        Ok(text) => text,
        Err(cause) => {
            let message = format!("cannot read the file: {cause}");
            let help = "name an existing file that this user can read";
            let problem = Diagnostic::new(Code::FileRead, whole(&file.name), message);
            return reader.report(problem.with_help(help));
        }
    };
    let (documents, error) = yaml::read(&file.name.as_str().into(), text);
    for document in documents.iter().filter(|document| !document.is_null()) {
        entries.read(reader, document);
    }
    if let Some(problem) = error {
        reader.problem(Code::YamlParse, &problem.location, problem.message);
    }
}

/// Checks the actionners of definitions. Returns the names of the definitions that cannot be used: what is wrong with them
/// is reported once, and not for each rule.
fn check_definitions(reader: &mut Reader, entries: &Entries, accepted: &[String]) -> Vec<String> {
    let mut refused = Vec::new();
    for entry in &entries.actions {
        reader.item = format!("action {}", entry.name);
        let Some((name, at)) = &entry.actionner else {
            continue;
        };
        match actionner::find(name, at, accepted) {
            Ok(found) => {
                foreign(reader, entry);
                Operation::check_names(reader, found, &entry.parameters);
            }
            Err(problem) => {
                reader.report(problem);
                refused.push(entry.name.clone());
            }
        }
    }
    refused
}

/// Reports keys that only actionners of a cluster have.
fn foreign(reader: &mut Reader, entry: &ActionEntry) {
    for (key, at) in &entry.foreign {
        let message = format!("an action on this host has no `{key}`");
        reader.problem(Code::UnknownKey, at, message);
    }
}

fn rule(
    reader: &mut Reader,
    entry: RuleEntry,
    definitions: &[ActionEntry],
    (accepted, refused): (&[String], &[String]),
) -> Option<ResponseRule> {
    if entry.actions.is_empty() {
        reader.problem(Code::Shape, &entry.location, "the rule has no action");
        return None;
    }
    if entry.matcher.is_empty() {
        let message = "the rule matches every alert";
        let problem = Diagnostic::new(Code::MatchesAll, entry.location.clone(), message);
        reader.report(problem.with_help("say in `match` which alerts are meant"));
    }
    let mut actions = Vec::new();
    let continues = entry.continues.unwrap_or(true);
    for own in entry.actions {
        let is_refused = own.actionner.is_none() && refused.contains(&own.name);
        if !is_refused {
            actions.extend(action(reader, own, definitions, accepted));
        }
    }
    // A rule whose actions are all left out does nothing. If it ends the search, it still keeps its alerts from the rules
    // after it.
    (!actions.is_empty() || !continues).then(|| ResponseRule {
        name: entry.name.into(),
        continues,
        dry_run: entry.dry_run.unwrap_or(false),
        matcher: entry.matcher,
        actions,
    })
}

fn action(
    reader: &mut Reader,
    own: ActionEntry,
    definitions: &[ActionEntry],
    accepted: &[String],
) -> Option<Action> {
    let definition = definitions.iter().find(|known| known.name == own.name);
    let is_inline = own.actionner.is_some();
    let entry = own.with(definition);
    let Some((name, at)) = &entry.actionner else {
        let message = format!("no action `{}` with an actionner is defined", entry.name);
        let names = definitions.iter().map(|known| known.name.as_str());
        let help = match closest(&entry.name, names) {
            Some(near) if near != entry.name => format!("did you mean `{near}`?"),
            _ => "add `actionner: NAME`, or an entry `- action: NAME` that has one".to_owned(),
        };
        let problem = Diagnostic::new(Code::UnknownAction, entry.location.clone(), message);
        reader.report(problem.with_help(help));
        return None;
    };
    let found = match actionner::find(name, at, accepted) {
        Ok(found) => found,
        Err(problem) => {
            // That of a definition is reported there.
            if is_inline {
                reader.report(problem);
            }
            return None;
        }
    };
    if is_inline || definition.is_none() {
        foreign(reader, &entry);
    }
    let act = Operation::read(reader, found, &entry.parameters, &entry.location)?;
    Some(Action {
        name: entry.name.into(),
        act,
        continues: entry.continues.unwrap_or(found.continues()),
        ignores_errors: entry.ignores_errors.unwrap_or(false),
    })
}

impl Loaded {
    /// Checks that no problem makes the files unusable.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] with all problems.
    pub fn usable(&self) -> Result<(), Failure> {
        if self.is_usable() {
            return Ok(());
        }
        let message = format!(
            "cannot use the response files\n{}",
            self.render().trim_end()
        );
        Err(Failure::new(Exit::BadInput, message)
            .help("correct them; `tollgate rules check --responses FILE` shows warnings too"))
    }

    /// Returns true if no problem makes the files unusable.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.diagnostics.iter().any(Diagnostic::is_error)
    }

    /// Adds a warning for each rule of the detector that `match` names and `is_known` does not know. `names` are those
    /// that it knows, for suggestions.
    pub fn check_rules(&mut self, names: &[&str]) {
        for rule in &self.responses.rules {
            for (wanted, at) in &rule.matcher.rules {
                if names.contains(&wanted.as_str()) {
                    continue;
                }
                let message = format!("no loaded rule is called `{wanted}`");
                let near = closest(wanted, names.iter().copied());
                let mut problem = Diagnostic::new(Code::UnknownRule, at.clone(), message)
                    .in_item(format!("rule {}", rule.name));
                problem.help = near.map(|near| format!("did you mean `{near}`?"));
                self.diagnostics.push(problem);
            }
        }
    }

    /// Formats the diagnostics, each with the line of its file.
    #[must_use]
    pub fn render(&self) -> String {
        let text = |problem: &Diagnostic| {
            let file = self.files.iter();
            let mut file = file.filter(|file| *file.name == *problem.location.file);
            file.next().and_then(|file| file.text.as_deref().ok())
        };
        let problems = self.diagnostics.iter();
        problems
            .map(|problem| problem.render(text(problem)) + "\n")
            .collect()
    }

    /// Returns the names of the files.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.name.as_str())
    }

    /// Returns the number of rules and of their actions.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        let rules = &self.responses.rules;
        let actions = rules.iter().map(|rule| rule.actions.len()).sum();
        (rules.len(), actions)
    }
}

impl Responses {
    /// Returns true if an action withholds calls from processes.
    #[must_use]
    pub fn deny(&self) -> bool {
        let mut actions = self.rules.iter().flat_map(|rule| &rule.actions);
        actions.any(|action| matches!(action.act, Operation::Deny { .. }))
    }

    /// Returns true if an action records events.
    #[must_use]
    pub fn capture(&self) -> bool {
        let mut actions = self.rules.iter().flat_map(|rule| &rule.actions);
        actions.any(|action| matches!(action.act, Operation::Capture(_)))
    }

    /// Returns true if an action cuts containers off from the network.
    #[must_use]
    pub fn quarantine(&self) -> bool {
        let mut actions = self.rules.iter().flat_map(|rule| &rule.actions);
        actions.any(|action| matches!(action.act, Operation::Quarantine { .. }))
    }

    /// Returns true if there is no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}
