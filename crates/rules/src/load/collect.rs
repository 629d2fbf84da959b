//! Applies items in file order: definitions replace, appends and overrides modify.

use std::collections::{HashMap, HashSet};

use super::environment::{check_plugin, known_sources};
use super::item::{
    Change, Entry, ExceptionItem, Item, ItemKind, ListItem, MacroItem, RuleItem, RuleUpdate,
};
use super::{Config, ENGINE_VERSION, LEFT_OUT, replaced};
use crate::diagnostic::{Code, Diagnostic, Location, closest};
use crate::ruleset::PluginRequirement;
use crate::version::Version;

/// Items by name, in the order of their first definition.
pub(super) struct NamedItems<T> {
    items: Vec<T>,
    index: HashMap<String, usize>,
}

impl<T> NamedItems<T> {
    pub(super) fn new() -> Self {
        Self {
            items: Vec::new(),
            index: HashMap::new(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&T> {
        self.index.get(name).map(|&at| &self.items[at])
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.index.get(name).copied()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(String::as_str)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }

    pub(super) fn at(&self, position: usize) -> &T {
        &self.items[position]
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.index.get(name).map(|&at| &mut self.items[at])
    }

    /// Replaces the item of this name in place, or adds one.
    fn define(&mut self, name: &str, item: T) {
        match self.get_mut(name) {
            Some(old) => *old = item,
            None => {
                self.index.insert(name.to_owned(), self.items.len());
                self.items.push(item);
            }
        }
    }
}

/// Maximum number of unknown names that get a suggestion: each is compared with all known names, which is
/// slow for thousands of unknown names.
const MAX_GUESSES: usize = 100;

/// Suggests names, a limited number of times.
#[derive(Default)]
pub(super) struct Suggestions(usize);

impl Suggestions {
    pub(super) fn closest<'a>(
        &mut self,
        word: &str,
        candidates: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        self.0 += 1;
        if self.0 > MAX_GUESSES {
            None
        } else {
            closest(word, candidates)
        }
    }
}

/// A macro with its position in the order that decides which macros it may refer to: those whose `first` is
/// below its `last`.
pub(super) struct CollectedMacro {
    pub(super) item: MacroItem,
    /// Position of the first definition.
    pub(super) first: usize,
    /// Position of the last change.
    pub(super) last: usize,
}

pub(super) struct CollectedRule {
    pub(super) item: RuleItem,
    /// Whether no producer of events has the rule's source.
    pub(super) unknown_source: bool,
}

pub(super) struct Collector {
    pub(super) rules: NamedItems<CollectedRule>,
    pub(super) macros: NamedItems<CollectedMacro>,
    pub(super) lists: NamedItems<ListItem>,
    pub(super) engine_version: Option<Version>,
    pub(super) plugins: Vec<PluginRequirement>,
    /// Items whose definition has an error; items that need them are not reported as broken.
    broken: HashSet<(ItemKind, String)>,
    guesses: Suggestions,
    /// Counter of items, for the order of macros.
    clock: usize,
}

impl Collector {
    pub(super) fn new() -> Self {
        Self {
            rules: NamedItems::new(),
            macros: NamedItems::new(),
            lists: NamedItems::new(),
            engine_version: None,
            plugins: Vec::new(),
            broken: HashSet::new(),
            guesses: Suggestions::default(),
            clock: 0,
        }
    }

    pub(super) fn mark_broken(&mut self, kind: ItemKind, name: String) {
        self.broken.insert((kind, name));
    }

    pub(super) fn is_broken(&self, kind: ItemKind, name: &str) -> bool {
        self.broken.contains(&(kind, name.to_owned()))
    }

    /// Applies one item; returns its problems.
    pub(super) fn apply(&mut self, item: Item, config: &Config) -> Vec<Diagnostic> {
        let mut problems = Vec::new();
        self.clock += 1;
        match item {
            Item::EngineVersion(version, location) => {
                problems.extend(self.require_engine(version, location));
            }
            Item::Plugins(requirements) => {
                problems.extend(requirements.iter().filter_map(|r| check_plugin(r, config)));
                self.plugins.extend(requirements);
            }
            Item::List {
                item,
                change: Change::Append,
            } => problems.extend(self.append_list(item)),
            Item::List { item, change } => problems.extend(self.define_list(item, change, config)),
            Item::Macro {
                item,
                change: Change::Append,
            } => problems.extend(self.append_macro(item)),
            Item::Macro { item, change } => {
                problems.extend(self.define_macro(item, change, config));
            }
            Item::Rule(item) => self.define_rule(*item, config, &mut problems),
            Item::UpdateRule { append, replace } => {
                if let Some(update) = append {
                    self.update_rule(*update, true, &mut problems);
                }
                if let Some(update) = replace {
                    self.update_rule(*update, false, &mut problems);
                }
            }
            Item::EnableRule {
                name,
                enabled,
                location,
            } => match self.rules.get_mut(&name) {
                Some(rule) => {
                    rule.item.enabled = enabled;
                    rule.item.is_enabled_by_name = enabled;
                }
                None => problems.extend(self.missing(
                    ItemKind::Rule,
                    &name,
                    &location,
                    "enable or disable",
                )),
            },
        }
        problems
    }

    fn require_engine(&mut self, version: Version, location: Location) -> Option<Diagnostic> {
        self.engine_version = self.engine_version.max(Some(version));
        if ENGINE_VERSION.satisfies(version) {
            return None;
        }
        let message = format!("the rules need engine version {version}, this is {ENGINE_VERSION}");
        let help = "use rules of an older release, or a newer engine";
        Some(Diagnostic::new(Code::Validate, location, message).with_help(help))
    }

    fn append_list(&mut self, item: ListItem) -> Option<Diagnostic> {
        match self.lists.get_mut(&item.name) {
            Some(list) => {
                list.items.extend(item.items);
                None
            }
            None => self.missing(ItemKind::List, &item.name, &item.location, "append to"),
        }
    }

    fn define_list(
        &mut self,
        item: ListItem,
        change: Change,
        config: &Config,
    ) -> Option<Diagnostic> {
        let name = item.name.clone();
        let earlier = self.lists.get(&name);
        let problem = earlier.and_then(|earlier| replaced::list(earlier, &item, change, config));
        self.lists.define(&name, item);
        problem
    }

    fn define_macro(
        &mut self,
        item: MacroItem,
        change: Change,
        config: &Config,
    ) -> Option<Diagnostic> {
        let name = item.name.clone();
        let earlier = self.macros.get(&name);
        let problem =
            earlier.and_then(|earlier| replaced::condition(&earlier.item, &item, change, config));
        let first = earlier.map_or(self.clock, |earlier| earlier.first);
        let last = self.clock;
        self.macros
            .define(&name, CollectedMacro { item, first, last });
        problem
    }

    fn append_macro(&mut self, item: MacroItem) -> Option<Diagnostic> {
        let clock = self.clock;
        match self.macros.get_mut(&item.name) {
            Some(earlier) => {
                earlier.item.condition.append(" ", &item.condition);
                earlier.last = clock;
                None
            }
            None => self.missing(ItemKind::Macro, &item.name, &item.location, "append to"),
        }
    }

    fn define_rule(&mut self, item: RuleItem, config: &Config, problems: &mut Vec<Diagnostic>) {
        let (name, location) = (item.name.clone(), item.location.clone());
        let context = format!("rule {name}");
        let known = config.sources.contains(&item.source);
        if !known {
            let message = format!(
                "no events of source `{}` are produced{LEFT_OUT}",
                item.source
            );
            let mut warning = Diagnostic::new(Code::UnknownSource, location.clone(), message);
            warning.help = Some(known_sources(&item.source, config));
            problems.push(warning.in_item(&context));
        }
        if let Some(problem) = self.source_conflict(&name, &item.source, &location) {
            self.mark_broken(ItemKind::Rule, name);
            problems.push(problem);
            return;
        }
        let wrong = item.exceptions.iter().filter_map(check_exception);
        let wrong: Vec<_> = wrong.map(|problem| problem.in_item(&context)).collect();
        if wrong.is_empty() {
            self.rules.define(
                &name,
                CollectedRule {
                    item,
                    unknown_source: !known,
                },
            );
        } else {
            self.mark_broken(ItemKind::Rule, name);
            problems.extend(wrong);
        }
    }

    fn update_rule(&mut self, update: RuleUpdate, append: bool, problems: &mut Vec<Diagnostic>) {
        let context = format!("rule {}", update.name);
        let source = update.source.as_deref().unwrap_or("");
        if let Some(problem) = self.source_conflict(&update.name, source, &update.location) {
            problems.push(problem);
            return;
        }
        let Some(rule) = self.rules.get_mut(&update.name) else {
            let what = if append { "append to" } else { "override" };
            problems.extend(self.missing(ItemKind::Rule, &update.name, &update.location, what));
            return;
        };
        let wrong = if append {
            append_to_rule(&mut rule.item, update)
        } else {
            replace_in_rule(&mut rule.item, update)
        };
        problems.extend(wrong.into_iter().map(|problem| problem.in_item(&context)));
    }

    fn source_conflict(&self, name: &str, source: &str, at: &Location) -> Option<Diagnostic> {
        let earlier = &self.rules.get(name)?.item;
        if source.is_empty() || earlier.source == source {
            return None;
        }
        let message = format!(
            "the rule has source `{source}` here and `{}` in its definition at {}",
            earlier.source, earlier.location
        );
        Some(Diagnostic::new(Code::Validate, at.clone(), message).in_item(format!("rule {name}")))
    }

    fn missing(
        &mut self,
        kind: ItemKind,
        name: &str,
        at: &Location,
        verb: &str,
    ) -> Option<Diagnostic> {
        if self.is_broken(kind, name) {
            return None;
        }
        let word = kind.word();
        let near = match kind {
            ItemKind::Rule => self.guesses.closest(name, self.rules.names()),
            ItemKind::Macro => self.guesses.closest(name, self.macros.names()),
            ItemKind::List => self.guesses.closest(name, self.lists.names()),
        };
        let help = near.map_or_else(
            || format!("define the {word} earlier, or load its file first"),
            |near| format!("did you mean `{near}`?"),
        );
        let message = format!("no {word} `{name}` to {verb} yet");
        let problem = Diagnostic::new(Code::Validate, at.clone(), message);
        Some(problem.with_help(help).in_item(format!("{word} {name}")))
    }
}

fn append_to_rule(rule: &mut RuleItem, update: RuleUpdate) -> Vec<Diagnostic> {
    if let Some(condition) = update.condition {
        rule.condition.append(" ", &condition);
        rule.appended = Some(condition.start().clone());
    }
    if let Some(output) = update.output {
        rule.output.append(" ", &output);
    }
    if let Some(desc) = update.desc {
        rule.desc.push(' ');
        rule.desc.push_str(&desc);
    }
    rule.tags.extend(update.tags.into_iter().flatten());
    let exceptions = update.exceptions.into_iter().flatten();
    exceptions
        .filter_map(|exception| append_exception(rule, exception))
        .collect()
}

fn append_exception(rule: &mut RuleItem, exception: ExceptionItem) -> Option<Diagnostic> {
    let problem = |message: String| {
        Some(Diagnostic::new(
            Code::Validate,
            exception.location.clone(),
            message,
        ))
    };
    let name = &exception.name;
    if let Some(earlier) = rule
        .exceptions
        .iter_mut()
        .find(|earlier| earlier.name == *name)
    {
        if exception.fields.is_some() || exception.comps.is_some() {
            return problem(format!(
                "exception `{name}` exists already: only values can be appended to it"
            ));
        }
        earlier.values.extend(exception.values);
        return None;
    }
    if exception.fields.is_none() {
        return problem(format!("exception `{name}` is new and needs fields"));
    }
    if exception.values.is_empty() {
        return problem(format!("exception `{name}` is new and needs values"));
    }
    if let Some(problem) = check_exception(&exception) {
        return Some(problem);
    }
    rule.exceptions.push(exception);
    None
}

fn replace_in_rule(rule: &mut RuleItem, update: RuleUpdate) -> Vec<Diagnostic> {
    /// Replaces the value if the update has one.
    fn set<T>(old: &mut T, new: Option<T>) {
        if let Some(new) = new {
            *old = new;
        }
    }
    let wrong: Vec<_> = update
        .exceptions
        .iter()
        .flatten()
        .filter_map(check_exception)
        .collect();
    if !wrong.is_empty() {
        return wrong;
    }
    if update.condition.is_some() {
        rule.appended = None;
    }
    set(&mut rule.condition, update.condition);
    set(&mut rule.output, update.output);
    set(&mut rule.desc, update.desc);
    set(&mut rule.priority, update.priority);
    set(&mut rule.tags, update.tags);
    set(&mut rule.enabled, update.enabled);
    set(&mut rule.is_enabled_by_name, update.enabled);
    set(&mut rule.capture, update.capture);
    set(&mut rule.capture_duration_ms, update.capture_duration_ms);
    set(&mut rule.count, update.count.map(Some));
    set(&mut rule.risk, update.risk.map(Some));
    set(&mut rule.warn_evttypes, update.warn_evttypes);
    set(
        &mut rule.skip_if_unknown_filter,
        update.skip_if_unknown_filter,
    );
    set(&mut rule.exceptions, update.exceptions);
    wrong
}

/// Checks that fields and comps fit together; values are checked when the condition is built.
fn check_exception(exception: &ExceptionItem) -> Option<Diagnostic> {
    let problem =
        |at: &Location, message: String| Some(Diagnostic::new(Code::Validate, at.clone(), message));
    let name = &exception.name;
    match (exception.fields.as_ref()?, &exception.comps) {
        (Entry::Many(fields, _), Some(Entry::Many(comps, at))) if fields.len() != comps.len() => {
            problem(
                at,
                format!(
                    "exception `{name}` has {} fields and {} comps",
                    fields.len(),
                    comps.len()
                ),
            )
        }
        (Entry::Many(..), Some(Entry::One(comp))) => problem(
            comp.start(),
            format!("exception `{name}` has a list of fields: comps has to be a list too"),
        ),
        (Entry::One(_), Some(Entry::Many(_, at))) => problem(
            at,
            format!("exception `{name}` has a single field: comps has to be a single one too"),
        ),
        _ => None,
    }
}
