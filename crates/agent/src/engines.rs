//! Starting the engine that was chosen.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Context;
use capture::ebpf;
use capture::gvisor;
use capture::notify::{
    GuardOptions, NotifyEngine, Parts, Pending, Processes, RulesHandle, VerifyOptions,
};
use capture::ptrace;
use container::ContainerOptions;
use decoder::counters::CounterSnapshot;
use decoder::system_info::{LiveSystemInfo, SystemInfoOptions};
use decoder::tree::InitProgramState;
use diagnostics::terminal;
use event::{Pid, Plan};
use outputs::{Dispatcher, Snapshot};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use rules::Engine;
use seccomp::FilterProgram;
use supervisor::{Board, Cause, Held, Listening, Mechanism, Source};

use super::announcer::Announcer;
use super::drops::Drops;
use super::first::{First, Restriction};
use super::reload::Matched;
use super::services::{Rules, TheirContainer};
use super::violations::Violations;

/// Which engine carries the plan out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    Notify,
    Ptrace,
    Ebpf,
    Gvisor,
    /// There is no engine.
    Nothing,
}

impl Carries {
    pub(super) fn of(mechanism: Mechanism) -> Self {
        match mechanism {
            Mechanism::Listener => Self::Notify,
            Mechanism::Tracer { .. } => Self::Ptrace,
            Mechanism::Kernel => Self::Ebpf,
            Mechanism::Sandbox => Self::Gvisor,
            Mechanism::Nothing => Self::Nothing,
        }
    }

    /// Its name in metrics: that of Falco's engine that works in the same way, or our own.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Notify => "notify",
            Self::Ptrace => "ptrace",
            Self::Ebpf => "modern_bpf",
            Self::Gvisor => "gvisor",
            Self::Nothing => "nodriver",
        }
    }

    /// The plan as the engine carries it out.
    pub(super) fn plan(self, plan: Plan) -> Plan {
        match self {
            Self::Notify | Self::Ptrace | Self::Gvisor | Self::Nothing => plan,
            Self::Ebpf => ebpf::plan(plan),
        }
    }
}

/// What tests and measurements change about the engine ebpf.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Whether paths and names are looked at in the kernel.
    pub(super) filters: bool,
    /// Size of the ring for most events.
    pub(super) ring_kib: u32,
    /// How calls are seen.
    pub(super) hooks: ebpf::Hooks,
    /// How many threads judge a crowd of events; `None`: as many as there are processors, up to a limit.
    pub(super) judges: Option<NonZeroUsize>,
}

/// More threads than this have more to do with each other than with events.
const JUDGES_LIMIT: usize = 8;

impl Tuning {
    fn judges(self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.judges
            .map_or_else(|| processors().min(JUDGES_LIMIT), NonZeroUsize::get)
    }
}

/// What an engine is started from.
pub(super) struct Request {
    pub(super) listening: Listening,
    pub(super) rules: Rules,
    /// What a container's first program is restricted by.
    pub(super) first: Option<First>,
    pub(super) told: Option<TheirContainer>,
    pub(super) common: Common,
}

/// What engines have in common that watch containers in one process.
#[derive(Clone)]
pub(super) struct Common {
    /// What the policy says of calls.
    pub(super) profile: Profile,
    /// What tells which failures were denials by others.
    pub(super) witness: DenialClassifier,
    /// As [`Request::first`], of containers that come later.
    pub(super) first: Option<Restriction>,
    pub(super) verify: VerifyOptions,
    pub(super) program: FilterProgram,
    /// As [`Blueprint::entered`](super::services::Blueprint::entered).
    pub(super) entered: Option<FilterProgram>,
    pub(super) container_id: Option<String>,
    pub(super) refuse_non_dumpable: bool,
    pub(super) tuning: Tuning,
    pub(super) dispatcher: Dispatcher,
    pub(super) quiet: bool,
    pub(super) drops: Arc<Drops>,
    /// What becomes of violations.
    pub(super) violations: Arc<Violations>,
}

impl Request {
    fn world(&self) -> SystemInfoOptions {
        SystemInfoOptions {
            container: ContainerOptions {
                own_id: self.common.container_id.clone(),
                told: self.told.as_ref().map(|their| their.told.clone()),
                ..ContainerOptions::default()
            },
            ..SystemInfoOptions::default()
        }
    }
}

