//! The tour: what is done, in which surroundings, and how it is counted.

pub(crate) mod action;
pub(crate) mod report;
pub(crate) mod rootfs;
pub(crate) mod stage;
pub(crate) mod tally;
