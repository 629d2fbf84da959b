//! Event sources of Falco plugins.
//!
//! A plugin is a shared object that is not ours. No process that evaluates rules loads one: the program
//! `tollgate-plugin-host` does, one process an event source, and sends events with the values of the fields that rules ask
//! for. [`protocol`] is what both sides say, [`Helper`] one such process, [`Source`] keeps one running,
//! [`RecordedSources`] has events that are in a capture, [`SourceEvaluator`] shows events to the rules.

mod catalogue;
mod describe;
mod evaluator;
mod host_process;
pub mod protocol;
mod recorded;
mod source;

pub use catalogue::{Catalogue, CatalogueError, LoadedPlugin, PluginConfig};
pub use describe::plugin_info;
pub use evaluator::SourceEvaluator;
pub use host_process::{Ending, Helper, HelperError, Limits};
pub use protocol::PROGRAM;
pub use recorded::{RecordedCounts, RecordedSources};
pub use source::{Counters, Incident, IncidentKind, Observer, Source, SourcePlan, Totals};
