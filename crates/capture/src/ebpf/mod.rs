//! Capture engine `ebpf`: the whole host, filtered in the kernel.
//!
//! Programs (`bpf/capture.bpf.c`) see every call as it returns. The interest plan, compiled to tables
//! (`tables.rs`), decides in the kernel which of them become records. A record carries the data that rules
//! may ask for about the call and its caller, because both may be gone when it is read: so there is only one
//! stage, [`event::Stage::Exit`].
//!
//! Two rings lead to the agent. Execs, forks, ends, and calls about privileges use one, all other calls the
//! other, so that no crowd of the latter displaces the former. A record that finds no room is lost and
//! counted: this is the one engine that can lose events.

mod asked;
mod attempts;
mod automaton;
mod consumer;
mod container_table;
mod counters;
mod error;
mod evaluation;
mod functions;
mod hooks;
mod maps;
mod named;
mod probe;
mod process_names;
mod programs;
mod record;
mod rings;
mod rows;
mod scope;
mod slots;
mod system_info;
mod table;
mod tables;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::constant::{CLONE_NEWNS, PR_SET_NAME};
use arc_swap::ArcSwap;
use event::{CallPlan, Evaluator, Interest, Need, Pid, Plan, Reason, StdioWatch};

use crate::notify::{EngineObserver, RulesHandle, RulesTarget};
use decoder::counters::Counters;
use decoder::stdio;
use decoder::system_info::{LiveSystemInfo, ProcessIndex, SystemInfoOptions};

pub use self::probe::probe;
use consumer::Consumer;
use container_table::ContainerTable;
pub use counters::EbpfCounters;
pub use error::Error;
use hooks::Attached;
pub use hooks::{Attachment, Hooks};
use maps::{Control, KernelCounts, Maps, Scope};
use named::NamedFiles;
use programs::Programs;
pub use programs::RingSizes;
pub use scope::{Cgroup, CgroupError, ContainerChoice, WatchScope};
use table::Table;
use tables::Tables;

/// Processes to watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Every process of the host.
    Host,
    /// Running processes, with their descendants.
    Processes(Vec<Pid>),
    /// Every process in these containers and control groups, also in those created later.
    Places(WatchScope),
}

impl Target {
    /// Returns what the programs compare, and the containers and groups to watch.
    fn scope(&self) -> (Scope, Option<WatchScope>) {
        match self {
            Self::Host => (Scope::All, None),
            Self::Processes(_) => (Scope::Pids, None),
            Self::Places(watched) => (Scope::Places, Some(watched.clone())),
        }
    }
}

/// Components of an engine.
pub struct Parts<J: Evaluator> {
    /// Calls that the rules ask for; see [`plan`].
    pub plan: Plan,
    /// Evaluates events.
    pub evaluator: Arc<J>,
    /// Paths that the rules name.
    pub paths: Vec<Vec<u8>>,
    /// Options of the system information.
    pub world: SystemInfoOptions,
    /// Receives reports about the engine itself.
    pub notices: Arc<dyn EngineObserver>,
    /// Sizes of the rings.
    pub rings: RingSizes,
    /// True if paths and names of processes are already checked in the kernel.
    pub filters: bool,
    /// Hooks on calls.
    pub hooks: Hooks,
    /// Maximum number of threads that evaluate a crowd of events.
    pub rule_threads: usize,
    /// Processes to watch.
    pub target: Target,
    /// Processes of the agent between a command and the process that started it: rules do not see them as ancestors.
    pub transparent: Vec<Pid>,
}

