//! Loading of rule files and of the built-in rules.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use diagnostics::text_file;
use event::Plan;
use rules::diagnostic::Diagnostic;
use rules::load::Version;
use rules::{Alert, AlertSink, Engine, EngineOptions, Level, Loader, Ruleset};

use crate::{Selection, levels, trust};

/// The built-in rules, used if no rule file is named: those that Falco would load as well, then others by tactic of ATT&CK,
/// then those that count, then weak signals and their sum.
pub const BUILTIN: &str = concat!(
    include_str!("../../../rules/default.yaml"),
    "\n",
    include_str!("../../../rules/command_and_control.yaml"),
    "\n",
    include_str!("../../../rules/credential_access.yaml"),
    "\n",
    include_str!("../../../rules/defense_evasion.yaml"),
    "\n",
    include_str!("../../../rules/execution.yaml"),
    "\n",
    include_str!("../../../rules/exfiltration.yaml"),
    "\n",
    include_str!("../../../rules/impact.yaml"),
    "\n",
    include_str!("../../../rules/persistence.yaml"),
    "\n",
    include_str!("../../../rules/counted.yaml"),
    "\n",
    include_str!("../../../rules/risk.yaml")
);

/// The built-in rules of level hunting, which use macros and lists of [`BUILTIN`].
pub const MORE: &str = include_str!("../../../rules/more.yaml");

/// Notes on the rules of [`BUILTIN`] and [`MORE`] for people who get alerts: false alarms known, what to check next.
pub const NOTES: &str = include_str!("../../../rules/notes.yaml");

/// Name of the built-in rules in messages.
pub const BUILTIN_NAME: &str = "built-in rules";

/// Name of the built-in rules of level hunting in messages.
pub const HUNTING_NAME: &str = "built-in hunting rules";

/// Returns true if this is the name of built-in rules, which have no path.
#[must_use]
pub fn is_builtin(name: &str) -> bool {
    [BUILTIN_NAME, HUNTING_NAME].contains(&name)
}

/// A rule file.
#[derive(Clone, Debug)]
pub struct RuleFile {
    /// The path as the user wrote it.
    pub name: Arc<str>,
    /// Text of the file, or the error from reading it.
    pub text: Result<String, String>,
}

/// Loaded rules with their diagnostics.
#[derive(Debug)]
pub struct Loaded {
    /// The files.
    pub files: Vec<RuleFile>,
    /// The rules.
    pub ruleset: Ruleset,
    /// Errors and warnings, in the order of the files.
    pub diagnostics: Vec<Diagnostic>,
    /// Names of the rules that are off because of their levels.
    pub(crate) off_by_level: BTreeSet<Arc<str>>,
    /// A problem in a macro is one of each rule that uses the macro, as in Falco.
    pub(crate) is_per_rule: bool,
}

/// The files that rules are read from, in the order in which they are loaded: later files can change rules of earlier
/// ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSources {
    /// Files and directories that replace the built-in rules and `folder`; empty for none.
    pub named: Vec<PathBuf>,
    /// Directory of rule files beside the built-in rules. It need not exist. If root runs this program, only root must be
    /// able to change its files.
    pub folder: Option<PathBuf>,
    /// Files of a signed bundle, by name and text, in place of `named`, `folder` and the built-in rules; empty without one.
    pub bundled: Vec<(String, String)>,
    /// Files and directories that are loaded after all others. Those that are already loaded are not loaded again.
    pub added: Vec<PathBuf>,
    /// Files that a program gives, by name and text; loaded last.
    pub given: Vec<(String, String)>,
    /// Highest level of the rules that are on. Built-in rules of a higher level are not even read.
    pub level: Level,
    /// A selection enables a built-in rule of level hunting, so these are read even if the level is off.
    pub enables_hunting: bool,
    /// What a directory of `named` has that is called a rule file and is none is passed over, as Falco does.
    pub as_falco: bool,
}

