//! Writes profiles and status, each only if it differs from what is there.

use apiserver::{ApiError, Client, Resource};
use cluster::artifacts::ArtifactId;
use cluster::{
    Cluster, DesiredModel, DesiredProfile, FINALIZER, INSTALLATION, PolicyId, Release,
    keep_condition_times, keep_times,
};
use jiff::Timestamp;
use kinds::annotations::MODELING;
use kinds::crd::Definition;
use kinds::{Condition, ModelStatus, ModelingRun, ObjectKey, PolicyObject, PolicyStatus};
use serde_json::{Value, json};

use crate::events;

/// Label of everything that the operator makes.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

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

    /// Writes what a policy needs. A policy that is gone needs nothing; its profile is an orphan then.
    ///
    /// # Errors
    ///
    /// If the API server refuses. It is to be tried again.
    pub(crate) fn write(&self, cluster: &Cluster, id: &PolicyId) -> Result<(), ApiError> {
        let Some(policy) = cluster.policy(id) else {
            return Ok(());
        };
        // A policy that is being deleted gets no new profile.
        if policy.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        if let Ok(profile) = cluster.profile(id)
            && !cluster.is_written(&profile)
        {
            self.client
                .apply(&resource("ArmorProfile"), &self.profile(policy, &profile))?;
            let event = events::of_profile(policy, &profile, &self.identity);
            events::write(&self.client, &event)?;
        }
        let Some(mut status) = cluster.status(id) else {
            return Ok(());
        };
        keep_times(
            &mut status,
            policy.status.as_ref(),
            &Timestamp::now().strftime("%FT%TZ").to_string(),
        );
        if policy.status.as_ref() != Some(&status) {
            self.write_status(policy, &status)?;
        }
        self.write_profile_status(cluster, id)
    }

    fn write_status(&self, policy: &PolicyObject, status: &PolicyStatus) -> Result<(), ApiError> {
        let resource = resource(&policy.kind);
        let object = json!({
            "apiVersion": policy.api_version,
            "kind": policy.kind,
            "metadata": name(&policy.key()),
            "status": status,
        });
        unless_gone(self.client.apply_status(&resource, &object))?;
        match events::of_change(policy, status, &self.identity) {
            Some(event) => events::write(&self.client, &event),
            None => Ok(()),
        }
    }

    /// Writes a model, if it differs from what is there by more than how long it took. Returns whether it did.
    ///
    /// # Errors
    ///
    /// If the API server refuses. It is to be tried again.
    pub(crate) fn write_model(&self, model: &DesiredModel) -> Result<bool, ApiError> {
        let mut status = model.status.clone();
        let now = Timestamp::now().strftime("%FT%TZ").to_string();
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
        let now = Timestamp::now().strftime("%FT%TZ").to_string();
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

    fn write_profile_status(&self, cluster: &Cluster, id: &PolicyId) -> Result<(), ApiError> {
        let Some((key, status)) = cluster.profile_status_to_write(id) else {
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