/// Adapts a plan to this engine: results are available, so the state of descriptors 0..2 is not tracked and
/// `dup` is planned like any other call.
#[must_use]
pub fn plan(mut plan: Plan) -> Plan {
    if plan.stdio != StdioWatch::Off {
        plans_dup(&mut plan);
    }
    watches_rings(&mut plan);
    // A process that takes a name which rules compare with is reported; one that writes its name to a file,
    // at its next record.
    if !plan.names.is_empty() {
        let renames = abi::RegisterTest::low(0, abi::TestOp::Eq, PR_SET_NAME.u64());
        let why = "changes the name of the thread";
        watches_state(&mut plan, abi::Syscall::PRCTL, vec![renames], why);
    }
    // A short-lived process may be gone before it is inspected: the users seen from a root are learned when
    // the root is set, which is before its first program, and at once (`ROW_AT_ONCE`).
    let mounts = abi::RegisterTest::low(0, abi::TestOp::AnyBit, CLONE_NEWNS.u64());
    for call in ROOT_CALLS {
        let tests = match call {
            abi::Syscall::UNSHARE => vec![mounts],
            _ => Vec::new(),
        };
        watches_state(&mut plan, call, tests, "changes where paths begin");
    }
    plan
}

/// Time between two checks whether the rings are empty.
const SETTLE_POLL: Duration = Duration::from_micros(200);

/// Calls that give their caller another root, or another mount of the same.
const ROOT_CALLS: [abi::Syscall; 3] = [
    abi::Syscall::CHROOT,
    abi::Syscall::PIVOT_ROOT,
    abi::Syscall::UNSHARE,
];

/// Plans a call such that every successful one is reported, whatever else rules ask of it.
fn watches_state(
    plan: &mut Plan,
    call: abi::Syscall,
    tests: Vec<abi::RegisterTest>,
    why: &'static str,
) {
    let interest = Interest {
        failed: false,
        ..Interest::in_any(vec![tests.clone()])
    };
    watches(plan, call, tests, interest, why);
}

/// As above, for calls that match an interest.
fn watches(
    plan: &mut Plan,
    call: abi::Syscall,
    tests: Vec<abi::RegisterTest>,
    interest: Interest,
    why: &'static str,
) {
    match plan.calls.get_mut(&call) {
        None => {
            let planned = CallPlan {
                any_of: vec![tests],
                strings: false,
                result: Need::Never,
                reasons: vec![Reason::State(why.into())],
            };
            plan.calls.insert(call, planned);
            plan.interests.insert(call, vec![interest]);
        }
        Some(planned) => {
            // Without interests only registers are tested.
            if let Some(interests) = plan.interests.get_mut(&call) {
                interests.push(interest);
            }
            if !planned.any_of.iter().any(Vec::is_empty) {
                planned.any_of.push(tests);
            }
            planned.reasons.push(Reason::State(why.into()));
        }
    }
}

/// Adds to the plan the calls that give a file a name which rules have.
fn with_renames(plan: Plan, paths: &[Vec<u8>]) -> Plan {
    let mut plan = self::plan(plan);
    for call in named::RENAMES {
        let interest = named::interest(paths);
        let why = "gives a file another name";
        watches(&mut plan, call, Vec::new(), interest, why);
    }
    plan
}

/// Plans every plain `dup`, in place of the calls that only show when one of descriptors 0..2 is closed.
fn plans_dup(plan: &mut Plan) {
    plan.stdio = StdioWatch::Off;
    plan.calls.retain(|call, planned| {
        let keeps_state_only = planned
            .reasons
            .iter()
            .all(|reason| matches!(reason, Reason::State(_)));
        !(stdio::concerns(*call) && keeps_state_only)
    });
    plan.calls.insert(
        abi::Syscall::DUP,
        CallPlan {
            any_of: vec![Vec::new()],
            strings: false,
            result: Need::IfUndecided,
            reasons: vec![Reason::Rule("redirection of a standard stream".to_owned())],
        },
    );
}

/// Plans the calls for rings: a ring carries out calls that no program here sees, so each is reported.
fn watches_rings(plan: &mut Plan) {
    let call = abi::Syscall::IO_URING_SETUP;
    plan.interests.remove(&call);
    plan.calls.insert(
        call,
        CallPlan {
            any_of: vec![Vec::new()],
            strings: false,
            result: Need::Never,
            reasons: vec![Reason::State("makes calls that are not seen".into())],
        },
    );
}

