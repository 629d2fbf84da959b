//! The watched processes: identity, parentage and executed programs.
//!
//! A process is keyed by pid while its pidfd shows that it lives, and by pid and start time afterwards. The
//! tree enters it when its first call is trapped. Forks and ends of processes are not trapped (`abi::FLOOR`
//! says why), so the parent of a process that was orphaned before its first call is found by the mark that it
//! inherited ([`super::lineage`]). Where marks cannot be given the parent is inferred from what else a child
//! inherits, and counted as a guess. The parent is always a process of the workload, never the process that
//! reaps the orphan.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use event::{Comm, Credentials, Denial, DenialId, Image, Pid, Process, StartTime, Tid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::time::{Clock, now_ns};

use super::counters::Counters;
use super::lineage::{InheritedState, Lineage};
use super::process_inspector::{Identity, ProcessInspector};
use super::runtime_process::RuntimeProcess;
use super::stdio::Effect;
use process_info::procfs::{LINK_LIMIT, start_ns};

/// Number of dead processes remembered, to recognise children that had not made a call yet when their parent ended.
const RECENT_DEATHS: usize = 256;
/// Maximum number of ancestors looked up above the workload; more than any real chain.
const ANCESTOR_LIMIT: usize = 64;
/// Maximum number of processes identified by pidfd. The others are identified by pid and start time, which
/// costs a read of `/proc` for each call. Below the usual soft limit of 1024 descriptors.
const PIDFD_LIMIT: usize = 512;
/// Resolution of start times, in nanoseconds: one clock tick.
const START_RESOLUTION_NS: u64 = 10_000_000;
/// Number of threads whose process is cached; the cache is cleared beyond it.
const THREAD_CACHE: usize = 8192;
/// Maximum number of ancestors kept for a process; a longer line loses those in the middle.
const LINE_LIMIT: usize = 1024;
/// Minimum number of entries added between two sweeps for ended processes.
const SWEEP_AFTER: usize = 64;

/// State of a container's first program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitProgramState {
    /// The program may have begun.
    Perhaps,
    /// The program has not begun.
    No,
}

/// The process tree. Any receiver may call any method.
pub struct Tree {
    inner: Mutex<Inner>,
    /// Reader of information about processes.
    pub inspector: ProcessInspector,
    /// Number of open pidfds, limited so that descriptors are left for everything else.
    pidfds: AtomicUsize,
    /// The marks; `None` for an engine that sees every birth.
    lineage: Option<Mutex<Lineage>>,
    /// The agent and its front process. The workload's parent is the process that started *them*.
    transparent: Vec<Pid>,
    setup: Option<Setup>,
    /// True once a program of the container may run. Until then all processes belong to the runtime.
    has_begun: AtomicBool,
    /// True if processes were entered that ran already.
    has_adopted: AtomicBool,
    /// True if a process had memory that its children share.
    has_shared_memory: AtomicBool,
    /// True if a process could not be marked: the parents of later processes are uncertain then.
    has_unmarked: AtomicBool,
    /// Monotonic time at which the last denial ends, in nanoseconds; 0 without one, the maximum for never.
    denied_until_ns: AtomicU64,
}

/// Configuration for a workload whose first process is a container runtime. The container begins with the
/// first program that runs in other mounts than the runtime does.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The runtime's mount namespace.
    pub mount_namespace: u64,
}

#[derive(Default)]
struct Inner {
    nodes: HashMap<Pid, Node>,
    threads: HashMap<Tid, Pid>,
    /// Processes that ended, oldest first.
    recent_deaths: VecDeque<Arc<Process>>,
    /// The workload's first process, an ancestor of all others.
    root: Option<Arc<Process>>,
    added_since_sweep: usize,
}

struct Node {
    process: Arc<Process>,
    /// Readable when the process has ended; `None` if it could not be opened.
    pidfd: Option<OwnedFd>,
    /// Origin of the process: the workload, or an ancestor of it.
    origin: Origin,
    /// True if one of descriptors 0..2 may be closed, or may close at the next exec. Inherited by fork.
    stdio_suspect: bool,
    /// True if the process may hold a socket: it or an ancestor made one, or the workload was started with
    /// one. Accepting and receiving sockets takes a socket, too. Inherited by fork.
    has_sockets: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// A process under the filter.
    Watched,
    /// An ancestor of the workload.
    Outside,
}

impl Node {
    fn is_alive(&self, inspector: &ProcessInspector) -> bool {
        match &self.pidfd {
            Some(pidfd) => !has_ended(pidfd),
            // Without a pidfd the pid may have been reused, so the start time decides.
            None => {
                inspector.identity(self.process.pid).map(|who| who.start)
                    == Some(self.process.start)
            }
        }
    }
}

