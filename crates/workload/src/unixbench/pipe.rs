//! Sends 512 bytes through a pipe and back within one process (UnixBench `pipe`).

use nix::unistd;

use crate::Error;
use crate::load::expect_count;
use crate::measure::{Batch, Setup};

const SIZE: usize = 512;

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let (reader, writer) = rustix::pipe::pipe().map_err(Error::call("make a pipe"))?;
    Ok(Box::new(move |times| {
        // On the stack, as in C: the block's address decides how fast it is copied.
        let mut block = [0; SIZE];
        for _ in 0..times {
            // Uses the C library's functions, as UnixBench does: see `load::syscall_overhead`.
            let written = unistd::write(&writer, &block).map_err(Error::call("write"))?;
            let read = unistd::read(&reader, &mut block).map_err(Error::call("read"))?;
            expect_count("bytes", SIZE * 2, written + read)?;
        }
        Ok(())
    }))
}
