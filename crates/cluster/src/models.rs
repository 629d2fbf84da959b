//! Behaviour modelling in a cluster: the run of each policy, what nodes have observed, and the model that there has to be.

use std::collections::{BTreeMap, BTreeSet};

use kinds::annotations::{INSTALLATION, MODELING};
use kinds::{
    ArmorProfileModel, BehaviorReport, Condition, ConditionStatus, ModelCondition, ModelStatus,
    ModelingRun, NodeReport, ObjectKey, Phase, allowing_profile, policy_hash,
};
use serde_json::{Value, json};

use crate::modeling::{COMPLETE, INCOMPLETE, Modeling};
use crate::node::{NodeState, StoredProfile};
use crate::status::condition;
use crate::{Cluster, ObjectKind, PolicyId};

/// Maximum number of runs of which something is known. Of others nothing is taken: nodes may report runs that do not exist.
const MAX_RUNS: usize = 1024;
/// Where data of models are: in the object.
const STORAGE: &str = "CRDInternal";

/// A profile, and the start of a run.
type RunKey = (ObjectKey, u64);

/// An ArmorProfileModel as the API server has it.
#[derive(Clone, Debug, PartialEq)]
struct StoredModel {
    installation: String,
    run: Option<ModelingRun>,
    status: Option<ModelStatus>,
    /// Hash of its data.
    data: String,
    /// Why the data cannot be read.
    problem: Option<String>,
}

/// An ArmorProfileModel that there has to be.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredModel {
    /// Namespace and name: those of the profile.
    pub key: ObjectKey,
    /// The object without its status.
    pub object: Value,
    /// Its status, without times of conditions.
    pub status: ModelStatus,
    /// The status that the API server has.
    pub stored: Option<ModelStatus>,
    /// The object differs from what the API server has.
    pub is_object_new: bool,
    /// The run that the object names. If it is over, the model is written at once.
    pub run: ModelingRun,
}

/// All models.
#[derive(Debug, Default)]
pub(crate) struct Models {
    runs: BTreeMap<RunKey, Modeling>,
    stored: BTreeMap<ObjectKey, StoredModel>,
    /// Time in seconds since 1970, by the clock of the operator.
    pub(crate) now: u64,
    /// Reports were not taken, because there were too many runs.
    is_full: bool,
}

/// How a run stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// Containers are being observed.
    Observing,
    /// The run is over, and these of so many nodes have not said so.
    Waiting { missing: u64, nodes: u64 },
    /// No container was observed.
    NotObserved,
    /// The model lacks something.
    Incomplete(String),
    /// No container was observed from its first program on.
    StartNotObserved,
    /// The model has all that was done.
    Complete,
}

impl Verdict {
    /// No later report changes it.
    fn is_final(&self) -> bool {
        !matches!(self, Self::Observing | Self::Waiting { .. })
    }

    /// Status, reason and message of a condition.
    fn words(&self) -> (ConditionStatus, &'static str, String) {
        match self {
            Self::Observing => (ConditionStatus::Unknown, "Observing", String::new()),
            Self::Waiting { missing, nodes } => {
                let message = format!("{missing} of {nodes} nodes have not reported the whole run");
                (ConditionStatus::Unknown, "Waiting", message)
            }
            Self::NotObserved => {
                let message = "no container of the workload ran while it was to be observed";
                (ConditionStatus::False, "NotObserved", message.to_owned())
            }
            Self::Incomplete(why) => (ConditionStatus::False, INCOMPLETE, why.clone()),
            Self::StartNotObserved => {
                let message = "no container was observed from its first program on: restart the workload during the run";
                (
                    ConditionStatus::False,
                    "StartNotObserved",
                    message.to_owned(),
                )
            }
            Self::Complete => (ConditionStatus::True, "Complete", String::new()),
        }
    }
}

impl Models {
    /// Takes what a node has observed. Returns the profiles that it is about.
    pub(crate) fn take_report(&mut self, report: &NodeReport) -> Vec<ObjectKey> {
        let node = &report.metadata.name;
        let behaviors = report.status.iter().flat_map(|status| &status.behaviors);
        let taken = behaviors.filter_map(|behavior| self.take(node, behavior));
        taken.collect()
    }

    fn take(&mut self, node: &str, report: &BehaviorReport) -> Option<ObjectKey> {
        let key = report.key();
        let run = (key.clone(), report.run);
        if !self.has_room(&run) {
            return None;
        }
        self.runs.entry(run).or_default().observe(node, report);
        Some(key)
    }

