//! The cheapest call that no library caches.

use std::hint::black_box;

use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    Ok(Box::new(|times| {
        for _ in 0..times {
            black_box(rustix::process::getppid());
        }
        Ok(())
    }))
}
