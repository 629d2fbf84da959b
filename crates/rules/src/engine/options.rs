//! Options for compiling a rule set.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use event::field::SourceFields;

use super::Recorder;
use crate::load::SYSCALL_SOURCE;
use crate::ruleset::{Priority, Rule};

/// Selection among several matching rules. [`RuleMatching::First`] is Falco's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleMatching {
    /// All matching rules alert.
    All,
    /// Only the matching rule that was loaded first alerts.
    #[default]
    First,
}

/// Options for compiling a rule set.
#[derive(Clone)]
pub struct EngineOptions {
    /// Least urgent priority that is evaluated.
    pub priority: Priority,
    /// Selection among several matching rules.
    pub rule_matching: RuleMatching,
    /// Additions to outputs.
    pub append_output: Vec<AppendOutput>,
    /// Static fields (name, text) that every alert reports.
    pub static_fields: Vec<(Arc<str>, String)>,
    /// Clock in nanoseconds since the epoch, for [`crate::Alert::made_ns`].
    pub clock: fn() -> u64,
    /// Enables cost counters; one evaluation out of this many is timed. See [`crate::Engine::costs`].
    pub profile: Option<NonZeroU64>,
    /// Recorder of evaluated events.
    pub recorder: Option<Arc<dyn Recorder>>,
    /// Adds what is known about process, file and container to each alert, for people who read it.
    pub context: bool,
    /// Source of the rules that are compiled, with its fields; `None` for `syscall`. Rules of other sources are left out.
    pub source: Option<Arc<SourceFields>>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            priority: Priority::Debug,
            rule_matching: RuleMatching::default(),
            append_output: Vec::new(),
            static_fields: Vec::new(),
            clock: system_time,
            profile: None,
            recorder: None,
            context: false,
            source: None,
        }
    }
}

fn system_time() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// One entry of Falco's `append_output`: an addition, and the rules it applies to. A rule must satisfy all
/// given conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendOutput {
    /// Restricts the entry to this rule.
    pub rule: Option<String>,
    /// Restricts the entry to rules of this source.
    pub source: Option<String>,
    /// Restricts the entry to rules that have all these tags.
    pub tags: BTreeSet<String>,
    /// Text that is appended to the output after a blank.
    pub extra_output: Option<String>,
    /// Fields that are reported but not printed.
    pub extra_fields: Vec<ExtraField>,
}

/// A field that is added to an alert's reported fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraField {
    /// A field under its own name.
    Field(String),
    /// A text under a user-defined name.
    Formatted {
        /// Name of the field.
        name: String,
        /// Template of the text, with `%field`.
        format: String,
    },
}

impl EngineOptions {
    /// Returns the name of the source whose rules are compiled.
    #[must_use]
    pub fn source_name(&self) -> &str {
        self.source
            .as_ref()
            .map_or(SYSCALL_SOURCE, |fields| fields.source())
    }
}

impl AppendOutput {
    pub(super) fn applies_to(&self, rule: &Rule) -> bool {
        self.rule.as_deref().is_none_or(|name| name == &*rule.name)
            && self
                .source
                .as_deref()
                .is_none_or(|source| source == rule.source)
            && self.tags.is_subset(&rule.tags)
    }
}
