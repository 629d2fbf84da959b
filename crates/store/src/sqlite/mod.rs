//! A store in one SQLite file.

mod append;
mod backup;
mod bundles;
mod captures;
mod conditions;
mod federated;
mod fleet;
mod groups;
mod people;
mod query;
mod readers;
mod retention;
mod schema;
mod sums;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

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
use crate::{OnCommitted, Store};

use self::readers::Readers;
use self::writer::State;
use crate::writer::{self as queue, Handle};

/// Time limit for a lock that another process holds: a backup, `serve token` beside a running server.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// A store in one SQLite file, in write-ahead mode. Other processes can open the same file.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    writer: Handle<State>,
    readers: Readers,
}

impl SqliteStore {
    /// Opens the file, creates it if it is missing, and brings its schema up to date.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, is not a store, or was written by a newer build.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        create_private(path)?;
        let mut connection = connect(path)?;
        schema::prepare(&mut connection, path)
            .map_err(|error| error.foreign_if_no_database(path))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        // A commit waits for the disk: what is acknowledged survives a power cut.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "cache_size", -24_576)?;
        keep_temporary_files_beside(&connection, path)?;
        // Batches change the same pages of indexes again and again: 32 MiB of the log become fewer pages of the file.
        connection.pragma_update(None, "wal_autocheckpoint", 8192)?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Self {
            path: path.to_owned(),
            writer: queue::start(State::new(connection))?,
            readers: Readers::new(path.to_owned()),
        })
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

impl Store for SqliteStore {
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
        self.write(move |state| fleet::create_token(state.connection(), &token, now_ns()))
    }

    fn tokens(&self) -> Result<Vec<Token>, StoreError> {
        self.readers.with(fleet::tokens)
    }

    fn revoke_token(&self, token: TokenId, actor: &str) -> Result<bool, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| fleet::revoke(state.connection(), token, &actor, now_ns()))
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
                fleet::certificate_token(state.connection(), &name, &hash, now_ns())
            }),
        }
    }

    fn enrol(&self, agent: NewAgent) -> Result<AgentId, StoreError> {
        self.write(move |state| fleet::enrol(state.connection(), &agent, now_ns()))
    }

    fn direct_sender(&self, token: TokenId) -> Result<AgentId, StoreError> {
        let known = self
            .readers
            .with(|connection| fleet::known_direct_sender(connection, token))?;
        match known {
            Some(agent) => Ok(agent),
            None => {
                self.write(move |state| fleet::direct_sender(state.connection(), token, now_ns()))
            }
        }
    }

    fn heartbeat(&self, agent: AgentId, inventory: String) -> Result<(), StoreError> {
        self.write(move |state| fleet::heartbeat(state.connection(), agent, &inventory, now_ns()))
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
        self.write(move |state| fleet::acknowledge(state.connection(), group, &how, now_ns()))
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

    fn backup(&self, to: &Path) -> Result<(), StoreError> {
        // Not a connection that only reads: it would refuse to write the copy, too.
        backup::write(&connect(&self.path)?, to)
    }
}

impl SqliteStore {
    /// Makes a new store of a backup, after a check of its integrity.
    ///
    /// # Errors
    ///
    /// The backup is damaged, is not a store or was written by a newer build, or `path` exists.
    pub fn restore(backup: &Path, path: &Path) -> Result<(), StoreError> {
        backup::restore(backup, path)
    }

    /// Returns the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Creates the file for its owner alone, if it is missing. SQLite gives its companions the same mode.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let created = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path);
    created.map(drop).map_err(|source| StoreError::File {
        action: "open",
        path: path.to_owned(),
        source,
    })
}

/// Has SQLite put what a large sort or statement does not keep in memory into the folder of the store, which others do not
/// read and a confined process may write, and not into /var/tmp. It holds for the whole process; where the folder has
/// gone, SQLite takes its usual ones.
fn keep_temporary_files_beside(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    // A name that is no UTF-8 cannot be told to SQLite in this way.
    if let Some(folder) = folder.to_str() {
        connection.pragma_update(None, "temp_store_directory", folder)?;
    }
    Ok(())
}

/// Opens a connection that waits for the locks of others.
fn connect(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags);
    let connection = opened.map_err(|error| StoreError::File {
        action: "open",
        path: path.to_owned(),
        source: std::io::Error::other(error),
    })?;
    connection.busy_timeout(LOCK_WAIT)?;
    Ok(connection)
}

/// Shared ownership by trait, as servers keep it.
impl From<SqliteStore> for Arc<dyn Store> {
    fn from(store: SqliteStore) -> Self {
        Arc::new(store)
    }
}
