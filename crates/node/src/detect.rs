//! Detection: rules and configuration of the cluster for the engine that watches the node, and facts about its pods.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use apiserver::{ApiError, Change, Client, Resource, watch};
use cluster::artifacts::{
    AcceptedSources, ArtifactEvent, ArtifactId, ArtifactKind, ArtifactState, Artifacts, Desired,
    Problem, Settled,
};
use container::registry::Registry;
use kinds::crd::Definition;
use kinds::{DetectionState, NodeArtifact, ObjectKey};
use nri::Event;
use nri::message::{Container, PodSandbox};
use serde_json::Value;

use crate::agent::Agent;
use crate::chain;
use crate::facts::{of_container, of_pod};
use crate::store::{StoreError, read_sources};

/// Changes that wait at most. A thread that has more waits, and with it its connection.
const QUEUE: usize = 256;
/// How long changes are collected before the rules are compiled.
const COLLECT: Duration = Duration::from_millis(100);
/// Maximum number of changes that are collected.
const BATCH: usize = 10_000;
/// How often ConfigMaps and the labels of the node are read: an account that may get an object by its name, and list none,
/// cannot watch it.
const POLL: Duration = Duration::from_secs(10);
/// Wait before sources that could not be put in force are tried again.
const RETRY: Duration = Duration::from_secs(60);

/// What cannot be done without the node's object.
const LABELS: &str = "cannot read the labels of the node";

/// Figures of a detector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DetectorFigures {
    /// Rules in force that are enabled.
    pub rules: u64,
    /// Alerts so far.
    pub alerts: u64,
    /// Events that were lost.
    pub lost: u64,
}

/// The engine that watches the node.
pub trait Detector: Send + Sync {
    /// Compiles sources without putting them in force.
    ///
    /// # Errors
    ///
    /// What is wrong with them, by text.
    fn check(&self, sources: &AcceptedSources) -> Result<(), Vec<Problem>>;

    /// Puts sources in force, all or nothing.
    ///
    /// # Errors
    ///
    /// Why they are not in force; then what was in force before still is.
    fn replace(&self, sources: &AcceptedSources) -> Result<(), String>;

    /// What it counts.
    fn figures(&self) -> DetectorFigures;
}

/// Detection on a node.
#[derive(Clone)]
pub struct Detection {
    /// The engine, with the sources that it has begun with; or why there is none.
    pub engine: Result<(Arc<dyn Detector>, AcceptedSources), String>,
    /// What the engine knows about containers.
    pub containers: Arc<Registry>,
}

/// The sources that were in force when an agent with this folder ended; none if there is no such agent.
///
/// # Errors
///
/// If the file cannot be read.
pub fn last_sources(state: &Path) -> Result<AcceptedSources, StoreError> {
    read_sources(state)
}

/// What is known and reported about detection.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Every object that is for the node; `None` before that is known.
    states: Option<Vec<ArtifactState>>,
    /// Objects that were deleted and stay in force.
    kept: Vec<ArtifactId>,
    /// Why the sources are not in force.
    unusable: Option<String>,
}

impl Detection {
    /// What the engine counts; `None` if there is none.
    pub(crate) fn figures(&self) -> Option<DetectorFigures> {
        let (detector, _) = self.engine.as_ref().ok()?;
        Some(detector.figures())
    }

    /// The part of the report about detection.
    pub(crate) fn report(&self, known: &Known) -> DetectionState {
        let (running, rules, reason) = match &self.engine {
            Err(cause) => (false, 0, cause.clone()),
            Ok((detector, _)) => {
                // Empty: there is nothing to say.
                let reason = known.unusable.clone().unwrap_or_default();
                (true, detector.figures().rules, reason)
            }
        };
        let states = known.states.iter().flatten();
        DetectionState {
            running,
            reason,
            rules,
            artifacts: states.map(artifact).collect(),
            kept: known.kept.iter().map(named).collect(),
        }
    }

