//! What runs in the agent.

use std::cell::{Cell, OnceCell};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use abi::Syscall;
use anyhow::Context;
use capture::notify::VerifyOptions;
use config::rule_files::Loaded;
use config::{CompatMode, Config, DropSettings};
use container::{ContainerOptions, Containers, KnownContainer};
use diagnostics::failure::Failure;
use diagnostics::terminal;
use enforce::LoadedPolicy;
use event::{Containment, Pid, Plan};
use outputs::{Account, Dispatcher, LineOutput, OnProblem, Prepared, StatsFile, StatsWriter};
use policy::compile::denial_classifier::DenialClassifier;
use policy::compile::seccomp::Profile;
use process_info::procfs::Proc;
use rules::plan::UncoveredRule;
use rules::{AlertValue, Engine, EngineOptions, Recorder};
use seccomp::FilterProgram;
use supervisor::{self, Board, Listening, Mechanism, Report, Services, Source, Start, signals};

use super::denials::Denials;
use super::drops::Drops;
use super::engines::{self, Carries, Common, Request, Started, Tuning, Watcher};
use super::first::{First, Restriction};
use super::host;
use super::orders;
use super::pidfile::Pidfile;
use super::reload::{self, ConfigSource, Matched, Reloader};
use super::reports;
use super::servers::{Reception, Servers};
use super::sink::DeferredSink;
use super::status_line::StatusLine;
use super::subscribers;
use super::violations::Violations;
use super::watched_files::{self, Watched};
use crate::journal;
use crate::learn::Learner;
use crate::metrics;
use crate::recording::{Unstarted, Writing};
use crate::totals;

/// The rules that an agent starts with.
pub(super) struct Rules {
    pub(super) judge: Arc<Engine>,
    /// What they ask for.
    pub(super) plan: Plan,
    /// What the filter of the command hands over.
    pub(super) installed: Plan,
    /// Rules that need more than that.
    pub(super) refused: Vec<UncoveredRule>,
}

impl Rules {
    /// Those that the filter is made from.
    pub(super) fn first(
        loaded: &mut Loaded,
        options: &EngineOptions,
        sink: &DeferredSink,
        verify: &VerifyOptions,
    ) -> Result<Self, Failure> {
        let (judge, plan) = loaded.compile(options, sink.clone());
        loaded.usable()?;
        Ok(Self::of(judge, plan, verify))
    }

    /// The same, compiled already.
    pub(super) fn of(judge: Engine, plan: Plan, verify: &VerifyOptions) -> Self {
        let mut installed = plan.clone();
        verify.extend(&mut installed);
        capture::notify::plan_renames(&mut installed);
        Self {
            judge: Arc::new(judge),
            installed,
            plan,
            refused: Vec::new(),
        }
    }

    /// Those of an agent that takes over.
    pub(super) fn later(
        loaded: &mut Loaded,
        options: &EngineOptions,
        sink: &DeferredSink,
        installed: Plan,
    ) -> Result<Self, Failure> {
        let served = reload::served(loaded, options, sink, &installed)?;
        Ok(Self {
            judge: Arc::new(served.judge),
            plan: served.plan,
            installed,
            refused: served.refused,
        })
    }
}

/// The container that the command, a runtime, makes.
#[derive(Clone, Debug)]
pub(super) struct TheirContainer {
    pub(super) told: KnownContainer,
    /// Whether it has mounts of its own, by which it is told from its runtime.
    pub(super) has_mounts: bool,
}

impl TheirContainer {
    /// What internal alerts carry that are about it.
    pub(super) fn fields(&self) -> Vec<(&'static str, AlertValue)> {
        vec![("container.id", AlertValue::Text(self.told.id.clone()))]
    }
}