/// State that all threads of the engine share.
struct Shared<J: Evaluator> {
    evaluator: ArcSwap<J>,
    tables: ArcSwap<Tables>,
    maps: Maps,
    world: LiveSystemInfo,
    table: Arc<Table>,
    places: ContainerTable,
    named: NamedFiles,
    notices: Arc<dyn EngineObserver>,
    counters: Counters,
    evaluated: AtomicU64,
    /// Number of events.
    numbers: AtomicU64,
    /// Number of times that several threads evaluated records.
    crowds: AtomicU64,
    malformed: AtomicU64,
    /// True if no record can come when the watched processes have ended.
    ends_with_processes: bool,
    progress: Progress,
    /// The kernel's counts at the last read.
    kernel: Mutex<KernelCounts>,
    /// The attached programs; `None` detaches them.
    attached: Mutex<Option<Attached>>,
}

/// What was asked of the consumer, and how far it has come.
#[derive(Debug, Default)]
struct Progress {
    stopping: AtomicBool,
    ended: AtomicBool,
    gave_up: AtomicBool,
    /// Number of the last request to evaluate what the rings hold.
    asked: AtomicU64,
    /// Number of the last such request that is fulfilled.
    settled: AtomicU64,
}

impl<J: Evaluator> Shared<J> {
    /// Returns the kernel's counts. If reading them fails, reports that and returns the last ones: zeros
    /// would look like no losses.
    fn kernel_counts(&self) -> KernelCounts {
        let mut last = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        match self.maps.counts() {
            Ok(counts) => *last = counts,
            Err(error) => self.notices.engine_trouble(&error),
        }
        *last
    }

    fn snapshot(&self) -> EbpfCounters {
        let KernelCounts {
            by_registers,
            by_scope,
            by_path,
            by_name,
            sent,
            unreadable,
            truncated,
            lost_critical,
            lost_bulk,
            lost_state,
            no_memory,
            by_socket,
            by_place,
            by_ring,
            lost_share,
        } = self.kernel_counts();
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        EbpfCounters {
            seen: by_registers
                + by_scope
                + by_path
                + by_name
                + by_socket
                + by_place
                + sent
                + lost_critical
                + lost_bulk
                + no_memory,
            rejected_registers: by_registers,
            rejected_scope: by_scope,
            rejected_path: by_path,
            rejected_name: by_name,
            rejected_socket: by_socket,
            rejected_container: by_place,
            ring_calls: by_ring,
            sent,
            evaluated: load(&self.evaluated),
            crowds: load(&self.crowds),
            lost_critical,
            lost_bulk: lost_bulk + no_memory,
            lost_state,
            lost_share,
            unreadable,
            truncated,
            malformed: load(&self.malformed),
            unknown_calls: load(&self.counters.unknown_calls),
            undecided: load(&self.counters.undecided),
            processes: self.table.len() as u64,
            evicted: self.table.evicted(),
            undecided_scope: self.places.undecided_records(),
            places: self.places.len() as u64,
            evicted_container_keys: self.places.evicted(),
            evicted_roots: self.places.evicted_roots(),
        }
    }

    /// Returns lost records by call, including those of births, programs and ends.
    fn losses(&self) -> BTreeMap<String, u64> {
        let tables = self.tables.load();
        let losses = match self.maps.losses() {
            Ok(losses) => losses,
            Err(error) => {
                self.notices.engine_trouble(&error);
                return BTreeMap::new();
            }
        };
        let calls = losses
            .into_iter()
            .map(|(row, lost)| (tables.names(row).join("/"), lost));
        let counts = self.kernel_counts();
        let states = ("fork/exec/exit".to_owned(), counts.lost_state);
        let unkept = ("no memory".to_owned(), counts.no_memory);
        let others = [states, unkept].into_iter().filter(|(_, lost)| *lost > 0);
        calls.chain(others).collect()
    }

    /// Puts other tables into force. Hooks calls first, so that no call is missed that the tables ask for.
    fn install(&self, plan: &Plan, paths: &[Vec<u8>], ends: bool) -> Result<Tables, Error> {
        let tables = Tables::new(plan, ends)?;
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(attached) = attached.as_mut() {
            attached.attach_more(&tables)?;
            self.named.follow(paths, attached, &self.maps)?;
        }
        self.maps.install(&tables, &self.named)?;
        Ok(tables)
    }

