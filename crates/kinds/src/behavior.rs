//! Behaviour modelling: for how long containers are observed, what a node reports of them, and the model.

use std::fmt;
use std::str::FromStr;

use policy::Model;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::annotations::{INSTALLATION, MODELING};
use crate::meta::{Condition, Meta, ObjectKey};
use crate::recording::Recording;

/// Maximum length in bytes of a text of a recording. Longer paths are left out, and the model is incomplete.
pub const MAX_TEXT: usize = 1024;
/// Maximum number of reasons in a report about a model.
pub const MAX_REASONS: usize = 8;
/// Maximum length in bytes of such a reason.
pub const MAX_REASON: usize = 256;
/// Maximum number of minutes of a run: a year.
const MAX_MINUTES: u64 = 366 * 24 * 60;

/// From when to when containers of a profile are observed.
///
/// ```
/// let run: kinds::ModelingRun = "1764352272/30".parse().unwrap();
/// assert_eq!((run.start, run.end()), (1764352272, 1764352272 + 30 * 60));
/// assert!(!run.is_over);
/// assert_eq!(run.to_string(), "1764352272/30");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelingRun {
    /// When the run began, in seconds since 1970: by the clock of the operator.
    pub start: u64,
    /// Duration in minutes.
    pub minutes: u64,
    /// The model is written: nodes need not report the run any more.
    pub is_over: bool,
}

/// The text is no run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no run of behaviour modelling: expected SECONDS/MINUTES or SECONDS/MINUTES/over")]
pub struct NoRun(String);

impl ModelingRun {
    /// When the run ends, in seconds since 1970.
    #[must_use]
    pub fn end(&self) -> u64 {
        let minutes = self.minutes.min(MAX_MINUTES);
        self.start.saturating_add(minutes * 60)
    }

    /// Returns true if nodes observe containers at this time.
    #[must_use]
    pub fn is_active(&self, now: u64) -> bool {
        !self.is_over && now < self.end()
    }

    /// Returns true if both are one run, of which one may have been made longer.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.start == other.start
    }
}

impl fmt::Display for ModelingRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.start, self.minutes)?;
        match self.is_over {
            true => f.write_str("/over"),
            false => Ok(()),
        }
    }
}

impl FromStr for ModelingRun {
    type Err = NoRun;

    fn from_str(text: &str) -> Result<Self, NoRun> {
        let mut parts = text.split('/');
        let mut number = || parts.next()?.parse().ok();
        let (start, minutes) = (number(), number());
        let is_over = match parts.next() {
            None => Some(false),
            Some("over") => Some(true),
            Some(_) => None,
        };
        let read = || {
            Some(Self {
                start: start?,
                minutes: minutes?,
                is_over: is_over?,
            })
        };
        read()
            .filter(|_| parts.next().is_none())
            .ok_or_else(|| NoRun(text.to_owned()))
    }
}

/// What a node has observed of the containers of a profile, since the run began. A later report has all that an earlier one had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BehaviorReport {
    /// Namespace of the ArmorProfile.
    pub namespace: String,
    /// Name of the ArmorProfile.
    pub name: String,
    /// Start of the run that the report is about, in seconds since 1970: [`ModelingRun::start`].
    pub run: u64,
    /// When the node began to observe, in seconds since 1970.
    pub since: u64,
    /// Until when it has observed.
    pub until: u64,
    /// Containers that were observed.
    pub containers: u64,
    /// Of these, observed from their first program on.
    pub from_start: u64,
    /// Why the node has not recorded all that these containers did.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub incomplete: Vec<String>,
    /// What they did.
    pub recorded: Recording,
}

impl BehaviorReport {
    /// The profile.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        }
    }
}

/// An ArmorProfileModel. It has no spec.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArmorProfileModel {
    /// `crd.varmor.org/v1beta1`.
    pub api_version: String,
    /// `ArmorProfileModel`.
    pub kind: String,
    /// Name and the like.
    #[serde(default)]
    pub metadata: Meta,
    /// Where the data are: `CRDInternal`, in this object.
    #[serde(default)]
    pub storage_type: String,
    /// What was recorded, as vArmor has it.
    #[serde(default)]
    pub data: Value,
    /// How far the model is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ModelStatus>,
}

