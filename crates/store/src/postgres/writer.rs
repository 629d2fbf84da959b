//! What the thread that writes knows of a PostgreSQL database.
//!
//! Several collectors can write to one database, and none leads: each transaction holds one advisory lock. So numbers
//! of alerts are committed in their order, which a live tail relies on, and no two transactions wait for each other's
//! rows. A commit covers the batches of many agents, so the lock costs one writer at a time and not one alert at a
//! time.

use std::collections::BTreeSet;

use postgres::Row;

use super::connection::{Connection, Target, Values};
use super::sums;
use crate::error::StoreError;
use crate::intake::{Cache, Sums};
use crate::writer::{Transactions, explain};

/// Key of the advisory lock: "toll" in ASCII.
pub(crate) const LOCK: i64 = 0x746f_6c6c;

/// Marks the beginning of a change.
const MARK: &str = "SAVEPOINT change;";

/// The connection that writes, and what it need not look up.
pub(super) struct State {
    target: Target,
    /// `None` once the server has ended it; the next transaction connects again.
    connection: Option<Connection>,
    cache: Cache,
    /// Statements that go with the next ones: a round trip for each would cost more than what they do.
    unsent: String,
    /// Why statements that waited did not run. The newest mark is then that of a change before, which is not to be undone.
    unmarked: Option<String>,
    /// Sums of the batches of this transaction that are not written yet.
    pub(super) sums: Sums,
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
            unsent: String::new(),
            unmarked: None,
            sums: Sums::default(),
            days: BTreeSet::new(),
            deletions: 0,
        }
    }

    /// Returns the connection of this transaction, after what waits to be sent.
    pub(super) fn connection(&mut self) -> Result<&mut Connection, StoreError> {
        let connection = self.connection.as_mut().ok_or(StoreError::Stopped)?;
        if !self.unsent.is_empty() {
            let sent = connection.batch(&std::mem::take(&mut self.unsent));
            self.unmarked = sent.as_ref().err().map(explain);
            sent?;
        }
        Ok(connection)
    }

    /// Returns the first row of a query, in one round trip with what waits to be sent.
    pub(super) fn first(
        &mut self,
        sql: &str,
        values: Values<'_>,
    ) -> Result<Option<Row>, StoreError> {
        let connection = self.connection.as_mut().ok_or(StoreError::Stopped)?;
        // What cannot be prepared fails after the mark, so that this change alone is undone.
        if self.unsent.is_empty() || !connection.has_prepared(sql) {
            return self.connection()?.first(sql, values);
        }
        let unsent = std::mem::take(&mut self.unsent);
        let (sent, found) = connection.first_after(&unsent, (sql, values));
        self.unmarked = sent.as_ref().err().map(explain);
        sent?;
        found
    }

    /// Fails if a change has no mark of its own: the transaction has to end as a whole.
    fn check_mark(&self) -> Result<(), StoreError> {
        match self.unmarked.clone() {
            Some(cause) => Err(StoreError::Commit { cause }),
            None => Ok(()),
        }
    }

    /// Takes the mark of a change back that has done nothing so far. Returns false if the mark was sent.
    fn unmark(&mut self) -> bool {
        let Some(before) = self.unsent.strip_suffix(MARK) else {
            return false;
        };
        self.unsent.truncate(before.len());
        true
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
        self.sums = Sums::default();
        self.unsent.clear();
        self.unmarked = None;
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
        self.unsent.push_str(MARK);
        Ok(())
    }

    fn undo(&mut self) -> Result<(), StoreError> {
        self.check_mark()?;
        // A partition may have been made within the change.
        self.days.clear();
        match self.unsent.ends_with(MARK) {
            // It has done nothing.
            true => Ok(()),
            false => self.run("ROLLBACK TO change"),
        }
    }

    fn keep(&mut self) -> Result<(), StoreError> {
        self.check_mark()?;
        if !self.unmark() {
            self.unsent.push_str("RELEASE change;");
        }
        match self.sums.is_large() {
            true => self.write_sums(),
            false => Ok(()),
        }
    }

    fn write_sums(&mut self) -> Result<(), StoreError> {
        let sums = std::mem::take(&mut self.sums);
        match sums.is_empty() {
            true => Ok(()),
            false => sums::add(self.connection()?, &sums),
        }
    }

    fn commit(&mut self) -> Result<(), StoreError> {
        // Without an error before it: a transaction that has failed answers to COMMIT as if nothing had happened.
        self.unsent.push_str("COMMIT");
        self.connection().map(drop)
    }

    fn abandon(&mut self) {
        self.forget();
        self.unsent.clear();
        // A connection that cannot even do this is of no use: whatever it has begun ends with it.
        if self.run("ROLLBACK").is_err() {
            self.connection = None;
        }
    }

    fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }
}

#[cfg(test)]
mod tests {
    use testing::postgres::Server;

    use super::*;
    use crate::PostgresStore;

    const COUNT: &str = "SELECT count(*) FROM kept";

    fn add(state: &mut State, number: i64) {
        let add = "INSERT INTO kept VALUES ($1)";
        let connection = state.connection().expect("it runs");
        connection.execute(add, &[&number]).expect("added");
    }

    /// Returns a transaction with a change that has added a row, after the mark of the next one.
    fn begun(url: &str) -> State {
        PostgresStore::open(url).expect("a store");
        let target = Target::parse(url).expect("a URL");
        let mut connection = target.writer().expect("it runs");
        let table = "CREATE TABLE IF NOT EXISTS kept (number BIGINT)";
        connection.batch(table).expect("a table");
        let mut state = State::new(target, connection);
        state.begin().expect("begun");
        state.save().expect("marked");
        add(&mut state, 1);
        state.keep().expect("kept");
        state.save().expect("marked");
        state
    }

    fn count(state: &mut State) -> i64 {
        let connection = state.connection().expect("it runs");
        connection.number(COUNT, &[]).expect("a number")
    }

    #[test]
    fn a_statement_that_cannot_be_prepared_undoes_its_change_alone() {
        let server = Server::shared();
        let mut state = begun(&server.database());
        let missing = state.first("SELECT id FROM nowhere", &[]);
        missing.expect_err("there is no such table");
        state.undo().expect("undone");
        state.keep().expect("kept");
        state.save().expect("marked");
        add(&mut state, 3);
        state.keep().expect("kept");
        state.commit().expect("committed");
        assert_eq!(count(&mut state), 2);
    }

    #[test]
    fn a_change_whose_mark_was_not_sent_does_not_undo_the_one_before() {
        let server = Server::shared();
        let fail = [
            |state: &mut State| state.first(COUNT, &[]).map(drop),
            |state: &mut State| state.connection().map(drop),
        ];
        for fail in fail {
            let mut state = begun(&server.database());
            let connection = state.connection.as_mut().expect("it is there");
            connection.number(COUNT, &[]).expect("prepared");
            // The server refuses to release a mark that is not there.
            state.unsent.insert_str(0, "RELEASE nothing;");
            fail(&mut state).expect_err("refused");
            // Nobody hears that it is done: neither if the change takes notice, nor if it does not.
            state.undo().expect_err("no mark");
            state.keep().expect_err("no mark");
            state.abandon();
            assert_eq!(count(&mut state), 0);
            // The next transaction knows nothing of it.
            state.begin().expect("begun");
            state.save().expect("marked");
            add(&mut state, 2);
            state.keep().expect("kept");
            state.commit().expect("committed");
            assert_eq!(count(&mut state), 1);
        }
    }
}
