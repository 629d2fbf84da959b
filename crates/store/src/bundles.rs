//! Bundles of rules, which go down to agents, and their roll-outs.

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

/// A bundle for the agents of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Class of the agents.
    pub class: String,
    /// Bundle.
    pub bundle: BundleId,
    /// Part of the agents that get it; the others keep the bundle before it.
    pub percent: u8,
    /// When to halt.
    pub gate: Gate,
    /// Who assigns it.
    pub actor: String,
}

/// A roll-out and how far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    /// Class of the agents.
    pub class: String,
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
    /// Agents of the class whose token is in force.
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

    /// Assigns a bundle. For the bundle that the class has, changes the roll-out; a halted one goes on. Returns false if
    /// there is no such bundle.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn assign(&self, assignment: Assignment) -> Result<bool, StoreError>;

    /// Assigns the bundle before to all agents of a class. Returns false if there is none.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn roll_back(&self, class: &str, actor: &str) -> Result<bool, StoreError>;

    /// Halts the roll-out of this bundle. Returns false if it is halted, or another one now.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn halt(&self, class: &str, bundle: BundleId, reason: &str) -> Result<bool, StoreError>;

    /// Returns all roll-outs by class.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn rollouts(&self) -> Result<Vec<Rollout>, StoreError>;

    /// Returns the roll-out of an agent's class, without its health.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn rollout_of(&self, agent: AgentId) -> Result<Option<Rollout>, StoreError>;

    /// Keeps what an agent says about its bundle, if that is new. Returns true if it is. If the store does not know the
    /// bundle, keeps nothing about the agent. The audit log gets each kind of report once a minute of an agent.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn note_bundle(&self, agent: AgentId, report: BundleReport) -> Result<bool, StoreError>;
}