impl Tree {
    /// Creates an empty tree. `transparent`: processes that are skipped as parents.
    pub fn new(transparent: Vec<Pid>) -> Result<Self, process_info::procfs::ProcError> {
        Ok(Self {
            inner: Mutex::new(Inner::default()),
            inspector: ProcessInspector::new()?,
            pidfds: AtomicUsize::new(0),
            lineage: None,
            transparent,
            setup: None,
            has_begun: AtomicBool::new(true),
            has_adopted: AtomicBool::new(false),
            has_shared_memory: AtomicBool::new(false),
            has_unmarked: AtomicBool::new(false),
            denied_until_ns: AtomicU64::new(0),
        })
    }

    /// Makes the tree mark processes.
    pub fn with_marks(self) -> Self {
        let lineage = Some(Mutex::default());
        Self { lineage, ..self }
    }

    /// Makes the tree distinguish a container runtime from the container.
    pub fn with_setup(self, setup: Setup) -> Self {
        Self {
            setup: Some(setup),
            has_begun: AtomicBool::new(false),
            ..self
        }
    }

    /// Notes that a program of the workload has been executed: it may be the container's first.
    pub fn executed(&self, process: &Process) {
        if process.sets_up() && !self.is_in_setup_mounts(process.pid) {
            self.has_begun.store(true, Ordering::Release);
            process.set_sets_up(false);
        }
    }

    /// Returns whether processes may have come with a root that is not this program's.
    pub fn may_have_roots(&self) -> bool {
        self.has_setup() || self.has_adopted.load(Ordering::Acquire)
    }

    /// Notes that a process has memory that its children share.
    pub fn note_shared_memory(&self) {
        self.has_shared_memory.store(true, Ordering::Release);
    }

    /// Returns whether the tree distinguishes a runtime from its container.
    pub fn has_setup(&self) -> bool {
        self.setup.is_some()
    }

    /// Returns whether a process sees the runtime's mounts. A process that cannot be inspected counts as the
    /// container's, so that its calls are evaluated.
    pub fn is_in_setup_mounts(&self, pid: Pid) -> bool {
        let namespace = self.inspector.mount_namespace(pid);
        let setup = self.setup.map(|setup| setup.mount_namespace);
        setup.is_some() && setup == namespace
    }

    /// Returns this program's processes between the workload and the process that started it.
    pub fn transparent(&self) -> &[Pid] {
        &self.transparent
    }

    /// Returns the process that thread `tid` belongs to; `None` if it is gone.
    pub fn of_thread(&self, tid: Tid, counters: &Counters) -> Option<Arc<Process>> {
        if let Some(process) = self.known(tid) {
            return Some(process);
        }
        // A pidfd opens for thread-group leaders only, so success proves that `tid` is one.
        if let Ok(pidfd) = sys::pidfd::open(tid.0) {
            return self.enter(Pid(tid.0), Some(pidfd), counters);
        }
        let pid = self.inspector.thread_group(tid)?;
        if pid.0 != tid.0 {
            let mut inner = self.inner();
            if inner.threads.len() >= THREAD_CACHE {
                inner.threads.clear();
            }
            inner.threads.insert(tid, pid);
        }
        let pidfd = sys::pidfd::open(pid.0).ok();
        self.enter(pid, pidfd, counters)
    }

    /// Returns whether a process runs, if its pidfd can tell.
    pub fn is_alive(&self, process: &Process) -> Option<bool> {
        self.with_pidfd(process, |pidfd| !has_ended(pidfd))
    }

    /// Returns the credentials of a process, if its pidfd can tell (Linux 6.13).
    pub fn credentials(&self, process: &Process) -> Option<Credentials> {
        let info = self.with_pidfd(process, |pidfd| sys::pidfd::info(pidfd.as_fd()).ok())??;
        let (uid, gid) = (info.uid, info.gid);
        Some(Credentials { uid, gid })
    }

    fn with_pidfd<T>(&self, process: &Process, ask: impl FnOnce(&OwnedFd) -> T) -> Option<T> {
        let inner = self.inner();
        let node = inner.nodes.get(&process.pid)?;
        let same = node.process.start == process.start;
        node.pidfd.as_ref().filter(|_| same).map(ask)
    }

    /// Returns whether calls are withheld from any process.
    pub fn has_denials(&self) -> bool {
        let until = self.denied_until_ns.load(Ordering::Acquire);
        until != 0 && (until == u64::MAX || now_ns(Clock::Monotonic) < until)
    }

    /// Withholds calls from a process of the tree and its descendants.
    pub fn deny(&self, process: &Process, denial: Denial) {
        let until = denial.until_ns.unwrap_or(u64::MAX);
        process.deny(denial);
        self.denied_until_ns.fetch_max(until, Ordering::AcqRel);
    }

    /// Returns a process that is in the tree, or was until it ended a moment ago: it may have descendants.
    pub fn remembered(&self, (pid, start): (Pid, StartTime)) -> Option<Arc<Process>> {
        let inner = self.inner();
        let known = inner.nodes.get(&pid).map(|node| &node.process);
        let mut all = known.into_iter().chain(inner.recent_deaths.iter().rev());
        all.find(|process| process.pid == pid && process.start == start)
            .cloned()
    }

