//! Starts the selected engine.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Context;
use capture::ebpf;
use capture::gvisor;
use capture::notify::{
    GuardOptions, HeldCalls, NotifyEngine, Parts, Pending, Processes, RulesHandle, VerifyOptions,
};
use capture::ptrace;
use container::ContainerOptions;
use container::registry::Registry;
use decoder::system_info::{LiveSystemInfo, SystemInfoOptions};
use decoder::tree::InitProgramState;
use diagnostics::terminal;
use event::{EngineKind, Pid, Plan};
use outputs::{Dispatcher, Snapshot};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use response::Denials;
use rules::{Engine, Priority};
use seccomp::FilterProgram;
use supervisor::{AgentStart, HeldRuntimeCalls, SharedState, Source};
use sys::notify::Listener;

mod counters;

pub(crate) use self::counters::{Losses, snapshot};
use self::counters::{ebpf_snapshot, gvisor_snapshot};
use super::announcer::Announcer;
use super::drops::Drops;
use super::first::{InitProcessPolicy, Restriction};
use super::reload::MatchCounts;
use super::service_manager;
use super::services::{Rules, RuntimeContainer};
use super::violations::Violations;
use crate::journal;

/// Adapts the plan to an engine.
pub(super) fn plan_for(engine: EngineKind, plan: Plan) -> Plan {
    match engine {
        EngineKind::Ebpf => ebpf::plan(plan),
        EngineKind::Notify
        | EngineKind::Ptrace
        | EngineKind::Gvisor
        | EngineKind::Scap
        | EngineKind::Nodriver => plan,
    }
}

/// Settings of the engine ebpf for tests and measurements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Evaluate paths and names in the kernel.
    pub(super) filters: bool,
    /// Size of the ring buffer for most events, in KiB.
    pub(super) ring_kib: u32,
    /// Hooks that intercept calls.
    pub(super) hooks: ebpf::Hooks,
    /// Number of threads that evaluate a burst of events; `None` for one per processor, up to a
    /// limit.
    pub(super) rule_threads: Option<NonZeroUsize>,
}

/// Maximum number of such threads; with more, coordination costs more than evaluation.
const JUDGES_LIMIT: usize = 8;

impl Tuning {
    fn rule_threads(self) -> usize {
        let processors = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.rule_threads
            .map_or_else(|| processors().min(JUDGES_LIMIT), NonZeroUsize::get)
    }
}

/// Parameters of an engine.
pub(super) struct Request {
    pub(super) listening: AgentStart,
    pub(super) rules: Rules,
    /// Restriction of a container's first program.
    pub(super) first: Option<InitProcessPolicy>,
    pub(super) told: Option<RuntimeContainer>,
    pub(super) common: Common,
}

/// Parameters that all engines of a process share which watch containers.
#[derive(Clone)]
pub(super) struct Common {
    /// The policy's decisions on calls.
    pub(super) profile: Profile,
    /// Classifier of failures that other enforcers caused.
    pub(super) classifier: DenialClassifier,
    /// As [`Request::first`], of containers that come later.
    pub(super) first: Option<Restriction>,
    pub(super) verify: VerifyOptions,
    /// Who withholds calls from processes for responses.
    pub(super) denials: Option<Denials>,
    /// The filter of a process may be that of another configuration.
    pub(super) has_other_filters: bool,
    pub(super) program: FilterProgram,
    /// As [`AgentConfig::entered`](super::services::AgentConfig::entered).
    pub(super) entered: Option<FilterProgram>,
    pub(super) container_id: Option<String>,
    /// As [`AgentConfig::containers`](super::services::AgentConfig::containers).
    pub(super) containers: Option<Arc<Registry>>,
    pub(super) refuse_non_dumpable: bool,
    pub(super) tuning: Tuning,
    pub(super) dispatcher: Dispatcher,
    pub(super) quiet: bool,
    pub(super) drops: Arc<Drops>,
    /// Receiver of violations.
    pub(super) violations: Arc<Violations>,
}

