//! Runs workloads against subjects in interleaved order and records raw samples.
//!
//! A [`plan::Plan`] names workloads (command lines that do something countable), subjects (command
//! lines that wrap a workload: a tracer, a sandbox, an agent) and a number of rounds. Each round
//! runs every workload under every subject once, in an order that is drawn from a recorded seed
//! and mirrored in the next round, so that a machine that gets slower or faster meanwhile does so
//! for all subjects alike. The bare workload takes part in each round twice, as `native` and as
//! `native-again`: the second is the A/A control that shows what the machine itself makes of two
//! equal things.
//!
//! One sample becomes one line of `samples.jsonl` before the next one starts. A sample whose
//! command failed or whose witness does not hold is kept, marked invalid, and used in no figure.
//!
//! | step | module |
//! |---|---|
//! | what to run | [`plan`] |
//! | in which order, until when | [`run`] |
//! | one process, timed | [`execute`] |
//! | what is kept | [`record`], [`host`] |
//! | what it says | [`summary`], [`compare`](compare()) |
//! | `tollgate bench` | [`command`] |
//!
//! Every subject is a command line, the project's own engines included; this crate links none of
//! them.

mod background_command;
mod client;
pub mod command;
mod command_line;
mod compare;
mod error;
pub mod execute;
pub mod host;
mod limit;
mod order;
mod pages;
mod part;
pub mod plan;
mod quick;
pub mod record;
pub mod run;
mod stop;
mod suite;
pub mod summary;
mod table;
mod tables;
mod unixbench_original;

pub use compare::{Change, Comparison, compare};
pub use error::Error;
pub use stop::Stop;

/// A folder that nobody else can guess or enter, removed when it is dropped.
fn scratch() -> Result<tempfile::TempDir, Error> {
    tempfile::tempdir().map_err(Error::file("make a folder in", &std::env::temp_dir()))
}
