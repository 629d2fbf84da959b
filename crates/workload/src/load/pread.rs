//! Reads of 4 KiB at changing offsets of a file that is in the page cache.

use std::os::unix::fs::FileExt;

use crate::Error;
use crate::load::expect_count;
use crate::measure::{Batch, Setup};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 4096;

pub(crate) fn prepare(setup: &Setup) -> Result<Batch, Error> {
    let path = setup.scratch().join("blocks");
    let content = vec![7_u8; BLOCK * usize::try_from(BLOCKS).expect("16 MiB fit")];
    std::fs::write(&path, content).map_err(Error::file("write", &path))?;
    let file = std::fs::File::open(&path).map_err(Error::file("open", &path))?;
    let (mut block, mut place) = ([0; BLOCK], 0_u64);
    Ok(Box::new(move |times| {
        for _ in 0..times {
            // A step that has no common divisor with the number of blocks visits every block.
            place = (place + 1021) % BLOCKS;
            let read = file.read_at(&mut block, place * BLOCK as u64);
            expect_count("bytes", BLOCK, read.map_err(Error::call("pread"))?)?;
        }
        Ok(())
    }))
}
