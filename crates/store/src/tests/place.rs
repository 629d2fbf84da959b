//! The databases of tests.

use std::any::Any;

use super::*;

/// Where the store is.
pub(super) enum Place {
    File(tempfile::TempDir),
    /// The server ends with its last user.
    Database {
        url: String,
        _server: Arc<Server>,
    },
}

impl Place {
    pub(super) fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::File(folder) => {
                let path = folder.path().join("s.db");
                SqliteStore::open(&path).expect("a store").into()
            }
            Self::Database { url, .. } => PostgresStore::open(url).expect("a store").into(),
        }
    }

    /// Makes the rows of the audit log older than the time in which a row of the same kind is not added.
    pub(super) fn let_a_minute_pass(&self) {
        let sql = "UPDATE audit SET time_ns = time_ns - 61000000000";
        self.run(sql, sql);
    }

    /// Runs SQL of the one or the other database.
    pub(super) fn run(&self, of_file: &str, of_database: &str) {
        match self {
            Self::File(folder) => {
                let connection = rusqlite::Connection::open(folder.path().join("s.db"));
                connection
                    .and_then(|connection| connection.execute_batch(of_file))
                    .expect("writable");
            }
            Self::Database { url, .. } => {
                let mut client =
                    ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
                client
                    .batch_execute(&format!("SET search_path TO tollgate; {of_database}"))
                    .expect("writable");
            }
        }
    }

    pub(super) fn fixture(self) -> Fixture {
        let store = self.open();
        let token = token(&*store, Scope::Agents("web".to_owned()), 1, None);
        let agent = enrol(&*store, token, 2, "box");
        Fixture {
            store,
            agent,
            place: self,
        }
    }
    /// Keeps the store's next transaction from its beginning until the value is dropped: what is submitted meanwhile shares it.
    pub(super) fn hold(&self) -> Box<dyn Any> {
        match self {
            Self::File(folder) => {
                let connection = rusqlite::Connection::open(folder.path().join("s.db"));
                let connection = connection.expect("it is there");
                let held = connection.execute_batch("BEGIN IMMEDIATE");
                held.expect("nobody writes");
                Box::new(connection)
            }
            Self::Database { url, .. } => {
                let mut client =
                    ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
                let key = crate::postgres::LOCK;
                let held = format!("BEGIN; SELECT pg_advisory_xact_lock({key})");
                client.batch_execute(&held).expect("it can wait");
                Box::new(client)
            }
        }
    }

    /// Lets [`Place::commits`] count from now on.
    pub(super) fn count_commits(&self) {
        self.run(
            "",
            "CREATE TABLE seen (transaction XID8 PRIMARY KEY);
             CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 INSERT INTO seen VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER see AFTER UPDATE ON agents FOR EACH ROW EXECUTE FUNCTION see()",
        );
    }

    /// Returns the number of commits. Differences count: the one database knows those of batches, the other one all of them.
    pub(super) fn commits(&self) -> usize {
        match self {
            Self::File(folder) => {
                let log = std::fs::read(folder.path().join("s.db-wal")).expect("readable");
                commits_of_log(&log)
            }
            Self::Database { url, .. } => {
                let mut client =
                    ::postgres::Client::connect(url, ::postgres::NoTls).expect("it runs");
                let row = client.query_one("SELECT count(*) FROM tollgate.seen", &[]);
                let count: i64 = row.expect("a count").get(0);
                usize::try_from(count).expect("a count")
            }
        }
    }
}

/// Returns the commits in a write-ahead log of SQLite: frames that say how large the file is then, and that are of this log and not
/// of the one before, by its salt.
fn commits_of_log(log: &[u8]) -> usize {
    const HEADER: usize = 32;
    const FRAME: usize = 24;
    let number = |at: &[u8]| u32::from_be_bytes(at.try_into().expect("four bytes"));
    let page = usize::try_from(number(&log[8..12])).expect("a size");
    let salt = &log[16..24];
    let frames = log[HEADER..].chunks_exact(FRAME + page);
    let of_log = frames.take_while(|frame| &frame[8..16] == salt);
    of_log.filter(|frame| number(&frame[4..8]) > 0).count()
}
