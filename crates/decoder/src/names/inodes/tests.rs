use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use event::Tid;

use super::*;
use crate::names::Mounts;
use crate::process_inspector::ProcessInspector;

#[test]
fn folders_of_hidden_files_are_named_and_the_root_is_not() {
    let paths = ["/etc/.", "/.", "/", "/..", "/etc/", "/etc/.x", "/a/.."];
    let paths = paths.map(|path| path.as_bytes().to_vec());
    assert_eq!(plain(&paths), [&b"/a"[..], b"/etc", b"/etc/.x"]);
}

#[test]
fn a_name_that_ends_like_that_of_a_deleted_file_is_kept() {
    let inspector = ProcessInspector::new().unwrap();
    let mounts = Mounts::default();
    let own = Tid(std::process::id().cast_signed());
    let caller = Caller::new(own, &inspector, &mounts, true);
    let folder = std::env::temp_dir().canonicalize().unwrap();
    let folder = folder.join(format!("deleted-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let (path, other) = (folder.join("x (deleted)"), folder.join("other"));
    let open = || OwnedFd::from(std::fs::File::open(&path).unwrap());
    let name = |file: &OwnedFd| path_of(file, caller).unwrap();
    let raw = path.as_os_str().as_bytes();
    std::fs::write(&path, "").unwrap();
    let file = open();
    assert_eq!(name(&file), raw);
    std::fs::hard_link(&path, &other).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(name(&file), raw, "deleted, with another name left");
    std::fs::write(&path, "").unwrap();
    let later = open();
    assert_eq!(name(&file), raw, "deleted, and replaced");
    assert_eq!(name(&later), raw);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(name(&later), raw, "deleted");
    assert_eq!(name(&file), raw);
}

#[test]
fn a_caller_that_ends_during_a_lookup_leaves_nothing_unknown_to_others() {
    let inspector = ProcessInspector::new().unwrap();
    let mounts = Mounts::default();
    let paths = [
        "/etc/passwd",
        "/proc/self/environ",
        "/proc/thread-self/maps",
    ];
    let paths = paths.map(|path| path.as_bytes().to_vec());
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    let tid = Tid(child.id().cast_signed());
    let look_as = |shares_root| {
        let caller = Caller::new(tid, &inspector, &mounts, shares_root);
        look(caller, &paths, &[], &mut StatIdentifier)
    };
    let alive = look_as(true);
    assert!(!alive.has_unknown && !alive.has_ended);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    let ended = look_as(true);
    assert!(!ended.has_unknown && !ended.has_ended);
    assert!(ended.files.iter().all(|file| file.is_there));
    assert_eq!(ended.files[0], alive.files[0]);
    // In a root of its own nothing can be looked up, which the next caller has to do.
    let elsewhere = look_as(false);
    assert!(elsewhere.has_unknown && elsewhere.has_ended);
}
