//! Where to find the agent.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::exit::Exit;
use crate::failure::Failure;

/// A file with the pid of this process.
#[derive(Debug)]
pub(in crate::command) struct Pidfile {
    path: PathBuf,
    file: File,
}

impl Pidfile {
    /// Makes an empty file: the pid is not known before the fork, but a wrong path is. It is locked as long as
    /// there is an agent that it is to name, or a keeper.
    pub(in crate::command) fn create(path: &Path) -> Result<Self, Failure> {
        let pidfile = Self::open(path)?;
        rustix::fs::flock(&pidfile.file, FlockOperation::NonBlockingLockExclusive).map_err(
            |_locked| {
                let message = format!("the pid file {} is another agent's", path.display());
                Failure::new(Exit::BadInput, message).help("name another file after -P")
            },
        )?;
        Ok(pidfile)
    }

    /// Takes the file over from an agent before this one, whose keeper has it locked.
    pub(in crate::command) fn open(path: &Path) -> Result<Self, Failure> {
        let mut options = File::options();
        let file = options.write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| {
            let message = format!("cannot create pid file {}: {error}", path.display());
            Failure::new(Exit::BadInput, message).help("name a writable file after -P")
        })?;
        let path = path.to_owned();
        Ok(Self { path, file })
    }

    /// Writes the pid of this process in place of what was there: of an agent before this one.
    pub(in crate::command) fn write(&mut self) -> io::Result<()> {
        let pid = std::process::id();
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{pid}\n").as_bytes())
    }

    /// Removes the file, unless somebody has put another one in its place.
    pub(in crate::command) fn remove(self) {
        let is_same = |there: fs::Metadata| {
            let own = self.file.metadata();
            own.is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        };
        if fs::metadata(&self.path).is_ok_and(is_same) {
            // Somebody may have been faster.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_one_pid_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let Ok(mut pidfile) = Pidfile::create(&path) else {
            panic!("the folder is writable");
        };
        for _ in 0..2 {
            pidfile.write().unwrap();
            let text = fs::read_to_string(&path).unwrap();
            assert_eq!(text, format!("{}\n", std::process::id()));
        }
        pidfile.remove();
        assert!(!path.exists());
    }

    #[test]
    fn one_file_is_of_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let mut first = Pidfile::create(&path).unwrap();
        first.write().unwrap();
        let text = Pidfile::create(&path).unwrap_err().render();
        assert!(text.contains("is another agent's"), "{text}");
        let own = format!("{}\n", std::process::id());
        assert_eq!(fs::read_to_string(&path).unwrap(), own);
        fs::rename(&path, folder.path().join("old")).unwrap();
        let second = Pidfile::create(&path).unwrap();
        first.remove();
        assert!(path.exists(), "it is the second one's");
        second.remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_wrong_path_is_an_error_with_a_next_step() {
        let failure = Pidfile::create(Path::new("/nowhere/pid")).unwrap_err();
        let text = failure.render();
        assert!(
            text.contains("cannot create pid file /nowhere/pid: "),
            "{text}"
        );
        assert!(
            text.contains("help: name a writable file after -P"),
            "{text}"
        );
    }
}
