//! Verification of calls whose arguments may change while they are in progress.
//!
//! The memory behind a pointer argument is read before the kernel reads it. The two agree for certain only if
//! no other thread or process can write that memory. A caller for which one can is *racy*: it has other
//! threads, it shares its address space with another process, or another process has written its memory.
//! Opens, connects and execs of racy callers are verified: the caller is stopped after the call, and the
//! kernel's data shows what the call really did ([`super::argument_check`]).
//!
//! A process has one thread until a `clone` with CLONE_VM, so those are trapped ([`VerifyOptions::extend`])
//! and threads need not be counted at each call. The child of a vfork has its parent's memory to itself while
//! the parent sleeps; CLONE_VM with CLONE_VFORK is not trapped. Both end with an exec, which makes a new
//! address space.
//!
//! With [`Verify::Always`] a caller that cannot be distinguished from a racy one counts as one. A string in a
//! page of a file, or in shared memory, makes its call be verified, because writing the file changes it
//! ([`Decoded::is_shared`](decoder::decode::Decoded)). The file that an open for writing has returned is
//! inspected, whatever its name, and the first writer of other processes' memory makes every process racy
//! ([`super::writers`]).

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use abi::{Errno, Syscall};
use event::{DescriptorSource, ParamSource, Pid, Plan, Process, StartTime, Tid};

use super::denials;
use super::writers::{self, Effect};
use decoder::call::Call;
use decoder::tree::Tree;

/// Selection of racy callers' calls to verify.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// None: the arguments that were read are trusted.
    Off,
    /// Calls that rules are undecided about or match; of the others [`BUDGET`] a second and process, then one
    /// in [`SAMPLE`]. All of a process that was caught, and for [`ALARM_NS`] after a tripwire.
    #[default]
    Sampled,
    /// All calls.
    Always,
}

/// Number of calls of a process verified in a second before they are sampled.
pub const BUDGET: u32 = 64;
/// One in so many calls beyond the budget is verified.
pub const SAMPLE: u64 = 16;
/// Time, in nanoseconds, for which a tripwire makes every call of a racy process be verified.
pub const ALARM_NS: u64 = 2 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;
/// Maximum number of processes remembered as not racy; beyond it they are checked anew.
const PRIVATE_LIMIT: usize = 8192;
/// Maximum number of racy processes that a new process is compared with, at a microsecond each. Beyond it,
/// the process counts as racy.
const COMPARED_LIMIT: usize = 1024;
/// Number of queries and additions between two sweeps for racy processes that have ended.
const SWEEP_AFTER: usize = 1024;
/// Maximum number of racy processes remembered; beyond it every process counts as racy.
const RACY_LIMIT: usize = 65_536;
/// Time for calls that were let go earlier to read their arguments, and the pause between checks.
const GRACE: Duration = Duration::from_millis(50);
const GRACE_STEP: Duration = Duration::from_millis(5);

/// Options of the verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// The calls to verify.
    pub verify: Verify,
    /// True if the calls for an io_uring fail with ENOSYS. The filter does that, except where a process asks
    /// for a ring, or a rule asks for the call.
    pub deny_rings: bool,
    /// True if responses may withhold calls from processes ([`super::plan_denials`]).
    pub may_deny: bool,
}

impl VerifyOptions {
    /// Adds to a plan the calls by which racy callers are recognised, and those that may be withheld. Must be called before
    /// the plan is compiled to a filter.
    pub fn extend(self, plan: &mut Plan) {
        writers::extend(self.verify, plan);
        if self.may_deny {
            denials::plan_denials(plan);
        }
    }
}

/// Reason why another thread or process can write a process's memory.
///
/// The later ones last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// The process has made threads.
    Threads,
    /// The kernel writes its memory at any time: asynchronous I/O.
    Filled,
    /// The process, or one it was forked from, maps memory that others can write.
    Mapped,
    /// The process shares its address space with another process.
    Shared,
    /// Another process can write its memory, also after an exec.
    Peer,
}

#[derive(Debug)]
struct RacyProcesses {
    process: Arc<Process>,
    cause: Cause,
    /// True if a call of the process did something else than was read.
    caught: bool,
    window_ns: u64,
    spent: u32,
}