    fn has_room(&mut self, run: &RunKey) -> bool {
        let has_room = self.runs.len() < MAX_RUNS || self.runs.contains_key(run);
        self.is_full |= !has_room;
        has_room
    }

    /// Takes a model as the API server has it. One of this installation has what an operator before has merged.
    pub(crate) fn take_model(&mut self, model: &ArmorProfileModel, installation: &str) {
        let key = model.key();
        let run = model.run();
        let mut problem = None;
        if let (Some(run), true) = (run, model.installation() == installation) {
            let run = (key.clone(), run.start);
            if self.has_room(&run) {
                let adopted = self.runs.entry(run).or_default().adopt(model);
                problem = adopted.err().map(|error| error.to_string());
            }
        }
        let stored = StoredModel {
            installation: model.installation().to_owned(),
            run,
            status: model.status.clone(),
            data: hash(&model.data),
            problem,
        };
        self.stored.insert(key, stored);
    }

    pub(crate) fn remove_model(&mut self, key: &ObjectKey) {
        self.stored.remove(key);
    }

    /// What a model says of its run, which is over.
    fn written_verdict(&self, key: &ObjectKey) -> Verdict {
        let stored = self
            .stored
            .get(key)
            .and_then(|stored| stored.status.as_ref());
        let conditions = stored.map_or(&[][..], |status| &status.conditions);
        let mut complete = conditions.iter().map(|one| &one.condition);
        let complete = complete.find(|one| one.kind == COMPLETE);
        match complete.map(|one| (&*one.reason, &one.message)) {
            Some(("Complete", _)) => Verdict::Complete,
            Some((INCOMPLETE, why)) => Verdict::Incomplete(why.clone()),
            Some(("NotObserved", _)) => Verdict::NotObserved,
            Some(("StartNotObserved", _)) => Verdict::StartNotObserved,
            _ => Verdict::Incomplete("the status of the model was lost".to_owned()),
        }
    }

    /// Forgets the runs of a profile that is gone.
    pub(crate) fn forget(&mut self, key: &ObjectKey) {
        self.runs.retain(|(known, _), _| known != key);
    }

    /// Forgets runs of profiles that have another one by now, and those of profiles that do not exist.
    fn retain(&mut self, is_wanted: impl Fn(&RunKey) -> bool) {
        self.runs.retain(|run, _| is_wanted(run));
        self.is_full = self.runs.len() >= MAX_RUNS;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.is_full
    }
}

/// Hash of data, whatever the order of their keys.
fn hash(data: &Value) -> String {
    let mut data = data.clone();
    data.sort_all_objects();
    policy_hash(&data.to_string())
}

/// The run of a profile; `None` if its behaviour is not modelled.
pub(crate) fn run_of(profile: &StoredProfile) -> Option<ModelingRun> {
    let is_modeled = profile.spec.behavior_modeling.enable;
    let run = profile.notes.get(MODELING).filter(|_| is_modeled)?;
    run.parse().ok()
}

impl Cluster {
    /// Takes the time, in seconds since 1970. Policies whose run has ended since have changed.
    pub(crate) fn take_time(&mut self, now: u64) {
        let before = self.models.now;
        self.models.now = now.max(before);
        let ended = |profile: &StoredProfile| {
            run_of(profile).is_some_and(|run| run.end() > before && run.end() <= now)
        };
        let ended = self.stored.iter().filter(|(_, profile)| ended(profile));
        let ended: Vec<ObjectKey> = ended.map(|(key, _)| key.clone()).collect();
        for key in &ended {
            self.touch_profile(key);
        }
    }

    /// Forgets runs that are none of a profile, to have room for others. Before all profiles are known, none is.
    pub(crate) fn forget_runs(&mut self) {
        if !self.is_synced(ObjectKind::Profiles) {
            return;
        }
        let stored = &self.stored;
        self.models.retain(|(key, start)| {
            let profile = stored.get(key);
            // What a node reports before the run of its profile is known here, its next report has again.
            let run = profile.and_then(run_of);
            run.is_some_and(|run| run.start == *start)
        });
    }

    /// The run that the profile of a policy has, with the duration that the policy has now; `None` before there is one.
    pub(crate) fn run_to_be(&self, key: &ObjectKey, minutes: u64) -> Option<ModelingRun> {
        let run = run_of(self.stored.get(key)?)?;
        let model = self.models.stored.get(key);
        let written = model.filter(|model| model.installation == self.installation);
        let written = written.and_then(|model| model.run);
        let is_over = |written: ModelingRun| {
            written.is_over && written.is_same(&run) && written.minutes == minutes
        };
        Some(ModelingRun {
            start: run.start,
            minutes,
            is_over: written.is_some_and(is_over),
        })
    }

