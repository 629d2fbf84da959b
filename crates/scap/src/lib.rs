//! Captures of sysdig and Falco (scap files): read, written, replayed.
//!
//! A capture is a sequence of blocks: the machine, its users, threads and open descriptors, then
//! events. Events are numbered and have parameters by position ([`table`]); what they do not say is
//! known from the events before them. [`replay::Replay`] keeps that state and shows each event to a
//! [`event::Evaluator`] as a live engine would; [`write::Writer`] turns the events that an evaluator sees into
//! a capture.
//!
//! Nothing here opens files: sources and targets are [`std::io::Read`] and [`std::io::Write`]. Nothing
//! in a capture is trusted: lengths are checked against what there is before they are used, and what
//! is kept has limits.

mod block;
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