impl Common {
    fn announcer(&self) -> Arc<Announcer> {
        Arc::new(Announcer::new(
            self.dispatcher.clone(),
            Arc::clone(&self.drops),
            Arc::clone(&self.violations),
        ))
    }
}

/// Tells whether a process is watched.
pub(super) type Scope = Arc<dyn Fn(Pid) -> bool + Send + Sync>;

/// A running engine, as the services see it.
pub(super) trait Watcher {
    /// Whether the last watched process has ended.
    fn has_ended(&self) -> bool;
    /// Whether it ended because too much was lost.
    fn has_given_up(&self) -> bool {
        false
    }
    /// Receives no more calls; [`Watcher::join`] waits for those at hand.
    fn let_go(&self);
    /// What tells whether the kernel knows a process as a watched one, where it knows each of them.
    fn scope(&self) -> Option<Scope> {
        None
    }
    /// Keeps the workload's hands off another process of ours.
    fn protect(&self, pid: Pid);
    /// Waits for the end.
    fn join(self: Box<Self>);
}

/// Gives the engine's counters for the stats file.
type Counters = Box<dyn Fn(&Matched, &Board) -> Snapshot + Send + Sync>;

/// A running engine and the handles on it.
pub(super) struct Started {
    pub(super) watcher: Box<dyn Watcher>,
    pub(super) rulings: RulesHandle<Engine>,
    pub(super) counters: Counters,
}

/// An engine that holds callers at their calls.
pub(super) type Holding = NotifyEngine<Engine>;

/// Starts `notify` or `ptrace`, for the services of one process.
pub(super) fn start_held(request: Request) -> anyhow::Result<Started> {
    let supervisor = hold(request)?;
    let counters = supervisor.counter_source();
    Ok(Started {
        rulings: supervisor.rulings(),
        counters: Box::new(move |matched, board| {
            let counters = counters().plus(&board.past());
            snapshot(&counters, matched, &Losses::of(board))
        }),
        watcher: Box::new(supervisor),
    })
}

/// Starts `notify` or `ptrace`, which hold callers at their calls.
pub(super) fn hold(request: Request) -> anyhow::Result<Holding> {
    let world = request.world();
    let (listening, common) = (request.listening, request.common);
    let lenient = match listening.transparent[..] {
        [front, .., waiter] => vec![front, waiter],
        // This process alone.
        _ => Vec::new(),
    };
    let guard = GuardOptions {
        // The front passes on what it gets, and the command may signal its parent.
        lenient,
        refuse_non_dumpable: common.refuse_non_dumpable,
    };
    let processes = match listening.source {
        Source::Listener(_) => Processes::with_marks(listening.transparent)?,
        // A tracer sees every birth.
        _ => Processes::new(listening.transparent)?,
    };
    let board = listening.board;
    let sets_up = request.told.as_ref().is_some_and(|their| their.has_mounts);
    let first = request.first.filter(|_| board.first_waits());
    let processes = if sets_up && (first.is_some() || !listening.is_resumed) {
        processes.with_setup()?
    } else {
        processes
    };
    let begun = match first.is_some() || listening.held.is_some() {
        true => InitProgramState::No,
        false => InitProgramState::Perhaps,
    };
    // Calls that the runtime made before; a command of ours has made none.
    let pending: Pending = {
        let (held, is_resumed) = (listening.held, listening.is_resumed);
        let processes = processes.clone();
        Box::new(move || {
            let is_there = is_resumed || held.is_some();
            let calls = held.map_or_else(|| Ok(Vec::new()), Held::calls)?;
            if is_there {
                processes.adopt(begun);
            }
            Ok(calls)
        })
    };
    let first = first.map(|first| first.start(Arc::clone(&board), common.dispatcher.clone()));
    let world = LiveSystemInfo::new(world, Arc::new(processes.clone()))?;
    let paths = request.rules.judge.paths().into_iter().collect();
    let (listener, traced) = match listening.source {
        Source::Listener(listener) => (listener, None),
        Source::Command(pid) => (ptrace::no_listener()?, Some(ptrace::Target::Command(pid))),
        Source::Running(pids) => (ptrace::no_listener()?, Some(ptrace::Target::Running(pids))),
        Source::Host | Source::Places(_) => {
            anyhow::bail!("cannot watch the host with an engine that holds calls")
        }
        Source::Sandboxes(_) | Source::Containers(_) | Source::Nothing => {
            anyhow::bail!("cannot hold calls of sandboxes, or of nobody")
        }
    };
    let carries = if traced.is_some() {
        Carries::Ptrace
    } else {
        Carries::Notify
    };
    // Who enters a container does so by its runtime, and is watched from there.
    let watches_entries =
        !matches!(traced, Some(ptrace::Target::Running(_))) && request.told.is_none();
    let notices = common.announcer();
    let lacked = {
        let board = Arc::clone(&board);
        Arc::new(move || board.lacked())
    };
    let parts = Parts {
        listener,
        installed: carries.plan(request.rules.installed),
        plan: carries.plan(request.rules.plan),
        profile: common.profile,
        witness: common.witness,
        lacked,
        first,
        pending,
        judge: request.rules.judge,
        world: Arc::new(world),
        processes,
        notices,
        guard,
        verify: common.verify,
        paths,
    };
    let pulse = Arc::clone(board.pulse(listening.generation));
    let supervisor = match traced {
        None => {
            let ticket = listening.ticket.unwrap_or_else(|| pulse.offer());
            NotifyEngine::start_watched(parts, pulse, ticket)
                .context("cannot start the engine notify")
        }
        Some(target) => ptrace::start(parts, pulse, common.program, target)
            .context("cannot start the engine ptrace"),
    }?;
    if let Some(entered) = common.entered.filter(|_| watches_entries) {
        ptrace::watch_entries(&supervisor, entered)
            .context("cannot look for processes that enter")?;
    }
    Ok(supervisor)
}

