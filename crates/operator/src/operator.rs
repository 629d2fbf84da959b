//! The loop of the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{io, mem};

use apiserver::{ApiError, Client};
use cluster::artifacts::ArtifactId;
use cluster::{Cluster, Event, ObjectKind, PolicyId, Release};
use jiff::{SignedDuration, Timestamp};

use crate::lease::{self, Lease, LeaseError};
use crate::metrics::Metrics;
use crate::restarts::{Restarts, Undone};
use crate::silence::Silences;
use crate::sources::{Notice, Source, Sources};
use crate::webhook::{self, Webhook, WebhookError, WebhookSettings};
use crate::writer::{Writer, Written};

/// Events that wait at most. A thread that has more waits, and with it its connection.
const QUEUE: usize = 1024;
/// How long events are collected before something is written.
const COLLECT: Duration = Duration::from_millis(50);
/// Maximum number of events between two rounds of writing.
const BATCH: usize = 10_000;

/// How long a profile that is deleted waits for nodes that have not seen it.
const DELETION: SignedDuration = SignedDuration::from_mins(2);

/// Settings of an operator.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the installation.
    pub namespace: String,
    /// Name of this operator among those of the installation, such as that of its pod.
    pub identity: String,
    /// How long the lease of a leader lasts.
    pub lease: Duration,
    /// Least time between two writes for one policy. What nodes report comes in thousands.
    pub pause: Duration,
    /// Age at which the report of a node is worth nothing.
    pub silence: Duration,
    /// Nodes observe containers, so that policies may have the mode BehaviorModeling.
    pub behavior_modeling: bool,
    /// Least time between two writes of a model whose run is not over.
    pub model_pause: Duration,
    /// Restart existing workloads of policies that ask for it.
    pub update_workloads: bool,
    /// Least time between two restarts for a policy.
    pub restart_pause: Duration,
    /// How long a workload that lost the marks of a deleted policy may go without a further new pod, before the others keep theirs.
    pub undo_patience: Duration,
}

impl Settings {
    /// The usual times.
    #[must_use]
    pub fn new(namespace: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            lease: Duration::from_secs(15),
            pause: Duration::from_secs(1),
            silence: cluster::SILENCE,
            behavior_modeling: false,
            model_pause: Duration::from_secs(15),
            update_workloads: false,
            restart_pause: Duration::from_secs(5),
            undo_patience: Duration::from_secs(120),
        }
    }
}

/// Why an operator ends.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OperatorError {
    /// It is not the leader any more.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
}

/// An operator.
#[derive(Debug)]
pub struct Operator {
    client: Client,
    settings: Settings,
    metrics: Arc<Metrics>,
}

impl Operator {
    /// An operator that has not begun.
    #[must_use]
    pub fn new(client: Client, settings: Settings) -> Self {
        let metrics = Arc::default();
        Self {
            client,
            settings,
            metrics,
        }
    }

    /// What it counts.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Gives up the lease, for the next operator to take it at once. The caller ends the program then.
    ///
    /// # Errors
    ///
    /// If the API server does not answer; the lease expires then.
    pub fn release(&self) -> Result<(), ApiError> {
        let Settings {
            namespace,
            identity,
            ..
        } = &self.settings;
        lease::release(&self.client, namespace, identity)
    }

    /// Serves the webhook of the installation, whether this operator is the leader or not. `say` gets messages for people.
    ///
    /// # Errors
    ///
    /// If the address cannot be used, or there are no threads.
    pub fn serve_webhook(
        &self,
        settings: WebhookSettings,
        say: impl Fn(String) + Send + 'static,
    ) -> Result<Webhook, WebhookError> {
        let namespace = &self.settings.namespace;
        webhook::start(&self.client, namespace, settings, &self.metrics, say)
    }

