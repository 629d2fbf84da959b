//! Detects changes of configuration and rule files (`watch_config_files`).
//!
//! Editors and Kubernetes replace files, and links to files, by renaming. The watcher therefore
//! watches directories, and an event counts if a file differs from before.

use std::collections::BTreeMap;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use abi::Errno;
use anyhow::Context;
use config::Config;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use sys::poll::{self, PollFd};

/// Time after a change in which further changes count as the same one.
const SETTLE: Duration = Duration::from_millis(100);
/// Maximum number of changes waited for in a continuous stream.
const MOST_CHANGES: u32 = 50;

/// The files and directories of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedFiles(Vec<PathBuf>);

impl WatchedFiles {
    pub(super) fn of(config: &Config) -> Self {
        let sources = config.rule_sources();
        let paths = config.files.iter().chain(&config.folders);
        let paths = paths.chain(&config.layers).chain(sources.paths());
        let mut paths: Vec<_> = paths.cloned().collect();
        paths.sort();
        paths.dedup();
        Self(paths)
    }

    fn now(self) -> Snapshot {
        Snapshot {
            state: self.state(),
            watched: self,
        }
    }

    /// Returns the stamps of the files. A missing file has none.
    fn state(&self) -> BTreeMap<PathBuf, Stamp> {
        let mut state = BTreeMap::new();
        for path in &self.0 {
            add(&mut state, path);
            // The loader reports a directory that cannot be read.
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                add(&mut state, &entry.path());
            }
        }
        state
    }

    /// Returns the directories to watch.
    fn folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        for path in &self.0 {
            if path.is_dir() {
                folders.push(path.clone());
            }
            folders.push(existing_parent(path));
            // The file behind a link may be edited in place.
            if let Ok(target) = fs::canonicalize(path) {
                folders.extend(target.parent().map(Path::to_owned));
            }
        }
        folders.sort();
        folders.dedup();
        folders
    }
}

/// Returns the folder of a file. If it does not exist, returns the folder in which it may appear.
fn existing_parent(path: &Path) -> PathBuf {
    let above = path.ancestors().skip(1);
    let mut named = above.take_while(|folder| !folder.as_os_str().is_empty());
    let existing = named.find(|folder| folder.is_dir());
    existing.unwrap_or(Path::new(".")).to_owned()
}

/// Device, inode, size, and time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

fn add(state: &mut BTreeMap<PathBuf, Stamp>, path: &Path) {
    if let Ok(meta) = fs::metadata(path) {
        let stamp = (
            meta.dev(),
            meta.ino(),
            meta.size(),
            meta.mtime(),
            meta.mtime_nsec(),
        );
        state.insert(path.to_owned(), stamp);
    }
}

/// Files as they were at a moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    watched: WatchedFiles,
    state: BTreeMap<PathBuf, Stamp>,
}

impl Snapshot {
    /// Looks at the files now.
    pub(super) fn of(config: &Config) -> Self {
        WatchedFiles::of(config).now()
    }
}

/// Calls `on_change` on a thread of its own when files have changed since `snapshot`, for the lifetime of the
/// process. The callback returns the files to watch from then on.
pub(super) fn follow(
    snapshot: Snapshot,
    mut on_change: impl FnMut() -> WatchedFiles + Send + 'static,
) -> anyhow::Result<()> {
    let Snapshot {
        mut watched,
        mut state,
    } = snapshot;
    let mut watch = watch(&watched).context("cannot watch configuration files")?;
    let work = move || {
        // They may have changed before they were watched.
        let mut is_first = true;
        while std::mem::take(&mut is_first) || wait(&watch) {
            // Directories may have been replaced, too. The watch is renewed before the files are
            // checked, so that it notices changes after the check.
            loop {
                match self::watch(&watched) {
                    Ok(renewed) => watch = renewed,
                    Err(error) => crate::journal::warn(&format!(
                        "warning: files in other folders are not watched: {error:#}"
                    )),
                }
                let new = watched.state();
                if new == state {
                    break;
                }
                state = new;
                let now = on_change();
                if now != watched {
                    state = now.state();
                    watched = now;
                }
            }
        }
    };
    thread::Builder::new()
        .name("config".to_owned())
        .spawn(work)
        .context("cannot start the thread that watches configuration files")?;
    Ok(())
}

