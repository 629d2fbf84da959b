//! Files: backups, and what is no store.

use super::*;

#[test]
fn a_backup_is_a_store_and_a_damaged_one_is_refused() {
    let fixture = fixture();
    send(&fixture, Some(1), vec![alert(1, "r", "m")]);
    let path = |name: &str| fixture.folder.path().join(name);
    let mode = |name: &str| {
        let metadata = std::fs::metadata(path(name)).expect("it is there");
        std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777
    };
    fixture.store.backup(&path("b")).expect("a new file");
    assert_eq!(["s.db", "s.db-wal", "b"].map(mode), [0o600; 3]);
    let again = fixture.store.backup(&path("b"));
    assert!(matches!(again, Err(StoreError::Exists { .. })), "{again:?}");
    SqliteStore::restore(&path("b"), &path("r")).expect("it is undamaged");
    let restored = SqliteStore::open(&path("r")).expect("it is a store");
    assert_eq!(bodies(&restored, &Filter::default()).len(), 1);
    let over = SqliteStore::restore(&path("b"), &path("r"));
    assert!(matches!(over, Err(StoreError::Exists { .. })), "{over:?}");

    let mut bytes = std::fs::read(path("b")).expect("readable");
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xa5);
    std::fs::write(path("d"), bytes).expect("writable");
    let damaged = SqliteStore::restore(&path("d"), &path("n"));
    assert!(
        matches!(damaged, Err(StoreError::Damaged { .. })),
        "{damaged:?}"
    );
    assert!(!path("n").exists());
}

#[test]
fn a_foreign_file_and_a_newer_schema_are_refused() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("f");
    std::fs::write(&path, "no database at all, but long enough to look").expect("writable");
    let opened = SqliteStore::open(&path);
    assert!(
        matches!(opened, Err(StoreError::Foreign { .. })),
        "{opened:?}"
    );

    let path = folder.path().join("other.db");
    let other = Connection::open(&path).expect("a new file");
    other.execute_batch("CREATE TABLE t (x)").expect("writable");
    let opened = SqliteStore::open(&path);
    assert!(
        matches!(opened, Err(StoreError::Foreign { .. })),
        "{opened:?}"
    );

    let path = folder.path().join("newer.db");
    drop(SqliteStore::open(&path).expect("a new store"));
    let newer = Connection::open(&path).expect("it is there");
    newer
        .pragma_update(None, "user_version", 99)
        .expect("writable");
    let error = SqliteStore::open(&path).expect_err("a newer build wrote it");
    let text = error.to_string();
    assert!(
        text.contains("schema 99, this build knows up to 3"),
        "{text}"
    );
}