/// Everything that was readied before the fork.
pub(super) struct Blueprint {
    pub(super) rules: Rules,
    /// What the policy says of calls.
    pub(super) profile: Profile,
    /// What tells which failures were denials by others than the filter.
    pub(super) witness: DenialClassifier,
    /// What a container's first program is restricted by.
    pub(super) first: Option<First>,
    /// The same for containers that come later, where this is the agent of a host. Exec sessions have their
    /// container's.
    pub(super) later: Option<Restriction>,
    /// The folder to which exec sessions of the container come.
    pub(super) door: Option<PathBuf>,
    /// What of the policy the kernel carries and tells of.
    pub(super) resident: LoadedPolicy,
    /// The policy's file.
    pub(super) policy: Option<PathBuf>,
    /// Where what is seen is recorded.
    pub(super) learner: Option<Arc<Learner>>,
    pub(super) verify: VerifyOptions,
    /// How processes are watched.
    pub(super) mechanism: Mechanism,
    /// What the plan was compiled to.
    pub(super) program: FilterProgram,
    /// The same for processes that enter the container, where they are looked for.
    pub(super) entered: Option<FilterProgram>,
    pub(super) sink: DeferredSink,
    pub(super) recorder: Option<Arc<dyn Recorder>>,
    pub(super) recordings: Vec<Unstarted>,
    /// What was read.
    pub(super) settings: Config,
    /// Where the rules are named, for when they are loaded again.
    pub(super) config: ConfigSource,
    pub(super) outputs: Prepared,
    pub(super) servers: Servers,
    pub(super) stats: Option<StatsFile>,
    pub(super) stats_interval: Duration,
    pub(super) pidfile: Option<Pidfile>,
    pub(super) container_id: Option<String>,
    pub(super) told: Option<TheirContainer>,
    /// Whether a process may not make itself unreadable.
    pub(super) refuse_non_dumpable: bool,
    pub(super) tuning: Tuning,
    /// What is done when events are lost.
    pub(super) drops: DropSettings,
    /// Whose customs apply.
    pub(super) manner: CompatMode,
    /// How long a channel that does not move is waited for.
    pub(super) output_timeout: Duration,
    pub(super) quiet: bool,
}

impl Blueprint {
    /// What the agent does first.
    pub(super) fn into_start(self) -> Start {
        Box::new(move |listening, _meanwhile| {
            let services = self.start(listening)?;
            Ok(Box::new(services) as Box<dyn Services>)
        })
    }

    /// What internal alerts carry: the container that is watched, if there is one and it is known. It is this
    /// agent's own where the agent has started the workload.
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

