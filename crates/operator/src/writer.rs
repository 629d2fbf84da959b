//! Writes profiles and status, each only if it differs from what is there.

use apiserver::{ApiError, Client, Resource};
use cluster::artifacts::ArtifactId;
use cluster::{
    Cluster, DesiredModel, DesiredProfile, FINALIZER, INSTALLATION, PolicyClaim, PolicyId,
    ProfileError, Release, inactive_condition, keep_condition_times, keep_times,
};
use jiff::Timestamp;
use kinds::annotations::MODELING;
use kinds::crd::Definition;
use kinds::{Condition, ModelStatus, ModelingRun, ObjectKey, PolicyObject, PolicyStatus};
use serde_json::{Value, json};

use crate::events;

/// Label of everything that the operator makes.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// Whether everything was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    All,
    /// Somebody has changed the policy meanwhile. It is to be tried again with what it is now.
    Conflict,
}

pub(crate) struct Writer {
    client: Client,
    installation: String,
    /// Name of this operator.
    identity: String,
}

impl Writer {
    pub(crate) fn new(client: Client, installation: &str, identity: &str) -> Self {
        Self {
            client,
            installation: installation.to_owned(),
            identity: identity.to_owned(),
        }
    }

    /// Writes what a policy needs. A policy that is gone needs nothing; its profile is an orphan then. A policy on which another
    /// installation acts gets a condition that says so, and nothing else.
    ///
    /// # Errors
    ///
    /// If the API server refuses. It is to be tried again.
    pub(crate) fn write(&self, cluster: &Cluster, id: &PolicyId) -> Result<Written, ApiError> {
        let Some(policy) = cluster.policy(id) else {
            return Ok(Written::All);
        };
        // A policy that is being deleted gets no new profile.
        if policy.metadata.deletion_timestamp.is_some() {
            return Ok(Written::All);
        }
        let claim = cluster.claim(id);
        if let PolicyClaim::Other(_) = claim {
            return self.write_inactive(policy, cluster.inactive(id));
        }
        let profile = cluster.profile(id);
        let write_status = || self.write_status(cluster, id, &profile);
        // Of a free policy, the status is the claim: it comes before the profile.
        if claim == PolicyClaim::Free && write_status()? == Written::Conflict {
            return Ok(Written::Conflict);
        }
        if let Ok(profile) = &profile
            && !cluster.is_written(profile)
        {
            self.client
                .apply(&resource("ArmorProfile"), &self.profile(policy, profile))?;
            let event = events::of_profile(policy, profile, &self.identity);
            events::write(&self.client, &event)?;
        }
        if claim == PolicyClaim::Free {
            // What is known of the policy is older than what was just written.
            return Ok(Written::All);
        }
        if write_status()? == Written::Conflict {
            return Ok(Written::Conflict);
        }
        self.write_profile_status(cluster, id, &profile)?;
        Ok(Written::All)
    }

    /// Writes the status of a policy if it differs, and if nobody has changed the policy since: its claim may be another
    /// installation's now.
    fn write_status(
        &self,
        cluster: &Cluster,
        id: &PolicyId,
        profile: &Result<DesiredProfile, ProfileError>,
    ) -> Result<Written, ApiError> {
        let status = cluster.status_with(id, profile);
        let (Some(policy), Some(mut status)) = (cluster.policy(id), status) else {
            return Ok(Written::All);
        };
        let old = policy.status.as_ref();
        keep_times(&mut status, old, &now());
        let mut others = old.map_or_else(Vec::new, |old| old.conditions.clone());
        let was_inactive = self.own_condition(policy).is_some();
        others.retain(|one| !cluster::CONDITIONS.contains(&&*one.kind));
        let mut whole = status.clone();
        whole.conditions.extend(others);
        let is_same = old.is_some_and(|old| is_same(old, &whole));
        if !is_same {
            let written = self.apply_status(&self.client, policy, json!(status))?;
            if written == Written::Conflict {
                return Ok(written);
            }
            for event in events::of_change(policy, &status, &self.identity) {
                events::write(&self.client, &event)?;
            }
        }
        if is_same && was_inactive {
            return self.apply_status(&self.inactive_client(), policy, json!({}));
        }
        Ok(Written::All)
    }

