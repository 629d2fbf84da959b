//! The schema and its versions.

use std::path::PathBuf;

use super::connection::{Connection, SCHEMA, Target};
use super::writer::LOCK;
use crate::error::StoreError;

/// Statements that lead from one version of the schema to the next. A released one never changes.
const MIGRATIONS: &[&str] = &[
    include_str!("schema_1.sql"),
    include_str!("schema_2.sql"),
    include_str!("schema_3.sql"),
    include_str!("schema_4.sql"),
    include_str!("schema_5.sql"),
    include_str!("schema_6.sql"),
    include_str!("schema_7.sql"),
    include_str!("schema_8.sql"),
];

/// Latest version of the schema that this build knows: the number of migrations.
pub(super) const LATEST: i64 = 8;

const _: () = assert!(MIGRATIONS.len() == 8, "LATEST is the number of migrations");

/// Creates the schema, or brings an older one up to date in one transaction.
pub(super) fn prepare(target: &Target, connection: &mut Connection) -> Result<(), StoreError> {
    // Replicas that start at the same time wait for each other.
    connection.batch(&format!("BEGIN; SELECT pg_advisory_xact_lock({LOCK})"))?;
    let migrated = migrate(target, connection);
    connection.batch(match migrated {
        Ok(()) => "COMMIT",
        Err(_) => "ROLLBACK",
    })?;
    migrated
}

fn migrate(target: &Target, connection: &mut Connection) -> Result<(), StoreError> {
    let path = || PathBuf::from(target.name());
    let encoding = connection.query("SHOW server_encoding", &[])?;
    let encoding = encoding.first().map(|row| row.try_get::<_, String>(0));
    let found = encoding.transpose()?;
    if found.as_deref() != Some("UTF8") {
        return Err(StoreError::Encoding {
            path: path(),
            found: found.unwrap_or_else(|| "unknown".to_owned()),
        });
    }
    let version = version(connection)?;
    if version > LATEST {
        return Err(StoreError::Newer {
            path: path(),
            found: version,
            known: LATEST,
        });
    }
    if version == LATEST {
        return Ok(());
    }
    if version == 0 {
        let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace($1)::oid";
        if connection.number(tables, &[&SCHEMA])? > 0 {
            return Err(StoreError::Foreign { path: path() });
        }
        connection.batch(&format!("CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))?;
    }
    let from = usize::try_from(version).unwrap_or(0);
    for migration in MIGRATIONS.iter().skip(from) {
        connection.batch(migration)?;
    }
    connection.batch(&format!(
        "INSERT INTO store (version) VALUES ({LATEST})
         ON CONFLICT (is_single) DO UPDATE SET version = excluded.version"
    ))
}

/// Returns the version of the schema, 0 without one.
fn version(connection: &mut Connection) -> Result<i64, StoreError> {
    let exists = "SELECT count(*) FROM pg_class WHERE oid = to_regclass($1)::oid";
    if connection.number(exists, &[&format!("{SCHEMA}.store")])? == 0 {
        return Ok(0);
    }
    connection.number("SELECT version FROM store", &[])
}