    /// Waits until this operator is the leader, and then acts for as long as it is. `say` gets messages for people.
    ///
    /// # Errors
    ///
    /// Always in the end: when it is not the leader any more. Another one starts from what the API server has.
    pub fn run(&self, mut say: impl FnMut(String)) -> Result<(), OperatorError> {
        let Settings {
            namespace,
            identity,
            lease,
            ..
        } = &self.settings;
        let lease = Lease::acquire(&self.client, namespace, identity, *lease);
        say(format!(
            "leader of the installation in {namespace}: {identity}"
        ));
        self.metrics.leader.store(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::sync_channel(QUEUE);
        let mut sources = Sources::new(self.client.clone(), namespace, sender);
        let modeling = self.settings.behavior_modeling;
        let models = modeling.then_some(Source::Models);
        for source in Source::ALWAYS.into_iter().chain(models) {
            sources.start(source).map_err(OperatorError::Thread)?;
        }
        let round = Round {
            cluster: Cluster::new(namespace, modeling)
                .with_workload_updates(self.settings.update_workloads),
            restarts: Restarts::new(
                self.client.clone(),
                self.settings.restart_pause,
                self.settings.undo_patience,
            ),
            writer: Writer::new(self.client.clone(), namespace, identity),
            models_written: BTreeMap::new(),
            sources,
            listed: BTreeSet::new(),
            pending: BTreeSet::new(),
            pending_artifacts: BTreeSet::new(),
            next_artifacts: Instant::now(),
            written: BTreeMap::new(),
            generations: BTreeMap::new(),
            silences: Silences::default(),
            settings: &self.settings,
            metrics: &self.metrics,
        };
        round.run(&receiver, lease, &mut say)
    }
}

/// The state of a leader.
struct Round<'a> {
    cluster: Cluster,
    writer: Writer,
    sources: Sources,
    listed: BTreeSet<Source>,
    /// Policies for which something may have to be written.
    pending: BTreeSet<PolicyId>,
    /// Rulesfiles and Configs whose status may have to be written.
    pending_artifacts: BTreeSet<ArtifactId>,
    /// When to write their status again.
    next_artifacts: Instant,
    /// When something was written for a policy.
    written: BTreeMap<PolicyId, Instant>,
    /// Of which generation of the policy that was.
    generations: BTreeMap<PolicyId, Option<i64>>,
    /// When its model was written.
    models_written: BTreeMap<PolicyId, Instant>,
    restarts: Restarts,
    silences: Silences,
    settings: &'a Settings,
    metrics: &'a Metrics,
}

