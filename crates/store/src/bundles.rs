//! Bundles, which go down to agents, and their roll-outs.

use std::fmt;

use labels::{Labels, Selector};

use crate::error::StoreError;
use crate::model::AgentId;

/// Number of a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BundleId(pub i64);

/// A bundle to be kept. The store believes nothing of it: agents verify it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBundle {
    /// Version that it says it has.
    pub version: u64,
    /// SHA-256 of the text, in hexadecimal: what is signed, by which key, and the signature.
    pub digest: String,
    /// The key that is said to have signed it.
    pub key: String,
    /// The bundle as agents get it.
    pub text: String,
    /// Who adds it.
    pub actor: String,
}

/// A bundle that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bundle {
    /// Number.
    pub id: BundleId,
    /// Version.
    pub version: u64,
    /// Digest.
    pub digest: String,
    /// Key.
    pub key: String,
    /// When it was added.
    pub created_ns: i64,
    /// Who added it.
    pub created_by: String,
}

/// Limits beyond which a roll-out halts, counted over the agents that took its bundle, since they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    /// Agents that refused the bundle.
    pub failures: Option<u64>,
    /// Losses (drops, unwatched calls) of each agent on average.
    pub losses: Option<u64>,
    /// Records of each agent in a minute on average.
    pub alerts: Option<u64>,
}

/// The agents that a roll-out is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Class of the agents.
    pub class: String,
    /// Labels that they have; the selector without tests is for all of the class.
    pub selector: Selector,
}

impl Target {
    /// Returns all agents of a class.
    pub fn class(class: &str) -> Self {
        Self {
            class: class.to_owned(),
            selector: Selector::default(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class {}", self.class)?;
        match self.selector.tests() {
            0 => Ok(()),
            _ => write!(f, ", selector {}", self.selector),
        }
    }
}

/// A bundle for agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The agents.
    pub target: Target,
    /// Of several roll-outs that an agent matches, the one with the highest priority decides, then the one with the most
    /// tests.
    pub priority: i32,
    /// Bundle.
    pub bundle: BundleId,
    /// Part of the agents that get it; the others keep the bundle before it.
    pub percent: u8,
    /// When to halt.
    pub gate: Gate,
    /// Who assigns it.
    pub actor: String,
}

/// What became of an assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Assigned {
    /// The bundle is assigned.
    Done,
    /// The store has no such bundle.
    UnknownBundle,
    /// This other roll-out has the same rank, and agents can match both.
    Conflict(Target),
}

/// A roll-out and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// The agents.
    pub target: Target,
    /// Priority among the roll-outs that an agent matches.
    pub priority: i32,
    /// Bundle.
    pub bundle: Bundle,
    /// The last bundle before that all agents were to have and that was not halted, which a rollback assigns again.
    pub previous: Option<Bundle>,
    /// Part of the agents that get the bundle.
    pub percent: u8,
    /// When to halt.
    pub gate: Gate,
    /// Why it was halted. No further agent gets the bundle then.
    pub halted: Option<String>,
    /// When it began, or was changed.
    pub started_ns: i64,
    /// Who began or changed it.
    pub actor: String,
    /// What agents report.
    pub health: Health,
}

/// What agents report about the bundle of a roll-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Agents that match, whose token is in force.
    pub agents: u64,
    /// Agents in which the bundle is in force.
    pub in_force: u64,
    /// Agents that refused the bundle since the roll-out began or was changed.
    pub refused: u64,
    /// Losses of agents since they took the bundle.
    pub losses: u64,
    /// Records of agents since they took the bundle.
    pub records: u64,
    /// Time that agents have had the bundle, added up.
    pub time_ns: i64,
}

impl Health {
    /// Returns why the gate closes, or `None` while it is open.
    pub fn problem(&self, gate: &Gate) -> Option<String> {
        /// One agent's burst at its start is no rate.
        const MINUTE_NS: i64 = 60_000_000_000;
        if gate.failures.is_some_and(|most| self.refused > most) {
            return Some(format!("agents that refused the bundle: {}", self.refused));
        }
        let agents = self.in_force.max(1);
        if gate
            .losses
            .is_some_and(|most| self.losses > most.saturating_mul(agents))
        {
            let each = self.losses / agents;
            return Some(format!(
                "agents with the bundle lost {each} calls or alerts each"
            ));
        }
        let minutes = u64::try_from(self.time_ns.max(MINUTE_NS) / MINUTE_NS).unwrap_or(u64::MAX);
        if gate
            .alerts
            .is_some_and(|most| self.records > most.saturating_mul(minutes))
        {
            let each = self.records / minutes;
            return Some(format!(
                "agents with the bundle send {each} alerts a minute each"
            ));
        }
        None
    }
}

/// Two roll-outs of the same rank, both of which an agent matches. No assignment makes such a pair.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the roll-outs of {one} and of {other} have the same rank")]
pub struct Ambiguous {
    /// The one.
    pub one: Target,
    /// The other.
    pub other: Target,
}

