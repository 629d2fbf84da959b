//! What the processes that watch have of their caller's.
//!
//! A command such as `runc create` ends while what it has made runs on. Whoever called it waits for its
//! pipes to be closed, removes the folder it was called in, and wants nothing written to its output.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use sys::clone::CloneFlags;

/// How long processes of ours belong to the caller.
#[derive(Clone, Debug)]
pub enum Detach {
    /// They have the caller's descriptors and folder to their end.
    WithCommand,
    /// They leave both behind once the command has them.
    Detached(DetachedProcesses),
}

/// What is left behind.
#[derive(Clone, Debug)]
pub struct DetachedProcesses {
    /// The descriptors that the caller gave.
    numbers: Vec<i32>,
    /// Where messages go instead of the standard error.
    log: PathBuf,
    ends: Ends,
}

/// When the command's end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// At once: what it has made runs on.
    AtOnce,
    /// When what it caused has been told.
    AfterAlerts,
}

impl Detach {
    /// Everything that this process has been given is left behind later. Called before anything is
    /// opened.
    ///
    /// # Errors
    ///
    /// If the own descriptors cannot be listed.
    pub fn detached(log: PathBuf, ends: Ends) -> std::io::Result<Self> {
        let mut numbers = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let name = entry?.file_name();
            // Names there are numbers.
            numbers.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
        }
        // The one that the list was read by is closed again.
        numbers.retain(|number| Path::new(&format!("/proc/self/fd/{number}")).exists());
        Ok(Self::Detached(DetachedProcesses { numbers, log, ends }))
    }

    /// A lock on the log, held until what the command has made is watched: whoever starts that waits for it.
    /// Without one it is started sooner, and waits itself.
    pub(super) fn lock_log(&self) -> Option<File> {
        let Self::Detached(left) = self else {
            return None;
        };
        let file = log_file(&left.log).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(file)
    }

    /// Whether nobody waits for what the command leaves running.
    pub fn ends_at_once(&self) -> bool {
        matches!(self, Self::Detached(left) if left.ends == Ends::AtOnce)
    }

    /// Leaves it behind. The command must have its own copy of the descriptors, or share this process's
    /// table, which is why that is copied first.
    ///
    /// # Errors
    ///
    /// If the log cannot be opened or a descriptor not be replaced.
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

    /// Whether what is left behind can be: told before anything begins that is not to run without these processes.
    ///
    /// # Errors
    ///
    /// If the log cannot be opened.
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
