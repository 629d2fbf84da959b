//! Whose arguments may change while a call is under way, and how many of those calls are checked.
//!
//! What a pointer argument names is read before the kernel reads it. The two agree for certain only
//! if nobody else can write that memory. A caller for which somebody can is *racy*: it has other
//! threads, it shares its address space with another process, or another process has written its
//! memory. Opens, connects and execs of racy callers are verified: the caller is stopped after the
//! call and asked what the kernel really did ([`super::truth`]).
//!
//! A process has one thread until a `clone` with CLONE_VM, so those are trapped
//! ([`VerifyOptions::extend`]) and nobody has to count threads at each call. The child of a vfork
//! has its parent's memory to itself while the parent sleeps; CLONE_VM with CLONE_VFORK is not
//! trapped. Both end with an exec, which makes a new address space.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::{RegisterTest, Syscall, TestOp};
use event::{CallPlan, DescriptorSource, Need, Pid, Plan, Process, Reason, StartTime};

use super::call::Call;
use super::decode::Decoded;
use super::tree::Tree;

/// Which calls of racy callers are verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// None: what was read is believed.
    Off,
    /// Those that rules are undecided about or match; of the others [`BUDGET`] a second and process,
    /// then one in [`SAMPLE`]. All of a process that was caught, and for [`ALARM_NS`] after a
    /// tripwire.
    #[default]
    Sampled,
    /// All.
    Always,
}

/// Verified calls a process has in a second before they are sampled.
pub const BUDGET: u32 = 64;
/// One in so many calls beyond the budget is verified.
pub const SAMPLE: u64 = 16;
/// How long a tripwire makes every call of a racy process be verified.
pub const ALARM_NS: u64 = 2 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;
/// Processes that are remembered not to be racy; past it they are looked at anew.
const PRIVATE_LIMIT: usize = 8192;
/// Racy processes whose memory a new process is compared with.
const COMPARED_LIMIT: usize = 64;
/// Questions between two sweeps for racy processes that have ended.
const SWEEP_AFTER: u32 = 1024;

/// Also of MAP_SHARED_VALIDATE.
const MAP_SHARED: u64 = 1;
const MAP_ANONYMOUS: u64 = 0x20;
const PROT_WRITE: u64 = 2;
const CLONE_VM: u64 = 0x100;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_PARENT: u64 = 0x8000;
const CLONE_THREAD: u64 = 0x1_0000;

/// How an engine verifies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Which calls.
    pub verify: Verify,
    /// Whether the calls for an io_uring fail with ENOSYS. The filter sees to that but where a
    /// process asks for one, or a rule asks for the call.
    pub deny_rings: bool,
}

impl VerifyOptions {
    /// Adds the calls to a plan by which racy callers are known. To be done before the plan is
    /// compiled to a filter.
    pub fn extend(self, plan: &mut Plan) {
        if self.verify == Verify::Off {
            return;
        }
        for (call, any_of, reason) in STATE {
            let planned = plan.calls.entry(*call).or_insert_with(|| CallPlan {
                any_of: Vec::new(),
                strings: false,
                result: Need::Never,
                reasons: Vec::new(),
            });
            let is_always = planned.any_of.iter().any(Vec::is_empty);
            match any_of {
                [] => planned.any_of = vec![Vec::new()],
                _ if is_always => {}
                _ => planned
                    .any_of
                    .extend(any_of.iter().map(|group| group.to_vec())),
            }
            planned.reasons.push(Reason::State((*reason).into()));
        }
    }
}

type Row = (Syscall, &'static [&'static [RegisterTest]], &'static str);

/// Calls after which somebody else can write a process's memory.
const STATE: &[Row] = &[
    (
        Syscall::CLONE,
        // The parent of a vfork child sleeps, unless the child was made somebody else's.
        &[
            &[
                RegisterTest::low(0, TestOp::AllBits, CLONE_VM),
                RegisterTest::low(0, TestOp::NoBit, CLONE_VFORK),
            ],
            &[RegisterTest::low(
                0,
                TestOp::AllBits,
                CLONE_VM | CLONE_PARENT,
            )],
        ],
        "a thread, or a process with the same memory",
    ),
    (
        Syscall::MMAP,
        // Who may only read it may have it written by others, but they trap here; without a file
        // they are descendants.
        &[
            &[
                RegisterTest::low(3, TestOp::AllBits, MAP_SHARED),
                RegisterTest::low(2, TestOp::AllBits, PROT_WRITE),
            ],
            &[RegisterTest::low(
                3,
                TestOp::AllBits,
                MAP_SHARED | MAP_ANONYMOUS,
            )],
        ],
        "memory that other processes may write",
    ),
    (Syscall::SHMAT, &[], "memory that other processes may write"),
    (Syscall::PTRACE, &[], "may write another process's memory"),
    (
        Syscall::PROCESS_VM_WRITEV,
        &[],
        "writes another process's memory",
    ),
];

