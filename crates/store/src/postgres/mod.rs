//! A store in a PostgreSQL database, which several collectors can share.

mod append;
mod bundles;
mod captures;
mod client;
mod conditions;
mod connection;
mod federated;
mod fleet;
mod groups;
mod needs;
mod people;
mod query;
mod retention;
mod schema;
mod sums;
mod tail;
mod tls;
mod triage;
mod writer;

use std::path::Path;
use std::sync::Arc;

use crate::certificate::CertificateName;
use crate::change::{Kind, Submitted};
use crate::error::StoreError;
use crate::intake::Hole;
use crate::model::{
    Acknowledgement, Agent, AgentId, AlertDetail, AlertId, AlertRow, AuditEntry, Batch, Credential,
    Filter, Group, GroupId, NewAgent, NewToken, Overview, Pruned, Retention, Statistics, Token,
    TokenId,
};
use crate::number::now_ns;
use crate::writer::{self as queue, Handle};
use crate::{OnCommitted, Store};

use self::connection::{Readers, Target};
pub use self::needs::Needs;
#[cfg(test)]
pub(crate) use self::writer::LOCK;
use self::writer::State;

/// A store in the schema `tollgate` of a PostgreSQL database. Several processes can open it, on several machines; all
/// of them read, write and delete, and none leads.
#[derive(Debug)]
pub struct PostgresStore {
    writer: Handle<State>,
    readers: Readers,
    risk: Option<&'static str>,
}

impl PostgresStore {
    /// Opens the database that a URL such as `postgres://user@localhost/tollgate` names, and brings its schema up to
    /// date. The URL has the parameters of libpq for TLS; without `sslmode` the certificate and name of a server on
    /// another machine are verified.
    ///
    /// # Errors
    ///
    /// The URL is wrong, a certificate cannot be used or believed, the server is away or refuses, or a newer build wrote the schema.
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let target = Target::parse(url)?;
        let mut connection = target.writer()?;
        schema::prepare(&target, &mut connection)?;
        Ok(Self {
            risk: target.risk(),
            readers: Readers::new(target.clone()),
            writer: queue::start(State::new(target, connection))?,
        })
    }

    /// Returns what [`PostgresStore::open`] and the store need of a sandbox, without a connection.
    ///
    /// # Errors
    ///
    /// The URL is wrong.
    pub fn needs(url: &str) -> Result<Needs, StoreError> {
        Ok(Target::parse(url)?.needs())
    }

    /// Returns what somebody on the way to the server can do because the URL asks for less than verified TLS; `None` if
    /// it does not, or if the server is on this machine.
    pub fn risk(&self) -> Option<&'static str> {
        self.risk
    }

    /// Runs `change` in the next transaction and returns its value after the commit.
    fn write<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        queue::run(&self.writer, Kind::Other, change)
    }

    /// Does the same for a change that reads or deletes sums of alerts.
    fn write_with_sums<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        queue::run(&self.writer, Kind::NeedsSums, change)
    }

    /// Submits a batch.
    fn submit(&self, batch: Batch, hole: Hole, done: OnCommitted) -> Result<(), StoreError> {
        let submitted = Submitted::new(append::append, (batch, hole), done);
        self.writer.try_submit(Box::new(submitted))
    }
}

impl Store for PostgresStore {
    fn append(&self, batch: Batch, done: OnCommitted) -> Result<(), StoreError> {
        self.submit(batch, Hole::Counted, done)
    }

    fn append_next(&self, batch: Batch, done: OnCommitted) -> Result<(), StoreError> {
        self.submit(batch, Hole::Refused, done)
    }

    fn acknowledged(&self, agent: AgentId) -> Result<u64, StoreError> {
        self.readers
            .with(|connection| Ok(append::sender_state(connection, agent)?.0))
    }

    fn create_token(&self, token: NewToken) -> Result<TokenId, StoreError> {
        self.write(move |state| fleet::create_token(state.connection()?, &token, now_ns()))
    }

    fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.readers.with(fleet::tokens)
    }

    fn revoke_token(&self, token: TokenId, actor: &str) -> Result<bool, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| fleet::revoke(state.connection()?, token, &actor, now_ns()))
    }

    fn credential(&self, hash: &[u8; 32]) -> Result<Option<Credential>, StoreError> {
        self.readers
            .with(|connection| fleet::credential(connection, hash, now_ns()))
    }

    fn certificate_token(
        &self,
        name: &CertificateName,
        hash: [u8; 32],
    ) -> Result<Option<TokenId>, StoreError> {
        let known = self
            .readers
            .with(|connection| fleet::known_certificate(connection, name))?;
        let name = name.clone();
        match known {
            Some(known) => Ok(known.in_force()),
            None => self.write(move |state| {
                fleet::certificate_token(state.connection()?, &name, &hash, now_ns())
            }),
        }
    }

    fn enrol(&self, agent: NewAgent) -> Result<AgentId, StoreError> {
        self.write(move |state| fleet::enrol(state.connection()?, &agent, now_ns()))
    }

    fn direct_sender(&self, token: TokenId) -> Result<AgentId, StoreError> {
        let known = self
            .readers
            .with(|connection| fleet::known_direct_sender(connection, token))?;
        match known {
            Some(agent) => Ok(agent),
            None => {
                self.write(move |state| fleet::direct_sender(state.connection()?, token, now_ns()))
            }
        }
    }

    fn heartbeat(&self, agent: AgentId, inventory: String) -> Result<(), StoreError> {
        self.write(move |state| fleet::heartbeat(state.connection()?, agent, &inventory, now_ns()))
    }

    fn agents(&self) -> Result<Vec<Agent>, StoreError> {
        self.readers
            .with(|connection| fleet::agents(connection, None, now_ns()))
    }

    fn agent(&self, agent: AgentId) -> Result<Option<Agent>, StoreError> {
        let found = self
            .readers
            .with(|connection| fleet::agents(connection, Some(agent), now_ns()));
        Ok(found?.pop())
    }

    fn groups(&self, filter: &Filter) -> Result<Vec<Group>, StoreError> {
        self.readers
            .with(|connection| groups::groups(connection, filter, now_ns()))
    }

    fn alerts(&self, filter: &Filter) -> Result<Vec<AlertRow>, StoreError> {
        self.readers
            .with(|connection| query::alerts(connection, filter))
    }

    fn alert(&self, alert: AlertId) -> Result<Option<AlertDetail>, StoreError> {
        self.readers
            .with(|connection| query::alert(connection, alert))
    }

    fn overview(&self, from_ns: i64, to_ns: i64) -> Result<Overview, StoreError> {
        self.readers
            .with(|connection| query::overview(connection, from_ns, to_ns))
    }

    fn acknowledge(&self, group: GroupId, how: Acknowledgement) -> Result<bool, StoreError> {
        self.write(move |state| triage::acknowledge(state.connection()?, group, &how, now_ns()))
    }

    fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
        self.readers
            .with(|connection| fleet::audit(connection, limit))
    }

    fn prune(&self, retention: Retention) -> Result<Pruned, StoreError> {
        retention::prune(self, retention)
    }

    fn statistics(&self) -> Result<Statistics, StoreError> {
        self.readers.with(query::statistics)
    }

    fn backup(&self, _to: &Path) -> Result<(), StoreError> {
        Err(StoreError::Elsewhere { action: "back up" })
    }
}

/// Returns a text without the character that no text of the server can hold.
fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Shared ownership by trait, as servers keep it.
impl From<PostgresStore> for Arc<dyn Store> {
    fn from(store: PostgresStore) -> Self {
        Arc::new(store)
    }
}