impl Round<'_> {
    fn run(
        mut self,
        receiver: &Receiver<Notice>,
        mut lease: Lease<'_>,
        say: &mut impl FnMut(String),
    ) -> Result<(), OperatorError> {
        let mut renewal = Instant::now() + lease.pause();
        loop {
            self.collect(receiver, say);
            if Instant::now() >= renewal {
                lease.renew()?;
                renewal = Instant::now() + lease.pause();
                let silent = self.silences.silent(Instant::now(), self.settings.silence);
                silent
                    .into_iter()
                    .for_each(|event| self.cluster.apply(event));
            }
            self.watch_what_is_needed()?;
            self.write(renewal, say);
            self.write_artifacts(renewal, say);
            self.restart(renewal, say);
        }
    }

    /// Takes the events of a short time.
    fn collect(&mut self, receiver: &Receiver<Notice>, say: &mut impl FnMut(String)) {
        let end = Instant::now() + COLLECT;
        for _ in 0..BATCH {
            let left = end.saturating_duration_since(Instant::now());
            match receiver.recv_timeout(left) {
                Ok(notice) => self.take(notice, say),
                Err(RecvTimeoutError::Timeout) => break,
                // `sources` has a sender: this does not happen while it lives.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if self.settings.behavior_modeling {
            // A clock before 1970 is not set: no run ends by it.
            let now = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
            self.cluster.apply(Event::Time(now));
        }
        self.pending.extend(self.cluster.take_changes());
        self.pending_artifacts
            .extend(self.cluster.take_changed_artifacts());
    }

    fn take(&mut self, notice: Notice, say: &mut impl FnMut(String)) {
        match notice {
            Notice::Event(event) => {
                Metrics::add(&self.metrics.events);
                match &event {
                    Event::Report(report) => {
                        self.silences.see(report, Instant::now(), Timestamp::now());
                    }
                    Event::ReportGone(node) => self.silences.forget(node),
                    _ => {}
                }
                self.cluster.apply(event);
            }
            Notice::Listed(source) => {
                self.listed.insert(source);
                let Some(kind) = source.kind() else { return };
                if Source::of(kind)
                    .iter()
                    .all(|source| self.listed.contains(source))
                {
                    self.cluster.apply(Event::Synced(kind));
                }
            }
            Notice::Failed(source, error) => {
                Metrics::add(&self.metrics.errors);
                say(format!("cannot watch {source:?}: {error}"));
            }
            Notice::Unreadable(source, key, cause) => {
                say(format!("cannot read {key} of {source:?}: {cause}"));
            }
        }
    }

    /// Services and Pods are watched when the first policy is about them.
    fn watch_what_is_needed(&mut self) -> Result<(), OperatorError> {
        for kind in self.cluster.needs() {
            for source in Source::of(kind) {
                self.sources.start(*source).map_err(OperatorError::Thread)?;
            }
        }
        Ok(())
    }

    /// Writes the status of Rulesfiles and Configs, until the lease has to be renewed.
    fn write_artifacts(&mut self, renewal: Instant, say: &mut impl FnMut(String)) {
        if self.pending_artifacts.is_empty() || Instant::now() < self.next_artifacts {
            return;
        }
        self.next_artifacts = Instant::now() + self.settings.pause;
        for id in mem::take(&mut self.pending_artifacts) {
            if Instant::now() >= renewal {
                self.pending_artifacts.insert(id);
                continue;
            }
            if let Err(error) = self.writer.write_artifact(&self.cluster, &id) {
                Metrics::add(&self.metrics.errors);
                let kind = id.kind.name();
                say(format!(
                    "cannot write the status of {kind} {}: {error}",
                    id.key
                ));
                self.pending_artifacts.insert(id);
            }
        }
    }

    /// Writes for policies whose pause is over, until the lease has to be renewed.
    fn write(&mut self, renewal: Instant, say: &mut impl FnMut(String)) {
        // Before all profiles are known, none is known to be missing.
        if !self.cluster.is_synced(ObjectKind::Profiles)
            || !self.cluster.is_synced(ObjectKind::Policies)
        {
            return;
        }
        // Without its model, a run that is over would be taken for one that goes on.
        if self.settings.behavior_modeling && !self.cluster.is_synced(ObjectKind::Models) {
            return;
        }
        for id in longest_waiting(mem::take(&mut self.pending), &self.written) {
            let generation = (self.cluster.policy(&id)).and_then(|one| one.metadata.generation);
            // A change of the policy is written at once, and what nodes report of it after a pause.
            let is_changed = self.generations.get(&id) != Some(&generation);
            let last = self.written.get(&id);
            let waits =
                !is_changed && last.is_some_and(|last| last.elapsed() < self.settings.pause);
            if waits || Instant::now() >= renewal {
                self.pending.insert(id);
                continue;
            }
            if self.cluster.policy(&id).is_none() {
                self.written.remove(&id);
                self.generations.remove(&id);
                self.models_written.remove(&id);
                continue;
            }
            self.written.insert(id.clone(), Instant::now());
            self.generations.insert(id.clone(), generation);
            Metrics::add(&self.metrics.writes);
            let written = self.writer.write(&self.cluster, &id);
            let written = written.and_then(|written| self.write_model(&id).map(|()| written));
            match written {
                Ok(Written::All) => {}
                Ok(Written::Conflict) => {
                    self.pending.insert(id);
                }
                Err(error) => {
                    Metrics::add(&self.metrics.errors);
                    say(format!(
                        "cannot write the profile, model or status of {}: {error}",
                        id.key
                    ));
                    self.pending.insert(id);
                }
            }
        }
        self.let_go(say);
    }

    /// Writes the model of a policy, unless that was done a moment ago: nodes report often what is new.
    fn write_model(&mut self, id: &PolicyId) -> Result<(), ApiError> {
        let Some(model) = self.cluster.model(id) else {
            return Ok(());
        };
        let last = self.models_written.get(id);
        let waits = last.is_some_and(|last| last.elapsed() < self.settings.model_pause);
        if waits && !model.run.is_over {
            self.pending.insert(id.clone());
            return Ok(());
        }
        if self.writer.write_model(&model)? {
            self.models_written.insert(id.clone(), Instant::now());
        }
        Ok(())
    }

    /// Restarts workloads that ran before their policies.
    fn restart(&mut self, renewal: Instant, say: &mut impl FnMut(String)) {
        if !self.settings.update_workloads {
            return;
        }
        let (events, failures) = self.restarts.step(&self.cluster, renewal);
        for event in events {
            self.cluster.apply(event);
        }
        for failure in failures {
            Metrics::add(&self.metrics.errors);
            say(failure);
        }
    }

    /// Deletes profiles whose policies are gone, and lets those go that all nodes have seen deleted.
    fn let_go(&mut self, say: &mut impl FnMut(String)) {
        for (key, uid) in self.cluster.orphans() {
            if let Err(error) = self.writer.delete(&key, &uid) {
                say(format!("cannot delete the profile {key}: {error}"));
            }
        }
        let now = Timestamp::now();
        let is_overdue = |since: &str| {
            let since: Option<Timestamp> = since.parse().ok();
            since.is_some_and(|since| now.duration_since(since) > DELETION)
        };
        for release in self.cluster.released(is_overdue) {
            let key = &release.key;
            match self.undo_restarts(&release) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    say(format!(
                        "cannot take the marks of {key} out of workloads: {error}"
                    ));
                    continue;
                }
            }
            match self.writer.release(&release) {
                Ok(()) => self.restarts.forget(&release),
                Err(error) => say(format!("cannot let the profile {key} go: {error}")),
            }
        }
    }

    /// Takes the marks of a profile that goes out of workloads. Returns true when there is none left, or none that is taken out: the
    /// marks of a policy that does not exist say nothing to nodes.
    fn undo_restarts(&mut self, release: &Release) -> Result<bool, ApiError> {
        if release.restarted.is_none() || !self.settings.update_workloads {
            return Ok(true);
        }
        let undone = self.restarts.undo(release)?;
        if let Undone::Stopped(cause) = &undone {
            self.writer.note_marks_left(release, cause);
        }
        Ok(undone != Undone::Later)
    }
}

/// Policies in the order in which they are to be written: those first for which nothing was written, and then those that wait for
/// longest. In another order, some that change all the time would keep the others from being written at all.
pub(crate) fn longest_waiting(
    pending: BTreeSet<PolicyId>,
    written: &BTreeMap<PolicyId, Instant>,
) -> Vec<PolicyId> {
    let mut all: Vec<PolicyId> = pending.into_iter().collect();
    all.sort_by_key(|id| written.get(id).copied());
    all
}
