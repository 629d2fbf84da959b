//! The agent as a plug-in of the container runtime.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kinds::annotations::FailMode;
use kinds::{EnforcerState, ObjectKey};
use nri::message::{Container, PodSandbox};
use nri::{Answer, Event, Plugin};

use crate::Settings;
use crate::behavior::Behavior;
use crate::detect::Detection;
use crate::index::{Entry, Index, Undecided};
use crate::kernel::Kernel;
use crate::names::Names;
use crate::observe::NOT_ENABLED;
use crate::pod_events::PodEvents;
use crate::queue::{Queue, Wanted};
use crate::run::Parts;
use crate::state::{Expected, Seen, State};
use crate::store::{Body, Record, Say, Store, StoreError};
use crate::violations::SharedLog;

/// States of a container: its first program has not begun, and it has ended.
const CREATED: i32 = 1;
const STOPPED: i32 = 4;

/// The agent of a node.
pub(crate) struct Agent {
    pub(crate) settings: Settings,
    pub(crate) store: Store,
    pub(crate) state: Mutex<State>,
    pub(crate) changed: Condvar,
    /// What the API server has to be asked for.
    pub(crate) wanted: Queue,
    say: Say,
    /// Detection, if the agent watches its node.
    pub(crate) detection: Option<Detection>,
    /// What becomes Events of pods, if the agent writes some.
    pub(crate) events: Option<Arc<PodEvents>>,
    /// The log of violations, if the agent writes one.
    pub(crate) violations_log: Option<SharedLog>,
    /// Behaviour modelling, if the agent observes containers.
    pub(crate) behavior: Option<Behavior>,
    /// What enforces in the containers of every runtime.
    pub(crate) kernel: Kernel,
    /// Every enforcer, as the agent has found it.
    pub(crate) enforcers: Vec<EnforcerState>,
}

impl Agent {
    /// An agent that knows what the one before kept.
    pub(crate) fn new(settings: Settings, parts: Parts, say: Say) -> Result<Self, StoreError> {
        let store = Store::open(&settings.state, Arc::clone(&say))?;
        let kernel = Kernel::new(parts.kernel);
        let mut state = State {
            index: Index::new(settings.installation.clone()),
            kernel_build: kernel.build().map(str::to_owned),
            ..State::default()
        };
        if let Some(objects) = store.objects() {
            state.index.load(&objects);
        }
        let keys: Vec<ObjectKey> = state.index.keys().collect();
        for key in keys {
            if let Some(body) = store.body(&key) {
                state.bodies.insert(key, body);
            }
        }
        state.records = store.records()?.into_iter().collect();
        state.take_kept();
        match &parts.behavior {
            Some(behavior) => state.recorder = Some(Arc::clone(&behavior.recorder)),
            None => state.behavior_failure = Some(NOT_ENABLED.to_owned()),
        }
        Ok(Self {
            settings,
            store,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wanted: Queue::default(),
            say,
            detection: parts.detection,
            events: parts.events,
            violations_log: parts.violations.log.map(SharedLog::new),
            behavior: parts.behavior,
            kernel,
            enforcers: parts.enforcers,
        })
    }