    /// Notes what the runtime says of pods and containers. It waits for the answer, so the engine knows a container before
    /// its first program starts.
    pub(crate) fn hear(&self, event: &Event) {
        match event {
            Event::Synchronize { pods, containers } => self.replace_all(pods, containers),
            Event::RunPod(pod) => self.add_pod(pod),
            // Both: a pod of an earlier connection has its addresses only now.
            Event::CreateContainer(both) | Event::StartContainer(both) => {
                self.add_pod(&both.0);
                self.add(&both.0, &both.1);
            }
            Event::RemoveContainer(both) => self.containers.end(&both.1.id),
            Event::RemovePod(pod) => self.containers.end(&pod.id),
            // Its program may still run.
            Event::StopContainer(_) | Event::Shutdown => {}
        }
    }

    fn add(&self, pod: &PodSandbox, container: &Container) {
        let facts = of_container(pod, container);
        self.containers.insert(&container.id, facts);
    }

    /// The sandbox of a pod is a container, too.
    fn add_pod(&self, pod: &PodSandbox) {
        self.containers.insert(&pod.id, of_pod(pod));
    }

    /// Takes all pods and containers that there are.
    fn replace_all(&self, pods: &[PodSandbox], containers: &[Container]) {
        let by_id: BTreeMap<&str, &PodSandbox> = pods.iter().map(|pod| (&*pod.id, pod)).collect();
        let ids: BTreeSet<&str> = containers
            .iter()
            .map(|one| &*one.id)
            .chain(by_id.keys().copied())
            .collect();
        self.containers.retain(|id| ids.contains(id));
        for pod in pods {
            self.add_pod(pod);
        }
        for container in containers {
            if let Some(pod) = by_id.get(&*container.pod_sandbox_id) {
                self.add(pod, container);
            }
        }
    }
}

fn named(id: &ArtifactId) -> String {
    format!("{} {}", id.kind.name(), id.key)
}

fn artifact(state: &ArtifactState) -> NodeArtifact {
    let (reason, message) = match &state.problem {
        None => ("Programmed", String::new()),
        Some(refusal) => {
            let reason = match refusal.is_unresolved {
                true => "ReferenceResolutionFailed",
                false => "ProgramFailed",
            };
            let earlier = match state.is_earlier_in_force {
                true => "; an earlier version is in force",
                false => "",
            };
            (reason, format!("{}{earlier}", refusal.message))
        }
    };
    NodeArtifact {
        kind: state.id.kind.name().to_owned(),
        namespace: state.id.key.namespace.clone(),
        name: state.id.key.name.clone(),
        generation: state.generation,
        programmed: state.problem.is_none(),
        reason: reason.to_owned(),
        message,
    }
}

/// Starts the threads that follow the sources of the node.
pub(crate) fn start(
    agent: &Arc<Agent>,
    client: &Client,
    detection: &Detection,
) -> std::io::Result<()> {
    let Ok((detector, in_force)) = detection.engine.clone() else {
        return Ok(());
    };
    let (sender, receiver) = mpsc::sync_channel(QUEUE);
    for kind in ArtifactKind::ALL {
        let (client, sender) = (client.clone(), sender.clone());
        let namespace = agent.settings.installation.clone();
        let name = format!("watch-{}", kind.name().to_lowercase());
        thread::Builder::new()
            .name(name)
            .spawn(move || watch_kind(&client, kind, &namespace, &sender))?;
    }
    let follower = Follower {
        agent: Arc::clone(agent),
        client: client.clone(),
        detector,
        in_force,
        artifacts: Artifacts::default(),
        last: None,
        retry: None,
        said: BTreeMap::new(),
    };
    thread::Builder::new()
        .name("sources".to_owned())
        .spawn(move || follower.run(&receiver))
        .map(drop)
}

