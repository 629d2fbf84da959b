//! Rolling restarts of workloads that ran before their policy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use apiserver::{ApiError, Client, Resource};
use cluster::{
    Cluster, Event, Patch, PolicyClaim, PolicyId, Progress, RESTARTED_KINDS, Release, Replacement,
    Restart, RestartState, replacement, undo_restart,
};
use jiff::Timestamp;
use kinds::ObjectKey;
use serde_json::Value;

/// When workloads are looked at again that do not replace their pods by themselves, or refuse a restart.
const SECOND_LOOK: Duration = Duration::from_secs(60);

/// Number of workloads that may refuse to be changed before the others are left for later: the lease has to be renewed.
const MAX_REFUSED: usize = 8;

/// Makes restarts, one workload of a policy at a time.
pub(crate) struct Restarts {
    client: Client,
    /// Least time between two looks at the workloads of all policies.
    pause: Duration,
    next: Instant,
    /// Policies whose workloads are not looked at before a time.
    later: BTreeMap<PolicyId, (Version, Instant)>,
    /// Workloads that this process has patched for a policy.
    patched: BTreeMap<PolicyId, (Version, BTreeSet<String>)>,
    /// How long a workload that lost its marks may go without a further new pod.
    patience: Duration,
    /// Profiles whose marks are taken out of workloads, by unique id.
    undone: BTreeMap<String, Undoing>,
}

/// How far the marks of a profile are taken out of workloads.
#[derive(Debug)]
struct Undoing {
    /// When the workloads were looked at last.
    looked: Instant,
    /// The workload out of which they were taken last.
    last: Option<ObjectKey>,
    /// How far this one was at most.
    reached: [u64; 2],
    /// When there was something new: the first look, marks that were taken out, a pod that was replaced.
    since: Instant,
    /// No further workload is changed.
    is_over: bool,
}

/// What was done about the marks of a profile.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// There are none, or none that would be taken out: this was said before.
    All,
    /// They are taken out of further workloads later.
    Later,
    /// They stay in the other workloads, for this cause.
    Stopped(String),
}

/// Unique id of a policy, hash and generation of its restart.
type Version = (Option<String>, String, Option<i64>);

impl Restarts {
    pub(crate) fn new(client: Client, pause: Duration, patience: Duration) -> Self {
        Self {
            client,
            pause,
            patience,
            next: Instant::now(),
            later: BTreeMap::new(),
            patched: BTreeMap::new(),
            undone: BTreeMap::new(),
        }
    }

    /// Makes the next step of each policy that asks for restarts, until the lease has to be renewed. Returns what is to be told
    /// to the cluster, and failures.
    pub(crate) fn step(
        &mut self,
        cluster: &Cluster,
        renewal: Instant,
    ) -> (Vec<Event>, Vec<String>) {
        let (mut events, mut failures) = (Vec::new(), Vec::new());
        if Instant::now() < self.next {
            return (events, failures);
        }
        self.next = Instant::now() + self.pause;
        self.later.retain(|id, _| cluster.policy(id).is_some());
        // The profile of a policy that is gone or another installation's takes its marks along.
        self.patched
            .retain(|id, _| cluster.policy(id).is_some() && cluster.claim(id) == PolicyClaim::Ours);
        for (id, policy) in cluster.policies() {
            if !policy.spec.update_existing_workloads || Instant::now() >= renewal {
                continue;
            }
            let Ok(restart) = cluster.restart(id) else {
                continue;
            };
            let version = (
                policy.metadata.uid.clone(),
                restart.hash.clone(),
                restart.generation,
            );
            let waits = self
                .later
                .get(id)
                .is_some_and(|(known, again)| *known == version && Instant::now() < *again);
            let Some(resource) = resource(&restart.kind).filter(|_| !waits) else {
                continue;
            };
            match self.step_of(cluster, id, &restart, (&resource, version)) {
                Ok(state) => events.push(Event::Restarts(id.clone(), state)),
                Err(error) => failures.push(format!(
                    "cannot restart the workloads of {}: {error}",
                    id.key
                )),
            }
        }
        (events, failures)
    }

