//! What an agent knows, and what it reports of it.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kinds::ObjectKey;
use nri::message::{Container, LinuxSeccomp, PodSandbox};
use policy::Policy;

use crate::behavior::Recorder;
use crate::detect::Known;
use crate::filter::Filter;
use crate::index::{Entry, Index, Undecided};
use crate::names::{Named, Names};
use crate::queue::{Mark, Wanted};
use crate::store::{Body, InKernel, Record, policy_name};
use crate::violations::ViolationCounters;
use crate::workload::Workload;

/// Length of the ids of containers in alerts.
const SHORT: usize = 12;
/// How long an answer waits for a policy that is being fetched. The runtime waits, too, and every container with it.
const PATIENCE: Duration = Duration::from_millis(120);
/// How long no answer waits after one that waited in vain. A runtime asks for one container after the other: each answer
/// that waits holds up all other containers of the node.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);
/// How long it counts for new containers of a pod that the policy of a mark does not exist: one of the same name may be
/// created again.
const GONE: Duration = Duration::from_secs(60);
/// Maximum number of marks whose policies do not exist. Further ones refuse their containers.
const MAX_GONE: usize = 4096;

/// A container that exists.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) pod: PodSandbox,
    pub(crate) names: Arc<Names>,
}

impl Seen {
    pub(crate) fn of(pod: &PodSandbox, container: &Container) -> Self {
        Self {
            pod: pod.clone(),
            names: Arc::new(Names::of(pod, container)),
        }
    }
}

/// How long it is known what a container was that has ended: its last violations are read later.
const LINGER: Duration = Duration::from_secs(60);
/// Maximum number of those.
const MAX_ENDED: usize = 512;

/// What has to be true of a container when it starts.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    pub(crate) record: Record,
    /// The seccomp policy that it has to have.
    pub(crate) policy: Option<LinuxSeccomp>,
    /// What the kernel is to enforce.
    pub(crate) kernel: Option<Policy>,
}

/// What is said of a container that programs of another build confine.
const FOREIGN: &str = "it was confined by another version of the agent, which alone changes its policy and reports its \
                       violations: restart it to change its policy";

/// State of an agent.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) index: Index,
    pub(crate) bodies: HashMap<ObjectKey, Body>,
    /// The filter that was compiled last for a profile, with the hash of its policy.
    pub(crate) filters: HashMap<ObjectKey, (String, Arc<Filter>)>,
    /// Containers that run, by id.
    pub(crate) seen: HashMap<String, Seen>,
    /// Containers that were confined, by id.
    pub(crate) records: HashMap<String, Record>,
    /// Ids of containers by the numbers that the kernel has for them; also of some that have ended.
    pub(crate) numbers: BTreeMap<u32, String>,
    /// Why the kernel has not taken the version of a policy with this hash, for containers that run.
    pub(crate) refusals: HashMap<ObjectKey, (String, String)>,
    /// Build of the programs that the agent uses; `None` if it uses none.
    pub(crate) kernel_build: Option<String>,
    /// Policies of which it is not known whether the kernel has what the records say: an agent before has written these, and may
    /// have been killed before the kernel had it.
    pub(crate) unconfirmed: BTreeSet<ObjectKey>,
    /// Containers between creation and start, by id.
    pub(crate) expected: HashMap<String, Expected>,
    /// Containers that go on without an answer in time, by id, and why they count as not confined.
    pub(crate) opened_late: HashMap<String, &'static str>,
    /// Why containers go on without their policy, whose fail mode is open, by id.
    pub(crate) opened: HashMap<String, String>,
    /// Why the policy of a profile cannot be had.
    pub(crate) failures: BTreeMap<ObjectKey, String>,
    /// When an answer to the runtime last waited in vain for a policy of a namespace. No policy has come since.
    pub(crate) gave_up: BTreeMap<String, Instant>,
    /// Marks of pods whose policies do not exist, and when that was found.
    pub(crate) gone: BTreeMap<Mark, Instant>,
    /// The API server has not said whether the policy of a mark exists.
    pub(crate) asked_in_vain: bool,
    /// The container runtime has given its containers, and the connection stands.
    pub(crate) is_connected: bool,
    /// The report has to be written.
    pub(crate) is_changed: bool,
    /// The index has to be written to disk.
    pub(crate) is_index_changed: bool,
    pub(crate) counters: Counters,
    /// Containers that have ended, and when; the last one last.
    pub(crate) ended: VecDeque<(Instant, Named)>,
    pub(crate) violations: ViolationCounters,
    /// What is known about the sources of detection.
    pub(crate) detection: Known,
    /// What is recorded of containers whose behaviour is modelled; `None` if the agent observes none.
    pub(crate) recorder: Option<Arc<Recorder>>,
    /// Why no container is observed.
    pub(crate) behavior_failure: Option<String>,
    /// Why single containers are not observed, by id.
    pub(crate) unobserved: HashMap<String, String>,
}

