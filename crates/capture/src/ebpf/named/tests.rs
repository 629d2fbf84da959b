use super::*;

fn identity(inode: u64) -> Identity {
    Identity {
        inode,
        ..Identity::default()
    }
}

fn file(inode: u64, is_folder: bool) -> NamedFile {
    let mut file = NamedFile::default();
    file.identities.push(identity(inode));
    file.is_folder = is_folder;
    file.is_there = true;
    file
}

fn known() -> Known {
    let mut known = Known {
        paths: vec![b"/late".to_vec(), b"/late/new".to_vec()],
        is_named: vec![false, true],
        own: vec![file(1, true), NamedFile::default()],
        ..Known::default()
    };
    known.index();
    known
}

/// The programs know a missing file by its folder. A record that they wrote so may be evaluated after a lookup that
/// found the file.
#[test]
fn a_record_that_names_a_file_by_its_folder_outlives_the_lookup_that_finds_the_file() {
    let mut known = known();
    assert_eq!(known.names_of(identity(1), b"/new"), [b"/late/new"]);
    known.own[1] = file(2, false);
    known.index();
    assert!(!known.names.contains_key(&identity(1)));
    assert_eq!(known.names_of(identity(1), b"/new"), [b"/late/new"]);
    assert_eq!(known.names_of(identity(2), b""), [b"/late/new"]);
    // Rules do not name the folder itself.
    assert!(known.names_of(identity(1), b"").is_empty());
}

#[test]
fn a_record_of_a_file_that_was_replaced_keeps_its_name() {
    let mut known = known();
    known.own[1] = file(2, false);
    known.index();
    known.own[1] = file(3, false);
    known.index();
    assert_eq!(known.names_of(identity(2), b""), [b"/late/new"]);
    assert_eq!(known.names_of(identity(3), b""), [b"/late/new"]);
    let long_ago = Instant::now().checked_sub(FORMER_TIME).unwrap();
    for former in known.former.values_mut().flatten() {
        former.left = long_ago;
    }
    assert!(known.names_of(identity(2), b"").is_empty());
    known.index();
    assert!(known.former.is_empty());
}

#[test]
fn names_survive_a_change_of_the_indices_of_paths() {
    let mut known = known();
    known.forget_names();
    known.paths = vec![b"/other".to_vec()];
    known.is_named = vec![true];
    known.own = vec![NamedFile::default()];
    known.index();
    assert_eq!(known.names_of(identity(1), b"/new"), [b"/late/new"]);
}
