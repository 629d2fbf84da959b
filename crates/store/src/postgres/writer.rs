//! What the thread that writes knows of a PostgreSQL database.
//!
//! Several collectors can write to one database, and none leads: each transaction holds one advisory lock. So numbers
//! of alerts are committed in their order, which a live tail relies on, and no two transactions wait for each other's
//! rows. A commit covers the batches of many agents, so the lock costs one writer at a time and not one alert at a
//! time.

use std::collections::BTreeSet;

use super::connection::{Connection, Target};
use crate::error::StoreError;
use crate::intake::Cache;
use crate::writer::Transactions;

/// Key of the advisory lock: "toll" in ASCII.
pub(super) const LOCK: i64 = 0x746f_6c6c;

/// The connection that writes, and what it need not look up.
pub(super) struct State {
    target: Target,
    /// `None` once the server has ended it; the next transaction connects again.
    connection: Option<Connection>,
    cache: Cache,
    /// Days that have a partition.
    pub(super) days: BTreeSet<i64>,
    /// Number of deletions that `cache` and `days` know of.
    deletions: i64,
}

impl State {
    pub(super) fn new(target: Target, connection: Connection) -> Self {
        Self {
            target,
            connection: Some(connection),
            cache: Cache::default(),
            days: BTreeSet::new(),
            deletions: 0,
        }
    }

    /// Returns the connection of this transaction.
    pub(super) fn connection(&mut self) -> Result<&mut Connection, StoreError> {
        self.connection.as_mut().ok_or(StoreError::Stopped)
    }

    fn run(&mut self, sql: &str) -> Result<(), StoreError> {
        self.connection()?.batch(sql)
    }

    /// Tells writers, this one included, that rows have gone.
    pub(super) fn count_deletion(&mut self) -> Result<(), StoreError> {
        self.run("UPDATE store SET deletions = deletions + 1")?;
        self.forget();
        Ok(())
    }

    fn forget(&mut self) {
        self.cache.forget();
        self.days.clear();
    }
}

impl Transactions for State {
    fn begin(&mut self) -> Result<(), StoreError> {
        if self.connection.as_ref().is_none_or(Connection::is_closed) {
            self.forget();
            self.connection = None;
            self.connection = Some(self.target.writer()?);
        }
        // Each statement sees what others committed before the lock was granted. The settings hold in this transaction
        // whatever a connection pooler does with the session.
        let begun = self.run(&format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL synchronous_commit = on; \
             SELECT pg_advisory_xact_lock({LOCK})"
        ));
        let deletions = begun.and_then(|()| {
            let deletions = "SELECT deletions FROM store";
            self.connection()?.number(deletions, &[])
        });
        match deletions {
            Ok(deletions) => {
                if deletions != self.deletions {
                    self.forget();
                    self.deletions = deletions;
                }
                Ok(())
            }
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    fn save(&mut self) -> Result<(), StoreError> {
        self.run("SAVEPOINT change")
    }

    fn undo(&mut self) -> Result<(), StoreError> {
        // A partition may have been made within the change.
        self.days.clear();
        self.run("ROLLBACK TO change")
    }

    fn keep(&mut self) -> Result<(), StoreError> {
        self.run("RELEASE change")
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.run("COMMIT")
    }

    fn abandon(&mut self) {
        self.forget();
        // A connection that cannot even do this is of no use: whatever it has begun ends with it.
        if self.run("ROLLBACK").is_err() {
            self.connection = None;
        }
    }

    fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }
}
