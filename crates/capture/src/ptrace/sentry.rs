//! Notices processes that enter the container from outside (`docker exec`, ECS Exec, `nsenter`).
//!
//! They are no descendants of the workload and do not have its filter. Where this program started
//! everything else in its pid namespace, whoever else appears there has entered, and is traced call
//! by call ([`super::engine`]) or, if that is refused, announced.
//!
//! An unprivileged process is told of new processes by nobody, so it has to look: the number of the
//! last pid (`/proc/loadavg`) every few milliseconds, the list of processes when it has changed. A
//! process that came and went in between is not seen; one that runs for longer is.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use event::{Judge, Pid};

use super::attach::{AttachError, Hindrance};
use super::engine::Engine;
use super::guard::{self, Post};
use super::inbox::{Inbox, Request};
use crate::filter::FilterProgram;
use crate::notify::{Shared, Supervisor};

/// Time between two looks at the last pid.
const TICK: Duration = Duration::from_millis(5);
/// Every so many ticks the processes are listed whatever the last pid is: some containers fake it.
const LIST_EVERY: u32 = 10;
/// How long a process that may not be traced yet is tried before that is announced: a runtime's own
/// process may not, and becomes the program that was asked for within a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(60);
/// Parents that are looked up; more than any real chain.
const ANCESTOR_LIMIT: usize = 64;
/// Inode of the first pid namespace (include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Starts the sentry, if this program started everything else in its pid namespace. It ends with
/// the supervisor. `filter` says which calls of entered processes are looked at: compiled with
/// [`super::filter_options`].
///
/// # Errors
///
/// If a thread cannot be started.
pub fn watch_entries<J: Judge + 'static>(
    supervisor: &Supervisor<J>,
    filter: FilterProgram,
) -> std::io::Result<bool> {
    let shared = supervisor.shared();
    let Some(scan) = Scan::begin(shared.tree.transparent()) else {
        return Ok(false);
    };
    std::thread::Builder::new()
        .name("sentry".to_owned())
        .spawn(move || Sentry::new(shared, filter, scan).run())?;
    Ok(true)
}

struct Sentry<J: Judge> {
    shared: Arc<Shared<J>>,
    filter: FilterProgram,
    scan: Scan,
    /// Made when the first process has entered.
    tracer: Option<Tracer>,
    /// Entered, and not traced.
    waiting: HashMap<Pid, Waiting>,
}

/// A process that is to be traced.
struct Waiting {
    name: String,
    since: Instant,
    is_announced: bool,
    refusal: Hindrance,
}

struct Tracer {
    inbox: Arc<Inbox>,
    /// Wakes the thread when it has nothing to trace; dropped, lets it end then.
    more: Sender<()>,
    _guard: JoinHandle<()>,
}

impl<J: Judge + 'static> Sentry<J> {
    fn new(shared: Arc<Shared<J>>, filter: FilterProgram, scan: Scan) -> Self {
        Self {
            shared,
            filter,
            scan,
            tracer: None,
            waiting: HashMap::new(),
        }
    }

    fn run(mut self) {
        let mut ticks = 0_u32;
        while !self.shared.has_ended() && !self.shared.is_handing_over() {
            std::thread::sleep(TICK);
            ticks = ticks.wrapping_add(1);
            if self.scan.has_news() || ticks.is_multiple_of(LIST_EVERY) {
                for (pid, name) in self.scan.entered() {
                    self.waiting.insert(
                        pid,
                        Waiting {
                            name,
                            since: Instant::now(),
                            is_announced: false,
                            refusal: Hindrance::Other,
                        },
                    );
                }
            }
            self.attach();
        }
        if let Some(tracer) = self.tracer {
            tracer.ask(Request::Leave);
        }
    }

    fn attach(&mut self) {
        for pid in self.waiting.keys().copied().collect::<Vec<_>>() {
            let outcome = self.ask(pid);
            let Some(waiting) = self.waiting.get_mut(&pid) else {
                continue;
            };
            let is_over = match outcome {
                Ok(()) => {
                    self.waiting.remove(&pid);
                    continue;
                }
                Err(Hindrance::Gone) => true,
                Err(refusal) => {
                    waiting.refusal = refusal;
                    false
                }
            };
            if !waiting.is_announced && (is_over || waiting.since.elapsed() >= PATIENCE) {
                waiting.is_announced = true;
                let why = if is_over {
                    "it ended before it could be attached to".to_owned()
                } else {
                    waiting.refusal.to_string()
                };
                // It may run another program by now.
                if let Some(now) = entry(pid) {
                    waiting.name = now.name;
                }
                self.shared.notices.unwatched(pid, &waiting.name, &why);
            }
            if is_over {
                self.waiting.remove(&pid);
            }
        }
    }

    fn ask(&mut self, pid: Pid) -> Result<(), Hindrance> {
        if self.tracer.is_none() {
            self.tracer = start(&self.shared, &self.filter).ok();
        }
        let Some(tracer) = &self.tracer else {
            return Err(Hindrance::Other);
        };
        let (answer, answers) = sync_channel(1);
        tracer.ask(Request::Attach { pid, answer });
        match answers.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(AttachError { hindrance, .. })) => Err(hindrance),
            Err(_) => Err(Hindrance::Other),
        }
    }
}

