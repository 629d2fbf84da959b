//! Frames on the connection between a guest and the host, and between the host's processes.
//!
//! The guest may be compromised, so lengths are bounded and unknown kinds are errors. Each session
//! (session 0 is the container's first program, others are further programs in it) sends a chunk of
//! a stream only when the previous one was acknowledged, so an unread stream does not block others.

use std::io::{self, Read, Write};

/// Maximum length of a frame's content in bytes.
pub const LIMIT: usize = 1 << 20;
/// Maximum length of a stream's chunk in bytes.
pub const PIECE: usize = 1 << 16;
const HEADER: usize = 9;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The guest has started and listens. A guest that was not given its files yet sends it again
    /// when it has them. Content: none.
    Ready = 1,
    /// Start. Content: the time in nanoseconds since 1970 (eight bytes) and the `process` of the
    /// configuration.
    Start,
    /// Send a signal. Content: its number, one byte.
    Signal,
    /// A chunk of the standard input; an empty one is its end.
    Input,
    /// A chunk of the standard output.
    Output,
    /// A chunk of the standard error.
    Error,
    /// A chunk was received. Content: its kind, one byte.
    Taken,
    /// The program has started, or the signal was sent.
    Done,
    /// The request failed. Content: the reason.
    Failed,
    /// The program has exited. Content: its status as in a shell, one byte.
    Exited,
    /// An alert. Content: one line.
    Alert,
    /// Asks for the container's state. Content of the answer: one word.
    State,
    /// A chunk of the archive of the container's files, for a warm machine; an empty one is its
    /// end.
    Files,
}

const KINDS: [Kind; 13] = [
    Kind::Ready,
    Kind::Start,
    Kind::Signal,
    Kind::Input,
    Kind::Output,
    Kind::Error,
    Kind::Taken,
    Kind::Done,
    Kind::Failed,
    Kind::Exited,
    Kind::Alert,
    Kind::State,
    Kind::Files,
];

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        KINDS.into_iter().find(|kind| kind.byte() == byte)
    }

    /// Returns the number on the wire.
    pub fn byte(self) -> u8 {
        self as u8
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Session of the program concerned.
    pub session: u32,
    /// Kind of the frame.
    pub kind: Kind,
    /// Content, by kind.
    pub content: Vec<u8>,
}

/// A frame cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side has closed the connection between frames.
    #[error("the other side has ended")]
    Ended,
    /// The connection failed, or ended within a frame.
    #[error("cannot read from the other side")]
    Io(#[from] io::Error),
    /// The frame is invalid.
    #[error("cannot understand the other side: kind {kind}, {len} bytes")]
    Malformed {
        /// Kind in the header.
        kind: u8,
        /// Length in the header.
        len: u32,
    },
}

impl Frame {
    /// Creates a frame with content.
    pub fn new(session: u32, kind: Kind, content: impl Into<Vec<u8>>) -> Self {
        Self {
            session,
            kind,
            content: content.into(),
        }
    }

    /// Reads a frame.
    ///
    /// # Errors
    ///
    /// There is no frame, or it is invalid.
    pub fn read(from: &mut impl Read) -> Result<Self, FrameError> {
        let mut header = [0; HEADER];
        let mut have = 0;
        while have < HEADER {
            match from.read(&mut header[have..]) {
                Ok(0) if have == 0 => return Err(FrameError::Ended),
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(more) => have += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let [s0, s1, s2, s3, kind, l0, l1, l2, l3] = header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let malformed = FrameError::Malformed { kind, len };
        let (Some(kind), Ok(size)) = (Kind::from_byte(kind), usize::try_from(len)) else {
            return Err(malformed);
        };
        if size > LIMIT {
            return Err(malformed);
        }
        let mut content = vec![0; size];
        from.read_exact(&mut content)?;
        let session = u32::from_le_bytes([s0, s1, s2, s3]);
        Ok(Self {
            session,
            kind,
            content,
        })
    }

    /// Writes the frame with one call, so that frames of several threads do not mix.
    ///
    /// # Errors
    ///
    /// The connection failed, or the content is too long.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let len = u32::try_from(self.content.len()).ok();
        let len = len.filter(|_| self.content.len() <= LIMIT);
        let len = len.ok_or_else(|| io::Error::other("it is too long for a frame"))?;
        let mut bytes = Vec::with_capacity(HEADER + self.content.len());
        bytes.extend_from_slice(&self.session.to_le_bytes());
        bytes.push(self.kind.byte());
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&self.content);
        to.write_all(&bytes)?;
        to.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(frame: &Frame) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        bytes
    }

    /// Returns one byte at a time, like a slow connection.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let most = buf.len().min(1);
            self.0.read(&mut buf[..most])
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let mut bytes = Vec::new();
        let frames = KINDS.map(|kind| Frame::new(7, kind, vec![kind.byte(); 3]));
        for frame in &frames {
            bytes.extend(written(frame));
        }
        let mut slow = Slow(&bytes);
        for frame in &frames {
            assert_eq!(Frame::read(&mut slow).unwrap(), *frame);
        }
        assert!(matches!(Frame::read(&mut slow), Err(FrameError::Ended)));
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused() {
        let frame = Frame::new(0, Kind::Output, vec![0; LIMIT + 1]);
        assert!(frame.write(&mut Vec::new()).is_err());
        let whole = written(&Frame::new(0, Kind::Output, "x"));
        let mut long = whole.clone();
        long[7] = 0x11;
        let mut unknown = whole.clone();
        unknown[4] = 99;
        for bytes in [long, unknown] {
            let error = Frame::read(&mut &bytes[..]).unwrap_err();
            assert!(matches!(error, FrameError::Malformed { .. }), "{error}");
        }
        for len in 1..whole.len() {
            let error = Frame::read(&mut &whole[..len]).unwrap_err();
            assert!(matches!(error, FrameError::Io(_)), "{len}: {error}");
        }
    }
}