/// Counters of the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) confined: u64,
    pub(crate) refused: u64,
    pub(crate) opened: u64,
    pub(crate) too_late: u64,
    pub(crate) connections: u64,
    pub(crate) reports: u64,
    pub(crate) errors: u64,
    /// Questions to the API server that found the queue full.
    pub(crate) turned_away: u64,
    /// Longest time in microseconds that an answer took.
    pub(crate) slowest: u64,
    /// How long answers took before a container is created.
    pub(crate) creating: Durations,
    /// How long answers took before its program starts.
    pub(crate) starting: Durations,
}

/// Upper limits of [`Durations`] in microseconds. The last bucket has what took longer.
pub(crate) const LIMITS: [u64; 14] = [
    50, 100, 150, 200, 300, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000, 150_000, 200_000,
];

/// Durations, counted by size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Durations {
    /// One for each limit, and one for what took longer.
    pub(crate) counts: [u64; LIMITS.len() + 1],
    /// Microseconds.
    pub(crate) sum: u64,
}

impl Durations {
    pub(crate) fn add(&mut self, microseconds: u64) {
        let bucket = LIMITS.iter().position(|limit| microseconds <= *limit);
        self.counts[bucket.unwrap_or(LIMITS.len())] += 1;
        self.sum = self.sum.saturating_add(microseconds);
    }
}

impl State {
    /// Takes the record of a container.
    pub(crate) fn take_record(&mut self, id: &str, record: Record) {
        if let Some(kernel) = record.kernel.as_ref().filter(|kernel| self.is_own(kernel)) {
            self.numbers.insert(kernel.number, id.to_owned());
        }
        self.records.insert(id.to_owned(), record);
    }

    /// Takes what the records of the agent before say of the kernel.
    pub(crate) fn take_kept(&mut self) {
        let all = self.records.iter().filter_map(|(id, record)| {
            let kernel = record.kernel.as_ref()?;
            let is_own = self.is_own(kernel);
            is_own.then(|| (kernel.number, id.clone(), record.key()))
        });
        for (number, id, key) in all.collect::<Vec<_>>() {
            self.numbers.insert(number, id);
            self.unconfirmed.insert(key);
        }
    }

    /// Returns true if the programs that confine a container are those of the agent, which know its number.
    fn is_own(&self, kernel: &InKernel) -> bool {
        self.kernel_build.as_ref() == Some(&kernel.build)
    }

    /// What a reader of the report has to know of a container that programs of another build confine.
    pub(crate) fn foreign_note(&self, record: &Record) -> Option<String> {
        let kernel = record.kernel.as_ref();
        let is_foreign =
            self.kernel_build.is_some() && kernel.is_some_and(|kernel| !self.is_own(kernel));
        is_foreign.then(|| FOREIGN.to_owned())
    }

    /// Forgets numbers of containers of which nothing else is known any more.
    pub(crate) fn retain_numbers(&mut self) {
        let (records, seen, ended) = (&self.records, &self.seen, &self.ended);
        self.numbers.retain(|_, id| {
            let is_known = records.contains_key(id) || seen.contains_key(id);
            is_known || ended.iter().any(|(_, named)| named.names.id == *id)
        });
    }

    /// Profiles whose current policy is here, and is not that of a container in the kernel; with the containers.
    pub(crate) fn outdated(&self) -> BTreeMap<ObjectKey, Vec<String>> {
        let mut outdated: BTreeMap<ObjectKey, Vec<String>> = BTreeMap::new();
        for (id, record) in &self.records {
            let (Some(kernel), Some(seen)) = (&record.kernel, self.seen.get(id)) else {
                continue;
            };
            if !self.is_own(kernel) {
                continue;
            }
            let Ok(Some(entry)) = self.find_running(seen) else {
                continue;
            };
            let is_same = kernel.hash == entry.hash && !self.unconfirmed.contains(&entry.key);
            let is_another = entry.key != record.key();
            if !is_same && !is_another && !entry.is_modeled() && self.body(&entry.key).is_some() {
                let containers = outdated.entry(entry.key.clone()).or_default();
                containers.push(id.clone());
            }
        }
        outdated
    }

    /// Takes a container out that has ended. Returns true if it was known.
    pub(crate) fn end(&mut self, id: &str) -> bool {
        self.expected.remove(id);
        self.opened_late.remove(id);
        self.opened.remove(id);
        self.unobserved.remove(id);
        if let Some(recorder) = &self.recorder {
            recorder.end(id);
        }
        let seen = self.seen.remove(id);
        if let Some(seen) = &seen {
            self.linger(&seen.names, Instant::now());
        }
        self.records.remove(id);
        seen.is_some()
    }

