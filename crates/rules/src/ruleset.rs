//! Rules after loading: macros and lists expanded, appends and overrides applied.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::condition::ast::{Expr, SourceId, Span};
use crate::diagnostic::Location;
use crate::load::{Sources, Version};

/// Everything that a set of rule files defines.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    /// Rules in the order of their first definition, disabled ones too.
    pub rules: Vec<Rule>,
    /// Macros in the order of their first definition.
    pub macros: Vec<Macro>,
    /// Lists in the order of their first definition.
    pub lists: Vec<List>,
    /// Highest engine version that a file asks for.
    pub required_engine_version: Option<Version>,
    /// Plugins that the files ask for.
    pub required_plugins: Vec<PluginRequirement>,
    /// Texts of conditions and outputs.
    pub sources: Sources,
}

impl Ruleset {
    /// Where a span of a condition or output starts in its rule file.
    #[must_use]
    pub fn locate(&self, span: Span) -> Location {
        self.sources.locate(span)
    }

    /// Switches off the rules for which `refuse` says so.
    pub fn disable(&mut self, mut refuse: impl FnMut(&str) -> bool) {
        for rule in &mut self.rules {
            rule.enabled &= !refuse(&rule.name);
        }
    }

    /// Switches on or off the rules for which `concerns` says so.
    pub fn select(&mut self, enable: bool, mut concerns: impl FnMut(&Rule) -> bool) {
        for rule in &mut self.rules {
            if concerns(rule) {
                rule.enabled = enable;
            }
        }
    }

    /// The rule with this name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| &*rule.name == name)
    }
}

/// A rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Unique name.
    pub name: Arc<str>,
    /// When it matches, exceptions included. Holds no unresolved macro or list name.
    pub condition: Expr,
    /// The condition as it stands in the files.
    pub written: ConditionSource,
    /// What it says then.
    pub output: Output,
    /// What it is about.
    pub desc: String,
    /// How bad a match is.
    pub priority: Priority,
    /// Where its events come from.
    pub source: String,
    /// Labels.
    pub tags: BTreeSet<String>,
    /// Whether it is to be evaluated.
    pub enabled: bool,
    /// Whether to warn when it matches too many event types.
    pub warn_evttypes: bool,
    /// Whether an unknown field or event type leaves it out instead of being an error.
    pub skip_if_unknown_filter: bool,
    /// Its exceptions; `condition` has them too.
    pub exceptions: Vec<Exception>,
    /// Whether a match starts a capture.
    pub capture: bool,
    /// How long that capture lasts, in milliseconds; 0 means the configured default.
    pub capture_duration_ms: u32,
    /// Where something was last appended to the condition.
    pub appended: Option<Location>,
    /// Where it was last defined as a whole.
    pub location: Location,
}

/// A condition as written, and the names in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConditionSource {
    /// The text, with what was appended.
    pub condition: String,
    /// Macros that it names itself.
    pub macros: Vec<String>,
    /// Lists that it names itself.
    pub lists: Vec<String>,
}

/// The text of an alert with `%field` in it, not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The text, without blanks around it.
    pub text: String,
    /// Its name in [`Ruleset::sources`]; offsets in `text` make a [`Span`] with it.
    pub source: SourceId,
}

/// An exception of a rule, for listing: its effect is in the rule's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Name, unique in the rule.
    pub name: String,
    /// What it compares.
    pub fields: Vec<String>,
    /// How, by field.
    pub comps: Vec<String>,
    /// How many values or tuples of values it has.
    pub values: usize,
    /// Where it was defined.
    pub location: Location,
}

/// A macro.
#[derive(Debug, Clone, PartialEq)]
pub struct Macro {
    /// Unique name.
    pub name: Arc<str>,
    /// What it stands for, resolved.
    pub condition: Expr,
    /// The condition as it stands in the files.
    pub written: ConditionSource,
    /// Whether a rule or another macro refers to it.
    pub used: bool,
    /// Where it was last defined as a whole.
    pub location: Location,
}

/// A list.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// Unique name.
    pub name: Arc<str>,
    /// Its entries as they stand in the files, without the names of other lists.
    pub written: Vec<String>,
    /// Other lists that it names.
    pub lists: Vec<String>,
    /// Its values, with other lists expanded.
    pub items: Vec<crate::condition::ast::Literal>,
    /// Whether a rule, a macro or another list refers to it.
    pub used: bool,
    /// Where it was last defined as a whole.
    pub location: Location,
}

/// One of several plugins has to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRequirement {
    /// Name and least version of each that would do.
    pub alternatives: Vec<(String, Version)>,
    /// Where it was asked for.
    pub location: Location,
}

/// How bad a match of a rule is; syslog's levels. Ordered from worst to least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Priority {
    /// Level 0.
    Emergency,
    /// Level 1.
    Alert,
    /// Level 2.
    Critical,
    /// Level 3.
    Error,
    /// Level 4.
    Warning,
    /// Level 5.
    Notice,
    /// Level 6.
    Informational,
    /// Level 7.
    Debug,
}

impl Priority {
    /// All of them, by level.
    pub const ALL: [Self; 8] = [
        Self::Emergency,
        Self::Alert,
        Self::Critical,
        Self::Error,
        Self::Warning,
        Self::Notice,
        Self::Informational,
        Self::Debug,
    ];

    /// Reads a name in any case, `info`, or a level.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("info") {
            return Some(Self::Informational);
        }
        let level = |priority: &Self| text.as_bytes() == [b'0' + *priority as u8];
        Self::ALL
            .into_iter()
            .find(|p| text.eq_ignore_ascii_case(p.name()) || level(p))
    }

    /// The name that alerts carry.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Emergency => "Emergency",
            Self::Alert => "Alert",
            Self::Critical => "Critical",
            Self::Error => "Error",
            Self::Warning => "Warning",
            Self::Notice => "Notice",
            Self::Informational => "Informational",
            Self::Debug => "Debug",
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_parses_names_levels_and_the_alias() {
        for (text, expected) in [
            ("EMERGENCY", Some(Priority::Emergency)),
            ("Critical", Some(Priority::Critical)),
            ("info", Some(Priority::Informational)),
            ("INFO", Some(Priority::Informational)),
            ("informational", Some(Priority::Informational)),
            ("0", Some(Priority::Emergency)),
            ("7", Some(Priority::Debug)),
            ("8", None),
            ("07", None),
            ("", None),
            ("warn", None),
        ] {
            assert_eq!(Priority::parse(text), expected, "{text:?}");
        }
        for priority in Priority::ALL {
            assert_eq!(Priority::parse(priority.name()), Some(priority));
        }
    }
}
