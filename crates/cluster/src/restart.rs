//! Rolling restarts of workloads that ran before their policy: the field `updateExistingWorkloads`.
//!
//! A restart is an annotation in the template of a workload, with the hash of the policy as it is written. A workload that has
//! the hash is not restarted again, whatever addresses the policy is expanded to. One workload is restarted at a time, and the
//! next one when its pods are available: a policy that keeps pods from starting stops at the first.

use std::collections::BTreeSet;

use kinds::annotations::{
    FAIL_MODE, FailMode, OF_POLICY, RESTARTED_AT, RESTARTED_FOR, VARMOR_RESTARTED_AT,
};
use kinds::{Condition, ConditionStatus, ObjectKey, PolicyObject, Scope, policy_hash};
use serde_json::{Map, Value, json};

use crate::marks::{Workload, is_for};
use crate::rollout::{Rollout, rollout};
use crate::status::condition;
use crate::{Cluster, ObjectKind, PolicyClaim, PolicyId};

/// Length of a hash in an annotation.
const SHORT: usize = 16;

/// The condition of a policy about restarts.
const UPDATED: &str = "WorkloadsUpdated";
/// What is between the numbers and the policy in the message of restarts that are concluded.
const FOR: &str = " had to be restarted for ";

/// Kinds of workloads that can be restarted, with their names in paths.
pub const RESTARTED_KINDS: [(&str, &str); 3] = [
    ("Deployment", "deployments"),
    ("StatefulSet", "statefulsets"),
    ("DaemonSet", "daemonsets"),
];

/// Kinds of objects of which all have to be known before anything is restarted.
const NEEDED: [ObjectKind; 4] = [
    ObjectKind::Policies,
    ObjectKind::Profiles,
    ObjectKind::Nodes,
    ObjectKind::Reports,
];

/// Workloads that are to be restarted for a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// Kind of the workloads.
    pub kind: String,
    /// Namespace of the workloads; `None` for all.
    pub namespace: Option<String>,
    /// Name of the profile.
    pub profile: String,
    /// Hash of the policy as it is written.
    pub hash: String,
    /// Generation of the policy.
    pub generation: Option<i64>,
}

/// How far the restarts for a policy are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartState {
    /// Hash of [`Restart`].
    pub hash: String,
    /// Generation of [`Restart`].
    pub generation: Option<i64>,
    /// What was done.
    pub progress: Progress,
    /// The state for people.
    pub message: String,
}

/// What was done of the restarts for a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Every workload was restarted that can be.
    Restarted,
    /// A workload is being restarted.
    Restarting,
    /// The pods of a restarted workload do not become available, or a workload cannot be restarted.
    Stalled,
    /// Some workloads have the marks, but do not replace their pods by themselves.
    NotRolled,
    /// The API server refuses.
    NotAllowed,
}