impl Watcher for NotifyEngine<Engine> {
    fn has_ended(&self) -> bool {
        NotifyEngine::has_ended(self)
    }

    fn let_go(&self) {
        self.hand_over();
    }

    fn protect(&self, pid: Pid) {
        NotifyEngine::protect(self, pid);
    }

    fn join(self: Box<Self>) {
        NotifyEngine::join(*self);
    }
}

/// Starts `ebpf`, which watches from within the kernel.
pub(super) fn start_ebpf(request: Request) -> anyhow::Result<Started> {
    let world = request.world();
    let target = match request.listening.source {
        Source::Command(pid) => ebpf::Target::Processes(vec![pid]),
        Source::Running(pids) => ebpf::Target::Processes(pids),
        Source::Host => ebpf::Target::Host,
        Source::Places(watched) => ebpf::Target::Places(watched),
        Source::Listener(_) | Source::Sandboxes(_) | Source::Containers(_) | Source::Nothing => {
            anyhow::bail!("cannot watch a listener with the engine ebpf")
        }
    };
    // No floor: rules that are loaded later get whatever they ask for.
    let plan = request.rules.judge.plan_for_results();
    let paths = request.rules.judge.paths().into_iter().collect();
    let engine = ebpf::Engine::start(ebpf::Parts {
        paths,
        plan,
        judge: request.rules.judge,
        world,
        notices: request.common.announcer(),
        rings: ebpf::RingSizes {
            bulk: request.common.tuning.ring_kib.saturating_mul(1024),
            ..ebpf::RingSizes::default()
        },
        filters: request.common.tuning.filters,
        hooks: request.common.tuning.hooks,
        judges: request.common.tuning.judges(),
        target,
        transparent: request.listening.transparent,
    })
    .context("cannot start the engine ebpf")?;
    let counters = engine.counter_source();
    let hooks = engine.attachment().to_string();
    if !request.common.quiet {
        terminal::complain(&format!("tollgate: calls are seen by {hooks}\n"));
    }
    Ok(Started {
        rulings: engine.rulings(),
        counters: Box::new(move |matched, _| ebpf_snapshot(&counters(), matched, &hooks)),
        watcher: Box::new(engine),
    })
}

impl Watcher for ebpf::Engine<Engine> {
    fn has_ended(&self) -> bool {
        ebpf::Engine::has_ended(self)
    }

    fn has_given_up(&self) -> bool {
        ebpf::Engine::has_given_up(self)
    }

    fn scope(&self) -> Option<Scope> {
        ebpf::Engine::scope(self)
    }

    fn let_go(&self) {
        self.stop();
    }

    // The engine's own process is never looked at, and holds no call that could be refused.
    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {
        ebpf::Engine::join(*self);
    }
}

