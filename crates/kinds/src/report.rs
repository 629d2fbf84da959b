//! NodeReport: what one node enforces. Only that node writes it.

use serde::{Deserialize, Serialize};

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
}

/// Whether an enforcer works on a node, found by trying.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcerState {
    /// Name of the enforcer.
    pub name: String,
    /// It works.
    pub available: bool,
    /// Why it does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A profile on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
