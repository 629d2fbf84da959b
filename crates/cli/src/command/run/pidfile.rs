//! Where to find the agent.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::failure::Failure;

/// A file with the pid of this process.
#[derive(Debug)]
pub(in crate::command) struct Pidfile {
    path: PathBuf,
    file: File,
}

impl Pidfile {
    /// Makes an empty file: the pid is not known before the fork, but a wrong path is.
    pub(in crate::command) fn create(path: &Path) -> Result<Self, Failure> {
        let file = File::create(path).map_err(|error| {
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

    /// Removes the file.
    pub(in crate::command) fn remove(self) {
        // Somebody may have been faster.
        let _ = fs::remove_file(&self.path);
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
