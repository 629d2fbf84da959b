//! What runs in the agent.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use capture::container::ContainerOptions;
use capture::filter::FilterProgram;
use capture::notify::{CounterSnapshot, GuardOptions, Parts, Processes, Supervisor, VerifyOptions};
use capture::ptrace;
use capture::world::{LiveWorld, WorldOptions};
use event::{Pid, Plan};
use outputs::{Dispatcher, OnProblem, Prepared, Snapshot, StatsFile, StatsWriter};
use rules::plan::Unserved;
use rules::{Engine, EngineOptions};

use super::announcer::Announcer;
use super::orders;
use super::pidfile::Pidfile;
use super::reload::{self, ConfigSource, Matched, Reloader};
use super::reports;
use super::sink::DeferredSink;
use crate::failure::Failure;
use crate::rule_files::Loaded;
use crate::supervise::{Board, Cause, Listening, Report, Services, Source, Start, signals};
use crate::terminal;

/// The rules that an agent starts with.
pub(super) struct Rules {
    judge: Engine,
    /// What they ask for.
    pub(super) plan: Plan,
    /// What the filter of the command hands over.
    pub(super) installed: Plan,
    /// Rules that need more than that.
    refused: Vec<Unserved>,
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
        let mut installed = plan.clone();
        verify.extend(&mut installed);
        Ok(Self {
            judge,
            installed,
            plan,
            refused: Vec::new(),
        })
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
            judge: served.judge,
            plan: served.plan,
            installed,
            refused: served.refused,
        })
    }
}

/// Everything that was readied before the fork.
pub(super) struct Blueprint {
    pub(super) rules: Rules,
    pub(super) verify: VerifyOptions,
    /// What the plan was compiled to.
    pub(super) program: FilterProgram,
    /// The same for processes that enter the container.
    pub(super) entered: FilterProgram,
    pub(super) sink: DeferredSink,
    /// Where the rules are named, for when they are loaded again.
    pub(super) config: ConfigSource,
    pub(super) outputs: Prepared,
    pub(super) stats: Option<StatsFile>,
    pub(super) stats_interval: Duration,
    pub(super) pidfile: Option<Pidfile>,
    pub(super) container_id: Option<String>,
    /// Whether a process may not make itself unreadable.
    pub(super) refuse_non_dumpable: bool,
    /// How long a channel that does not move is waited for.
    pub(super) output_timeout: Duration,
    pub(super) quiet: bool,
}

impl Blueprint {
    /// What the agent does first.
    pub(super) fn into_start(self) -> Start {
        Box::new(move |listening| {
            let services = self.start(listening)?;
            Ok(Box::new(services) as Box<dyn Services>)
        })
    }

    fn start(mut self, listening: Listening) -> anyhow::Result<Running> {
        // Before the first thread, which the signals could reach otherwise.
        let signals = signals::orders().context("cannot wait for signals")?;
        let dispatcher = self.outputs.start()?;
        self.sink.connect(dispatcher.clone());
        let lenient = match listening.transparent[..] {
            [front, .., waiter] => vec![front, waiter],
            // This process alone.
            _ => Vec::new(),
        };
        let guard = GuardOptions {
            // The front passes on what it gets, and the command may signal its parent.
            lenient,
            refuse_non_dumpable: self.refuse_non_dumpable,
        };
        let processes = Processes::new(listening.transparent)?;
        if listening.is_resumed {
            processes.adopt();
        }
        let board = listening.board;
        let container = ContainerOptions {
            own_id: self.container_id,
            ..Default::default()
        };
        let options = WorldOptions {
            container,
            ..WorldOptions::default()
        };
        let world = LiveWorld::new(options, Arc::new(processes.clone()))?;
        let paths = self.rules.judge.paths().into_iter().collect();
        let rule_count = self.rules.judge.matches().count();
        let (listener, traced) = match listening.source {
            Source::Listener(listener) => (listener, None),
            Source::Command(pid) => (ptrace::no_listener()?, Some(ptrace::Target::Command(pid))),
            Source::Running(pids) => (ptrace::no_listener()?, Some(ptrace::Target::Running(pids))),
        };
        let is_traced = traced.is_some();
        let watches_entries = !matches!(traced, Some(ptrace::Target::Running(_)));
        let parts = Parts {
            listener,
            installed: engine_plan(is_traced, self.rules.installed.clone()),
            plan: engine_plan(is_traced, self.rules.plan),
            judge: Arc::new(self.rules.judge),
            world: Arc::new(world),
            processes,
            notices: Arc::new(Announcer::new(dispatcher.clone())),
            guard,
            verify: self.verify,
            paths,
        };
        let pulse = Arc::clone(board.pulse(listening.generation));
        let supervisor = match traced {
            None => {
                Supervisor::start_watched(parts, pulse).context("cannot start the engine notify")
            }
            Some(target) => ptrace::start(parts, pulse, self.program, target)
                .context("cannot start the engine ptrace"),
        }?;
        if watches_entries {
            ptrace::watch_entries(&supervisor, self.entered)
                .context("cannot look for processes that enter")?;
        }
        let matched = Arc::new(Matched::new(supervisor.rulings()));
        let reloader = Reloader {
            config: self.config,
            is_traced,
            installed: self.rules.installed,
            sink: self.sink,
            rulings: supervisor.rulings(),
            matched: Arc::clone(&matched),
            dispatcher: dispatcher.clone(),
        };
        if !self.rules.refused.is_empty() {
            reloader.announce(rule_count, &self.rules.refused);
        }
        orders::follow(signals, dispatcher.clone(), move || reloader.reload())?;
        if let Some(pidfile) = &mut self.pidfile {
            pidfile.write().context("cannot write the pid file")?;
        }
        let quiet = self.quiet;
        let on_problem: OnProblem = Arc::new(move |problem: &str| complain(quiet, problem));
        let stats = self.stats.map(|file| {
            let counters = supervisor.counter_source();
            let source = move || snapshot(&counters(), &matched, &board);
            file.start(
                self.stats_interval,
                Arc::new(source),
                dispatcher.clone(),
                on_problem,
            )
        });
        Ok(Running {
            supervisor: Some(supervisor),
            dispatcher,
            stats: stats.transpose()?,
            pidfile: self.pidfile,
            output_timeout: self.output_timeout,
            flush_deadline: OnceCell::new(),
            gave_up_at: Cell::new(None),
            quiet,
        })
    }
}

