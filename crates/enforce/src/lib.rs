//! A policy in force.
//!
//! [`probe`](mod@probe) finds out which enforcers work here, by using them. [`Confinement::prepare`]
//! compiles a policy for those, and says of each whether it carries its part fully, partially or not at
//! all. [`Confinement::apply`] restricts the calling process, which is about to become the command. A
//! step that fails ends it: nothing runs with less than was announced. A container's first program is
//! made to restrict itself in the same way ([`Elsewhere`]).

mod caps;
mod confinement;
mod elsewhere;
mod landlock;
pub mod probe;
mod tree;

pub use confinement::{Confinement, Line, Place, Reach, Step, Unapplied, available};
pub use elsewhere::{Elsewhere, ruleset};
pub use landlock::LandlockError;

/// Why a policy cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ruleset of Landlock cannot be made.
    #[error("cannot make the Landlock ruleset")]
    Landlock(#[from] LandlockError),
    /// What this process may cannot be found out.
    #[error("cannot read the own capabilities")]
    Capabilities(#[from] sys::SyscallError),
}
