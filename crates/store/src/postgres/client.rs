//! A client of PostgreSQL whose calls block, with a time limit for a server that takes a connection and says nothing: the
//! one of the `postgres` crate has none, and waits for ever.

use std::time::Duration;

use futures_util::future::{join, join_all};
use postgres::tls::{MakeTlsConnect, TlsConnect};
use postgres::types::ToSql;
use postgres::{Row, Socket, Statement};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio_postgres::Config;

use crate::error::StoreError;

/// Time in which a connection that is given up says so to the server.
const LEAVE: Duration = Duration::from_secs(1);

/// A connection, and what drives it while a call waits.
pub(super) struct Client {
    runtime: Runtime,
    /// `None` once it is given up.
    client: Option<tokio_postgres::Client>,
    driven: JoinHandle<()>,
}

impl Client {
    /// Connects within `patience`, all hosts of the URL together.
    pub(super) fn connect<T>(
        config: &Config,
        tls: T,
        patience: Duration,
    ) -> Result<Self, StoreError>
    where
        T: MakeTlsConnect<Socket> + Send + 'static,
        T::TlsConnect: Send,
        T::Stream: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|_no_descriptors| StoreError::Stopped)?;
        let connected = runtime.block_on(async {
            let connected = tokio::time::timeout(patience, config.connect(tls));
            connected.await
        });
        let seconds = patience.as_secs();
        let (client, connection) = connected.map_err(|_late| StoreError::Silent { seconds })??;
        let driven = runtime.spawn(async {
            // Calls fail with what ends it.
            let _ = connection.await;
        });
        Ok(Self {
            runtime,
            client: Some(client),
            driven,
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        let client = self.client.as_ref();
        client.is_none_or(tokio_postgres::Client::is_closed)
    }

    fn parts(&self) -> Result<(&Runtime, &tokio_postgres::Client), StoreError> {
        let client = self.client.as_ref().ok_or(StoreError::Stopped)?;
        Ok((&self.runtime, client))
    }

    pub(super) fn batch_execute(&mut self, sql: &str) -> Result<(), StoreError> {
        let (runtime, client) = self.parts()?;
        Ok(runtime.block_on(client.batch_execute(sql))?)
    }

    pub(super) fn prepare(&mut self, sql: &str) -> Result<Statement, StoreError> {
        let (runtime, client) = self.parts()?;
        Ok(runtime.block_on(client.prepare(sql))?)
    }

    pub(super) fn query(
        &mut self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let (runtime, client) = self.parts()?;
        Ok(runtime.block_on(client.query(statement, values))?)
    }

    /// Runs statements without values, and then one with values, which is sent at once: one round trip for both. Returns whether
    /// those ran, and the rows.
    pub(super) fn query_after(
        &mut self,
        before: &str,
        (statement, values): (&Statement, &[&(dyn ToSql + Sync)]),
    ) -> (Result<(), StoreError>, Result<Vec<Row>, StoreError>) {
        let (runtime, client) = match self.parts() {
            Ok(parts) => parts,
            Err(error) => return (Err(error), Err(StoreError::Stopped)),
        };
        // The first poll of each sends it, in this order.
        let both = join(
            client.batch_execute(before),
            client.query(statement, values),
        );
        let (done, rows) = runtime.block_on(both);
        (done.map_err(Into::into), rows.map_err(Into::into))
    }

    /// Runs statements one after the other that are sent at once: one round trip for all. Fails with the first error; within a
    /// transaction, those after it have failed, too.
    pub(super) fn execute_all(
        &mut self,
        statements: &[(Statement, &[&(dyn ToSql + Sync)])],
    ) -> Result<(), StoreError> {
        let (runtime, client) = self.parts()?;
        let sent = statements
            .iter()
            .map(|(statement, values)| client.execute(statement, values));
        let answers = runtime.block_on(join_all(sent));
        for answer in answers {
            answer?;
        }
        Ok(())
    }

    /// Returns the number of rows that it changed.
    pub(super) fn execute(
        &mut self,
        statement: &Statement,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, StoreError> {
        let (runtime, client) = self.parts()?;
        Ok(runtime.block_on(client.execute(statement, values))?)
    }
}

impl Drop for Client {
    /// Says goodbye, so that the server does not log a lost connection.
    fn drop(&mut self) {
        self.client = None;
        let driven = &mut self.driven;
        // Fails only if the server does not listen.
        let _ = self
            .runtime
            .block_on(async { tokio::time::timeout(LEAVE, driven).await });
    }
}
