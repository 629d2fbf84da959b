//! The thread that keeps the engine of behaviour modelling running while a profile wants it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use kinds::{ModelingRun, ObjectKey};

use crate::agent::Agent;
use crate::behavior::{Behavior, EngineState, now};
use crate::chain;

/// How often the agent looks whether profiles want to be observed.
const TICK: Duration = Duration::from_secs(1);
/// Least time between two reports of new behaviour.
const PAUSE: Duration = Duration::from_secs(10);
/// Wait before an engine that could not start is tried again.
const RETRY: Duration = Duration::from_secs(30);
/// Why nothing is observed by an agent without an engine.
pub(crate) const NOT_ENABLED: &str =
    "behaviour is not observed: the agent runs without --behavior-modeling";

/// Observes for as long as the program runs.
pub(crate) fn observe(agent: &Arc<Agent>, behavior: &Behavior) {
    let mut observer = Observer::new(behavior);
    loop {
        observer.tick(agent);
        thread::sleep(TICK);
    }
}

/// What the thread knows.
pub(crate) struct Observer<'b> {
    behavior: &'b Behavior,
    /// When to try again to start the engine.
    pub(crate) retry: Option<Instant>,
    /// When and with how many changes behaviour was reported last.
    pub(crate) reported: Option<(Instant, u64)>,
    /// Ends of runs that were reported.
    ended: BTreeMap<ObjectKey, u64>,
    is_restored: bool,
    /// Profiles of containers that the engine has not asked for, so that there has to be another one.
    unasked: BTreeSet<ObjectKey>,
}

impl<'b> Observer<'b> {
    pub(crate) fn new(behavior: &'b Behavior) -> Self {
        Self {
            behavior,
            retry: None,
            reported: None,
            ended: BTreeMap::new(),
            is_restored: false,
            unasked: BTreeSet::new(),
        }
    }

    /// Looks once.
    pub(crate) fn tick(&mut self, agent: &Agent) {
        let now = now();
        let Behavior { engine, recorder } = self.behavior;
        let state = agent.state();
        // Before the list of profiles is complete, one that is missing may only not be known yet.
        if !state.can_report() {
            return;
        }
        let runs = state.index.runs();
        drop(state);
        if !self.is_restored {
            self.is_restored = true;
            match agent.store.behavior() {
                Some(reports) => recorder.restore(reports, &runs),
                None => recorder.lack_earlier(&runs),
            }
        }
        let is_wanted = runs.values().any(|run| run.is_active(now));
        let was_running = engine.is_running();
        // An engine asks for a container once: for those that ran before there has to be a new one.
        if is_wanted {
            self.unasked
                .extend(adopt_running(agent, self.behavior, now));
        }
        match (is_wanted, was_running) {
            (true, true) if !self.unasked.is_empty() => self.start(agent),
            (true, true) => {}
            (true, false) => self.start(agent),
            (false, _) => {
                if was_running {
                    engine.stop();
                }
                // Nothing is to be observed, so nothing fails.
                let mut state = agent.state();
                state.is_changed |= state.behavior_failure.take().is_some();
            }
        }
        let state = match engine.is_running() {
            true => EngineState::Running,
            false if was_running && !is_wanted => EngineState::Drained,
            false => EngineState::Down,
        };
        recorder.tick(now, state, &runs);
        self.report(agent, now, &runs);
    }

    fn start(&mut self, agent: &Agent) {
        if self.retry.is_some_and(|retry| Instant::now() < retry) {
            // Containers have come since then that nobody observes.
            if let Some(cause) = &agent.state().behavior_failure {
                self.lack(cause);
            }
            return;
        }
        let failure = self.behavior.engine.start().err();
        match &failure {
            None => self.unasked.clear(),
            Some(cause) => self.lack(cause),
        }
        self.retry = failure.is_some().then(|| Instant::now() + RETRY);
        let mut state = agent.state();
        state.is_changed |= state.behavior_failure != failure;
        let is_news = failure.is_some() && state.behavior_failure != failure;
        state.behavior_failure.clone_from(&failure);
        drop(state);
        match failure {
            None => agent.say("observing the behaviour of containers".to_owned()),
            Some(failure) if is_news => agent.say(format!("cannot observe behaviour: {failure}")),
            Some(_) => {}
        }
    }

    /// Notes that an engine could not be started, for the profiles of which containers are not observed.
    fn lack(&self, cause: &str) {
        let Behavior { engine, recorder } = self.behavior;
        let reason = format!("the engine could not be started: {cause}");
        match engine.is_running() {
            // The one before goes on.
            true => recorder.lack_of(&self.unasked, &reason),
            false => recorder.trouble(&reason),
        }
    }

    /// Has new behaviour reported and kept, at a limited rate; that a run has ended, at once.
    fn report(&mut self, agent: &Agent, now: u64, runs: &BTreeMap<ObjectKey, ModelingRun>) {
        let changes = self.behavior.recorder.changes();
        let ended = runs
            .iter()
            .filter(|(_, run)| !run.is_over && run.end() <= now);
        let ended: BTreeMap<ObjectKey, u64> =
            ended.map(|(key, run)| (key.clone(), run.end())).collect();
        let has_ended = ended != self.ended;
        self.ended = ended;
        let is_due = match self.reported {
            None => changes > 0,
            Some((at, known)) => known != changes && at.elapsed() >= PAUSE,
        };
        if !is_due && !has_ended {
            return;
        }
        self.reported = Some((Instant::now(), changes));
        let reports = self.behavior.recorder.reports();
        if let Err(error) = agent.store.write_behavior(&reports) {
            agent.say(chain(&error));
        }
        agent.state().is_changed = true;
    }
}

/// Adds the containers that run already and are not observed yet. Returns their profiles.
fn adopt_running(agent: &Agent, behavior: &Behavior, now: u64) -> BTreeSet<ObjectKey> {
    let mut state = agent.state();
    let wanted = state.modeled();
    let recorder = &behavior.recorder;
    let unseen = wanted
        .into_iter()
        .filter(|(id, _, run)| run.is_active(now) && !recorder.watches(id));
    let mut new = BTreeSet::new();
    for (id, key, run) in unseen {
        match recorder.add(&id, &key, run, true) {
            Ok(()) => drop(new.insert(key)),
            Err(reason) => drop(state.unobserved.insert(id, reason)),
        }
    }
    new
}
