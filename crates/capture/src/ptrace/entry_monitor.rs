//! Notices processes that enter the container from outside (`docker exec`, ECS Exec, `nsenter`).
//!
//! They are no descendants of the workload and do not have its filter. Who has a parent outside the pid
//! namespace has entered, and is traced call by call ([`super::engine`]) or, if that is refused, announced.
//! Orphans are children of the first process: where this program is that, who has no filter of the
//! workload's is an orphan of one that entered. Where somebody else is, it may as well have been started by
//! that one. It is traced, too, but nobody is alarmed if it has ended before.
//!
//! An unprivileged process is told of new processes by nobody, so it has to look: the number of the
//! last pid (`/proc/loadavg`) every few milliseconds, the list of processes when it has changed. A
//! process that came and went in between is not seen; one that runs for longer is.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use event::{Evaluator, Pid};

use super::attach::{AttachError, TraceObstacle};
use super::engine::Engine;
use super::guard::{self, TracerView};
use super::request_queue::{Request, RequestQueue};
use crate::notify::{NotifyEngine, Shared};
use seccomp::FilterProgram;

/// Time between two looks at the last pid.
const TICK: Duration = Duration::from_millis(5);
/// Every so many ticks the processes are listed whatever the last pid is: some containers fake it.
const LIST_EVERY: u32 = 10;
/// How long a process that may not be traced yet is tried before that is announced: a runtime's own
/// process may not, and becomes the program that was asked for within a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(60);
/// How long a child of the first process that runs this program may take to be known as a process of ours: the next
/// keeper writes its pid down as the first thing that it does, and the agent is woken.
const INTRODUCTION: Duration = Duration::from_millis(200);
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
pub fn watch_entries<J: Evaluator + 'static>(
    supervisor: &NotifyEngine<J>,
    filter: FilterProgram,
) -> std::io::Result<bool> {
    let shared = supervisor.shared();
    let Some(scan) = Scan::begin(shared.tree.transparent()) else {
        return Ok(false);
    };
    std::thread::Builder::new()
        .name("sentry".to_owned())
        .spawn(move || EntryMonitor::new(shared, filter, scan).run())?;
    Ok(true)
}

struct EntryMonitor<J: Evaluator> {
    shared: Arc<Shared<J>>,
    filter: FilterProgram,
    scan: Scan,
    /// Made when the first process has entered.
    tracer: Option<Tracer>,
    /// Entered, and not traced.
    waiting: HashMap<Pid, PendingAttach>,
}

/// A process that is to be traced.
struct PendingAttach {
    name: String,
    since: Instant,
    is_announced: bool,
    /// Proven; else the first process may have started it.
    has_entered: bool,
    refusal: TraceObstacle,
}

struct Tracer {
    inbox: Arc<RequestQueue>,
    /// Wakes the thread when it has nothing to trace; dropped, lets it end then.
    more: Sender<()>,
    _guard: JoinHandle<()>,
}