impl RuleSources {
    /// Reads the files. Those that cannot be read, or not be trusted, have an error instead of a text.
    #[must_use]
    pub fn read(&self) -> Vec<RuleFile> {
        let mut files = match self.bundled.is_empty() {
            true if self.as_falco => read_as_falco(&self.named),
            true => read_all(&self.named),
            false => self.bundled.iter().map(bundled).collect(),
        };
        files.extend(self.used_folder().into_iter().flat_map(read_folder));
        for file in expand_all(&self.added, |_| true) {
            let real = |name: &str| fs::canonicalize(name).ok();
            let is_known = |known: &RuleFile| {
                real(&known.name).is_some_and(|known| Some(known) == real(&file.name))
            };
            if !files.iter().any(is_known) {
                files.push(file);
            }
        }
        files.extend(self.given.iter().map(|(name, text)| RuleFile {
            name: name.as_str().into(),
            text: Ok(text.clone()),
        }));
        let is_builtin = self.named.is_empty() && self.bundled.is_empty();
        let is_on = self.level >= Level::Hunting || self.enables_hunting;
        if is_builtin && (is_on || files.iter().any(levels::changes_hunting)) {
            let hunting = RuleFile {
                name: HUNTING_NAME.into(),
                text: Ok(MORE.to_owned()),
            };
            // After the other built-in rules, before what can change it.
            files.insert(1, hunting);
        }
        files
    }

    /// Reads and parses the files, and disables the rules of higher levels.
    #[must_use]
    pub fn load(&self) -> Loaded {
        self.load_with(&Environment::default())
    }

    /// Like [`RuleSources::load`], with plugins.
    #[must_use]
    pub fn load_with(&self, environment: &Environment) -> Loaded {
        let mut loaded = load_read_with(self.read(), environment);
        loaded.select(&levels::selections(self.level));
        loaded
    }

    /// Returns the files and directories, which need not exist. Built-in rules have no path.
    pub fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        let named = self.named.iter().filter(|_| self.bundled.is_empty());
        named.chain(self.used_folder()).chain(&self.added)
    }

    fn used_folder(&self) -> Option<&PathBuf> {
        let is_used = self.named.is_empty() && self.bundled.is_empty();
        self.folder.as_ref().filter(|_| is_used)
    }
}

/// Returns a file of a bundle. What messages call it is no path.
fn bundled((name, text): &(String, String)) -> RuleFile {
    RuleFile {
        name: format!("bundle:{name}").into(),
        text: Ok(text.clone()),
    }
}

/// Reads the rule files of a directory that nobody named.
fn read_folder(folder: &PathBuf) -> Vec<RuleFile> {
    if let Err(error) = trust::check(folder) {
        return vec![unreadable(folder, &cause(&error))];
    }
    match fs::metadata(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => return vec![unreadable(folder, &error.to_string())],
        Ok(meta) if !meta.is_dir() => return vec![unreadable(folder, "it is not a folder")],
        Ok(_) => {}
    }
    let files = match listed(folder) {
        Ok(files) => files,
        Err(error) => return vec![unreadable(folder, &error.to_string())],
    };
    let checked = files.iter().map(|path| match trust::check(path) {
        Ok(()) => read_listed(path),
        Err(error) => unreadable(path, &cause(&error)),
    });
    checked.collect()
}

fn cause(error: &trust::Untrusted) -> String {
    format!("{}; use {}", error.cause(), error.fix())
}

/// Reads and parses rule files. A directory stands for its `.yaml` and `.yml` files, sorted by
/// name; no path means the built-in rules. Files that cannot be read become diagnostics.
#[must_use]
pub fn load(paths: &[PathBuf]) -> Loaded {
    load_read(read_all(paths))
}

/// What rules may refer to beside system calls.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Event sources of plugins.
    pub sources: Vec<String>,
    /// Plugins with their versions.
    pub plugins: Vec<(String, Version)>,
}

/// Like [`load`], for files that have already been read.
#[must_use]
pub fn load_read(files: Vec<RuleFile>) -> Loaded {
    load_read_with(files, &Environment::default())
}

/// Like [`load_read`], with plugins.
#[must_use]
pub fn load_read_with(files: Vec<RuleFile>, environment: &Environment) -> Loaded {
    let mut loader = loader(environment)
        .with_builtin(BUILTIN_NAME)
        .with_builtin(HUNTING_NAME);
    for file in &files {
        loader = add(loader, file);
    }
    let (ruleset, diagnostics) = loader.finish();
    Loaded::new(files, ruleset, diagnostics)
}

