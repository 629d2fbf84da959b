//! The folder of a run, and its removal in every case.
//!
//! A janitor process waits at a pipe from the process that made the folder. When that process ends, for
//! whatever reason, the janitor ends the processes that it started, removes the paths in the journal and the
//! folder itself. If the janitor is killed, too, the next run finds the folder without an owner and removes it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use abi::Signal;
use workload::Error;

/// Environment variable that marks the processes of a run: it holds their folder.
pub const MARK: &str = "TOLLGATE_GENERATE";

const PREFIX: &str = "tollgate-generate-";
const JOURNAL: &str = "journal";
const OWNER: &str = "owner";

/// Options of the janitor.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// The folder to remove at the end of standard input.
    pub scratch: PathBuf,
}

/// The folder of a run.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
    /// The janitor; only in the process that made the folder.
    janitor: Option<Child>,
}

impl Scratch {
    /// Makes a folder below the temporary folder and starts its janitor, `PROGRAM generate sweep`.
    ///
    /// # Errors
    ///
    /// If the temporary folder cannot be written or the program cannot be started.
    pub fn new(program: &Path) -> Result<Self, Error> {
        sweep_forsaken();
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .map_err(Error::call("make a temporary folder"))?;
        let path = folder.keep();
        let own = std::process::id();
        let owner = format!("{own} {}", start_time(own).unwrap_or_default());
        fs::write(path.join(OWNER), owner).map_err(Error::file("write", path.join(OWNER)))?;
        let janitor = Command::new(program)
            .args(["generate", "sweep", "--scratch"])
            .arg(&path)
            // The janitor must not be taken for a process of another run, nor be killed with the group of this
            // one.
            .env_remove(MARK)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match janitor {
            Ok(janitor) => Ok(Self {
                path,
                janitor: Some(janitor),
            }),
            Err(error) => {
                clean(&path);
                Err(Error::file("start", program)(error))
            }
        }
    }

    /// Opens a folder that another process has made.
    #[must_use]
    pub fn of_another(path: PathBuf) -> Self {
        Self {
            path,
            janitor: None,
        }
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder for one process, in that of the run or of the process that started it.
    pub(super) fn folder_in(parent: &Path) -> Result<PathBuf, Error> {
        let name = format!("play-{}-", std::process::id());
        tempfile::Builder::new()
            .prefix(&name)
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir_in(parent)
            .map(tempfile::TempDir::keep)
            .map_err(Error::file("make a folder in", parent))
    }

    /// Opens the journal. Nobody else may write it: the paths in it are removed.
    pub(super) fn journal(&self) -> io::Result<File> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.path.join(JOURNAL))
    }

    /// Ends the remaining processes of this run.
    pub(super) fn end_processes(&self) {
        end_marked(&self.path);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(janitor) = &mut self.janitor {
            drop(janitor.stdin.take());
            // The janitor ends when everything is removed; a second one would find nothing to do.
            let _ = janitor.wait();
            if self.path.exists() {
                clean(&self.path);
            }
        }
    }
}

/// Runs the janitor and returns an exit code.
pub fn sweep(args: &SweepOptions) -> u8 {
    // A terminal's signals go to the foreground group, which does not include this process.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    clean(&args.scratch);
    u8::from(args.scratch.exists())
}

fn clean(scratch: &Path) {
    end_marked(scratch);
    let journal = fs::read_to_string(scratch.join(JOURNAL)).unwrap_or_default();
    for path in journal.lines().map(Path::new) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if !name.starts_with("tollgate-") || !path.is_absolute() {
            continue;
        }
        // Usually the action itself has removed the path.
        let _ = match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(gone) => Err(gone),
        };
    }
    let _ = fs::remove_dir_all(scratch);
}

/// Removes folders whose owner and janitor were both killed.
fn sweep_forsaken() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            && fs::symlink_metadata(entry.path())
                .is_ok_and(|found| found.is_dir() && found.uid() == own);
        if is_ours && is_forsaken(&entry.path()) {
            clean(&entry.path());
        }
    }
}

/// Returns true if the owner of a folder is gone. A folder without a note has only just been made.
fn is_forsaken(scratch: &Path) -> bool {
    let note = fs::read_to_string(scratch.join(OWNER)).unwrap_or_default();
    let Some((pid, start)) = note.split_once(' ') else {
        return false;
    };
    pid.parse()
        .is_ok_and(|pid| start_time(pid).is_none_or(|now| now != start))
}

/// Returns the start time of a process, in the kernel's ticks, which makes its pid unique.
fn start_time(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything; field 22 is the twentieth after it.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19).map(str::to_owned)
}

/// Ends every process that has the mark of this folder, until two passes find none: during an exec a process
/// has no environment.
fn end_marked(scratch: &Path) {
    let mut empty_looks = 0;
    for _ in 0..100 {
        let marked = marked(scratch);
        empty_looks = if marked.is_empty() {
            empty_looks + 1
        } else {
            0
        };
        if empty_looks == 2 {
            return;
        }
        for pid in marked {
            // A pidfd, so that no other process can get the signal if this one ends meanwhile.
            if let Ok(process) = sys::pidfd::open(pid)
                && carries_mark(pid, scratch)
            {
                // The process may have ended already.
                let _ = sys::pidfd::send_signal(process.as_fd(), Signal::SIGKILL.0);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn marked(scratch: &Path) -> Vec<i32> {
    let own = std::process::id().cast_signed();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| *pid != own && carries_mark(*pid, scratch))
        .collect()
}

fn carries_mark(pid: i32, scratch: &Path) -> bool {
    let mark = format!("{MARK}={}", scratch.display());
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_folder_whose_owner_is_gone_is_forsaken() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_forsaken(folder.path()), "no note yet");
        let own = std::process::id();
        let note = |text: String| fs::write(folder.path().join(OWNER), text).unwrap();
        note(format!("{own} {}", start_time(own).unwrap()));
        assert!(!is_forsaken(folder.path()));
        note(format!("{own} 1"));
        assert!(is_forsaken(folder.path()), "the pid is somebody else's now");
        note("4194305 1".to_owned());
        assert!(is_forsaken(folder.path()), "there is no such pid");
    }

    #[test]
    fn cleaning_ends_marked_processes_and_removes_what_the_journal_names() {
        let around = tempfile::tempdir().unwrap();
        let scratch = around.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let (ours, other) = (around.path().join("tollgate-x"), around.path().join("keep"));
        for file in [&ours, &other] {
            fs::write(file, "").unwrap();
        }
        let journal = format!("{}\n{}\n", ours.display(), other.display());
        fs::write(scratch.join(JOURNAL), journal).unwrap();
        let mut child = Command::new("sleep")
            .arg("60")
            .env(MARK, &scratch)
            .spawn()
            .unwrap();
        clean(&scratch);
        assert!(!child.wait().unwrap().success(), "it was killed");
        assert!(!scratch.exists() && !ours.exists());
        assert!(other.exists(), "not a name that actions give");
    }
}
