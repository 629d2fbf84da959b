//! The services that run in the agent.

use std::cell::{OnceCell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use abi::Syscall;
use anyhow::Context;
use capture::notify::VerifyOptions;
use config::rule_files::Loaded;
use config::{CompatMode, Config, DropSettings};
use container::registry::Registry;
use container::{ContainerOptions, Containers, KnownContainer};
use diagnostics::failure::Failure;
use diagnostics::terminal;
use enforce::LoadedPolicy;
use event::{Containment, EngineKind, Pid, Plan};
use outputs::{Dispatcher, LineOutput, OnProblem, Prepared, QueueAccount, StatsFile, StatsWriter};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use process_info::procfs::Proc;
use response::Responder;
use rules::plan::UncoveredRule;
use rules::{AlertValue, Engine, EngineOptions, Recorder};
use seccomp::FilterProgram;
use supervisor::handover_state::PolicyRecord;
use supervisor::{self, AgentStart, Report, Services, SharedState, Source, Start, signals};
use sys::signal::SignalStream;

use super::bundle_policies::PolicyTaker;
use super::bundles::{BundleRecord, ConfigWith, Receiving};
use super::drops::Drops;
use super::engines::{self, Common, Request, Started, Tuning};
use super::first::{InitProcessPolicy, Restriction};
use super::host;
use super::kernel_reports::KernelReports;
use super::orders;
use super::pidfile::Pidfile;
use super::plugins::UnopenedSources;
use super::reload::{self, ConfigSource, MatchCounts, Reloader};
use super::reports;
use super::self_report::{self, Reported, RulesRecord};
use super::servers::{ServerSet, Servers};
use super::sink::DeferredSink;
use super::status_line::StatusLine;
use super::subscribers;
use super::summary::{Summary, plural};
use super::violations::Violations;
use super::watched_files;
use crate::guard::DenialReporter;
use crate::journal;
use crate::learn::Learner;
use crate::metrics;
use crate::observer::AlertObserver;
use crate::policy_files;
use crate::recording::{CollectorCapture, UnstartedRecording, Writing};
use crate::totals;

/// Rules at the agent's start.
pub(super) struct Rules {
    pub(super) evaluator: Arc<Engine>,
    /// Plan of the rules.
    pub(super) plan: Plan,
    /// Plan that the command's filter was compiled from.
    pub(super) installed: Plan,
    /// Rules that need more than the filter traps.
    pub(super) refused: Vec<UncoveredRule>,
}

impl Rules {
    /// Returns how many rules are in force, by which plan, and takes those that were refused.
    fn announced(&mut self) -> (usize, Plan, Vec<UncoveredRule>) {
        let refused = std::mem::take(&mut self.refused);
        (
            self.evaluator.matches().count(),
            self.installed.clone(),
            refused,
        )
    }

    /// Returns the rules that the filter is compiled from.
    pub(super) fn first(
        loaded: &mut Loaded,
        options: &EngineOptions,
        sink: &DeferredSink,
        verify: &VerifyOptions,
    ) -> Result<Self, Failure> {
        let (evaluator, plan) = loaded.compile(options, sink.clone());
        loaded.usable()?;
        Ok(Self::of(evaluator, plan, verify))
    }

    /// Like `first`, for rules that are already compiled.
    pub(super) fn of(evaluator: Engine, plan: Plan, verify: &VerifyOptions) -> Self {
        let mut installed = plan.clone();
        verify.extend(&mut installed);
        capture::notify::plan_renames(&mut installed);
        Self {
            evaluator: Arc::new(evaluator),
            installed,
            plan,
            refused: Vec::new(),
        }
    }

    /// Returns the rules of an agent that takes over.
    pub(super) fn later(
        loaded: &mut Loaded,
        options: &EngineOptions,
        sink: &DeferredSink,
        installed: Plan,
    ) -> Result<Self, Failure> {
        let served = reload::served(loaded, options, sink, &installed)?;
        Ok(Self {
            evaluator: Arc::new(served.evaluator),
            plan: served.plan,
            installed,
            refused: served.refused,
        })
    }
}

/// The container created by the command, an OCI runtime.
#[derive(Clone, Debug)]
pub(super) struct RuntimeContainer {
    pub(super) told: KnownContainer,
    /// The container has a mount namespace of its own, which distinguishes it from its runtime.
    pub(super) has_mounts: bool,
}

impl RuntimeContainer {
    /// Fields of internal alerts about the container.
    pub(super) fn fields(&self) -> Vec<(&'static str, AlertValue)> {
        vec![("container.id", AlertValue::Text(self.told.id.clone()))]
    }
}

/// Everything prepared before the fork.
pub(super) struct AgentConfig {
    pub(super) rules: Rules,
    /// Plugins, with the rules of their sources. `None` once the sources are open.
    pub(super) plugins: Option<UnopenedSources>,
    /// The policy's decisions on calls.
    pub(super) profile: Profile,
    /// Classifier of failures that other enforcers than the filter caused.
    pub(super) classifier: DenialClassifier,
    /// What is reported about the policy, if that is known.
    pub(super) policy_record: Option<PolicyRecord>,
    /// Digest of the rules.
    pub(super) rules_digest: String,
    /// Restriction of a container's first program.
    pub(super) first: Option<InitProcessPolicy>,
    /// Restriction for containers that start later, in the host agent. Exec sessions have their
    /// container's.
    pub(super) later: Option<Restriction>,
    /// Directory in which the container's exec sessions connect.
    pub(super) door: Option<PathBuf>,
    /// The policy as loaded in the kernel, whose violations are reported.
    pub(super) resident: LoadedPolicy,
    /// Path of the policy.
    pub(super) policy: Option<PathBuf>,
    /// Reporter of a guarded command's denials.
    pub(super) guard: Option<Arc<DenialReporter>>,
    /// Recorder of the observed behaviour.
    pub(super) learner: Option<Arc<Learner>>,
    pub(super) verify: VerifyOptions,
    /// Engine that watches processes.
    pub(super) engine: EngineKind,
    /// Compiled filter of the plan.
    pub(super) program: FilterProgram,
    /// Compiled filter for processes that enter the container, if these are watched.
    pub(super) entered: Option<FilterProgram>,
    pub(super) sink: DeferredSink,
    /// Responses to alerts. `None` without them, and once they are started.
    pub(super) responses: Option<response::Prepared>,
    pub(super) recorder: Option<Arc<dyn Recorder>>,
    pub(super) recordings: Vec<UnstartedRecording>,
    /// The configuration.
    pub(super) settings: Config,
    /// Source of the configuration for reloads.
    pub(super) config: ConfigSource,
    /// The same, with what a bundle says.
    pub(super) config_with: ConfigWith,
    /// Records for a collector; `None` if that is not allowed.
    pub(super) for_collector: Option<Arc<CollectorCapture>>,
    /// How the command takes policies of bundles.
    pub(super) taker: PolicyTaker,
    /// What is reported about the bundle.
    pub(super) bundle: BundleRecord,
    /// `None` once the outputs are started.
    pub(super) outputs: Option<Prepared>,
    pub(super) servers: Servers,
    pub(super) stats: Option<StatsFile>,
    pub(super) stats_interval: Duration,
    pub(super) pidfile: Option<Pidfile>,
    pub(super) container_id: Option<String>,
    /// What a container runtime tells this process about containers.
    pub(super) containers: Option<Arc<Registry>>,
    /// Who gets the alerts beside the outputs.
    pub(super) observer: Option<AlertObserver>,
    pub(super) told: Option<RuntimeContainer>,
    /// A process may not make itself unreadable.
    pub(super) refuse_non_dumpable: bool,
    pub(super) tuning: Tuning,
    /// Reaction to lost events.
    pub(super) drops: DropSettings,
    /// Whose conventions apply.
    pub(super) manner: CompatMode,
    /// Time limit for a blocked channel.
    pub(super) output_timeout: Duration,
    pub(super) quiet: bool,
    /// Rules raise alerts; otherwise none is expected.
    pub(super) has_rules: bool,
}

impl AgentConfig {
    /// Returns the closure that starts the services.
    pub(super) fn into_start(self) -> Start {
        Box::new(move |listening, _meanwhile| {
            let services = self.start(listening)?;
            Ok(Box::new(services) as Box<dyn Services>)
        })
    }

    /// Returns the fields of internal alerts: the watched container, if there is one and it is
    /// known. If the agent has started the workload, the container is the agent's own.
    fn subject(&self, source: &Source) -> Option<Vec<(&'static str, AlertValue)>> {
        if let Some(their) = &self.told {
            return Some(their.fields());
        }
        if !matches!(source, Source::Listener(_) | Source::Command(_)) {
            return None;
        }
        let options = ContainerOptions {
            own_id: self.container_id.clone(),
            ..ContainerOptions::default()
        };
        let containers = Containers::new(&Proc::open().ok()?, options).ok()?;
        let own = containers.own();
        (own.containment == Containment::Known)
            .then(|| vec![("container.id", AlertValue::Text(own.id.clone()))])
    }

    pub(super) fn start(mut self, listening: AgentStart) -> anyhow::Result<AgentRuntime> {
        supervisor::take_usual_turns();
        terminal::wait_at_most(MESSAGE_PATIENCE);
        // Before the command starts, and anybody learns that this runs.
        let watched = watched_files(&self.settings);
        // Before the first thread, which the signals could otherwise reach.
        let signals = signals::orders().context("cannot wait for signals")?;
        let (dispatcher, account, responder) = self.start_outputs(&listening)?;
        let recordings = self.start_recordings(&dispatcher)?;
        let is_resumed = listening.is_resumed;
        let shared_state = Arc::clone(&listening.shared_state);
        note_refusals(&self.verify, &shared_state);
        let drops = Arc::new(Drops::new(self.drops.clone()));
        let (engine, summary) = (self.engine, self.summary(is_resumed));
        let shows_status = self.shows_status(&listening.source);
        let (rule_count, installed, refused) = self.rules.announced();
        let reported = self.reported(rule_count, refused.len());
        let lasting = self.lasting();
        self.forget_container(&listening.source);
        let request = Request {
            common: self.common(&dispatcher, &drops)?,
            listening,
            rules: self.rules,
            first: self.first,
            told: self.told.clone(),
        };
        // Before the engine answers the exec of the command: the kernel keeps neither violations nor uses of
        // capabilities for later listeners.
        let kernel_reports = KernelReports::follow(
            &self.resident,
            &policy_reader(self.policy.as_deref(), &self.taker),
            dispatcher.clone(),
            &shared_state,
            self.told.as_ref().map(|their| their.told.id.as_str()),
        )?;
        if let Some(learner) = &self.learner {
            learner.begin()?;
        }
        let (started, host) = start_engine(request, engine, self.door.as_deref(), lasting)?;
        let (watcher, rulings) = (started.watcher, started.rulings);
        let (plugins, engines) = self.plugins.take().expect("sources are opened once");
        let matched = Arc::new(MatchCounts::new(rulings.clone(), &engines));
        let plugins = plugins.start(engines, self.recorder.is_some(), &dispatcher)?;
        let counters = counted(started.counters, &matched, &shared_state);
        let figures = Figures::new(engine, &counters, &matched, &dispatcher);
        allow_captures(self.for_collector.take(), &dispatcher);
        let record = reported.start(&dispatcher, &counters, &figures.in_force);
        let check = subscribers::check(engine, watcher.scope(), dispatcher.clone())?;
        let source = figures.source(&self.settings, &self.sink);
        let reception = Arc::new(ServerSet::open(self.servers, source, check)?);
        let reloader = Arc::new(Reloader {
            config: self.config,
            settings: Mutex::new(self.settings),
            engine,
            installed,
            sink: self.sink,
            recorder: self.recorder,
            rulings,
            matched: Arc::clone(&matched),
            record,
            plugins,
            bundle: self.bundle.clone(),
            dispatcher: dispatcher.clone(),
            account,
            reception: Arc::clone(&reception),
            observer: self.observer,
            quiet: self.quiet,
        });
        if !refused.is_empty() {
            reloader.announce(rule_count, &refused);
        }
        take_bundles(&reloader, self.config_with, self.bundle, self.taker)?;
        follow_orders(&reloader, signals, &shared_state, watched, host)?;
        let pidfile = write_pidfile(self.pidfile, is_resumed)?;
        let status = shows_status.then(|| StatusLine::start(Arc::clone(&counters)));
        let counted = Arc::clone(&counters);
        let stats = start_stats(self.stats, self.stats_interval, counted, &dispatcher)?;
        Ok(AgentRuntime {
            watcher: Some(watcher),
            kernel_reports: Some(kernel_reports),
            learner: self.learner,
            guard: self.guard,
            recordings,
            shared_state,
            totals: (self.manner == CompatMode::Falco).then_some((matched, drops)),
            responder,
            dispatcher,
            summary,
            counters,
            stats,
            status: status.transpose()?,
            reception,
            reloader,
            pidfile,
            output_timeout: self.output_timeout,
            deadlines: Deadlines::default(),
            gave_up_at: RefCell::default(),
            quiet: self.quiet,
        })
    }

    /// Drops what belongs to a container, if this agent has none of its own.
    fn forget_container(&mut self, source: &Source) {
        if matches!(source, Source::Containers(_)) {
            self.resident.later = None;
        }
    }

    fn summary(&self, is_resumed: bool) -> Option<Summary> {
        let expected = (self.has_rules, is_resumed);
        Summary::wanted(&self.settings, self.quiet, self.manner, expected)
    }

    /// Returns what is reported about this agent.
    fn reported(&self, enabled: usize, refused: usize) -> Reported {
        let is_confined = self.policy.is_some() || self.guard.is_some();
        Reported {
            engine: self.engine,
            rules: RulesRecord::new(self.rules_digest.clone(), enabled, refused),
            policy: self_report::policy(self.policy_record.as_ref(), is_confined),
            bundle: self.bundle.clone(),
        }
    }

    /// Starts the outputs, and the responses to alerts, if there are any. Alerts reach them from then on.
    fn start_outputs(
        &mut self,
        listening: &AgentStart,
    ) -> anyhow::Result<(Dispatcher, Arc<dyn QueueAccount>, Option<Responder>)> {
        let account: Arc<dyn QueueAccount> = Arc::new(AlertAccount {
            shared_state: Arc::clone(&listening.shared_state),
            generation: listening.generation,
        });
        let outputs = self.outputs.take().expect("outputs are started once");
        let dispatcher = outputs.accounting(Arc::clone(&account)).start()?;
        let dispatcher = match self.subject(&listening.source) {
            Some(fields) => dispatcher.about(fields),
            None => dispatcher,
        };
        self.servers.alerts().keep_account(Arc::clone(&account));
        self.sink.connect(dispatcher.clone());
        let responder = self.start_responder(&dispatcher)?;
        Ok((dispatcher, account, responder))
    }

    fn start_responder(&mut self, dispatcher: &Dispatcher) -> anyhow::Result<Option<Responder>> {
        let Some(responses) = self.responses.take() else {
            return Ok(None);
        };
        let started = responses.start(dispatcher.clone());
        let responder = started.context("cannot start the responses to alerts")?;
        self.sink.respond(responder.clone());
        Ok(Some(responder))
    }

    fn start_recordings(&mut self, dispatcher: &Dispatcher) -> anyhow::Result<Vec<Writing>> {
        let recordings = std::mem::take(&mut self.recordings).into_iter();
        let recordings = recordings.map(|recording| recording.start(dispatcher.clone()));
        recordings.collect()
    }

    /// Returns true if a status line is shown on the terminal. Not for a watched command, which
    /// uses the terminal itself.
    fn shows_status(&self, source: &Source) -> bool {
        self.engine == EngineKind::Ebpf
            && !matches!(source, Source::Command(_))
            && StatusLine::is_wanted(self.quiet)
    }

    /// Returns the parameters that engines share which watch containers in this process.
    fn common(&mut self, dispatcher: &Dispatcher, drops: &Arc<Drops>) -> anyhow::Result<Common> {
        let later = self.later.take();
        let options = EngineOptions {
            append_output: self.settings.append_output.clone(),
            context: self
                .settings
                .outputs
                .stdout
                .shows_context(self.settings.json_output),
            ..EngineOptions::default()
        };
        Ok(Common {
            profile: self.profile.clone(),
            classifier: self.classifier.clone(),
            first: later.or_else(|| self.first.as_ref().map(InitProcessPolicy::to_others)),
            violations: Arc::new(Violations::new(
                self.learner.clone(),
                &options,
                self.guard.clone(),
            )?),
            verify: self.verify,
            denials: self.sink.denials(),
            has_other_filters: false,
            program: self.program.clone(),
            entered: self.entered.take(),
            container_id: self.container_id.clone(),
            containers: self.containers.clone(),
            refuse_non_dumpable: self.refuse_non_dumpable,
            tuning: self.tuning,
            dispatcher: dispatcher.clone(),
            quiet: self.quiet,
            drops: Arc::clone(drops),
        })
    }

    /// Returns the parameters of an agent that watches containers or sessions as they arrive.
    fn lasting(&self) -> host::HostAgentOptions {
        host::HostAgentOptions {
            // AppArmor's denials are reported through the profile, which all containers share.
            resident: self.resident.of_each_container(),
            policy: self.policy.clone(),
            linger: Duration::from_secs(self.settings.runtime.agent_linger),
            output_timeout: self.output_timeout,
        }
    }
}

/// Starts the engine. `door` is the directory in which exec sessions connect. Also returns the
/// trigger for reloading the host agent's rules.
fn start_engine(
    request: Request,
    engine: EngineKind,
    door: Option<&Path>,
    lasting: host::HostAgentOptions,
) -> anyhow::Result<(Started, Option<Arc<host::Host>>)> {
    if let Source::Containers(listener) = request.listening.source {
        let shared_state = request.listening.shared_state;
        let file = request.listening.shared_state_file;
        let account = file.map(|file| host::Account { shared_state, file });
        let (rules, common) = (request.rules, request.common);
        let (started, host) = host::start(listener, rules, common, lasting, account)?;
        return Ok((started, Some(host)));
    }
    let started = match (engine, door) {
        (EngineKind::Notify, Some(folder)) => host::start_with_sessions(folder, request, lasting)?,
        (EngineKind::Ebpf, _) => engines::start_ebpf(request)?,
        (EngineKind::Gvisor, _) => engines::start_gvisor(request)?,
        (EngineKind::Nodriver, _) => engines::start_nothing(request),
        (EngineKind::Scap, _) => anyhow::bail!("cannot watch with a capture"),
        (EngineKind::Notify | EngineKind::Ptrace, _) => engines::start_held(request)?,
    };
    Ok((started, None))
}

/// Sources of metrics.
struct Figures {
    engine: EngineKind,
    counters: metrics::Counters,
    in_force: metrics::RulesInForce,
    dispatcher: Dispatcher,
}

impl Figures {
    fn new(
        engine: EngineKind,
        counters: &metrics::Counters,
        matched: &Arc<MatchCounts>,
        dispatcher: &Dispatcher,
    ) -> Self {
        let matched = Arc::clone(matched);
        Self {
            engine,
            counters: Arc::clone(counters),
            in_force: Arc::new(move || matched.in_force()),
            dispatcher: dispatcher.clone(),
        }
    }

    fn source(self, settings: &Config, sink: &DeferredSink) -> metrics::Source {
        metrics::Source {
            wanted: settings.metrics.clone(),
            engine_name: self.engine.name_in_metrics(),
            counters: self.counters,
            in_force: self.in_force,
            dispatcher: self.dispatcher,
            latency: sink.latency(),
            files: metrics::Files::of(settings),
            started: SystemTime::now(),
        }
    }
}

/// Returns an engine's counters with the matches of rules.
fn counted(
    counters: engines::Counters,
    matched: &Arc<MatchCounts>,
    shared_state: &Arc<SharedState>,
) -> metrics::Counters {
    let (matched, shared_state) = (Arc::clone(matched), Arc::clone(shared_state));
    Arc::new(move || counters(&matched, &shared_state))
}

/// Returns a reader of the policy in force, for the names of its rules. Without one, denials have the name of the loaded profile.
fn policy_reader(path: Option<&Path>, taker: &PolicyTaker) -> impl Fn() -> Option<policy::Policy> {
    move || match taker {
        PolicyTaker::Takes(_) => taker.policy_in_force(),
        // The file may have been edited or removed.
        PolicyTaker::Not(_) => policy_files::read(path?).policies.pop(),
    }
}

/// Lets a collector have captures, if that is allowed.
fn allow_captures(for_collector: Option<Arc<CollectorCapture>>, dispatcher: &Dispatcher) {
    if let Some(capture) = for_collector {
        dispatcher.take_captures(capture);
    }
}

/// Takes bundles of the collector, if a key is pinned.
fn take_bundles(
    reloader: &Arc<Reloader>,
    config: ConfigWith,
    record: BundleRecord,
    taker: PolicyTaker,
) -> anyhow::Result<()> {
    // The configuration was read a moment ago, with the key.
    let Some(folder) = reloader.bundle_folder().ok().flatten() else {
        return Ok(());
    };
    let reload = Arc::clone(reloader);
    let receiving = Receiving {
        folder,
        config,
        reload: Box::new(move || reload.try_reload()),
        record,
        taker,
        dispatcher: reloader.dispatcher.clone(),
    };
    receiving.start().context("cannot start to take bundles")
}

/// Reloads rules on SIGHUP, when a watched file changes, and in the host agent when a container's
/// filter was compiled from other rules.
fn follow_orders(
    reloader: &Arc<Reloader>,
    signals: SignalStream,
    shared_state: &Arc<SharedState>,
    watched: Option<watched_files::Snapshot>,
    host: Option<Arc<host::Host>>,
) -> anyhow::Result<()> {
    if let Some(host) = host {
        let reloader = Arc::clone(reloader);
        host.when_stale(Box::new(move || reloader.reload()));
    }
    let on_hangup = Arc::clone(reloader);
    let dispatcher = reloader.dispatcher.clone();
    orders::follow(signals, Arc::clone(shared_state), dispatcher, move || {
        on_hangup.reload();
    })?;
    let Some(watched) = watched else {
        return Ok(());
    };
    let on_change = Arc::clone(reloader);
    watched_files::follow(watched, move || {
        on_change.reload();
        on_change.watched()
    })
}

fn watched_files(settings: &Config) -> Option<watched_files::Snapshot> {
    let is_wanted = settings.watch_config_files;
    is_wanted.then(|| watched_files::Snapshot::of(settings))
}

/// Writes the pid file. Returns `None` if there is none, or it could not be written.
fn write_pidfile(pidfile: Option<Pidfile>, is_resumed: bool) -> anyhow::Result<Option<Pidfile>> {
    let Some(mut pidfile) = pidfile else {
        return Ok(None);
    };
    match pidfile.write() {
        // For a running workload, watching is more important than the file.
        Err(error) if is_resumed => {
            journal::warn(&format!("cannot write the pid file: {error}"));
            Ok(None)
        }
        written => {
            written.context("cannot write the pid file")?;
            Ok(Some(pidfile))
        }
    }
}

fn start_stats(
    file: Option<StatsFile>,
    interval: Duration,
    counters: metrics::Counters,
    dispatcher: &Dispatcher,
) -> anyhow::Result<Option<StatsWriter>> {
    // Reported even where warnings are unwanted, because a requested file is missing.
    let on_problem: OnProblem = Arc::new(|problem: &str| complain(false, problem));
    let source = Arc::new(move || counters());
    let started = file.map(|file| file.start(interval, source, dispatcher.clone(), on_problem));
    Ok(started.transpose()?)
}

/// Time limit for a message to the standard error while a workload is watched.
const MESSAGE_PATIENCE: Duration = Duration::from_millis(200);
/// Maximum time by which events that were captured but not evaluated delay the report of the command's end.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Reports to the keeper which alerts would be lost with this agent.
#[derive(Debug)]
struct AlertAccount {
    shared_state: Arc<SharedState>,
    generation: u64,
}

impl QueueAccount for AlertAccount {
    fn queued(&self) {
        self.shared_state.alert_queued(self.generation);
    }

    fn settled(&self, alerts: u64) {
        self.shared_state.alerts_settled(self.generation, alerts);
    }

    fn begins_lines(&self, output: LineOutput) -> bool {
        self.shared_state.lines_begin(self.generation, output)
    }

    fn ends_lines(&self, output: LineOutput) {
        self.shared_state.lines_end(self.generation, output);
    }
}

/// Registers calls with the keeper that the engine refuses.
pub(super) fn note_refusals(verify: &VerifyOptions, shared_state: &SharedState) {
    if verify.deny_rings {
        // The table has room for far more calls than are refused here.
        let are_noted =
            RING_CALLS.map(|call| shared_state.deny_table().refuse_everywhere(call, ENOSYS));
        debug_assert_eq!(are_noted, [true; 3], "the deny table is full");
    }
}

/// Calls that create or use an io_uring.
const RING_CALLS: [Syscall; 3] = [
    Syscall::IO_URING_SETUP,
    Syscall::IO_URING_ENTER,
    Syscall::IO_URING_REGISTER,
];
/// Error of a refused io_uring call, as in a kernel without it.
const ENOSYS: u16 = 38;

/// Returns the names of channels that have delivered nothing since they were waited for in vain.
fn stuck(gave_up_at: &[(String, u64)], delivered: &[(String, u64)]) -> Vec<String> {
    let is_stuck = |at: &&(String, u64)| delivered.contains(at);
    let stuck = gave_up_at.iter().filter(is_stuck);
    stuck.map(|(name, _)| name.clone()).collect()
}

/// Says how many processes stay stopped.
fn staying(stopped: usize) -> String {
    let (processes, stay, them) = match stopped {
        1 => ("process", "stays", "it"),
        _ => ("processes", "stay", "them"),
    };
    format!(
        "{stopped} {processes} stopped by responses {stay} stopped; `response.undo` of the alerts resumes {them}"
    )
}

fn complain(quiet: bool, problem: &str) {
    if !quiet {
        journal::warn(problem);
    }
}

pub(super) struct AgentRuntime {
    /// Taken at the end.
    watcher: Option<Box<dyn capture::Engine>>,
    /// Taken at the end.
    kernel_reports: Option<KernelReports>,
    learner: Option<Arc<Learner>>,
    guard: Option<Arc<DenialReporter>>,
    recordings: Vec<Writing>,
    shared_state: Arc<SharedState>,
    /// Totals printed at the end, where that is the convention.
    totals: Option<(Arc<MatchCounts>, Arc<Drops>)>,
    responder: Option<Responder>,
    dispatcher: Dispatcher,
    summary: Option<Summary>,
    /// Counters of the engine.
    counters: metrics::Counters,
    stats: Option<StatsWriter>,
    status: Option<StatusLine>,
    reception: Arc<ServerSet>,
    reloader: Arc<Reloader>,
    pidfile: Option<Pidfile>,
    output_timeout: Duration,
    deadlines: Deadlines,
    /// Channels that had not taken everything when a flush gave up, with their numbers of delivered alerts.
    gave_up_at: RefCell<Vec<(String, u64)>>,
    quiet: bool,
}

/// Until when an agent waits at its end. The first flush sets both.
#[derive(Debug, Default)]
struct Deadlines {
    /// Until when it waits for events that were captured.
    events: OnceCell<Instant>,
    /// Until when it waits for channels.
    channels: OnceCell<Instant>,
}

impl AgentRuntime {
    /// Returns what loads rules and configuration again.
    pub(super) fn reloader(&self) -> Arc<Reloader> {
        Arc::clone(&self.reloader)
    }

    pub(super) fn dispatcher(&self) -> Dispatcher {
        self.dispatcher.clone()
    }

    pub(super) fn counters(&self) -> metrics::Counters {
        Arc::clone(&self.counters)
    }

    /// Writes pending recordings. A blocked disk is waited for no longer than a channel.
    fn end_recordings(&mut self) {
        for recording in self.recordings.drain(..) {
            if let Some(problem) = recording.finish(self.output_timeout) {
                complain(self.quiet, &problem);
            }
        }
    }

    /// Reports alerts that outputs and clients did not take.
    fn complain_of_undelivered(&self) {
        for channel in self.dispatcher.counters().channels {
            let lost = channel.lost();
            let waiting = channel.pending;
            if lost > 0 || waiting > 0 {
                let name = channel.channel;
                let why = channel.trouble.map(|trouble| format!(": {trouble}"));
                let why = why.unwrap_or_default();
                let lost = plural(lost, "alert");
                let problem = format!("{name}: {lost} lost, {waiting} not delivered{why}");
                complain(self.quiet, &problem);
            }
        }
        let waiting = self.reception.alerts().waiting();
        if waiting > 0 {
            let problem = format!("grpc: {waiting} alerts waited for a client, and none took them");
            complain(self.quiet, &problem);
        }
        let missed = self.reception.alerts().missed();
        if missed > 0 {
            let problem = format!("grpc: clients were too slow for {missed} alerts");
            complain(self.quiet, &problem);
        }
    }

    /// Waits for started actions, so that the alerts about them are delivered.
    fn flush_responses(&self, deadline: Instant) {
        let waiting = self
            .responder
            .as_ref()
            .map_or(0, |responder| responder.flush(deadline));
        if waiting > 0 {
            let alerts = plural(waiting as u64, "alert");
            complain(self.quiet, &format!("responses to {alerts} have not ended"));
        }
    }

    /// Ends the responses: nobody keeps time for stopped processes any more.
    fn end_responses(&self) {
        let stopped = self.responder.as_ref().map_or(0, Responder::end);
        if stopped > 0 {
            complain(self.quiet, &staying(stopped));
        }
    }

    /// Prints the summary, if one is wanted.
    fn summarize(&self) {
        if let Some(summary) = &self.summary {
            summary.tell(&self.dispatcher.counters(), (self.counters)().drops);
        }
    }

    /// Returns the channels with their numbers of delivered alerts.
    fn delivered(&self) -> Vec<(String, u64)> {
        let channels = self.dispatcher.counters().channels.into_iter();
        channels
            .map(|channel| (channel.channel, channel.delivered))
            .collect()
    }

    /// Waits for the outputs a last time. Channels without progress since the last wait are not waited for again.
    fn flush_last(&self) {
        let stuck = stuck(&self.gave_up_at.borrow(), &self.delivered());
        let deadline = Instant::now() + self.output_timeout;
        self.flush_responses(deadline);
        self.end_responses();
        self.dispatcher
            .flush_each(|name| match stuck.iter().any(|stuck| stuck == name) {
                true => Instant::now(),
                false => deadline,
            });
    }
}

impl Services for AgentRuntime {
    fn has_ended(&self) -> bool {
        let watcher = self.watcher.as_ref();
        let is_idle = self.reloader.engine == EngineKind::Nodriver;
        watcher.is_none_or(|watcher| watcher.has_ended())
            || is_idle && self.reloader.plugins.has_ended()
    }

    fn has_given_up(&self) -> bool {
        let watcher = self.watcher.as_ref();
        watcher.is_some_and(|watcher| watcher.has_given_up())
    }

    fn flush(&self) {
        if let Some(reports) = &self.kernel_reports {
            reports.flush();
        }
        // A busy host delays the command's end once, and so does a blocked channel, however often they are waited for.
        if let Some(watcher) = &self.watcher {
            let limit = self
                .deadlines
                .events
                .get_or_init(|| Instant::now() + SETTLE_LIMIT);
            watcher.settle(*limit);
        }
        let deadline = *self
            .deadlines
            .channels
            .get_or_init(|| Instant::now() + self.output_timeout);
        self.flush_responses(deadline);
        let left = self.dispatcher.flush(deadline);
        let mut delivered = self.delivered();
        delivered.retain(|(name, _)| left.iter().any(|left| left.channel == *name));
        self.gave_up_at.replace(delivered);
        // Whoever waits for the command may read the files as soon as it has ended.
        for recording in &self.recordings {
            recording.flush(deadline);
        }
        if let Some(stats) = &self.stats {
            stats.sample();
        }
    }

    fn report(&self, report: &Report) {
        if let (Report::KeeperReplaced { pid }, Some(watcher)) = (report, &self.watcher) {
            watcher.protect(Pid(*pid));
        }
        let internal = reports::internal(report);
        match report {
            // Until the alert is delivered, a successor still reports the intervals if this agent
            // is killed.
            Report::Gaps(gaps) => {
                if let Some(summary) = &self.summary {
                    summary.count(gaps);
                }
                let (shared_state, gaps) = (Arc::clone(&self.shared_state), gaps.clone());
                let told = Box::new(move || shared_state.gaps_reported(&gaps));
                self.dispatcher.emit_internal_then(internal, told);
            }
            _ => self.dispatcher.emit_internal(internal),
        }
    }

    fn conclude(&self) {
        self.summarize();
    }

    fn hand_over(&mut self) {
        // The next agent prints the summary.
        self.summary = None;
        if let Some(watcher) = self.watcher.take() {
            watcher.let_go();
            watcher.join();
        }
        if let Some(reports) = self.kernel_reports.take() {
            reports.end();
        }
        self.end_responses();
        self.end_recordings();
        if let Some(stats) = self.stats.take() {
            stats.stop();
        }
        // Addresses and pid file belong to the next agent.
        self.reception.close();
        self.pidfile = None;
    }

    fn let_go(&self) {
        if let Some(watcher) = &self.watcher {
            watcher.let_go();
        }
    }

    fn finish(mut self: Box<Self>) {
        self.status = None;
        self.reloader.plugins.stop(self.quiet);
        if let Some(watcher) = self.watcher.take() {
            watcher.join();
        }
        if let Some(reports) = self.kernel_reports.take() {
            reports.end();
        }
        self.end_recordings();
        if let Some(learner) = &self.learner {
            learner.end();
        }
        if let Some(guard) = &self.guard {
            guard.finish();
        }
        self.reception.close();
        self.flush_last();
        if let Some(stats) = self.stats.take() {
            stats.stop();
        }
        self.complain_of_undelivered();
        self.dispatcher.close(self.output_timeout);
        self.summarize();
        if let Some((matched, drops)) = &self.totals {
            let (detected, acted_on) = drops.totals();
            terminal::complain(&totals::of_losses(detected, acted_on));
            let text = totals::of_rules(&matched.by_rule());
            if let Err(failure) = terminal::print(&text) {
                terminal::complain(&failure.render());
            }
        }
        if let Some(pidfile) = self.pidfile.take() {
            pidfile.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_is_judged_by_its_own_progress() {
        let counts =
            |counts: [(&str, u64); 3]| counts.map(|(name, count)| (name.to_owned(), count));
        let before = counts([("program", 0), ("http", 1), ("nats", 2)]);
        let now = counts([("stderr", 0), ("program", 0), ("http", 2)]);
        assert_eq!(stuck(&before, &now), ["program"]);
        assert!(stuck(&[], &now).is_empty());
    }

    #[test]
    fn one_process_stays_and_two_stay_stopped() {
        assert_eq!(
            staying(1),
            "1 process stopped by responses stays stopped; `response.undo` of the alerts resumes it"
        );
        assert!(staying(2).starts_with("2 processes stopped by responses stay stopped; "));
    }
}
