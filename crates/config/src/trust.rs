//! Files that only root can change.
//!
//! The configuration names programs to run and decides what is detected. When root runs this program, a file that nobody
//! named on the command line is read only if no other user can change or replace it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

/// Number of symbolic links that the kernel follows in one path (path_resolution(7)).
const MOST_LINKS: u32 = 40;
/// Bits of a mode (inode(7)).
const WRITABLE_BY_OTHERS: u32 = 0o002;
const WRITABLE_BY_GROUP: u32 = 0o020;
const STICKY: u32 = 0o1000;

/// A file that another user than root can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untrusted {
    /// The file, or a folder or link on the way to it.
    pub path: PathBuf,
    /// Who can change it.
    pub by: Changer,
}

/// Users that can change a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changer {
    /// Its owner.
    Owner(u32),
    /// Members of its group.
    Group(u32),
    /// All users.
    All,
}

impl Untrusted {
    /// Returns the cause for messages: who can change which file.
    #[must_use]
    pub fn cause(&self) -> String {
        let path = self.path.display();
        match self.by {
            Changer::Owner(uid) => format!("root must not trust it: user {uid} owns {path}"),
            Changer::Group(gid) => format!("root must not trust it: group {gid} can write {path}"),
            Changer::All => format!("root must not trust it: all users can write {path}"),
        }
    }

    /// Returns the command that mends it.
    #[must_use]
    pub fn fix(&self) -> String {
        let path = self.path.display();
        match self.by {
            Changer::Owner(_) => format!("`chown root:root {path}` after a look at its content"),
            Changer::Group(_) => format!("`chmod g-w {path}` after a look at its content"),
            Changer::All => format!("`chmod go-w {path}` after a look at its content"),
        }
    }
}

/// Returns true if this process runs as root, so that files of other users are not trusted.
#[must_use]
pub fn is_wanted() -> bool {
    sys::credential::users().is_ok_and(|ids| ids.effective == 0)
}

/// Checks that only root can change the file that `path` leads to, or replace it: its owner and mode, and those of each
/// folder and link on the way. A file that does not exist passes. Does nothing if this process does not run as root.
///
/// # Errors
///
/// Names the first file that another user can change.
pub fn check(path: &Path) -> Result<(), Untrusted> {
    if !is_wanted() {
        return Ok(());
    }
    walk(path, &Owners::of_this_process())
}

/// Checks a file that was named on the command line: the caller trusts its owner, but not all users.
///
/// # Errors
///
/// If all users can write it.
pub fn check_named(path: &Path) -> Result<(), Untrusted> {
    let all = |meta: &Metadata| meta.is_file() && meta.mode() & WRITABLE_BY_OTHERS != 0;
    match fs::metadata(path) {
        Ok(meta) if is_wanted() && all(&meta) => Err(Untrusted {
            path: path.to_owned(),
            by: Changer::All,
        }),
        // Reading it reports an error.
        _ => Ok(()),
    }
}

/// Returns true if this process is in the initial user namespace, whose root is the machine's. `None` if that cannot be
/// read.
#[must_use]
pub fn is_initial_user_namespace() -> Option<bool> {
    match fs::read_to_string("/proc/self/uid_map") {
        Ok(map) => Some(maps_all(&map)),
        // A kernel without user namespaces has no such file. Without /proc nothing is known.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Path::new("/proc/self").exists().then_some(true)
        }
        Err(_) => None,
    }
}

/// Returns true for the map of the initial user namespace: each user is itself.
fn maps_all(map: &str) -> bool {
    map.split_ascii_whitespace().eq(["0", "0", "4294967295"])
}

/// Owners that are trusted.
struct Owners {
    /// Root of this user namespace, and what files of a root outside of it are shown as.
    uids: Vec<u32>,
}

impl Owners {
    /// In a user namespace files of the host's root belong to the overflow user (user_namespaces(7)). So do those of other
    /// users that are not mapped; but this root has no more rights than the user who made the namespace.
    fn of_this_process() -> Self {
        let mut uids = vec![0];
        if is_initial_user_namespace() == Some(false) {
            let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
            uids.extend(
                overflow
                    .ok()
                    .and_then(|text| text.trim().parse::<u32>().ok()),
            );
        }
        Self { uids }
    }

