//! What happens in a cluster.

use kinds::{
    ArmorProfile, ArmorProfileModel, EndpointSlice, Node, NodeReport, ObjectKey, Pod, PolicyObject,
    Service,
};

use serde_json::Value;

use crate::PolicyId;
use crate::artifacts::{ArtifactId, ArtifactKind};
use crate::restart::RestartState;

/// A change of an object, or that all objects of a kind are known.
///
/// The order of events of one object matters, as a watch of the API server keeps it; that of different objects does not.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A policy, new or changed. An object of another kind is ignored.
    Policy(Box<PolicyObject>),
    /// A policy was deleted.
    PolicyGone(PolicyId),
    /// An ArmorProfile as the API server has it.
    Profile(Box<ArmorProfile>),
    /// An ArmorProfile was deleted.
    ProfileGone(ObjectKey),
    /// An ArmorProfileModel as the API server has it.
    Model(Box<ArmorProfileModel>),
    /// An ArmorProfileModel was deleted.
    ModelGone(ObjectKey),
    /// How far the restarts for a policy are.
    Restarts(PolicyId, RestartState),
    /// The time in seconds since 1970: runs of behaviour modelling end by it. An earlier one changes nothing.
    Time(u64),
    /// A node, new or changed.
    Node(Box<Node>),
    /// A node was deleted.
    NodeGone(String),
    /// The report of a node.
    Report(Box<NodeReport>),
    /// The report of a node was deleted.
    ReportGone(String),
    /// A node has not renewed its report for too long.
    Silent {
        /// The node.
        node: String,
        /// `renewTime` of the report that is too old. A newer report ends the silence.
        since: String,
    },
    /// A Rulesfile or Config, new or changed, as the API server has it.
    Artifact(ArtifactKind, Box<Value>),
    /// A Rulesfile or Config was deleted.
    ArtifactGone(ArtifactId),
    /// A Service, new or changed.
    Service(Box<Service>),
    /// A Service was deleted.
    ServiceGone(ObjectKey),
    /// An EndpointSlice, new or changed.
    Endpoints(Box<EndpointSlice>),
    /// An EndpointSlice was deleted.
    EndpointsGone(ObjectKey),
    /// A Pod, new or changed.
    Pod(Box<Pod>),
    /// A Pod was deleted.
    PodGone(ObjectKey),
    /// Every object of the kind that existed when the operator started is known.
    Synced(ObjectKind),
}

/// Kinds whose first listing is awaited: until then, what is not there may only not be known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// VarmorPolicies and VarmorClusterPolicies.
    Policies,
    /// ArmorProfileModels.
    Models,
    /// ArmorProfiles.
    Profiles,
    /// Nodes.
    Nodes,
    /// NodeReports.
    Reports,
    /// Services.
    Services,
    /// EndpointSlices.
    Endpoints,
    /// Pods.
    Pods,
}