    /// Leaves a process and its descendants out of a denial of an ancestor. Returns false if the process has ended.
    pub fn spare(&self, (pid, start): (Pid, StartTime), denial: DenialId) -> bool {
        // A process that has made no call yet.
        let found = self.of_thread(Tid(pid.0), &Counters::default());
        let found = found.filter(|process| process.start == start);
        if let Some(process) = &found {
            process.spare(denial);
        }
        found.is_some()
    }

    /// Returns a process that is already in the tree.
    pub fn find(&self, pid: Pid) -> Option<Arc<Process>> {
        self.inner()
            .nodes
            .get(&pid)
            .map(|node| Arc::clone(&node.process))
    }

    /// Enters a running workload: the processes that descend from transparent processes. Their earlier calls
    /// are unknown, so each may hold a socket.
    pub fn adopt(&self, begun: InitProgramState) {
        self.has_adopted.store(true, Ordering::Release);
        if begun == InitProgramState::Perhaps {
            self.has_begun.store(true, Ordering::Release);
        }
        for top in &self.transparent {
            let parent = self.outside(*top, 0);
            let mut born: Vec<(Pid, Option<Arc<Process>>)> = Vec::new();
            let children = self.inspector.children(*top).into_iter();
            born.extend(children.map(|child| (child, parent.clone())));
            while let Some((pid, parent)) = born.pop() {
                if self.transparent.contains(&pid) || self.find(pid).is_some() {
                    continue;
                }
                let Some(identity) = self.inspector.identity(pid) else {
                    continue;
                };
                let pidfd = sys::pidfd::open(pid.0).ok();
                let process = self.insert(&identity, pidfd, parent, Origin::Watched);
                // Not the parent's image: the process may have called exec.
                process.exec(Arc::new(Image::default()), identity.comm);
                match begun {
                    InitProgramState::Perhaps => self.executed(&process),
                    InitProgramState::No => process.set_sets_up(true),
                }
                let is_whole =
                    self.inspector.has_stdio(pid) && !self.inspector.closes_stdio_on_exec(pid);
                if let Some(node) = self.inner().nodes.get_mut(&pid) {
                    node.stdio_suspect = !is_whole;
                    node.has_sockets = true;
                }
                let children = self.inspector.children(pid).into_iter();
                born.extend(children.map(|child| (child, Some(Arc::clone(&process)))));
            }
        }
        if let Some(lineage) = &self.lineage {
            let mut lineage = lineage.lock().unwrap_or_else(PoisonError::into_inner);
            lineage.begin();
        }
    }

    /// Enters the runtime that starts a session: the process from which all others of the session descend. It may
    /// have ended.
    pub fn begin_with(&self, runtime: &RuntimeProcess) {
        let identity = runtime.identity();
        let known = self.find(identity.pid);
        let known = known.filter(|process| process.start == identity.start);
        let process = known.unwrap_or_else(|| {
            let parent = self.outside(identity.ppid, 0);
            let pidfd = sys::pidfd::open(identity.pid.0).ok();
            // Opened first: a pid that still means this process is not reused while it is open.
            let now = self.inspector.identity(identity.pid);
            let is_there = now.is_some_and(|now| now.start == identity.start);
            let pidfd = pidfd.filter(|_| is_there);
            self.insert(&identity, pidfd, parent, Origin::Watched)
        });
        process.exec(Arc::new(runtime.image()), identity.comm);
        if let (Some(mark), Some(lineage)) = (runtime.mark(), &self.lineage) {
            let mut lineage = lineage.lock().unwrap_or_else(PoisonError::into_inner);
            lineage.remember(mark, &process);
        }
    }

    /// Returns whether every visible process belongs to the workload or the agent.
    pub fn is_whole_namespace(&self) -> bool {
        self.transparent.contains(&Pid(1))
    }

    /// Returns the processes of the workload that have been seen, including those that have just ended.
    pub fn watched(&self) -> Vec<Arc<Process>> {
        let inner = self.inner();
        let nodes = inner.nodes.values();
        nodes
            .filter(|node| node.origin == Origin::Watched)
            .map(|node| Arc::clone(&node.process))
            .collect()
    }

    /// Enters a process that was not born to the workload, as a child of its own parent.
    pub fn attach(&self, pid: Pid) -> Option<Arc<Process>> {
        let identity = self.inspector.identity(pid)?;
        let parent = self
            .find(identity.ppid)
            .or_else(|| self.outside(identity.ppid, 0));
        let pidfd = sys::pidfd::open(pid.0).ok();
        let process = self.insert(&identity, pidfd, parent, Origin::Watched);
        if let Some(node) = self.inner().nodes.get_mut(&pid) {
            node.origin = Origin::Watched;
        }
        process.set_has_entered();
        // Not the parent's image: the process may have called exec.
        process.exec(Arc::new(Image::default()), identity.comm);
        Some(process)
    }

