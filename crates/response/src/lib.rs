//! Responses to alerts: what this host does when a rule matches.
//!
//! Files in the format of Falco Talon say which alerts start which actions ([`load`]). A [`Responder`] is shown
//! every alert. It binds the process of a matching alert to a descriptor at once, so that a pid that is used again
//! is never hit, and leaves the rest to threads of its own. Each action is reported as an internal alert.

mod act;
mod actionner;
mod at_once;
mod bound;
mod denials;
mod diagnostic;
mod frozen;
mod group;
mod guard;
pub mod load;
mod matching;
mod outcome;
mod parameters;
mod prepare;
mod responder;
mod scripts;
#[cfg(test)]
mod testing;
mod tree;
mod worker;

pub use act::capture::{CapturedEvents, EventCapture};
pub use act::quarantine::Quarantiner;
pub use actionner::{Unavailable, host_actionners, unavailable};
pub use denials::Denials;
pub use diagnostic::{Code, Diagnostic};
pub use guard::PROTECTED;
pub use load::{Loaded, Responses, SourceFile};
pub use parameters::Network;
pub use prepare::{Means, PrepareError};
pub use responder::{Limits, Offered, Prepared, Responder, Settings};