/// Returns a loader that knows the environment.
pub(crate) fn loader(environment: &Environment) -> Loader {
    let mut loader = Loader::new();
    for source in &environment.sources {
        loader = loader.with_source(source);
    }
    for (name, version) in &environment.plugins {
        loader = loader.with_plugin(name, *version);
    }
    loader
}

/// Has a loader read a file.
pub(crate) fn add(loader: Loader, file: &RuleFile) -> Loader {
    match &file.text {
        Ok(text) => loader.add(&file.name, text),
        Err(cause) => loader.add_unreadable(&file.name, cause),
    }
}

/// Reads the files that [`load`] parses.
#[must_use]
pub fn read_all(paths: &[PathBuf]) -> Vec<RuleFile> {
    if paths.is_empty() {
        return vec![RuleFile {
            name: BUILTIN_NAME.into(),
            text: Ok(BUILTIN.to_owned()),
        }];
    }
    expand_all(paths, |_| true)
}

/// Like [`read_all`], without what [`passed_over`] returns.
#[must_use]
pub fn read_as_falco(paths: &[PathBuf]) -> Vec<RuleFile> {
    match paths.is_empty() {
        true => read_all(paths),
        false => expand_all(paths, Path::is_file),
    }
}

/// Returns what directories among `paths` have that is called a rule file and is none, such as a link that leads nowhere.
/// Falco does not load it, and does not say so.
#[must_use]
pub fn passed_over(paths: &[PathBuf]) -> Vec<PathBuf> {
    let folders = paths.iter().filter(|path| path.is_dir());
    // A folder that cannot be read stops the load itself.
    let listed = folders.flat_map(|folder| listed(folder).unwrap_or_default());
    listed.filter(|path| !path.is_file()).collect()
}

/// Reads the files that paths stand for; of directories those that `is_read` selects. That there is none of them is an error of each path.
fn expand_all(paths: &[PathBuf], is_read: impl Fn(&Path) -> bool) -> Vec<RuleFile> {
    let files = paths.iter().flat_map(|path| expand(path, &is_read));
    let files: Vec<_> = files.collect();
    if !files.is_empty() {
        return files;
    }
    // One of several directories may be empty, such as an unused `rules.d`.
    let empty = "the folder has no .yaml or .yml file";
    paths.iter().map(|path| unreadable(path, empty)).collect()
}

fn unreadable(path: &Path, cause: &str) -> RuleFile {
    RuleFile {
        name: name(path),
        text: Err(cause.to_owned()),
    }
}

fn expand(path: &Path, is_read: impl Fn(&Path) -> bool) -> Vec<RuleFile> {
    if !path.is_dir() {
        return vec![read(path)];
    }
    match listed(path) {
        Ok(found) => {
            let read = found.iter().filter(|path| is_read(path));
            read.map(|path| read_listed(path)).collect()
        }
        Err(error) => vec![unreadable(path, &error.to_string())],
    }
}

/// Returns the rule files of a directory, sorted by name. What has the name of a rule file and is none, such as a link
/// that leads nowhere, is among them: whoever put it there believes that it is loaded. Editors leave such links with hidden
/// names while they have a file open.
fn listed(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut found: Vec<PathBuf> = entries
        .iter()
        .map(fs::DirEntry::path)
        .filter(|path| {
            let ending = path.extension().and_then(|ending| ending.to_str());
            // An entry of a folder has a name.
            let name = path.file_name().unwrap_or_default();
            let is_hidden = name.as_encoded_bytes().starts_with(b".");
            matches!(ending, Some("yaml" | "yml")) && (!is_hidden || path.is_file())
        })
        .collect();
    found.sort();
    Ok(found)
}

/// Reads a file that a directory has. Opening a pipe that nobody named would wait for its writer.
fn read_listed(path: &Path) -> RuleFile {
    match fs::metadata(path) {
        Ok(meta) if !meta.is_file() => unreadable(path, "it is not a file"),
        // Reading says why there is none.
        _ => read(path),
    }
}

fn read(path: &Path) -> RuleFile {
    RuleFile {
        name: name(path),
        text: text_file::read(path).map_err(|error| error.to_string()),
    }
}

fn name(path: &Path) -> Arc<str> {
    path.display().to_string().into()
}

