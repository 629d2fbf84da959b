//! Readers of files that a workload may have created.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Maximum size in bytes of a file that is read whole; the rest is cut off.
pub const LIMIT: u64 = 4 * 1024 * 1024;

/// `O_NONBLOCK` keeps the open of a FIFO without a writer from blocking. It has no effect on regular files.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Opens a regular file; `None` if there is none. A FIFO or a device counts as none, and never blocks the
/// caller.
///
/// # Errors
/// Fails if the file cannot be opened although it may exist.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    regular(rustix::fs::open(path, FLAGS, Mode::empty()))
}

/// Opens a path below a root as [`open`] does, resolved as for a process with that root: links cannot lead
/// out of it.
///
/// # Errors
/// Fails if the file cannot be opened although it may exist.
pub fn open_in_root(root: &OwnedFd, path: &str) -> io::Result<Option<File>> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = match rustix::fs::openat2(root, path, FLAGS, Mode::empty(), resolve) {
        // Linux before 5.6 has no openat2.
        Err(Errno::NOSYS) => rustix::fs::openat(root, path, FLAGS, Mode::empty()),
        opened => opened,
    };
    regular(opened)
}

/// The content of a regular file, up to [`LIMIT`]; `None` if there is none.
///
/// # Errors
/// Fails if the file cannot be read although it may exist.
pub fn contents(path: &Path) -> io::Result<Option<Vec<u8>>> {
    open(path)?.map(read).transpose()
}

/// The content of an open file, up to [`LIMIT`].
///
/// # Errors
/// Fails if the file cannot be read.
pub fn read(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn regular(opened: Result<OwnedFd, Errno>) -> io::Result<Option<File>> {
    let file = match opened {
        Ok(file) => File::from(file),
        Err(error) if is_absent(&error.into()) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(file.metadata()?.is_file().then_some(file))
}

/// Returns true if the error means that no such file exists. A socket cannot be opened (ENXIO).
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
        || error.raw_os_error() == Some(Errno::NXIO.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn fifos_devices_and_folders_count_as_absent_and_do_not_wait() {
        let folder = std::env::temp_dir().join(format!("regular-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let fifo = folder.join("fifo");
        assert!(
            Command::new("mkfifo")
                .arg(&fifo)
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(contents(&fifo).unwrap(), None);
        assert_eq!(contents(Path::new("/dev/zero")).unwrap(), None);
        assert_eq!(contents(&folder).unwrap(), None);
        assert_eq!(contents(&folder.join("none")).unwrap(), None);
        let file = folder.join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(contents(&file).unwrap().as_deref(), Some(&b"text"[..]));
        assert_eq!(contents(&file.join("below")).unwrap(), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
