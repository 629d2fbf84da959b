//! How a rule set is compiled.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::Recorder;
use crate::ruleset::{Priority, Rule};

/// Which of several matching rules alert. The first one is Falco's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RuleMatching {
    /// All of them.
    All,
    /// The one that was loaded first.
    #[default]
    First,
}

/// How a rule set is compiled.
#[derive(Clone)]
pub struct EngineOptions {
    /// The least urgent priority that counts.
    pub priority: Priority,
    /// Which of several matching rules alert.
    pub rule_matching: RuleMatching,
    /// What is added to outputs.
    pub append_output: Vec<AppendOutput>,
    /// Names and texts that every alert reports besides.
    pub static_fields: Vec<(Arc<str>, String)>,
    /// Nanoseconds since the epoch, for [`crate::Alert::made_ns`].
    pub clock: fn() -> u64,
    /// Keeps count of what rules cost, and times one look in so many: see [`crate::Engine::costs`].
    pub profile: Option<NonZeroU64>,
    /// Sees what is concluded, if somebody records it.
    pub recorder: Option<Arc<dyn Recorder>>,
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
        }
    }
}

fn system_time() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// One entry of Falco's `append_output`: what is added, and to which rules. A rule has to satisfy
/// all conditions that are given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AppendOutput {
    /// Only this rule.
    pub rule: Option<String>,
    /// Only rules of this source.
    pub source: Option<String>,
    /// Only rules that have all these tags.
    pub tags: BTreeSet<String>,
    /// Text that follows the output after a blank.
    pub extra_output: Option<String>,
    /// Fields that are reported but not printed.
    pub extra_fields: Vec<ExtraField>,
}

/// A field that is added to what an alert reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraField {
    /// A field under its own name.
    Field(String),
    /// A text under a name of the user's choice.
    Formatted {
        /// The name.
        name: String,
        /// The text, with `%field` in it.
        format: String,
    },
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
