//! One agent for all containers of a machine (`--agent host`).
//!
//! Rules are loaded once, and alerts of all containers go through the same outputs. Each container and each
//! exec session has a keeper and an agent of its own still, but that agent only hands the filter's listener
//! over and waits ([`Errand`]). So what is said of an agent of a container goes for both of them: if either
//! dies the keeper stands in, counts, and starts another one.
//!
//! Each container has an engine of its own here, with threads of its own; what they share are the rules and
//! the outputs. Containers whose filters were made from other rules, policies or configurations have
//! another agent of the host ([`place`]).

mod errand;
mod hail;
mod member;
mod place;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use capture::notify::{CommonRules, CounterSnapshot, RulesInForce};
use enforce::Resident;
use event::{Pid, Plan};
use outputs::Dispatcher;
use rules::Engine;

pub(super) use self::errand::Errand;
use self::place::{Place, Taken};
use super::engines::{Common, Losses, Started, Watcher, snapshot};
use super::first::Restriction;
use super::services::Rules;
use super::{InForce, TheirContainer, engines};
use crate::args::Run;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::installed;
use crate::supervise::{self, Board, Listening, Mechanism, Source, attached};
use crate::terminal;

/// Containers that may wait to be taken.
const BACKLOG: i32 = 1024;
/// How long the last threads may take when this agent is told to end.
const FAREWELL: Duration = Duration::from_secs(10);

/// Runs the agent of the host in a process of its own; this one ends when that can be connected to.
pub(super) fn execute(args: Run, base: &Path) -> Outcome {
    let place = Place::of_base(base).ok_or_else(|| cannot_begin("its place is no path"))?;
    let cause = |error: &dyn std::fmt::Display| cannot_begin(&error.to_string());
    supervise::stand_alone().map_err(|error| cause(&error))?;
    // It belongs to no terminal, and keeps no folder from being removed.
    sys::file::new_session().map_err(|error| cause(&error))?;
    sys::file::change_directory(c"/").map_err(|error| cause(&error))?;
    let Some(taken) = place.take().map_err(|error| cause(&error))? else {
        return Ok(Exit::Ok);
    };
    let memo = place.memo().map_err(|error| cause(&error))?;
    let elsewhere = installed::decode_first(&memo)?;
    let policy = args.confine.policy.clone();
    let how = args.confine.how.clone();
    let witness = args.confine.witness(enforce::Place::Elsewhere);
    let later = elsewhere.zip(policy.clone());
    let (detection, interception) = (args.detection, args.interception);
    let nothing = InForce::nothing();
    let mut blueprint = super::blueprint(
        detection,
        interception,
        Mechanism::Listener,
        nothing,
        Some(&memo),
    )?;
    blueprint.policy = policy;
    blueprint.witness = witness;
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
    let message = format!("cannot start the agent of the host: {why}");
    Failure::new(Exit::Internal, message).help("leave --host-agent to `tollgate runtime`")
}

fn serve(taken: &Taken, blueprint: super::Blueprint) -> anyhow::Result<()> {
    sys::prctl::set_name(c"tollgate-host").context("cannot name the process")?;
    let listener = taken.listener.try_clone().context("cannot listen")?;
    // Once more, by this process: who connects is told the pid of whoever said it last.
    rustix::net::listen(&listener, BACKLOG).context("cannot listen")?;
    attached::watch(Source::Containers(listener), None, blueprint.into_start())?;
    Ok(())
}

/// What is told of rules that a container's filter was made from, and are others than those in force.
type OnStale = Box<dyn Fn() + Send + Sync>;

/// The agent of the host, as its threads share it.
pub(super) struct Host {
    common: Common,
    installed: Plan,
    /// What of the policy each container has in the kernel and tells of, and the policy's file.
    resident: Resident,
    policy: Option<PathBuf>,
    rules: CommonRules<Engine>,
    state: Mutex<State>,
    left: Condvar,
    /// How long it stays when there is no container.
    linger: Duration,
    output_timeout: Duration,
    on_stale: OnceLock<OnStale>,
    /// Which rules are in force, as containers say; 0: not known.
    loaded: AtomicU64,
}