impl<J: Evaluator + 'static> EntryMonitor<J> {
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
                self.scan.ours = self.shared.guard.ours();
                for newcomer in self.scan.entered() {
                    self.waiting.insert(
                        newcomer.pid,
                        PendingAttach {
                            name: newcomer.name,
                            since: Instant::now(),
                            // Of one that has ended it will never be known.
                            is_announced: false,
                            has_entered: newcomer.has_entered,
                            refusal: TraceObstacle::Other,
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
                Err(TraceObstacle::Gone) => true,
                Err(refusal) => {
                    waiting.refusal = refusal;
                    false
                }
            };
            let is_due = match waiting.has_entered {
                true => is_over || waiting.since.elapsed() >= PATIENCE,
                // Whoever runs for so short a time may not have been seen at all.
                false => !is_over && waiting.since.elapsed() >= PATIENCE,
            };
            if !waiting.is_announced && is_due {
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
                let notices = &self.shared.notices;
                notices.unwatched(pid, &waiting.name, &why, waiting.has_entered);
            }
            if is_over {
                self.waiting.remove(&pid);
            }
        }
    }

    fn ask(&mut self, pid: Pid) -> Result<(), TraceObstacle> {
        if self.tracer.is_none() {
            self.tracer = start(&self.shared, &self.filter).ok();
        }
        let Some(tracer) = &self.tracer else {
            return Err(TraceObstacle::Other);
        };
        let (answer, answers) = sync_channel(1);
        tracer.ask(Request::Attach { pid, answer });
        match answers.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(AttachError { hindrance, .. })) => Err(hindrance),
            Err(_) => Err(TraceObstacle::Other),
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
fn start<J: Evaluator + 'static>(
    shared: &Arc<Shared<J>>,
    filter: &FilterProgram,
) -> std::io::Result<Tracer> {
    let (inbox, post) = (
        Arc::new(RequestQueue::default()),
        Arc::new(TracerView::default()),
    );
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
    /// Who started this program, and who started them, by when they began. What these start is not the
    /// workload's and has not entered.
    bystanders: HashMap<Pid, u64>,
    /// Processes of ours. They change: keepers are replaced.
    ours: Vec<Pid>,
    /// Processes that may turn out to be ours, and since when they are there.
    perhaps_ours: HashMap<Pid, Instant>,
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
            bystanders: HashMap::new(),
            ours: ours.to_vec(),
            perhaps_ours: HashMap::new(),
            own_filters: entry(own)?.filters,
        };
        if ours.contains(&Pid(1)) {
            // Nothing else can have been there before.
            return Some(scan);
        }
        // Whoever started us is there, too.
        let mut above = entry(ours[0])?.parent;
        while above != Pid(0) && scan.known.insert(above) {
            scan.bystanders.insert(above, started(above)?);
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

    /// Processes that were not there at the last look and are neither ours nor the workload's, nor of those who
    /// started us.
    fn entered(&mut self) -> Vec<NewProcess> {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        let there: HashSet<Pid> = entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().map(Pid))
            .collect();
        self.known.retain(|pid| there.contains(pid));
        self.perhaps_ours.retain(|pid, _| there.contains(pid));
        let mut entered = Vec::new();
        for pid in there {
            if self.known.contains(&pid) || self.ours.contains(&pid) {
                continue;
            }
            let Some(found) = entry(pid) else { continue };
            if self.is_perhaps_ours(pid, &found) {
                continue;
            }
            let has_entered = match self.origin(&found, &entry) {
                ProcessOrigin::Known => None,
                ProcessOrigin::Outside => Some(true),
                ProcessOrigin::Unknown => Some(false),
                // Its parent has ended meanwhile: it has another one at the next look.
                ProcessOrigin::Unsettled => continue,
            };
            self.known.insert(pid);
            entered.extend(has_entered.map(|has_entered| NewProcess {
                pid,
                name: found.name,
                has_entered,
            }));
        }
        entered
    }

    /// Whether it may be a keeper that the first process has just started. Somebody who enters and starts this
    /// program is told from it by not becoming known as one of ours.
    fn is_perhaps_ours(&mut self, pid: Pid, process: &Entry) -> bool {
        let is_child_of_front = process.parent == Pid(1) && self.ours.contains(&Pid(1));
        if !is_child_of_front || !runs_this_program(pid) {
            return false;
        }
        let since = self.perhaps_ours.entry(pid).or_insert_with(Instant::now);
        since.elapsed() < INTRODUCTION
    }

    fn is_ours(&self, pid: Pid) -> bool {
        self.ours.contains(&pid) || pid == Pid(std::process::id().cast_signed())
    }

    fn is_bystander(&self, pid: Pid) -> bool {
        let began = self.bystanders.get(&pid);
        began.is_some_and(|began| started(pid) == Some(*began))
    }

    fn origin(&self, process: &Entry, entry: &dyn Fn(Pid) -> Option<Entry>) -> ProcessOrigin {
        // Whose filters are more has ours, too.
        if let (Some(own), Some(its)) = (self.own_filters, process.filters)
            && its > own
        {
            return ProcessOrigin::Known;
        }
        if process.is_traced_by_us() {
            return ProcessOrigin::Known;
        }
        let mut parent = process.parent;
        for _ in 0..ANCESTOR_LIMIT {
            // Below the command's parent is the workload, below the keeper are agents, below an agent is what it
            // starts itself. Orphans of anybody are below the first process.
            if parent != Pid(1) && (self.is_ours(parent) || self.is_bystander(parent)) {
                return ProcessOrigin::Known;
            }
            if parent == Pid(0) {
                return ProcessOrigin::Outside;
            }
            // An orphan's parent is the namespace's first process, whoever it was born to.
            if parent == Pid(1) {
                return match self.own_filters {
                    // Without a filter to tell the workload's orphans by they are taken for it.
                    None => ProcessOrigin::Known,
                    Some(_) if self.is_ours(parent) => ProcessOrigin::Outside,
                    Some(_) => ProcessOrigin::Unknown,
                };
            }
            match entry(parent) {
                // What is born to one that is traced is traced, too, until it has been reaped.
                Some(above) if above.is_traced_by_us() => return ProcessOrigin::Known,
                Some(above) => parent = above.parent,
                None => return ProcessOrigin::Unsettled,
            }
        }
        ProcessOrigin::Unknown
    }
}

