//! A read with no kernel work beyond the call.

use std::fs::File;

use super::expect_count;
use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let zero = File::open("/dev/zero").map_err(Error::call("open /dev/zero"))?;
    Ok(Box::new(move |times| {
        let mut byte = [0];
        for _ in 0..times {
            let count = rustix::io::read(&zero, &mut byte).map_err(Error::call("read"))?;
            expect_count("byte", 1, count)?;
        }
        Ok(())
    }))
}
