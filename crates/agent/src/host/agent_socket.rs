//! Files of a host agent, through which other agents find it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::super::cache_files;
use crate::identity;

/// A directory and a file name prefix.
#[derive(Clone, Debug)]
pub(super) struct AgentSocket {
    folder: PathBuf,
    name: OsString,
}

impl AgentSocket {
    /// Returns the location of the agent for this specification and for filters of this handover state. A
    /// process with other mounts or pids needs another agent.
    pub(super) fn find(folder: &Path, spec: &[u8], handover: &[u8]) -> io::Result<Self> {
        let mut hasher = DefaultHasher::new();
        identity::build()?.hash(&mut hasher);
        spec.hash(&mut hasher);
        handover.hash(&mut hasher);
        identity::view()?.hash(&mut hasher);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder)?;
        if !cache_files::is_private(folder) {
            let folder = folder.display();
            let message = format!("{folder} belongs to another user, or others can write there");
            return Err(io::Error::other(message));
        }
        Ok(Self {
            folder: folder.to_owned(),
            name: format!("{:016x}", hasher.finish()).into(),
        })
    }

    /// Returns the location of a container's agent, given the container's directory.
    pub(super) fn of_container(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            name: "agent".into(),
        }
    }

    /// Binds the socket. Only one agent at a time uses a location.
    pub(super) fn open(&self) -> io::Result<UnixListener> {
        match fs::remove_file(self.file("sock")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.at_socket(|path| UnixListener::bind(path))
    }

    /// From a path that [`AgentSocket::base`] has given.
    pub(super) fn of_base(base: &Path) -> Option<Self> {
        Some(Self {
            folder: base.parent()?.to_owned(),
            name: base.file_name()?.to_owned(),
        })
    }

    /// Returns the common prefix of the files' paths.
    pub(super) fn base(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns the path of the log.
    pub(super) fn log(&self) -> PathBuf {
        self.file("log")
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(".");
        name.push(ending);
        self.folder.join(name)
    }

    /// Writes the handover state for an agent that is about to start.
    pub(super) fn leave_handover(&self, handover: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        io::Write::write_all(&mut file, handover)?;
        file.persist(self.file("handover"))?;
        Ok(())
    }

    /// Reads the handover state.
    pub(super) fn handover(&self) -> io::Result<Vec<u8>> {
        fs::read(self.file("handover"))
    }

    /// Connects to the agent.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        self.at_socket(|path| UnixStream::connect(path))
    }

    /// Returns true if an agent may be listening.
    pub(super) fn is_there(&self) -> bool {
        self.file("sock").exists()
    }

    /// Makes this process the agent of this location. Returns `None` if there is one.
    pub(super) fn take(&self) -> io::Result<Option<ClaimedSocket>> {
        let path = self.file("lock");
        let lock = loop {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).mode(0o600).open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                locked => locked?,
            }
            // The previous agent may have removed the file meanwhile.
            let there = fs::metadata(&path).map(|there| there.ino());
            if matches!(there, Ok(there) if there == file.metadata()?.ino()) {
                break file;
            }
        };
        let listener = self.open()?;
        let place = self.clone();
        Ok(Some(ClaimedSocket {
            place,
            listener,
            _lock: lock,
        }))
    }

    /// Passes the socket's path to `act`. It goes through a descriptor of the directory, because
    /// socket paths are limited in length.
    fn at_socket<T>(&self, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let folder = File::open(&self.folder)?;
        let socket = self.file("sock");
        let name = socket.file_name().unwrap_or(OsStr::new(""));
        act(&Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
    }
}

/// A location whose agent is this process.
#[derive(Debug)]
pub(super) struct ClaimedSocket {
    place: AgentSocket,
    pub(super) listener: UnixListener,
    /// Held for the lifetime of the process.
    _lock: File,
}

impl ClaimedSocket {
    /// Removes the files, the lock last; the location is free after that.
    pub(super) fn clear(&self) {
        for ending in ["sock", "handover", "lock"] {
            // A remaining file is replaced by the next agent.
            let _ = fs::remove_file(self.place.file(ending));
        }
        let log = self.place.log();
        if fs::metadata(&log).is_ok_and(|log| log.len() == 0) {
            let _ = fs::remove_file(log);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_taken_once_and_free_again_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        // Longer than an address may be.
        let folder = folder.path().join("x".repeat(120));
        let place = AgentSocket::find(&folder, b"run", b"handover").unwrap();
        assert!(place.connect().is_err());
        place.leave_handover(b"handover").unwrap();
        let taken = place.take().unwrap().expect("it is free");
        assert!(place.take().unwrap().is_none());
        assert!(place.connect().is_ok());
        assert_eq!(place.handover().unwrap(), b"handover");
        taken.clear();
        drop(taken);
        assert!(place.connect().is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert!(place.take().unwrap().is_some());
    }

    #[test]
    fn other_filters_and_other_specifications_are_other_places() {
        let folder = tempfile::tempdir().unwrap();
        let find = |spec: &[u8], handover: &[u8]| {
            AgentSocket::find(folder.path(), spec, handover)
                .unwrap()
                .base()
        };
        assert_eq!(find(b"a", b"1"), find(b"a", b"1"));
        assert_ne!(find(b"a", b"1"), find(b"b", b"1"));
        assert_ne!(find(b"a", b"1"), find(b"a", b"2"));
    }
}
