//! Hints which paths lead through a symbolic link.
//!
//! A hint saves a lookup that would fail. It decides nothing about the file. A wrong one costs a read of the file's path,
//! and where there is no file another lookup, after which it is forgotten.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};

/// Number of hints. A program loads a few dozen libraries.
const HINTS: usize = 512;

struct Hints {
    secret: RandomState,
    /// Hashes of paths, each in the slot of its lowest bits; 0 for none.
    paths: [u64; HINTS],
}

thread_local! {
    static KNOWN: RefCell<Hints> = RefCell::new(Hints {
        secret: RandomState::new(),
        paths: [0; HINTS],
    });
}

impl Hints {
    fn place(&self, path: &[u8]) -> (usize, u64) {
        let hash = self.secret.hash_one(path);
        let slot = usize::try_from(hash % HINTS as u64).unwrap_or(0);
        (slot, hash)
    }
}

/// Returns whether this thread has met a link at this path, as far as it remembers.
pub(super) fn was_met(path: &[u8]) -> bool {
    KNOWN.with_borrow(|known| {
        let (slot, hash) = known.place(path);
        known.paths[slot] == hash
    })
}

/// Notes that a path leads through a link.
pub(super) fn note(path: &[u8]) {
    KNOWN.with_borrow_mut(|known| {
        let (slot, hash) = known.place(path);
        known.paths[slot] = hash;
    });
}

/// Forgets a path that leads through no link.
pub(super) fn forget(path: &[u8]) {
    KNOWN.with_borrow_mut(|known| {
        let (slot, hash) = known.place(path);
        if known.paths[slot] == hash {
            known.paths[slot] = 0;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use event::Tid;

    use super::*;
    use crate::names::walk::{self, Caller, LookupFlags};
    use crate::names::{Identity, Mounts};
    use crate::process_inspector::ProcessInspector;

    #[test]
    fn a_hint_that_is_wrong_by_now_changes_nothing_but_who_names_the_file() {
        let inspector = ProcessInspector::new().unwrap();
        let mounts = Mounts::default();
        let own = Tid(std::process::id().cast_signed());
        let caller = Caller::new(own, &inspector, &mounts, true);
        // Without links of its own, such as that of /tmp.
        let folder = std::env::temp_dir().canonicalize().unwrap();
        let folder = folder.join(format!("links-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let (file, path) = (folder.join("file"), folder.join("path"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &path).unwrap();
        let raw = path.as_os_str().as_bytes();
        let find = || walk::find_again(caller, raw, None, LookupFlags::default());
        for _ in 0..2 {
            let found = find().unwrap();
            let direct = walk::find(caller, raw, None, LookupFlags::default()).unwrap();
            assert_eq!(Identity::of(&found.stat), Identity::of(&direct.stat));
            assert!(!found.is_direct && !found.is_plain);
            assert!(was_met(raw));
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        let found = find().unwrap();
        let direct = walk::find(caller, raw, None, LookupFlags::default()).unwrap();
        assert_eq!(Identity::of(&found.stat), Identity::of(&direct.stat));
        assert!(!found.is_direct && direct.is_direct);
        assert_eq!(crate::names::path(&found, caller).unwrap(), raw);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(find().err(), Some(rustix::io::Errno::NOENT));
        assert!(!was_met(raw), "neither a link nor a file is there");
        // A link to nothing is one all the same.
        std::os::unix::fs::symlink(folder.join("none"), &path).unwrap();
        for _ in 0..2 {
            assert_eq!(find().err(), Some(rustix::io::Errno::NOENT));
            assert!(was_met(raw));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_path_is_remembered_until_another_takes_its_place() {
        assert!(!was_met(b"/lib/a.so"));
        note(b"/lib/a.so");
        assert!(was_met(b"/lib/a.so"));
        assert!(!was_met(b"/lib/b.so"));
        forget(b"/lib/b.so");
        assert!(was_met(b"/lib/a.so"));
        forget(b"/lib/a.so");
        assert!(!was_met(b"/lib/a.so"));
        note(b"/lib/a.so");
        for number in 0..100 * HINTS {
            note(number.to_string().as_bytes());
        }
        assert!(!was_met(b"/lib/a.so"));
    }
}
