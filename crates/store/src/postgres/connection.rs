//! Connections to a PostgreSQL server.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use postgres::config::{Host, SslMode};
use postgres::types::ToSql;
use postgres::{NoTls, Row, Statement};
use tokio_postgres::Config;

use super::client::Client;
use super::needs::Needs;
use super::tls::{Parameters, Tls, wrong};
use crate::error::StoreError;

/// Schema of the store in its database.
pub(super) const SCHEMA: &str = "tollgate";

/// Time limit for a TCP connection, and for a connection that has been let in.
const CONNECT: Duration = Duration::from_secs(10);
const LET_IN: Duration = Duration::from_secs(20);

/// Time after which a server that no longer confirms what it gets is given up. The kernel's is 15 minutes.
const UNCONFIRMED: Duration = Duration::from_secs(30);

/// When a connection without traffic is tried, how often, and how many times in vain. The kernel begins after 2 hours.
const IDLE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_secs(10);
const RETRIES: u32 = 3;

/// Statements that a connection keeps prepared. Filters make a bounded number of different ones.
const PREPARED: usize = 256;

/// Number of idle connections that are kept.
const KEPT: usize = 4;

/// Values of a statement.
pub(super) type Values<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Where the database is.
#[derive(Clone)]
pub(super) struct Target {
    config: Config,
    tls: Tls,
    /// A host is another machine.
    is_elsewhere: bool,
    /// What messages say: never the password.
    name: String,
    /// Time limit for a connection that has been let in.
    patience: Duration,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Target").field(&self.name).finish()
    }
}

impl Target {
    /// Reads a URL such as `postgres://user@localhost/tollgate`. A password that the URL lacks is taken from the
    /// variable `PGPASSWORD`.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        let (url, parameters) = Parameters::take(url)?;
        let mut config = Config::from_str(&url).map_err(|error| {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            wrong(cause.unwrap_or_else(|| error.to_string()))
        })?;
        if config.get_hosts().is_empty() {
            return Err(wrong("it names no host".to_owned()));
        }
        let distant = config.get_hosts().iter().any(|host| !is_here(host));
        let is_elsewhere = distant || config.get_hostaddrs().iter().any(|it| !it.is_loopback());
        let tls = Tls::new(parameters, is_elsewhere)?;
        // A server encrypts nothing on a socket.
        let is_socket = |host: &Host| matches!(host, Host::Unix(_));
        config.ssl_mode(match config.get_hosts().iter().all(is_socket) {
            true => SslMode::Disable,
            false => tls.mode(),
        });
        if config.get_password().is_none()
            && let Ok(password) = std::env::var("PGPASSWORD")
        {
            config.password(password);
        }
        config.connect_timeout(CONNECT).application_name("tollgate");
        notice_a_vanished_server(&mut config, &url);
        let database = config.get_dbname().or(config.get_user());
        let name = format!("PostgreSQL, database {}", database.unwrap_or("(default)"));
        Ok(Self {
            config,
            tls,
            is_elsewhere,
            name,
            patience: LET_IN,
        })
    }

    /// Returns the name of the database for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns what connections need.
    pub(super) fn needs(&self) -> Needs {
        Needs::of(&self.config, &self.tls)
    }

    /// Returns what somebody on the way to the server can do, or `None`.
    pub(super) fn risk(&self) -> Option<&'static str> {
        self.tls.risk().filter(|_| self.is_elsewhere)
    }

    /// Connects, and says with `setup` how the session works.
    fn connect(&self, setup: &str) -> Result<Connection, StoreError> {
        let mut client = match self.config.get_ssl_mode() {
            SslMode::Disable => Client::connect(&self.config, NoTls, self.patience)?,
            _ => Client::connect(&self.config, self.tls.connector()?, self.patience)?,
        };
        let setup = format!("SET search_path TO {SCHEMA}; SET jit = off; {setup}");
        client.batch_execute(&setup)?;
        Ok(Connection {
            client,
            prepared: HashMap::new(),
        })
    }

    /// Connects to write. A commit waits for the disk, whatever the server's default is.
    pub(super) fn writer(&self) -> Result<Connection, StoreError> {
        // A collector that is stopped in a transaction must not keep the others from theirs.
        self.connect(
            "SET synchronous_commit = on; SET lock_timeout = '30s';
             SET idle_in_transaction_session_timeout = '30s'",
        )
    }

    /// Connects to read. A defect in a query cannot change the store, nor keep the server busy for ever.
    fn reader(&self) -> Result<Connection, StoreError> {
        self.connect(
            "SET default_transaction_read_only = on; SET statement_timeout = '60s';
             SET plan_cache_mode = force_custom_plan",
        )
    }
}

