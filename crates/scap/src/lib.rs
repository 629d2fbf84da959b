//! Reads, writes and replays captures of sysdig and Falco (scap files).
//!
//! A capture is a sequence of blocks: the machine, its users, threads and open descriptors, then
//! events. Events are numbered and have parameters by position ([`table`]). Their remaining context
//! follows from earlier events: [`replay::Replay`] keeps that state and shows each event to an
//! [`event::Evaluator`] as a live engine would. [`write::Writer`] turns the events that an
//! evaluator sees into a capture.
//!
//! This crate opens no files: sources and targets are [`std::io::Read`] and [`std::io::Write`].
//! Captures are not trusted: lengths are checked against the available bytes before use, and the
//! size of the state is limited.

mod block;
pub mod browse;
mod bytes;
mod error;
mod flags;
pub mod list;
mod note;
pub mod read;
pub mod replay;
mod state;
pub mod table;
pub mod write;

pub use error::Error;
