//! The rule set after loading: macros and lists expanded, appends and overrides applied.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::condition::ast::{Expr, SourceId, Span};
use crate::diagnostic::Location;
use crate::level::Level;
use crate::sources::Sources;
use crate::version::Version;

/// All definitions of a set of rule files.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    /// Rules in the order of their first definition, including disabled ones.
    pub rules: Vec<Rule>,
    /// Macros in the order of their first definition.
    pub macros: Vec<Macro>,
    /// Lists in the order of their first definition.
    pub lists: Vec<List>,
    /// Highest engine version that a file requires.
    pub required_engine_version: Option<Version>,
    /// Plugins that the files require.
    pub required_plugins: Vec<PluginRequirement>,
    /// Texts of conditions and outputs.
    pub sources: Sources,
}

impl Ruleset {
    /// Returns the position in the rule file at which a span of a condition or output starts.
    #[must_use]
    pub fn locate(&self, span: Span) -> Location {
        self.sources.locate(span)
    }

    /// Disables the rules for which `refuse` returns true.
    pub fn disable(&mut self, mut refuse: impl FnMut(&str) -> bool) {
        for rule in &mut self.rules {
            rule.enabled &= !refuse(&rule.name);
        }
    }

    /// Disables the rules whose level is above this one, but those that an item enabled by their names.
    pub fn disable_above(&mut self, level: Level) {
        for rule in &mut self.rules {
            rule.enabled &= rule.level() <= level || rule.is_enabled_by_name;
        }
    }

    /// Enables or disables the rules for which `concerns` returns true.
    pub fn select(&mut self, enable: bool, mut concerns: impl FnMut(&Rule) -> bool) {
        for rule in &mut self.rules {
            if concerns(rule) {
                rule.enabled = enable;
            }
        }
    }

    /// Returns the rule with this name.
    #[must_use]
    pub fn rule(&self, name: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| &*rule.name == name)
    }
}

/// A loaded rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Unique name.
    pub name: Arc<str>,
    /// Condition, exceptions included. Contains no unresolved macro or list name.
    pub condition: Expr,
    /// Condition as written in the files.
    pub written: ConditionSource,
    /// Alert output.
    pub output: Output,
    /// Description.
    pub desc: String,
    /// Severity of a match.
    pub priority: Priority,
    /// Event source.
    pub source: String,
    /// Tags.
    pub tags: BTreeSet<String>,
    /// Whether the rule is evaluated.
    pub enabled: bool,
    /// A later item than the definition enabled the rule, such as by `override: {enabled: replace}`. It is on at every
    /// level then.
    pub is_enabled_by_name: bool,
    /// Whether to warn if the rule matches too many event types.
    pub warn_evttypes: bool,
    /// Whether an unknown field or event type disables the rule instead of being an error.
    pub skip_if_unknown_filter: bool,
    /// Exceptions, which `condition` includes.
    pub exceptions: Vec<Exception>,
    /// Whether a match starts a capture.
    pub capture: bool,
    /// Duration of the capture in milliseconds; 0 means the configured default.
    pub capture_duration_ms: u32,
    /// How often the rule has to match before it alerts; `None` if each match is an alert.
    pub count: Option<Count>,
    /// What the rule adds to the risk of a process tree; `None` if nothing.
    pub risk: Option<Risk>,
    /// Position of the last append to the condition.
    pub appended: Option<Location>,
    /// Position of the last full definition.
    pub location: Location,
}

/// How often a rule has to match before it alerts, or how much risk a process tree has to reach. Falco has nothing like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// The rule alerts when it has counted more than this.
    pub over: u32,
    /// What is counted.
    pub of: Counted,
    /// Time in which the matches have to happen, in milliseconds.
    pub within_ms: u32,
    /// Fields whose values are counted apart, e.g. `proc.sid`; empty to count all together.
    pub by: Vec<String>,
    /// Fields whose values count once; empty if each match counts.
    pub distinct: Vec<String>,
    /// Position in the file.
    pub location: Location,
}

/// What a rule counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counted {
    /// Its own matches.
    Matches,
    /// The weights of other rules that match in one process tree. The condition of the rule says which of their events
    /// count.
    Risk {
        /// Names of programs that start process trees, such as `sshd`: a tree begins below them.
        below: Vec<String>,
    },
}

/// What a match of a rule adds to the risk of its process tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub struct Risk {
    /// The weight, at least 1.
    pub weight: u32,
    /// Whether the rule only adds to the risk and never alerts by itself.
    pub is_silent: bool,
}

impl Rule {
    /// Returns true if the rule adds to the risk of process trees and never alerts by itself.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.risk.is_some_and(|risk| risk.is_silent)
    }

    /// Returns true if the rule sums the weights of other rules.
    #[must_use]
    pub fn sums_risk(&self) -> bool {
        let count = self.count.as_ref();
        count.is_some_and(|count| matches!(count.of, Counted::Risk { .. }))
    }
}

/// A condition as written, and the names that it refers to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConditionSource {
    /// Text of the condition, with appended parts.
    pub condition: String,
    /// Macros that the text names directly.
    pub macros: Vec<String>,
    /// Lists that the text names directly.
    pub lists: Vec<String>,
}

/// Output template of an alert with `%field`, not compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Template text, without surrounding blanks.
    pub text: String,
    /// Id in [`Ruleset::sources`]; with it, offsets in `text` form a [`Span`].
    pub source: SourceId,
}

/// An exception of a rule, for listing: its effect is in the rule's condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Name, unique in the rule.
    pub name: String,
    /// Compared fields.
    pub fields: Vec<String>,
    /// Comparison operator of each field.
    pub comps: Vec<String>,
    /// Number of values or tuples of values.
    pub values: usize,
    /// Position of the definition.
    pub location: Location,
}

/// A macro.
#[derive(Debug, Clone, PartialEq)]
pub struct Macro {
    /// Unique name.
    pub name: Arc<str>,
    /// Resolved condition.
    pub condition: Expr,
    /// Condition as written in the files.
    pub written: ConditionSource,
    /// Whether a rule or another macro refers to it.
    pub used: bool,
    /// Position of the last full definition.
    pub location: Location,
}

/// A list.
#[derive(Debug, Clone, PartialEq)]
pub struct List {
    /// Unique name.
    pub name: Arc<str>,
    /// Entries as written in the files, without the names of other lists.
    pub written: Vec<String>,
    /// Other lists that the list names.
    pub lists: Vec<String>,
    /// Values, with other lists expanded.
    pub items: Vec<crate::condition::ast::Literal>,
    /// Whether a rule, a macro or another list refers to it.
    pub used: bool,
    /// Position of the last full definition.
    pub location: Location,
}

/// A requirement that is met by one of several plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRequirement {
    /// Name and minimum version of each alternative.
    pub alternatives: Vec<(String, Version)>,
    /// Position of the requirement.
    pub location: Location,
}

/// Severity of a rule's match: syslog's levels, ordered from worst to least.
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
    /// All priorities, by level.
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

    /// Parses a name in any case, `info`, or a level number.
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

    /// Returns the name that alerts use.
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
