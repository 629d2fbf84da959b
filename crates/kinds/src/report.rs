//! NodeReport: what one node enforces. Only that node writes it.

use serde::{Deserialize, Serialize};

use crate::behavior::BehaviorReport;
use crate::meta::Meta;

/// A NodeReport. Its name is the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// `tollgate.dev/v1alpha1`.
    pub api_version: String,
    /// `NodeReport`.
    pub kind: String,
    /// Name and the like.
    #[serde(default)]
    pub metadata: Meta,
    /// The report; `None` until the agent has written one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeReportStatus>,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReportStatus {
    /// Version of the agent.
    pub agent_version: String,
    /// Id of the boot that the report is about, from the kernel. A report about an earlier boot says nothing.
    #[serde(rename = "bootID")]
    pub boot_id: String,
    /// Resource version up to which the agent has seen ArmorProfiles, as a decimal number.
    pub observed_version: String,
    /// When the agent wrote the report, in RFC 3339.
    pub renew_time: String,
    /// What the node can enforce.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub enforcers: Vec<EnforcerState>,
    /// The profiles that containers of the node use. A profile that is not listed is used by none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileState>,
    /// What the node detects; `None` if its agent does not watch it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<DetectionState>,
    /// What the node has observed of profiles whose behaviour is modelled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub behaviors: Vec<BehaviorReport>,
}

/// Detection on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct DetectionState {
    /// An engine watches the node.
    pub running: bool,
    /// Why no engine watches, or why sources are not in force.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Rules in force.
    pub rules: u64,
    /// Rulesfiles and Configs that are for the node. One that is not listed is unknown to the node, or not for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts: Vec<NodeArtifact>,
    /// Deleted objects that are still in force, because what is left cannot be used without them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<String>,
}

/// A Rulesfile or Config on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeArtifact {
    /// `Rulesfile` or `Config`.
    pub kind: String,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Generation of the spec that this is about.
    pub generation: i64,
    /// This generation is in force.
    pub programmed: bool,
    /// The reason in one word, as in a condition.
    pub reason: String,
    /// Why it is not in force, and what is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Whether an enforcer works on a node, found by trying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcerState {
    /// Name of the enforcer.
    pub name: String,
    /// It works.
    pub available: bool,
    /// Nobody has tried who has the rights: it may work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// Why it does not, or why that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A profile on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfileState {
    /// Namespace of the ArmorProfile.
    pub namespace: String,
    /// Name of the ArmorProfile.
    pub name: String,
    /// Hash of what the node enforces.
    pub hash: String,
    /// Why the profile could not be loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Containers to which the profile applies.
    pub containers: u64,
    /// Of these, confined before their first instruction.
    pub enforced: u64,
    /// Of these, confined after they had begun.
    pub late: u64,
    /// Of these, not confined.
    pub unprotected: u64,
    /// Why they are late or not confined.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}