/// Known facts about racy processes.
#[derive(Debug)]
pub(crate) struct Verifier {
    mode: Verify,
    pub(crate) deny_rings: bool,
    /// Number of racy processes; at zero no further check is needed.
    racy: AtomicUsize,
    /// True if processes have, or may have, inherited memory that others can write.
    inherited: AtomicBool,
    /// True if a process may write the memory of an unknown one.
    everyone: AtomicBool,
    /// True if a process has been given a ring.
    rings: AtomicBool,
    alarm_until_ns: AtomicU64,
    random: RandomState,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    racy: HashMap<Pid, RacyProcesses>,
    /// Processes checked while there were racy ones, and found not to be racy.
    private: HashMap<Pid, StartTime>,
    /// Reports made about processes.
    reported: HashSet<(Pid, StartTime, ReportedOnce)>,
    asked: usize,
    draws: u64,
}

/// Reports made once for each process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReportedOnce {
    /// Another program traces the process.
    Traced,
    /// The process has a ring, or was refused one.
    Ring,
}

impl Verifier {
    pub(crate) fn new(options: VerifyOptions) -> Self {
        Self {
            mode: options.verify,
            deny_rings: options.deny_rings,
            racy: AtomicUsize::new(0),
            inherited: AtomicBool::new(false),
            everyone: AtomicBool::new(false),
            rings: AtomicBool::new(false),
            alarm_until_ns: AtomicU64::new(0),
            random: RandomState::new(),
            inner: Mutex::default(),
        }
    }

    /// Returns whether any caller may be racy.
    pub(crate) fn is_active(&self) -> bool {
        self.racy.load(Ordering::Acquire) > 0
            || self.inherited.load(Ordering::Acquire)
            || self.everyone.load(Ordering::Acquire)
    }

    /// Returns whether all calls of racy callers are verified, and an uncertain caller counts as racy.
    pub(crate) fn is_strict(&self) -> bool {
        self.mode == Verify::Always
    }

    /// Returns whether calls of racy callers are verified at all.
    pub(crate) fn is_on(&self) -> bool {
        self.mode != Verify::Off
    }

    /// Notes that a process is given a ring.
    pub(crate) fn gives_ring(&self) {
        self.rings.store(true, Ordering::Release);
    }

    /// Returns whether a process of the workload was given a ring, through which it opens files past the engine.
    pub(crate) fn has_rings(&self) -> bool {
        self.rings.load(Ordering::Acquire)
    }

    /// Returns whether the call affects which processes are racy.
    pub(crate) fn concerns(&self, call: &Call) -> bool {
        let syscall = call.syscall;
        let concerns = self.mode != Verify::Off && writers::is_concerned(call);
        concerns || syscall == Syscall::IO_URING_SETUP || self.deny_rings && uses_ring(syscall)
    }

    /// Enters a running workload, in which it is unknown which process may write whose memory.
    pub(crate) fn adopt(&self, tree: &Tree) -> u64 {
        if self.mode == Verify::Off {
            return 0;
        }
        let mut added = 0;
        let watched = tree.watched();
        if self.is_strict() && watched.iter().any(|process| !process.sets_up()) {
            self.everyone.store(true, Ordering::Release);
        }
        for process in watched {
            // The process may have mapped memory that others can write.
            self.bequeaths(&process, tree);
            let with_parent = process.parent().is_some_and(|parent| {
                sys::process_memory::is_shared_by(process.pid.0, parent.pid.0).unwrap_or(false)
            });
            if with_parent {
                added += self.add_with_ancestors(&process, Cause::Shared, tree);
            } else if tree.inspector.thread_count(process.pid) != Some(1) {
                added += self.add(&process, Cause::Threads, tree);
            }
        }
        added
    }

    /// Returns whether a call of a racy caller is compared with the state after it.
    pub(crate) fn compares(&self, call: &Call) -> bool {
        is_verifiable(call) || self.is_strict() && has_names(call)
    }

