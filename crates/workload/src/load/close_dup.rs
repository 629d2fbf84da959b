//! Duplicates and closes descriptors: the cost for a monitor that tracks them.

use std::fs::File;

use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let null = File::open("/dev/null").map_err(Error::call("open /dev/null"))?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            drop(rustix::io::dup(&null).map_err(Error::call("dup"))?);
        }
        Ok(())
    }))
}