/// Why somebody else can write a process's memory.
///
/// The later ones last longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// It has made threads.
    Threads,
    /// It, or who it was forked from, maps memory that others can write.
    Mapped,
    /// It shares its address space with another process.
    Shared,
    /// Another process can write its memory, also after an exec.
    Peer,
}

#[derive(Debug)]
struct Racy {
    process: Arc<Process>,
    cause: Cause,
    /// A call of its did something else than what was read.
    caught: bool,
    window_ns: u64,
    spent: u32,
}

/// What is known about who is racy.
#[derive(Debug)]
pub(crate) struct Verifier {
    mode: Verify,
    pub(crate) deny_rings: bool,
    /// Racy processes; while it is zero nobody needs to ask more.
    racy: AtomicUsize,
    /// A process wrote memory of one that could not be told.
    everyone: AtomicBool,
    /// A process has been given a ring.
    rings: AtomicBool,
    alarm_until_ns: AtomicU64,
    random: RandomState,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    racy: HashMap<Pid, Racy>,
    /// Looked at while there were racy processes, and not one of them.
    private: HashMap<Pid, StartTime>,
    /// Processes that mapped memory which others can write, dead ones too: who was forked from them
    /// has it.
    mapped: HashSet<(Pid, StartTime)>,
    /// What was said about a process.
    told: HashSet<(Pid, StartTime, Told)>,
    asked: u32,
    draws: u64,
}

/// What is said about a process once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Told {
    /// Another program traces it.
    Traced,
    /// It has, or was refused, a ring.
    Ring,
}

impl Verifier {
    pub(crate) fn new(options: VerifyOptions) -> Self {
        Self {
            mode: options.verify,
            deny_rings: options.deny_rings,
            racy: AtomicUsize::new(0),
            everyone: AtomicBool::new(false),
            rings: AtomicBool::new(false),
            alarm_until_ns: AtomicU64::new(0),
            random: RandomState::new(),
            inner: Mutex::default(),
        }
    }

    /// Whether any caller may be racy.
    pub(crate) fn is_active(&self) -> bool {
        self.racy.load(Ordering::Acquire) > 0 || self.everyone.load(Ordering::Acquire)
    }

    /// A process is given a ring.
    pub(crate) fn gives_ring(&self) {
        self.rings.store(true, Ordering::Release);
    }

    /// Whether a process of the workload was given a ring, through which it opens files past the
    /// engine.
    pub(crate) fn has_rings(&self) -> bool {
        self.rings.load(Ordering::Acquire)
    }

    /// Whether the call says who is racy.
    pub(crate) fn concerns(&self, syscall: Syscall) -> bool {
        use Syscall as S;
        match syscall.base() {
            S::CLONE | S::CLONE3 | S::MMAP | S::SHMAT | S::PTRACE | S::PROCESS_VM_WRITEV => {
                self.mode != Verify::Off
            }
            S::IO_URING_SETUP => true,
            syscall => self.deny_rings && uses_ring(syscall),
        }
    }

    /// Enters a workload that runs already. Who writes whose memory from outside is not known.
    pub(crate) fn adopt(&self, tree: &Tree) -> u64 {
        if self.mode == Verify::Off {
            return 0;
        }
        let mut added = 0;
        for process in tree.watched() {
            let with_parent = process.parent().is_some_and(|parent| {
                sys::process_memory::is_shared_by(process.pid.0, parent.pid.0).unwrap_or(false)
            });
            if with_parent {
                added += self.add_with_ancestors(&process, Cause::Shared);
            } else if tree.census.thread_count(process.pid) != Some(1) {
                added += self.add(&process, Cause::Threads);
            }
        }
        added
    }

