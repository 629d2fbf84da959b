//! Bounded reading of text files, such as rules and configurations, and atomic replacement of files.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

/// Maximum size, more than a hundred times that of the largest known rule file. A disk image or
/// `/dev/zero` is refused instead of exhausting memory.
const LIMIT: u64 = 64 << 20;

/// Reads a UTF-8 text file of at most 64 MiB.
pub fn read(path: &Path) -> io::Result<String> {
    bounded(File::open(path)?, LIMIT)
}

/// Reads a file of at most 64 MiB.
pub fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    bounded_bytes(File::open(path)?, LIMIT)
}

/// Resolves a path to its canonical form and the folder that contains it. The last component need not exist.
pub fn resolve(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let real = match fs::canonicalize(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().filter(|folder| *folder != Path::new(""));
            let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")))?;
            folder.join(path.file_name().ok_or(error)?)
        }
        found => found?,
    };
    let folder = real.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((real, folder))
}

/// Replaces the content of a file atomically: on an error, such as a full disk, the old content stays. Keeps mode
/// and, as far as the caller may change it, owner. A path that is no regular file, such as a pipe, is written to in
/// place.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let (real, folder) = resolve(path)?;
    let old = match fs::metadata(&real) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        found => Some(found?),
    };
    if old.as_ref().is_some_and(|old| !old.is_file()) {
        return fs::write(&real, text);
    }
    // The umask applies, as for any new file.
    let mode = Permissions::from_mode(0o666);
    let mut new = tempfile::Builder::new()
        .prefix(".tollgate-")
        .permissions(mode)
        .tempfile_in(&folder)?;
    new.write_all(text.as_bytes())?;
    if let Some(old) = old {
        // Only root can change the owner; others may still replace files in a group's directory.
        let _ = fchown(new.as_file(), Some(old.uid()), Some(old.gid()));
        new.as_file().set_permissions(old.permissions())?;
    }
    new.as_file().sync_all()?;
    new.persist(&real)?;
    File::open(&folder)?.sync_all()
}

fn bounded(from: impl Read, limit: u64) -> io::Result<String> {
    String::from_utf8(bounded_bytes(from, limit)?).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        let message = format!("it is not UTF-8 text (byte {place})");
        io::Error::new(io::ErrorKind::InvalidData, message)
    })
}

fn bounded_bytes(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).map_or(true, |len| len > limit) {
        let message = format!("it is longer than {} MiB", limit >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_no_text_says_so() {
        let said = |bytes: &[u8]| bounded(bytes, 4).map_err(|error| error.to_string());
        assert_eq!(said(b"abcd"), Ok("abcd".to_owned()));
        assert_eq!(said(b"abcde"), Err("it is longer than 0 MiB".to_owned()));
        assert_eq!(
            said(b"ab\xff"),
            Err("it is not UTF-8 text (byte 2)".to_owned())
        );
    }

    #[test]
    fn a_file_that_is_replaced_keeps_its_mode_and_the_links_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        replace(&file, "first").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let before = fs::metadata(&file).unwrap().ino();
        replace(&link, "second").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let after = fs::metadata(&file).unwrap();
        assert_eq!(after.mode() & 0o7777, 0o640);
        assert_ne!(after.ino(), before, "it was written in place");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        assert!(replace(dir.path(), "text").is_err());
        assert!(replace(&dir.path().join("no/file"), "text").is_err());
        let full = replace(Path::new("/dev/full"), "text").unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_device_that_never_ends_is_not_read_to_its_end() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