fn watch_kind(
    client: &Client,
    kind: ArtifactKind,
    namespace: &str,
    sender: &SyncSender<(ArtifactKind, Change)>,
) {
    let definition = Definition::of_kind(kind.name()).expect("the kind is in the table");
    let resource = Resource::of(definition).in_namespace(namespace);
    watch(client, &resource, |change| {
        match sender.send((kind, change)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
}

/// Puts the sources of the node in force.
struct Follower {
    agent: Arc<Agent>,
    client: Client,
    detector: Arc<dyn Detector>,
    in_force: AcceptedSources,
    artifacts: Artifacts,
    /// What was wanted when the sources were compiled last.
    last: Option<Desired>,
    /// When to try again what could not be put in force.
    retry: Option<Instant>,
    /// The last complaint about each thing, which is not repeated.
    said: BTreeMap<String, String>,
}

impl Follower {
    fn run(mut self, receiver: &Receiver<(ArtifactKind, Change)>) {
        loop {
            let end = Instant::now() + POLL;
            self.read_named(true);
            loop {
                self.settle();
                let left = end.saturating_duration_since(Instant::now());
                match receiver.recv_timeout(left) {
                    Ok(change) => {
                        self.take(change);
                        self.collect(receiver);
                        self.read_named(false);
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    // The threads that watch have ended, which they do not by themselves.
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }

    /// Takes the changes of a short time.
    fn collect(&mut self, receiver: &Receiver<(ArtifactKind, Change)>) {
        let end = Instant::now() + COLLECT;
        for _ in 0..BATCH {
            let left = end.saturating_duration_since(Instant::now());
            let Ok(change) = receiver.recv_timeout(left) else {
                return;
            };
            self.take(change);
        }
    }

    fn take(&mut self, (kind, change): (ArtifactKind, Change)) {
        match change {
            Change::Applied(object) => self.artifacts.apply(ArtifactEvent::Object(kind, object)),
            Change::Deleted(key) => {
                let id = ArtifactId { kind, key };
                self.artifacts.apply(ArtifactEvent::Gone(id));
            }
            Change::Listed => {
                self.said.remove(&watching(kind));
                self.artifacts.apply(ArtifactEvent::Synced(kind));
            }
            Change::Failed(error) => {
                self.complain(&watching(kind), &error);
            }
        }
    }

    /// Reads the labels of the node, and the ConfigMaps that objects refer to; with `again` also those that are known. What
    /// cannot be read stays as it was known.
    fn read_named(&mut self, again: bool) {
        if again || !self.artifacts.has_labels() {
            self.read_labels();
        }
        let names = self.artifacts.config_maps();
        let names = names
            .into_iter()
            .filter(|name| again || !self.artifacts.has_config_map(name));
        let names: Vec<String> = names.map(str::to_owned).collect();
        let maps = Resource::new("", "v1", "configmaps");
        for name in names {
            let key = ObjectKey {
                namespace: self.agent.settings.installation.clone(),
                name: name.clone(),
            };
            match self.client.get(&maps, &key) {
                Ok(map) => {
                    self.said
                        .remove(&format!("cannot read the ConfigMap {key}"));
                    let data = texts(&map["data"]);
                    let event = ArtifactEvent::ConfigMap(name, Some(data));
                    self.artifacts.apply(event);
                }
                Err(error) if error.code() == Some(404) => {
                    self.artifacts.apply(ArtifactEvent::ConfigMap(name, None));
                }
                Err(error) if is_about_object(error.code()) => {
                    let why = chain(&error);
                    let event = ArtifactEvent::UnreadableConfigMap(name, why);
                    self.artifacts.apply(event);
                }
                Err(error) => self.complain(&format!("cannot read the ConfigMap {key}"), &error),
            }
        }
    }

    fn read_labels(&mut self) {
        let nodes = Resource::new("", "v1", "nodes");
        let key = ObjectKey {
            namespace: String::new(),
            name: self.agent.settings.node.clone(),
        };
        match self.client.get(&nodes, &key) {
            Ok(node) => {
                self.said.remove(LABELS);
                let labels = texts(&node["metadata"]["labels"]);
                self.artifacts.apply(ArtifactEvent::Labels(labels));
            }
            Err(error) => self.complain(LABELS, &error),
        }
    }

    /// Compiles what is wanted if that is new, and puts it in force.
    fn settle(&mut self) {
        let Some(desired) = self.artifacts.desired() else {
            return;
        };
        let is_due = self.retry.is_some_and(|retry| Instant::now() >= retry);
        if self.last.as_ref() == Some(&desired) && !is_due {
            return;
        }
        self.retry = None;
        let settled = desired.settle(&self.in_force, |sources| self.detector.check(sources));
        let (settled, is_whole) = put_in_force(&*self.detector, &self.in_force, settled);
        if !is_whole {
            self.retry = Some(Instant::now() + RETRY);
        }
        if settled.unusable.is_none() && settled.accepted != self.in_force {
            self.adopt(&settled);
        }
        self.last = Some(desired);
        self.tell(settled);
    }

    fn adopt(&mut self, settled: &Settled) {
        self.in_force = settled.accepted.clone();
        if let Err(error) = self.agent.store.write_sources(&self.in_force) {
            self.agent.say(chain(&error));
        }
    }

    /// Reports what came of the sources.
    fn tell(&self, settled: Settled) {
        for state in &settled.states {
            if let Some(refusal) = &state.problem {
                let said = format!("{} is not in force: {}", named(&state.id), refusal.message);
                self.agent.say(said);
            }
        }
        for id in &settled.kept {
            self.agent.say(format!(
                "{} was deleted and stays in force: what is left cannot be used without it",
                named(id)
            ));
        }
        if let Some(cause) = &settled.unusable {
            self.agent
                .say(format!("the rules in force stay as they were: {cause}"));
        }
        let mut state = self.agent.state();
        state.detection = Known {
            states: Some(settled.states),
            kept: settled.kept,
            unusable: settled.unusable,
        };
        state.is_changed = true;
    }

    fn complain(&mut self, what: &str, error: &ApiError) {
        self.agent.state().counters.errors += 1;
        let cause = chain(error);
        if self.said.get(what) != Some(&cause) {
            self.agent.say(format!("{what}: {cause}"));
            self.said.insert(what.to_owned(), cause);
        }
    }
}

/// Puts sources in force; returns what is, and whether that is all that compiles. A Config whose outputs cannot be opened keeps
/// no rules out of force.
fn put_in_force(
    detector: &dyn Detector,
    before: &AcceptedSources,
    settled: Settled,
) -> (Settled, bool) {
    if settled.unusable.is_some() {
        return (settled, false);
    }
    if settled.accepted == *before {
        return (settled, true);
    }
    let Err(cause) = detector.replace(&settled.accepted) else {
        return (settled, true);
    };
    if let Some(rest) = settled.without_changed_configs(before, &cause) {
        let is_same = rest.accepted == *before;
        let is_usable = || detector.check(&rest.accepted).is_ok();
        if is_same || is_usable() && detector.replace(&rest.accepted).is_ok() {
            return (rest, false);
        }
    }
    (settled.refused(before, &cause), false)
}

/// Whether an answer of the API server is one about the object that was asked for, such as that the agent may not read it, and
/// not about the agent (401) or the moment (429): it counts, and keeps no other object waiting.
fn is_about_object(code: Option<u16>) -> bool {
    const NOT_KNOWN: u16 = 401;
    const TOO_MANY: u16 = 429;
    code.is_some_and(|code| (400..500).contains(&code) && ![NOT_KNOWN, TOO_MANY].contains(&code))
}

/// What cannot be done where a kind cannot be watched.
fn watching(kind: ArtifactKind) -> String {
    format!("cannot watch {}s", kind.name())
}

/// The texts of a mapping; other values are none.
fn texts(value: &Value) -> BTreeMap<String, String> {
    let entries = value.as_object().into_iter().flatten();
    let texts = entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
