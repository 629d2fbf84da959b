//! The loop that UnixBench calls `syscall`: five calls, on the read end of a pipe without writer.
//!
//! The C library's functions make the calls, as in UnixBench: the return from such a function, directly after a
//! return from the kernel, takes longer than the whole call where the kernel has overwritten the processor's
//! return address predictions.

use std::hint::black_box;

use nix::sys::stat::{Mode, umask};
use nix::unistd::{dup, getpid, getuid};

use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let (reader, writer) = rustix::pipe::pipe().map_err(Error::call("make a pipe"))?;
    drop(writer);
    Ok(Box::new(move |times| {
        for _ in 0..times {
            drop(dup(&reader).map_err(Error::call("dup"))?);
            black_box(getpid());
            black_box(getuid());
            black_box(umask(Mode::S_IWGRP | Mode::S_IWOTH));
        }
        Ok(())
    }))
}
