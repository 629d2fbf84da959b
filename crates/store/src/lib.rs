//! What a fleet reports, kept: alerts, agents, tokens, losses and the audit log.
//!
//! [`Store`] is what the collector needs of a database. [`SqliteStore`] implements it in one file,
//! [`PostgresStore`] in a database that several collectors share. One thread of each process writes and commits what many callers submit in one transaction; readers have connections of their own and
//! never wait for it.
//!
//! Nothing here is trusted to be harmless text: a program that an agent watches chooses names that end up in
//! alerts. The store returns text as it came; whoever shows it escapes it.

mod account;
mod bundles;
mod captures;
mod certificate;
mod change;
mod error;
mod intake;
mod limits;
mod model;
mod number;
mod postgres;
mod severity;
mod sqlite;
#[cfg(test)]
mod tests;
mod writer;

pub use account::{
    Comment, Federated, FederatedUser, Invitation, NewSession, NewUser, PasswordSet, People,
    Session, Triage, User, UserAdded,
};
pub use bundles::{
    Ambiguous, Assigned, Assignment, Bundle, BundleId, BundleReport, Bundles, Gate, Health,
    NewBundle, Rollout, Target, ranked,
};
pub use captures::{
    AlertCaptureBegun, Capture, CaptureAsked, CaptureEnd, CaptureId, CaptureParts, CaptureState,
    CaptureUse, CapturedAlert, Captures, MAX_CAPTURE, MAX_CAPTURE_SECONDS, NewAlertCapture,
    NewCapture,
};
pub use certificate::CertificateName;
pub use error::{Fault, StoreError};
pub use model::{
    Acknowledgement, Agent, AgentId, AlertDetail, AlertId, AlertRow, AuditEntry, Batch, Credential,
    Cursor, Filter, Group, GroupId, HourCount, Loss, LossKind, LossRow, NewAgent, NewAlert,
    NewToken, Overview, Pruned, Receipt, Record, Retention, Scope, Statistics, TailRows, Token,
    TokenId,
};
pub use postgres::{Needs, PostgresStore};
pub use severity::Severity;
pub use sqlite::SqliteStore;

use std::path::Path;

/// Callback that gets the result of a batch after the commit.
pub type OnCommitted = Box<dyn FnOnce(Result<Receipt, StoreError>) + Send>;

/// A database of a fleet. All methods but [`Store::append`] block.
pub trait Store: Bundles + Captures + People + Send + Sync {
    /// Submits a batch and returns at once. `done` runs on another thread after the commit, so that what it
    /// acknowledges is never lost.
    ///
    /// # Errors
    ///
    /// [`StoreError::Busy`] if too many batches wait. `done` does not run then.
    fn append(&self, batch: Batch, done: OnCommitted) -> Result<(), StoreError>;

    /// Submits a batch as [`Store::append`] does, and fails with [`StoreError::OutOfOrder`] if a record of its agent before its
    /// first one is not stored: for batches that several writers take from a queue, where the earlier one can still come.
    ///
    /// # Errors
    ///
    /// As [`Store::append`].
    fn append_next(&self, batch: Batch, done: OnCommitted) -> Result<(), StoreError>;

    /// Returns the sequence number up to which the records of an agent are stored.
    ///
    /// # Errors
    ///
    /// There is no such agent, or the database fails.
    fn acknowledged(&self, agent: AgentId) -> Result<u64, StoreError>;

    /// Adds a token and returns its number.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn create_token(&self, token: NewToken) -> Result<TokenId, StoreError>;

    /// Returns all tokens, the newest first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn tokens(&self) -> Result<Vec<Token>, StoreError>;

    /// Revokes a token and with it every agent that enrolled with it. Returns false if there is no such token
    /// that is in force.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn revoke_token(&self, token: TokenId, actor: &str) -> Result<bool, StoreError>;

    /// Returns whom a secret with this hash belongs to, or `None` if it is unknown, expired or revoked.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn credential(&self, hash: &[u8; 32]) -> Result<Option<Credential>, StoreError>;

    /// Returns the number of the token of a client certificate's name, and adds it with `hash` at the first call. `None` if it is
    /// revoked.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn certificate_token(
        &self,
        name: &CertificateName,
        hash: [u8; 32],
    ) -> Result<Option<TokenId>, StoreError>;

    /// Adds an agent.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn enrol(&self, agent: NewAgent) -> Result<AgentId, StoreError>;

    /// Returns the sender of alerts that come with a token alone, and adds it at the first call. The host of that of a certificate
    /// is the certificate's name.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn direct_sender(&self, token: TokenId) -> Result<AgentId, StoreError>;

    /// Records a sign of life of an agent with its inventory, a JSON object.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn heartbeat(&self, agent: AgentId, inventory: String) -> Result<(), StoreError>;

    /// Returns all agents, those seen last first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn agents(&self) -> Result<Vec<Agent>, StoreError>;

    /// Returns an agent, or `None` if there is no such one.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn agent(&self, agent: AgentId) -> Result<Option<Agent>, StoreError>;

    /// Returns groups of alerts that the filter accepts, the latest first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn groups(&self, filter: &Filter) -> Result<Vec<Group>, StoreError>;

    /// Returns alerts that the filter accepts, the latest first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn alerts(&self, filter: &Filter) -> Result<Vec<AlertRow>, StoreError>;

    /// Returns one alert with everything that is known about it.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn alert(&self, alert: AlertId) -> Result<Option<AlertDetail>, StoreError>;

    /// Returns counts by hour and severity, and losses, between two times in nanoseconds.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn overview(&self, from_ns: i64, to_ns: i64) -> Result<Overview, StoreError>;

    /// Marks a group as acknowledged. Returns false if there is no such group.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn acknowledge(&self, group: GroupId, how: Acknowledgement) -> Result<bool, StoreError>;

    /// Returns the latest entries of the audit log.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError>;

    /// Deletes what exceeds the retention, the oldest hours first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn prune(&self, retention: Retention) -> Result<Pruned, StoreError>;

    /// Returns sizes and counts.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn statistics(&self) -> Result<Statistics, StoreError>;

    /// Writes a consistent copy to a new file while others read and write.
    ///
    /// # Errors
    ///
    /// The file exists or cannot be written.
    fn backup(&self, to: &Path) -> Result<(), StoreError>;
}