    /// Takes a call into account that [`Verifier::concerns`] names, before it is let go. Answers
    /// with the number of processes that are racy by it and were not.
    pub(crate) fn note(&self, call: &Call, process: &Arc<Process>, tree: &Tree) -> u64 {
        match call.syscall.base() {
            Syscall::CLONE if call.raw(0) & CLONE_VM == 0 => 0,
            Syscall::CLONE if call.raw(0) & (CLONE_VFORK | CLONE_PARENT) == CLONE_VFORK => 0,
            Syscall::CLONE if call.raw(0) & CLONE_THREAD != 0 => {
                self.add_with_ancestors(process, Cause::Threads)
            }
            // The flags of clone3 are in memory, which is what this is about.
            Syscall::CLONE | Syscall::CLONE3 => self.add_with_ancestors(process, Cause::Shared),
            Syscall::MMAP if is_private(call) => 0,
            Syscall::MMAP | Syscall::SHMAT => self.add(process, Cause::Mapped),
            Syscall::PTRACE => self.note_ptrace(call, process, tree),
            Syscall::PROCESS_VM_WRITEV => self.note_writer(process, call.int(0), tree),
            _ => 0,
        }
    }

    fn note_ptrace(&self, call: &Call, process: &Arc<Process>, tree: &Tree) -> u64 {
        const PTRACE_TRACEME: u64 = 0;
        if call.raw(0) == PTRACE_TRACEME {
            return self.add(process, Cause::Peer);
        }
        self.note_writer(process, call.int(1), tree)
    }

    /// A process writes, or may write, the memory of another.
    pub(crate) fn note_writer(&self, writer: &Arc<Process>, target: i32, tree: &Tree) -> u64 {
        let mut added = 0;
        let census = &tree.census;
        // The number is one of the writer's pid namespace.
        let same = census.shares_pid_namespace(writer.pid);
        let target = same
            .then(|| census.thread_group(event::Tid(target)))
            .flatten()
            .and_then(|pid| tree.find(pid));
        match target {
            Some(target) if target.pid == writer.pid => return 0,
            Some(target) => added += self.add(&target, Cause::Peer),
            None => self.everyone.store(true, Ordering::Release),
        }
        added + self.add(writer, Cause::Peer)
    }

    /// A process opened memory of another, or of one that cannot be told, for writing.
    pub(crate) fn note_memory_file(&self) {
        if self.mode != Verify::Off {
            self.everyone.store(true, Ordering::Release);
        }
    }

    /// Marks a process and those of its ancestors that have the same memory.
    fn add_with_ancestors(&self, process: &Arc<Process>, cause: Cause) -> u64 {
        let mut added = self.add(process, cause);
        let (mut child, mut parent) = (Arc::clone(process), process.parent());
        while let Some(ancestor) = parent {
            let shared = sys::process_memory::is_shared_by(child.pid.0, ancestor.pid.0);
            if !shared.unwrap_or(false) {
                break;
            }
            added += self.add(&ancestor, Cause::Shared);
            parent = ancestor.parent();
            child = ancestor;
        }
        added
    }

