//! OSBench's five operations, reimplemented from their definitions.
//!
//! A batch is a pass as OSBench defines it. The runner takes the fastest pass, as OSBench does.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use fork::Fork;

use crate::Error;
use crate::load::expect_count;
use crate::measure::{Batch, Setup};

/// Number of threads, processes and programs of a pass.
pub(crate) const CROWD: u64 = 100;
/// Number of files of a pass, of 32 bytes each.
pub(crate) const FILES: u64 = 65_534;
/// Number of chunks of a pass, of 4 to 128 bytes.
pub(crate) const CHUNKS: u64 = 1_000_000;

pub(crate) fn create_files(setup: &Setup) -> Result<Batch, Error> {
    // Each thread has files of its own.
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    let thread = THREADS.fetch_add(1, Ordering::Relaxed);
    let folder = setup.scratch().join(format!("files-{thread}"));
    fs::create_dir_all(&folder).map_err(Error::file("make the folder", &folder))?;
    Ok(Box::new(move |times| {
        let path = |number: u64| folder.join(number.to_string());
        for number in 0..times {
            let path = path(number);
            fs::write(&path, [b'x'; 32]).map_err(Error::file("write", &path))?;
        }
        for number in 0..times {
            let path = path(number);
            fs::remove_file(&path).map_err(Error::file("remove", &path))?;
        }
        Ok(())
    }))
}

pub(crate) fn create_threads(_: &Setup) -> Result<Batch, Error> {
    Ok(Box::new(|times| {
        let threads: Vec<_> = (0..times)
            .map(|_| std::thread::Builder::new().spawn(|| {}))
            .collect::<Result<_, _>>()
            .map_err(Error::call("start a thread"))?;
        for thread in threads {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        Ok(())
    }))
}

pub(crate) fn create_processes(setup: &Setup) -> Result<Batch, Error> {
    crate::load::fork_exit_wait::one_thread(setup)?;
    Ok(Box::new(|times| {
        let mut children = Vec::new();
        for _ in 0..times {
            match fork::fork().map_err(Error::call("fork"))? {
                Fork::Child => std::process::exit(0),
                Fork::Parent(pid) => children.push(pid),
            }
        }
        for pid in children {
            let status = fork::waitpid(pid).map_err(Error::call("wait for the child"))?;
            expect_count("as wait status", 0, usize::try_from(status).unwrap_or(1))?;
        }
        Ok(())
    }))
}

pub(crate) fn launch_programs(_: &Setup) -> Result<Batch, Error> {
    Ok(Box::new(|times| {
        let children: Vec<Child> = (0..times)
            .map(|_| Command::new("/bin/true").stdin(Stdio::null()).spawn())
            .collect::<Result<_, _>>()
            .map_err(Error::call("start /bin/true"))?;
        for mut child in children {
            let status = child.wait().map_err(Error::call("wait for /bin/true"))?;
            expect_count("successes", 1, usize::from(status.success()))?;
        }
        Ok(())
    }))
}

pub(crate) fn mem_alloc(_: &Setup) -> Result<Batch, Error> {
    Ok(Box::new(|times| {
        let mut chunks: Vec<Vec<u8>> = Vec::with_capacity(usize::try_from(times).unwrap_or(0));
        for number in 0..times {
            // OSBench draws sizes from 4 to 128; these repeat, which costs the same.
            let size = usize::try_from(4 + number * 37 % 125).unwrap_or(4);
            chunks.push(std::hint::black_box(Vec::with_capacity(size)));
        }
        drop(std::hint::black_box(chunks));
        Ok(())
    }))
}
