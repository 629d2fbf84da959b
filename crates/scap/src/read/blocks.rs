//! The blocks of a capture, one after the other, in a buffer that does not grow with the file.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use super::record;
use crate::Error;
use crate::block::{EVENT_V2, FLAGGED_EVENT_V2, MAGIC};
use crate::bytes::Bytes;

/// One block without its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'b> {
    /// What it is.
    pub(crate) ty: u32,
    /// Where it begins, uncompressed.
    pub(crate) offset: u64,
    /// What is in it.
    pub(crate) body: &'b [u8],
}

/// Where a block is. Holds until the next one is gone to.
pub(crate) struct Frame {
    pub(crate) ty: u32,
    offset: u64,
    body: Range<usize>,
}

impl Block<'_> {
    pub(crate) fn corrupt(&self, problem: impl Into<String>) -> Error {
        Error::Corrupt {
            offset: self.offset,
            problem: problem.into(),
        }
    }
}

/// Type and length before a block, length after it.
const FRAME: usize = 12;
const HEADER: usize = 8;
/// No list or event is longer; what claims to be is refused before it is read.
const MAX_BLOCK: usize = 64 << 20;
/// How much is read at once, and by how much the buffer grows at most for bytes that have not come. It stays
/// in the cache of the processor, with what events refer to.
const CHUNK: usize = 64 << 10;

/// Types of events that nobody wants, by number.
#[derive(Debug)]
pub(crate) struct Skips(Box<[bool; Self::TYPES]>);

impl Skips {
    /// More than there are.
    const TYPES: usize = 1024;

    pub(crate) fn new(is_skipped: impl Fn(u16) -> bool) -> Self {
        let mut all = Box::new([false; Self::TYPES]);
        for (code, skips) in (0_u16..).zip(all.iter_mut()) {
            *skips = is_skipped(code);
        }
        Self(all)
    }

    #[inline]
    pub(crate) fn has(&self, code: u16) -> bool {
        self.0.get(usize::from(code)).copied().unwrap_or_default()
    }
}

/// The length of the block at the front, if it is a whole event of a type that is skipped.
#[inline]
fn passable(bytes: &[u8], skips: &Skips) -> Option<usize> {
    let (head, _) = bytes.split_first_chunk::<{ HEADER + record::FLAGGED_CODE + 2 }>()?;
    let number =
        |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let code = HEADER
        + match number(0) {
            EVENT_V2 => record::CODE,
            FLAGGED_EVENT_V2 => record::FLAGGED_CODE,
            _ => return None,
        };
    let len = usize::try_from(number(4)).ok()?;
    if !skips.has(u16::from_le_bytes([head[code], head[code + 1]])) || len < head.len() {
        return None;
    }
    let end = bytes.get(len - (FRAME - HEADER)..len)?;
    (end == &head[4..8]).then_some(len)
}

/// Reads blocks.
pub(crate) struct Blocks<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Position of `buffer[start]`, uncompressed.
    offset: u64,
    /// The compressed stream has no end.
    is_cut: bool,
}

impl<R: Read> Blocks<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
            offset: 0,
            is_cut: false,
        }
    }

    /// How many bytes were consumed, uncompressed.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The first four bytes of what is buffered, as a number.
    pub(crate) fn peek(&self) -> Option<u32> {
        Bytes::new(&self.buffer[self.start..self.end]).u32()
    }

    /// Whether what is buffered begins as a capture of a machine with the other byte order.
    pub(crate) fn is_swapped(&self) -> bool {
        let mut bytes = Bytes::new(&self.buffer[self.start..self.end]);
        bytes.take(HEADER).is_some() && bytes.u32() == Some(MAGIC.swap_bytes())
    }

    /// Goes to the next block; `None` at the end.
    #[inline(always)]
    pub(crate) fn advance(&mut self) -> Result<Option<Frame>, Error> {
        if self.end - self.start < HEADER && !self.fill(HEADER)? {
            if self.start == self.end && !self.is_cut {
                return Ok(None);
            }
            return Err(Error::Truncated {
                offset: self.offset,
            });
        }
        let mut header = Bytes::new(&self.buffer[self.start..self.end]);
        let ty = header.u32().unwrap_or_default();
        let len = header.u32().unwrap_or_default();
        let total = usize::try_from(len).unwrap_or(usize::MAX);
        let offset = self.offset;
        if !(FRAME..=MAX_BLOCK).contains(&total) {
            let problem = format!("a block of {len} bytes");
            return Err(Error::Corrupt { offset, problem });
        }
        if self.end - self.start < total && !self.fill(total)? {
            return Err(Error::Truncated { offset });
        }
        let body = self.start + HEADER..self.start + total - (FRAME - HEADER);
        if self.buffer[body.end..body.end + 4] != len.to_le_bytes() {
            let problem = format!("the block's length is {len} before it and another after it");
            return Err(Error::Corrupt { offset, problem });
        }
        self.start += total;
        self.offset += u64::from(len);
        Ok(Some(Frame { ty, offset, body }))
    }

    /// Passes over events of types that are skipped, as long as they are buffered and nothing is
    /// wrong with their frames: up to `limit` of them. Returns how many.
    pub(crate) fn pass_over(&mut self, skips: &Skips, limit: u64) -> u64 {
        let buffered = &self.buffer[..self.end];
        let mut at = self.start;
        let mut passed = 0;
        while passed < limit
            && let Some(len) = passable(&buffered[at..], skips)
        {
            at += len;
            passed += 1;
        }
        self.offset += u64::try_from(at - self.start).unwrap_or_default();
        self.start = at;
        passed
    }

    /// What is in the block that was gone to last.
    #[inline(always)]
    pub(crate) fn block(&self, frame: &Frame) -> Block<'_> {
        Block {
            ty: frame.ty,
            offset: frame.offset,
            body: &self.buffer[frame.body.clone()],
        }
    }

    /// Reads until `wanted` bytes are buffered. Room is made as bytes come, so that a length that
    /// lies costs nothing.
    #[cold]
    fn fill(&mut self, wanted: usize) -> Result<bool, Error> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < wanted {
            if self.end == self.buffer.len() {
                self.buffer.resize(self.end + CHUNK, 0);
            }
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(false),
                Ok(read) => self.end += read,
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                // A compressed stream without its end.
                Err(cause) if cause.kind() == ErrorKind::UnexpectedEof => {
                    self.is_cut = true;
                    return Ok(false);
                }
                Err(cause) => {
                    let read = u64::try_from(self.end).unwrap_or(u64::MAX);
                    let offset = self.offset.saturating_add(read);
                    return Err(Error::Io { offset, cause });
                }
            }
        }
        Ok(true)
    }
}