    /// Updates the programs' list of files that rules name, if it has changed.
    fn name_files(&self, learn: impl FnOnce(&NamedFiles, &mut Attached) -> Result<bool, Error>) {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let learnt = attached
            .as_mut()
            .map(|attached| learn(&self.named, attached));
        drop(attached);
        let updated = match learnt {
            None | Some(Ok(false)) => Ok(()),
            Some(Ok(true)) => self.maps.rename(&self.tables.load(), &self.named),
            Some(Err(error)) => Err(error),
        };
        if let Err(error) = updated {
            self.notices.engine_trouble(&error);
        }
        if let Some(error) = self.named.take_trouble() {
            self.notices.engine_trouble(&error);
        }
    }
}

impl<J: Evaluator> RulesTarget<J> for Shared<J> {
    fn replace(&self, evaluator: Arc<J>, planned: &Plan, paths: &[Vec<u8>]) {
        let plan = with_renames(planned.clone(), paths);
        match self.install(&plan, paths, asks_for_ends(&*evaluator)) {
            Ok(tables) => {
                self.tables.store(Arc::new(tables));
                // The files of the earlier rules may have been written meanwhile.
                self.name_files(|_, _| Ok(true));
            }
            Err(error) => self.notices.engine_trouble(&error),
        }
        self.evaluator.store(evaluator);
    }

    fn evaluator(&self) -> Arc<J> {
        self.evaluator.load_full()
    }
}

/// A running engine.
pub struct Engine<J: Evaluator> {
    shared: Arc<Shared<J>>,
    consumer: JoinHandle<()>,
    attachment: Attachment,
}

