//! Tools for authors of rules: what `tollgate rules` does, without its command line.

pub mod alert_explanation;
mod attack;
pub mod check;
mod clause_rows;
pub mod convert;
pub mod cost;
pub mod coverage;
mod described_event;
pub mod event_explanation;
pub mod events;
pub mod explain;
pub mod falco_results;
pub mod fields;
pub mod lint;
pub mod list;
mod notes;
mod options;
mod responses;
mod sigma;
pub mod silence;
pub mod test;
pub mod words;

pub use self::options::{ListFormat, RuleFiles};
pub use self::responses::ResponseFiles;
