//! The loop that UnixBench calls `syscall`: five calls, on the read end of a pipe without writer.

use std::hint::black_box;

use rustix::fs::Mode;

use crate::Error;
use crate::measure::{Batch, Setup};

pub(crate) fn prepare(_: &Setup) -> Result<Batch, Error> {
    let (reader, writer) = rustix::pipe::pipe().map_err(Error::call("make a pipe"))?;
    drop(writer);
    Ok(Box::new(move |times| {
        for _ in 0..times {
            drop(rustix::io::dup(&reader).map_err(Error::call("dup"))?);
            black_box(rustix::process::getpid());
            black_box(rustix::process::getuid());
            black_box(rustix::process::umask(Mode::WGRP | Mode::WOTH));
        }
        Ok(())
    }))
}