impl Tracer {
    fn ask(&self, request: Request) {
        // A tracer that has ended drops the request, which is noticed.
        let wake = || {
            let _ = self.more.send(());
        };
        self.inbox.ask_sleeping(request, wake);
    }
}

/// Starts a tracer without anything to trace.
fn start<J: Judge + 'static>(
    shared: &Arc<Shared<J>>,
    filter: &FilterProgram,
) -> std::io::Result<Tracer> {
    let (inbox, post) = (Arc::new(Inbox::default()), Arc::new(Post::default()));
    let (more, has_more) = channel::<()>();
    let (began, has_begun) = sync_channel(1);
    let engine = {
        let (shared, inbox) = (Arc::clone(shared), Arc::clone(&inbox));
        let (post, filter) = (Arc::clone(&post), filter.clone());
        move || {
            inbox.enter();
            let mut engine = Engine::new(shared, Arc::clone(&inbox), post, filter);
            // The other end waits for exactly this.
            let _ = began.send(());
            while has_more.recv().is_ok() {
                engine.run();
            }
            inbox.leave();
        }
    };
    let tracer = std::thread::Builder::new()
        .name("tracer".to_owned())
        .spawn(engine)?;
    has_begun.recv().map_err(std::io::Error::other)?;
    let guard = guard::start_beside(Arc::clone(shared), Arc::clone(&inbox), post, tracer)?;
    Ok(Tracer {
        inbox,
        more,
        _guard: guard,
    })
}

/// Looks for processes that have entered.
struct Scan {
    last_pid: File,
    last: Vec<u8>,
    known: HashSet<Pid>,
    /// Processes of ours; the last one is the command's parent.
    ours: Vec<Pid>,
    /// How many filters this process has, of the container's; `None` before Linux 5.9.
    own_filters: Option<u32>,
}

/// What `/proc/PID/status` says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    parent: Pid,
    filters: Option<u32>,
    /// The thread that traces it.
    tracer: Option<i32>,
}

impl Entry {
    fn is_traced_by_us(&self) -> bool {
        let is_ours = |tracer| Path::new(&format!("/proc/self/task/{tracer}")).exists();
        self.tracer.is_some_and(is_ours)
    }
}

impl Scan {
    /// `None`: this is no pid namespace of which this program started everything.
    fn begin(ours: &[Pid]) -> Option<Self> {
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        if namespace.as_os_str() == INITIAL_PID_NAMESPACE || ours.len() < 2 {
            return None;
        }
        let own = Pid(std::process::id().cast_signed());
        let mut scan = Self {
            last_pid: File::open("/proc/loadavg").ok()?,
            last: Vec::new(),
            known: HashSet::new(),
            ours: ours.to_vec(),
            own_filters: entry(own)?.filters,
        };
        if ours.contains(&Pid(1)) {
            // Nothing else can have been there before.
            return Some(scan);
        }
        // Whoever started us is there, too.
        let mut above = entry(ours[0])?.parent;
        while above != Pid(0) && scan.known.insert(above) {
            above = entry(above)?.parent;
        }
        scan.entered().is_empty().then_some(scan)
    }