impl Progress {
    fn words(self) -> (ConditionStatus, &'static str) {
        match self {
            Self::Restarted => (ConditionStatus::True, "Restarted"),
            Self::Restarting => (ConditionStatus::Unknown, "Restarting"),
            Self::Stalled => (ConditionStatus::False, "RolloutStalled"),
            Self::NotRolled => (ConditionStatus::False, "NotRolled"),
            Self::NotAllowed => (ConditionStatus::False, "NotAllowed"),
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The change of a workload.
    pub patch: Option<Patch>,
    /// The state when it is done.
    pub state: RestartState,
}

/// A change of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Unique id of the workload, or its name if it has none.
    pub workload: String,
    /// Merge patch.
    pub body: Value,
}

impl Cluster {
    /// The restarts that a policy asks for, when it is in force on every node and containers run without it.
    ///
    /// # Errors
    ///
    /// Why there are none now.
    pub fn restart(&self, id: &PolicyId) -> Result<Restart, String> {
        let wait = |cause: &str| Err(format!("no workload is restarted yet: {cause}"));
        let policy = self.policies.get(id).ok_or("there is no such policy")?;
        if let Some(kind) = NEEDED.into_iter().find(|kind| !self.synced.contains(kind)) {
            return wait(&format!("not all {kind:?} are known yet"));
        }
        let known = self.restarts_of(id, policy).map(|state| state.progress);
        if known == Some(Progress::Restarted) || self.concluded(id, policy).is_some() {
            return Err("every workload is restarted".to_owned());
        }
        if self.claim(id) != PolicyClaim::Ours {
            return wait("another installation may act on the policy");
        }
        let Ok(profile) = self.profile(id) else {
            return wait("the policy has no profile");
        };
        if !self.is_written(&profile) {
            return wait("the ArmorProfile is not written");
        }
        if !profile.needs_proxy.is_empty() {
            return wait("rules inside of connections are not enforced");
        }
        let key = ObjectKey {
            namespace: profile.namespace.clone(),
            name: profile.name.clone(),
        };
        let (coverage, failures) = self.coverage(&key);
        if coverage.nodes == 0 || coverage.unknown_nodes > 0 || failures > 0 {
            return wait("the policy is not in force on every node");
        }
        Ok(Restart {
            kind: policy.spec.target.kind.clone(),
            namespace: (id.scope == Scope::Namespace).then(|| id.key.namespace.clone()),
            hash: restart_hash(policy),
            generation: policy.metadata.generation,
            profile: profile.name,
        })
    }

    /// Returns true if containers run that have to be replaced. In behaviour modelling all do: a model needs what they do at
    /// their start.
    #[must_use]
    pub fn needs_restart(&self, id: &PolicyId) -> bool {
        let policy = self.policies.get(id);
        let is_modeled = policy.is_some_and(|policy| policy.spec.mode() == "BehaviorModeling");
        let coverage = self.profile_key(id).map(|key| self.coverage(&key).0);
        is_modeled || coverage.is_ok_and(|coverage| coverage.unprotected > 0)
    }

    /// The next step of a restart, by the workloads of its kind that there are. `patched` has those that were patched for this
    /// hash already, by [`Patch::workload`]. `now` is the time in RFC 3339.
    #[must_use]
    pub fn step(
        &self,
        id: &PolicyId,
        restart: &Restart,
        workloads: &[Value],
        patched: &BTreeSet<String>,
        now: &str,
    ) -> Step {
        let wanted = workloads.iter().filter(|one| self.is_restarted(id, one));
        let (done, left): (Vec<&Value>, Vec<&Value>) =
            wanted.partition(|one| annotation(one, &restart.key()) == Some(&restart.hash));
        let total = done.len() + left.len();
        let mut unrolled = Vec::new();
        for one in &done {
            match rollout(&restart.kind, one) {
                Rollout::Done => {}
                Rollout::NotRolled(cause) => unrolled.push(format!("{} {cause}", name(one))),
                Rollout::Running => {
                    let message = format!(
                        "{} of {total} workloads have the policy in their template: {} replaces its pods",
                        done.len(),
                        name(one)
                    );
                    return restart.idle(Progress::Restarting, message);
                }
                Rollout::Stalled => {
                    let message = format!(
                        "{} does not become available, and {} workloads are not restarted",
                        name(one),
                        left.len()
                    );
                    return restart.idle(Progress::Stalled, message);
                }
            }
        }
        // Whoever runs without the policy by now is replaced by other means, or not at all.
        match left.first().filter(|_| self.needs_restart(id)) {
            Some(next) => {
                let message = format!("{} of {total} workloads are restarted", done.len());
                restart.next(next, message, patched, now)
            }
            None if unrolled.is_empty() => {
                let message = format!("{} of {total} workloads{FOR}{}", done.len(), restart.name());
                restart.idle(Progress::Restarted, message)
            }
            None => {
                let message = format!("these do not replace their pods: {}", unrolled.join(", "));
                restart.idle(Progress::NotRolled, message)
            }
        }
    }