    /// Notes a call for which [`Verifier::concerns`] is true, before it is let go. Returns the number of
    /// processes that became racy.
    pub(crate) fn note(&self, call: &Call, process: &Arc<Process>, tree: &Tree) -> u64 {
        match writers::effect(call, self.deny_rings) {
            _ if self.mode == Verify::Off => 0,
            Effect::None => 0,
            Effect::Thread => self.add_with_ancestors(process, Cause::Threads, tree),
            Effect::Process => {
                // Two such children share the memory, also when this one is gone.
                self.bequeaths(process, tree);
                self.add_with_ancestors(process, Cause::Shared, tree)
            }
            Effect::Maps => {
                self.bequeaths(process, tree);
                self.add(process, Cause::Mapped, tree)
            }
            Effect::Fills => self.add(process, Cause::Filled, tree),
            // A process that may write one process's memory may have, or get, the right to write another's.
            Effect::Exposes | Effect::Writes(_) | Effect::WritesAny if self.is_strict() => {
                let is_own = matches!(writers::effect(call, self.deny_rings),
                    Effect::Writes(target) if self.is_own(process, target, tree));
                match is_own {
                    true => 0,
                    false => self.distrust_everyone(tree, call.tid),
                }
            }
            Effect::Exposes | Effect::WritesAny => self.add(process, Cause::Peer, tree),
            Effect::Writes(target) => self.note_writer(process, target, tree),
        }
    }

    /// Notes that children that the process makes, or has made, may share memory with it.
    fn bequeaths(&self, process: &Process, tree: &Tree) {
        process.set_children_may_share_memory();
        tree.note_shared_memory();
        self.inherited.store(true, Ordering::Release);
    }

    fn is_own(&self, process: &Process, target: i32, tree: &Tree) -> bool {
        let inspector = &tree.inspector;
        inspector.shares_pid_namespace(process.pid)
            && inspector.thread_group(Tid(target)) == Some(process.pid)
    }

    /// Makes every process racy from now on. A call that was let go earlier may not have read its arguments
    /// yet: waits for that, for at most [`GRACE`]. `caller`: the thread that is parked itself. Returns the
    /// number of processes that are known to be racy by it.
    fn distrust_everyone(&self, tree: &Tree, caller: Tid) -> u64 {
        if self.everyone.swap(true, Ordering::AcqRel) {
            return 0;
        }
        if !self.is_strict() {
            return 1;
        }
        let processes = tree.watched();
        let begun = Instant::now();
        let is_at_work = |process: &Arc<Process>| {
            let threads = tree.inspector.threads(process.pid);
            let mut others = threads.into_iter().filter(|tid| *tid != caller);
            others.any(|tid| tree.inspector.runs(tid))
        };
        loop {
            std::thread::sleep(GRACE_STEP);
            if begun.elapsed() >= GRACE || !processes.iter().any(is_at_work) {
                return 1;
            }
        }
    }

    /// Notes that a process writes, or may write, the memory of another.
    pub(crate) fn note_writer(&self, writer: &Arc<Process>, target: i32, tree: &Tree) -> u64 {
        let mut added = 0;
        let inspector = &tree.inspector;
        // The number belongs to the writer's pid namespace.
        let same = inspector.shares_pid_namespace(writer.pid);
        let target = same
            .then(|| inspector.thread_group(event::Tid(target)))
            .flatten()
            .and_then(|pid| tree.find(pid));
        match target {
            Some(target) if target.pid == writer.pid => return 0,
            Some(target) => added += self.add(&target, Cause::Peer, tree),
            None => self.everyone.store(true, Ordering::Release),
        }
        added + self.add(writer, Cause::Peer, tree)
    }

    /// Notes that a process, which waits, may have opened the memory of a process for writing. The target
    /// does not matter: the descriptor can be passed on. Returns the same as [`Verifier::note`].
    pub(crate) fn note_memory_file(&self, caller: Tid, tree: &Tree) -> u64 {
        match self.mode {
            Verify::Off => 0,
            _ => self.distrust_everyone(tree, caller),
        }
    }

    /// Returns whether the file that an open returns is inspected, whatever rules match: it may be a
    /// process's memory.
    pub(crate) fn looks_at(&self, call: &Call) -> bool {
        self.is_strict() && writers::opens_file(call) && writers::may_write(call)
    }

