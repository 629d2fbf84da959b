//! A call with one argument that changes the process and nothing else.

use std::hint::black_box;

use rustix::fs::Mode;

use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    Ok(Box::new(|times| {
        for _ in 0..times {
            black_box(rustix::process::umask(Mode::WGRP | Mode::WOTH));
        }
        Ok(())
    }))
}