    /// The restarts for a policy as it is, of which this operator knows.
    fn restarts_of(&self, id: &PolicyId, policy: &PolicyObject) -> Option<&RestartState> {
        let hash = restart_hash(policy);
        let state = self.restarts.get(id);
        state.filter(|one| one.hash == hash && one.generation == policy.metadata.generation)
    }

    /// The condition in the stored status that says that the restarts for a policy are concluded, as it is written now and for the
    /// profile of this installation. It outlives the operator that wrote it.
    fn concluded(&self, id: &PolicyId, policy: &PolicyObject) -> Option<Condition> {
        let status = policy.status.as_ref()?;
        let mut all = status.conditions.iter();
        let condition = all.find(|one| one.kind == UPDATED)?;
        let (done, reason) = Progress::Restarted.words();
        let is_done = condition.status == done && condition.reason == reason;
        let is_seen = status.observed_generation == policy.metadata.generation;
        // The fail mode changes no generation, and another installation has another profile. Earlier builds wrote neither.
        let profile = self.profile_key(id).ok()?.name;
        let wanted = name_of(&profile, &restart_hash(policy));
        let named = condition.message.rsplit_once(FOR);
        let is_same = named.is_none_or(|(_, found)| found == wanted);
        let (message, reason) = (condition.message.clone(), &*condition.reason);
        (is_done && is_seen && is_same).then(|| self::condition(UPDATED, done, reason, message))
    }

    /// Returns true if a workload is one that a policy has restarted. The installation itself is not.
    fn is_restarted(&self, id: &PolicyId, workload: &Value) -> bool {
        let key = key_of(workload);
        let Some(policy) = self.policies.get(id) else {
            return false;
        };
        let workload = Workload {
            kind: &policy.spec.target.kind,
            namespace: &key.namespace,
            object: workload,
        };
        key.namespace != self.installation
            && workload.object["metadata"]["deletionTimestamp"].is_null()
            && is_for(id, policy, workload)
    }

    /// The condition about workloads that ran before their policy; `None` if the policy does not ask for restarts.
    pub(crate) fn workloads_updated(&self, id: &PolicyId) -> Option<Condition> {
        let policy = self.policies.get(id)?;
        if !policy.spec.update_existing_workloads {
            return None;
        }
        let made = |status, reason: &str, message: String| {
            Some(condition(UPDATED, status, reason, message))
        };
        let kind = &policy.spec.target.kind;
        if !is_restartable(kind) {
            let message = "bare Pods are not restarted: delete and create them again".to_owned();
            return made(ConditionStatus::False, "NotRestarted", message);
        }
        if !self.updates_workloads {
            let message = "existing workloads are not restarted, because the operator runs without --update-workloads: \
                           restart them by `kubectl rollout restart`";
            return made(ConditionStatus::False, "NotEnabled", message.to_owned());
        }
        if let Some(state) = self.restarts_of(id, policy) {
            let (status, reason) = state.progress.words();
            return made(status, reason, state.message.clone());
        }
        self.concluded(id, policy).or_else(|| {
            // Without a cause nothing stands in the way, and the next look at the workloads begins.
            let cause = self.restart(id).err().unwrap_or_default();
            made(ConditionStatus::Unknown, "Processing", cause)
        })
    }
}

impl Restart {
    /// How far it is.
    #[must_use]
    pub fn state(&self, progress: Progress, message: String) -> RestartState {
        RestartState {
            hash: self.hash.clone(),
            generation: self.generation,
            progress,
            message,
        }
    }

    /// A step in which nothing is changed.
    fn idle(&self, progress: Progress, message: String) -> Step {
        Step {
            patch: None,
            state: self.state(progress, message),
        }
    }