impl<J: Evaluator + 'static> Engine<J> {
    /// Loads and attaches the programs, enters the running processes, and starts to evaluate.
    ///
    /// # Kernel
    ///
    /// Linux 5.11 or newer with BTF; CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE, or root.
    ///
    /// # Errors
    ///
    /// If the kernel refuses a program, or a thread cannot be started.
    pub fn start(parts: Parts<J>) -> Result<Self, Error> {
        let plan = with_renames(parts.plan, &parts.paths);
        let tables = Tables::new(&plan, asks_for_ends(&*parts.evaluator))?;
        let (scope, watched) = parts.target.scope();
        let control = Control {
            agent: std::process::id().cast_signed(),
            scope,
            wake_bytes: parts.rings.bulk / 8,
            state_limit: parts.rings.critical / 2,
            filters: parts.filters,
            ..Control::default()
        };
        let mut programs = Programs::load(parts.rings, control, parts.hooks)?;
        let table = Arc::new(Table::new(parts.transparent));
        let index: Arc<dyn ProcessIndex> = Arc::clone(&table) as _;
        let world = LiveSystemInfo::new(parts.world, index)?;
        if let Target::Processes(pids) = &parts.target {
            pids.iter()
                .try_for_each(|pid| programs.maps().watch(*pid))?;
        }
        // From here on every birth is reported, so that none is missed between this and the walk through `/proc`.
        programs.attach_processes()?;
        if let Target::Processes(pids) = &parts.target {
            watch_descendants(&mut programs, pids, world.proc())?;
        }
        table.seed(world.proc(), tables.environment);
        let named = NamedFiles::new()?;
        let (attached, maps) = programs.parts();
        named.follow(&parts.paths, attached, maps)?;
        programs.maps().install(&tables, &named)?;
        let attachment = programs.attach_calls(&tables)?;
        let (maps, attached) = programs.into_parts();
        let shared = Arc::new(Shared {
            evaluator: ArcSwap::new(parts.evaluator),
            tables: ArcSwap::from_pointee(tables),
            maps,
            world,
            table,
            places: ContainerTable::new(watched),
            named,
            notices: parts.notices,
            counters: Counters::default(),
            evaluated: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            crowds: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            ends_with_processes: scope == Scope::Pids,
            progress: Progress::default(),
            kernel: Mutex::default(),
            attached: Mutex::new(Some(attached)),
        });
        let consumer = Consumer::start(Arc::clone(&shared), parts.rule_threads)?;
        Ok(Self {
            shared,
            consumer,
            attachment,
        })
    }

    /// Returns the hooks that were chosen at the start.
    pub fn attachment(&self) -> &Attachment {
        &self.attachment
    }

    /// Returns a handle that replaces the rules.
    pub fn rulings(&self) -> RulesHandle<J> {
        RulesHandle::new(Arc::clone(&self.shared) as _)
    }

    /// Returns the current totals.
    pub fn counters(&self) -> EbpfCounters {
        self.shared.snapshot()
    }

    /// Returns a source of the totals that outlives the engine.
    pub fn counter_source(&self) -> Arc<dyn Fn() -> EbpfCounters + Send + Sync> {
        let shared = Arc::clone(&self.shared);
        Arc::new(move || shared.snapshot())
    }

    /// Returns a predicate for watched processes, if processes and their descendants are watched. It returns
    /// true if the kernel does not answer.
    pub fn scope(&self) -> Option<Arc<dyn Fn(Pid) -> bool + Send + Sync>> {
        let shared = Arc::clone(&self.shared);
        self.shared
            .ends_with_processes
            .then(|| Arc::new(move |pid| shared.maps.watches(pid).unwrap_or(true)) as _)
    }

    /// Returns whether the last watched process has ended and all its events were evaluated.
    pub fn has_ended(&self) -> bool {
        self.shared.progress.ended.load(Ordering::Acquire)
    }

    /// Returns whether the engine has ended because more was lost than [`EngineObserver::events_dropped`] allows.
    pub fn has_given_up(&self) -> bool {
        self.shared.progress.gave_up.load(Ordering::Acquire)
    }

    /// Waits until every record that is in the rings now has been evaluated, or `deadline` is reached.
    pub fn settle(&self, deadline: Instant) {
        let progress = &self.shared.progress;
        let request = progress.asked.fetch_add(1, Ordering::AcqRel) + 1;
        let is_settled = || progress.settled.load(Ordering::Acquire) >= request || self.has_ended();
        while !is_settled() && Instant::now() < deadline {
            std::thread::sleep(SETTLE_POLL);
        }
    }

    /// Evaluates the records sent so far, and ends. [`Engine::join`] waits for that.
    pub fn stop(&self) {
        // A busy host could fill the rings as fast as they are read.
        if let Err(error) = self.shared.maps.switch_off() {
            self.shared.notices.engine_trouble(&error);
        }
        self.shared.progress.stopping.store(true, Ordering::Release);
    }

    /// Waits until every sent record has been evaluated.
    pub fn join(self) -> EbpfCounters {
        // The panic hook has reported a panic of the consumer.
        let _ = self.consumer.join();
        // Detaches the programs.
        self.shared
            .attached
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.shared.snapshot()
    }
}

/// Returns whether rules ask for the ends of processes.
fn asks_for_ends(evaluator: &impl Evaluator) -> bool {
    tables::end().is_some_and(|end| evaluator.concerns(end))
}

/// Returns whether the process does not exist, or is a zombie.
fn has_ended(proc: &process_info::procfs::Proc, pid: Pid) -> bool {
    proc.stat(pid.0)
        .map_or(true, |stat| matches!(stat.state, b'Z' | b'X'))
}

/// Watches the descendants of processes, unless one of these has ended.
fn watch_descendants(
    programs: &mut Programs,
    pids: &[Pid],
    proc: &process_info::procfs::Proc,
) -> Result<(), Error> {
    // The end of a process that has ended already is never reported.
    if let Some(gone) = pids.iter().find(|pid| has_ended(proc, **pid)) {
        return Err(Error::Gone { pid: gone.0 });
    }
    let mut found = descendants(pids).into_iter();
    found.try_for_each(|pid| programs.maps().watch(pid))
}

/// Returns all descendants of some processes, as `/proc` shows them now.
fn descendants(pids: &[Pid]) -> Vec<Pid> {
    let Ok(inspector) = decoder::process_inspector::ProcessInspector::new() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut parents = pids.to_vec();
    while let Some(parent) = parents.pop() {
        for child in inspector.children(parent) {
            found.push(child);
            parents.push(child);
        }
    }
    found
}
