//! Rolling restarts of workloads that ran before their policy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apiserver::{ApiError, Client, Resource};
use cluster::{
    Cluster, Event, PolicyId, Progress, RESTARTED_KINDS, Release, Restart, RestartState,
    undo_restart,
};
use jiff::Timestamp;
use serde_json::Value;

/// When workloads are looked at again that do not replace their pods by themselves.
const SECOND_LOOK: Duration = Duration::from_secs(60);

/// Makes restarts, one workload of a policy at a time.
pub(crate) struct Restarts {
    client: Client,
    /// Least time between two looks at the workloads of all policies.
    pause: Duration,
    next: Instant,
    /// Hashes of policies whose workloads are all restarted. They are not looked at again, or only at that time if some do not
    /// replace their pods by themselves.
    done: BTreeMap<PolicyId, (String, Option<Instant>)>,
}

impl Restarts {
    pub(crate) fn new(client: Client, pause: Duration) -> Self {
        Self {
            client,
            pause,
            next: Instant::now(),
            done: BTreeMap::new(),
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
        self.done.retain(|id, _| cluster.policy(id).is_some());
        for (id, policy) in cluster.policies() {
            if !policy.spec.update_existing_workloads || Instant::now() >= renewal {
                continue;
            }
            let Ok(restart) = cluster.restart(id) else {
                continue;
            };
            let is_done = self.done.get(id).is_some_and(|(hash, again)| {
                *hash == restart.hash && again.is_none_or(|again| Instant::now() < again)
            });
            let Some(resource) = resource(&restart.kind).filter(|_| !is_done) else {
                continue;
            };
            match self.step_of(cluster, id, &restart, &resource) {
                Ok(state) => {
                    let again = match state.progress {
                        Progress::Restarted => Some(None),
                        Progress::NotRolled => Some(Some(Instant::now() + SECOND_LOOK)),
                        _ => None,
                    };
                    if let Some(again) = again {
                        self.done.insert(id.clone(), (restart.hash.clone(), again));
                    }
                    events.push(Event::Restarts(id.clone(), state));
                }
                Err(error) => failures.push(format!(
                    "cannot restart the workloads of {}: {error}",
                    id.key
                )),
            }
        }
        (events, failures)
    }

    fn step_of(
        &self,
        cluster: &Cluster,
        id: &PolicyId,
        restart: &Restart,
        resource: &Resource,
    ) -> Result<RestartState, ApiError> {
        let namespace = restart.namespace.as_deref();
        let step = self.list(resource, namespace).and_then(|workloads| {
            let now = Timestamp::now().strftime("%FT%TZ").to_string();
            let step = cluster.step(id, restart, &workloads, &now);
            if let Some((key, patch)) = &step.patch {
                unless_changed(self.client.merge(resource, key, patch))?;
            }
            Ok(step.state)
        });
        match step {
            Err(error) if error.code() == Some(403) => Ok(RestartState {
                hash: restart.hash.clone(),
                progress: Progress::NotAllowed,
                message: error.to_string(),
            }),
            other => other,
        }
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

    /// Takes the marks of a profile that goes out of the next workload that was restarted for it. Returns true if there is no
    /// further one.
    ///
    /// # Errors
    ///
    /// If the API server refuses. It is to be tried again, unless the operator lacks the right.
    pub(crate) fn undo(&self, release: &Release) -> Result<bool, ApiError> {
        let Some((kind, namespace)) = &release.restarted else {
            return Ok(true);
        };
        let Some(resource) = resource(kind) else {
            return Ok(true);
        };
        let workloads = self.list(&resource, namespace.as_deref())?;
        let mut patches = workloads
            .iter()
            .filter_map(|one| undo_restart(&release.key.name, one));
        match patches.next() {
            None => Ok(true),
            Some((key, patch)) => {
                unless_changed(self.client.merge(&resource, &key, &patch))?;
                Ok(false)
            }
        }
    }
}

/// The path of a kind of workloads; `None` if it cannot be restarted.
fn resource(kind: &str) -> Option<Resource> {
    let found = RESTARTED_KINDS.iter().find(|(known, _)| *known == kind);
    found.map(|(_, plural)| Resource::new("apps", "v1", plural))
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

/// A workload that was changed or deleted meanwhile is looked at again.
fn unless_changed(result: Result<Value, ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if !matches!(error.code(), Some(404 | 409)) => Err(error),
        _ => Ok(()),
    }
}