impl Request {
    fn world(&self) -> SystemInfoOptions {
        SystemInfoOptions {
            container: ContainerOptions {
                own_id: self.common.container_id.clone(),
                told: self.told.as_ref().map(|their| their.told.clone()),
                registry: self.common.containers.clone(),
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

/// Callback that returns the engine's counters for the stats file.
pub(super) type Counters = Box<dyn Fn(&MatchCounts, &SharedState) -> Snapshot + Send + Sync>;

/// A running engine with its handles.
pub(super) struct Started {
    pub(super) watcher: Box<dyn capture::Engine>,
    pub(super) rulings: RulesHandle<Engine>,
    pub(super) counters: Counters,
}

/// An engine that holds the caller during a call.
pub(super) type Holding = NotifyEngine<Engine>;

/// Starts `notify` or `ptrace` for the services of one process.
pub(super) fn start_held(request: Request) -> anyhow::Result<Started> {
    let watched = watched(&request.listening.source);
    let quiet = request.common.quiet;
    let supervisor = hold(request)?;
    tell_armed(watched, "ptrace", quiet);
    let counters = supervisor.counter_source();
    Ok(Started {
        rulings: supervisor.rulings(),
        counters: Box::new(move |matched, shared_state| {
            let counters = counters().plus(&shared_state.past());
            snapshot(&counters, matched.total(), &Losses::of(shared_state))
        }),
        watcher: Box::new(supervisor),
    })
}

/// Starts `notify` or `ptrace`, which hold the caller during a call.
pub(super) fn hold(request: Request) -> anyhow::Result<Holding> {
    let world = request.world();
    let (listening, common) = (request.listening, request.common);
    let guard = guard(&listening.transparent, common.refuse_non_dumpable);
    let shared_state = listening.shared_state;
    let first = request.first.filter(|_| shared_state.first_waits());
    let has_mounts = request.told.as_ref().is_some_and(|their| their.has_mounts);
    let sets_up = has_mounts && (first.is_some() || !listening.is_resumed);
    let processes = processes(&listening.source, listening.transparent, sets_up)?;
    let begun = match first.is_some() || listening.held.is_some() {
        true => InitProgramState::No,
        false => InitProgramState::Perhaps,
    };
    let (held, is_resumed) = (listening.held, listening.is_resumed);
    let pending = runtime_calls(held, is_resumed, begun, processes.clone());
    let first =
        first.map(|first| first.start(Arc::clone(&shared_state), common.dispatcher.clone()));
    let world = LiveSystemInfo::new(world, Arc::new(processes.clone()))?;
    let paths = request.rules.evaluator.paths().into_iter().collect();
    let (listener, traced) = callers(listening.source)?;
    let installed = &request.rules.installed;
    allow_denials(&common, installed, &processes, traced.as_ref())?;
    // Processes enter a container through its runtime, and are watched from there.
    let watches_entries =
        !matches!(traced, Some(ptrace::Target::Running(_))) && request.told.is_none();
    let notices = common.announcer();
    let lacked = Arc::clone(&shared_state);
    let parts = Parts {
        listener,
        installed: request.rules.installed,
        plan: request.rules.plan,
        profile: common.profile,
        classifier: common.classifier,
        lacked: Arc::new(move || lacked.lacked()),
        first,
        pending,
        evaluator: request.rules.evaluator,
        world: Arc::new(world),
        processes,
        notices,
        guard,
        verify: common.verify,
        paths,
    };
    let pulse = Arc::clone(shared_state.pulse(listening.generation));
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

/// Lets responses withhold calls from the processes of an engine. `installed`: the calls that their filter traps.
fn allow_denials(
    common: &Common,
    installed: &Plan,
    processes: &Processes,
    traced: Option<&ptrace::Target>,
) -> anyhow::Result<()> {
    let Some(denials) = common.denials.as_ref().filter(|_| common.verify.may_deny) else {
        return Ok(());
    };
    if matches!(traced, Some(ptrace::Target::Running(_))) {
        anyhow::bail!(
            "cannot use `process:deny`: not supported here: processes that ran before may have an io_uring; start the \
             program with `tollgate run`, or use `process:freeze`"
        );
    }
    // As far as known: those of other configurations may trap nothing.
    let nothing = Plan::default();
    let installed = match common.has_other_filters {
        true => &nothing,
        false => installed,
    };
    denials.add(processes.denier(installed, common.verify.deny_rings));
    Ok(())
}

/// Returns which of the processes that watch the engine protects. `transparent`: front to waiter, or only the
/// agent.
fn guard(transparent: &[Pid], refuse_non_dumpable: bool) -> GuardOptions {
    let lenient = match *transparent {
        [front, .., waiter] => vec![front, waiter],
        // This process alone.
        _ => Vec::new(),
    };
    GuardOptions {
        // The front forwards the signals it gets, and the command may signal its parent.
        lenient,
        refuse_non_dumpable,
    }
}

/// Returns the processes that an engine watches. `sets_up`: a runtime sets a container up first.
fn processes(source: &Source, transparent: Vec<Pid>, sets_up: bool) -> anyhow::Result<Processes> {
    let processes = match source {
        Source::Listener(_) => Processes::with_marks(transparent)?,
        // A tracer sees every process creation.
        _ => Processes::new(transparent)?,
    };
    Ok(match sets_up {
        true => processes.with_setup()?,
        false => processes,
    })
}

/// Returns the calls that the runtime made before. A command of ours has made none.
fn runtime_calls(
    held: Option<HeldRuntimeCalls>,
    is_resumed: bool,
    begun: InitProgramState,
    processes: Processes,
) -> Pending {
    Box::new(move || {
        let is_there = is_resumed || held.is_some();
        let held = held.map_or_else(|| Ok(HeldCalls::default()), HeldRuntimeCalls::calls)?;
        if is_there {
            processes.adopt(begun);
        }
        if let Some(runtime) = &held.runtime {
            processes.begin_with(runtime);
        }
        Ok(held.calls)
    })
}

/// Returns the listener, or the process to trace if there is no listener.
fn callers(source: Source) -> anyhow::Result<(Listener, Option<ptrace::Target>)> {
    Ok(match source {
        Source::Listener(listener) => (listener, None),
        Source::Command(pid) => (ptrace::no_listener()?, Some(ptrace::Target::Command(pid))),
        Source::Running(pids) => (ptrace::no_listener()?, Some(ptrace::Target::Running(pids))),
        Source::Host | Source::Places(_) => {
            anyhow::bail!("cannot watch the host with an engine for one command")
        }
        Source::Sandboxes(_) | Source::Containers(_) | Source::Nothing => {
            anyhow::bail!("cannot run a command with an engine for sandboxes")
        }
    })
}

/// Starts `ebpf`, which observes from within the kernel.
pub(super) fn start_ebpf(request: Request) -> anyhow::Result<Started> {
    let world = request.world();
    let watched = watched(&request.listening.source);
    let target = match request.listening.source {
        Source::Command(pid) => ebpf::Target::Processes(vec![pid]),
        Source::Running(pids) => ebpf::Target::Processes(pids),
        Source::Host => ebpf::Target::Host,
        Source::Places(watched) => ebpf::Target::Places(watched),
        Source::Listener(_) | Source::Sandboxes(_) | Source::Containers(_) | Source::Nothing => {
            anyhow::bail!("cannot watch a listener with the engine ebpf")
        }
    };
    // No always-trapped calls: rules loaded later get whatever they require.
    let plan = request.rules.evaluator.plan_for_results();
    let paths = request.rules.evaluator.paths().into_iter().collect();
    let engine = ebpf::Engine::start(ebpf::Parts {
        paths,
        plan,
        evaluator: request.rules.evaluator,
        world,
        notices: request.common.announcer(),
        rings: ebpf::RingSizes {
            bulk: request.common.tuning.ring_kib.saturating_mul(1024),
            ..ebpf::RingSizes::default()
        },
        filters: request.common.tuning.filters,
        hooks: request.common.tuning.hooks,
        rule_threads: request.common.tuning.rule_threads(),
        target,
        transparent: request.listening.transparent,
    })
    .context("cannot start the engine ebpf")?;
    let counters = engine.counter_source();
    let hooks = engine.attachment().to_string();
    let how = format!("eBPF, {}", engine.attachment().in_short());
    tell_armed(watched, &how, request.common.quiet);
    Ok(Started {
        rulings: engine.rulings(),
        counters: Box::new(move |matched, _| ebpf_snapshot(&counters(), matched.total(), &hooks)),
        watcher: Box::new(engine),
    })
}

/// Says that a watch has begun: what happens from now on is seen.
fn tell_armed(watched: Option<String>, how: &str, quiet: bool) {
    // A command may be a service that reports its own start.
    let Some(watched) = watched else { return };
    if !quiet {
        let text = format!("watching {watched} ({how}); Ctrl-C stops");
        if journal::is_falcos() {
            journal::say(Priority::Informational, &text);
        } else {
            terminal::complain(&format!("tollgate: {text}\n"));
        }
    }
    service_manager::report_ready();
}

/// Returns what a watch says that it watches; `None` for a command, whose user knows, and for containers of a
/// runtime.
fn watched(source: &Source) -> Option<String> {
    match source {
        Source::Command(_) | Source::Listener(_) | Source::Containers(_) | Source::Nothing => None,
        Source::Host => Some(match process_count() {
            Some(1) => "1 process".to_owned(),
            Some(count) => format!("{count} processes"),
            None => "all processes".to_owned(),
        }),
        Source::Places(_) => Some("the named containers and control groups".to_owned()),
        Source::Running(_) => Some("the named processes and their descendants".to_owned()),
        Source::Sandboxes(_) => Some("the sandboxes that connect".to_owned()),
    }
}

/// Returns the number of processes of the host, if it can be read.
fn process_count() -> Option<usize> {
    let entries = std::fs::read_dir("/proc").ok()?;
    let names = entries.filter_map(|entry| entry.ok().map(|entry| entry.file_name()));
    let is_pid = |name: &std::ffi::OsString| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    Some(names.filter(is_pid).count())
}

/// Starts `gvisor`, which receives events from sandboxes.
pub(super) fn start_gvisor(request: Request) -> anyhow::Result<Started> {
    let watched = watched(&request.listening.source);
    let quiet = request.common.quiet;
    let Source::Sandboxes(endpoint) = request.listening.source else {
        anyhow::bail!("cannot watch with the engine gvisor without a socket");
    };
    let engine = gvisor::Engine::start(gvisor::Parts {
        evaluator: request.rules.evaluator,
        notices: request.common.announcer(),
        names: request.rules.plan.names,
        endpoint,
        state_root: std::path::PathBuf::from("/"),
    })
    .context("cannot start the engine gvisor")?;
    tell_armed(watched, "gVisor", quiet);
    let counters = engine.counter_source();
    Ok(Started {
        rulings: engine.rulings(),
        counters: Box::new(move |matched, _| gvisor_snapshot(&counters(), matched.total())),
        watcher: Box::new(engine),
    })
}

/// Starts no engine: outputs and servers run without events.
pub(super) fn start_nothing(request: Request) -> Started {
    Started {
        rulings: RulesHandle::idle(request.rules.evaluator),
        counters: Box::new(|matched, _| Snapshot {
            events: 0,
            drops: 0,
            preemptions: 0,
            filtered_in_kernel: None,
            notes: Vec::new(),
            counters: vec![("matched", matched.total())],
        }),
        watcher: Box::new(capture::Idle),
    }
}
