//! ArmorProfile: a compiled policy, as nodes take it.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::meta::{ConditionStatus, Object};
use crate::policy_object::Target;

/// An ArmorProfile.
pub type ArmorProfile = Object<ArmorProfileSpec, ArmorProfileStatus>;

/// Spec of an ArmorProfile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ArmorProfileSpec {
    /// The workloads of the policy.
    pub target: Target,
    /// What nodes enforce.
    pub profile: Profile,
    /// Whether behaviour is recorded.
    pub behavior_modeling: BehaviorModeling,
    /// Copied from the policy.
    pub update_existing_workloads: bool,
}

/// What nodes enforce.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// Name on each node.
    pub name: String,
    /// Copied from the policy.
    pub enforcer: String,
    /// Whether violations are denied.
    pub mode: ProfileMode,
    /// Hash of `policy`: 64 hexadecimal digits. Empty in a profile of another program.
    #[serde(default)]
    pub hash: String,
    /// The policy as JSON, for crate `policy`. Services and Pods are replaced by addresses.
    #[serde(default)]
    pub policy: String,
}

/// Whether violations are denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileMode {
    /// They are denied.
    Enforce,
    /// They are reported.
    #[serde(rename = "complain")]
    ReportOnly,
}

/// Whether behaviour is recorded, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BehaviorModeling {
    /// Behaviour is recorded.
    pub enable: bool,
    /// Minutes.
    pub duration: u64,
}

/// Status of an ArmorProfile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ArmorProfileStatus {
    /// Nodes that are to know the profile.
    pub desired_number_loaded: u64,
    /// Nodes that know it.
    pub current_number_loaded: u64,
    /// One for each node that has failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<NodeCondition>,
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Resource version with which that spec was written, as a decimal number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec_version: Option<String>,
}

/// A node that has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeCondition {
    /// Always `Ready`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether the node is ready: false, or unknown.
    pub status: ConditionStatus,
    /// The reason in one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The reason for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The node.
    pub node_name: String,
}

/// The hash of a policy's text: SHA-256 in hexadecimal, in which no other text can be made to collide.
#[must_use]
pub fn policy_hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold(String::new(), |mut out, byte| {
        // Writing to a text cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}