    /// Says by a condition that this installation does not act on a policy, under a name of its own as a writer, so that
    /// nothing of the other one's status is changed.
    fn write_inactive(
        &self,
        policy: &PolicyObject,
        condition: Option<Condition>,
    ) -> Result<Written, ApiError> {
        let Some(mut condition) = condition else {
            return Ok(Written::All);
        };
        let before = self.own_condition(policy);
        let known: Vec<Condition> = before.into_iter().cloned().collect();
        keep_condition_times(std::slice::from_mut(&mut condition), &known, &now());
        if before == Some(&condition) {
            return Ok(Written::All);
        }
        let mut status = json!({ "conditions": [condition] });
        if policy.status.is_none() {
            // The definition requires both.
            status["profileName"] = json!("");
            status["ready"] = json!(false);
        }
        let written = self.apply_status(&self.inactive_client(), policy, status)?;
        if written == Written::All && before.is_none() {
            let event = events::of_inactive(policy, &condition, &self.identity);
            events::write(&self.client, &event)?;
        }
        Ok(written)
    }

    /// The condition of a policy by which this installation has said that it does not act.
    fn own_condition<'p>(&self, policy: &'p PolicyObject) -> Option<&'p Condition> {
        let kind = inactive_condition(&self.installation);
        let status = policy.status.as_ref()?;
        status.conditions.iter().find(|one| one.kind == kind)
    }

    fn inactive_client(&self) -> Client {
        let name = format!("tollgate-operator-{}", self.installation);
        self.client.with_manager(&name)
    }

    fn apply_status(
        &self,
        client: &Client,
        policy: &PolicyObject,
        status: Value,
    ) -> Result<Written, ApiError> {
        let mut metadata = name(&policy.key());
        metadata["resourceVersion"] = json!(policy.metadata.resource_version);
        let object = json!({
            "apiVersion": policy.api_version,
            "kind": policy.kind,
            "metadata": metadata,
            "status": status,
        });
        match client.apply_status(&resource(&policy.kind), &object) {
            Err(error) if error.code() == Some(409) => Ok(Written::Conflict),
            other => unless_gone(other).map(|()| Written::All),
        }
    }

    /// Writes a model, if it differs from what is there by more than how long it took. Returns whether it did.
    ///
    /// # Errors
    ///
    /// If the API server refuses. It is to be tried again.
    pub(crate) fn write_model(&self, model: &DesiredModel) -> Result<bool, ApiError> {
        let mut status = model.status.clone();
        let now = now();
        keep_model_times(&mut status, model.stored.as_ref(), &now);
        let is_status_new =
            model.stored.as_ref().map(without_times) != Some(without_times(&status));
        if !model.is_object_new && !is_status_new {
            return Ok(false);
        }
        let definition = definition("ArmorProfileModel");
        let mut object = model.object.clone();
        object["apiVersion"] = definition.api_version().into();
        object["kind"] = definition.kind.into();
        // The data first: a status that says that they are complete must not come before them. That the run is over comes last:
        // nodes then forget what they have seen, and who writes after a failure needs it again.
        if model.is_object_new {
            let mut first = object.clone();
            let run = ModelingRun {
                is_over: false,
                ..model.run
            };
            first["metadata"]["annotations"][MODELING] = run.to_string().into();
            self.client.apply(&Resource::of(definition), &first)?;
        }
        let with_status = json!({
            "apiVersion": definition.api_version(),
            "kind": definition.kind,
            "metadata": name(&model.key),
            "status": status,
        });
        unless_gone(
            self.client
                .apply_status(&Resource::of(definition), &with_status),
        )?;
        if model.is_object_new && model.run.is_over {
            self.client.apply(&Resource::of(definition), &object)?;
        }
        Ok(true)
    }

    /// Writes the status of a Rulesfile or Config, if it differs from what is there.
    ///
    /// # Errors
    ///
    /// If the API server refuses. It is to be tried again.
    pub(crate) fn write_artifact(
        &self,
        cluster: &Cluster,
        id: &ArtifactId,
    ) -> Result<(), ApiError> {
        let Some(mut status) = cluster.artifact_status(id) else {
            return Ok(());
        };
        let old = cluster.stored_artifact_status(id);
        let conditions = old.map_or(&[][..], |old| &old.conditions);
        let now = now();
        keep_condition_times(&mut status.conditions, conditions, &now);
        if old == Some(&status) {
            return Ok(());
        }
        let kind = id.kind.name();
        let object = json!({
            "apiVersion": definition(kind).api_version(),
            "kind": kind,
            "metadata": name(&id.key),
            "status": status,
        });
        unless_gone(self.client.apply_status(&resource(kind), &object))
    }

    fn write_profile_status(
        &self,
        cluster: &Cluster,
        id: &PolicyId,
        profile: &Result<DesiredProfile, ProfileError>,
    ) -> Result<(), ApiError> {
        let Some((key, status)) = cluster.profile_status_to_write(id, profile) else {
            return Ok(());
        };
        let object = json!({
            "apiVersion": definition("ArmorProfile").api_version(),
            "kind": "ArmorProfile",
            "metadata": name(&key),
            "status": status,
        });
        unless_gone(self.client.apply_status(&resource("ArmorProfile"), &object))
    }

    /// The ArmorProfile, which its policy owns.
    fn profile(&self, policy: &PolicyObject, profile: &DesiredProfile) -> Value {
        let mut annotations = profile.notes.clone();
        annotations.insert(INSTALLATION.to_owned(), self.installation.clone());
        if profile.starts_run {
            let run = ModelingRun {
                // A clock before 1970 is not set: the run is over at once, and its model says that nothing was observed.
                start: u64::try_from(Timestamp::now().as_second()).unwrap_or(0),
                minutes: profile.spec.behavior_modeling.duration,
                is_over: false,
            };
            annotations.insert(MODELING.to_owned(), run.to_string());
        }
        json!({
            "apiVersion": definition("ArmorProfile").api_version(),
            "kind": "ArmorProfile",
            "metadata": {
                "name": profile.name,
                "namespace": profile.namespace,
                "labels": { MANAGED_BY: "tollgate" },
                "annotations": annotations,
                "finalizers": [FINALIZER],
                "ownerReferences": [{
                    "apiVersion": policy.api_version,
                    "kind": policy.kind,
                    "name": policy.metadata.name,
                    "uid": policy.metadata.uid,
                    "controller": true,
                }],
            },
            "spec": profile.spec,
        })
    }

    /// Lets a profile go that is being deleted.
    ///
    /// # Errors
    ///
    /// If the API server refuses.
    pub(crate) fn release(&self, release: &Release) -> Result<(), ApiError> {
        let Release { key, uid, .. } = release;
        let resource = resource("ArmorProfile");
        let left = &release.finalizers;
        unless_gone(self.client.set_finalizers(&resource, key, uid, left))?;
        // A namespace that is being deleted takes no Event.
        let _ = events::write(&self.client, &events::of_release(release, &self.identity));
        Ok(())
    }

    /// Writes an Event: marks of a profile that goes stay in workloads. A namespace that is being deleted takes none.
    pub(crate) fn note_marks_left(&self, release: &Release, cause: &str) {
        let event = events::of_marks_left(release, cause, &self.identity);
        let _ = events::write(&self.client, &event);
    }

    /// Deletes a profile whose policy is gone.
    ///
    /// # Errors
    ///
    /// If the API server refuses.
    pub(crate) fn delete(&self, key: &ObjectKey, uid: &str) -> Result<(), ApiError> {
        unless_gone(self.client.delete(&resource("ArmorProfile"), key, uid))
    }
}