    /// The step that restarts a workload. One that was patched, and has lost the annotation, is not patched again: whoever takes
    /// it out would do so for ever, and each time pods would be replaced.
    fn next(
        &self,
        workload: &Value,
        message: String,
        patched: &BTreeSet<String>,
        now: &str,
    ) -> Step {
        let metadata = &workload["metadata"];
        let uid = metadata["uid"].as_str().map(str::to_owned);
        let uid = uid.unwrap_or_else(|| name(workload));
        if patched.contains(&uid) {
            let message = format!(
                "{} was restarted, and something has taken the annotation {} out of its template: it is not restarted again, and \
                 no further workload is",
                name(workload),
                self.key()
            );
            return self.idle(Progress::Stalled, message);
        }
        let mut step = self.idle(Progress::Restarting, message);
        step.patch = Some(Patch {
            key: key_of(workload),
            workload: uid,
            body: self.patch(workload, now),
        });
        step
    }

    /// The policy for people, and for the next operator.
    fn name(&self) -> String {
        name_of(&self.profile, &self.hash)
    }

    /// The annotation of a workload that was restarted.
    fn key(&self) -> String {
        format!("{RESTARTED_FOR}{}", self.profile)
    }

    fn patch(&self, workload: &Value, now: &str) -> Value {
        let annotations = [
            (format!("{OF_POLICY}{}", self.profile), "target"),
            (self.key(), &*self.hash),
            (RESTARTED_AT.to_owned(), now),
            (VARMOR_RESTARTED_AT.to_owned(), now),
        ];
        let annotations = annotations.map(|(key, value)| (key, json!(value)));
        merge_patch(workload, Map::from_iter(annotations))
    }
}

fn name_of(profile: &str, hash: &str) -> String {
    format!("{profile} {hash}")
}

/// Returns true if workloads of a kind can be restarted.
pub(crate) fn is_restartable(kind: &str) -> bool {
    RESTARTED_KINDS.iter().any(|(known, _)| *known == kind)
}

/// The patch that takes out of a workload what a restart for a profile has put in; `None` if there is nothing.
#[must_use]
pub fn undo_restart(profile: &str, workload: &Value) -> Option<(ObjectKey, Value)> {
    let key = format!("{RESTARTED_FOR}{profile}");
    annotation(workload, &key)?;
    let mut gone = vec![format!("{OF_POLICY}{profile}"), key.clone()];
    let annotations = workload.pointer(ANNOTATIONS)?.as_object()?;
    let is_other = |one: &String| one.starts_with(RESTARTED_FOR) && *one != key;
    if !annotations.keys().any(is_other) {
        gone.extend([RESTARTED_AT, VARMOR_RESTARTED_AT].map(str::to_owned));
    }
    let gone = gone.into_iter().map(|key| (key, Value::Null));
    Some((key_of(workload), merge_patch(workload, gone.collect())))
}

/// JSON pointer of the annotations of a workload's pods.
const ANNOTATIONS: &str = "/spec/template/metadata/annotations";

/// A patch that fails if the workload has changed meanwhile.
fn merge_patch(workload: &Value, annotations: Map<String, Value>) -> Value {
    json!({
        "metadata": { "resourceVersion": workload["metadata"]["resourceVersion"] },
        "spec": { "template": { "metadata": { "annotations": annotations } } },
    })
}

fn annotation<'w>(workload: &'w Value, key: &str) -> Option<&'w str> {
    workload.pointer(ANNOTATIONS)?.get(key)?.as_str()
}

fn key_of(workload: &Value) -> ObjectKey {
    // The API server gives each workload both; a name that is empty names none, and a patch of it fails.
    let text = |key: &str| workload["metadata"][key].as_str().unwrap_or_default();
    ObjectKey {
        namespace: text("namespace").to_owned(),
        name: text("name").to_owned(),
    }
}

fn name(workload: &Value) -> String {
    key_of(workload).to_string()
}

/// The hash of all that a container has to be replaced for. Addresses of Services and Pods are not in it: they change by the
/// restart itself.
fn restart_hash(policy: &PolicyObject) -> String {
    let written = policy.metadata.annotations.get(FAIL_MODE);
    let all = json!({
        "policy": policy.spec.policy,
        "containers": policy.spec.target.containers,
        "failMode": FailMode::of(written.map(String::as_str)).name(),
    });
    let mut hash = policy_hash(&all.to_string());
    hash.truncate(SHORT);
    hash
}
