//! Unresolved items of a rule file, and their keys.

use std::collections::BTreeSet;

use crate::diagnostic::Location;
use crate::ruleset::{Count, PluginRequirement, Priority, Risk};
use crate::version::Version;
use yaml::SourceText;

/// A key of an item, and the operations that `override` allows on it.
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) append: bool,
    pub(super) replace: bool,
}

const fn key(name: &'static str) -> Key {
    Key {
        name,
        append: false,
        replace: false,
    }
}

const fn replace(name: &'static str) -> Key {
    Key {
        name,
        append: false,
        replace: true,
    }
}

const fn append_or_replace(name: &'static str) -> Key {
    Key {
        name,
        append: true,
        replace: true,
    }
}

pub(super) const RULE_KEYS: &[Key] = &[
    key("rule"),
    append_or_replace("condition"),
    append_or_replace("output"),
    append_or_replace("desc"),
    replace("priority"),
    key("source"),
    append_or_replace("tags"),
    append_or_replace("exceptions"),
    replace("enabled"),
    replace("capture"),
    replace("capture_duration"),
    replace("count"),
    replace("risk"),
    replace("warn_evttypes"),
    replace("skip-if-unknown-filter"),
    key("append"),
    key("override"),
];

pub(super) const COUNT_KEYS: &[Key] = &[
    key("over"),
    key("risk_over"),
    key("within"),
    key("by"),
    key("distinct"),
    key("below"),
];

pub(super) const RISK_KEYS: &[Key] = &[key("weight"), key("silent")];

pub(super) const MACRO_KEYS: &[Key] = &[
    key("macro"),
    append_or_replace("condition"),
    key("append"),
    key("override"),
];

pub(super) const LIST_KEYS: &[Key] = &[
    key("list"),
    append_or_replace("items"),
    key("append"),
    key("override"),
];

pub(super) const ENGINE_KEYS: &[Key] = &[key("required_engine_version")];

pub(super) const PLUGIN_KEYS: &[Key] = &[key("required_plugin_versions")];

pub(super) const EXCEPTION_KEYS: &[Key] =
    &[key("name"), key("fields"), key("comps"), key("values")];

/// Returns the kinds of items, with the keys of each; the first key names the item.
pub fn item_keys() -> impl Iterator<Item = Vec<&'static str>> {
    let kinds = [RULE_KEYS, MACRO_KEYS, LIST_KEYS, ENGINE_KEYS, PLUGIN_KEYS];
    kinds
        .into_iter()
        .map(|keys| keys.iter().map(|key| key.name).collect())
}

/// The kinds of item that other items refer to by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ItemKind {
    Rule,
    Macro,
    List,
}

impl ItemKind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Macro => "macro",
            Self::List => "list",
        }
    }
}

/// A well-formed item.
pub(super) enum Item {
    EngineVersion(Version, Location),
    Plugins(Vec<PluginRequirement>),
    List {
        item: ListItem,
        change: Change,
    },
    Macro {
        item: MacroItem,
        change: Change,
    },
    Rule(Box<RuleItem>),
    /// A change by `append: true`, or by an `override` that appends, replaces, or both.
    UpdateRule {
        append: Option<Box<RuleUpdate>>,
        replace: Option<Box<RuleUpdate>>,
    },
    EnableRule {
        name: String,
        enabled: bool,
        location: Location,
    },
}

/// What a list or macro does to the one of this name that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Takes its place, as any later definition does.
    Define,
    /// Takes its place, by `override`: the author knows that it is there.
    Replace,
    /// Adds to it.
    Append,
}

pub(super) struct ListItem {
    pub(super) name: String,
    pub(super) items: Vec<SourceText>,
    pub(super) location: Location,
}

pub(super) struct MacroItem {
    pub(super) name: String,
    pub(super) condition: SourceText,
    pub(super) location: Location,
}

pub(super) struct RuleItem {
    pub(super) name: String,
    pub(super) condition: SourceText,
    /// Position of the last append to the condition.
    pub(super) appended: Option<Location>,
    pub(super) output: SourceText,
    pub(super) desc: String,
    pub(super) priority: Priority,
    pub(super) source: String,
    pub(super) tags: BTreeSet<String>,
    pub(super) enabled: bool,
    /// A later item enabled the rule by its name.
    pub(super) is_enabled_by_name: bool,
    pub(super) capture: bool,
    pub(super) capture_duration_ms: u32,
    pub(super) count: Option<Count>,
    pub(super) risk: Option<Risk>,
    pub(super) warn_evttypes: bool,
    pub(super) skip_if_unknown_filter: bool,
    pub(super) exceptions: Vec<ExceptionItem>,
    pub(super) location: Location,
}

/// Changes to a rule that is already defined.
pub(super) struct RuleUpdate {
    pub(super) name: String,
    pub(super) location: Location,
    pub(super) source: Option<String>,
    pub(super) condition: Option<SourceText>,
    pub(super) output: Option<SourceText>,
    pub(super) desc: Option<String>,
    pub(super) priority: Option<Priority>,
    pub(super) tags: Option<BTreeSet<String>>,
    pub(super) enabled: Option<bool>,
    pub(super) capture: Option<bool>,
    pub(super) capture_duration_ms: Option<u32>,
    pub(super) count: Option<Count>,
    pub(super) risk: Option<Risk>,
    pub(super) warn_evttypes: Option<bool>,
    pub(super) skip_if_unknown_filter: Option<bool>,
    pub(super) exceptions: Option<Vec<ExceptionItem>>,
}

impl RuleUpdate {
    pub(super) fn new(name: String, location: Location) -> Self {
        Self {
            name,
            location,
            source: None,
            condition: None,
            output: None,
            desc: None,
            priority: None,
            tags: None,
            enabled: None,
            capture: None,
            capture_duration_ms: None,
            count: None,
            risk: None,
            warn_evttypes: None,
            skip_if_unknown_filter: None,
            exceptions: None,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct ExceptionItem {
    pub(super) name: String,
    pub(super) fields: Option<Entry>,
    pub(super) comps: Option<Entry>,
    pub(super) values: Vec<Entry>,
    pub(super) location: Location,
}

/// A scalar or a list of scalars, as in `fields`, `comps` and each of `values`.
#[derive(Debug, Clone)]
pub(super) enum Entry {
    One(SourceText),
    Many(Vec<Entry>, Location),
}

impl Entry {
    pub(super) fn location(&self) -> &Location {
        match self {
            Self::One(text) => text.start(),
            Self::Many(_, location) => location,
        }
    }
}
