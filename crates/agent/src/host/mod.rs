//! One agent for several listeners: for all containers of a host (`--agent host`), or for a container
//! and its exec sessions.
//!
//! Rules are loaded once, and alerts of all containers go through the same outputs. Each container and
//! each exec session still has a keeper and an agent of its own, but that agent only hands over the
//! filter's listener and waits ([`Errand`]). Statements about a container's agent therefore apply to
//! both: if either dies, the keeper stands in, counts, and starts another one.
//!
//! Each container has an engine of its own here, with threads of its own; the containers share rules
//! and outputs. Containers whose filters were compiled from other rules, policies or configurations have
//! another host agent ([`place`]).
//!
//! An exec session has its container's filter, and is handed over to the agent of its container in the
//! same way ([`session`]). It therefore needs no rules of its own, and is evaluated by those in force
//! there.

mod agent_handoff;
mod agent_socket;
mod handoff_request;
mod member;
mod session;
#[cfg(feature = "testing")]
pub(crate) mod testing;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use capture::notify::{CommonRules, RulesInForce};
use decoder::counters::CounterSnapshot;
use diagnostics::exit::Exit;
use diagnostics::failure::{Failure, Outcome};
use diagnostics::terminal;
use enforce::LoadedPolicy;
use event::{EngineKind, Pid, Plan};
use outputs::Dispatcher;
use rules::Engine;
use supervisor::handover_state;
use supervisor::{AgentStart, SharedState, Source, attached};

pub(super) use self::agent_handoff::Errand;
use self::agent_socket::{AgentSocket, ClaimedSocket};
pub(super) use self::session::prepare as prepare_session;
use super::engines::{Common, Holding, Losses, Request, Started, snapshot};
use super::first::Restriction;
use super::reports;
use super::services::{AgentConfig, Rules};
use super::{RuntimeContainer, engines};
use crate::blueprint::{InForce, Origin, blueprint};
use crate::journal;
use crate::spec::AgentSpec;

/// Maximum number of containers that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Time limit for the last threads when this agent must end.
const FAREWELL: Duration = Duration::from_secs(10);

/// Runs the host agent in a new process. This process ends when the agent accepts connections.
pub(super) fn execute(spec: AgentSpec, base: &Path) -> Outcome {
    let place =
        AgentSocket::of_base(base).ok_or_else(|| cannot_begin("its location is not a path"))?;
    let cause = |error: &dyn std::fmt::Display| cannot_begin(&error.to_string());
    supervisor::stand_alone().map_err(|error| cause(&error))?;
    // The agent belongs to no terminal, and keeps no directory from being removed.
    sys::file::new_session().map_err(|error| cause(&error))?;
    sys::file::change_directory(c"/").map_err(|error| cause(&error))?;
    let Some(taken) = place.take().map_err(|error| cause(&error))? else {
        return Ok(Exit::Ok);
    };
    let handover = place.handover().map_err(|error| cause(&error))?;
    let elsewhere = handover_state::decode_first(&handover)?;
    let policy = spec.confine.policy.clone();
    let how = spec.confine.how.clone();
    let later = elsewhere.zip(policy.clone());
    let (detection, interception) = (spec.detection, spec.interception);
    let nothing = InForce::nothing("runtime");
    let mut blueprint = blueprint(
        detection,
        interception,
        EngineKind::Notify,
        nothing,
        Origin::Handover(&handover),
        None,
    )?;
    blueprint.policy = policy;
    blueprint.later = later.map(|(elsewhere, policy)| Restriction {
        elsewhere,
        policy,
        how,
    });
    let serve = move || match serve(&taken, blueprint) {
        Ok(()) => {
            taken.clear();
            0
        }
        Err(error) => {
            terminal::complain(&format!("tollgate: cannot watch containers: {error:#}\n"));
            taken.clear();
            i32::from(Exit::Internal.code())
        }
    };
    sys::clone::clone_child(sys::clone::CloneFlags::default(), serve)
        .map_err(|error| cause(&error))?;
    Ok(Exit::Ok)
}

fn cannot_begin(why: &str) -> Failure {
    let message = format!("cannot start the host agent: {why}");
    Failure::new(Exit::Internal, message).help("`agent` is an internal verb")
}

fn serve(taken: &ClaimedSocket, blueprint: AgentConfig) -> anyhow::Result<()> {
    sys::prctl::set_name(c"tollgate-host").context("cannot name the process")?;
    let listener = taken.listener.try_clone().context("cannot listen")?;
    // Called again by this process: connecting processes get the pid of the last caller of listen.
    rustix::net::listen(&listener, BACKLOG).context("cannot listen")?;
    attached::watch(Source::Containers(listener), None, blueprint.into_start())?;
    Ok(())
}

