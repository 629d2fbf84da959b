//! Requests that name nobody we could be.
//!
//! gRPC libraries of 2020 and before name the path of a Unix socket as the `:authority` of a request,
//! as in `unix:///run/falco/falco.sock`. HTTP/2 has a host there, and hyper refuses such requests. We
//! serve one program whatever it is called, so each name is replaced here, on its way in, by another of
//! the same length.
//!
//! The length is the same because a header may go into the table that later requests refer to, and is
//! thrown out of it by the sum of the lengths there. So neither that table nor the meaning of a code has
//! to be known; how many characters a string of Huffman codes has is enough (RFC 7541, section 5.2 and
//! appendix B; frames are those of RFC 9113).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of what a client says first.
const PREFACE: usize = 24;
/// Length of what stands before the payload of a frame.
const FRAME_HEADER: usize = 9;
/// Longest payload that a client may send unless it was told otherwise, and longest that is sent on.
const MAX_PAYLOAD: usize = 1 << 14;
/// Longest headers that are looked at.
const MAX_HEADERS: usize = 1 << 16;
/// Bytes that are read at once.
const CHUNK: usize = 1 << 14;

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const HAS_PRIORITY: u8 = 0x20;
/// Bytes that say how a stream depends on others.
const PRIORITY: usize = 5;

/// A connection whose requests all name somebody.
pub(super) struct Renamed<S> {
    stream: S,
    renamer: Renamer,
    /// What can be read.
    ready: BytesMut,
}

impl<S> Renamed<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            renamer: Renamer::default(),
            ready: BytesMut::new(),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Renamed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            let mut chunk = [0; CHUNK];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.renamer.take(chunk.filled(), &mut this.ready);
        }
        let length = this.ready.len().min(buffer.remaining());
        buffer.put_slice(&this.ready[..length]);
        this.ready.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Renamed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, buffer)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// Takes bytes of a client and gives back those that the server is to read.
#[derive(Debug, Default)]
struct Renamer {
    /// What is not understood yet: the beginning of a frame, or headers.
    waiting: BytesMut,
    at: At,
    /// Headers whose end has not come.
    headers: Option<Headers>,
}

#[derive(Debug)]
enum At {
    /// So many bytes go through as they are.
    Within(usize),
    /// The beginning of a frame.
    Frame,
    /// Nothing more is looked at: what came is no HTTP/2 that we know.
    Lost,
}

impl Default for At {
    fn default() -> Self {
        Self::Within(PREFACE)
    }
}

/// A request's headers, of which some may be still to come.
#[derive(Debug)]
struct Headers {
    flags: u8,
    stream: [u8; 4],
    priority: BytesMut,
    block: BytesMut,
}

impl Renamer {
    fn take(&mut self, bytes: &[u8], out: &mut BytesMut) {
        self.waiting.extend_from_slice(bytes);
        while self.step(out) {}
    }

    /// Whether there was something to do.
    fn step(&mut self, out: &mut BytesMut) -> bool {
        match self.at {
            At::Lost => {
                out.unsplit(self.waiting.split());
                false
            }
            At::Within(left) => {
                let length = left.min(self.waiting.len());
                out.unsplit(self.waiting.split_to(length));
                self.at = if length == left {
                    At::Frame
                } else {
                    At::Within(left - length)
                };
                length == left
            }
            At::Frame => self.frame(out),
        }
    }

    fn frame(&mut self, out: &mut BytesMut) -> bool {
        let Some(header) = self.waiting.first_chunk::<FRAME_HEADER>() else {
            return false;
        };
        let [a, b, c, kind, flags, stream @ ..] = *header;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap_or(usize::MAX);
        if self.headers.is_none() && kind != HEADERS {
            self.at = At::Within(FRAME_HEADER + length);
            return true;
        }
        if length > MAX_PAYLOAD {
            self.give_up(out);
            return true;
        }
        if self.waiting.len() < FRAME_HEADER + length {
            return false;
        }
        let frame = self.waiting.split_to(FRAME_HEADER + length);
        if !self.part(kind, flags, stream, &frame[FRAME_HEADER..]) {
            // As it came, behind what was held back.
            let rest = self.waiting.split();
            self.waiting.unsplit(frame);
            self.waiting.unsplit(rest);
            self.give_up(out);
        } else if flags & END_HEADERS != 0
            && let Some(headers) = self.headers.take()
        {
            headers.send(true, out);
        }
        true
    }