/// Status of an ArmorProfileModel. The last five members are not vArmor's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelStatus {
    /// Nodes that are to report.
    pub desired_number: u64,
    /// Nodes that have reported the whole run.
    pub completed_number: u64,
    /// The run is over, and nothing is left out.
    pub ready: bool,
    /// One for each node that has failed; the condition `Complete` says why a model is not ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ModelCondition>,
    /// Containers that were observed.
    pub containers: u64,
    /// Of these, observed from their first program on.
    pub from_start: u64,
    /// Seconds between the first and the last observation.
    pub observed_seconds: u64,
    /// Seconds between the last thing that was new and the last observation.
    pub nothing_new_seconds: u64,
    /// When something new was observed last, in seconds since 1970.
    pub newest: u64,
}

/// A condition of a model, in the form that vArmor gives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelCondition {
    /// The condition, and its time.
    #[serde(flatten)]
    pub condition: Condition,
    /// The node; empty if it is about all.
    #[serde(default)]
    pub node_name: String,
}

impl ArmorProfileModel {
    /// Namespace and name.
    #[must_use]
    pub fn key(&self) -> ObjectKey {
        ObjectKey {
            // An object without a namespace is keyed by the empty one, as in `Object::key`.
            namespace: self.metadata.namespace.clone().unwrap_or_default(),
            name: self.metadata.name.clone(),
        }
    }

    /// The installation that has made the model; empty if it was imported, or is another program's.
    #[must_use]
    pub fn installation(&self) -> &str {
        let made = self.metadata.annotations.get(INSTALLATION);
        made.map_or("", String::as_str)
    }

    /// The run that the model is of.
    #[must_use]
    pub fn run(&self) -> Option<ModelingRun> {
        self.metadata.annotations.get(MODELING)?.parse().ok()
    }
}

/// The part `data.profile` of a model: a seccomp profile that allows what was recorded.
#[must_use]
pub fn allowing_profile(name: &str, recording: &Recording) -> Option<Value> {
    let calls = &recording.seccomp.as_ref()?.syscalls;
    let mut model = Model::default();
    for call in calls {
        // A profile that lacks a call that was made would deny it.
        if !model.note_call_name(call) {
            return None;
        }
    }
    Some(model.to_recorded(name)["profile"].take())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_run_is_read_as_it_is_written_and_a_wrong_one_is_named() {
        for text in ["1/2", "1764352272/30/over", "0/0"] {
            assert_eq!(text.parse::<ModelingRun>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "1",
            "1/",
            "1/x",
            "1/2/",
            "1/2/done",
            "1/2/over/3",
            "-1/2",
        ] {
            let error = text.parse::<ModelingRun>().unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("`{text}` is no run"))
            );
        }
        // A duration of an object is any number.
        let run: ModelingRun = "5/18446744073709551615".parse().unwrap();
        assert_eq!(run.end(), 5 + MAX_MINUTES * 60);
        assert!(run.is_active(5) && !run.is_active(run.end()));
    }

    #[test]
    fn a_report_of_an_earlier_build_and_a_model_of_varmor_can_be_read() {
        let report: BehaviorReport = serde_json::from_value(json!({ "name": "p" })).unwrap();
        assert_eq!(report.key().name, "p");
        let model: ArmorProfileModel = serde_json::from_value(json!({
            "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfileModel",
            "metadata": { "name": "m", "namespace": "demo" }, "storageType": "LocalDisk",
            "data": { "dynamicResult": { "apparmor": {} } },
            "status": { "ready": true, "conditions": [{ "type": "Ready", "status": "False", "nodeName": "n" }] },
        }))
        .unwrap();
        assert_eq!((model.installation(), model.run()), ("", None));
        assert!(model.status.unwrap().ready);
    }

    #[test]
    fn a_profile_allows_the_calls_that_were_recorded_and_there_is_none_with_an_unknown_one() {
        let recording = |call: &str| -> Recording {
            serde_json::from_value(json!({ "seccomp": { "syscalls": [call] } })).unwrap()
        };
        let profile = allowing_profile("p", &recording("bind")).unwrap();
        assert_eq!(profile["name"], "p");
        let seccomp = profile["seccomp"].as_str().unwrap();
        assert!(seccomp.contains("\"bind\"") && !seccomp.contains("\"mount\""));
        assert_eq!(allowing_profile("p", &recording("no_such_call")), None);
        assert_eq!(allowing_profile("p", &Recording::default()), None);
    }
}
