//! The demo: actions, environments, and counting of alerts.

mod action;
mod report;
mod rootfs;
mod screen;
mod stage;
mod tally;

pub use screen::{execute, stage};
pub use stage::Stage;
