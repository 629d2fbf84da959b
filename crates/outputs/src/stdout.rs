//! The standard output.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::channel::{Channel, Delivery, DeliveryError};
use crate::stream::LineStream;

/// Writes lines to the standard output, each with one `write(2)`, so that they do not mix with
/// what the watched program writes there.
#[derive(Debug)]
pub struct StdoutChannel {
    file: File,
    stream: LineStream,
}

impl StdoutChannel {
    /// Duplicates the standard output.
    ///
    /// # Errors
    ///
    /// If it is closed.
    pub fn open() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        Ok(Self {
            file,
            stream: LineStream::default(),
        })
    }
}

impl Channel for StdoutChannel {
    fn name(&self) -> &str {
        "stdout"
    }

    fn deliver(&mut self, alerts: &[Arc<Delivery>]) -> Result<(), DeliveryError> {
        self.stream.write(&self.file, alerts)
    }
}
