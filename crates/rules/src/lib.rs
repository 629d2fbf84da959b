//! Falco's rule language: loads, checks, compiles and evaluates rules, and derives the interest plan from
//! them.

pub mod alert;
mod compile;
pub mod condition;
pub mod describe;
pub mod diagnostic;
pub mod engine;
pub mod level;
pub mod lint;
pub mod load;
mod output;
mod paths;
pub mod plan;
pub mod profile;
pub mod ruleset;
mod sources;
pub mod synthetic_event;
pub mod trace;
mod version;

pub use alert::{Alert, AlertDetails, AlertProcess, AlertValue};
pub use diagnostic::{Code, Diagnostic, Location, Severity};
pub use engine::{
    AlertSink, AppendOutput, Engine, EngineOptions, ExtraField, Recorder, RuleMatch, RuleMatching,
    Scratch,
};
pub use level::{Level, UnknownLevel};
pub use load::Loader;
pub use ruleset::{Priority, Rule, Ruleset};