    /// The state. A thread that panicked left it whole: no method leaves it half changed.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn say(&self, message: String) {
        (self.say)(message);
    }

    /// Wakes who waits for a policy.
    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// Has the API server asked. What finds no room is asked for again when there is.
    pub(crate) fn want(&self, all: impl IntoIterator<Item = Wanted>) {
        let turned_away = all.into_iter().filter(|one| !self.wanted.push(one.clone()));
        let turned_away = u64::try_from(turned_away.count()).unwrap_or(u64::MAX);
        if turned_away > 0 {
            self.state().counters.turned_away += turned_away;
        }
    }

    /// Notes that nothing is heard of the runtime any more: what is known of its containers may be old.
    pub(crate) fn disconnect(&self) {
        self.state().is_connected = false;
    }

    /// Waits until it is known which profiles there are. A container without a profile would pass before.
    pub(crate) fn wait_for_index(&self) {
        let state = self.state();
        let waited = self
            .changed
            .wait_while(state, |state| !state.index.is_usable);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until the container runtime has said which containers there are, or until the time has passed.
    pub(crate) fn wait_for_containers(&self, time: Duration) {
        let has_none = |state: &mut State| state.counters.connections == 0;
        let state = self.state();
        let waited = self.changed.wait_timeout_while(state, time, has_none);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// The profile of a container. If it has a mark without a profile, waits for what the API server says of the policy.
    fn find(&self, pod: &PodSandbox, container: &str) -> Result<Option<Entry>, Undecided> {
        let mut state = self.state();
        let found = state.find(pod, container);
        if !matches!(found, Err(Undecided::NoProfile(_))) {
            return found;
        }
        let marks = state.doubtful_marks(pod);
        drop(state);
        self.want(marks);
        state = self.state();
        let end = state.patience(&pod.namespace, Instant::now());
        loop {
            let found = state.find(pod, container);
            let left = end.saturating_duration_since(Instant::now());
            if !matches!(found, Err(Undecided::NoProfile(_))) {
                return found;
            }
            if left.is_zero() {
                state.give_up(&pod.namespace, end);
                return found;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The current policy of a profile; waits for it for a short time, unless that was in vain a moment ago.
    fn body(&self, entry: &Entry) -> Result<Body, String> {
        if let Some(problem) = &entry.problem {
            return Err(problem.clone());
        }
        let key = &entry.key;
        let begin = Instant::now();
        let mut state = self.state();
        if state.body(key).is_none() {
            drop(state);
            self.want([Wanted::Profile(key.clone())]);
            state = self.state();
        }
        let end = state.patience(&key.namespace, begin);
        loop {
            if let Some(body) = state.body(key) {
                return Ok(body.clone());
            }
            let now = Instant::now();
            let left = end.saturating_duration_since(now);
            if left.is_zero() {
                if end != begin {
                    state.give_up(&key.namespace, now);
                }
                let cause = state.failures.get(key).cloned();
                return Err(cause.unwrap_or_else(|| "the policy is not here yet".to_owned()));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn create(&self, pod: &PodSandbox, container: &Container) -> Answer {
        let entry = match self.find(pod, &container.name) {
            Ok(entry) => entry,
            Err(undecided) => return self.refuse(&undecided.to_string()),
        };
        let Some(entry) = entry else {
            return Answer::Accept;
        };
        if entry.is_modeled() {
            self.observe_new(&entry, container);
            return Answer::Accept;
        }
        let confined = self
            .body(&entry)
            .and_then(|body| self.confine(pod, container, &entry, &body));
        match confined {
            Ok((expected, adjustment)) => {
                self.note_gaps(pod, &container.name, &expected.record);
                let mut state = self.state();
                state.expected.insert(container.id.clone(), expected);
                Answer::Adjust(Box::new(adjustment))
            }
            Err(cause) if entry.fail_mode == FailMode::Open => {
                self.open(&entry, pod, container, &cause);
                Answer::Accept
            }
            Err(cause) => self.refuse(&format!("{}: {cause}", entry.key)),
        }
    }

    /// Checks that a container is what [`Agent::create`] made it before its program starts.
    fn start(&self, pod: &PodSandbox, container: &Container) -> Answer {
        let mut state = self.state();
        let mut expected = state.expected.remove(&container.id);
        let adopted = state.records.get(&container.id).cloned();
        let found = state.find(pod, &container.name);
        drop(state);
        let seen = Seen::of(pod, container);
        let entry = match found {
            Ok(entry) => entry,
            Err(undecided) => return self.refuse(&undecided.to_string()),
        };
        let problem = match (&mut expected, &entry) {
            (None, None) => None,
            (None, Some(entry)) if entry.is_modeled() => {
                self.start_observed(container);
                None
            }
            (None, Some(entry)) => match self.adopt_started(pod, container, entry, adopted) {
                Ok(adopted) => {
                    expected = Some(adopted);
                    None
                }
                Err(problem) => Some(problem),
            },
            (Some(expected), _) => self.check(expected, container).err(),
        };
        if let Some(problem) = &problem {
            match &entry {
                Some(entry) if entry.fail_mode == FailMode::Open => {
                    self.open(entry, pod, container, problem);
                }
                Some(entry) => return self.refuse(&format!("{}: {problem}", entry.key)),
                // Its profile was deleted since it was created.
                None => return self.refuse(problem),
            }
        }
        let confined = expected.filter(|_| problem.is_none());
        if let Some(expected) = &confined
            && let Err(error) = self.store.write_record(&container.id, &expected.record)
        {
            self.say(crate::chain(&error));
        }
        let mut state = self.state();
        state.seen.insert(container.id.clone(), seen);
        if let Some(expected) = confined {
            state.take_record(&container.id, expected.record);
            state.counters.confined += 1;
        }
        state.is_changed = true;
        drop(state);
        // Its policy may have changed since it was created.
        self.wake();
        Answer::Accept
    }

    fn refuse(&self, cause: &str) -> Answer {
        self.state().counters.refused += 1;
        Answer::Refuse(format!("tollgate: {cause}"))
    }

    /// Lets a container run whose policy cannot be enforced. It is told once: at its creation or its start.
    fn open(&self, entry: &Entry, pod: &PodSandbox, container: &Container, cause: &str) {
        let mut state = self.state();
        let is_told = state.opened_late.contains_key(&container.id)
            || state.opened.contains_key(&container.id);
        if is_told {
            return;
        }
        state.counters.opened += 1;
        state.opened.insert(container.id.clone(), cause.to_owned());
        drop(state);
        let (name, key) = (&container.name, &entry.key);
        let note = format!("{name} runs without {key}, whose fail mode is open: {cause}");
        self.note_unenforced(pod, key, &note);
        self.say(note);
    }

    /// Takes all containers that run. Records of others are removed.
    fn synchronize(&self, pods: &[PodSandbox], containers: &[Container]) {
        let by_id: HashMap<&str, &PodSandbox> = pods.iter().map(|pod| (&*pod.id, pod)).collect();
        let mut seen = HashMap::new();
        let (mut stopped, mut created) = (Vec::new(), Vec::new());
        for container in containers {
            let Some(pod) = by_id.get(&*container.pod_sandbox_id) else {
                continue;
            };
            if container.state == CREATED {
                created.push((*pod, container));
            }
            match container.state == STOPPED {
                true => stopped.push(Arc::new(Names::of(pod, container))),
                false => drop(seen.insert(container.id.clone(), Seen::of(pod, container))),
            }
        }
        let mut state = self.state();
        let gone = state.synchronize(seen, &stopped, Instant::now());
        state.counters.connections += 1;
        state.is_connected = true;
        state.is_changed = true;
        let running = state.seen.len();
        let missing = state.missing();
        drop(state);
        self.wake();
        for id in gone {
            self.forget(&id);
        }
        for (pod, container) in created {
            self.confine_created(pod, container);
        }
        self.say(format!(
            "connected to the container runtime, which runs {running} containers"
        ));
        self.want(missing);
    }

    /// Has the kernel confine a container that waits for its start. Whether its first program had not begun by then is known
    /// when the runtime asks for the start: until then it counts as late.
    fn confine_created(&self, pod: &PodSandbox, container: &Container) {
        let state = self.state();
        let is_known = state.records.contains_key(&container.id);
        let entry = state.find(pod, &container.name);
        // Whose policy is not known or not here is decided when it starts.
        let entry = entry.ok().flatten().filter(|entry| !entry.is_modeled());
        let both = entry.and_then(|entry| {
            let body = state.body(&entry.key)?.clone();
            Some((entry, body))
        });
        drop(state);
        let Some((entry, body)) = both.filter(|_| !is_known && container.pid != 0) else {
            return;
        };
        let Ok(mut expected) = self.adopt(pod, container, &entry, &body) else {
            return;
        };
        expected.record.is_late = true;
        if let Err(error) = self.store.write_record(&container.id, &expected.record) {
            self.say(crate::chain(&error));
        }
        let mut state = self.state();
        state.take_record(&container.id, expected.record);
        state.is_changed = true;
        drop(state);
        self.wake();
    }

    /// What is to be true of a container that starts, and that another agent has had created.
    fn adopt_started(
        &self,
        pod: &PodSandbox,
        container: &Container,
        entry: &Entry,
        adopted: Option<Record>,
    ) -> Result<Expected, String> {
        match adopted.filter(|record| record.kernel.is_some()) {
            Some(record) => Ok(Expected {
                record: Record {
                    is_late: false,
                    ..record
                },
                policy: None,
                kernel: None,
            }),
            None => {
                let body = self.body(entry)?;
                self.adopt(pod, container, entry, &body)
            }
        }
    }

    fn end(&self, container: &Container) {
        let mut state = self.state();
        let was_seen = state.end(&container.id);
        state.is_changed |= was_seen;
        drop(state);
        self.forget(&container.id);
    }

    fn forget(&self, id: &str) {
        if let Err(error) = self.store.remove_record(id) {
            self.say(crate::chain(&error));
        }
    }

    /// Fetches what a pod needs before its containers are created.
    fn prefetch(&self, pod: &PodSandbox) {
        let state = self.state();
        let keys = state.index.of_pod(pod).into_iter();
        let keys = keys.filter(|key| state.body(key).is_none());
        let mut wanted: Vec<Wanted> = keys.map(Wanted::Profile).collect();
        wanted.extend(state.doubtful_marks(pod));
        drop(state);
        self.want(wanted);
    }
}

impl Plugin for Agent {
    fn handle(&self, event: &Event) -> Answer {
        let begin = Instant::now();
        if let Some(detection) = &self.detection {
            detection.hear(event);
        }
        let answer = match event {
            Event::Synchronize { pods, containers } => {
                self.synchronize(pods, containers);
                Answer::Accept
            }
            Event::RunPod(pod) => {
                self.prefetch(pod);
                Answer::Accept
            }
            Event::CreateContainer(both) => self.create(&both.0, &both.1),
            Event::StartContainer(both) => self.start(&both.0, &both.1),
            Event::StopContainer(both) | Event::RemoveContainer(both) => {
                self.end(&both.1);
                Answer::Accept
            }
            Event::RemovePod(_) | Event::Shutdown => Answer::Accept,
        };
        let took = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut state = self.state();
        state.counters.slowest = state.counters.slowest.max(took);
        match event {
            Event::CreateContainer(_) => state.counters.creating.add(took),
            Event::StartContainer(_) => state.counters.starting.add(took),
            _ => {}
        }
        answer
    }

    fn too_late(&self, event: &Event) -> Answer {
        self.answer_late(event)
    }

    fn late(&self, event: &Event, answer: Answer) {
        self.take_late(event, &answer);
    }
}
