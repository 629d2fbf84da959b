//! One cheap call, made by number, to bypass caching in the C library.

use sys::syscall::{Harmless, harmless};

use crate::Error;
use crate::measure::{Batch, Setup};

fn prepare(call: Harmless, name: &'static str) -> Result<Batch, Error> {
    Ok(Box::new(move |times| {
        for _ in 0..times {
            let result = harmless(call);
            if result < 0 {
                return Err(Error::Unexpected {
                    expected: format!("{name} to succeed"),
                    got: std::io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(0))
                        .to_string(),
                });
            }
        }
        Ok(())
    }))
}

pub(crate) fn gettimeofday(_: &Setup) -> Result<Batch, Error> {
    prepare(Harmless::Gettimeofday, "gettimeofday")
}

pub(crate) fn getuid(_: &Setup) -> Result<Batch, Error> {
    prepare(Harmless::Getuid, "getuid")
}

pub(crate) fn getpid(_: &Setup) -> Result<Batch, Error> {
    prepare(Harmless::Getpid, "getpid")
}

pub(crate) fn getppid(_: &Setup) -> Result<Batch, Error> {
    prepare(Harmless::Getppid, "getppid")
}

pub(crate) fn times(_: &Setup) -> Result<Batch, Error> {
    prepare(Harmless::Times, "times")
}