    /// Keeps for a while what is known of a container that has ended.
    fn linger(&mut self, names: &Arc<Names>, now: Instant) {
        self.forget_ended(now);
        while self.ended.len() >= MAX_ENDED {
            self.ended.pop_front();
        }
        let named = self.describe(names);
        self.ended.push_back((now, named));
    }

    /// Forgets containers that ended long ago.
    pub(crate) fn forget_ended(&mut self, now: Instant) {
        let has_gone = |since: Instant| now.saturating_duration_since(since) >= LINGER;
        while self
            .ended
            .front()
            .is_some_and(|(since, _)| has_gone(*since))
        {
            self.ended.pop_front();
        }
    }

    /// Takes all containers that run, and those that have ended and whose names the runtime still says. Returns ids of
    /// records that are of no container any more.
    pub(crate) fn synchronize(
        &mut self,
        running: HashMap<String, Seen>,
        stopped: &[Arc<Names>],
        now: Instant,
    ) -> Vec<String> {
        let before = std::mem::replace(&mut self.seen, running);
        let gone = before.values().map(|seen| &seen.names);
        let gone: Vec<_> = gone
            .filter(|names| !self.seen.contains_key(&names.id))
            .chain(stopped)
            .collect();
        for names in gone {
            let is_known = self.ended.iter().any(|(_, one)| one.names.id == names.id);
            if !is_known {
                self.linger(names, now);
            }
        }
        self.expected.clear();
        let seen = &self.seen;
        self.opened_late.retain(|id, _| seen.contains_key(id));
        self.opened.retain(|id, _| seen.contains_key(id));
        let gone = self
            .records
            .keys()
            .filter(|id| !self.seen.contains_key(*id));
        let gone: Vec<String> = gone.cloned().collect();
        for id in &gone {
            self.records.remove(id);
        }
        gone
    }

    /// What is known of the container whose id begins like this; `None` if it is not known which one that is.
    pub(crate) fn named(&mut self, short: &str, now: Instant) -> Option<Named> {
        self.forget_ended(now);
        if short.len() < SHORT {
            return None;
        }
        let mut running = self.seen.keys().filter(|id| id.starts_with(short));
        match (running.next(), running.next()) {
            (Some(id), None) => self.seen.get(id).map(|seen| self.describe(&seen.names)),
            (Some(_), Some(_)) => None,
            (None, _) => {
                let mut ended = self.ended.iter().rev();
                let found = ended.find(|(_, named)| named.names.id.starts_with(short));
                found.map(|(_, named)| named.clone())
            }
        }
    }

    /// The workload of a pod that has containers, or had some a moment ago; `None` if it is not known.
    pub(crate) fn workload(&self, uid: &str) -> Option<Workload> {
        let ended = self.ended.iter().map(|(_, named)| &named.names);
        let mut all = self.seen.values().map(|seen| &seen.names).chain(ended);
        let found = all.find(|names| names.pod.uid == uid)?;
        found.workload.clone()
    }

    fn describe(&self, names: &Arc<Names>) -> Named {
        let record = self.records.get(&names.id);
        let profile = record.map(|record| ObjectKey {
            namespace: record.namespace.clone(),
            name: record.name.clone(),
        });
        let policy = profile.as_ref().and_then(|key| self.index.policy_of(key));
        Named {
            names: Arc::clone(names),
            profile,
            policy,
        }
    }

    /// Why the agent does not do its work.
    ///
    /// # Errors
    ///
    /// If it knows no profiles yet, or hears of no containers.
    pub(crate) fn health(&self) -> Result<(), String> {
        match (self.index.is_usable, self.is_connected) {
            (false, _) => Err("the API server has not listed the profiles yet".to_owned()),
            (true, false) => Err("the container runtime is not connected".to_owned()),
            (true, true) => Ok(()),
        }
    }

    /// Returns true if what the state says of profiles is all that there is, and is so now.
    pub(crate) fn can_report(&self) -> bool {
        self.index.is_complete && self.is_connected
    }

    /// The profile of a container that is created or started now.
    ///
    /// # Errors
    ///
    /// If it cannot be told which profile it is.
    pub(crate) fn find(
        &self,
        pod: &PodSandbox,
        container: &str,
    ) -> Result<Option<Entry>, Undecided> {
        let is_gone = |mark: &str| {
            let found = self.gone.get(&mark_of(pod, mark));
            found.is_some_and(|since| since.elapsed() < GONE)
        };
        self.index.find_without(pod, container, is_gone)
    }

