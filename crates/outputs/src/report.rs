//! What an agent reports about itself: which engine, rules and policy are in force, and what was not watched.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::capture::CaptureSource;

/// State of an agent at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Name of the engine.
    pub engine: String,
    /// The rules in force.
    pub rules: RulesReport,
    /// The policy in force.
    pub policy: PolicyReport,
    /// The bundle of the collector; `None` if this agent takes none.
    pub bundle: Option<BundleReport>,
    /// Counters of the engine since the start, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// What the evaluation of rules took; `None` if the agent does not measure it.
    pub rule_times: Option<RuleTimes>,
}

/// The rules in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RulesReport {
    /// SHA-256 of the rule files in the order of loading, and of the selection of rules; in hexadecimal.
    pub digest: String,
    /// Number of enabled rules.
    pub enabled: u64,
    /// Number of rules that the installed filter does not cover; they are not in force.
    pub refused: u64,
}

/// The bundle of an agent that takes bundles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BundleReport {
    /// Version and digest of the bundle in force; `None` if the rules are the agent's own.
    pub in_force: Option<(u64, String)>,
    /// The last bundle that was refused since: its digest, and why.
    pub refused: Option<(String, String)>,
    /// The policies of the bundle that is kept, and one for which another bundle was refused.
    pub policies: Vec<BundledPolicy>,
}

/// A policy of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundledPolicy {
    /// Name.
    pub name: String,
    /// SHA-256 of its document, in hexadecimal.
    pub digest: String,
    /// What became of it.
    pub state: BundledPolicyState,
}

/// What became of a policy of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BundledPolicyState {
    /// The running command is confined by it.
    InForce,
    /// It confines the command when that starts again: a policy in force cannot be taken off a running process.
    NextStart,
    /// It confines nothing here, for this reason.
    Unused(String),
    /// It is not taken, for this reason.
    Refused(String),
}

impl BundledPolicyState {
    /// Returns the state in words, and the reason.
    pub(crate) fn named(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::InForce => ("in force", None),
            Self::NextStart => ("next start", None),
            Self::Unused(why) => ("unused", Some(why)),
            Self::Refused(why) => ("refused", Some(why)),
        }
    }
}

impl BundleReport {
    /// Returns true if the bundle was tried, whatever came of it.
    pub(crate) fn knows(&self, digest: &str) -> bool {
        let in_force = self.in_force.as_ref().map(|(_, digest)| &**digest);
        let refused = self.refused.as_ref().map(|(digest, _)| &**digest);
        in_force == Some(digest) || refused == Some(digest)
    }
}

/// The policy in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PolicyReport {
    /// There is none.
    #[default]
    Absent,
    /// There is one; the agent that took over was not handed what it is.
    Unknown,
    /// A known policy.
    Known {
        /// Name.
        name: String,
        /// SHA-256 of its file, in hexadecimal.
        digest: String,
        /// The policy only reports: nothing is denied.
        audits: bool,
        /// Enforcers of the policy.
        enforcers: Vec<EnforcerReport>,
        /// Rules that are not enforced in full, each as a sentence with the reason; `None` if that is not known.
        gaps: Option<Vec<String>>,
    },
}

/// What an enforcer makes of the policy in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnforcerReport {
    /// Name of the enforcer.
    pub enforcer: String,
    /// Extent of enforcement.
    pub extent: String,
    /// Why it does not enforce everything; `None` if it does, or if that is not known.
    pub reason: Option<String>,
}

/// Time that the evaluation of rules took since they came into force. One evaluation in some is timed, and counts for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTimes {
    /// Events that rules rejected or evaluated.
    pub events: u64,
    /// Nanoseconds of all rules.
    pub nanoseconds: u64,
    /// The rules that took the most time, that of the most first.
    pub rules: Vec<RuleTime>,
}

/// Time that the evaluation of one rule took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTime {
    /// Name of the rule.
    pub rule: String,
    /// Number of evaluations.
    pub evaluations: u64,
    /// Nanoseconds of them.
    pub nanoseconds: u64,
}

/// Callback that makes a report. Runs on the threads of channels.
pub type ReportSource = Box<dyn Fn() -> AgentReport + Send + Sync>;

/// Callback that takes a bundle as the collector sent it. Runs on the threads of channels, and only passes it on: the
/// report says later what became of it. Returns false if it is to come again.
pub type BundleSink = Box<dyn Fn(String) -> bool + Send + Sync>;

/// Place in which channels find the source of reports. Channels start before the engine does, so it is empty
/// at first, and stays so in a program that is no agent.
#[derive(Clone, Default)]
pub struct ReportSlot(Arc<Slot>);

#[derive(Default)]
struct Slot {
    source: OnceLock<ReportSource>,
    bundles: OnceLock<BundleSink>,
    captures: OnceLock<Arc<dyn CaptureSource>>,
    /// Number of changes of what is in force; 0 without a source.
    changes: AtomicU64,
}

impl ReportSlot {
    /// Sets the source. Only the first call has an effect.
    pub(crate) fn fill(&self, source: ReportSource) {
        // The first source stays: an agent has one engine.
        let _ = self.0.source.set(source);
        self.change();
    }

    /// Sets who takes bundles. Only the first call has an effect.
    pub(crate) fn take_bundles(&self, sink: BundleSink) {
        let _ = self.0.bundles.set(sink);
    }

    /// Returns who takes bundles, or `None` if nobody does.
    pub(crate) fn bundles(&self) -> Option<&BundleSink> {
        self.0.bundles.get()
    }

    /// Sets who records captures. Only the first call has an effect.
    pub(crate) fn take_captures(&self, source: Arc<dyn CaptureSource>) {
        let _ = self.0.captures.set(source);
    }

    /// Returns who records captures, or `None` if the agent allows none.
    pub(crate) fn captures(&self) -> Option<&Arc<dyn CaptureSource>> {
        self.0.captures.get()
    }

    /// Counts a change of what is in force.
    pub(crate) fn change(&self) {
        self.0.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns a report, or `None` as long as there is no source.
    pub fn report(&self) -> Option<AgentReport> {
        self.0.source.get().map(|source| source())
    }

    /// Returns the number of changes of what is in force; 0 as long as there is no source.
    pub fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }
}

impl fmt::Debug for ReportSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReportSlot")
            .field("changes", &self.changes())
            .finish_non_exhaustive()
    }
}
