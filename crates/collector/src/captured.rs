//! The bytes of a capture in the store, as a source to read from.

use std::io::{self, Read};
use std::sync::Arc;

use store::{CaptureId, CaptureParts, Store};

use crate::answer::Refusal;

/// Reads a capture part by part, each when the one before was taken, so that one is in memory at a time. Reading blocks.
pub(crate) struct CapturedBytes {
    store: Arc<dyn Store>,
    id: CaptureId,
    parts: u64,
    /// Number of the next part.
    next: u64,
    part: io::Cursor<Vec<u8>>,
}

impl CapturedBytes {
    /// Reads the capture that was opened with this result.
    pub(crate) fn new(store: Arc<dyn Store>, id: CaptureId, opened: CaptureParts) -> Self {
        Self {
            store,
            id,
            parts: opened.parts,
            next: 0,
            part: io::Cursor::default(),
        }
    }

    /// Returns the next part.
    fn next_part(&self) -> io::Result<Vec<u8>> {
        let part = self.store.capture_part(self.id, self.next);
        // The cause may have a path of this machine; it is not for clients.
        let part = part.map_err(|error| io::Error::other(Refusal::from(error).message))?;
        part.ok_or_else(|| io::Error::other("the capture was deleted meanwhile"))
    }
}

impl Read for CapturedBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let read = self.part.read(buffer)?;
            if read > 0 || self.next >= self.parts {
                return Ok(read);
            }
            self.part = io::Cursor::new(self.next_part()?);
            self.next += 1;
        }
    }
}