    pub(super) fn start(mut self, listening: Listening) -> anyhow::Result<Running> {
        supervisor::take_usual_turns();
        terminal::wait_at_most(MESSAGE_PATIENCE);
        // Before the first thread, which the signals could reach otherwise.
        let signals = signals::orders().context("cannot wait for signals")?;
        let account: Arc<dyn Account> = Arc::new(AlertAccount {
            board: Arc::clone(&listening.board),
            generation: listening.generation,
        });
        let subject = self.subject(&listening.source);
        let dispatcher = self.outputs.accounting(Arc::clone(&account)).start()?;
        let dispatcher = match subject {
            Some(fields) => dispatcher.about(fields),
            None => dispatcher,
        };
        self.servers.alerts().keep_account(Arc::clone(&account));
        self.sink.connect(dispatcher.clone());
        let recordings = std::mem::take(&mut self.recordings).into_iter();
        let recordings = recordings.map(|recording| recording.start(dispatcher.clone()));
        let recordings = recordings.collect::<anyhow::Result<Vec<_>>>()?;
        let is_resumed = listening.is_resumed;
        let rule_count = self.rules.judge.matches().count();
        let board = Arc::clone(&listening.board);
        note_refusals(&self.verify, &board);
        let drops = Arc::new(Drops::new(self.drops));
        let carries = Carries::of(self.mechanism);
        // The terminal of a command that is watched is the command's.
        let shows_status = carries == Carries::Ebpf
            && !matches!(listening.source, Source::Command(_))
            && StatusLine::is_wanted(self.quiet);
        let installed = self.rules.installed.clone();
        let refused = std::mem::take(&mut self.rules.refused);
        let common = Common {
            profile: self.profile,
            witness: self.witness,
            first: self
                .later
                .or_else(|| self.first.as_ref().map(First::to_others)),
            violations: Arc::new(Violations::new(
                self.learner.clone(),
                &EngineOptions {
                    append_output: self.settings.append_output.clone(),
                    ..EngineOptions::default()
                },
            )?),
            verify: self.verify,
            program: self.program,
            entered: self.entered,
            container_id: self.container_id,
            refuse_non_dumpable: self.refuse_non_dumpable,
            tuning: self.tuning,
            dispatcher: dispatcher.clone(),
            quiet: self.quiet,
            drops: Arc::clone(&drops),
        };
        let lasting = host::Lasting {
            // What AppArmor denies is told by the profile, which is that of all of them.
            resident: LoadedPolicy {
                bpf_later: self.resident.bpf_later,
                ..LoadedPolicy::default()
            },
            policy: self.policy.clone(),
            linger: Duration::from_secs(self.settings.runtime.agent_linger),
            output_timeout: self.output_timeout,
        };
        let mut host = None;
        let started = match listening.source {
            Source::Containers(listener) => {
                // There is none that is this agent's own.
                self.resident.bpf_later = false;
                let account = listening.board_file.map(|file| host::Account {
                    board: Arc::clone(&board),
                    file,
                });
                let (started, shared) =
                    host::start(listener, self.rules, common, lasting, account)?;
                host = Some(shared);
                started
            }
            _ => {
                let request = Request {
                    listening,
                    rules: self.rules,
                    first: self.first,
                    told: self.told.clone(),
                    common,
                };
                match (carries, &self.door) {
                    (Carries::Notify, Some(folder)) => {
                        host::start_with_sessions(folder, request, lasting)?
                    }
                    (Carries::Ebpf, _) => engines::start_ebpf(request)?,
                    (Carries::Gvisor, _) => engines::start_gvisor(request)?,
                    (Carries::Nothing, _) => engines::start_nothing(request),
                    (Carries::Notify | Carries::Ptrace, _) => engines::start_held(request)?,
                }
            }
        };
        let Started {
            watcher,
            rulings,
            counters,
        } = started;
        let matched = Arc::new(Matched::new(rulings.clone()));
        let judge = rulings.clone();
        let counters: metrics::Counters = {
            let (matched, board) = (Arc::clone(&matched), Arc::clone(&board));
            Arc::new(move || counters(&matched, &board))
        };
        let source = metrics::Source {
            wanted: self.settings.metrics.clone(),
            engine_name: carries.name(),
            counters: Arc::clone(&counters),
            judge: Arc::new(move || judge.judge()),
            dispatcher: dispatcher.clone(),
            latency: self.sink.latency(),
            files: metrics::Files::of(&self.settings),
            started: SystemTime::now(),
        };
        let has_filter = matches!(carries, Carries::Notify | Carries::Ptrace);
        let check = subscribers::check(has_filter, watcher.scope(), dispatcher.clone())?;
        let reception = Arc::new(Reception::open(self.servers, source, check)?);
        let watches_files = self.settings.watch_config_files;
        let watched = Watched::of(&self.settings);
        let reloader = Reloader {
            config: self.config,
            settings: Mutex::new(self.settings),
            carries,
            installed,
            sink: self.sink,
            recorder: self.recorder,
            rulings,
            matched: Arc::clone(&matched),
            dispatcher: dispatcher.clone(),
            account,
            reception: Arc::clone(&reception),
            quiet: self.quiet,
        };
        if !refused.is_empty() {
            reloader.announce(rule_count, &refused);
        }
        let reloader = Arc::new(reloader);
        if let Some(host) = host {
            let reloader = Arc::clone(&reloader);
            host.when_stale(Box::new(move || reloader.reload()));
        }
        let on_hangup = Arc::clone(&reloader);
        let own_board = Arc::clone(&board);
        orders::follow(signals, own_board, dispatcher.clone(), move || {
            on_hangup.reload();
        })?;
        if watches_files {
            watched_files::follow(watched, move || {
                reloader.reload();
                reloader.watched()
            })?;
        }
        if let Some(pidfile) = &mut self.pidfile {
            match pidfile.write() {
                // Of a workload that runs already, the watch is worth more than the file.
                Err(error) if is_resumed => {
                    journal::warn(&format!("cannot write the pid file: {error}"));
                    self.pidfile = None;
                }
                written => written.context("cannot write the pid file")?,
            }
        }
        // Also where warnings are not wanted: what was asked for is not there.
        let on_problem: OnProblem = Arc::new(|problem: &str| complain(false, problem));
        let status = shows_status.then(|| StatusLine::start(Arc::clone(&counters)));
        let stats = self.stats.map(|file| {
            let source = move || counters();
            file.start(
                self.stats_interval,
                Arc::new(source),
                dispatcher.clone(),
                on_problem,
            )
        });
        let denials = Denials::follow(
            &self.resident,
            self.policy.as_ref(),
            dispatcher.clone(),
            &board,
            self.told.as_ref().map(|their| their.told.id.as_str()),
        )?;
        let learner = self.learner.clone();
        if let Some(learner) = &learner {
            learner.begin()?;
        }
        Ok(Running {
            watcher: Some(watcher),
            denials: Some(denials),
            learner,
            recordings,
            board,
            totals: (self.manner == CompatMode::Falco).then_some((matched, drops)),
            dispatcher,
            stats: stats.transpose()?,
            status: status.transpose()?,
            reception,
            pidfile: self.pidfile,
            output_timeout: self.output_timeout,
            flush_deadline: OnceCell::new(),
            gave_up_at: Cell::new(None),
            quiet: self.quiet,
        })
    }
}

