//! Confinement policies: what they say, what each enforcer can make of it, and what it compiles to.
//!
//! `load` reads the language of vArmor into a [`Policy`], in which every rule, built in or raw, is a
//! list of [`Restriction`]s that know nothing of enforcers. `compile` lowers restrictions to
//! each [`Enforcer`] and grades the result.

pub mod builtin;
pub mod compile;
pub mod diagnostic;
pub mod load;
pub mod model;
pub mod operation;
pub mod pattern;
mod policy;
mod restriction;

pub use builtin::Builtin;
pub use diagnostic::{Code, Diagnostic};
pub use load::load;
pub use model::Model;
pub use policy::{Enforcer, Enforcers, Mode, Policy, Profile, Rule, RuleAction, RuleOrigin};
pub use restriction::{
    Destination, FileAccess, MountMatch, PortRange, PtraceAccess, PtraceScope, Restriction,
    SocketMatch, SyscallMatch,
};
