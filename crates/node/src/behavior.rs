//! What containers do whose behaviour is modelled: an engine observes them, and the report of the node says what they did.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kinds::{BehaviorReport, ModelingRun, ObjectKey, Recording};
use policy::model::WorkloadAction;

use recorded::Recorded;

#[path = "behavior_recorded.rs"]
mod recorded;

/// Maximum number of profiles whose containers a node observes at once.
const MAX_PROFILES: usize = 64;
/// Maximum number of containers that a node observes at once.
const MAX_CONTAINERS: usize = 4096;
/// Maximum length in bytes of what a report has of all profiles. An object of the API server has 1.5 MiB.
const MAX_REPORT: usize = 512 << 10;
/// How long a container that has ended is known: its last events are evaluated later.
const LINGER: Duration = Duration::from_secs(10);

/// The engine that observes containers.
pub trait BehaviorEngine: Send + Sync {
    /// Starts to observe the containers that the recorder chooses, for each of which it asks once. An engine that runs goes on
    /// until the new one has begun, so that nothing is missed between them.
    ///
    /// # Errors
    ///
    /// Why it cannot observe.
    fn start(&self) -> Result<(), String>;

    /// Ends, when the recorder has got what happened until now.
    fn stop(&self);

    /// Returns true until the engine is stopped, or ends by itself.
    fn is_running(&self) -> bool;
}

/// Behaviour modelling on a node.
#[derive(Clone)]
pub struct Behavior {
    /// The engine.
    pub engine: Arc<dyn BehaviorEngine>,
    /// What the engine tells.
    pub recorder: Arc<Recorder>,
}

/// What the engine does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineState {
    /// It runs.
    Running,
    /// It was stopped just now, and has told all that it saw.
    Drained,
    /// It does not run.
    Down,
}

/// Seconds since 1970. A clock before that is not set: it is taken for 1970, when no run is over.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Records what containers do, by profile and within limits.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    profiles: BTreeMap<ObjectKey, Recorded>,
    /// By full id.
    containers: HashMap<String, Observed>,
    /// An engine runs.
    is_running: bool,
    /// Time of the last look at it.
    looked: u64,
    /// Number of changes of what is reported.
    changes: u64,
}

/// A container.
#[derive(Debug)]
struct Observed {
    key: ObjectKey,
    /// The runtime has prepared it, and starts its program.
    is_started: bool,
    /// What happens before its first program is not the workload's.
    awaits_program: bool,
    /// It was created while an engine ran.
    from_start: bool,
    ended: Option<Instant>,
}

impl State {
    fn profile(&mut self, key: &ObjectKey, run: ModelingRun) -> Result<&mut Recorded, String> {
        let is_other = |recorded: &Recorded| !recorded.run.is_same(&run);
        if self.profiles.get(key).is_some_and(is_other) {
            self.forget(key);
        }
        if self.profiles.len() >= MAX_PROFILES && !self.profiles.contains_key(key) {
            return Err(format!("a node observes at most {MAX_PROFILES} profiles"));
        }
        let recorded = self.profiles.entry(key.clone());
        let recorded = recorded.or_insert_with(|| Recorded::new(run, now()));
        // It may have been made longer.
        recorded.run = run;
        Ok(recorded)
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.profiles.remove(key);
        self.containers.retain(|_, observed| observed.key != *key);
        self.changes += 1;
    }

    /// Notes for all profiles that something is missing.
    fn lack(&mut self, reason: &str) {
        let running = self.profiles.values_mut().filter(|one| !one.has_ended());
        for recorded in running {
            self.changes += u64::from(recorded.lack(reason));
        }
    }
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        // No method leaves it half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a container with this full id is observed.
    #[must_use]
    pub fn watches(&self, container: &str) -> bool {
        self.state().containers.contains_key(container)
    }