    fn step_of(
        &mut self,
        cluster: &Cluster,
        id: &PolicyId,
        restart: &Restart,
        (resource, version): (&Resource, Version),
    ) -> Result<RestartState, ApiError> {
        let workloads = match self.list(resource, restart.namespace.as_deref()) {
            Err(error) if error.code() == Some(403) => {
                return Ok(restart.state(Progress::NotAllowed, error.to_string()));
            }
            other => other?,
        };
        let patched = self.patched.entry(id.clone()).or_default();
        // A change of the generation alone takes no annotation out.
        if (&patched.0.0, &patched.0.1) != (&version.0, &version.1) {
            *patched = (version.clone(), BTreeSet::new());
        }
        let now = Timestamp::now().strftime("%FT%TZ").to_string();
        let step = cluster.step(id, restart, &workloads, &patched.1, &now);
        let mut looks_later = step.state.progress == Progress::NotRolled;
        let state = match step.patch {
            None => step.state,
            Some(Patch {
                key,
                workload,
                body,
            }) => match self.client.merge(resource, &key, &body) {
                Ok(_) => {
                    patched.1.insert(workload);
                    step.state
                }
                Err(error) if is_changed(&error) => step.state,
                Err(error) => {
                    looks_later = true;
                    refused(restart, &key, error)?
                }
            },
        };
        if looks_later {
            let again = Instant::now() + SECOND_LOOK;
            self.later.insert(id.clone(), (version, again));
        }
        Ok(state)
    }

    fn list(&self, resource: &Resource, namespace: Option<&str>) -> Result<Vec<Value>, ApiError> {
        let mut all = Vec::new();
        let resource = match namespace {
            Some(namespace) => resource.clone().in_namespace(namespace),
            None => resource.clone(),
        };
        self.client.list(&resource, |one| all.push(lean(one)))?;
        Ok(all)
    }

    /// Takes the marks of a profile that goes out of the next workload that was restarted for it, which replaces its pods again: one
    /// workload after the other, each when the one before has its new pods. If that one gets none, the marks stay in the others.
    ///
    /// # Errors
    ///
    /// If the API server refuses, and there is no workload that can be changed. It is to be tried again.
    pub(crate) fn undo(&mut self, release: &Release) -> Result<Undone, ApiError> {
        let restarted = release.restarted.as_ref();
        let found =
            restarted.and_then(|(kind, namespace)| Some((kind, namespace, resource(kind)?)));
        let Some((kind, namespace, resource)) = found else {
            return Ok(Undone::All);
        };
        let now = Instant::now();
        let known = self.undone.get(&release.uid);
        if known.is_some_and(|known| known.is_over) {
            return Ok(Undone::All);
        }
        if known.is_some_and(|known| now.duration_since(known.looked) < self.pause) {
            return Ok(Undone::Later);
        }
        let undoing = self.undone.entry(release.uid.clone());
        let undoing = undoing.or_insert_with(|| Undoing::new(now));
        undoing.looked = now;
        let since = undoing.since;
        let undone = match self.list(&resource, namespace.as_deref()) {
            Ok(workloads) => self.undo_next(release, kind, &resource, &workloads),
            Err(error) => Err(error),
        };
        match undone {
            Err(error) if is_right_missing(&error) || since.elapsed() > self.patience => {
                Ok(Undone::Stopped(error.to_string()))
            }
            other => other,
        }
        .inspect(|undone| {
            if *undone != Undone::Later
                && let Some(undoing) = self.undone.get_mut(&release.uid)
            {
                undoing.is_over = true;
            }
        })
    }

