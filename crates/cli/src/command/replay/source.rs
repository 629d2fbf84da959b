//! The bytes of a capture, unpacked by a thread of their own where there is a processor for it.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use scap::read::Unpacked;

/// How many bytes were read, as they stand in the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Count(Arc<AtomicU64>);

impl Count {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts the bytes that are read.
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

/// Whether a file begins as a capture does, or is compressed. What cannot be read is none.
pub(super) fn is_capture(path: &Path) -> bool {
    const STARTS: [&[u8]; 2] = [&[0x0a, 0x0d, 0x0d, 0x0a], &[0x1f, 0x8b]];
    let mut start = Vec::with_capacity(4);
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
    read.is_ok() && STARTS.iter().any(|known| start.starts_with(known))
}

/// The bytes of a capture as they were before they were compressed.
pub(super) fn unpack(source: Box<dyn Read + Send>, count: &Count) -> io::Result<Box<dyn Read>> {
    let count = count.clone();
    let unpacked = Unpacked::new(CountingReader { source, count })?;
    // Without another processor it would only take time from those who wait for it.
    let is_alone = thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
    if is_alone || !unpacked.is_compressed() {
        return Ok(Box::new(unpacked));
    }
    Ok(Box::new(ReadAhead::new(unpacked)?))
}

/// Bytes that are unpacked at once, and how often that is done ahead of who reads them.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;

/// Reads ahead in a thread of its own.
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

    /// `false`: there is no more.
    fn next(&mut self) -> io::Result<bool> {
        // Sent at the end, too: a thread that is gone without it has failed.
        let next = self.full.recv().map_err(io::Error::other)??;
        let used = std::mem::replace(&mut self.piece, next);
        self.read = 0;
        // Nobody is there to take it when everything has been read.
        let _ = self.empty.try_send(used);
        Ok(!self.piece.is_empty())
    }
}

/// Unpacks one piece and hands it over. `false`: there is no more, or nobody wants it.
fn deliver(
    source: &mut impl Read,
    filled: &SyncSender<io::Result<Vec<u8>>>,
    emptied: &Receiver<Vec<u8>>,
) -> bool {
    // At the start none has come back.
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
                    // Who has stopped reading need not know.
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

    /// Gives some bytes, and then an error or nothing.
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