/// Callback for a container whose filter was compiled from other rules than the current ones.
type OnStale = Box<dyn Fn() + Send + Sync>;

/// The host agent or a container's agent, shared between its threads.
pub(super) struct Host {
    common: Common,
    installed: Plan,
    lasting: HostAgentOptions,
    rules: CommonRules<Engine>,
    state: Mutex<State>,
    left: Condvar,
    on_stale: OnceLock<OnStale>,
    /// Set for the host agent. A container's agent has a keeper that accounts for its alerts.
    account: Option<Account>,
    /// Hash of the current rules, as reported by containers; 0 if unknown.
    loaded: AtomicU64,
}

/// Account of alerts that this process has not delivered yet.
pub(super) struct Account {
    pub(super) shared_state: Arc<SharedState>,
    /// File of the account, for processes that determine the losses of this one.
    pub(super) file: OwnedFd,
}

struct State {
    live: BTreeMap<u64, WatchedContainer>,
    /// Connections, including those that have not handed over a container yet.
    open: BTreeMap<u64, UnixStream>,
    /// Number of the next connection.
    next: u64,
    idle_since: Instant,
    is_ending: bool,
    /// Totals of containers that have ended.
    past: CounterSnapshot,
    past_losses: Losses,
}

/// A watched container.
struct WatchedContainer {
    counters: Arc<dyn Fn() -> CounterSnapshot + Send + Sync>,
    shared_state: Arc<SharedState>,
    protect: Box<dyn Fn(Pid) + Send + Sync>,
}

impl WatchedContainer {
    fn totals(&self) -> (CounterSnapshot, Losses) {
        let counters = (self.counters)().plus(&self.shared_state.past());
        (counters, Losses::of(&self.shared_state))
    }
}

/// Parameters that last without a watched container.
#[derive(Clone, Debug)]
pub(super) struct HostAgentOptions {
    /// Loaded policy of each container that reports violations, with the policy's file.
    pub(super) resident: LoadedPolicy,
    pub(super) policy: Option<PathBuf>,
    /// Time that the agent stays without containers.
    pub(super) linger: Duration,
    pub(super) output_timeout: Duration,
}

/// Starts watching containers as they are handed over.
pub(super) fn start(
    listener: UnixListener,
    rules: Rules,
    common: Common,
    lasting: HostAgentOptions,
    account: Option<Account>,
) -> anyhow::Result<(Started, Arc<Host>)> {
    let host = Host::new(&rules, common, lasting, account);
    host.listen(listener)?;
    let counted = Arc::clone(&host);
    let started = Started {
        rulings: host.rules.rulings(),
        counters: Box::new(move |matched, _| {
            let (counters, losses) = counted.totals();
            snapshot(&counters, matched.total(), &losses)
        }),
        watcher: Box::new(Containers {
            host: Arc::clone(&host),
            own: None,
        }),
    };
    Ok((started, host))
}

/// Starts watching a container, and those of its sessions that connect in this directory.
pub(super) fn start_with_sessions(
    folder: &Path,
    request: Request,
    lasting: HostAgentOptions,
) -> anyhow::Result<Started> {
    let host = Host::new(&request.rules, request.common.clone(), lasting, None);
    let own = engines::hold(request)?;
    let in_force = host.rules.in_force();
    host.rules.join(own.rulings(), &in_force);
    let counters = own.counter_source();
    // The container is watched anyway, and its sessions have agents of their own.
    if let Err(error) = host.open(folder) {
        journal::warn(&format!("cannot watch exec sessions: {error:#}"));
    }
    let counted = Arc::clone(&host);
    Ok(Started {
        rulings: host.rules.rulings(),
        counters: Box::new(move |matched, shared_state| {
            let (theirs, lost) = counted.totals();
            let all = counters().plus(&shared_state.past()).plus(&theirs);
            snapshot(&all, matched.total(), &Losses::of(shared_state).plus(&lost))
        }),
        watcher: Box::new(Containers {
            host,
            own: Some(own),
        }),
    })
}

impl Host {
    fn new(
        rules: &Rules,
        common: Common,
        lasting: HostAgentOptions,
        account: Option<Account>,
    ) -> Arc<Self> {
        let in_force = RulesInForce {
            evaluator: Arc::clone(&rules.evaluator),
            plan: rules.plan.clone(),
            paths: rules.evaluator.paths().into_iter().collect(),
        };
        Arc::new(Self {
            common,
            installed: rules.installed.clone(),
            lasting,
            rules: CommonRules::new(in_force),
            state: Mutex::new(State {
                live: BTreeMap::new(),
                open: BTreeMap::new(),
                next: 0,
                idle_since: Instant::now(),
                is_ending: false,
                past: CounterSnapshot::default(),
                past_losses: Losses::default(),
            }),
            left: Condvar::new(),
            on_stale: OnceLock::new(),
            account,
            loaded: AtomicU64::new(0),
        })
    }