    fn check(&self, path: &Path, meta: &Metadata) -> Result<(), Untrusted> {
        let mode = meta.mode();
        // Anybody may add files to a sticky folder, but nobody can replace those of others.
        let is_shared = meta.is_dir() && mode & STICKY != 0;
        let is_link = meta.is_symlink();
        let by = if !self.uids.contains(&meta.uid()) {
            Changer::Owner(meta.uid())
        } else if is_shared || is_link || is_read_only(path) {
            return Ok(());
        } else if mode & WRITABLE_BY_OTHERS != 0 {
            Changer::All
        } else if mode & WRITABLE_BY_GROUP != 0 {
            Changer::Group(meta.gid())
        } else {
            return Ok(());
        };
        Err(Untrusted {
            path: path.to_owned(),
            by,
        })
    }
}

/// Returns true if the mount is read-only, as those of Kubernetes' configuration maps, whose folders have mode 777.
fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Follows a path as the kernel does, and checks each file on the way.
fn walk(path: &Path, owners: &Owners) -> Result<(), Untrusted> {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut rest = names(&path);
    let mut at = PathBuf::from("/");
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&name);
        // Reading the file reports why it cannot be reached.
        let Ok(meta) = fs::symlink_metadata(&next) else {
            return Ok(());
        };
        owners.check(&next, &meta)?;
        if !meta.is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        let Ok(target) = fs::read_link(&next) else {
            return Ok(());
        };
        if links > MOST_LINKS {
            return Ok(());
        }
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for name in names(&target).into_iter().rev() {
            rest.push_front(name);
        }
    }
    Ok(())
}

fn names(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_the_map_of_the_initial_user_namespace_maps_each_user_to_itself() {
        assert!(maps_all("         0          0 4294967295\n"));
        for map in ["0 1000 1\n1 100000 65536\n", "0 0 65536\n", ""] {
            assert!(!maps_all(map), "{map}");
        }
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its owner may");
    }

    /// A folder whose owner is trusted, with a file.
    fn file() -> (tempfile::TempDir, PathBuf, Owners) {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("config.yaml");
        fs::write(&file, "").expect("it can be written");
        mode(&file, 0o644);
        mode(dir.path(), 0o755);
        let uid = fs::metadata(&file).expect("it is there").uid();
        (dir, file, Owners { uids: vec![0, uid] })
    }

    #[test]
    fn a_file_that_others_can_write_is_not_trusted() {
        let (_dir, file, owners) = file();
        assert_eq!(walk(&file, &owners), Ok(()));
        for (bits, expected) in [(0o646, "all users"), (0o664, "group")] {
            mode(&file, bits);
            let error = walk(&file, &owners).expect_err("others can write it");
            assert_eq!(error.path, file);
            assert!(error.cause().contains(expected), "{}", error.cause());
            assert!(error.fix().starts_with("`chmod g"), "{}", error.fix());
        }
    }

    #[test]
    fn the_folders_on_the_way_count() {
        let (dir, file, owners) = file();
        mode(dir.path(), 0o777);
        let error = walk(&file, &owners).expect_err("others can replace it");
        assert_eq!((error.path.as_path(), error.by), (dir.path(), Changer::All));
        mode(dir.path(), 0o1777);
        assert_eq!(walk(&file, &owners), Ok(()));
    }

    #[test]
    fn owners_of_files_and_links_count() {
        let (dir, file, owners) = file();
        let link = dir.path().join("link.yaml");
        symlink("config.yaml", &link).expect("it can be made");
        assert_eq!(walk(&link, &owners), Ok(()));
        mode(&file, 0o646);
        let error = walk(&link, &owners).expect_err("others can write its target");
        assert_eq!(error.path, file);
        // Nobody's files are trusted if no owner is.
        let error = walk(&file, &Owners { uids: Vec::new() }).expect_err("no owner is trusted");
        assert!(matches!(error.by, Changer::Owner(_)));
        assert!(
            error.fix().starts_with("`chown root:root "),
            "{}",
            error.fix()
        );
    }

    #[test]
    fn what_does_not_exist_passes() {
        let (dir, _file, owners) = file();
        assert_eq!(walk(&dir.path().join("none/x"), &owners), Ok(()));
        let link = dir.path().join("loop");
        symlink("loop", &link).expect("it can be made");
        assert_eq!(walk(&link, &owners), Ok(()));
    }
}
