//! Reader for captures.

mod blocks;
mod record;

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use crate::Error;
use crate::block::{Content, MAGIC, SECTION};
use crate::bytes::Bytes;
use crate::list::{DescriptorEntry, ListVersion, MachineInfo, ThreadEntry, UserEntry};

pub(crate) use blocks::Skips;
use blocks::{Block, Blocks};
pub(crate) use record::KeptParams;
pub use record::{MAX_PARAMS, Params, Record, STATE_ONLY, Starts};

/// Receives the lists before and between the events.
pub trait Lists {
    /// Description of the machine.
    fn machine(&mut self, machine: MachineInfo);
    /// A thread.
    fn thread(&mut self, entry: &ThreadEntry<'_>);
    /// A descriptor of a thread: thread id, number, inode and entry.
    fn descriptor(&mut self, tid: i64, number: i64, inode: u64, entry: &DescriptorEntry<'_>);
    /// A user or group.
    fn user(&mut self, entry: &UserEntry<'_>);
}

/// Reads a capture, compressed or not, from any source.
pub struct Reader<R: Read> {
    blocks: Blocks<Unpacked<R>>,
    events: u64,
}

impl<R: Read> Reader<R> {
    /// Creates a reader and reads the first bytes.
    ///
    /// # Errors
    ///
    /// The source fails, or is not a capture.
    pub fn new(source: R) -> Result<Self, Error> {
        let unpacked = Unpacked::new(source).map_err(|cause| Error::Io { offset: 0, cause })?;
        let mut reader = Self {
            blocks: Blocks::new(unpacked),
            events: 0,
        };
        reader.first()?;
        Ok(reader)
    }

    /// Returns the number of consumed bytes, uncompressed.
    pub fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// Returns the number of events read.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn first(&mut self) -> Result<(), Error> {
        match self.blocks.advance() {
            Ok(Some(frame)) if frame.ty == SECTION => section(&self.blocks.block(&frame)),
            Ok(Some(frame)) => Err(Error::Foreign { found: frame.ty }),
            Ok(None) => Err(Error::Empty),
            // A file that is not a capture has no valid lengths either.
            Err(Error::Corrupt { .. } | Error::Truncated { .. })
                if self.blocks.peek().is_some_and(|found| found != SECTION) =>
            {
                let found = self.blocks.peek().unwrap_or_default();
                Err(Error::Foreign { found })
            }
            // Its lengths have the other byte order.
            Err(Error::Corrupt { .. }) if self.blocks.is_swapped() => Err(Error::Corrupt {
                offset: 0,
                problem: BYTE_ORDER.to_owned(),
            }),
            Err(other) => Err(other),
        }
    }

    /// Returns the next event, or `None` at the end. Passes the lists before it to `lists`.
    ///
    /// # Errors
    ///
    /// The capture cannot be read further. Earlier events stay valid.
    // Returning through memory writes in parts and copies as a whole, which stalls the processor
    // for longer than it takes to find the next event.
    #[inline(always)]
    pub fn next<L: Lists>(&mut self, lists: &mut L) -> Result<Option<Record<'_>>, Error> {
        loop {
            let Some(frame) = self.blocks.advance()? else {
                return Ok(None);
            };
            let shape = match Content::of(frame.ty) {
                Content::Event { has_flags, is_old } => record::HeaderKind { has_flags, is_old },
                _ => {
                    list(&self.blocks.block(&frame), lists)?;
                    continue;
                }
            };
            self.events += 1;
            return Record::parse(&self.blocks.block(&frame), shape).map(Some);
        }
    }

    /// Skips up to `limit` events of skipped types, of which only the frame and the type are
    /// parsed. Returns their number.
    pub(crate) fn pass_over(&mut self, skips: &Skips, limit: u64) -> u64 {
        let passed = self.blocks.pass_over(skips, limit);
        self.events += passed;
        passed
    }
}

const BYTE_ORDER: &str = "it was written in the byte order of another machine";

fn section(block: &Block<'_>) -> Result<(), Error> {
    let mut bytes = Bytes::new(block.body);
    let (magic, major, minor) = (bytes.u32(), bytes.u16(), bytes.u16());
    let (Some(magic), Some(major), Some(minor)) = (magic, major, minor) else {
        return Err(block.corrupt("a header that is too short"));
    };
    if magic != MAGIC {
        return Err(block.corrupt(BYTE_ORDER));
    }
    /// Newest supported major version. A reader cannot parse the events of later ones.
    const NEWEST: u16 = 1;
    if major > NEWEST {
        return Err(Error::Version { major, minor });
    }
    Ok(())
}

#[cold]
fn list<L: Lists>(block: &Block<'_>, lists: &mut L) -> Result<(), Error> {
    let (read, what) = match Content::of(block.ty) {
        Content::Section => return section(block),
        Content::Machine => {
            let machine = MachineInfo::parse(block.body);
            let read = machine.map(|machine| lists.machine(machine));
            (read, "description of the machine")
        }
        Content::Threads(version) => {
            let see = |entry: &ThreadEntry<'_>| lists.thread(entry);
            let read = ThreadEntry::each(block.body, ListVersion(version), see);
            (read, "list of threads")
        }
        Content::Descriptors { is_sized } => {
            let read = DescriptorEntry::each(block.body, is_sized, |tid, number, inode, entry| {
                lists.descriptor(tid, number, inode, &entry);
            });
            (read, "list of descriptors")
        }
        Content::Users { is_sized } => {
            let read = UserEntry::each(block.body, is_sized, |entry| lists.user(&entry));
            (read, "list of users")
        }
        Content::Packets => {
            return Err(Error::Packets {
                offset: block.offset,
            });
        }
        Content::Event { .. } | Content::Other => return Ok(()),
    };
    read.ok_or_else(|| block.corrupt(format!("a {what} shorter than its length field")))
}

/// A source with its already read prefix prepended.
type Whole<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

/// A source that may be compressed with gzip. A truncated compressed source fails with
/// [`io::ErrorKind::UnexpectedEof`] after everything that can be unpacked.
pub struct Unpacked<R: Read>(Packing<R>);

enum Packing<R: Read> {
    Plain(Whole<R>),
    Gzip(Box<MultiGzDecoder<BufReader<Whole<R>>>>),
}

impl<R: Read> Unpacked<R> {
    /// Creates the source and reads the first bytes.
    ///
    /// # Errors
    ///
    /// Reading fails.
    pub fn new(mut source: R) -> io::Result<Self> {
        let mut start = Vec::with_capacity(2);
        source.by_ref().take(2).read_to_end(&mut start)?;
        let is_gzip = start == [0x1f, 0x8b];
        let whole = io::Cursor::new(start).chain(source);
        Ok(Self(if is_gzip {
            let buffered = BufReader::with_capacity(64 << 10, whole);
            Packing::Gzip(Box::new(MultiGzDecoder::new(buffered)))
        } else {
            Packing::Plain(whole)
        }))
    }

    /// Returns true if the source is compressed.
    pub fn is_compressed(&self) -> bool {
        matches!(self.0, Packing::Gzip(_))
    }
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Packing::Plain(whole) => whole.read(buffer),
            Packing::Gzip(decoder) => decoder.read(buffer),
        }
    }
}