/// How long a message may wait for the standard error while somebody is watched.
const MESSAGE_PATIENCE: Duration = Duration::from_millis(200);

/// Tells the keeper which alerts die with this agent.
#[derive(Debug)]
struct AlertAccount {
    board: Arc<Board>,
    generation: u64,
}

impl Account for AlertAccount {
    fn queued(&self) {
        self.board.alert_queued(self.generation);
    }

    fn settled(&self, alerts: u64) {
        self.board.alerts_settled(self.generation, alerts);
    }

    fn begins_lines(&self, output: LineOutput) -> bool {
        self.board.lines_begin(self.generation, output)
    }

    fn ends_lines(&self, output: LineOutput) {
        self.board.lines_end(self.generation, output);
    }
}

/// Has the keeper refuse what the engine does.
pub(super) fn note_refusals(verify: &VerifyOptions, board: &Board) {
    if verify.deny_rings {
        // The table has room for far more than what is refused here.
        let are_noted = RING_CALLS.map(|call| board.deny_table().refuse_everywhere(call, ENOSYS));
        debug_assert_eq!(are_noted, [true; 3], "the deny table is full");
    }
}

/// Calls that make or use an io_uring.
const RING_CALLS: [Syscall; 3] = [
    Syscall::IO_URING_SETUP,
    Syscall::IO_URING_ENTER,
    Syscall::IO_URING_REGISTER,
];
/// What a call for a ring fails with, as where the kernel has none.
const ENOSYS: u16 = 38;

fn complain(quiet: bool, problem: &str) {
    if !quiet {
        journal::warn(problem);
    }
}