/// Starts `gvisor`, to which sandboxes send what their programs do.
pub(super) fn start_gvisor(request: Request) -> anyhow::Result<Started> {
    let Source::Sandboxes(endpoint) = request.listening.source else {
        anyhow::bail!("cannot watch with the engine gvisor without a socket");
    };
    let engine = gvisor::Engine::start(gvisor::Parts {
        judge: request.rules.judge,
        notices: request.common.announcer(),
        names: request.rules.plan.names,
        endpoint,
        state_root: std::path::PathBuf::from("/"),
    })
    .context("cannot start the engine gvisor")?;
    let counters = engine.counter_source();
    Ok(Started {
        rulings: engine.rulings(),
        counters: Box::new(move |matched, _| gvisor_snapshot(&counters(), matched)),
        watcher: Box::new(engine),
    })
}

impl Watcher for gvisor::Engine<Engine> {
    /// Another sandbox may always come.
    fn has_ended(&self) -> bool {
        gvisor::Engine::has_ended(self)
    }

    fn let_go(&self) {
        self.stop();
    }

    // A sandbox cannot reach any process of ours.
    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {
        gvisor::Engine::join(*self);
    }
}

/// Starts nothing: outputs and servers work, and no event comes.
pub(super) fn start_nothing(request: Request) -> Started {
    Started {
        rulings: RulesHandle::idle(request.rules.judge),
        counters: Box::new(|matched, _| Snapshot {
            events: 0,
            drops: 0,
            preemptions: 0,
            filtered_in_kernel: None,
            notes: Vec::new(),
            pieces: vec![("matched", matched.total())],
        }),
        watcher: Box::new(Nothing),
    }
}

struct Nothing;

impl Watcher for Nothing {
    fn has_ended(&self) -> bool {
        false
    }

    fn let_go(&self) {}

    fn protect(&self, _pid: Pid) {}

    fn join(self: Box<Self>) {}
}

fn gvisor_snapshot(counters: &gvisor::GvisorCounters, matched: &Matched) -> Snapshot {
    Snapshot {
        events: counters.messages + counters.dropped,
        drops: counters.dropped,
        preemptions: 0,
        filtered_in_kernel: None,
        notes: Vec::new(),
        pieces: vec![
            ("sandboxes", counters.sandboxes),
            ("connected", counters.connected),
            ("refused", counters.refused),
            ("messages", counters.messages),
            ("judged", counters.judged),
            ("dropped_by_sandboxes", counters.dropped),
            ("malformed", counters.malformed),
            ("truncated", counters.truncated),
            ("unknown_messages", counters.unknown_messages),
            ("unknown_calls", counters.unknown_calls),
            ("unreadable", counters.unreadable),
            ("undecided", counters.undecided),
            ("matched", matched.total()),
        ],
    }
}

fn ebpf_snapshot(counters: &ebpf::EbpfCounters, matched: &Matched, hooks: &str) -> Snapshot {
    Snapshot {
        events: counters.sent + counters.lost(),
        drops: counters.lost(),
        preemptions: 0,
        filtered_in_kernel: Some(counters.rejected_in_kernel()),
        pieces: vec![
            ("seen_in_kernel", counters.seen),
            ("rejected_registers", counters.rejected_registers),
            ("rejected_scope", counters.rejected_scope),
            ("rejected_path", counters.rejected_path),
            ("rejected_name", counters.rejected_name),
            ("rejected_socket", counters.rejected_socket),
            ("rejected_place", counters.rejected_place),
            ("ring_calls_unseen", counters.ring_calls),
            ("sent", counters.sent),
            ("judged", counters.judged),
            ("crowds", counters.crowds),
            ("lost_critical", counters.lost_critical),
            ("lost_bulk", counters.lost_bulk),
            ("lost_state", counters.lost_state),
            ("lost_share", counters.lost_share),
            ("unreadable", counters.unreadable),
            ("truncated", counters.truncated),
            ("malformed", counters.malformed),
            ("unknown_calls", counters.unknown_calls),
            ("undecided", counters.undecided),
            ("processes", counters.processes),
            ("evicted", counters.evicted),
            ("places", counters.places),
            ("evicted_places", counters.evicted_places),
            ("evicted_roots", counters.evicted_roots),
            ("matched", matched.total()),
        ],
        notes: vec![("hooks", hooks.to_owned())],
    }
}

