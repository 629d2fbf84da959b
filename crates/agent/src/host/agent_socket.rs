//! The files of a host agent, by which those find it that hand containers over.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use super::super::filter_cache;
use super::handoff_request;

/// A folder and what the names of the files there begin with.
#[derive(Clone, Debug)]
pub(super) struct AgentSocket {
    folder: PathBuf,
    name: OsString,
}

impl AgentSocket {
    /// Where the agent is that watches by filters of this memo as this specification says. Who sees other mounts
    /// or pids needs another one.
    pub(super) fn find(folder: &Path, spec: &[u8], memo: &[u8]) -> io::Result<Self> {
        let mut hasher = DefaultHasher::new();
        handoff_request::build()?.hash(&mut hasher);
        spec.hash(&mut hasher);
        memo.hash(&mut hasher);
        handoff_request::view()?.hash(&mut hasher);
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder)?;
        if !filter_cache::is_private(folder) {
            let folder = folder.display();
            let message = format!("{folder} belongs to another user, or others can write there");
            return Err(io::Error::other(message));
        }
        Ok(Self {
            folder: folder.to_owned(),
            name: format!("{:016x}", hasher.finish()).into(),
        })
    }

    /// Where the agent of a container is, of which this folder is kept.
    pub(super) fn of_container(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            name: "agent".into(),
        }
    }

    /// Listens at a place that is one agent's after the other.
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

    /// What the names of its files begin with.
    pub(super) fn base(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Where its messages go.
    pub(super) fn log(&self) -> PathBuf {
        self.file("log")
    }

    fn file(&self, ending: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(".");
        name.push(ending);
        self.folder.join(name)
    }

    /// Leaves the memo for an agent that is about to be started.
    pub(super) fn leave_memo(&self, memo: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        io::Write::write_all(&mut file, memo)?;
        file.persist(self.file("memo"))?;
        Ok(())
    }

    /// What was left.
    pub(super) fn memo(&self) -> io::Result<Vec<u8>> {
        fs::read(self.file("memo"))
    }

    /// Connects to the agent.
    pub(super) fn connect(&self) -> io::Result<UnixStream> {
        self.at_socket(|path| UnixStream::connect(path))
    }

    /// Whether there is somebody to connect to, perhaps.
    pub(super) fn is_there(&self) -> bool {
        self.file("sock").exists()
    }

    /// Makes this process the agent of this place. `None`: there is one.
    pub(super) fn take(&self) -> io::Result<Option<ClaimedSocket>> {
        let path = self.file("lock");
        let lock = loop {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).mode(0o600).open(&path)?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                locked => locked?,
            }
            // The one before may have removed it meanwhile.
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

    /// Paths of sockets are short, so the folder is reached by a descriptor.
    fn at_socket<T>(&self, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let folder = File::open(&self.folder)?;
        let socket = self.file("sock");
        let name = socket.file_name().unwrap_or(OsStr::new(""));
        act(&Path::new(&format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name))
    }
}

/// A place whose agent this process is.
#[derive(Debug)]
pub(super) struct ClaimedSocket {
    place: AgentSocket,
    pub(super) listener: UnixListener,
    /// Held as long as the process lives.
    _lock: File,
}

impl ClaimedSocket {
    /// Removes the files, the lock last: then the place can be taken.
    pub(super) fn clear(&self) {
        for ending in ["sock", "memo", "lock"] {
            // What stays is replaced by the next one.
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
        let place = AgentSocket::find(&folder, b"run", b"memo").unwrap();
        assert!(place.connect().is_err());
        place.leave_memo(b"memo").unwrap();
        let taken = place.take().unwrap().expect("it is free");
        assert!(place.take().unwrap().is_none());
        assert!(place.connect().is_ok());
        assert_eq!(place.memo().unwrap(), b"memo");
        taken.clear();
        drop(taken);
        assert!(place.connect().is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert!(place.take().unwrap().is_some());
    }

    #[test]
    fn other_filters_and_other_specifications_are_other_places() {
        let folder = tempfile::tempdir().unwrap();
        let find =
            |spec: &[u8], memo: &[u8]| AgentSocket::find(folder.path(), spec, memo).unwrap().base();
        assert_eq!(find(b"a", b"1"), find(b"a", b"1"));
        assert_ne!(find(b"a", b"1"), find(b"b", b"1"));
        assert_ne!(find(b"a", b"1"), find(b"a", b"2"));
    }
}