    /// Whether a process or thread may have been made since the last look.
    fn has_news(&mut self) -> bool {
        let mut buffer = [0; 128];
        let Ok(len) = self.last_pid.read_at(&mut buffer, 0) else {
            return true;
        };
        let last = buffer[..len].rsplit(|byte| *byte == b' ').next();
        let last = last.unwrap_or_default();
        if last == self.last {
            return false;
        }
        last.clone_into(&mut self.last);
        true
    }

    /// Processes that were not there at the last look and are neither ours nor the workload's.
    fn entered(&mut self) -> Vec<(Pid, String)> {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let there: HashSet<Pid> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid))
            .collect();
        self.known.retain(|pid| there.contains(pid));
        let mut entered = Vec::new();
        for pid in there {
            if self.known.contains(&pid) || self.ours.contains(&pid) {
                continue;
            }
            let Some(found) = entry(pid) else { continue };
            self.known.insert(pid);
            if self.has_entered(&found) {
                entered.push((pid, found.name));
            }
        }
        entered
    }

    fn has_entered(&self, process: &Entry) -> bool {
        // Whose filters are more has ours, too.
        if let (Some(own), Some(its)) = (self.own_filters, process.filters)
            && its > own
        {
            return false;
        }
        if process.is_traced_by_us() {
            return false;
        }
        let mut parent = process.parent;
        for _ in 0..ANCESTOR_LIMIT {
            // Below the command's parent is the workload; below the agent is what it starts itself.
            let is_waiter = self.ours.last() == Some(&parent);
            if is_waiter || parent == Pid(std::process::id().cast_signed()) {
                return false;
            }
            // An orphan's parent is the namespace's first process, whoever it was born to.
            if parent == Pid(0) || parent == Pid(1) {
                // Without a filter to tell the workload's orphans by they are taken for it.
                return parent == Pid(0) || self.own_filters.is_some();
            }
            match entry(parent) {
                // What is born to one that is traced is traced, too, until it has been reaped.
                Some(above) if above.is_traced_by_us() => return false,
                Some(above) => parent = above.parent,
                None => return false,
            }
        }
        false
    }
}

fn entry(pid: Pid) -> Option<Entry> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.0)).ok()?;
    let line = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name));
        found.map(str::trim)
    };
    if line("Tgid:")? == "0" {
        // Reaped while it was read: all its relations read as 0.
        return None;
    }
    Some(Entry {
        name: line("Name:")?.to_owned(),
        parent: Pid(line("PPid:")?.parse().ok()?),
        filters: line("Seccomp_filters:").and_then(|count| count.parse().ok()),
        tracer: line("TracerPid:")
            .and_then(|tracer| tracer.parse().ok())
            .filter(|tracer| *tracer != 0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan() -> Scan {
        Scan {
            last_pid: File::open("/proc/loadavg").expect("there is one"),
            last: Vec::new(),
            known: HashSet::new(),
            ours: vec![Pid(1), Pid(2), Pid(3)],
            own_filters: Some(1),
        }
    }

    fn process(parent: i32, filters: u32) -> Entry {
        Entry {
            name: "x".to_owned(),
            parent: Pid(parent),
            filters: Some(filters),
            tracer: None,
        }
    }

    #[test]
    fn the_workload_is_told_from_who_enters() {
        let scan = scan();
        assert!(scan.has_entered(&process(0, 1)), "from outside");
        assert!(scan.has_entered(&process(1, 1)), "an orphan of such a one");
        assert!(
            !scan.has_entered(&process(1, 2)),
            "an orphan with our filter"
        );
        assert!(
            !scan.has_entered(&process(3, 1)),
            "the command before its filter"
        );
        let own = std::process::id().cast_signed();
        assert!(
            !scan.has_entered(&process(own, 1)),
            "a program for an output"
        );
    }

    #[test]
    fn a_new_process_is_news() {
        let mut scan = scan();
        scan.has_news();
        let child = std::process::Command::new("true").status();
        assert!(child.is_ok_and(|status| status.success()));
        assert!(scan.has_news());
    }

    #[test]
    fn a_process_is_read() {
        let own = entry(Pid(std::process::id().cast_signed())).expect("it runs");
        assert_eq!(
            own.parent,
            Pid(std::os::unix::process::parent_id().cast_signed())
        );
    }
}
