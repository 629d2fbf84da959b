//! Files: backups, what is no store, and older schemas.

use super::*;
use crate::account::People;
use crate::bundles::Bundles;
use crate::intake::HOUR_NS as HOUR;
use crate::model::{Filter, Scope};
use crate::number::now_ns;
use crate::tests::{bodies, store_one};

#[test]
fn a_backup_is_a_store_and_a_damaged_one_is_refused() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = |name: &str| folder.path().join(name);
    let store: Arc<dyn Store> = SqliteStore::open(&path("s.db"))
        .expect("a new store")
        .into();
    store_one(&*store);
    let mode = |name: &str| {
        let metadata = std::fs::metadata(path(name)).expect("it is there");
        std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777
    };
    store.backup(&path("b")).expect("a new file");
    assert_eq!(["s.db", "s.db-wal", "b"].map(mode), [0o600; 3]);
    let again = store.backup(&path("b"));
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
        text.contains("schema 99, this build knows up to 9"),
        "{text}"
    );
}

#[test]
fn a_store_of_the_first_schema_keeps_its_alerts() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("s.db");
    let old = rusqlite::Connection::open(&path).expect("a new file");
    old.execute_batch(include_str!("schema_1.sql"))
        .expect("a schema");
    old.execute_batch(
        "PRAGMA application_id = 0x746f6c6c; PRAGMA user_version = 1;
         INSERT INTO groups (rule, severity, program, object) VALUES ('r', 4, 'p', 'o');
         INSERT INTO hosts (name) VALUES ('h');
         INSERT INTO counts VALUES (0, 1, 1, 7, 1, 2);",
    )
    .expect("rows");
    drop(old);
    let store = SqliteStore::open(&path).expect("it is brought up to date");
    let groups = store.groups(&Filter::default()).expect("readable");
    assert_eq!((groups[0].count, &*groups[0].assignee), (7, ""));
    assert!(store.users().expect("readable").is_empty());
}

#[test]
fn a_store_of_the_second_schema_loses_links_of_nobody() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("s.db");
    let old = rusqlite::Connection::open(&path).expect("a new file");
    for schema in [include_str!("schema_1.sql"), include_str!("schema_2.sql")] {
        old.execute_batch(schema).expect("a schema");
    }
    old.execute_batch(&format!(
        "PRAGMA application_id = 0x746f6c6c; PRAGMA user_version = 2;
         INSERT INTO users (name, role, password, created_ns, created_by) VALUES ('ann', 'admin', '$', 1, 'x');
         INSERT INTO invitations VALUES (x'{one}', 'admin', 'ann', {later}),
             (x'{two}', 'admin', 'removed', {later}), (x'{three}', 'admin', 'uid 0', {later});",
        one = "01".repeat(32),
        two = "02".repeat(32),
        three = "03".repeat(32),
        later = now_ns() + HOUR,
    ))
    .expect("rows");
    drop(old);
    let store = SqliteStore::open(&path).expect("it is brought up to date");
    let is_open = |hash: u8| store.invitation(&[hash; 32]).expect("readable").is_some();
    assert!(is_open(1) && !is_open(2) && !is_open(3));
    let ann = store.user("ann").expect("readable").expect("it is kept");
    assert_eq!(ann.scope, Scope::Admin);
}

#[test]
fn roll_outs_of_a_store_without_selectors_are_for_all_agents_of_their_class() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("s.db");
    let old = rusqlite::Connection::open(&path).expect("a new file");
    for schema in [
        include_str!("schema_1.sql"),
        include_str!("schema_2.sql"),
        include_str!("schema_3.sql"),
        include_str!("schema_4.sql"),
        include_str!("schema_5.sql"),
    ] {
        old.execute_batch(schema).expect("a schema");
    }
    old.execute_batch(
        "PRAGMA application_id = 0x746f6c6c; PRAGMA user_version = 5;
         INSERT INTO bundles VALUES (3, 7, 'd7', 'k', 't', 1, 'ann'), (4, 8, 'd8', 'k', 't', 1, 'ann');
         INSERT INTO rollouts VALUES ('web', 4, 3, 10, 0, NULL, NULL, 'why', 5, 'ann');
         INSERT INTO tokens VALUES (1, 'web', '', x'01', 1, 'ann', NULL, NULL);
         INSERT INTO agents (id, token, hash, host, first_seen_ns, last_seen_ns) VALUES (9, 1, x'02', 'h', 1, 1);",
    )
    .expect("rows");
    drop(old);
    let store = SqliteStore::open(&path).expect("it is brought up to date");
    let rollouts = store.rollouts().expect("readable");
    let rollout = &rollouts[0];
    assert_eq!(
        (rollouts.len(), rollout.target.to_string()),
        (1, "class web".to_owned())
    );
    assert_eq!(
        (rollout.bundle.version, rollout.percent, rollout.priority),
        (8, 10, 0)
    );
    let previous = rollout.previous.as_ref().expect("the one before");
    assert_eq!(
        (
            previous.version,
            rollout.halted.as_deref(),
            rollout.health.agents
        ),
        (7, Some("why"), 1)
    );
    assert!(store.agents().expect("readable")[0].labels.is_empty());
    assert_eq!(store.tokens().expect("readable")[0].certificate, None);
}

/// Opens a store, has SQLite put something into a temporary file, and returns the folders of all such files of this process.
fn folders_of_temporary_files(path: &Path) -> Vec<PathBuf> {
    let _store = SqliteStore::open(path).expect("a store");
    let connection = connect(path).expect("it is there");
    // One page of a temporary table stays in memory.
    connection
        .execute_batch(
            "CREATE TEMP TABLE t (x); PRAGMA temp.cache_size = 1;
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             INSERT INTO t SELECT randomblob(1000) FROM n",
        )
        .expect("there is room");
    let open = std::fs::read_dir("/proc/self/fd").expect("our own");
    let open = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let is_temporary = |file: &PathBuf| {
        let name = file.file_name().map(|name| name.to_string_lossy());
        name.is_some_and(|name| name.ends_with(" (deleted)"))
    };
    let temporary = open.filter(is_temporary);
    temporary
        .filter_map(|file| file.parent().map(Path::to_owned))
        .collect()
}

#[test]
fn what_does_not_fit_into_memory_is_beside_the_store() {
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("s.db");
    // The folder holds for the process: other tests open stores, too.
    let mut tries = (0..20).map(|_| folders_of_temporary_files(&path));
    assert!(tries.any(|folders| folders.iter().any(|found| found == folder.path())));
}
