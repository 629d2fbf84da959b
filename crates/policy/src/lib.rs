//! Confinement policies: the model of a policy, the loader, and the rule compiler of each enforcer.
//!
//! [`load()`] reads the language of vArmor into a [`Policy`]. Every rule, built in or raw, is a list of
//! [`Restriction`]s, which are independent of enforcers. [`compile`] lowers restrictions for each
//! [`EnforcerKind`] and grades the result.

pub mod builtin;
pub mod compile;
pub mod diagnostic;
mod enforcer;
pub mod executable;
pub mod load;
pub mod model;
pub mod operation;
pub mod pattern;
mod policy;
mod restriction;

pub use builtin::Builtin;
pub use diagnostic::{Code, Diagnostic};
pub use enforcer::{EnforcerKind, Enforcers};
pub use load::load;
pub use model::Model;
pub use policy::{Mode, Policy, Profile, Rule, RuleAction, RuleOrigin};
pub use restriction::{
    AllowedPeer, Destination, FileAccess, MountMatch, PeerHost, PortRange, PtraceAccess,
    PtraceScope, Restriction, SocketMatch, SyscallMatch,
};
