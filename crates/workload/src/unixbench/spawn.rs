//! A small program that forks a child, which ends at once (UnixBench `spawn`).

use super::execl::start;
use super::tiny::Part;
use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    start(setup, Part::Spawn)
}
