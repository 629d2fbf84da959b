//! Falco's rule language: load, check, compile, evaluate; rules to interest plan.

pub mod condition;
pub mod diagnostic;
pub mod load;
pub mod ruleset;

pub use diagnostic::{Code, Diagnostic, Location, Severity};
pub use load::Loader;
pub use ruleset::{Priority, Rule, Ruleset};
