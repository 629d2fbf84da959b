//! Ending a run early without losing it.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::Error;

/// The wish to end the run after what is running now.
///
/// The flag is for code between samples; the descriptor becomes readable at the same time and
/// wakes code that waits for a process.
#[derive(Debug)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    wake: UnixStream,
    waker: UnixStream,
}

impl Stop {
    /// A wish that only [`Stop::request`] expresses.
    ///
    /// # Errors
    ///
    /// When the kernel gives no socket pair.
    pub fn new() -> Result<Self, Error> {
        let (wake, waker) = UnixStream::pair().map_err(|source| Error::Signals { source })?;
        Ok(Self {
            flag: Arc::default(),
            wake,
            waker,
        })
    }

    /// A wish that Ctrl-C, SIGTERM and SIGHUP express too. The second one ends the program as if
    /// there were no handler.
    ///
    /// # Errors
    ///
    /// When the kernel gives no socket pair or refuses the handlers.
    pub fn on_signals() -> Result<Self, Error> {
        let stop = Self::new()?;
        stop.register()
            .map_err(|source| Error::Signals { source })?;
        Ok(stop)
    }

    fn register(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // First, so that it sees the flag as the previous signal left it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&self.flag))?;
            signal_hook::flag::register(signal, Arc::clone(&self.flag))?;
            signal_hook::low_level::pipe::register(signal, self.waker.try_clone()?)?;
        }
        Ok(())
    }

    /// Asks for the end.
    pub fn request(&self) {
        self.flag.store(true, Ordering::Relaxed);
        // A full socket is readable already, which is all that is wanted.
        let _ = (&self.waker).write(&[0]);
    }

    /// Whether the end was asked for.
    pub fn is_requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