    fn undo_next(
        &mut self,
        release: &Release,
        kind: &str,
        resource: &Resource,
        workloads: &[Value],
    ) -> Result<Undone, ApiError> {
        let Some(undoing) = self.undone.get_mut(&release.uid) else {
            return Ok(Undone::Later);
        };
        if let Some(wait) = undoing.waits(kind, workloads, self.patience) {
            return Ok(wait);
        }
        let patches = workloads
            .iter()
            .filter_map(|one| undo_restart(&release.key.name, one));
        let mut refusals = Vec::new();
        for (key, patch) in patches {
            match self.client.merge(resource, &key, &patch) {
                Ok(_) => {
                    undoing.last = Some(key);
                    (undoing.reached, undoing.since) = ([0, 0], Instant::now());
                    return Ok(Undone::Later);
                }
                Err(error) if is_changed(&error) => return Ok(Undone::Later),
                Err(error) if error.code().is_none() || is_right_missing(&error) => {
                    return Err(error);
                }
                // One that refuses keeps no other one from being changed.
                Err(error) => refusals.push(error),
            }
            if refusals.len() >= MAX_REFUSED {
                break;
            }
        }
        match refusals.into_iter().next() {
            Some(refusal) => Err(refusal),
            None => Ok(Undone::All),
        }
    }

    /// Forgets a profile that was let go.
    pub(crate) fn forget(&mut self, release: &Release) {
        self.undone.remove(&release.uid);
    }
}

impl Undoing {
    fn new(now: Instant) -> Self {
        Self {
            looked: now,
            last: None,
            reached: [0, 0],
            since: now,
            is_over: false,
        }
    }

    /// What is to be done before marks are taken out of a further workload; `None` if nothing is.
    fn waits(&mut self, kind: &str, workloads: &[Value], patience: Duration) -> Option<Undone> {
        let last = self.last.as_ref()?;
        let workload = workloads.iter().find(|one| key_of(one) == *last)?;
        let cause = match replacement(kind, workload) {
            Replacement::Over => return None,
            Replacement::Stalled => "its controller has given up".to_owned(),
            Replacement::Running(reached) => {
                if reached > self.reached {
                    (self.reached, self.since) = (reached, Instant::now());
                }
                if self.since.elapsed() <= patience {
                    return Some(Undone::Later);
                }
                format!("it has no further one after {} s", patience.as_secs())
            }
        };
        Some(Undone::Stopped(format!(
            "{last} has lost them and does not get its new pods: {cause}"
        )))
    }
}

/// The path of a kind of workloads; `None` if it cannot be restarted.
fn resource(kind: &str) -> Option<Resource> {
    let found = RESTARTED_KINDS.iter().find(|(known, _)| *known == kind);
    found.map(|(_, plural)| Resource::new("apps", "v1", plural))
}

fn key_of(workload: &Value) -> ObjectKey {
    // The API server gives each workload both; an empty one is none that was changed.
    let text = |key: &str| workload["metadata"][key].as_str().unwrap_or_default();
    ObjectKey {
        namespace: text("namespace").to_owned(),
        name: text("name").to_owned(),
    }
}

/// A workload without its containers: a list of all of a cluster is long.
fn lean(mut workload: Value) -> Value {
    if let Some(template) = workload
        .pointer_mut("/spec/template")
        .and_then(Value::as_object_mut)
    {
        template.remove("spec");
    }
    if let Some(metadata) = workload["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    workload
}

/// Returns true if a workload was changed or deleted meanwhile: it is looked at again.
fn is_changed(error: &ApiError) -> bool {
    matches!(error.code(), Some(404 | 409))
}

/// Returns true if the operator lacks a right; a webhook that refuses one workload has the same code.
fn is_right_missing(error: &ApiError) -> bool {
    let ApiError::Status { code, message, .. } = error else {
        return false;
    };
    let is_right =
        message.contains(" cannot patch resource ") || message.contains(" cannot list resource ");
    *code == 403 && is_right && !message.contains("admission webhook")
}

/// What is said of a workload whose restart the API server refuses.
///
/// # Errors
///
/// If the refusal is not about the workload.
pub(crate) fn refused(
    restart: &Restart,
    key: &ObjectKey,
    error: ApiError,
) -> Result<RestartState, ApiError> {
    if is_right_missing(&error) {
        return Ok(restart.state(Progress::NotAllowed, error.to_string()));
    }
    match error {
        ApiError::Status {
            code,
            reason,
            message,
            ..
        } if !matches!(code, 401 | 429 | 503) => {
            let message = format!(
                "the API server refuses to restart {key}, and no further workload is restarted: {code} {reason} {message}"
            );
            Ok(restart.state(Progress::Stalled, message))
        }
        other => Err(other),
    }
}
