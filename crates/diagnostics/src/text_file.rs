//! Bounded reading of text files, such as rules and configurations, and writing that leaves whole files or none.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
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
    // The umask applies, as for any new file. Errors are of the file that is opened and say nothing of its name, which
    // the user does not know.
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    let mut new = tempfile::Builder::new()
        .prefix(".tollgate-")
        .make_in(&folder, |path| options.open(path))?;
    new.as_file_mut().write_all(text.as_bytes())?;
    if let Some(old) = old {
        // Only root can change the owner; others may still replace files in a group's directory.
        let _ = fchown(new.as_file(), Some(old.uid()), Some(old.gid()));
        new.as_file().set_permissions(old.permissions())?;
    }
    new.as_file().sync_all()?;
    new.persist(&real).map_err(|error| error.error)?;
    sync_folder(&folder);
    Ok(())
}

/// Creates a file with this content. The umask applies to `mode`, which the file has from its beginning.
///
/// # Errors
///
/// [`ErrorKind::AlreadyExists`] if there is something at the path, a dangling link too; or what writing says, such as
/// [`ErrorKind::StorageFull`]. There is no file then: the half of one would be in the way of the next try, and an empty
/// one could be taken for a key.
pub fn create(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    create_with(path, mode, |file| file.write_all(content))
}

/// Like [`create`], for a file that `fill` writes.
///
/// # Errors
///
/// As [`create`], and those of `fill`.
pub fn create_with(
    path: &Path,
    mode: u32,
    fill: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    // Asked again when the file gets its name. Whoever cannot have the name need not write all of it first.
    if fs::symlink_metadata(path).is_ok() {
        return Err(rustix::io::Errno::EXIST.into());
    }
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    let folder = folder.unwrap_or(Path::new("."));
    let mut options = OpenOptions::new();
    // Read where the file system knows no links.
    options.read(true).write(true).create_new(true).mode(mode);
    let mut new = tempfile::Builder::new()
        .prefix(".tollgate-")
        .make_in(folder, |path| options.open(path))?;
    fill(new.as_file_mut())?;
    new.as_file().sync_all()?;
    if let Err(mut refused) = new.persist_noclobber(path) {
        match has_no_links(&refused.error) {
            true => copy_new(refused.file.as_file_mut(), path, mode)?,
            false => return Err(refused.error),
        }
    }
    sync_folder(folder);
    Ok(())
}

/// Makes a new name in a folder outlast a loss of power, as far as that is possible: some file systems cannot, and a folder that
/// may be written need not be readable. An error is ignored because the file is there, and only a loss of power could take it.
fn sync_folder(folder: &Path) {
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

/// Returns true for the errors of file systems that can neither rename without replacing nor link.
fn has_no_links(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| matches!(errno, Errno::PERM | Errno::OPNOTSUPP | Errno::INVAL))
}

/// Copies a file to a new one, and its mode. The copy is removed if it cannot be written as a whole.
fn copy_new(from: &mut File, path: &Path, mode: u32) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let mut file = options.open(path)?;
    let mut copy = || {
        from.rewind()?;
        io::copy(from, &mut file)?;
        file.set_permissions(from.metadata()?.permissions())?;
        file.sync_all()
    };
    let copied = copy();
    if copied.is_err() {
        // The failure is reported.
        let _ = fs::remove_file(path);
    }
    copied
}

/// Returns the next step after a file could not be written.
///
/// ```
/// use std::io::ErrorKind;
///
/// use diagnostics::text_file::next_step;
///
/// assert_eq!(next_step(ErrorKind::AlreadyExists), "name a file that does not exist");
/// ```
#[must_use]
pub fn next_step(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::AlreadyExists => "name a file that does not exist",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free some space, or name a file in another folder"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            "create its folder first, or name a file in one that exists"
        }
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            "name a file in a folder that this user can write"
        }
        _ => "name another file",
    }
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
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

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
    fn a_new_file_is_there_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("key"), dir.path().join("link"));
        let full = create_with(&file, 0o600, |file| {
            file.write_all(b"half of it")?;
            Err(ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            0,
            "a part is left"
        );
        let mut mode = 0;
        create_with(&file, 0o600, |file| {
            mode = file.metadata()?.mode() & 0o777;
            file.write_all(b"secret")
        })
        .unwrap();
        assert_eq!(mode, 0o600, "others could read it while it was written");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for path in [&file, &link] {
            let error = create(path, b"other", 0o644).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "secret");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        let error = create(&dir.path().join("no/file"), b"", 0o644).unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
        assert!(next_step(error.kind()).starts_with("create its folder"));
    }

    #[test]
    fn a_file_system_without_links_has_whole_files_too() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::write(&from, "secret").unwrap();
        fs::set_permissions(&from, Permissions::from_mode(0o640)).unwrap();
        let mut file = File::open(&from).unwrap();
        copy_new(&mut file, &to, 0o600).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "secret");
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o640);
        // Another file stays.
        let error = copy_new(&mut file, &to, 0o600).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&to).unwrap(), "secret");
        fs::remove_file(&to).unwrap();
        let mut unreadable = OpenOptions::new().append(true).open(&from).unwrap();
        copy_new(&mut unreadable, &to, 0o600).unwrap_err();
        assert!(!to.exists(), "a part is left");
        for (errno, is_one) in [(1, true), (22, true), (95, true), (17, false), (28, false)] {
            let error = io::Error::from_raw_os_error(errno);
            assert_eq!(has_no_links(&error), is_one, "{errno}");
        }
    }

    #[test]
    fn a_folder_that_cannot_be_read_or_synced_has_the_file() {
        let dir = tempfile::tempdir().unwrap();
        // Root reads it all the same.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o300)).unwrap();
        let file = dir.path().join("file");
        create(&file, b"new", 0o600).unwrap();
        replace(&file, "changed").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "changed");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        sync_folder(&dir.path().join("absent"));
        sync_folder(Path::new("/proc"));
    }

    #[test]
    fn a_device_that_never_ends_is_not_read_to_its_end() {
        let error = read(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