/// What the keeper did while there was no agent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses {
    /// Calls that passed, by cause.
    passed: [u64; Cause::ALL.len()],
    denied: u64,
    gaps: u64,
    alerts: u64,
}

impl Losses {
    pub(super) fn of(board: &Board) -> Self {
        Self {
            passed: Cause::ALL.map(|cause| board.passed(cause)),
            denied: board.denied(),
            gaps: board.gaps(),
            alerts: board.lost_alerts(),
        }
    }

    /// Alerts alone.
    pub(super) fn of_alerts(alerts: u64) -> Self {
        Self {
            alerts,
            ..Self::default()
        }
    }

    /// These and those of another container.
    pub(super) fn plus(&self, other: &Self) -> Self {
        let mut passed = self.passed;
        for (sum, more) in passed.iter_mut().zip(other.passed) {
            *sum += more;
        }
        Self {
            passed,
            denied: self.denied + other.denied,
            gaps: self.gaps + other.gaps,
            alerts: self.alerts + other.alerts,
        }
    }

    fn passed(&self, cause: Cause) -> u64 {
        let causes = Cause::ALL.into_iter().zip(self.passed);
        causes
            .filter(|(other, _)| *other == cause)
            .map(|(_, count)| count)
            .sum()
    }
}

/// The engine's totals for the stats file, with those of agents before this one. It cannot drop: a
/// caller waits until its call was looked at. What the keeper let pass while there was no agent is
/// dropped, though; what it refused is not, because it did not happen.
pub(super) fn snapshot(counters: &CounterSnapshot, matched: &Matched, losses: &Losses) -> Snapshot {
    let passed = |cause| losses.passed(cause);
    let passed_unwatched: u64 = losses.passed.iter().sum();
    Snapshot {
        events: counters.trapped + passed_unwatched + losses.denied,
        drops: passed_unwatched,
        preemptions: 0,
        filtered_in_kernel: None,
        pieces: vec![
            ("trapped", counters.trapped),
            ("unjudged", counters.unjudged),
            ("rejected_at_strings", counters.rejected_at_strings),
            ("rejected_at_descriptor", counters.rejected_at_descriptor),
            ("rejected_at_entry", counters.rejected_at_entry),
            ("concluded_at_entry", counters.concluded_at_entry),
            ("escalated", counters.escalated),
            ("escalation_refused", counters.escalation_refused),
            ("followed", counters.followed),
            ("unreadable", counters.unreadable),
            ("read_timeouts", counters.read_timeouts),
            ("attach_timeouts", counters.attach_timeouts),
            ("undecided", counters.undecided),
            ("gone", counters.gone),
            ("unknown_callers", counters.unknown_callers),
            ("receiver_panics", counters.receiver_panics),
            ("unknown_calls", counters.unknown_calls),
            ("guessed_parents", counters.guessed_parents),
            ("stdio_watches", counters.stdio_watches),
            ("stdio_watches_refused", counters.stdio_watches_refused),
            ("intrusions", counters.intrusions),
            ("answer_errors", counters.answer_errors),
            ("withdrawn", counters.withdrawn),
            ("racy_processes", counters.racy_processes),
            ("verified", counters.verified),
            ("arguments_changed", counters.arguments_changed),
            ("verify_failed", counters.verify_failed),
            ("traced_by_others", counters.traced_by_others),
            ("rings", counters.rings),
            ("tripwire_watches", counters.tripwire_watches),
            ("tripwire_refused", counters.tripwire_refused),
            ("tripwire_opens", counters.tripwire_opens),
            ("tripwire_unseen", counters.tripwire_unseen),
            ("tripwire_foreign", counters.tripwire_foreign),
            ("of_runtime", counters.of_runtime),
            ("violations", counters.violations),
            ("no_progress", counters.no_progress),
            ("gaps", losses.gaps),
            ("passed_unwatched", passed_unwatched),
            ("passed_agent_killed", passed(Cause::Killed)),
            ("passed_agent_exited", passed(Cause::Exited)),
            ("passed_agent_stopped", passed(Cause::Stopped)),
            ("passed_agent_starved", passed(Cause::Starved)),
            ("passed_agent_gone", passed(Cause::Gone)),
            ("denied_unwatched", losses.denied),
            ("alerts_lost_with_agent", losses.alerts),
            ("matched", matched.total()),
        ],
        notes: Vec::new(),
    }
}