    /// Marks a process and those of its ancestors that share its memory.
    fn add_with_ancestors(&self, process: &Arc<Process>, cause: Cause, tree: &Tree) -> u64 {
        let mut added = self.add(process, cause, tree);
        let (mut child, mut parent) = (Arc::clone(process), process.parent());
        while let Some(ancestor) = parent {
            let shared = sys::process_memory::is_shared_by(child.pid.0, ancestor.pid.0);
            if !shared.unwrap_or(false) {
                break;
            }
            added += self.add(&ancestor, Cause::Shared, tree);
            parent = ancestor.parent();
            child = ancestor;
        }
        added
    }

    fn add(&self, process: &Arc<Process>, cause: Cause, tree: &Tree) -> u64 {
        let mut inner = self.inner();
        self.sweep(&mut inner, tree);
        if inner.racy.len() >= RACY_LIMIT {
            self.everyone.store(true, Ordering::Release);
            return 0;
        }
        inner.private.remove(&process.pid);
        let fresh = || RacyProcesses {
            process: Arc::clone(process),
            cause,
            caught: false,
            window_ns: 0,
            spent: 0,
        };
        let added = match inner.racy.entry(process.pid) {
            Entry::Occupied(mut entry) => {
                let is_same = entry.get().process.start == process.start;
                if !is_same {
                    entry.insert(fresh());
                } else if entry.get().cause < cause {
                    entry.get_mut().cause = cause;
                }
                u64::from(!is_same)
            }
            Entry::Vacant(entry) => {
                entry.insert(fresh());
                1
            }
        };
        self.count(&inner);
        added
    }

    /// Returns whether another thread or process can write the process's memory. Check [`Verifier::is_active`] first.
    pub(crate) fn is_racy(&self, process: &Arc<Process>, tree: &Tree) -> bool {
        if self.everyone.load(Ordering::Acquire) {
            return true;
        }
        let mut inner = self.inner();
        self.sweep(&mut inner, tree);
        let known = inner.racy.get(&process.pid);
        if known.is_some_and(|racy| racy.process.start == process.start) {
            return true;
        }
        if inner.private.get(&process.pid) == Some(&process.start) {
            return false;
        }
        // First seen since there are racy processes: it may be the vfork child of one, or made by one with
        // its memory.
        if process.may_share_memory() {
            drop(inner);
            self.add(process, Cause::Mapped, tree);
            return true;
        }
        if inner.racy.len() > COMPARED_LIMIT {
            return true;
        }
        let shares = inner.racy.values().any(|racy| {
            // Without the right to compare, the memory counts as shared. A process that is gone has none, and
            // its children are recognised by its calls.
            let shared = sys::process_memory::is_shared_by(process.pid.0, racy.process.pid.0);
            shared.unwrap_or_else(|error| !error.is(Errno::ESRCH))
        });
        if shares || self.shares_with_parent(&inner, process, tree) {
            drop(inner);
            self.add(process, Cause::Shared, tree);
            return true;
        }
        if inner.private.len() >= PRIVATE_LIMIT {
            inner.private.clear();
        }
        inner.private.insert(process.pid, process.start);
        false
    }

    /// As above for a parent whose first thread has ended, which has no memory any more; others may run on.
    fn shares_with_parent(&self, inner: &Inner, process: &Process, tree: &Tree) -> bool {
        let parent = process.parent();
        let parent = parent.filter(|parent| inner.racy.contains_key(&parent.pid));
        parent.is_some_and(|parent| {
            let threads = tree.inspector.threads(parent.pid);
            let shares = |tid: &Tid| {
                let shared = sys::process_memory::is_shared_by(process.pid.0, tid.0);
                shared.unwrap_or_else(|error| !error.is(Errno::ESRCH))
            };
            threads.iter().any(shares)
        })
    }