pub(super) struct Running {
    /// Taken at the end.
    watcher: Option<Box<dyn Watcher>>,
    /// Taken at the end.
    denials: Option<Denials>,
    learner: Option<Arc<Learner>>,
    recordings: Vec<Writing>,
    board: Arc<Board>,
    /// What is told at the end, where that is the custom.
    totals: Option<(Arc<Matched>, Arc<Drops>)>,
    dispatcher: Dispatcher,
    stats: Option<StatsWriter>,
    status: Option<StatusLine>,
    reception: Arc<Reception>,
    pidfile: Option<Pidfile>,
    output_timeout: Duration,
    /// Set by the first flush.
    flush_deadline: OnceCell<Instant>,
    /// What was emitted and delivered when a flush left something behind.
    gave_up_at: Cell<Option<(u64, u64)>>,
    quiet: bool,
}

impl Running {
    /// Writes what waits to be recorded; a disk that does not move is not waited for longer than a
    /// channel.
    fn end_recordings(&mut self) {
        for recording in self.recordings.drain(..) {
            if let Some(problem) = recording.finish(self.output_timeout) {
                complain(self.quiet, &problem);
            }
        }
    }

    /// Alerts by rules, and deliveries of any alert.
    fn progress(&self) -> (u64, u64) {
        let counters = self.dispatcher.counters();
        let delivered = counters.channels.iter().map(|channel| channel.delivered);
        (counters.emitted, delivered.sum())
    }
}

impl Services for Running {
    fn has_ended(&self) -> bool {
        self.watcher
            .as_ref()
            .is_none_or(|watcher| watcher.has_ended())
    }

    fn has_given_up(&self) -> bool {
        let watcher = self.watcher.as_ref();
        watcher.is_some_and(|watcher| watcher.has_given_up())
    }

    fn flush(&self) {
        if let Some(denials) = &self.denials {
            denials.flush();
        }
        // A channel that does not move delays the command's end once, however often it is flushed.
        let deadline = *self
            .flush_deadline
            .get_or_init(|| Instant::now() + self.output_timeout);
        if !self.dispatcher.flush(deadline).is_empty() {
            self.gave_up_at.set(Some(self.progress()));
        }
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
            // Until it is delivered it is for the next agent to tell, should this one be killed.
            Report::Gaps(gaps) => {
                let (board, gaps) = (Arc::clone(&self.board), gaps.clone());
                let told = Box::new(move || board.gaps_told(&gaps));
                self.dispatcher.emit_internal_then(internal, told);
            }
            _ => self.dispatcher.emit_internal(internal),
        }
    }

    fn hand_over(&mut self) {
        if let Some(watcher) = self.watcher.take() {
            watcher.let_go();
            watcher.join();
        }
        if let Some(denials) = self.denials.take() {
            denials.end();
        }
        self.end_recordings();
        if let Some(stats) = self.stats.take() {
            stats.stop();
        }
        // They are the next one's.
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
        if let Some(watcher) = self.watcher.take() {
            watcher.join();
        }
        if let Some(denials) = self.denials.take() {
            denials.end();
        }
        self.end_recordings();
        if let Some(learner) = &self.learner {
            learner.end();
        }
        self.reception.close();
        // Channels that have not moved since they were waited for are not waited for again.
        let deadline = if self.gave_up_at.get() == Some(self.progress()) {
            Instant::now()
        } else {
            Instant::now() + self.output_timeout
        };
        self.dispatcher.flush(deadline);
        if let Some(stats) = self.stats.take() {
            stats.stop();
        }
        for channel in self.dispatcher.counters().channels {
            let lost = channel.lost_queue_full + channel.lost_write_failed;
            let waiting = channel.pending;
            if lost > 0 || waiting > 0 {
                let name = channel.channel;
                let why = channel.trouble.map(|trouble| format!(": {trouble}"));
                let why = why.unwrap_or_default();
                let problem = format!("{name}: {lost} alerts lost, {waiting} not delivered{why}");
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
        self.dispatcher.close(self.output_timeout);
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
