//! Objects of Kubernetes that tollgate reads and writes.
//!
//! - vArmor's kinds ([`PolicyObject`], [`ArmorProfile`]) with its names, validation and status, so that its manifests
//!   work unchanged. The part `policy` of an object is kept as it is written: crate `policy` is its only parser, and
//!   [`compile::load`] passes it on.
//! - Falco operator's kinds ([`artifact`]), which bring rules and configuration.
//! - [`NodeReport`], the one kind of our own: what one node enforces.
//! - The parts of Kubernetes' own kinds that egress rules and coverage depend on: [`Service`], [`EndpointSlice`],
//!   [`Pod`] and [`Node`].
//!
//! [`crd::all`] makes the CustomResourceDefinitions from `data/schema.txt`.

pub mod annotations;
pub mod artifact;
mod behavior;
pub mod compile;
pub mod convert;
pub mod crd;
mod labels;
mod meta;
mod names;
mod network;
mod policy_object;
mod profile;
mod recording;
mod report;
mod schema;
pub mod validate;
pub mod yaml_text;

pub use behavior::{
    ArmorProfileModel, BehaviorReport, MAX_REASON, MAX_REASONS, MAX_TEXT, ModelCondition,
    ModelStatus, ModelingRun, NoRun, allowing_profile,
};
pub use labels::{LabelSelector, Operator, Requirement};
pub use meta::{Condition, ConditionStatus, Meta, Object, ObjectKey, OwnerReference};
pub use names::{MAX_NAME, NameTooLong, profile_name};
pub use network::{EndpointSlice, Node, Pod, Service};
pub use policy_object::{Coverage, Phase, PolicyObject, PolicySpec, PolicyStatus, Scope, Target};
pub use profile::{
    ArmorProfile, ArmorProfileSpec, ArmorProfileStatus, BehaviorModeling, NodeCondition, Profile,
    ProfileMode, policy_hash,
};
pub use recording::{
    BehaviorItem, Calls, Egress, FileUse, FilesAndSockets, Network, Recording, Socket,
};
pub use report::{
    DetectionState, EnforcerState, NodeArtifact, NodeReport, NodeReportStatus, ProfileState,
};
