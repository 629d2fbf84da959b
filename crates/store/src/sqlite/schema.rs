//! The schema and its versions.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use crate::error::StoreError;

/// Marks a SQLite file as a store: "toll" in ASCII.
const APPLICATION: i32 = 0x746f_6c6c;

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
    include_str!("schema_9.sql"),
];

/// Latest version of the schema that this build knows: the number of migrations.
pub(super) const LATEST: i64 = 9;

const _: () = assert!(MIGRATIONS.len() == 9, "LATEST is the number of migrations");

/// Creates the schema, or brings an older one up to date in one transaction.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    // Before the first page is written; on an existing store it has no effect.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // Immediate, so that two processes do not both find an old schema.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version = check(&transaction, path)?;
    let from = usize::try_from(version).unwrap_or(0);
    for migration in MIGRATIONS.iter().skip(from) {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", LATEST)?;
    transaction.pragma_update(None, "application_id", APPLICATION)?;
    transaction.commit()?;
    Ok(())
}

/// Returns the version of the schema, 0 for an empty file.
pub(super) fn check(connection: &Connection, path: &Path) -> Result<i64, StoreError> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = number("application_id")?;
    let version = number("user_version")?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let is_empty = tables == 0 && application == 0 && version == 0;
    if application != i64::from(APPLICATION) && !is_empty {
        return Err(StoreError::Foreign {
            path: path.to_owned(),
        });
    }
    if version > LATEST {
        return Err(StoreError::Newer {
            path: path.to_owned(),
            found: version,
            known: LATEST,
        });
    }
    Ok(version)
}