    /// Enters a child whose parent is certain. A child that is known already by a guess gets this parent.
    pub fn born(&self, child: Pid, parent: &Arc<Process>) {
        let Some(identity) = self.inspector.identity(child) else {
            return;
        };
        let pidfd = sys::pidfd::open(child.0).ok();
        let process = self.insert(&identity, pidfd, Some(Arc::clone(parent)), Origin::Watched);
        let known = process.parent();
        let is_right = known
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, parent));
        // The parent of a process cannot descend from it, unless that is a guess as well.
        if !is_right && descends(parent, &process) {
            return;
        }
        process.set_certain_parent(Arc::clone(parent));
        if !is_right {
            self.inherit_from(&process, known.as_ref(), parent, &identity);
        }
    }

    /// Enters a process whose birth nobody reports. `shown`: the parent that `/proc` showed at its first stop, which is the
    /// likely one.
    pub fn born_to_likely_parent(
        &self,
        child: Pid,
        shown: Option<Arc<Process>>,
        counters: &Counters,
    ) {
        let Some(identity) = self.inspector.identity(child) else {
            return;
        };
        let known = self.find(child);
        if known.is_some_and(|known| known.start == identity.start) {
            return;
        }
        let shown = shown.filter(|parent| self.is_watched(parent));
        let inherited = self.inherited(child);
        let (parent, is_guess) = match shown {
            Some(parent) => (Some(parent), false),
            None => self.parent_of(&identity, inherited, counters),
        };
        if !is_guess {
            Counters::add(&counters.guessed_parents);
        }
        let pidfd = sys::pidfd::open(child.0).ok();
        let process = self.insert_with(&identity, pidfd, parent, Origin::Watched, inherited);
        self.note_entered(&process, true);
    }

    /// Gives a process what it has inherited from its parent, in the place of what it would have from the
    /// former one, unless it has called exec since.
    fn inherit_from(
        &self,
        process: &Arc<Process>,
        former: Option<&Arc<Process>>,
        parent: &Arc<Process>,
        identity: &Identity,
    ) {
        let image = process.image();
        let of_former = |former: &Arc<Process>| {
            let images = former.images();
            images.iter().any(|known| Arc::ptr_eq(known, &image))
        };
        if former.is_some_and(of_former) {
            let comm = process.last_comm();
            process.exec(self.inherited_image(Some(parent), identity), comm);
            process.set_sets_up(parent.sets_up());
        }
        inherit_memory(Some(parent), process);
        let mut inner = self.inner();
        let inherited = inner.nodes.get(&parent.pid);
        let inherited = inherited.map(|node| (node.stdio_suspect, node.has_sockets));
        if let Some((stdio_suspect, has_sockets)) = inherited
            && let Some(node) = inner.nodes.get_mut(&process.pid)
        {
            node.stdio_suspect |= stdio_suspect;
            node.has_sockets |= has_sockets;
        }
    }

    /// Enters the unseen children of a process whose state is about to change.
    fn claim_children(&self, process: &Arc<Process>) {
        for child in self.inspector.children(process.pid) {
            if self.find(child).is_none()
                && let Some(stat) = self.inspector.identity(child)
            {
                let pidfd = sys::pidfd::open(child.0).ok();
                self.insert(&stat, pidfd, Some(Arc::clone(process)), Origin::Watched);
            }
        }
    }

    /// Returns whether a plain `dup` in the process may give one of descriptors 0..2 to a socket.
    pub fn may_redirect(&self, process: &Process, any: bool) -> bool {
        let inner = self.inner();
        let may = |node: &Node| node.stdio_suspect && (any || node.has_sockets);
        inner.nodes.get(&process.pid).is_some_and(may)
    }

    /// Notes that one of descriptors 0..2 of the process is about to be closed, now or at its next exec.
    fn suspect_stdio(&self, process: &Process) {
        if let Some(node) = self.inner().nodes.get_mut(&process.pid) {
            node.stdio_suspect = true;
        }
    }

    /// Notes the effect of a call on descriptors 0..2. Returns true if from this call on the process is to be
    /// followed call by call, because a plain `dup` may give one of them to a socket. `any`: to any file.
    /// `is_followed`: the process is followed already, or need not be.
    pub fn keep_stdio(
        &self,
        process: &Process,
        effect: Effect,
        any: bool,
        is_followed: impl FnOnce() -> bool,
    ) -> bool {
        match effect {
            Effect::None => return false,
            Effect::ClosesOnExec => {
                self.suspect_stdio(process);
                return false;
            }
            Effect::Closes => self.suspect_stdio(process),
            Effect::MakesSocket => self.makes_socket(process),
        }
        if !self.may_redirect(process, any) || is_followed() {
            return false;
        }
        // Shells close standard output on the way to redirecting it; by now it is open again.
        let pid = process.pid;
        if effect == Effect::MakesSocket
            && self.inspector.has_stdio(pid)
            && !self.inspector.closes_stdio_on_exec(pid)
        {
            self.clear_stdio(pid);
            return false;
        }
        // The sockets that it had may be closed, and only a trapped call can give it another.
        any || effect == Effect::MakesSocket || !self.has_lost_sockets(process.pid)
    }

    /// Returns whether a process that had sockets has none any more. A socket made meanwhile counts.
    pub fn has_lost_sockets(&self, pid: Pid) -> bool {
        // Children that have not been seen yet may have inherited the sockets.
        if let Some(process) = self.find(pid) {
            self.claim_children(&process);
        }
        let set = |has_sockets: bool| {
            if let Some(node) = self.inner().nodes.get_mut(&pid) {
                node.has_sockets = has_sockets;
            }
        };
        // Clear the flag before the check: a thread that makes a socket meanwhile sets it again.
        set(false);
        if self.inspector.has_socket(pid) {
            set(true);
        }
        !self.has_sockets(pid)
    }

    /// Returns whether a process has sockets, as far as the engine has seen.
    pub fn has_sockets(&self, pid: Pid) -> bool {
        let inner = self.inner();
        inner.nodes.get(&pid).is_none_or(|node| node.has_sockets)
    }

    /// Notes that the process is about to make a socket.
    fn makes_socket(&self, process: &Process) {
        if let Some(node) = self.inner().nodes.get_mut(&process.pid) {
            node.has_sockets = true;
        }
    }

    /// Notes that descriptors 0..2 are open, none of them close-on-exec. Children that have not been seen yet
    /// keep the state of their fork.
    pub fn clear_stdio(&self, pid: Pid) {
        if let Some(process) = self.find(pid) {
            self.claim_children(&process);
        }
        if let Some(node) = self.inner().nodes.get_mut(&pid) {
            node.stdio_suspect = false;
        }
    }

    fn known(&self, tid: Tid) -> Option<Arc<Process>> {
        let inspector = &self.inspector;
        let inner = self.inner();
        if let Some(node) = inner.nodes.get(&Pid(tid.0)) {
            return node.is_alive(inspector).then(|| Arc::clone(&node.process));
        }
        let pid = *inner.threads.get(&tid)?;
        let node = inner.nodes.get(&pid)?;
        let belongs = node.is_alive(inspector) && self.inspector.has_thread(pid, tid);
        belongs.then(|| Arc::clone(&node.process))
    }

    fn enter(&self, pid: Pid, pidfd: Option<OwnedFd>, counters: &Counters) -> Option<Arc<Process>> {
        let identity = self.inspector.identity(pid)?;
        // Start times have a resolution of 10 ms: within one tick a pid may be reused.
        if let Some(process) = self.find(pid)
            && process.start == identity.start
            && self.is_alive(&process) != Some(false)
        {
            return Some(process);
        }
        let inherited = self.inherited(pid);
        let (parent, is_guess) = self.parent_of(&identity, inherited, counters);
        let process = self.insert_with(&identity, pidfd, parent, Origin::Watched, inherited);
        self.note_entered(&process, is_guess);
        Some(process)
    }

    /// Notes what is uncertain about a process that has been entered. `is_guess`: its parent is.
    fn note_entered(&self, process: &Process, is_guess: bool) {
        if is_guess {
            process.set_has_likely_parent();
        }
        if self.has_shared_memory.load(Ordering::Acquire)
            && (is_guess || self.has_unmarked.load(Ordering::Acquire))
        {
            // Its parent is not certain.
            process.set_may_share_memory(true);
            process.set_children_may_share_memory();
        }
        if !self.has_begun.load(Ordering::Acquire) {
            process.set_sets_up(true);
        } else if is_guess {
            // A process that may be the container's own is evaluated fully.
            process.set_sets_up(false);
        }
    }

    /// Returns the true parent of a newly seen process, and whether that is a guess.
    fn parent_of(
        &self,
        identity: &Identity,
        inherited: Option<InheritedState>,
        counters: &Counters,
    ) -> (Option<Arc<Process>>, bool) {
        let living = self.find(identity.ppid);
        let living = living.filter(|parent| self.is_watched(parent));
        match (living, self.nearest_ancestor(inherited)) {
            // A process of the workload that adopts orphans.
            (Some(living), Some(nearest)) if !descends(&living, &nearest) => {
                return (Some(nearest), false);
            }
            (Some(parent), _) | (None, Some(parent)) => return (Some(parent), false),
            (None, None) => {}
        }
        if let Some(parent) = self.likely_parent(identity) {
            Counters::add(&counters.guessed_parents);
            return (Some(parent), true);
        }
        (self.outside(identity.ppid, 0), false)
    }

    /// Returns the mark that a process has inherited, if this tree marks processes.
    fn inherited(&self, pid: Pid) -> Option<InheritedState> {
        self.lineage.as_ref()?;
        self.inspector.inherited(pid)
    }

    fn nearest_ancestor(&self, inherited: Option<InheritedState>) -> Option<Arc<Process>> {
        let lineage = self.lineage.as_ref()?;
        let inherited = inherited?;
        let lineage = lineage.lock().unwrap_or_else(PoisonError::into_inner);
        lineage.nearest(inherited).cloned()
    }

    /// Marks a process that has just been entered.
    fn mark(&self, process: &Arc<Process>, inherited: Option<InheritedState>) {
        if let Some(lineage) = &self.lineage
            && let Some(inherited) = inherited
        {
            let mut lineage = lineage.lock().unwrap_or_else(PoisonError::into_inner);
            let is_marked = lineage.mark(process, inherited);
            self.has_unmarked.fetch_or(!is_marked, Ordering::AcqRel);
        }
    }

    /// Guesses the parent of an orphan by what a child inherits: the name first, then the session. Returns
    /// `None` for the workload's first process, which is not an orphan.
    fn likely_parent(&self, child: &Identity) -> Option<Arc<Process>> {
        let mut inner = self.inner();
        let root = inner.root.clone()?;
        self.sweep(&mut inner);
        let fits = |process: &Arc<Process>| {
            process.start <= child.start && process.last_comm() == child.comm
        };
        let dead = inner.recent_deaths.iter().rev().find(|dead| fits(dead));
        let watched =
            |node: &&Node| node.origin == Origin::Watched && node.process.pid != child.pid;
        let living = || {
            let nodes = inner.nodes.values().filter(watched);
            let fitting = nodes.filter(|node| fits(&node.process));
            fitting
                .max_by_key(|node| node.process.start)
                .map(|node| &node.process)
        };
        let leader = || {
            let leader = inner.nodes.get(&child.session).filter(watched);
            leader.map(|node| &node.process)
        };
        Some(
            dead.or_else(living)
                .or_else(leader)
                .cloned()
                .unwrap_or(root),
        )
    }

    /// Enters a process that is not watched: an ancestor of the workload.
    fn outside(&self, pid: Pid, depth: usize) -> Option<Arc<Process>> {
        if pid.0 <= 0 || depth > ANCESTOR_LIMIT {
            return None;
        }
        let identity = self.inspector.identity(pid)?;
        if self.transparent.contains(&pid) {
            return self.outside(identity.ppid, depth + 1);
        }
        if let Some(known) = self.find(pid) {
            return Some(known);
        }
        let parent = self.outside(identity.ppid, depth + 1);
        let pidfd = sys::pidfd::open(pid.0).ok();
        Some(self.insert(&identity, pidfd, parent, Origin::Outside))
    }

    fn insert(
        &self,
        identity: &Identity,
        pidfd: Option<OwnedFd>,
        parent: Option<Arc<Process>>,
        origin: Origin,
    ) -> Arc<Process> {
        let inherited = match origin {
            Origin::Watched => self.inherited(identity.pid),
            Origin::Outside => None,
        };
        self.insert_with(identity, pidfd, parent, origin, inherited)
    }

    /// As [`Tree::insert`], with the mark that the process has inherited.
    fn insert_with(
        &self,
        identity: &Identity,
        pidfd: Option<OwnedFd>,
        parent: Option<Arc<Process>>,
        origin: Origin,
        inherited: Option<InheritedState>,
    ) -> Arc<Process> {
        let pid = identity.pid;
        let spare = self.pidfds.load(Ordering::Relaxed) < PIDFD_LIMIT;
        let pidfd = pidfd.filter(|_| spare);
        let image = self.inherited_image(parent.as_ref(), identity);
        let process = Arc::new(Process::new(
            pid,
            identity.start,
            start_ns(identity.start),
            parent.clone(),
            image,
            identity.comm,
        ));
        if origin == Origin::Watched {
            process.set_name(identity.comm);
        }
        let from = parent.as_ref().filter(|parent| self.is_watched(parent));
        let first_of_the_workload = origin == Origin::Watched && from.is_none();
        let mut has_sockets = first_of_the_workload && self.inspector.has_socket(pid);
        let is_of_runtime = parent.as_ref().is_some_and(|parent| parent.sets_up());
        let mut inner = self.inner();
        // Only the very first: a process whose parent is uncertain may be the container's.
        let is_runtime = first_of_the_workload && inner.root.is_none() && self.setup.is_some();
        process.set_sets_up(is_of_runtime || is_runtime);
        inherit_memory(parent.as_deref(), &process);
        if let Some(known) = inner.living(identity) {
            return known;
        }
        let mut stdio_suspect = false;
        if let Some(parent) = parent.and_then(|parent| inner.nodes.get_mut(&parent.pid)) {
            stdio_suspect = parent.stdio_suspect;
            if parent.origin == Origin::Watched {
                has_sockets = parent.has_sockets;
            }
        }
        let node = Node {
            process: Arc::clone(&process),
            pidfd,
            origin,
            stdio_suspect,
            has_sockets,
        };
        if first_of_the_workload {
            inner.root.get_or_insert_with(|| Arc::clone(&process));
        }
        self.add_node(&mut inner, node);
        drop(inner);
        if origin == Origin::Watched {
            shorten_line(&process);
            self.mark(&process, inherited);
        }
        process
    }

    /// Puts a node in the place of a former process of this pid, counts the pidfds that are open, and sweeps
    /// after many additions.
    fn add_node(&self, inner: &mut Inner, node: Node) {
        let held = |node: &Node| usize::from(node.pidfd.is_some());
        self.pidfds.fetch_add(held(&node), Ordering::Relaxed);
        if let Some(former) = inner.nodes.insert(node.process.pid, node) {
            self.pidfds.fetch_sub(held(&former), Ordering::Relaxed);
        }
        inner.added_since_sweep += 1;
        if inner.added_since_sweep > SWEEP_AFTER.max(inner.nodes.len() / 2) {
            self.sweep(inner);
        }
    }

    /// Returns the image of a forked child: the image that its parent had at the fork, if the parent is
    /// watched. The workload's first process runs the agent's own code until its first exec, and no rule asks
    /// about that. Where the parent has called exec so often since that the image is forgotten, the child's
    /// own is read on demand; its name is that of the oldest known image, never one that the child gave
    /// itself.
    fn inherited_image(&self, parent: Option<&Arc<Process>>, child: &Identity) -> Arc<Image> {
        let Some(parent) = parent.filter(|parent| self.is_watched(parent)) else {
            return Arc::default();
        };
        let born_ns = start_ns(child.start);
        let images = parent.images();
        let oldest = images.last().and_then(|image| image.name.get().copied());
        let mut possible = images;
        possible.retain(|image| image.exec_time_ns <= born_ns + START_RESOLUTION_NS);
        // Images older than the first that certainly began before the fork are excluded.
        let certain = possible
            .iter()
            .position(|image| image.exec_time_ns <= born_ns);
        possible.truncate(certain.map_or(possible.len(), |at| at + 1));
        if possible.len() > 1 {
            possible = self.images_of(child, possible);
        }
        possible.into_iter().next().unwrap_or_else(|| {
            let name = oldest.map(std::sync::OnceLock::from).unwrap_or_default();
            Arc::new(Image {
                name,
                ..Image::default()
            })
        })
    }

    /// Returns those of `images` that match the child's program, likeliest first. The name alone does not
    /// decide: a process can take any name before it forks.
    fn images_of(&self, child: &Identity, images: Vec<Arc<Image>>) -> Vec<Arc<Image>> {
        let mut buffer = [0; LINK_LIMIT];
        let program = self
            .inspector
            .link(Tid(child.pid.0), "exe", &mut buffer)
            .ok();
        let is_program = |image: &&Arc<Image>| {
            let path = image.executable.get().and_then(Option::as_deref);
            program.is_some() && path == program
        };
        let mut fitting: Vec<_> = images.iter().filter(is_program).cloned().collect();
        if fitting.is_empty() {
            fitting = images;
        }
        // Without a distinctive name, prefer the image before the exec.
        fitting.reverse();
        let named = |image: &Arc<Image>| image.name.get() == Some(&child.comm);
        fitting.sort_by_key(|image| !named(image));
        fitting
    }

    fn sweep(&self, inner: &mut Inner) {
        let closed = inner.sweep(&self.inspector);
        self.pidfds.fetch_sub(closed, Ordering::Relaxed);
    }

    fn is_watched(&self, process: &Process) -> bool {
        let inner = self.inner();
        let node = inner.nodes.get(&process.pid);
        // Ancestors of the workload are never swept.
        process.has_exited() || node.is_some_and(|node| node.origin == Origin::Watched)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns the process that is known under this identity and has not ended.
    fn living(&self, identity: &Identity) -> Option<Arc<Process>> {
        let node = self.nodes.get(&identity.pid)?;
        let is_living = node.process.start == identity.start
            && node.pidfd.as_ref().is_none_or(|pidfd| !has_ended(pidfd));
        is_living.then(|| Arc::clone(&node.process))
    }

    /// Drops ended processes and returns the number of pidfds closed. Amortised: a sweep checks no more
    /// entries than were added since the previous sweep, times a small constant. Children keep their
    /// ancestors alive by reference.
    fn sweep(&mut self, inspector: &ProcessInspector) -> usize {
        let mut closed = 0;
        self.added_since_sweep = 0;
        let ended: Vec<Pid> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.origin == Origin::Watched && !node.is_alive(inspector))
            .map(|(pid, _)| *pid)
            .collect();
        for pid in ended {
            let Some(node) = self.nodes.remove(&pid) else {
                continue;
            };
            node.process.set_exited();
            closed += usize::from(node.pidfd.is_some());
            self.recent_deaths.push_back(node.process);
        }
        while self.recent_deaths.len() > RECENT_DEATHS {
            self.recent_deaths.pop_front();
        }
        let nodes = &self.nodes;
        self.threads.retain(|_, pid| nodes.contains_key(pid));
        closed
    }
}

