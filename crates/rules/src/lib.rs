//! Falco's rule language: load, check, compile, evaluate; rules to interest plan.

pub mod condition;
pub mod diagnostic;