    /// The profile of a container that exists. That it had none was found when it was created.
    pub(crate) fn find_running(&self, seen: &Seen) -> Result<Option<Entry>, Undecided> {
        let is_gone = |mark: &str| self.gone.contains_key(&mark_of(&seen.pod, mark));
        self.index
            .find_without(&seen.pod, &seen.names.name, is_gone)
    }

    /// Until when an answer may wait. One namespace's policies that do not come must not take the wait from the containers
    /// of another.
    pub(crate) fn patience(&mut self, namespace: &str, begin: Instant) -> Instant {
        self.gave_up
            .retain(|_, gave_up| begin.saturating_duration_since(*gave_up) < PAUSE);
        match self.gave_up.contains_key(namespace) {
            true => begin,
            false => begin + PATIENCE,
        }
    }

    /// Notes that an answer has waited in vain. The pause does not become longer by those that did not wait.
    pub(crate) fn give_up(&mut self, namespace: &str, now: Instant) {
        self.gave_up.entry(namespace.to_owned()).or_insert(now);
    }

    /// Notes that the policy of a mark does not exist.
    pub(crate) fn note_gone(&mut self, mark: Mark) {
        let pods = self.seen.values().map(|seen| pod_of(&seen.pod));
        let pods: BTreeSet<_> = pods.collect();
        self.gone
            .retain(|mark, since| since.elapsed() < GONE || pods.contains(&mark.pod));
        if self.gone.len() < MAX_GONE {
            self.gone.insert(mark, Instant::now());
        }
    }

    /// Marks of a pod of which it is to be asked whether their policies exist.
    pub(crate) fn doubtful_marks(&self, pod: &PodSandbox) -> Vec<Wanted> {
        let marks = self.index.unknown_marks(pod);
        let marks = marks.iter().map(|mark| mark_of(pod, mark));
        marks.map(Wanted::Mark).collect()
    }

    /// Removes all that is known of a profile; true if it was known.
    pub(crate) fn forget(&mut self, key: &ObjectKey) -> bool {
        self.bodies.remove(key);
        self.failures.remove(key);
        self.filters.remove(key);
        self.refusals.remove(key);
        self.index.delete(key)
    }

    /// Takes the body of a profile, which the API server has given.
    pub(crate) fn take_body(&mut self, key: &ObjectKey, body: Body) {
        self.bodies.insert(key.clone(), body);
        self.failures.remove(key);
        self.gave_up.clear();
    }

    /// The body of a profile, if it is the current one.
    pub(crate) fn body(&self, key: &ObjectKey) -> Option<&Body> {
        let entry = self.index.get(key)?;
        self.bodies.get(key).filter(|body| body.hash == entry.hash)
    }

    /// Names of the policy files that containers may need.
    pub(crate) fn policy_names(&self) -> BTreeSet<String> {
        let current = self
            .index
            .entries()
            .map(|entry| policy_name(&entry.key.namespace, &entry.key.name, &entry.hash));
        let created = self.expected.values().map(|expected| &expected.record);
        let used = self.records.values().chain(created);
        current.chain(used.map(Record::policy_name)).collect()
    }

    /// What is to be asked about running containers: profiles whose body is not here, and marks without a profile.
    pub(crate) fn missing(&self) -> BTreeSet<Wanted> {
        self.missing_of(self.seen.values())
    }

    /// The same after a profile has changed, of which these are the entries before and after: of the containers that it is, or
    /// was, about. A list of all profiles would take the time of profiles, squared, by containers otherwise.
    pub(crate) fn missing_after(&self, entries: [Option<Entry>; 2]) -> BTreeSet<Wanted> {
        // What could not be fetched is tried again at every change.
        let has_failed = self.asked_in_vain || !self.failures.is_empty();
        let about = |seen: &&Seen| {
            let mut entries = entries.iter().flatten();
            has_failed || entries.any(|entry| entry.may_be_of(&seen.pod))
        };
        self.missing_of(self.seen.values().filter(about))
    }

    fn missing_of<'s>(&self, containers: impl Iterator<Item = &'s Seen>) -> BTreeSet<Wanted> {
        let mut missing = BTreeSet::new();
        for seen in containers {
            match self.find_running(seen) {
                Ok(Some(entry)) if entry.problem.is_none() && self.body(&entry.key).is_none() => {
                    missing.insert(Wanted::Profile(entry.key.clone()));
                }
                Ok(_) | Err(Undecided::CutName { .. }) => {}
                Err(Undecided::NoProfile(_)) => missing.extend(self.doubtful_marks(&seen.pod)),
            }
        }
        missing
    }
}

/// A pod, by namespace, name and unique id.
fn pod_of(pod: &PodSandbox) -> (String, String, String) {
    (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
}

/// A mark of a pod.
fn mark_of(pod: &PodSandbox, profile: &str) -> Mark {
    Mark {
        pod: pod_of(pod),
        profile: profile.to_owned(),
    }
}