/// Marks a child whose parent made it so that both may share memory.
fn inherit_memory(parent: Option<&Process>, process: &Process) {
    if parent.is_some_and(Process::children_may_share_memory) {
        process.set_may_share_memory(true);
        process.set_children_may_share_memory();
    }
}

/// Drops ancestors from the middle of a long line: one in which each process makes the next and ends would
/// grow for ever. The workload's first processes and the nearest ancestors stay.
fn shorten_line(process: &Arc<Process>) {
    let ancestors = std::iter::successors(process.parent(), |process| process.parent());
    let line: Vec<Arc<Process>> = ancestors.take(LINE_LIMIT + 1).collect();
    if line.len() <= LINE_LIMIT {
        return;
    }
    let pairs = line.windows(2).skip(LINE_LIMIT / 2);
    for pair in pairs {
        if pair[1].has_exited() {
            pair[0].drop_parent();
            return;
        }
    }
}

/// Returns whether `process` is `ancestor` or descends from it.
fn descends(process: &Arc<Process>, ancestor: &Arc<Process>) -> bool {
    let mut next = Some(Arc::clone(process));
    while let Some(process) = next {
        if Arc::ptr_eq(&process, ancestor) {
            return true;
        }
        next = process.parent();
    }
    false
}

/// Returns a stand-in for a caller about which nothing can be read.
pub fn stranger(tid: Tid) -> Process {
    let image = Arc::new(Image::default());
    Process::new(Pid(tid.0), StartTime(0), 0, None, image, Comm::new(b""))
}