/// Lets the kernel notice a server that has gone without a word, as with its machine or a firewall between, unless the URL
/// says when.
fn notice_a_vanished_server(config: &mut Config, url: &str) {
    let parameters = || url.rsplit_once('?').map(|(_, all)| all.split('&'));
    let says = |name: &str| {
        let found = |it: &str| it.split('=').next() == Some(name);
        parameters().is_some_and(|mut all| all.any(found))
    };
    if !says("tcp_user_timeout") {
        config.tcp_user_timeout(UNCONFIRMED);
    }
    if !says("keepalives_idle") {
        config.keepalives_idle(IDLE);
    }
    if !says("keepalives_interval") {
        config.keepalives_interval(INTERVAL);
    }
    if !says("keepalives_retries") {
        config.keepalives_retries(RETRIES);
    }
}

fn is_here(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
        }
    }
}

/// A connection with its prepared statements.
pub(super) struct Connection {
    client: Client,
    prepared: HashMap<String, Statement>,
}

impl Connection {
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs statements without values.
    pub(super) fn batch(&mut self, sql: &str) -> Result<(), StoreError> {
        self.client.batch_execute(sql)
    }

    fn prepared(&mut self, sql: &str) -> Result<Statement, StoreError> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        if self.prepared.len() >= PREPARED {
            self.prepared.clear();
        }
        let statement = self.client.prepare(sql)?;
        self.prepared.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    pub(super) fn query(&mut self, sql: &str, values: Values<'_>) -> Result<Vec<Row>, StoreError> {
        let statement = self.prepared(sql)?;
        self.client.query(&statement, values)
    }

    /// Returns the first row.
    pub(super) fn first(
        &mut self,
        sql: &str,
        values: Values<'_>,
    ) -> Result<Option<Row>, StoreError> {
        Ok(self.query(sql, values)?.into_iter().next())
    }

    /// Returns the number in the first column of the only row, 0 for `NULL`.
    pub(super) fn number(&mut self, sql: &str, values: Values<'_>) -> Result<i64, StoreError> {
        let row = self.first(sql, values)?;
        let number = row
            .map(|row| row.try_get::<_, Option<i64>>(0))
            .transpose()?;
        Ok(number.flatten().unwrap_or(0))
    }

    /// Returns true if a statement need not be prepared.
    pub(super) fn has_prepared(&self, sql: &str) -> bool {
        self.prepared.contains_key(sql)
    }

    /// Runs statements without values, and a query after them, in one round trip. Returns whether those ran, and the first row.
    pub(super) fn first_after(
        &mut self,
        before: &str,
        (sql, values): (&str, Values<'_>),
    ) -> (Result<(), StoreError>, Result<Option<Row>, StoreError>) {
        let statement = match self.prepared(sql) {
            Ok(statement) => statement,
            Err(error) => return (Err(error), Err(StoreError::Stopped)),
        };
        let (done, rows) = self.client.query_after(before, (&statement, values));
        (done, rows.map(|rows| rows.into_iter().next()))
    }

    /// Runs statements one after the other in one round trip. Fails with the first error.
    pub(super) fn execute_all(
        &mut self,
        statements: &[(&str, Values<'_>)],
    ) -> Result<(), StoreError> {
        let mut prepared = Vec::new();
        for (sql, values) in statements {
            prepared.push((self.prepared(sql)?, *values));
        }
        self.client.execute_all(&prepared)
    }

    /// Returns the number of rows that it changed.
    pub(super) fn execute(&mut self, sql: &str, values: Values<'_>) -> Result<u64, StoreError> {
        let statement = self.prepared(sql)?;
        self.client.execute(&statement, values)
    }
}

/// Idle connections that only read. As many are open as callers read at the same time.
pub(super) struct Readers {
    target: Target,
    idle: Mutex<Vec<Connection>>,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Readers").field(&self.target).finish()
    }
}

impl Readers {
    pub(super) fn new(target: Target) -> Self {
        Self {
            target,
            idle: Mutex::default(),
        }
    }

    /// Runs `read` with a connection. If the server has ended an idle one since, runs it again with a new one.
    pub(super) fn with<T>(
        &self,
        read: impl Fn(&mut Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = || {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            idle.pop()
        };
        while let Some(mut connection) = idle() {
            let result = read(&mut connection);
            if connection.is_closed() {
                continue;
            }
            self.give_back(connection);
            return result;
        }
        let mut connection = self.target.reader()?;
        let result = read(&mut connection);
        if !connection.is_closed() {
            self.give_back(connection);
        }
        result
    }

    fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    /// Returns the port of a server that takes connections, says `begin` to each question, and no more.
    fn silent(begin: &'static [u8]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for mut stream in listener.incoming().flatten() {
                let mut question = [0; 8];
                stream.read_exact(&mut question).expect("a question");
                stream.write_all(begin).expect("it listens");
                kept.push(stream);
            }
        });
        port
    }

