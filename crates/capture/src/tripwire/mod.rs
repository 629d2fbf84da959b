//! The tripwire: an independent watch on the files that rules call sensitive.
//!
//! The file system itself reports when such a file is opened (inotify(7), no privilege needed). An open that
//! the engine did not see has bypassed it: by arguments that changed during the call, by an io_uring, or by
//! an unknown way. inotify does not name the process, so an event counts against the workload only while some
//! process of it could have caused it.
//!
//! Paths come from the rules, and the rules decide what about them is sensitive: each path is evaluated as if
//! it were opened, for reading and for writing.

mod ledger;
mod watches;

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use event::{Descriptor, Name, Tid};
use rustix::event::EventfdFlags;
use rustix::fs::inotify::{ReadFlags, Reader};
use rustix::io::Errno;
use sys::poll::{self, PollFd};
use sys::time::{Clock, now_ns};

use self::ledger::{FileEvent, Key, Ledger};
use self::watches::Watches;
pub(crate) use self::watches::{Sensitive, Target};
use decoder::process_inspector::ProcessInspector;
use process_info::procfs::LINK_LIMIT;

/// Files that the agent reads itself, to resolve users and groups.
const OWN: [&[u8]; 2] = [b"/etc/passwd", b"/etc/group"];
/// Name that no rule contains.
const ANY_NAME: &[u8] = b"/tollgate.tripwire";
/// Time between two checks while opens wait for the engine.
const TICK: Duration = Duration::from_millis(10);
/// Maximum time, in nanoseconds, from the inspection of a call to its open.
const NEW_NS: u64 = 1_000_000_000;
const BUFFER: usize = 64 * 1024;

/// Result of reading the pending events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TripwireReport {
    /// Number of opens of watched files.
    pub(crate) opens: u64,
    /// Files whose opens the engine has not seen yet.
    pub(crate) suspicious: Vec<OpenedFile>,
    /// Files whose opens bypassed the engine.
    pub(crate) unseen: Vec<OpenedFile>,
    /// True if events were lost because the kernel's queue was full.
    pub(crate) overflowed: bool,
}

/// File that was opened. Not every file in a watched folder is sensitive: the rules have to be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OpenedFile {
    pub(crate) path: Vec<u8>,
    /// True if it was open for writing.
    pub(crate) writes: bool,
}

/// The tripwire.
#[derive(Debug)]
pub(crate) struct Tripwire {
    inner: Mutex<Inner>,
    /// True if nothing is watched.
    is_idle: AtomicBool,
    wake: OwnedFd,
}

#[derive(Debug)]
struct Inner {
    watches: Watches,
    ledger: Ledger,
}