/// The plan as the engine carries it out.
pub(super) fn engine_plan(is_traced: bool, plan: Plan) -> Plan {
    if is_traced { ptrace::plan(plan) } else { plan }
}

fn complain(quiet: bool, problem: &str) {
    if !quiet {
        terminal::complain(&format!("tollgate: {problem}\n"));
    }
}

/// The engine's totals for the stats file, with those of agents before this one. It cannot drop: a
/// caller waits until its call was looked at. What the keeper let pass while there was no agent is
/// dropped, though; what it refused is not, because it did not happen.
fn snapshot(counters: &CounterSnapshot, matched: &Matched, board: &Board) -> Snapshot {
    let counters = &counters.plus(&board.past());
    let passed = |cause| board.passed(cause);
    let passed_unwatched = Cause::ALL.into_iter().map(passed).sum();
    Snapshot {
        events: counters.trapped + passed_unwatched + board.denied(),
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
            ("gaps", board.gaps()),
            ("passed_unwatched", passed_unwatched),
            ("passed_agent_killed", passed(Cause::Killed)),
            ("passed_agent_exited", passed(Cause::Exited)),
            ("passed_agent_stopped", passed(Cause::Stopped)),
            ("passed_agent_starved", passed(Cause::Starved)),
            ("passed_agent_gone", passed(Cause::Gone)),
            ("denied_unwatched", board.denied()),
            ("matched", matched.total()),
        ],
    }
}

struct Running {
    /// Taken at the end.
    supervisor: Option<Supervisor<Engine>>,
    dispatcher: Dispatcher,
    stats: Option<StatsWriter>,
    pidfile: Option<Pidfile>,
    output_timeout: Duration,
    /// Set by the first flush.
    flush_deadline: OnceCell<Instant>,
    /// What was emitted and delivered when a flush left something behind.
    gave_up_at: Cell<Option<(u64, u64)>>,
    quiet: bool,
}

impl Running {
    /// Alerts by rules, and deliveries of any alert.
    fn progress(&self) -> (u64, u64) {
        let counters = self.dispatcher.counters();
        let delivered = counters.channels.iter().map(|channel| channel.delivered);
        (counters.emitted, delivered.sum())
    }
}

impl Services for Running {
    fn has_ended(&self) -> bool {
        self.supervisor.as_ref().is_none_or(Supervisor::has_ended)
    }

    fn flush(&self) {
        // A channel that does not move delays the command's end once, however often it is flushed.
        let deadline = *self
            .flush_deadline
            .get_or_init(|| Instant::now() + self.output_timeout);
        if !self.dispatcher.flush(deadline).is_empty() {
            self.gave_up_at.set(Some(self.progress()));
        }
        // Whoever waits for the command may read the file as soon as it has ended.
        if let Some(stats) = &self.stats {
            stats.sample();
        }
    }

    fn report(&self, report: &Report) {
        if let (Report::KeeperReplaced { pid }, Some(supervisor)) = (report, &self.supervisor) {
            supervisor.protect(Pid(*pid));
        }
        self.dispatcher.emit_internal(reports::internal(report));
    }

    fn hand_over(&mut self) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.hand_over();
            supervisor.join();
        }
        if let Some(stats) = self.stats.take() {
            stats.stop();
        }
        // It is the next one's.
        self.pidfile = None;
    }

    fn let_go(&self) {
        if let Some(supervisor) = &self.supervisor {
            supervisor.hand_over();
        }
    }

    fn finish(mut self: Box<Self>) {
        if let Some(supervisor) = self.supervisor.take() {
            supervisor.join();
        }
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
                let problem = format!("{name}: {lost} alerts lost, {waiting} not delivered");
                complain(self.quiet, &problem);
            }
        }
        self.dispatcher.close(self.output_timeout);
        if let Some(pidfile) = self.pidfile.take() {
            pidfile.remove();
        }
    }
}
