//! The demo: what is done, in which surroundings, and how it is counted.

mod action;
mod report;
mod rootfs;
mod screen;
mod stage;
mod tally;

pub use screen::{execute, stage};
pub use stage::Stage;
