//! Early end of a run that keeps its samples.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Error;

/// A request to end the run after the current command.
///
/// The flag is for code between samples. The descriptor becomes readable at the same time and wakes code that
/// waits for a process.
#[derive(Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    wake: UnixStream,
    waker: UnixStream,
}

impl Stop {
    /// Creates a request that only [`Stop::request`] sets.
    ///
    /// # Errors
    ///
    /// If the kernel cannot create a socket pair.
    pub fn new() -> Result<Self, Error> {
        let (wake, waker) = UnixStream::pair().map_err(|source| Error::Signals { source })?;
        Ok(Self {
            flag: Arc::default(),
            wake,
            waker,
        })
    }

    /// Creates a request that Ctrl-C, SIGTERM and SIGHUP set, too. The second of these signals ends the program
    /// as if there were no handler.
    ///
    /// # Errors
    ///
    /// If the kernel cannot create a socket pair or refuses the handlers.
    pub fn on_signals() -> Result<Self, Error> {
        let stop = Self::new()?;
        stop.register()
            .map_err(|source| Error::Signals { source })?;
        Ok(stop)
    }

    fn register(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Registered first, so that it sees the flag as the previous signal left it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&self.flag))?;
            signal_hook::flag::register(signal, Arc::clone(&self.flag))?;
            signal_hook::low_level::pipe::register(signal, self.waker.try_clone()?)?;
        }
        Ok(())
    }

    /// Requests the end of the run.
    pub fn request(&self) {
        self.flag.store(true, Ordering::Relaxed);
        // A full socket is already readable, which is enough.
        let _ = (&self.waker).write(&[0]);
    }

    /// Returns true if the end was requested.
    pub fn is_requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
