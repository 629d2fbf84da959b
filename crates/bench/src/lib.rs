//! Runs workloads under subjects in interleaved order and records raw samples.
//!
//! A [`plan::Plan`] names workloads (command lines that do countable work), subjects (command lines that wrap a
//! workload: a tracer, a sandbox, an agent) and a number of rounds. Each round runs every workload under every
//! subject once. The order is drawn from a recorded seed and mirrored in the next round, so that a host that
//! becomes slower or faster during the run affects all subjects alike. Each round runs the bare workload twice,
//! as `native` and as `native-again`. The second is the A/A control: it shows the difference that the host
//! measures between two equal things.
//!
//! Each sample becomes one line of `samples.jsonl` before the next one starts. A sample whose command failed,
//! or whose work check does not hold, is kept, marked invalid, and used in no figure.
//!
//! | step | module |
//! |---|---|
//! | workloads, subjects and rounds | [`plan`] |
//! | order and end of a run | [`run`] |
//! | one timed process | [`execute`] |
//! | recorded data | [`record`], [`host`] |
//! | statistics | [`summary`], [`compare`](compare()) |
//! | `tollgate bench` | [`options`], [`command`] |
//!
//! Every subject is a command line, also this project's own engines; this crate links none of them.

mod background_command;
mod client;
pub mod command;
mod command_line;
mod compare;
mod error;
pub mod execute;
pub mod host;
mod limit;
pub mod options;
mod order;
mod output;
mod own_command;
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

/// Creates a private folder with an unpredictable name, removed when it is dropped.
fn scratch() -> Result<tempfile::TempDir, Error> {
    tempfile::tempdir().map_err(Error::file("make a folder in", &std::env::temp_dir()))
}