/// Gives each condition of a model the time of its last change.
fn keep_model_times(new: &mut ModelStatus, old: Option<&ModelStatus>, now: &str) {
    for one in &mut new.conditions {
        let is_same =
            |old: &Condition| old.kind == one.condition.kind && old.status == one.condition.status;
        let mut known = old.into_iter().flat_map(|old| &old.conditions);
        let before = known.find(|old| old.node_name == one.node_name && is_same(&old.condition));
        let time = before.and_then(|before| before.condition.last_transition_time.clone());
        one.condition.last_transition_time = Some(time.unwrap_or_else(|| now.to_owned()));
    }
}

/// A status without what changes while nothing new is observed.
fn without_times(status: &ModelStatus) -> ModelStatus {
    ModelStatus {
        observed_seconds: 0,
        nothing_new_seconds: 0,
        ..status.clone()
    }
}

/// The time, as conditions have it.
fn now() -> String {
    Timestamp::now().strftime("%FT%TZ").to_string()
}

/// Returns true if two statuses are the same but for the order of their conditions.
fn is_same(one: &PolicyStatus, other: &PolicyStatus) -> bool {
    let sorted = |status: &PolicyStatus| {
        let mut status = status.clone();
        status
            .conditions
            .sort_by(|one, other| one.kind.cmp(&other.kind));
        status
    };
    sorted(one) == sorted(other)
}

fn definition(kind: &str) -> &'static Definition {
    Definition::of_kind(kind).expect("the kind is in the table")
}

fn resource(kind: &str) -> Resource {
    Resource::of(definition(kind))
}

fn name(key: &ObjectKey) -> Value {
    match key.namespace.is_empty() {
        true => json!({ "name": key.name }),
        false => json!({ "name": key.name, "namespace": key.namespace }),
    }
}

/// An object that was deleted meanwhile needs nothing any more: an event about it is on its way.
fn unless_gone(result: Result<Value, ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error) if error.code() != Some(404) => Err(error),
        _ => Ok(()),
    }
}