    fn verdict(&self, key: &ObjectKey, modeling: &Modeling, run: ModelingRun) -> Verdict {
        if run.is_over {
            // The nodes may be other ones by now, and report nothing of it any more.
            return self.models.written_verdict(key);
        }
        if self.models.now < run.end() {
            return Verdict::Observing;
        }
        let nodes = modeling.nodes(run);
        let alive: Vec<bool> = nodes
            .filter(|(node, _)| self.nodes.is_known(node))
            .map(|(_, is_complete)| is_complete)
            .collect();
        let missing = alive.iter().filter(|is_complete| !**is_complete).count();
        if missing > 0 {
            return Verdict::Waiting {
                missing: missing as u64,
                nodes: alive.len() as u64,
            };
        }
        let (unknown, unsaid) = self.silent_nodes(key, modeling, run);
        if unknown > 0 {
            return Verdict::Waiting {
                missing: unknown,
                nodes: self.nodes.count(),
            };
        }
        if unsaid > 0 {
            let message = "nodes have containers of the workload and do not say what they did";
            return Verdict::Incomplete(format!("{unsaid} {message}"));
        }
        let Some(progress) = modeling.progress(run) else {
            return Verdict::NotObserved;
        };
        if let Some(why) = modeling.lacks_in_words(modeling.data().1) {
            return Verdict::Incomplete(why);
        }
        match progress.from_start {
            0 => Verdict::StartNotObserved,
            _ => Verdict::Complete,
        }
    }

    /// How many nodes cannot observe a profile or are unknown, so that they may have containers of it; and how many have
    /// containers, and report nothing of the run.
    fn silent_nodes(&self, key: &ObjectKey, modeling: &Modeling, run: ModelingRun) -> (u64, u64) {
        let said: BTreeSet<&str> = modeling.nodes(run).map(|(node, _)| node).collect();
        let states = self
            .stored
            .get(key)
            .into_iter()
            .flat_map(|stored| self.nodes.states(key, stored));
        let (mut unknown, mut unsaid) = (0, 0);
        for (node, state) in states {
            match state {
                NodeState::Unknown(_) | NodeState::Failed(..) => unknown += 1,
                NodeState::Ready(state) => {
                    unsaid += u64::from(state.containers > 0 && !said.contains(node));
                }
                NodeState::Idle => {}
            }
        }
        (unknown, unsaid)
    }

    /// The model of a policy in the mode BehaviorModeling; `None` if there is nothing to write: the policy has no run, nothing
    /// is known, or the object is another's.
    #[must_use]
    pub fn model(&self, id: &PolicyId) -> Option<DesiredModel> {
        let known = [ObjectKind::Models, ObjectKind::Nodes, ObjectKind::Reports];
        if !known.iter().all(|kind| self.is_synced(*kind)) {
            return None;
        }
        let profile = self.profile(id).ok()?;
        let key = self.profile_key(id).ok()?;
        if self.foreign_model(&key).is_some() {
            return None;
        }
        let run = self.run_to_be(&key, profile.spec.behavior_modeling.duration)?;
        if run.is_over || self.models.now == 0 {
            return None;
        }
        let nothing = Modeling::default();
        let modeling = self.models.runs.get(&(key.clone(), run.start));
        // Reports that were not taken may be of this run.
        if modeling.is_none() && self.models.is_full {
            return None;
        }
        let modeling = modeling.unwrap_or(&nothing);
        let verdict = self.verdict(&key, modeling, run);
        if modeling == &nothing && !verdict.is_final() {
            return None;
        }
        let run = ModelingRun {
            is_over: verdict.is_final(),
            ..run
        };
        Some(self.desired(key, run, modeling, &verdict))
    }

    fn desired(
        &self,
        key: ObjectKey,
        run: ModelingRun,
        modeling: &Modeling,
        verdict: &Verdict,
    ) -> DesiredModel {
        let (recording, _) = modeling.data();
        let mut data = json!({ "dynamicResult": recording });
        if *verdict == Verdict::Complete
            && let Some(profile) = allowing_profile(&key.name, &recording)
        {
            data["profile"] = profile;
        }
        let stored = self.models.stored.get(&key);
        let is_object_new =
            stored.is_none_or(|stored| stored.data != hash(&data) || stored.run != Some(run));
        DesiredModel {
            object: json!({
                "metadata": {
                    "name": key.name,
                    "namespace": key.namespace,
                    "labels": { "app.kubernetes.io/managed-by": "tollgate" },
                    "annotations": { INSTALLATION: self.installation, MODELING: run.to_string() },
                },
                "storageType": STORAGE,
                "data": data,
            }),
            status: self.model_status(&key, run, modeling, verdict),
            stored: stored.and_then(|stored| stored.status.clone()),
            is_object_new,
            run,
            key,
        }
    }

