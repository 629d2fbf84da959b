//! Detects processes that enter the container from outside (`docker exec`, ECS Exec, `nsenter`).
//!
//! Such processes do not descend from the workload and do not have its filter. A process whose parent is
//! outside the pid namespace has entered; it is traced call by call ([`super::engine`]) or, if that is
//! refused, reported. Orphans are children of the first process. Where that is this program, an orphan
//! without the workload's filter comes from a process that entered. Where it is another program, that one may
//! have started the process itself: it is traced, too, but nothing is reported if it has ended before.
//!
//! The kernel does not notify an unprivileged process of new processes, so the monitor polls: the number of
//! the last pid (`/proc/loadavg`) every few milliseconds, the list of processes when it has changed. A
//! process that begins and ends between two polls is missed; a longer one is found.

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

/// Time between two polls of the last pid.
const TICK: Duration = Duration::from_millis(5);
/// Number of ticks after which the processes are listed whatever the last pid is: some containers fake it.
const LIST_EVERY: u32 = 10;
/// Time for which attaching to a process is retried before the failure is reported. A runtime's own process
/// may not be traced; it becomes the requested program within a few milliseconds.
const PATIENCE: Duration = Duration::from_millis(60);
/// Time within which a child of the first process that runs this program must be known as this program's. The
/// next keeper writes its pid down first of all, and wakes the agent.
const INTRODUCTION: Duration = Duration::from_millis(200);
/// Maximum number of parents looked up; more than any real chain.
const ANCESTOR_LIMIT: usize = 64;
/// Link to the initial pid namespace, with its inode (include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Starts the entry monitor, if this program started everything else in its pid namespace. It ends with the
/// supervisor. `filter` selects the calls of entered processes to inspect: compiled with
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
    /// Tracer, started when the first process has entered.
    tracer: Option<Tracer>,
    /// Processes that have entered and are not traced.
    waiting: HashMap<Pid, PendingAttach>,
}

/// Process that is to be traced.
struct PendingAttach {
    name: String,
    since: Instant,
    is_announced: bool,
    /// True if its entry is proven; else the first process may have started it.
    has_entered: bool,
    refusal: TraceObstacle,
}

struct Tracer {
    inbox: Arc<RequestQueue>,
    /// Wakes the thread when it has nothing to trace; dropping it lets the thread end then.
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
                            // Unknown for a process that has ended.
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
                // A process that runs for so short a time may be missed altogether.
                false => !is_over && waiting.since.elapsed() >= PATIENCE,
            };
            if !waiting.is_announced && is_due {
                waiting.is_announced = true;
                let why = if is_over {
                    "it exited before tollgate could attach".to_owned()
                } else {
                    waiting.refusal.to_string()
                };
                // The process may run another program by now.
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

/// Starts a tracer without any process to trace.
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
            // The other end waits for exactly this message.
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

/// Scanner for processes that have entered.
struct Scan {
    last_pid: File,
    last: Vec<u8>,
    known: HashSet<Pid>,
    /// Processes that started this program, and their ancestors, with their start times. Their children
    /// neither belong to the workload nor have entered.
    bystanders: HashMap<Pid, u64>,
    /// This program's processes. They change: keepers are replaced.
    ours: Vec<Pid>,
    /// Processes that may turn out to be this program's, with the time at which they were first seen.
    perhaps_ours: HashMap<Pid, Instant>,
    /// Number of the container's filters on this process; `None` before Linux 5.9.
    own_filters: Option<u32>,
}

/// Fields of `/proc/PID/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: String,
    parent: Pid,
    filters: Option<u32>,
    /// Tid of the tracing thread.
    tracer: Option<i32>,
}

impl Entry {
    fn is_traced_by_us(&self) -> bool {
        let is_ours = |tracer| Path::new(&format!("/proc/self/task/{tracer}")).exists();
        self.tracer.is_some_and(is_ours)
    }
}

impl Scan {
    /// Creates the scanner; `None` if this program did not start everything in its pid namespace.
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
            // No other process can have existed before.
            return Some(scan);
        }
        // The process that started this program exists, too.
        let mut above = entry(ours[0])?.parent;
        while above != Pid(0) && scan.known.insert(above) {
            scan.bystanders.insert(above, started(above)?);
            above = entry(above)?.parent;
        }
        scan.entered().is_empty().then_some(scan)
    }

    /// Returns whether a process or thread may have been made since the last poll.
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

    /// Returns processes that are new since the last poll and belong neither to this program nor to the
    /// workload, nor to the processes that started this program.
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
                // Its parent has ended meanwhile: it has another one at the next poll.
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

    /// Returns whether the process may be a keeper that the first process has just started. A process that
    /// enters and starts this program differs: it does not become known as this program's.
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
        // A process with more filters has this program's, too.
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
            // Below the command's parent is the workload, below the keeper are agents, and below an agent is
            // what it starts itself. Any process's orphans are below the first process.
            if parent != Pid(1) && (self.is_ours(parent) || self.is_bystander(parent)) {
                return ProcessOrigin::Known;
            }
            if parent == Pid(0) {
                return ProcessOrigin::Outside;
            }
            // An orphan's parent is the namespace's first process, whatever process it was born to.
            if parent == Pid(1) {
                return match self.own_filters {
                    // Without the number of filters to recognise the workload's orphans, every orphan counts as one.
                    None => ProcessOrigin::Known,
                    Some(_) if self.is_ours(parent) => ProcessOrigin::Outside,
                    Some(_) => ProcessOrigin::Unknown,
                };
            }
            match entry(parent) {
                // Children of a traced process are traced, too, until it has been reaped.
                Some(above) if above.is_traced_by_us() => return ProcessOrigin::Known,
                Some(above) => parent = above.parent,
                None => return ProcessOrigin::Unsettled,
            }
        }
        ProcessOrigin::Unknown
    }
}

/// Origin of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessOrigin {
    /// The workload, this program, or the processes that started it.
    Known,
    /// Outside the pid namespace.
    Outside,
    /// The first process, if it is not this program, or a process that has entered and ended.
    Unknown,
    /// Not known yet, because its parent has just ended.
    Unsettled,
}

/// Process that is new since the last poll.
struct NewProcess {
    pid: Pid,
    name: String,
    /// True if its entry is proven; else the first process may have started it.
    has_entered: bool,
}

/// Returns the start time of a process, in ticks since boot.
fn started(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.0)).ok()?;
    // The name may contain any character.
    let (_, behind) = text.rsplit_once(')')?;
    const STARTTIME: usize = 22 - 3;
    behind.split_ascii_whitespace().nth(STARTTIME)?.parse().ok()
}

/// Returns whether the process runs this program's executable; true if that cannot be read, as for this
/// program's own processes.
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
        // A child of it, or an orphan.
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