/// An alert sink for engines that never evaluate an event.
#[derive(Debug)]
pub struct NoSink;

impl AlertSink for NoSink {
    fn emit(&self, _alert: Alert) {}
}

impl Loaded {
    pub(crate) fn new(
        files: Vec<RuleFile>,
        ruleset: Ruleset,
        diagnostics: Vec<Diagnostic>,
    ) -> Self {
        Self {
            files,
            ruleset,
            diagnostics,
            off_by_level: BTreeSet::new(),
            is_per_rule: false,
        }
    }

    /// Enables and disables rules; the last selection that matches a rule wins. A level does not disable a rule that an item
    /// of a file enables by its name. Returns the selections that match no rule.
    pub fn select<'s>(&mut self, selections: &'s [Selection]) -> Vec<&'s Selection> {
        let mut idle = Vec::new();
        for selection in selections {
            let mut concerned = false;
            let off = &mut self.off_by_level;
            self.ruleset.select(selection.enable, |rule| {
                let is_kept = selection.implied && rule.is_enabled_by_name;
                let concerns = selection.concerns(rule) && !is_kept;
                if concerns && !selection.implied {
                    off.remove(&rule.name);
                } else if concerns && rule.enabled {
                    off.insert(Arc::clone(&rule.name));
                }
                concerned |= concerns;
                concerns
            });
            if !concerned && !selection.implied {
                idle.push(selection);
            }
        }
        idle
    }

    /// Compiles the rules and adds the problems found to the diagnostics. The engine omits rules
    /// with errors.
    pub fn compile(
        &mut self,
        options: &EngineOptions,
        sink: impl AlertSink + 'static,
    ) -> (Engine, Plan) {
        let (engine, problems) = Engine::new(&self.ruleset, options, Box::new(sink));
        let (plan, costs) = engine.plan();
        self.add(problems.into_iter().chain(costs));
        (engine, plan)
    }

    /// Compiles the rules of the source of a plugin, which `options` name, and adds the problems found to the
    /// diagnostics.
    pub fn compile_source(
        &mut self,
        options: &EngineOptions,
        sink: impl AlertSink + 'static,
    ) -> Engine {
        let (engine, problems) = Engine::new(&self.ruleset, options, Box::new(sink));
        self.add(problems.into_iter());
        engine
    }

    fn add(&mut self, problems: impl Iterator<Item = Diagnostic>) {
        for problem in problems {
            let is_same = |known: &Diagnostic| {
                let same = known.code == problem.code && known.location == problem.location;
                same && known.message == problem.message
                    && (!self.is_per_rule || known.context == problem.context)
            };
            if !self.diagnostics.iter().any(is_same) {
                self.diagnostics.push(problem);
            }
        }
        if self.is_per_rule {
            return;
        }
        let order = |diagnostic: &Diagnostic| {
            let file = &diagnostic.location.file;
            let file = self.files.iter().position(|known| known.name == *file);
            (file, diagnostic.location.line, diagnostic.location.column)
        };
        self.diagnostics.sort_by_key(order);
    }

    /// Returns the text of the file with this name.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        let file = self.files.iter().find(|file| &*file.name == name)?;
        file.text.as_deref().ok()
    }

    /// Formats diagnostics for a terminal.
    pub fn render<'d>(&self, diagnostics: impl Iterator<Item = &'d Diagnostic>) -> String {
        let mut out = String::new();
        for diagnostic in diagnostics {
            out.push_str(&diagnostic.render(self.text(&diagnostic.location.file)));
            out.push('\n');
        }
        out
    }

    /// Checks that the rules have no errors.
    ///
    /// # Errors
    ///
    /// [`Exit::BadInput`] with all errors.
    pub fn usable(&self) -> Result<(), Failure> {
        let errors = self
            .diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.is_error());
        let count = errors.clone().count();
        if count == 0 {
            return Ok(());
        }
        let noun = if count == 1 { "error" } else { "errors" };
        let message = format!(
            "cannot use the rules: {count} {noun}\n{}",
            self.render(errors)
        );
        Err(Failure::new(Exit::BadInput, message.trim_end())
            .help("correct them; `tollgate rules check FILE` shows warnings too"))
    }
}

#[cfg(test)]
mod tests;