    /// Returns whether a call of the process that rules do not ask about is to be verified. Check
    /// [`Verifier::is_active`] first.
    pub(crate) fn wants(&self, process: &Arc<Process>, tree: &Tree, now_ns: u64) -> bool {
        if !self.is_racy(process, tree) || !self.draw(process, tree, now_ns) {
            return false;
        }
        // A process whose other threads have ended is not racy any more; its one thread is parked here.
        let mut inner = self.inner();
        let racy = inner.racy.get(&process.pid);
        let had_threads = racy.is_some_and(|racy| racy.cause == Cause::Threads && !racy.caught);
        if had_threads
            && !self.everyone.load(Ordering::Acquire)
            && tree.inspector.thread_count(process.pid) == Some(1)
        {
            inner.racy.remove(&process.pid);
            inner.private.insert(process.pid, process.start);
            self.count(&inner);
            return false;
        }
        true
    }

    fn draw(&self, process: &Arc<Process>, tree: &Tree, now_ns: u64) -> bool {
        if self.mode == Verify::Always || now_ns < self.alarm_until_ns.load(Ordering::Acquire) {
            return true;
        }
        let mut inner = self.inner();
        inner.draws += 1;
        self.sweep(&mut inner, tree);
        let draws = inner.draws;
        let racy = inner
            .racy
            .entry(process.pid)
            .or_insert_with(|| RacyProcesses {
                process: Arc::clone(process),
                cause: Cause::Peer,
                caught: false,
                window_ns: 0,
                spent: 0,
            });
        if racy.caught {
            return true;
        }
        if now_ns.saturating_sub(racy.window_ns) >= SECOND_NS {
            (racy.window_ns, racy.spent) = (now_ns, 0);
        }
        if racy.spent < BUDGET {
            racy.spent += 1;
            return true;
        }
        // A keyed hash, so that the workload cannot predict which calls.
        self.random.hash_one(draws).is_multiple_of(SAMPLE)
    }

    /// Notes that a call of the process did something else than was read.
    pub(crate) fn caught(&self, process: &Process) {
        if let Some(racy) = self.inner().racy.get_mut(&process.pid) {
            racy.caught = true;
        }
    }

    /// Notes that a sensitive file was opened: every racy call is verified for a while.
    pub(crate) fn alarm(&self, now_ns: u64) {
        let until = now_ns + ALARM_NS;
        self.alarm_until_ns.fetch_max(until, Ordering::AcqRel);
    }

    /// Notes a successful exec: the process has a new address space. A process that writes it from outside
    /// may go on doing so.
    pub(crate) fn exec(&self, process: &Process) {
        if !self.is_active() {
            return;
        }
        process.set_may_share_memory(false);
        let mut inner = self.inner();
        let racy = inner.racy.get(&process.pid);
        if racy.is_some_and(|racy| racy.cause != Cause::Peer) {
            inner.racy.remove(&process.pid);
            inner.private.insert(process.pid, process.start);
            self.count(&inner);
        }
    }

    /// Returns whether this report is the first for the process.
    pub(crate) fn tell(&self, process: &Process, what: ReportedOnce) -> bool {
        let mut inner = self.inner();
        if inner.reported.len() >= PRIVATE_LIMIT {
            inner.reported.clear();
        }
        inner.reported.insert((process.pid, process.start, what))
    }

    fn sweep(&self, inner: &mut Inner, tree: &Tree) {
        inner.asked += 1;
        if inner.asked < SWEEP_AFTER.max(inner.racy.len() / 2) {
            return;
        }
        inner.asked = 0;
        let is_alive = |racy: &RacyProcesses| {
            !racy.process.has_exited() && tree.is_alive(&racy.process).unwrap_or(true)
        };
        inner.racy.retain(|_, racy| is_alive(racy));
        self.count(inner);
    }