    #[test]
    fn a_server_that_accepts_and_says_nothing_is_given_up() {
        for (begin, query) in [
            (&b""[..], "sslmode=disable"),
            (b"", "sslmode=prefer"),
            (b"", "sslmode=require"),
            // It agrees to TLS.
            (b"S", "sslmode=require"),
        ] {
            let url = format!("postgres://u@127.0.0.1:{}/db?{query}", silent(begin));
            let mut target = Target::parse(&url).expect(query);
            target.patience = Duration::from_millis(300);
            let began = Instant::now();
            let error = target.writer().err().expect(query);
            assert!(matches!(error, StoreError::Silent { .. }), "{error}");
            assert!(began.elapsed() < Duration::from_secs(5), "{query}");
        }
    }

    #[test]
    fn a_server_that_vanishes_is_noticed_unless_the_url_says_when() {
        let of = |query: &str| {
            let url = format!("postgres://u:p?@192.0.2.1/db{query}");
            let config = Target::parse(&url).expect(query).config;
            (
                config.get_tcp_user_timeout().map(Duration::as_secs),
                config.get_keepalives_idle().as_secs(),
                config.get_keepalives_interval().map(|it| it.as_secs()),
                config.get_keepalives_retries(),
            )
        };
        assert_eq!(of(""), (Some(30), 30, Some(10), Some(3)));
        let query = "?keepalives_idle=7200&keepalives_retries=9&sslmode=require&tcp_user_timeout=0";
        assert_eq!(of(query), (None, 7200, Some(10), Some(9)));
        assert_eq!(
            of("?tcp_user_timeout=5&keepalives_interval=1"),
            (Some(5), 30, Some(1), Some(3))
        );
    }

    #[test]
    fn no_message_has_the_password_and_wrong_urls_are_refused() {
        for good in [
            "postgres://u:secret@localhost/db",
            "postgresql://u:secret@127.0.0.1:5433/db",
            "postgres://u:secret@[::1]/db",
            "postgres://u:secret@%2Frun%2Fpostgresql/db",
            "postgres://u:secret@db.example/db?sslmode=require",
        ] {
            let target = Target::parse(good).expect(good);
            let text = format!("{target:?} {}", target.name());
            assert!(
                text.contains("database db") && !text.contains("secret"),
                "{text}"
            );
        }
        for (bad, expected) in [
            ("postgres://u:secret@db.example/db?sslmode=on", "sslmode"),
            ("postgres://u:secret@db.example/db?sslcrl=f", "sslcrl"),
            ("postgres://u:secret@localhost:port/db", ""),
            ("postgres:///db", "no host"),
        ] {
            let error = Target::parse(bad).expect_err(bad).to_string();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_server_elsewhere_is_verified_unless_the_url_says_otherwise() {
        for (url, mode, is_risky) in [
            ("postgres://u@localhost/db", SslMode::Prefer, false),
            (
                "postgres://u@%2Frun%2Fpostgresql/db",
                SslMode::Disable,
                false,
            ),
            (
                "postgres://u@%2Frun/db?sslmode=verify-full",
                SslMode::Disable,
                false,
            ),
            ("postgres://u@db.example/db", SslMode::Require, false),
            ("postgres://u@192.0.2.1/db", SslMode::Require, false),
            (
                "postgres://u@localhost,192.0.2.1/db",
                SslMode::Require,
                false,
            ),
            (
                "postgres://u@localhost/db?hostaddr=192.0.2.1",
                SslMode::Require,
                false,
            ),
            (
                "postgres://u@db.example/db?sslmode=disable",
                SslMode::Disable,
                true,
            ),
            (
                "postgres://u@localhost/db?sslmode=disable",
                SslMode::Disable,
                false,
            ),
            (
                "postgres://u@db.example/db?sslmode=require",
                SslMode::Require,
                true,
            ),
        ] {
            let target = Target::parse(url).expect(url);
            assert_eq!(target.config.get_ssl_mode(), mode, "{url}");
            assert_eq!(target.risk().is_some(), is_risky, "{url}");
        }
    }
}
