//! Resources of the caller that the processes that watch keep or release.
//!
//! A command such as `runc create` ends while what it has created continues to run. Its caller
//! waits for its pipes to be closed, removes the directory it was called in, and expects no more
//! output.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sys::clone::CloneFlags;

/// Determines how long our processes hold the caller's resources.
#[derive(Clone, Debug)]
pub enum Detach {
    /// Our processes keep the caller's descriptors and working directory to their end.
    WithCommand,
    /// Our processes release both once the command has its own.
    Detached(DetachedProcesses),
}

/// The released resources.
#[derive(Clone, Debug)]
pub struct DetachedProcesses {
    /// Numbers of the caller's descriptors.
    numbers: Vec<i32>,
    /// File for messages instead of the standard error.
    log: PathBuf,
    ends: Ends,
}

/// Time at which the command's end is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// At once: what it has created continues to run.
    AtOnce,
    /// After everything that it caused is reported.
    AfterAlerts,
}

impl Detach {
    /// Records the current descriptors for a later release. Must be called before any other file is
    /// opened.
    ///
    /// # Errors
    ///
    /// The process's descriptors cannot be listed.
    pub fn detached(log: PathBuf, ends: Ends) -> std::io::Result<Self> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir("/proc/thread-self/fd")? {
            let name = entry?.file_name();
            // The names are descriptor numbers.
            numbers.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        // The descriptor of this listing is closed again.
        numbers.retain(|number| Path::new(&format!("/proc/thread-self/fd/{number}")).exists());
        Ok(Self::Detached(DetachedProcesses { numbers, log, ends }))
    }

    /// Takes a lock on the log, held until what the command has created is watched; whoever starts
    /// it waits for the lock. Without the lock it is started sooner, and waits itself.
    pub(super) fn lock_log(&self) -> Option<File> {
        let Self::Detached(left) = self else {
            return None;
        };
        let file = log_file(&left.log).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(file)
    }

    /// Returns true if no process waits for what the command leaves running.
    pub fn ends_at_once(&self) -> bool {
        matches!(self, Self::Detached(left) if left.ends == Ends::AtOnce)
    }

    /// Releases the resources. The command must have its own copy of the descriptors, or share this
    /// process's table, which is therefore copied first.
    ///
    /// # Errors
    ///
    /// The log cannot be opened, or a descriptor cannot be replaced.
    pub(super) fn leave(&self) -> std::io::Result<()> {
        let Self::Detached(left) = self else {
            return Ok(());
        };
        sys::namespace::unshare(CloneFlags::FILES.0)?;
        let null = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/null")?;
        let log = log_file(&left.log)?;
        for (target, file) in [(0, &null), (1, &null), (2, &log)] {
            sys::fd::replace_standard(file.as_fd(), target)?;
        }
        let others = left.numbers.iter().filter(|number| **number > 2);
        others.for_each(|number| sys::fd::close_number(*number));
        sys::file::change_directory(c"/")?;
        Ok(())
    }

    /// Checks that the resources can be released, before anything starts that must not run without
    /// these processes.
    ///
    /// # Errors
    ///
    /// The log cannot be opened.
    pub(super) fn check(&self) -> std::io::Result<()> {
        match self {
            Self::WithCommand => Ok(()),
            Self::Detached(left) => log_file(&left.log).map(drop),
        }
    }
}

fn log_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_opened_before_is_left_and_what_was_opened_later_is_not() {
        // Other tests open and close files in the table that the threads share.
        sys::namespace::unshare(CloneFlags::FILES.0).expect("a table of its own");
        let (reader, _writer) = sys::fd::pipe(0).expect("pipe");
        let log = PathBuf::from("/dev/null");
        let Detach::Detached(left) = Detach::detached(log, Ends::AtOnce).expect("/proc is there")
        else {
            panic!("it is detached");
        };
        let (later, _writer) = sys::fd::pipe(0).expect("pipe");
        let number = |fd: &std::os::fd::OwnedFd| std::os::fd::AsRawFd::as_raw_fd(fd);
        assert!(left.numbers.contains(&number(&reader)));
        assert!(!left.numbers.contains(&number(&later)));
    }
}
