//! Loading of rule files into a resolved rule set.
//!
//! The crate `yaml` reads a file into nodes with positions, `read` turns a node into an item, `collect`
//! applies the items in order, and `resolve` builds the conditions once all files are known. Each step
//! reports its problems and continues with the rest.

mod collect;
mod count;
mod environment;
mod exception;
mod item;
mod read;
mod reader;
mod replaced;
mod resolve;
mod risk;
#[cfg(test)]
mod tests;
mod written;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use self::collect::Collector;
use crate::diagnostic::{Code, Diagnostic, Location};
use crate::ruleset::Ruleset;
use yaml::Kind;

pub use self::item::item_keys;
pub use self::resolve::{MAX_CONDITION_DEPTH, MAX_CONDITION_NODES, MAX_LIST_ITEMS};
pub use crate::sources::Sources;
pub use crate::version::Version;
pub use yaml::{MAX_FILE_BYTES, MAX_NESTING, MAX_NODES, SourceText};

/// Version of the Falco rule engine whose language this crate implements. Rules that ask for a newer one are
/// refused. The newest addition is that of 0.62: `oneof`, `anyof`, `allof`.
pub const ENGINE_VERSION: Version = Version::new(0, 63, 0);

/// Plugins whose fields are built in, with the implemented version of the fields.
pub const BUILTIN_PLUGINS: [(&str, Version); 1] = [("container", Version::new(0, 7, 0))];

/// End of the message of [`Code::UnknownSource`], which says what follows.
pub const LEFT_OUT: &str = ", the rule is left out";

/// Source of a rule that names none.
pub const SYSCALL_SOURCE: &str = "syscall";

/// Environment of the rules: known sources and plugins.
struct Config {
    sources: BTreeSet<String>,
    plugins: BTreeMap<String, Version>,
    /// Names of the files that have the built-in rules.
    builtin: BTreeSet<String>,
}

/// Loads rule files, in order.
///
/// ```
/// let text = "- macro: shell\n  condition: proc.name in (sh, bash)\n";
/// let (ruleset, diagnostics) = rules::load::Loader::new().add("my.yaml", text).finish();
/// assert_eq!(ruleset.macros.len(), 1);
/// assert_eq!(diagnostics[0].to_string(),
///     "my.yaml:1:3: warning[LOAD_UNUSED_MACRO]: macro shell: no rule and no other macro refers to it");
/// ```
pub struct Loader {
    config: Config,
    collector: Collector,
    diagnostics: Vec<Diagnostic>,
    files: HashMap<Arc<str>, usize>,
    /// As Falco does, the rest of a file is not read after its first error.
    stops_at_errors: bool,
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}

impl Loader {
    /// Creates a loader that knows the source `syscall` and the built-in plugins.
    #[must_use]
    pub fn new() -> Self {
        let plugins = BUILTIN_PLUGINS.map(|(name, version)| (name.to_owned(), version));
        let config = Config {
            sources: BTreeSet::from([SYSCALL_SOURCE.to_owned()]),
            plugins: BTreeMap::from(plugins),
            builtin: BTreeSet::new(),
        };
        Self {
            config,
            collector: Collector::new(),
            diagnostics: Vec::new(),
            files: HashMap::new(),
            stops_at_errors: false,
        }
    }

    /// Reads no more of a file after its first error, as Falco does.
    #[must_use]
    pub fn stopping_at_errors(mut self) -> Self {
        self.stops_at_errors = true;
        self
    }

    /// Adds a known event source, so that its rules are loaded.
    #[must_use]
    pub fn with_source(mut self, name: &str) -> Self {
        self.config.sources.insert(name.to_owned());
        self
    }

    /// Adds a plugin that satisfies `required_plugin_versions`.
    #[must_use]
    pub fn with_plugin(mut self, name: &str, version: Version) -> Self {
        self.config.plugins.insert(name.to_owned(), version);
        self
    }

    /// Names a file of the built-in rules: another file that defines one of its macros or lists anew is warned of.
    #[must_use]
    pub fn with_builtin(mut self, file_name: &str) -> Self {
        self.config.builtin.insert(file_name.to_owned());
        self
    }