    /// Takes what one call in a container did. `starts_program`: it was an exec that succeeded.
    pub fn observe(&self, container: &str, starts_program: bool, actions: &[WorkloadAction]) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(observed) = state.containers.get_mut(container) else {
            return;
        };
        if !observed.is_started || observed.awaits_program && !starts_program {
            return;
        }
        let is_first = std::mem::take(&mut observed.awaits_program);
        let recorded = state.profiles.get_mut(&observed.key);
        if let Some(recorded) = recorded.filter(|recorded| !recorded.has_ended()) {
            // Only now is it known that the engine sees this container.
            recorded.from_start += u64::from(is_first && observed.from_start);
            state.changes += u64::from(is_first);
            for action in actions {
                state.changes += u64::from(recorded.note(action));
            }
        }
    }

    /// Takes that a call in a container did something that could not be read.
    pub fn unread(&self, container: &str, call: &str) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(observed) = state.containers.get(container) else {
            return;
        };
        if observed.awaits_program {
            return;
        }
        let recorded = state.profiles.get_mut(&observed.key);
        if let Some(recorded) = recorded.filter(|recorded| !recorded.has_ended()) {
            let reason = format!("a name could not be read at a call of {call}");
            state.changes += u64::from(recorded.lack(&reason));
        }
    }

    /// Takes that the engine has lost events, of whichever containers.
    pub fn lost(&self, events: u64) {
        if events > 0 {
            self.state().lack("the engine has lost events");
        }
    }

    /// Takes that the engine does not see something.
    pub fn trouble(&self, cause: &str) {
        self.state().lack(cause);
    }

    /// Notes for some profiles that something is missing.
    pub(crate) fn lack_of(&self, profiles: &BTreeSet<ObjectKey>, reason: &str) {
        let mut state = self.state();
        for key in profiles {
            let recorded = state.profiles.get_mut(key);
            let is_new = recorded.is_some_and(|one| !one.has_ended() && one.lack(reason));
            state.changes += u64::from(is_new);
        }
    }

    /// Takes that a container begins after the end of a run. If none ran here before, the node has nothing to say of the run,
    /// and says so: the operator waits for each node that has containers.
    pub(crate) fn add_after(&self, key: &ObjectKey, run: ModelingRun) {
        let mut state = self.state();
        if state.profiles.contains_key(key) {
            return;
        }
        // As many as there were before.
        if let Ok(recorded) = state.profile(key, run) {
            recorded.since = run.end();
            recorded.until = run.end();
            state.changes += 1;
        }
    }

    /// Adds a container that the runtime makes now, or one that runs already.
    ///
    /// # Errors
    ///
    /// Why it is not observed.
    pub(crate) fn add(
        &self,
        container: &str,
        key: &ObjectKey,
        run: ModelingRun,
        runs_already: bool,
    ) -> Result<(), String> {
        let mut state = self.state();
        if state.containers.contains_key(container) {
            return Ok(());
        }
        if state.containers.len() >= MAX_CONTAINERS {
            let reason = format!("a node observes at most {MAX_CONTAINERS} containers");
            state.profile(key, run)?.lack(&reason);
            return Err(reason);
        }
        let from_start = state.is_running && !runs_already;
        let recorded = state.profile(key, run)?;
        if runs_already {
            recorded.containers += 1;
        }
        let observed = Observed {
            key: key.clone(),
            is_started: runs_already,
            // The engine does not see the first program of one that started before it.
            awaits_program: from_start,
            from_start,
            ended: None,
        };
        state.containers.insert(container.to_owned(), observed);
        state.changes += 1;
        Ok(())
    }

    /// Counts a container whose program starts now.
    pub(crate) fn start(&self, container: &str) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(observed) = state.containers.get_mut(container) else {
            return;
        };
        if std::mem::replace(&mut observed.is_started, true) {
            return;
        }
        if let Some(recorded) = state.profiles.get_mut(&observed.key) {
            recorded.containers += 1;
            state.changes += 1;
        }
    }

    /// Notes that a container has ended.
    pub(crate) fn end(&self, container: &str) {
        if let Some(observed) = self.state().containers.get_mut(container) {
            observed.ended.get_or_insert_with(Instant::now);
        }
    }

    /// Whether a container is observed from its first program on; `None` if it is not observed.
    pub(crate) fn is_from_start(&self, container: &str) -> Option<bool> {
        let state = self.state();
        let observed = state.containers.get(container);
        observed.map(|observed| observed.from_start)
    }

    /// Notes whether an engine runs, and until when it has. Takes the runs of profiles as they are now; forgets profiles whose run
    /// is over or another one, and containers that ended a while ago.
    pub(crate) fn tick(
        &self,
        now: u64,
        engine: EngineState,
        runs: &BTreeMap<ObjectKey, ModelingRun>,
    ) {
        let mut state = self.state();
        let is_running = engine != EngineState::Down;
        let was_running = std::mem::replace(&mut state.is_running, is_running);
        let looked = std::mem::replace(&mut state.looked, now);
        let is_gone = |observed: &Observed| observed.ended.is_some_and(|at| at.elapsed() > LINGER);
        state.containers.retain(|_, observed| !is_gone(observed));
        let mut unwanted = Vec::new();
        for (key, recorded) in &mut state.profiles {
            let run = runs.get(key).filter(|run| run.is_same(&recorded.run));
            match run.filter(|run| !run.is_over) {
                // It may be longer or shorter by now.
                Some(run) => recorded.run = *run,
                None => unwanted.push(key.clone()),
            }
        }
        for key in &unwanted {
            state.forget(key);
        }
        // What an engine that runs has seen since the last look may still wait to be evaluated.
        let until = match engine {
            EngineState::Drained => now,
            EngineState::Running | EngineState::Down => looked,
        };
        if was_running && is_running {
            let mut completed = 0;
            for recorded in state.profiles.values_mut() {
                let had_ended = recorded.has_ended();
                recorded.until = recorded.until.max(until);
                completed += u64::from(recorded.has_ended() && !had_ended);
            }
            // The operator waits for it.
            state.changes += completed;
        }
    }

    /// Number of profiles whose containers are observed, and of those of which something is missing.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state();
        let lacking = state
            .profiles
            .values()
            .filter(|one| !one.incomplete.is_empty());
        (state.profiles.len() as u64, lacking.count() as u64)
    }

    /// Number of changes of what is reported, without those of time.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Takes what an agent before has reported, so that it is reported on.
    pub(crate) fn restore(
        &self,
        reports: Vec<BehaviorReport>,
        runs: &BTreeMap<ObjectKey, ModelingRun>,
    ) {
        let mut state = self.state();
        for report in reports {
            let key = report.key();
            let run = runs.get(&key).filter(|run| run.start == report.run);
            let Some(run) = run else { continue };
            // As many as there were before.
            if let Ok(recorded) = state.profile(&key, *run) {
                recorded.until = report.until;
                recorded.earlier = Some(report);
            }
        }
    }

    /// Notes for all runs that what an agent before has observed cannot be read. Which of them it observed is not known.
    pub(crate) fn lack_earlier(&self, runs: &BTreeMap<ObjectKey, ModelingRun>) {
        let mut state = self.state();
        for (key, run) in runs.iter().filter(|(_, run)| !run.is_over) {
            // As many as there were before.
            if let Ok(recorded) = state.profile(key, *run) {
                recorded.lack("what the agent before this one has observed cannot be read");
                state.changes += 1;
            }
        }
    }

    /// The part of the node's report about behaviour.
    pub(crate) fn reports(&self) -> Vec<BehaviorReport> {
        let state = self.state();
        let mut left = MAX_REPORT;
        let mut reports = Vec::new();
        for (key, recorded) in &state.profiles {
            let mut report = recorded.report(key);
            let bytes = serde_json::to_vec(&report.recorded)
                .expect("a recording is JSON")
                .len();
            match left.checked_sub(bytes) {
                Some(rest) => left = rest,
                None => {
                    report.recorded = Recording::default();
                    let reason =
                        format!("the report of a node has at most {MAX_REPORT} bytes of behaviour");
                    report.incomplete.push(reason);
                }
            }
            reports.push(report);
        }
        reports
    }
}

#[cfg(test)]
#[path = "behavior_tests.rs"]
mod tests;
