//! The bytes of a capture, decompressed in a thread of its own if there is a processor for it.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use scap::read::Unpacked;

/// Number of bytes read from the file, before decompression.
#[derive(Clone, Debug, Default)]
pub(super) struct Count(Arc<AtomicU64>);

impl Count {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A reader that counts its bytes.
struct CountingReader<R> {
    source: R,
    count: Count,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        let more = u64::try_from(read).unwrap_or(u64::MAX);
        self.count.0.fetch_add(more, Ordering::Relaxed);
        Ok(read)
    }
}

/// Returns true if a file begins as a capture does, or is compressed. A file that cannot be read is not a
/// capture.
pub(super) fn is_capture(path: &Path) -> bool {
    const STARTS: [&[u8]; 2] = [&[0x0a, 0x0d, 0x0d, 0x0a], &[0x1f, 0x8b]];
    let mut start = Vec::with_capacity(4);
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
    read.is_ok() && STARTS.iter().any(|known| start.starts_with(known))
}

/// Returns a reader of the decompressed bytes of a capture.
pub(super) fn unpack(source: Box<dyn Read + Send>, count: &Count) -> io::Result<Box<dyn Read>> {
    let count = count.clone();
    let unpacked = Unpacked::new(CountingReader { source, count })?;
    // Without another processor, a thread would only take time from its reader.
    let is_alone = thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    if is_alone || !unpacked.is_compressed() {
        return Ok(Box::new(unpacked));
    }
    Ok(Box::new(ReadAhead::new(unpacked)?))
}

/// Number of bytes in a piece, and number of pieces that are decompressed ahead of the reader.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;

/// A reader that decompresses ahead in a thread of its own.
struct ReadAhead {
    full: Receiver<io::Result<Vec<u8>>>,
    empty: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
    read: usize,
}

impl ReadAhead {
    fn new(mut source: impl Read + Send + 'static) -> io::Result<Self> {
        let (filled, full) = mpsc::sync_channel(PIECES);
        let (empty, emptied) = mpsc::sync_channel(PIECES + 1);
        thread::Builder::new()
            .name("unpack".to_owned())
            .spawn(move || while deliver(&mut source, &filled, &emptied) {})?;
        Ok(Self {
            full,
            empty,
            piece: Vec::new(),
            read: 0,
        })
    }

    /// Takes the next piece. Returns false at the end.
    fn next(&mut self) -> io::Result<bool> {
        // The thread sends its end, too: if it ends without that, it has failed.
        let next = self.full.recv().map_err(io::Error::other)??;
        let used = std::mem::replace(&mut self.piece, next);
        self.read = 0;
        // At the end there may be no receiver.
        let _ = self.empty.try_send(used);
        Ok(!self.piece.is_empty())
    }
}

/// Decompresses one piece and sends it. Returns false at the end, or if the receiver is gone.
fn deliver(
    source: &mut impl Read,
    filled: &SyncSender<io::Result<Vec<u8>>>,
    emptied: &Receiver<Vec<u8>>,
) -> bool {
    // At the start no used piece has come back.
    let mut piece = emptied.try_recv().unwrap_or_default();
    piece.resize(PIECE, 0);
    let mut len = 0;
    while len < PIECE {
        match source.read(&mut piece[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => {
                piece.truncate(len);
                if len == 0 || filled.send(Ok(piece)).is_ok() {
                    // A receiver that is gone need not know the error.
                    let _ = filled.send(Err(error));
                }
                return false;
            }
        }
    }
    piece.truncate(len);
    filled.send(Ok(piece)).is_ok() && len > 0
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read == self.piece.len() && !self.next()? {
            return Ok(0);
        }
        let rest = &self.piece[self.read..];
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        self.read += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that gives some bytes, and then an error or the end.
    struct Source {
        left: usize,
        end: Option<ErrorKind>,
    }

    impl Read for Source {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let len = self.left.min(buffer.len()).min(1000);
            buffer[..len].fill(7);
            self.left -= len;
            match self.end {
                Some(kind) if len == 0 => Err(kind.into()),
                _ => Ok(len),
            }
        }
    }

    #[test]
    fn all_bytes_come_before_the_end_or_the_error() {
        for left in [0, 1, PIECE, PIECE * (PIECES + 3) + 5] {
            for end in [None, Some(ErrorKind::UnexpectedEof)] {
                let mut ahead = ReadAhead::new(Source { left, end }).unwrap();
                let mut all = Vec::new();
                let result = ahead.read_to_end(&mut all);
                assert_eq!(all.len(), left);
                assert!(all.iter().all(|byte| *byte == 7));
                assert_eq!(result.err().map(|error| error.kind()), end);
            }
        }
    }

    #[test]
    fn who_stops_reading_is_not_waited_for() {
        let source = Source {
            left: usize::MAX,
            end: None,
        };
        let mut ahead = ReadAhead::new(source).unwrap();
        assert_eq!(ahead.read(&mut [0; 10]).unwrap(), 10);
        drop(ahead);
    }
}
