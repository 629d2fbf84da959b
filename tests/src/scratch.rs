//! Temporary folders that every user may use.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder below the system's temporary folder that every user can read and write.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Creates a folder.
    ///
    /// # Panics
    /// If that fails.
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("tollgate-e2e-").tempdir();
        let folder = folder.expect("the temporary folder is writable");
        let open = Permissions::from_mode(0o777);
        fs::set_permissions(folder.path(), open).expect("it is our folder");
        Self(folder)
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file with the given mode and returns its path.
    ///
    /// # Panics
    /// If that fails.
    pub fn file(&self, name: &str, mode: u32, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        let folder = path.parent().expect("it lies in the folder");
        fs::create_dir_all(folder)
            .and_then(|()| {
                if mode & 0o111 != 0 {
                    return testing::write_program(&path, mode, text);
                }
                fs::write(&path, text)?;
                fs::set_permissions(&path, Permissions::from_mode(mode))
            })
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }

    /// Copies or links a program here, for users who cannot reach the original.
    ///
    /// # Panics
    /// If that fails.
    pub fn program(&self, from: &Path, name: &str) -> PathBuf {
        let path = self.path().join(name);
        let mode = fs::metadata(from).map(|data| data.permissions().mode());
        let for_all = mode.as_ref().is_ok_and(|mode| mode & 0o555 == 0o555);
        // The program under test is large, so it is linked. Other files are copied: a test may change their
        // mode or owner, which belong to the file and not to the name, so that a link would change the host's
        // own file.
        let is_large = from == crate::program();
        if is_large && for_all && fs::hard_link(from, &path).is_ok() {
            return path;
        }
        // A copy onto an existing link would empty both.
        let _ = fs::remove_file(&path);
        // On another file system, or not readable by everybody.
        testing::copy_program(from, &path)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(0o755)))
            .unwrap_or_else(|error| panic!("cannot copy {}: {error}", from.display()));
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