    /// Opens the socket of a container's agent.
    fn open(self: &Arc<Self>, folder: &Path) -> anyhow::Result<()> {
        let listener = AgentSocket::of_container(folder).open();
        let listener = listener.context("cannot listen")?;
        rustix::net::listen(&listener, BACKLOG).context("cannot listen")?;
        self.listen(listener)
    }

    fn listen(self: &Arc<Self>, listener: UnixListener) -> anyhow::Result<()> {
        let door = Arc::clone(self);
        std::thread::Builder::new()
            .name("containers".to_owned())
            .spawn(move || member::admit(&listener, &door))
            .context("cannot start the container thread")?;
        Ok(())
    }

    /// Sets the callback for containers whose filter was compiled from other rules than the current
    /// ones.
    pub(super) fn when_stale(&self, reload: OnStale) {
        // Called once.
        let _ = self.on_stale.set(reload);
    }

    /// Records the losses of a dead host agent, as reported by one of its containers.
    fn take_losses(&self, (alerts, torn): (u64, u64)) {
        if let Some(account) = &self.account {
            account.shared_state.lines_are_torn(torn);
        }
        if alerts > 0 {
            let mut state = self.state();
            state.past_losses = state.past_losses.plus(&Losses::of_alerts(alerts));
            drop(state);
            let alert = reports::alerts_lost(alerts);
            self.common.dispatcher.emit_internal_once(alert);
        }
    }

    /// Records the rules that a container's filter was compiled from.
    fn see_rules(&self, rules: Option<u64>) {
        let Some(rules) = rules else { return };
        let before = self.loaded.swap(rules, Ordering::AcqRel);
        if before != 0
            && before != rules
            && let Some(reload) = self.on_stale.get()
        {
            reload();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn totals(&self) -> (CounterSnapshot, Losses) {
        let state = self.state();
        let past = (state.past, state.past_losses);
        state.live.values().fold(past, |(counters, losses), live| {
            let (more, lost) = live.totals();
            (counters.plus(&more), losses.plus(&lost))
        })
    }
}

/// All containers, as services of the supervisor.
struct Containers {
    host: Arc<Host>,
    /// Engine of the agent's own container; `None` for the host agent.
    own: Option<Holding>,
}

impl capture::Engine for Containers {
    /// Returns true when the host agent has been without containers for some time, or a container's
    /// agent has lost the last process of its container and sessions.
    fn has_ended(&self) -> bool {
        let is_over = self.own.as_ref().map(capture::Engine::has_ended);
        let mut state = self.host.state();
        let is_idle = state.idle_since.elapsed() >= self.host.lasting.linger;
        state.is_ending |= state.open.is_empty() && is_over.unwrap_or(is_idle);
        state.is_ending && state.open.is_empty()
    }

    /// Closes all connections. Keepers decide about the containers.
    fn let_go(&self) {
        if let Some(own) = &self.own {
            own.let_go();
        }
        let mut state = self.host.state();
        state.is_ending = true;
        for stream in state.open.values() {
            // Fails only if the other side has closed the connection, which has the same effect.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn protect(&self, pid: Pid) {
        if let Some(own) = &self.own {
            capture::Engine::protect(own, pid);
        }
        for live in self.host.state().live.values() {
            (live.protect)(pid);
        }
    }

    fn join(self: Box<Self>) {
        if let Some(own) = self.own {
            capture::Engine::join(Box::new(own));
        }
        let deadline = Instant::now() + FAREWELL;
        let mut state = self.host.state();
        while !state.open.is_empty() && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.host.left.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Creates the engine that watches one container.
fn engine(
    host: &Host,
    listening: AgentStart,
    told: RuntimeContainer,
    in_force: &RulesInForce<Engine>,
    dispatcher: Dispatcher,
) -> anyhow::Result<Holding> {
    let first = host.common.first.clone();
    let first = first.map(|first| first.of(&told.told));
    let rules = Rules {
        evaluator: Arc::clone(&in_force.evaluator),
        plan: in_force.plan.clone(),
        installed: host.installed.clone(),
        refused: Vec::new(),
    };
    engines::hold(engines::Request {
        listening,
        rules,
        first,
        told: Some(told),
        common: Common {
            dispatcher,
            // Each container has the filter of the configuration with which it was started.
            has_other_filters: true,
            ..host.common.clone()
        },
    })
}