    fn add(&self, process: &Arc<Process>, cause: Cause) -> u64 {
        let mut inner = self.inner();
        inner.private.remove(&process.pid);
        if cause == Cause::Mapped {
            inner.mapped.insert((process.pid, process.start));
        }
        let fresh = || Racy {
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

    /// Whether somebody else can write the process's memory. Ask [`Verifier::is_active`] first.
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
        // First seen since there are racy processes: it may be the vfork child of one, or made by
        // one with its memory.
        let parent = process.parent().map(|parent| (parent.pid, parent.start));
        if parent.is_some_and(|parent| inner.mapped.contains(&parent)) {
            drop(inner);
            self.add(process, Cause::Mapped);
            return true;
        }
        let compared = inner.racy.values().take(COMPARED_LIMIT);
        let shares = compared.map(|racy| racy.process.pid.0).any(|pid| {
            // Who may not compare does not know, and so takes it for shared.
            sys::process_memory::is_shared_by(process.pid.0, pid).unwrap_or(true)
        });
        if shares {
            drop(inner);
            self.add(process, Cause::Shared);
            return true;
        }
        if inner.private.len() >= PRIVATE_LIMIT {
            inner.private.clear();
        }
        inner.private.insert(process.pid, process.start);
        false
    }

    /// Whether a call of the process that rules do not ask about is to be verified. Ask
    /// [`Verifier::is_active`] first.
    pub(crate) fn wants(&self, process: &Arc<Process>, tree: &Tree, now_ns: u64) -> bool {
        if !self.is_racy(process, tree) || !self.draw(process, now_ns) {
            return false;
        }
        // A process whose threads have ended is not racy any more; its one thread is parked here.
        let mut inner = self.inner();
        let racy = inner.racy.get(&process.pid);
        let had_threads = racy.is_some_and(|racy| racy.cause == Cause::Threads && !racy.caught);
        if had_threads
            && !self.everyone.load(Ordering::Acquire)
            && tree.census.thread_count(process.pid) == Some(1)
        {
            inner.racy.remove(&process.pid);
            inner.private.insert(process.pid, process.start);
            self.count(&inner);
            return false;
        }
        true
    }

    fn draw(&self, process: &Arc<Process>, now_ns: u64) -> bool {
        if self.mode == Verify::Always || now_ns < self.alarm_until_ns.load(Ordering::Acquire) {
            return true;
        }
        let mut inner = self.inner();
        inner.draws += 1;
        let draws = inner.draws;
        let racy = inner.racy.entry(process.pid).or_insert_with(|| Racy {
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
        // Keyed, so that the workload cannot tell which.
        self.random.hash_one(draws).is_multiple_of(SAMPLE)
    }

    /// A call of the process did something else than what was read.
    pub(crate) fn caught(&self, process: &Process) {
        if let Some(racy) = self.inner().racy.get_mut(&process.pid) {
            racy.caught = true;
        }
    }

    /// Something sensitive was opened: every racy call is verified for a while.
    pub(crate) fn alarm(&self, now_ns: u64) {
        let until = now_ns + ALARM_NS;
        self.alarm_until_ns.fetch_max(until, Ordering::AcqRel);
    }

    /// An exec succeeded: the process has an address space of its own. Who writes it from outside
    /// may go on doing so.
    pub(crate) fn exec(&self, process: &Process) {
        if !self.is_active() {
            return;
        }
        let mut inner = self.inner();
        let racy = inner.racy.get(&process.pid);
        if racy.is_some_and(|racy| racy.cause != Cause::Peer) {
            inner.racy.remove(&process.pid);
            inner.private.insert(process.pid, process.start);
            self.count(&inner);
        }
    }

    /// Whether this is the first time.
    pub(crate) fn tell(&self, process: &Process, what: Told) -> bool {
        let mut inner = self.inner();
        if inner.told.len() >= PRIVATE_LIMIT {
            inner.told.clear();
        }
        inner.told.insert((process.pid, process.start, what))
    }

    fn sweep(&self, inner: &mut Inner, tree: &Tree) {
        inner.asked += 1;
        if inner.asked < SWEEP_AFTER {
            return;
        }
        inner.asked = 0;
        let is_alive = |racy: &Racy| {
            !racy.process.has_exited() && tree.is_alive(&racy.process).unwrap_or(true)
        };
        inner.racy.retain(|_, racy| is_alive(racy));
        self.count(inner);
    }

    fn count(&self, inner: &Inner) {
        // Descendants of processes that are gone may have their mappings.
        let racy = inner.racy.len() + inner.mapped.len();
        self.racy.store(racy, Ordering::Release);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a call makes or uses an io_uring.
pub(crate) fn uses_ring(syscall: Syscall) -> bool {
    use Syscall as S;
    matches!(
        syscall,
        S::IO_URING_SETUP | S::IO_URING_ENTER | S::IO_URING_REGISTER
    )
}

/// Whether a mapping is one that nobody else can write. That of the old i386 call is in memory.
fn is_private(call: &Call) -> bool {
    let (prot, flags) = (call.raw(2), call.raw(3));
    call.syscall != Syscall::OLD_MMAP
        && (flags & MAP_SHARED == 0 || prot & PROT_WRITE == 0 && flags & MAP_ANONYMOUS == 0)
}

/// Whether a call opens the memory of a process for writing, by the name that is read. Which process
/// is not asked: the descriptor can be handed on.
pub(crate) fn opens_memory(call: &Call, decoded: &Decoded<'_>) -> bool {
    const WRITES: u64 = 3;
    let Some(event::Descriptor {
        name: event::Name::Passed { raw, .. },
        ..
    }) = decoded.descriptor
    else {
        return false;
    };
    let DescriptorSource::Opened { flags, .. } = call.kind.spec().descriptor else {
        return false;
    };
    raw.strip_suffix(b"mem")
        .is_some_and(|rest| rest.is_empty() || rest.ends_with(b"/"))
        && matches!(decoded.params.get(usize::from(flags)), Some(event::Param::Uint(flags)) if flags & WRITES != 0)
}

/// Whether the kernel can be asked afterwards what the call really did.
pub(crate) fn is_verifiable(call: &Call) -> bool {
    call.replaces_program()
        || match call.kind.spec().descriptor {
            DescriptorSource::Opened { .. } => call.syscall.base() != Syscall::OPEN_BY_HANDLE_AT,
            _ => call.syscall.base() == Syscall::CONNECT,
        }
}
