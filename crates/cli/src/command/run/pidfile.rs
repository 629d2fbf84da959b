//! Where to find the agent.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::failure::Failure;

/// A file with the pid of this process.
#[derive(Debug)]
pub(super) struct Pidfile {
    path: PathBuf,
    file: File,
}

impl Pidfile {
    /// Makes an empty file: the pid is not known before the fork, but a wrong path is.
    pub(super) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| {
            let message = format!("cannot create pid file {}: {error}", path.display());
            Failure::new(Exit::BadInput, message).help("name a writable file after -P")
        })?;
        let path = path.to_owned();
        Ok(Self { path, file })
    }

    /// Writes the pid of this process.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let pid = std::process::id();
        self.file.write_all(format!("{pid}\n").as_bytes())
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        // Somebody may have been faster.
        let _ = fs::remove_file(&self.path);
    }
}