    fn model_status(
        &self,
        key: &ObjectKey,
        run: ModelingRun,
        modeling: &Modeling,
        verdict: &Verdict,
    ) -> ModelStatus {
        let nodes: Vec<bool> = modeling
            .nodes(run)
            .filter(|(node, _)| self.nodes.is_known(node))
            .map(|(_, is_complete)| is_complete)
            .collect();
        let (status, reason, message) = verdict.words();
        let complete = ModelCondition {
            condition: condition(COMPLETE, status, reason, message),
            node_name: String::new(),
        };
        let failed = self.profile_status(key).map(|status| status.conditions);
        let failed = failed.into_iter().flatten().map(|node| ModelCondition {
            condition: condition(&node.kind, node.status, &node.reason, node.message),
            node_name: node.node_name,
        });
        let mut made = ModelStatus {
            desired_number: nodes.len() as u64,
            completed_number: nodes.iter().filter(|is_complete| **is_complete).count() as u64,
            ready: *verdict == Verdict::Complete,
            conditions: std::iter::once(complete).chain(failed).collect(),
            ..ModelStatus::default()
        };
        if let Some(progress) = modeling.progress(run) {
            made.containers = progress.containers;
            made.from_start = progress.from_start;
            made.observed_seconds = progress.observed.as_secs();
            made.nothing_new_seconds = progress.nothing_new_for.as_secs();
            made.newest = progress.newest;
        }
        made
    }

    /// Why a model of this name is not this installation's; `None` if there is none, or it is.
    fn foreign_model(&self, key: &ObjectKey) -> Option<String> {
        let stored = self.models.stored.get(key)?;
        if let Some(problem) = &stored.problem {
            return Some(format!(
                "the data of the ArmorProfileModel {key} cannot be read ({problem}): delete it"
            ));
        }
        (stored.installation != self.installation).then(|| {
            format!("the ArmorProfileModel {key} is not of this installation, and is not replaced: delete it, or rename the policy")
        })
    }

    /// The condition Ready and the phase of a policy in the mode BehaviorModeling whose nodes are all ready.
    pub(crate) fn modeling_state(&self, key: &ObjectKey) -> (Condition, Phase) {
        let no = |reason: &str, message: String| {
            let ready = condition("Ready", ConditionStatus::False, reason, message);
            (ready, Phase::Error)
        };
        let unknown = |message: String| {
            let ready = condition("Ready", ConditionStatus::Unknown, "Processing", message);
            (ready, Phase::Modeling)
        };
        let yes = |message: String, phase| {
            let ready = condition("Ready", ConditionStatus::True, "AllAgentsReady", message);
            (ready, phase)
        };
        if !self.is_synced(ObjectKind::Models) {
            return unknown("not all Models are known yet".to_owned());
        }
        if let Some(problem) = self.foreign_model(key) {
            return no("ModelExists", problem);
        }
        let stored = self.stored.get(key);
        let minutes = stored.map_or(0, |stored| stored.spec.behavior_modeling.duration);
        let Some(run) = self.run_to_be(key, minutes) else {
            return unknown("the ArmorProfile is not written yet".to_owned());
        };
        let nothing = Modeling::default();
        let modeling = self.models.runs.get(&(key.clone(), run.start));
        if modeling.is_none() && self.models.is_full {
            let message = format!("behaviour of more than {MAX_RUNS} runs is reported");
            return no("TooManyRuns", message);
        }
        let verdict = self.verdict(key, modeling.unwrap_or(&nothing), run);
        let (_, reason, message) = verdict.words();
        match &verdict {
            Verdict::Observing => yes(message, Phase::Modeling),
            Verdict::Waiting { .. } => unknown(message),
            // Until the model is written, there is none that could be used.
            _ if !run.is_over => unknown("the model is not written yet".to_owned()),
            Verdict::Complete => yes(message, Phase::Completed),
            Verdict::Incomplete(why) => no("ModelIncomplete", why.clone()),
            Verdict::NotObserved | Verdict::StartNotObserved => no(reason, message),
        }
    }
}
