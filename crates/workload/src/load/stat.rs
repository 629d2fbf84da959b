//! A call that takes a path and opens nothing.

use std::hint::black_box;

use super::kernel_path;
use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    let path = kernel_path(&setup.file()?)?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            black_box(rustix::fs::stat(&*path).map_err(Error::call("stat the file"))?);
        }
        Ok(())
    }))
}