/// Returns the roll-outs that an agent with these labels matches, the one that decides first.
///
/// # Errors
///
/// Two of them have the same rank: nobody can say which of them comes first.
pub fn ranked<'r>(
    of_class: impl IntoIterator<Item = &'r Rollout>,
    labels: &Labels,
) -> Result<Vec<&'r Rollout>, Ambiguous> {
    let matching = |rollout: &&Rollout| rollout.target.selector.matches(labels);
    let mut found: Vec<_> = of_class.into_iter().filter(matching).collect();
    let rank = |rollout: &Rollout| (rollout.priority, rollout.target.selector.tests());
    found.sort_by_key(|rollout| std::cmp::Reverse(rank(rollout)));
    let same = found.windows(2).find(|pair| rank(pair[0]) == rank(pair[1]));
    match same {
        Some(pair) => Err(Ambiguous {
            one: pair[0].target.clone(),
            other: pair[1].target.clone(),
        }),
        None => Ok(found),
    }
}

/// Returns the first of the other selectors of the class, with their priorities, that an assignment conflicts with.
pub(crate) fn conflict(
    assignment: &Assignment,
    others: impl IntoIterator<Item = (Selector, i32)>,
) -> Option<Target> {
    let own = &assignment.target.selector;
    let is_in_conflict = |(other, priority): &(Selector, i32)| {
        other != own
            && *priority == assignment.priority
            && other.tests() == own.tests()
            && other.overlaps(own)
    };
    let (selector, _) = others.into_iter().find(is_in_conflict)?;
    Some(Target {
        class: assignment.target.class.clone(),
        selector,
    })
}

/// Returns the texts of labels that a selector matches, `None` for all of them.
pub(crate) fn matching(
    selector: &Selector,
    texts: impl FnOnce() -> Result<Vec<String>, StoreError>,
) -> Result<Option<Vec<String>>, StoreError> {
    if selector.tests() == 0 {
        return Ok(None);
    }
    let mut found = Vec::new();
    for text in texts()? {
        if selector.matches(&labels_of(&text)?) {
            found.push(text);
        }
    }
    Ok(Some(found))
}

/// Reads the labels of a row.
pub(crate) fn labels_of(text: &str) -> Result<Labels, StoreError> {
    Labels::parse(text).map_err(|error| StoreError::Row {
        problem: error.to_string(),
    })
}

/// Reads the selector of a row.
pub(crate) fn selector_of(text: &str) -> Result<Selector, StoreError> {
    Selector::parse(text).map_err(|error| StoreError::Row {
        problem: error.to_string(),
    })
}

/// What an agent says about its bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BundleReport {
    /// Digest of the bundle.
    pub digest: String,
    /// Why it was refused; `None` if it is in force.
    pub refused: Option<String>,
}

/// What the store keeps about bundles. All methods block.
pub trait Bundles {
    /// Keeps a bundle and returns its number; that of the same bundle if it is there.
    ///
    /// # Errors
    ///
    /// The database fails; so for all methods of this trait.
    fn add_bundle(&self, bundle: NewBundle) -> Result<BundleId, StoreError>;

    /// Returns all bundles, the newest first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn bundles(&self) -> Result<Vec<Bundle>, StoreError>;

    /// Returns the text of a bundle.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn bundle_text(&self, bundle: BundleId) -> Result<Option<String>, StoreError>;

    /// Assigns a bundle. For the bundle that the target has, changes the roll-out; a halted one goes on. Changes nothing
    /// unless it returns [`Assigned::Done`].
    ///
    /// # Errors
    ///
    /// The database fails.
    fn assign(&self, assignment: Assignment) -> Result<Assigned, StoreError>;

    /// Ends a roll-out: its agents are to have what the next less specific one gives. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn unassign(&self, target: &Target, actor: &str) -> Result<bool, StoreError>;

    /// Assigns the bundle before to all agents of a roll-out. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn roll_back(&self, target: &Target, actor: &str) -> Result<bool, StoreError>;

    /// Halts the roll-out of this bundle. Returns false if it is halted, or another one now.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn halt(&self, target: &Target, bundle: BundleId, reason: &str) -> Result<bool, StoreError>;

    /// Returns all roll-outs by class and selector.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn rollouts(&self) -> Result<Vec<Rollout>, StoreError>;

    /// Returns the roll-outs of an agent's class, without their health, and the agent's labels.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn rollouts_of(&self, agent: AgentId) -> Result<(Vec<Rollout>, Labels), StoreError>;

    /// Keeps the labels that an agent says it has, if they are new. Returns true if they are. The audit log gets one change
    /// a minute of an agent; the labels that an agent then has, at its next call after the minute.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn set_labels(&self, agent: AgentId, labels: &Labels) -> Result<bool, StoreError>;

    /// Keeps what an agent says about its bundle, if that is new. Returns true if it is. If the store does not know the
    /// bundle, keeps nothing about the agent. The audit log gets each kind of report once a minute of an agent.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn note_bundle(&self, agent: AgentId, report: BundleReport) -> Result<bool, StoreError>;
}