    fn count(&self, inner: &Inner) {
        self.racy.store(inner.racy.len(), Ordering::Release);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a call makes or uses an io_uring.
pub(crate) fn uses_ring(syscall: Syscall) -> bool {
    use Syscall as S;
    matches!(
        syscall,
        S::IO_URING_SETUP | S::IO_URING_ENTER | S::IO_URING_REGISTER
    )
}

/// Returns whether a call has names in memory that the kernel does not expose afterwards: paths, and
/// addresses that are sent to. They are read once more.
fn has_names(call: &Call) -> bool {
    let params = &mut call.kind.spec().params.iter();
    let has_path = params.any(|spec| matches!(spec.source, ParamSource::Path { .. }));
    !is_verifiable(call) && (has_path || call.syscall.base() == Syscall::SENDTO)
}

/// Returns whether the kernel's data shows afterwards what the call really did.
pub(crate) fn is_verifiable(call: &Call) -> bool {
    call.replaces_program()
        || match call.kind.spec().descriptor {
            DescriptorSource::Opened { .. } => call.syscall.base() != Syscall::OPEN_BY_HANDLE_AT,
            _ => call.syscall.base() == Syscall::CONNECT,
        }
}

#[cfg(test)]
mod tests {
    use event::{Comm, Image};

    use super::*;

    fn process(pid: i32) -> Arc<Process> {
        let image = Arc::new(Image::default());
        let comm = Comm::new(b"process");
        Arc::new(Process::new(Pid(pid), StartTime(1), 0, None, image, comm))
    }

    fn verifier(verify: Verify) -> (Verifier, Tree) {
        let options = VerifyOptions {
            verify,
            deny_rings: true,
            may_deny: false,
        };
        let tree = Tree::new(Vec::new()).expect("procfs");
        (Verifier::new(options), tree)
    }

    /// Above any that the kernel gives.
    const FIRST: i32 = 1 << 23;
    const PROCESSES: i32 = 200_000;

    #[test]
    fn what_is_remembered_of_processes_that_have_ended_is_bounded() {
        let (verifier, tree) = verifier(Verify::Sampled);
        for pid in FIRST..FIRST + PROCESSES {
            let process = process(pid);
            verifier.bequeaths(&process, &tree);
            verifier.add(&process, Cause::Mapped, &tree);
            verifier.tell(&process, ReportedOnce::Ring);
            process.set_exited();
            assert!(process.children_may_share_memory());
        }
        let inner = verifier.inner();
        assert!(inner.racy.len() <= 2 * SWEEP_AFTER, "{}", inner.racy.len());
        assert!(inner.reported.len() <= PRIVATE_LIMIT);
        drop(inner);
        assert!(verifier.is_active(), "their children may have the memory");
        assert!(!verifier.everyone.load(Ordering::Acquire));
        let child = process(FIRST - 1);
        child.set_may_share_memory(true);
        assert!(verifier.is_racy(&child, &tree));
        assert!(!verifier.is_racy(&process(FIRST - 2), &tree));
    }

    #[test]
    fn more_racy_processes_than_are_remembered_make_everyone_racy() {
        let (verifier, tree) = verifier(Verify::Sampled);
        for pid in FIRST..FIRST + PROCESSES {
            verifier.add(&process(pid), Cause::Threads, &tree);
        }
        assert!(verifier.inner().racy.len() <= RACY_LIMIT);
        assert!(verifier.is_racy(&process(FIRST - 1), &tree));
    }

    #[test]
    fn what_is_remembered_of_processes_that_are_not_racy_is_bounded() {
        let (verifier, tree) = verifier(Verify::Sampled);
        for pid in FIRST..FIRST + PROCESSES {
            assert!(!verifier.is_racy(&process(pid), &tree));
        }
        assert!(verifier.inner().private.len() <= PRIVATE_LIMIT);
        // Queried while every process is racy, as the budget of each.
        verifier.everyone.store(true, Ordering::Release);
        for pid in FIRST..FIRST + PROCESSES {
            let process = process(pid);
            assert!(verifier.wants(&process, &tree, 1));
            process.set_exited();
        }
        let racy = verifier.inner().racy.len();
        assert!(racy <= 2 * SWEEP_AFTER, "{racy}");
    }

    #[test]
    fn an_exec_leaves_shared_memory_behind_but_not_for_children_made_before() {
        let (verifier, tree) = verifier(Verify::Sampled);
        let parent = process(FIRST);
        verifier.bequeaths(&parent, &tree);
        verifier.add(&parent, Cause::Mapped, &tree);
        assert!(verifier.is_racy(&parent, &tree));
        verifier.exec(&parent);
        assert!(!verifier.is_racy(&parent, &tree));
        assert!(parent.children_may_share_memory());
    }
}