/// Returns whether the process of a pidfd has ended: the descriptor becomes readable when the last thread is gone.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(pidfd, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    matches!(poll(&mut polled, Some(&now)), Ok(ready) if ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_looked_for_until_the_last_one_is_over() {
        let tree = Tree::new(Vec::new()).expect("/proc is there");
        let process = stranger(Tid(1));
        let now = now_ns(Clock::Monotonic);
        let deny = |until_ns| {
            let (id, calls) = (DenialId(1), vec![abi::Deniable::Exec]);
            tree.deny(
                &process,
                Denial {
                    id,
                    calls,
                    until_ns,
                },
            );
            tree.has_denials()
        };
        assert!(!deny(Some(now)));
        assert!(deny(Some(now + 600_000_000_000)));
        assert!(deny(Some(now)));
        assert!(deny(None));
    }

    #[test]
    fn a_birth_that_is_reported_late_puts_a_guessed_parent_right() {
        let tree = Tree::new(Vec::new()).expect("/proc is there");
        let counters = Counters::default();
        let sleeper = || {
            let mut sleep = std::process::Command::new("sleep");
            sleep.arg("60").spawn().expect("it starts")
        };
        let (mut shown, mut true_parent, mut child) = (sleeper(), sleeper(), sleeper());
        let enter = |process: &std::process::Child| {
            let entered = tree.attach(Pid(process.id().cast_signed()));
            entered.expect("it runs")
        };
        let (grandparent, parent) = (enter(&shown), enter(&true_parent));
        let pid = Pid(child.id().cast_signed());
        for process in [&grandparent, &parent] {
            let calls = vec![abi::Deniable::Exec];
            let (id, until_ns) = (DenialId(1), None);
            tree.deny(
                process,
                Denial {
                    id,
                    calls,
                    until_ns,
                },
            );
        }
        tree.born_to_likely_parent(pid, Some(Arc::clone(&grandparent)), &counters);
        let entered = tree.find(pid).expect("it was entered");
        let is_child_of = |parent| {
            let known = entered.parent();
            known.is_some_and(|known| Arc::ptr_eq(&known, parent))
        };
        assert!(is_child_of(&grandparent));
        assert!(!entered.is_denied(abi::Deniable::Exec, 0), "a guess");
        assert_eq!(counters.snapshot().guessed_parents, 1);
        tree.born(pid, &parent);
        assert!(is_child_of(&parent));
        assert!(entered.is_denied(abi::Deniable::Exec, 0));
        // No process descends from its own child.
        tree.born(parent.pid, &entered);
        let above = parent.parent();
        assert!(above.is_none_or(|above| !Arc::ptr_eq(&above, &entered)));
        for process in [&mut shown, &mut true_parent, &mut child] {
            process.kill().expect("it runs");
            process.wait().expect("it ended");
        }
    }

    #[test]
    fn a_process_that_has_just_ended_is_remembered() {
        let tree = Tree::new(Vec::new()).expect("/proc is there");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("it starts");
        let pid = Pid(child.id().cast_signed());
        let process = tree.attach(pid).expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ended");
        tree.sweep(&mut tree.inner());
        assert!(tree.find(pid).is_none());
        let remembered = tree.remembered((pid, process.start)).expect("it was there");
        assert!(Arc::ptr_eq(&remembered, &process));
        assert!(tree.remembered((pid, StartTime(0))).is_none());
        assert!(process.comes_from_outside());
    }

    #[test]
    fn a_line_of_processes_that_end_is_bounded_and_keeps_both_ends() {
        let process = |pid, parent| {
            let (image, comm) = (Arc::new(Image::default()), Comm::new(b"generation"));
            Arc::new(Process::new(Pid(pid), StartTime(0), 0, parent, image, comm))
        };
        let mut last = process(0, None);
        for pid in 1..20_000 {
            last.set_exited();
            last = process(pid, Some(last));
            shorten_line(&last);
        }
        let line: Vec<i32> = std::iter::successors(Some(last), |process| process.parent())
            .map(|process| process.pid.0)
            .collect();
        assert!(line.len() <= LINE_LIMIT + 1, "{}", line.len());
        assert_eq!(line.last(), Some(&0));
        assert_eq!(line[..3], [19_999, 19_998, 19_997]);
    }
}