fn watch(watched: &WatchedFiles) -> anyhow::Result<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let changes = WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::ONLYDIR;
    for folder in watched.folders() {
        match inotify::add_watch(&watch, &folder, changes) {
            Ok(_) => {}
            // A configured directory need not exist.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot watch {}", folder.display()));
            }
        }
    }
    Ok(watch)
}

/// Waits until something has changed and then nothing for a moment. Returns false if that is
/// impossible.
fn wait(watch: &OwnedFd) -> bool {
    let mut limit = None;
    for _ in 0..MOST_CHANGES {
        let mut polled = [PollFd::new(watch.as_fd(), poll::IN)];
        match poll::poll(&mut polled, limit) {
            Ok(0) => return true,
            Ok(_) => drain(watch),
            Err(error) if error.is(Errno::EINTR) => continue,
            Err(_) => return false,
        }
        limit = Some(SETTLE);
    }
    true
}

/// Discards all events; which directory changed does not matter.
fn drain(watch: &OwnedFd) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(watch, &mut buffer);
    while reader.next().is_ok() {}
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    const SOON: Duration = Duration::from_secs(10);
    const NEVER: Duration = Duration::from_millis(500);

    fn changes(watched: WatchedFiles) -> Receiver<()> {
        let (sender, receiver) = channel();
        let again = watched.clone();
        follow(watched.now(), move || {
            // The test may be over.
            let _ = sender.send(());
            again.clone()
        })
        .expect("folders can be watched");
        receiver
    }

    #[test]
    fn a_change_before_the_watch_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let file = dir.path().join("config.yaml");
        fs::write(&file, "1").expect("it can be written");
        let watched = WatchedFiles(vec![file.clone()]);
        let snapshot = watched.clone().now();
        fs::write(&file, "12").expect("it can be written");
        let (sender, receiver) = channel();
        follow(snapshot, move || {
            // The test may be over.
            let _ = sender.send(());
            watched.clone()
        })
        .expect("folders can be watched");
        receiver.recv_timeout(SOON).expect("the change is noticed");
        assert!(receiver.recv_timeout(NEVER).is_err(), "once");
    }

    #[test]
    fn a_folder_that_is_made_later_is_noticed() {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let rules = dir.path().join("tollgate/rules.d");
        let changes = changes(WatchedFiles(vec![rules.clone()]));
        fs::create_dir_all(&rules).expect("it can be made");
        changes.recv_timeout(SOON).expect("a new folder is noticed");
        fs::write(rules.join("a.yaml"), "1").expect("it can be written");
        changes.recv_timeout(SOON).expect("its file is noticed");
    }

    #[test]
    fn files_that_are_written_replaced_added_and_relinked_are_noticed() {
        let dir = tempfile::tempdir().expect("a folder for temporary files");
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a.yaml"), "1").expect("it can be written");
        fs::create_dir(at("rules.d")).expect("it can be made");
        for version in ["v1", "v2"] {
            fs::create_dir(at(version)).expect("it can be made");
            fs::write(at(version).join("m.yaml"), version).expect("it can be written");
        }
        // As Kubernetes mounts a configuration map.
        symlink("v1", at("..data")).expect("it can be made");
        symlink("..data/m.yaml", at("m.yaml")).expect("it can be made");
        let watched = WatchedFiles(vec![at("a.yaml"), at("rules.d"), at("m.yaml")]);
        let changes = changes(watched);

        fs::write(at("a.yaml"), "22").expect("it can be written");
        changes.recv_timeout(SOON).expect("a write is noticed");
        fs::write(at("new"), "333").expect("it can be written");
        fs::rename(at("new"), at("a.yaml")).expect("it can be moved");
        changes.recv_timeout(SOON).expect("a new file is noticed");
        fs::write(at("rules.d/b.yaml"), "").expect("it can be written");
        changes
            .recv_timeout(SOON)
            .expect("an added file is noticed");
        symlink("v2", at("..new")).expect("it can be made");
        fs::rename(at("..new"), at("..data")).expect("it can be moved");
        changes.recv_timeout(SOON).expect("a new link is noticed");

        // One change may be noticed in two steps.
        while changes.recv_timeout(NEVER).is_ok() {}
        fs::write(at("other"), "x").expect("it can be written");
        assert!(
            changes.recv_timeout(NEVER).is_err(),
            "another file in the folder is none of ours"
        );
    }
}
