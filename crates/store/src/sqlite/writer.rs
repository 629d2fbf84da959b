//! What the thread that writes knows of a SQLite file.

use rusqlite::Connection;

use super::sums;
use crate::error::StoreError;
use crate::intake::{Cache, Sums};
use crate::writer::Transactions;

/// The connection that writes, and numbers of rows that it need not look up.
pub(super) struct State {
    connection: Connection,
    cache: Cache,
    /// Sums of the batches of this transaction that are not written yet.
    pub(super) sums: Sums,
}

impl State {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            cache: Cache::default(),
            sums: Sums::default(),
        }
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    fn run(&self, sql: &str) -> Result<(), StoreError> {
        Ok(self.connection.execute_batch(sql)?)
    }
}

impl Transactions for State {
    fn begin(&mut self) -> Result<(), StoreError> {
        self.sums = Sums::default();
        self.run("BEGIN IMMEDIATE")
    }

    fn save(&mut self) -> Result<(), StoreError> {
        self.run("SAVEPOINT change")
    }

    fn undo(&mut self) -> Result<(), StoreError> {
        self.run("ROLLBACK TO change")
    }

    fn keep(&mut self) -> Result<(), StoreError> {
        self.run("RELEASE change")?;
        match self.sums.is_large() {
            true => self.write_sums(),
            false => Ok(()),
        }
    }

    fn write_sums(&mut self) -> Result<(), StoreError> {
        sums::add(&self.connection, &std::mem::take(&mut self.sums))
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        self.run("COMMIT")
    }

    fn abandon(&mut self) {
        if !self.connection.is_autocommit() {
            // If even this fails, the next transaction cannot begin, and its callers hear of it.
            let _ = self.run("ROLLBACK");
        }
    }

    fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }
}
