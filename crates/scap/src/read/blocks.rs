//! Splits a capture into blocks, with a buffer whose size is independent of the file's.

use std::io::{ErrorKind, Read};
use std::ops::Range;

use super::record;
use crate::Error;
use crate::block::{EVENT_V2, FLAGGED_EVENT_V2, MAGIC};
use crate::bytes::Bytes;

/// A block without its frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block<'b> {
    /// Block type.
    pub(crate) ty: u32,
    /// Offset in the uncompressed capture.
    pub(crate) offset: u64,
    /// Content of the block.
    pub(crate) body: &'b [u8],
}

/// Location of a block. Valid until the next [`Blocks::advance`].
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

/// Size of the frame: type and length before a block, length after it.
const FRAME: usize = 12;
const HEADER: usize = 8;
/// Maximum length of a block. Longer ones are refused before they are read.
const MAX_BLOCK: usize = 64 << 20;
/// Read size, and the maximum growth of the buffer for bytes that have not arrived. Small enough
/// for the processor's cache, together with the data that events refer to.
const CHUNK: usize = 64 << 10;

/// Event types to skip, by number.
#[derive(Debug)]
pub(crate) struct Skips(Box<[bool; Self::TYPES]>);

impl Skips {
    /// Upper bound on event types.
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

/// Returns the length of the first block, if it is a complete event of a skipped type.
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

/// Reads blocks from a source.
pub(crate) struct Blocks<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Uncompressed offset of `buffer[start]`.
    offset: u64,
    /// The compressed stream is truncated.
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

    /// Returns the number of consumed bytes, uncompressed.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the first four buffered bytes as a number.
    pub(crate) fn peek(&self) -> Option<u32> {
        Bytes::new(&self.buffer[self.start..self.end]).u32()
    }

    /// Returns true if the buffer begins with a capture of the other byte order.
    pub(crate) fn is_swapped(&self) -> bool {
        let mut bytes = Bytes::new(&self.buffer[self.start..self.end]);
        bytes.take(HEADER).is_some() && bytes.u32() == Some(MAGIC.swap_bytes())
    }

    /// Advances to the next block. Returns `None` at the end.
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

    /// Skips up to `limit` buffered events of skipped types with valid frames. Returns their
    /// number.
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

    /// Returns the content of the current block.
    #[inline(always)]
    pub(crate) fn block(&self, frame: &Frame) -> Block<'_> {
        Block {
            ty: frame.ty,
            offset: frame.offset,
            body: &self.buffer[frame.body.clone()],
        }
    }

    /// Reads until `wanted` bytes are buffered. The buffer grows as bytes arrive, so that a false
    /// length costs no memory.
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
                // A truncated compressed stream.
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
