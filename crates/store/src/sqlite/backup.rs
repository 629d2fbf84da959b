//! Backup and restore.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::schema;
use crate::error::StoreError;

/// Writes a consistent, compact copy. In write-ahead mode this blocks no writer.
pub(super) fn write(connection: &Connection, to: &Path) -> Result<(), StoreError> {
    // SQLite fills an empty file, and would create one that everybody can read.
    create(to)?;
    let target = to.to_string_lossy();
    let written = connection.execute("VACUUM INTO ?1", [&*target]);
    if let Err(error) = written {
        // Half a backup must not be taken for one.
        let _ = fs::remove_file(to);
        return Err(error.into());
    }
    File::open(to)
        .and_then(|file| file.sync_all())
        .map_err(|source| file_error("write", to, source))
}

pub(super) fn restore(backup: &Path, path: &Path) -> Result<(), StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    File::open(backup).map_err(|source| file_error("read", backup, source))?;
    let connection = Connection::open_with_flags(backup, flags)?;
    check(&connection, backup)?;
    drop(connection);
    let mut target = create(path)?;
    let copied = File::open(backup).and_then(|mut source| {
        io::copy(&mut source, &mut target)?;
        target.sync_all()
    });
    copied.map_err(|source| {
        let _ = fs::remove_file(path);
        file_error("write", path, source)
    })
}

/// Checks that a file is an undamaged store of a version that this build knows.
fn check(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let damaged = |problem: String| StoreError::Damaged {
        path: path.to_owned(),
        problem,
    };
    let version = schema::check(connection, path)
        .map_err(|error| error.foreign_if_no_database(path))
        .map_err(|error| match error {
            StoreError::Database(cause) => damaged(cause.to_string()),
            other => other,
        })?;
    if version == 0 {
        return Err(damaged("it is empty".to_owned()));
    }
    let finding = connection.query_row("PRAGMA integrity_check(1)", [], |row| {
        row.get::<_, String>(0)
    });
    match finding {
        Ok(finding) if finding == "ok" => Ok(()),
        Ok(finding) => Err(damaged(finding)),
        Err(error) => Err(damaged(error.to_string())),
    }
}

/// Creates a file for its owner alone; refuses an existing one.
fn create(path: &Path) -> Result<File, StoreError> {
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    created.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => StoreError::Exists {
            path: path.to_owned(),
        },
        _ => file_error("create", path, source),
    })
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::File {
        action,
        path: path.to_owned(),
        source,
    }
}
