//! Copies a file block by block, repeatedly (UnixBench `fstime`, `fsbuffer`, `fsdisk`).

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Error;
use crate::measure::{Batch, Setup};

/// The size of a block, and of the file in KiB.
#[derive(Clone, Copy)]
struct Shape {
    block: usize,
    kib: usize,
}

pub(crate) fn prepare_time(setup: &Setup) -> Result<Batch, Error> {
    prepare(
        setup,
        Shape {
            block: 1024,
            kib: 2000,
        },
    )
}

pub(crate) fn prepare_buffer(setup: &Setup) -> Result<Batch, Error> {
    prepare(
        setup,
        Shape {
            block: 256,
            kib: 500,
        },
    )
}

pub(crate) fn prepare_disk(setup: &Setup) -> Result<Batch, Error> {
    prepare(
        setup,
        Shape {
            block: 4096,
            kib: 8000,
        },
    )
}

/// Duration of writing, and of reading, before the copy. UnixBench takes two seconds for each.
const PRIME: Duration = Duration::from_secs(2);

fn prepare(setup: &Setup, shape: Shape) -> Result<Batch, Error> {
    // Each thread copies files of its own.
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    let open = |name: &str| {
        let path = setup.scratch().join(format!("{name}-{thread}"));
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(Error::file("make", &path))
    };
    let (mut from, mut to) = (open("from")?, open("to")?);
    let mut buffer: Vec<u8> = (0..=u8::MAX).cycle().take(shape.block).collect();
    let blocks = shape.kib * 1024 / shape.block;
    let prime = if setup.options.classic {
        PRIME
    } else {
        Duration::ZERO
    };
    prime_with(setup, prime, || {
        rewind(&mut from)?;
        (0..blocks)
            .try_for_each(|_| from.write_all(&buffer))
            .map_err(Error::call("write"))
    })?;
    prime_with(setup, prime, || {
        rewind(&mut from)?;
        (0..blocks)
            .try_for_each(|_| from.read_exact(&mut buffer))
            .map_err(Error::call("read"))
    })?;
    if setup.options.classic {
        crate::measure::settle(2, 1);
    }
    rewind(&mut from)?;
    rewind(&mut to)?;
    let mut left = blocks;
    Ok(Box::new(move |times| {
        for _ in 0..times {
            if left == 0 {
                rewind(&mut from)?;
                rewind(&mut to)?;
                left = blocks;
            }
            from.read_exact(&mut buffer).map_err(Error::call("read"))?;
            to.write_all(&buffer).map_err(Error::call("write"))?;
            left -= 1;
        }
        Ok(())
    }))
}

/// Goes through the file at least once, and until the time has passed.
fn prime_with(
    setup: &Setup,
    time: Duration,
    mut pass: impl FnMut() -> Result<(), Error>,
) -> Result<(), Error> {
    if setup.options.classic {
        crate::measure::settle(2, 2);
    }
    let start = Instant::now();
    loop {
        pass()?;
        if start.elapsed() >= time {
            return Ok(());
        }
    }
}

fn rewind(file: &mut File) -> Result<(), Error> {
    file.rewind().map_err(Error::call("seek"))
}
