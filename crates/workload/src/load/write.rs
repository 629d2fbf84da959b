//! A write with no kernel work beyond the call.

use std::fs::OpenOptions;

use super::expect_count;
use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let null = OpenOptions::new().write(true).open("/dev/null");
    let null = null.map_err(Error::call("open /dev/null"))?;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let count = rustix::io::write(&null, b"x").map_err(Error::call("write"))?;
            expect_count("byte", 1, count)?;
        }
        Ok(())
    }))
}