    /// Reads one file; `text` is its content. Later files modify the definitions of earlier ones.
    #[must_use]
    pub fn add(mut self, file_name: &str, text: &str) -> Self {
        let name: Arc<str> = file_name.into();
        let order = self.files.len();
        self.files.entry(Arc::clone(&name)).or_insert(order);
        let (mut documents, error) = yaml::read(&name, text);
        if self.stops_at_errors && error.is_some() {
            documents.clear();
        }
        let before = self.diagnostics.len();
        for document in documents {
            match &document.kind {
                Kind::Null => {}
                Kind::Sequence(nodes) => {
                    for node in nodes.iter().filter(|node| !node.is_null()) {
                        if !self.has_stopped(before) {
                            self.add_item(node);
                        }
                    }
                }
                _ if self.has_stopped(before) => {}
                _ => {
                    let message =
                        format!("expected a list of items, found {}", document.describe());
                    let problem = Diagnostic::new(Code::YamlValidate, document.location, message);
                    self.diagnostics
                        .push(problem.with_help("begin each item with `- `"));
                }
            }
        }
        self.diagnostics
            .extend(error.map(|problem| {
                Diagnostic::new(Code::YamlParse, problem.location, problem.message)
            }));
        self
    }

    /// Adds an error for a file that the caller could not read.
    #[must_use]
    pub fn add_unreadable(mut self, file_name: &str, cause: &str) -> Self {
        let location = Location {
            file: file_name.into(),
            line: 0,
            column: 0,
        };
        let order = self.files.len();
        self.files
            .entry(Arc::clone(&location.file))
            .or_insert(order);
        let message = format!("cannot read the file: {cause}");
        let problem = Diagnostic::new(Code::FileRead, location, message);
        let help = match cause.contains("UTF-8") {
            true => "save it as UTF-8 text, which ASCII text is as well",
            false => "name an existing file that this user can read",
        };
        self.diagnostics.push(problem.with_help(help));
        self
    }

    fn add_item(&mut self, node: &yaml::Node) {
        let reading = read::read_item(node);
        // Falco looks for unknown keys last.
        let is_of_keys = |problem: &Diagnostic| problem.code == Code::UnknownKey;
        let (of_keys, others) = reading.diagnostics.into_iter().partition(is_of_keys);
        self.diagnostics.extend::<Vec<_>>(others);
        if let Some(item) = reading.item {
            self.diagnostics
                .extend(self.collector.apply(item, &self.config));
        }
        self.diagnostics.extend::<Vec<_>>(of_keys);
        if let Some((kind, name)) = reading.broken.filter(|_| !self.stops_at_errors) {
            self.collector.mark_broken(kind, name);
        }
    }

    /// Returns true if the current file, with the diagnostics from `before` on, is not read further.
    fn has_stopped(&self, before: usize) -> bool {
        self.stops_at_errors && self.diagnostics[before..].iter().any(Diagnostic::is_error)
    }

    /// Returns the problems of the files read so far, in the order in which they were found.
    #[must_use]
    pub fn problems(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// Returns the names of the rules, in the order of their first definition.
    pub fn rule_names(&self) -> impl Iterator<Item = &str> {
        self.collector
            .rules
            .iter()
            .map(|rule| rule.item.name.as_str())
    }

    /// Builds the rules. Returns only the problems found by that, in the order in which they were found: those of
    /// macros, then of rules, then unused items.
    #[must_use]
    pub fn build(self) -> (Ruleset, Vec<Diagnostic>) {
        let mut diagnostics = Vec::new();
        let ruleset = resolve::resolve(&self.collector, &mut diagnostics);
        (ruleset, diagnostics)
    }

    /// Builds the rules. If the diagnostics contain errors, the rule set lacks the items concerned.
    #[must_use]
    pub fn finish(self) -> (Ruleset, Vec<Diagnostic>) {
        let mut diagnostics = self.diagnostics;
        let ruleset = resolve::resolve(&self.collector, &mut diagnostics);
        let order = |file: &Arc<str>| self.files.get(file).copied().unwrap_or(usize::MAX);
        diagnostics.sort_by_key(|diagnostic| {
            let at = &diagnostic.location;
            (order(&at.file), at.line, at.column)
        });
        (ruleset, diagnostics)
    }
}
