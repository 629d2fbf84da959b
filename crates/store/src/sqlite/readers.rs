//! Connections that only read.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use crate::error::StoreError;

/// Number of idle connections that are kept.
const KEPT: usize = 4;

/// Idle connections that only read. As many are open as callers read at the same time.
#[derive(Debug)]
pub(super) struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            idle: Mutex::default(),
        }
    }

    /// Runs `read` with a connection.
    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        let connection = match idle {
            Some(connection) => connection,
            None => self.open()?,
        };
        let result = read(&connection);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
        result
    }

    fn open(&self) -> Result<Connection, StoreError> {
        let connection = super::connect(&self.path)?;
        // A defect in a query cannot change the store.
        connection.pragma_update(None, "query_only", true)?;
        connection.pragma_update(None, "cache_size", -4096)?;
        connection.set_prepared_statement_cache_capacity(32);
        Ok(connection)
    }
}