impl Tripwire {
    /// Watches the sensitive ones of `paths`, in the agent's own root at once if the workload has that.
    /// `evaluator`: returns whether rules may match an open of this path, for writing if the flag is set.
    ///
    /// # Errors
    ///
    /// If the limit of inotify instances is reached.
    pub(crate) fn new(
        paths: &[Vec<u8>],
        has_own_root: bool,
        evaluator: impl FnMut(&[u8], bool) -> bool,
    ) -> Result<Self, Errno> {
        let mut watches = Watches::new(targets(paths, evaluator))?;
        if has_own_root {
            watches.arm();
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ledger = Ledger::default();
        Ok(Self {
            is_idle: AtomicBool::new(watches.is_idle()),
            inner: Mutex::new(Inner { watches, ledger }),
            wake: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Adds watches for new rules, which are loaded now. Paths of earlier rules stay watched; the caller that
    /// takes the events asks the rules about them.
    pub(crate) fn extend(&self, paths: &[Vec<u8>], evaluator: impl FnMut(&[u8], bool) -> bool) {
        let targets = targets(paths, evaluator);
        let mut inner = self.inner();
        let new_until_ns = now_ns(Clock::Monotonic) + NEW_NS;
        inner.watches.extend(targets, new_until_ns);
        self.is_idle
            .store(inner.watches.is_idle(), Ordering::Release);
    }

    /// Returns whether no open is watched for.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_idle.load(Ordering::Acquire)
    }

    /// Returns the number of watches, and of failed ones.
    pub(crate) fn watches(&self) -> (u64, u64) {
        let inner = self.inner();
        (inner.watches.len() as u64, inner.watches.refused)
    }

    /// Notes that the engine sees an open of this name.
    pub(crate) fn saw(&self, path: &[u8], writes: bool) {
        let mut inner = self.inner();
        let now = now_ns(Clock::Monotonic);
        for key in inner.watches.keys(path) {
            inner.ledger.saw(key, writes, now);
        }
    }

    /// Notes that such an open failed, or opened another file.
    pub(crate) fn unsaw(&self, path: &[u8]) {
        let mut inner = self.inner();
        let now = now_ns(Clock::Monotonic);
        for key in inner.watches.keys(path) {
            inner.ledger.unsaw(key, now);
        }
    }

    /// Watches the same paths in the root of a process, if they are not watched there yet.
    pub(crate) fn arm(&self, tid: Tid, inspector: &ProcessInspector) {
        let own = Tid(std::process::id().cast_signed());
        // A process that is gone has no root.
        let Some(root) = inspector.root(tid) else {
            return;
        };
        if inspector.root(own) == Some(root) {
            self.inner().watches.arm();
        } else {
            self.inner().watches.arm_other(tid);
        }
    }

    /// Waits for events, or until woken.
    pub(crate) fn wait(&self) {
        let (inotify, patience) = {
            let inner = self.inner();
            let waits = inner.ledger.is_waiting();
            // The descriptor stays open as long as `self`.
            (
                inner.watches.as_fd().try_clone_to_owned(),
                waits.then_some(TICK),
            )
        };
        let Ok(inotify) = inotify else {
            std::thread::sleep(TICK);
            return;
        };
        let mut polled = [
            PollFd::new(inotify.as_fd(), poll::IN),
            PollFd::new(self.wake.as_fd(), poll::IN),
        ];
        // Whatever ended the wait, everything is checked.
        let _ = poll::poll(&mut polled, patience);
    }

    /// Ends the wait.
    pub(crate) fn wake(&self) {
        // Fails only if the counter is full, so the thread wakes anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Reads the pending events. `last`: the engine reports no more opens.
    pub(crate) fn look(&self, last: bool) -> TripwireReport {
        let mut inner = self.inner();
        let mut found = TripwireReport::default();
        inner.read(&mut found);
        let now = if last {
            u64::MAX
        } else {
            now_ns(Clock::Monotonic)
        };
        let overdue = inner.ledger.overdue(now);
        found.unseen = overdue
            .iter()
            .map(|(key, act)| inner.opened(key, *act))
            .collect();
        found
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn opened(&self, key: &Key, act: FileEvent) -> OpenedFile {
        OpenedFile {
            path: self.watches.path(key),
            writes: act == FileEvent::Write,
        }
    }

    fn read(&mut self, found: &mut TripwireReport) {
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER];
        let Ok(inotify) = self.watches.as_fd().try_clone_to_owned() else {
            return;
        };
        let mut reader = Reader::new(&inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            let flags = event.events();
            let name = event.file_name().map_or(&b""[..], |name| name.to_bytes());
            if is_nameless(name) && self.is_nowhere(event.wd(), name) {
                continue;
            }
            self.take(event.wd(), name, flags, found);
        }
    }

    /// Returns whether a watched folder has no file of this name.
    fn is_nowhere(&self, id: i32, name: &[u8]) -> bool {
        let path = self.watches.path(&(id, name.to_vec()));
        let found = rustix::fs::lstat(&path[..]);
        matches!(found, Err(Errno::NOENT | Errno::NOTDIR))
    }

    fn take(&mut self, id: i32, name: &[u8], flags: ReadFlags, found: &mut TripwireReport) {
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            found.overflowed = true;
            return;
        }
        if flags.contains(ReadFlags::IGNORED) {
            self.watches.ended(id);
            return;
        }
        if flags.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.watches
                .appeared(id, name, flags.contains(ReadFlags::ISDIR));
            return;
        }
        if flags.contains(ReadFlags::ISDIR) {
            return;
        }
        let key = (id, name.to_vec());
        let sensitive = self.watches.sensitive(&key);
        let now = now_ns(Clock::Monotonic);
        // The engine may have inspected it before it was asked to report opens.
        let is_new = self.watches.is_new(&key, now);
        if flags.contains(ReadFlags::OPEN) && sensitive.reads {
            found.opens += 1;
            if !is_new && !self.ledger.opened(key.clone(), now) {
                found.suspicious.push(self.opened(&key, FileEvent::Open));
            }
        } else if flags.contains(ReadFlags::CLOSE_WRITE) && sensitive.writes {
            found.opens += u64::from(!sensitive.reads);
            if !is_new && !self.ledger.wrote(key.clone(), now) {
                found.suspicious.push(self.opened(&key, FileEvent::Write));
            }
        }
    }
}

/// Returns whether a name is one that the kernel gives a file that has none (open with `O_TMPFILE`): `#` and its
/// inode number. Rules are not about such files, and the engine may not see them being opened.
fn is_nameless(name: &[u8]) -> bool {
    let digits = name.strip_prefix(b"#");
    digits.is_some_and(|digits| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit))
}

/// Returns what is sensitive about each path.
fn targets(paths: &[Vec<u8>], mut evaluator: impl FnMut(&[u8], bool) -> bool) -> Vec<Target> {
    let mut sensitive = |path: &[u8]| Sensitive {
        reads: evaluator(path, false),
        writes: evaluator(path, true),
    };
    // Rules that ask about every file do not single out any.
    let control = sensitive(&[ANY_NAME, ANY_NAME].concat());
    let mut targets: Vec<Target> = Vec::new();
    for path in paths {
        let path = path.strip_suffix(b"/").unwrap_or(path);
        // A prefix that ends within a name, as `/.` does, is not a folder.
        if normal(path) != path {
            continue;
        }
        let itself = sensitive(path);
        let below = sensitive(&[path, ANY_NAME].concat());
        let target = Target {
            path: path.to_vec(),
            itself: Sensitive {
                reads: itself.reads && !OWN.contains(&path),
                writes: itself.writes,
            },
            below: Sensitive {
                reads: below.reads && !control.reads,
                writes: below.writes && !control.writes,
            },
        };
        let is_wanted = target.itself.is_any() || target.below.is_any();
        if is_wanted && !path.is_empty() && !targets.contains(&target) {
            targets.push(target);
        }
    }
    targets
}

/// Returns the absolute path of a name that a caller passed, without resolving links.
pub(crate) fn absolute(
    descriptor: &Descriptor<'_>,
    tid: Tid,
    inspector: &ProcessInspector,
) -> Option<Vec<u8>> {
    match descriptor.name {
        Name::Passed { raw, base } => joined(raw, base, tid, inspector),
        Name::Opened { path, .. } => Some(path.to_vec()),
        _ => None,
    }
}

/// Joins a name with the folder that it starts at, without resolving links.
pub(crate) fn joined(
    raw: &[u8],
    base: Option<i32>,
    tid: Tid,
    inspector: &ProcessInspector,
) -> Option<Vec<u8>> {
    if raw.starts_with(b"/") {
        return Some(normal(raw));
    }
    let mut buffer = [0; LINK_LIMIT];
    let folder = match base {
        Some(number) => inspector.descriptor_link(tid, number, &mut buffer),
        None => inspector.link(tid, "cwd", &mut buffer),
    };
    Some(normal(&[folder.ok()?, b"/", raw].concat()))
}

/// Removes empty components, `.` and `..`.
fn normal(path: &[u8]) -> Vec<u8> {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    let mut normal = Vec::with_capacity(path.len());
    for name in names {
        normal.push(b'/');
        normal.extend_from_slice(name);
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain() {
        assert_eq!(normal(b"//etc/./x/../shadow/"), b"/etc/shadow");
        assert_eq!(normal(b"/../.."), b"");
    }

    #[test]
    fn rules_say_what_matters() {
        let paths = [
            &b"/."[..],
            b"/etc/shadow",
            b"/etc/pam.d/",
            b"/etc",
            b"/other",
            b"/etc/passwd",
        ];
        let found = targets(&paths.map(<[u8]>::to_vec), |path, writes| {
            path == b"/etc/shadow"
                || path == b"/etc/passwd"
                || path.starts_with(b"/etc/pam.d/")
                || writes && path.starts_with(b"/etc/")
        });
        let both = Sensitive {
            reads: true,
            writes: true,
        };
        let writes = Sensitive {
            reads: false,
            writes: true,
        };
        let none = Sensitive::default();
        let target = |path: &[u8], itself, below| Target {
            path: path.to_vec(),
            itself,
            below,
        };
        let expected = [
            target(b"/etc/shadow", both, writes),
            target(b"/etc/pam.d", writes, both),
            target(b"/etc", none, writes),
            target(b"/etc/passwd", writes, writes),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn rules_about_every_file_leave_the_files_they_name() {
        let found = targets(&[b"/etc/shadow".to_vec()], |_, _| true);
        assert_eq!(found[0].below, Sensitive::default());
        assert!(found[0].itself.reads);
    }

    #[test]
    fn opens_are_told_of_also_after_the_file_was_replaced() {
        let folder = std::env::temp_dir().join(format!("tripwire-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("writable");
        let file = folder.join("secret");
        let path = file.to_str().expect("text").as_bytes().to_vec();
        let evaluator = |asked: &[u8], _: bool| asked == path;
        let wire =
            Tripwire::new(std::slice::from_ref(&path), true, evaluator).expect("inotify works");
        assert_eq!(
            wire.look(false),
            TripwireReport::default(),
            "it is not there yet"
        );
        for replaced in 0..3 {
            let new = folder.join("new");
            std::fs::write(&new, "x").expect("writable");
            std::fs::rename(&new, &file).expect("writable");
            wire.look(false);
            std::fs::read(&file).expect("readable");
            let found = wire.look(true);
            let opened = OpenedFile {
                path: path.clone(),
                writes: false,
            };
            assert_eq!(found.unseen, [opened], "after {replaced}");
            wire.saw(&path, false);
            std::fs::read(&file).expect("readable");
            let found = wire.look(true);
            assert_eq!((found.opens, found.unseen.len()), (1, 0));
        }
        std::fs::remove_dir_all(&folder).expect("ours");
    }

    #[test]
    fn what_rules_that_are_loaded_later_want_is_watched_from_then_on() {
        let folder = std::env::temp_dir().join(format!("tripwire-later-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("writable");
        let file = folder.join("secret");
        std::fs::write(&file, "x").expect("writable");
        let path = file.to_str().expect("text").as_bytes().to_vec();
        let wire = Tripwire::new(&[], true, |_, _| false).expect("inotify works");
        assert!(wire.is_idle());
        std::fs::read(&file).expect("readable");
        assert_eq!(wire.look(true), TripwireReport::default());
        wire.extend(std::slice::from_ref(&path), |asked, _| asked == path);
        assert!(!wire.is_idle());
        // A file that the engine may have inspected before.
        std::fs::read(&file).expect("readable");
        let found = wire.look(true);
        assert_eq!((found.opens, found.unseen.len()), (1, 0));
        std::thread::sleep(Duration::from_nanos(NEW_NS));
        std::fs::read(&file).expect("readable");
        assert_eq!(wire.look(true).unseen.len(), 1);
        std::fs::remove_dir_all(&folder).expect("ours");
    }
}
