//! VarmorPolicy and VarmorClusterPolicy.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::labels::LabelSelector;
use crate::meta::{Condition, Object};

/// A VarmorPolicy or a VarmorClusterPolicy.
pub type PolicyObject = Object<PolicySpec, PolicyStatus>;

/// Whether a policy is about one namespace or the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// VarmorPolicy.
    Namespace,
    /// VarmorClusterPolicy. It wins over a VarmorPolicy for the same workload.
    Cluster,
}

impl Scope {
    /// The scope of a kind; `None` for a kind that is no policy.
    #[must_use]
    pub fn of_kind(kind: &str) -> Option<Self> {
        match kind {
            "VarmorPolicy" => Some(Self::Namespace),
            "VarmorClusterPolicy" => Some(Self::Cluster),
            _ => None,
        }
    }

    /// The kind of policies of this scope.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self {
            Self::Namespace => "VarmorPolicy",
            Self::Cluster => "VarmorClusterPolicy",
        }
    }
}

/// Spec of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySpec {
    /// The workloads.
    pub target: Target,
    /// The policy, as it is written: crate `policy` reads it.
    pub policy: Map<String, Value>,
    /// Restart workloads that exist.
    #[serde(default)]
    pub update_existing_workloads: bool,
}

impl PolicySpec {
    /// The text of a key of the policy; empty if it is absent or no text.
    pub(crate) fn word(&self, key: &str) -> &str {
        self.policy
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The mode; empty if there is none.
    #[must_use]
    pub fn mode(&self) -> &str {
        self.word("mode")
    }

    /// The enforcers, as they are written; empty if there are none.
    #[must_use]
    pub fn enforcer(&self) -> &str {
        self.word("enforcer")
    }
}

/// The workloads of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Kind of the workloads.
    pub kind: String,
    /// Name of the one workload; empty if `selector` chooses.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Labels of the workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Names of containers; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
}

impl Target {
    /// Returns true if a container is one of the policy's.
    #[must_use]
    pub fn has_container(&self, name: &str) -> bool {
        self.containers.is_empty() || self.containers.iter().any(|wanted| wanted == name)
    }
}

/// Status of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyStatus {
    /// Name of the ArmorProfile.
    pub profile_name: String,
    /// Every node that needs the profile enforces it.
    pub ready: bool,
    /// The state in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The conditions Created, Updated and Ready.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Namespace of the installation that acts on the policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// Containers and nodes, counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
}

/// State of a policy in one word, as `kubectl get` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Not yet in force everywhere.
    Pending,
    /// In force.
    Protecting,
    /// Behaviour is being recorded.
    Modeling,
    /// The recording is complete.
    Completed,
    /// The policy or a node has failed.
    Error,
    /// The policy has failed; written by other versions of the peer.
    Failed,
    /// The state is not known.
    Unknown,
    /// Written by other versions of the peer.
    Unchanged,
}

/// What a policy covers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Coverage {
    /// Containers to which the policy applies.
    pub containers: u64,
    /// Of these, confined before their first instruction.
    pub enforced: u64,
    /// Of these, confined after they had begun.
    pub late: u64,
    /// Of these, not confined.
    pub unprotected: u64,
    /// Nodes that could run such a container.
    pub nodes: u64,
    /// Of these, nodes whose state is not known: a container of theirs is in none of the numbers above.
    pub unknown_nodes: u64,
    /// Why containers are late or not confined, and why nodes are unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}
