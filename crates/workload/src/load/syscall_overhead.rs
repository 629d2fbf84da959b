//! The loop that UnixBench calls `syscall`: five calls, on the read end of a pipe without writer.
//!
//! They are made by the C library's functions, as there: the return from such a function, right after
//! one from the kernel, takes longer than the whole call where the kernel has overwritten what the
//! processor had noted of return addresses.

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
