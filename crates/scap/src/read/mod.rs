//! Reading captures.

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

/// Takes what stands before and between the events.
pub trait Lists {
    /// The machine.
    fn machine(&mut self, machine: MachineInfo);
    /// One thread.
    fn thread(&mut self, entry: &ThreadEntry<'_>);
    /// One descriptor of a thread: thread, number, inode, what it is.
    fn descriptor(&mut self, tid: i64, number: i64, inode: u64, entry: &DescriptorEntry<'_>);
    /// One user or group.
    fn user(&mut self, entry: &UserEntry<'_>);
}

/// Reads a capture from any source, compressed or not.
pub struct Reader<R: Read> {
    blocks: Blocks<Unpacked<R>>,
    events: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the first bytes.
    ///
    /// # Errors
    ///
    /// If that fails, or they are not those of a capture.
    pub fn new(source: R) -> Result<Self, Error> {
        let unpacked = Unpacked::new(source).map_err(|cause| Error::Io { offset: 0, cause })?;
        let mut reader = Self {
            blocks: Blocks::new(unpacked),
            events: 0,
        };
        reader.first()?;
        Ok(reader)
    }

    /// How many bytes were consumed, uncompressed.
    pub fn offset(&self) -> u64 {
        self.blocks.offset()
    }

    /// How many events were read.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn first(&mut self) -> Result<(), Error> {
        match self.blocks.advance() {
            Ok(Some(frame)) if frame.ty == SECTION => section(&self.blocks.block(&frame)),
            Ok(Some(frame)) => Err(Error::Foreign { found: frame.ty }),
            Ok(None) => Err(Error::Empty),
            // What is no capture has no lengths either.
            Err(Error::Corrupt { .. } | Error::Truncated { .. })
                if self.blocks.peek().is_some_and(|found| found != SECTION) =>
            {
                let found = self.blocks.peek().unwrap_or_default();
                Err(Error::Foreign { found })
            }
            // Its lengths mean something else here.
            Err(Error::Corrupt { .. }) if self.blocks.is_swapped() => Err(Error::Corrupt {
                offset: 0,
                problem: BYTE_ORDER.to_owned(),
            }),
            Err(other) => Err(other),
        }
    }

    /// The next event; what stands before it goes to `lists`. `None` at the end.
    ///
    /// # Errors
    ///
    /// If the capture cannot be read further. What came before stands.
    // What is returned through memory is written in parts and copied whole, which stalls the processor
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

    /// Passes over events of types that nobody wants, up to `limit`. Of those only the frame and the
    /// type are looked at. Returns how many they were.
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
    /// From 2 on older readers cannot know what they read.
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
    read.ok_or_else(|| block.corrupt(format!("a {what} that is shorter than it says")))
}

/// A source with the bytes that were looked at put back.
type Whole<R> = io::Chain<io::Cursor<Vec<u8>>, R>;

/// A source that may be compressed, by gzip. One that ends within compressed bytes fails with
/// [`io::ErrorKind::UnexpectedEof`] after what could be unpacked.
pub struct Unpacked<R: Read>(Packing<R>);

enum Packing<R: Read> {
    Plain(Whole<R>),
    Gzip(Box<MultiGzDecoder<BufReader<Whole<R>>>>),
}

impl<R: Read> Unpacked<R> {
    /// Reads the first bytes.
    ///
    /// # Errors
    ///
    /// If that fails.
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

    /// Whether it is compressed.
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