/// Where a process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessOrigin {
    /// It is the workload's, ours, or of those who started us.
    Known,
    /// From outside the pid namespace.
    Outside,
    /// Of the first process, which is not ours, or an orphan of somebody who has entered and ended.
    Unknown,
    /// Its parent has just ended.
    Unsettled,
}

/// A process that was not there at the last look.
struct NewProcess {
    pid: Pid,
    name: String,
    /// Proven; else the first process may have started it.
    has_entered: bool,
}

/// When a process began, in ticks since boot.
fn started(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.0)).ok()?;
    // The name may have anything in it.
    let (_, behind) = text.rsplit_once(')')?;
    const STARTTIME: usize = 22 - 3;
    behind.split_ascii_whitespace().nth(STARTTIME)?.parse().ok()
}

/// Whether the process runs the file that this one runs, or may not be looked at, as processes of ours.
fn runs_this_program(pid: Pid) -> bool {
    let file = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/exe"))?;
        Ok::<_, std::io::Error>((file.dev(), file.ino()))
    };
    match (file("self"), file(&pid.0.to_string())) {
        (Ok(own), Ok(its)) => own == its,
        (_, Err(error)) => error.kind() == std::io::ErrorKind::PermissionDenied,
        (Err(_), _) => false,
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
            bystanders: HashMap::new(),
            ours: vec![Pid(1), Pid(2), Pid(3)],
            perhaps_ours: HashMap::new(),
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
        let origin = |parent, filters| scan.origin(&process(parent, filters), &|_| None);
        assert_eq!(origin(0, 1), ProcessOrigin::Outside);
        assert_eq!(
            origin(1, 1),
            ProcessOrigin::Outside,
            "an orphan of such a one"
        );
        assert_eq!(
            origin(1, 2),
            ProcessOrigin::Known,
            "an orphan with our filter"
        );
        assert_eq!(
            origin(3, 1),
            ProcessOrigin::Known,
            "the command before its filter"
        );
        assert_eq!(
            origin(2, 1),
            ProcessOrigin::Known,
            "an agent, below the keeper"
        );
        let own = std::process::id().cast_signed();
        assert_eq!(
            origin(own, 1),
            ProcessOrigin::Known,
            "a program for an output"
        );
        assert_eq!(
            origin(99, 1),
            ProcessOrigin::Unsettled,
            "its parent has ended"
        );
    }

    #[test]
    fn what_those_start_who_started_us_has_not_entered() {
        let own = Pid(std::process::id().cast_signed());
        let began = started(own).expect("it runs");
        let scan = Scan {
            ours: vec![Pid(-2), Pid(-3)],
            bystanders: [(own, began), (Pid(1), 0)].into(),
            ..scan()
        };
        let above = |pid: Pid| (pid == Pid(40)).then(|| process(1, 1));
        let origin = |parent| scan.origin(&process(parent, 1), &above);
        assert_eq!(origin(own.0), ProcessOrigin::Known);
        assert_eq!(origin(0), ProcessOrigin::Outside);
        // Its child, or an orphan.
        assert_eq!(origin(1), ProcessOrigin::Unknown);
        assert_eq!(origin(40), ProcessOrigin::Unknown);
        assert!(scan.is_bystander(own));
        let reused = Scan {
            bystanders: [(own, began + 1)].into(),
            ..scan
        };
        assert!(!reused.is_bystander(own), "another process has the number");
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
