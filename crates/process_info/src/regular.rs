//! Reading files that a workload may have put there.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// No file that is read whole is longer than this; what follows is left out.
pub const LIMIT: u64 = 4 * 1024 * 1024;

/// `O_NONBLOCK`: opening a FIFO that nobody writes to would wait otherwise. It means nothing for
/// regular files.
const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// Opens a regular file, or nothing if there is none. A FIFO or a device never makes the caller
/// wait: it counts as none.
///
/// # Errors
/// When it cannot be opened although it may be there.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    regular(rustix::fs::open(path, FLAGS, Mode::empty()))
}

/// As [`open`] for a path below a root, as a process with that root would find it: links on the way
/// do not lead out of it.
///
/// # Errors
/// When it cannot be opened although it may be there.
pub fn open_in_root(root: &OwnedFd, path: &str) -> io::Result<Option<File>> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = match rustix::fs::openat2(root, path, FLAGS, Mode::empty(), resolve) {
        // Linux before 5.6.
        Err(Errno::NOSYS) => rustix::fs::openat(root, path, FLAGS, Mode::empty()),
        opened => opened,
    };
    regular(opened)
}

/// What is in a regular file, up to [`LIMIT`], or nothing if there is none.
///
/// # Errors
/// When it cannot be read although it may be there.
pub fn contents(path: &Path) -> io::Result<Option<Vec<u8>>> {
    open(path)?.map(read).transpose()
}

/// What is in an open file, up to [`LIMIT`].
///
/// # Errors
/// When it cannot be read.
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

/// Whether the error says that there is nothing of that name. A socket cannot be opened (ENXIO).
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