struct State {
    live: BTreeMap<u64, Live>,
    /// Connections, with those that have not handed a container over yet.
    open: usize,
    idle_since: Instant,
    is_ending: bool,
    /// Totals of the containers that have ended.
    past: CounterSnapshot,
    past_losses: Losses,
}

/// A container that is watched.
struct Live {
    stream: std::os::unix::net::UnixStream,
    counters: Arc<dyn Fn() -> CounterSnapshot + Send + Sync>,
    board: Arc<Board>,
    protect: Box<dyn Fn(Pid) + Send + Sync>,
}

impl Live {
    fn totals(&self) -> (CounterSnapshot, Losses) {
        let counters = (self.counters)().plus(&self.board.past());
        (counters, Losses::of(&self.board))
    }
}

/// Starts watching whatever is handed over.
pub(super) fn start(
    listener: std::os::unix::net::UnixListener,
    rules: Rules,
    common: Common,
    (resident, policy): (Resident, Option<PathBuf>),
    linger: Duration,
    output_timeout: Duration,
) -> anyhow::Result<(Started, Arc<Host>)> {
    let Rules {
        judge,
        plan,
        installed,
        refused: _,
    } = rules;
    let paths = judge.paths().into_iter().collect();
    let host = Arc::new(Host {
        common,
        installed,
        resident,
        policy,
        rules: CommonRules::new(RulesInForce { judge, plan, paths }),
        state: Mutex::new(State {
            live: BTreeMap::new(),
            open: 0,
            idle_since: Instant::now(),
            is_ending: false,
            past: CounterSnapshot::default(),
            past_losses: Losses::default(),
        }),
        left: Condvar::new(),
        linger,
        output_timeout,
        on_stale: OnceLock::new(),
        loaded: AtomicU64::new(0),
    });
    let door = Arc::clone(&host);
    std::thread::Builder::new()
        .name("containers".to_owned())
        .spawn(move || member::admit(&listener, &door))
        .context("cannot start the thread that takes containers")?;
    let counted = Arc::clone(&host);
    let started = Started {
        rulings: host.rules.rulings(),
        counters: Box::new(move |matched, _| {
            let (counters, losses) = counted.totals();
            snapshot(&counters, matched, &losses)
        }),
        watcher: Box::new(Containers(Arc::clone(&host))),
    };
    Ok((started, host))
}

impl Host {
    /// What is done when a container's filter was made from other rules than are in force.
    pub(super) fn when_stale(&self, reload: OnStale) {
        // It is called once.
        let _ = self.on_stale.set(reload);
    }

    /// A container's filter was made from these rules.
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

/// All containers, as the services see them.
struct Containers(Arc<Host>);

impl Watcher for Containers {
    /// After some time without a container.
    fn has_ended(&self) -> bool {
        let mut state = self.0.state();
        state.is_ending |= state.open == 0 && state.idle_since.elapsed() >= self.0.linger;
        state.is_ending && state.open == 0
    }

    /// Keepers see to what becomes of them.
    fn let_go(&self) {
        let mut state = self.0.state();
        state.is_ending = true;
        for live in state.live.values() {
            // Fails only if the other side is gone, which comes to the same.
            let _ = live.stream.shutdown(std::net::Shutdown::Both);
        }
    }

    fn protect(&self, pid: Pid) {
        for live in self.0.state().live.values() {
            (live.protect)(pid);
        }
    }

    fn join(self: Box<Self>) {
        let deadline = Instant::now() + FAREWELL;
        let mut state = self.0.state();
        while state.open > 0 && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let waited = self.0.left.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// An engine that watches one container.
fn engine(
    host: &Host,
    listening: Listening,
    told: TheirContainer,
    in_force: &RulesInForce<Engine>,
    dispatcher: Dispatcher,
) -> anyhow::Result<super::engines::Holding> {
    let first = host.common.first.clone();
    let first = first.map(|first| first.of(&told.told));
    let rules = Rules {
        judge: Arc::clone(&in_force.judge),
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
            ..host.common.clone()
        },
    })
}
