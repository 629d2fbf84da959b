//! The pid file of the agent.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diagnostics::exit::Exit;
use diagnostics::failure::Failure;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::journal;

/// A file with the pid of this process.
#[derive(Debug)]
pub struct Pidfile {
    path: PathBuf,
    file: File,
    /// This process holds the lock on the file.
    is_locked: bool,
}

/// Time limit for a previous agent to release the file.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// `O_NOFOLLOW`.
const NO_FOLLOW: i32 = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
/// Time between two attempts to lock the file.
const LOCK_POLL: Duration = Duration::from_millis(5);

impl Pidfile {
    /// Creates an empty file, so that a wrong path is an error before the fork, when the pid is not
    /// known yet. The file stays locked while the agent it names lives. The file of an agent that
    /// has ended is taken over, with a message.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let mut pidfile = Self::open(path)?;
        if pidfile.lock().is_err() {
            let message = format!("PID file {} belongs to another tollgate", path.display());
            return Err(Failure::new(Exit::BadInput, message).help("name another file after -P"));
        }
        if let Some(pid) = pidfile.named() {
            journal::warn(&format!(
                "stale PID file {}: process {pid} did not remove it",
                path.display()
            ));
        }
        Ok(pidfile)
    }

    /// Takes over the file from a previous agent, which may hold the lock until this one starts. If
    /// that fails the agent runs without it: the file at the path may be the workload's.
    pub fn take_over(path: &Path) -> Option<Self> {
        let opened = Self::open(path);
        if let Err(failure) = &opened {
            journal::warn(failure.message());
        }
        opened.ok()
    }

    fn open(path: &Path) -> Result<Self, Failure> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        // A link would have its target emptied. A later agent opens the path again, and a link may
        // have been put there.
        options.custom_flags(NO_FOLLOW);
        let file = options.open(path);
        let file = file.map_err(|error| {
            let message = format!("cannot create pid file {}: {error}", path.display());
            let help = "name a writable file after -P, no symbolic link";
            Failure::new(Exit::BadInput, message).help(help)
        })?;
        let path = path.to_owned();
        Ok(Self {
            path,
            file,
            is_locked: false,
        })
    }

    /// Removes the stale file of an agent, called where no agent is left to do so: the lock is
    /// free, and the named process has ended.
    pub fn remove_stale(path: &Path) {
        let mut options = File::options();
        options.read(true).write(true).custom_flags(NO_FOLLOW);
        let Ok(file) = options.open(path) else {
            return;
        };
        let mut stale = Self {
            path: path.to_owned(),
            file,
            is_locked: false,
        };
        if stale.lock().is_ok() && stale.named().is_some_and(has_ended) {
            stale.remove();
        }
    }

    fn lock(&mut self) -> io::Result<()> {
        rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        self.is_locked = true;
        Ok(())
    }

    /// Returns the process named in the file, if the content is only a pid.
    fn named(&mut self) -> Option<u32> {
        let mut text = String::new();
        self.file.rewind().ok()?;
        (&self.file)
            .take(PID_LENGTH)
            .read_to_string(&mut text)
            .ok()?;
        text.strip_suffix('\n')?.parse().ok()
    }

    /// Replaces the content by the pid of this process.
    pub fn write(&mut self) -> io::Result<()> {
        let limit = Instant::now() + LOCK_PATIENCE;
        while !self.is_locked {
            match self.lock() {
                Ok(()) => {}
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                Err(_) if Instant::now() > limit => {
                    return Err(io::Error::other("another tollgate has locked it"));
                }
                Err(_) => std::thread::sleep(LOCK_POLL),
            }
        }
        let pid = std::process::id();
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(format!("{pid}\n").as_bytes())
    }

    /// Removes the file, unless another file has replaced it.
    pub fn remove(self) {
        let is_same = |there: fs::Metadata| {
            let own = self.file.metadata();
            own.is_ok_and(|own| (own.dev(), own.ino()) == (there.dev(), there.ino()))
        };
        if fs::metadata(&self.path).is_ok_and(is_same) {
            // Another process may have removed the file first.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Read limit in bytes; more than a pid and its line feed need.
const PID_LENGTH: u64 = 16;

/// Returns true if a process has ended, reaped or not.
fn has_ended(pid: u32) -> bool {
    let Some(process) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return true;
    };
    if test_kill_process(process) == Err(Errno::SRCH) {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    state.starts_with(['Z', 'X'])
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
        assert!(text.contains("belongs to another tollgate"), "{text}");
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
    fn a_file_that_nobody_locks_is_removed_only_if_it_names_a_process_that_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (ended, own) = (child.id(), std::process::id());
        for (text, stays) in [
            (format!("{ended}\n"), false),
            (format!("{own}\n"), true),
            (format!("{ended} and more\n"), true),
            (String::new(), true),
        ] {
            fs::write(&path, &text).unwrap();
            Pidfile::remove_stale(&path);
            assert_eq!(path.exists(), stays, "{text:?}");
        }
        fs::write(&path, format!("{ended}\n")).unwrap();
        let locked = Pidfile::create(&path).unwrap();
        Pidfile::remove_stale(&path);
        assert!(path.exists(), "an agent has it");
        drop(locked);
        Pidfile::remove_stale(&path);
        assert!(!path.exists());
    }

    #[test]
    fn who_takes_over_locks_the_file_when_its_turn_comes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        let first = Pidfile::create(&path).unwrap();
        let mut second = Pidfile::take_over(&path).unwrap();
        drop(first);
        second.write().unwrap();
        let text = Pidfile::create(&path).unwrap_err().render();
        assert!(text.contains("belongs to another tollgate"), "{text}");
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, target) = (folder.path().join("pid"), folder.path().join("target"));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let text = format!("{}\n", child.id());
        fs::write(&target, &text).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let message = Pidfile::create(&path).unwrap_err().render();
        assert!(message.contains("no symbolic link"), "{message}");
        assert!(Pidfile::take_over(&path).is_none());
        Pidfile::remove_stale(&path);
        assert!(fs::symlink_metadata(&path).is_ok());
        assert_eq!(fs::read_to_string(&target).unwrap(), text);
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