    /// A frame of headers. Whether it is one as it ought to be.
    fn part(&mut self, kind: u8, flags: u8, stream: [u8; 4], payload: &[u8]) -> bool {
        match &mut self.headers {
            Some(headers) if kind == CONTINUATION && headers.stream == stream => {
                let fits = headers.block.len() + payload.len() <= MAX_HEADERS;
                if fits {
                    headers.block.extend_from_slice(payload);
                }
                fits
            }
            None if kind == HEADERS => {
                self.headers = Headers::begin(flags, stream, payload);
                self.headers.is_some()
            }
            _ => false,
        }
    }

    fn give_up(&mut self, out: &mut BytesMut) {
        if let Some(headers) = self.headers.take() {
            headers.send(false, out);
        }
        self.at = At::Lost;
    }
}

impl Headers {
    fn begin(flags: u8, stream: [u8; 4], payload: &[u8]) -> Option<Self> {
        let (padding, rest) = if flags & PADDED == 0 {
            (0, payload)
        } else {
            let (padding, rest) = payload.split_first()?;
            (usize::from(*padding), rest)
        };
        let fixed = if flags & HAS_PRIORITY == 0 {
            0
        } else {
            PRIORITY
        };
        let end = rest.len().checked_sub(padding)?;
        let (priority, block) = rest.get(..end)?.split_at_checked(fixed)?;
        Some(Self {
            flags: flags & !PADDED & !END_HEADERS,
            stream,
            priority: priority.into(),
            block: block.into(),
        })
    }

    /// Sends them on: those that are whole under another name.
    fn send(mut self, is_whole: bool, out: &mut BytesMut) {
        if is_whole && let Some(renamed) = renamed(&self.block) {
            self.block = renamed;
        }
        let mut payload = self.priority;
        payload.unsplit(self.block);
        let mut kind = HEADERS;
        let mut flags = self.flags;
        loop {
            let part = payload.split_to(payload.len().min(MAX_PAYLOAD));
            if is_whole && payload.is_empty() {
                flags |= END_HEADERS;
            }
            let length = u32::try_from(part.len()).expect("it is at most MAX_PAYLOAD");
            out.put_slice(&length.to_be_bytes()[1..]);
            out.put_slice(&[kind, flags]);
            out.put_slice(&self.stream);
            out.unsplit(part);
            if payload.is_empty() {
                return;
            }
            (kind, flags) = (CONTINUATION, 0);
        }
    }
}

/// Headers with another `:authority`; nothing if they are damaged, for the server to say.
///
/// A client could also give the name of the header by a reference to a header that it sent before. None
/// does, because the name has a number of its own.
fn renamed(block: &[u8]) -> Option<BytesMut> {
    const AUTHORITY: &[u8] = b":authority";
    /// The number of that name.
    const AUTHORITY_INDEX: usize = 1;
    let mut rest = block;
    let mut out = BytesMut::with_capacity(block.len());
    while let Some(first) = rest.first() {
        let before = rest;
        let is_indexed = first & 0x80 != 0;
        let is_table_size = first & 0xe0 == 0x20;
        let bits = match first {
            _ if is_indexed => 7,
            // To be put into the table.
            _ if first & 0xc0 == 0x40 => 6,
            _ if is_table_size => 5,
            _ => 4,
        };
        let index = integer(&mut rest, bits)?;
        if is_indexed || is_table_size {
            out.put_slice(&before[..before.len() - rest.len()]);
            continue;
        }
        let is_authority = if index == 0 {
            let name = string(&mut rest)?;
            !name.is_huffman && name.bytes == AUTHORITY
        } else {
            index == AUTHORITY_INDEX
        };
        out.put_slice(&before[..before.len() - rest.len()]);
        let before = rest;
        let value = string(&mut rest)?;
        if is_authority && !value.bytes.is_empty() {
            value.put_other(&mut out)?;
        } else {
            out.put_slice(&before[..before.len() - rest.len()]);
        }
    }
    Some(out)
}

/// An integer whose first byte has so many bits for it.
fn integer(from: &mut &[u8], bits: u32) -> Option<usize> {
    let max = (1_usize << bits) - 1;
    let (first, mut rest) = from.split_first()?;
    let mut value = usize::from(*first) & max;
    if value == max {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first()?;
            rest = after;
            // No string is as long, and no table.
            if shift > 21 {
                return None;
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *from = rest;
    Some(value)
}

fn put_integer(value: usize, bits: u32, flag: u8, out: &mut BytesMut) {
    let low = |value: usize| u8::try_from(value).expect("it was compared with less");
    let max = (1_usize << bits) - 1;
    if value < max {
        return out.put_u8(flag | low(value));
    }
    out.put_u8(flag | low(max));
    let mut left = value - max;
    while left >= 0x80 {
        out.put_u8(low(left & 0x7f) | 0x80);
        left >>= 7;
    }
    out.put_u8(low(left));
}

/// A string as it is written.
struct Written<'a> {
    is_huffman: bool,
    bytes: &'a [u8],
}

const IS_HUFFMAN: u8 = 0x80;

fn string<'a>(from: &mut &'a [u8]) -> Option<Written<'a>> {
    let is_huffman = from.first()? & IS_HUFFMAN != 0;
    let length = integer(from, 7)?;
    let (bytes, rest) = from.split_at_checked(length)?;
    *from = rest;
    Some(Written { is_huffman, bytes })
}

impl Written<'_> {
    /// Writes a name of the same length that is never longer as it is written: no code is shorter than
    /// that of `a`.
    fn put_other(&self, out: &mut BytesMut) -> Option<()> {
        /// The code of `a`, of five bits, eight times.
        const EIGHT: [u8; 5] = [0x18, 0xc6, 0x31, 0x8c, 0x63];
        if !self.is_huffman {
            put_integer(self.bytes.len(), 7, 0, out);
            out.put_bytes(b'a', self.bytes.len());
            return Some(());
        }
        let bits = 5 * characters(self.bytes)?;
        let bytes = bits.div_ceil(8);
        put_integer(bytes, 7, IS_HUFFMAN, out);
        let codes = EIGHT.iter().copied().cycle().take(bytes);
        for (at, byte) in codes.enumerate() {
            // Ones stand behind the last code.
            let used = (bits - at * 8).min(8);
            out.put_u8(byte | 0xff_u8.checked_shr(u32::try_from(used).ok()?).unwrap_or(0));
        }
        Some(())
    }
}

/// How many Huffman codes of characters have so many bits, from 1 on. Codes are handed out in the order
/// of their lengths, so no more has to be known to tell where each ends.
const CODES: [u32; 30] = [
    0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19, 29,
    0, 3,
];

/// How many characters a string of Huffman codes has.
fn characters(bytes: &[u8]) -> Option<usize> {
    let mut count = 0;
    // The code so far, the first code of its length, and its length.
    let (mut code, mut first, mut length) = (0_u32, 0_u32, 0_usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            first <<= 1;
            let of_length = *CODES.get(length)?;
            if code - first < of_length {
                count += 1;
                (code, first, length) = (0, 0, 0);
            } else {
                first += of_length;
                length += 1;
            }
        }
    }
    // What is left has to be ones, fewer than a byte.
    (length < 8 && code == (1 << length) - 1).then_some(count)
}

#[cfg(test)]
mod tests;
