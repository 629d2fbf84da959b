//! Frames on the socket, and messages of ttRPC in them.

use std::collections::BTreeMap;

/// Bytes before the payload of a frame: connection and length.
const FRAME_HEADER: usize = 8;
/// Bytes before the payload of a message: length, stream, type and flags.
const MESSAGE_HEADER: usize = 10;
/// Maximum length in bytes of a message's payload, as ttRPC has it.
pub const MAX_MESSAGE: usize = 4 << 20;
/// Maximum length of a frame's payload that is accepted.
const MAX_FRAME: usize = MESSAGE_HEADER + MAX_MESSAGE;
/// Maximum length of a frame's payload that is sent. The reader of containerd takes a frame into a buffer of 4096
/// bytes, and fails if the frame is longer.
const SENT_FRAME: usize = 4096;
/// Maximum length of a message that is sent: containerd queues 256 frames, and closes the connection if more come.
const MAX_SENT: usize = 128 * SENT_FRAME;

/// Connection on which the runtime calls the plug-in.
pub(crate) const PLUGIN_CONNECTION: u32 = 1;
/// Connection on which the plug-in calls the runtime.
pub(crate) const RUNTIME_CONNECTION: u32 = 2;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// A request.
    Request,
    /// A response.
    Response,
}

/// A message of ttRPC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Connection that it is on: 1 or 2.
    pub connection: u32,
    /// Number that a response has in common with its request.
    pub stream: u32,
    /// Request or response.
    pub kind: MessageKind,
    /// The request or response as protobuf.
    pub payload: Vec<u8>,
}

/// Bytes that are no messages of NRI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// A frame or message is longer than the protocol allows.
    #[error("{what} of {found} bytes is longer than {limit}")]
    TooLong {
        /// Frame or message.
        what: &'static str,
        /// Its length.
        found: usize,
        /// Maximum.
        limit: usize,
    },
    /// A frame is for a connection that NRI does not have.
    #[error("a frame is for the connection {0}, which does not exist")]
    Connection(u32),
    /// A message has a type other than request and response.
    #[error("a message has the unknown type {0}")]
    Kind(u8),
}

/// Takes frames apart into messages. It keeps at most one incomplete frame, and one incomplete message a connection.
///
/// ```
/// use nri::{Demultiplexer, Message, MessageKind, encode};
///
/// let message = Message { connection: 1, stream: 7, kind: MessageKind::Request, payload: vec![1, 2, 3] };
/// let bytes = encode(&message).unwrap();
/// let mut demultiplexer = Demultiplexer::default();
/// assert_eq!(demultiplexer.push(&bytes[..5]).unwrap(), []);
/// assert_eq!(demultiplexer.push(&bytes[5..]).unwrap(), [message]);
/// ```
#[derive(Debug, Default)]
pub struct Demultiplexer {
    /// Bytes of the frame that is not complete.
    frame: Vec<u8>,
    /// Bytes of the message that is not complete, by connection.
    messages: BTreeMap<u32, Vec<u8>>,
}

impl Demultiplexer {
    /// Takes bytes from the socket, and returns the messages that they complete.
    ///
    /// # Errors
    ///
    /// If the bytes are no frames. The connection is then of no more use.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Message>, FrameError> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            let wanted = match self.frame.first_chunk::<FRAME_HEADER>() {
                None => FRAME_HEADER,
                Some(header) => FRAME_HEADER + frame_length(header)?,
            };
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.frame.len()));
            self.frame.extend_from_slice(taken);
            bytes = rest;
            self.take_frame(&mut found)?;
        }
        Ok(found)
    }

    /// Takes the frame, if it is complete, and the messages that it completes.
    fn take_frame(&mut self, found: &mut Vec<Message>) -> Result<(), FrameError> {
        let Some(header) = self.frame.first_chunk::<FRAME_HEADER>() else {
            return Ok(());
        };
        let length = frame_length(header)?;
        let [a, b, c, d, ..] = *header;
        let connection = u32::from_be_bytes([a, b, c, d]);
        if ![PLUGIN_CONNECTION, RUNTIME_CONNECTION].contains(&connection) {
            return Err(FrameError::Connection(connection));
        }
        if self.frame.len() < FRAME_HEADER + length {
            return Ok(());
        }
        let stream = self.messages.entry(connection).or_default();
        stream.extend_from_slice(&self.frame[FRAME_HEADER..]);
        self.frame = Vec::new();
        let mut taken = 0;
        while let Some((message, length)) = first_message(connection, &stream[taken..])? {
            taken += length;
            found.push(message);
        }
        stream.drain(..taken);
        Ok(())
    }
}

fn frame_length(header: &[u8; FRAME_HEADER]) -> Result<usize, FrameError> {
    let [.., a, b, c, d] = *header;
    length([a, b, c, d], "a frame", MAX_FRAME)
}

fn length(bytes: [u8; 4], what: &'static str, limit: usize) -> Result<usize, FrameError> {
    // A length that does not fit is above the limit in any case.
    let found = usize::try_from(u32::from_be_bytes(bytes)).unwrap_or(usize::MAX);
    match found <= limit {
        true => Ok(found),
        false => Err(FrameError::TooLong { what, found, limit }),
    }
}

/// The first message of a connection's bytes and its length, if it is complete.
fn first_message(connection: u32, bytes: &[u8]) -> Result<Option<(Message, usize)>, FrameError> {
    let Some(header) = bytes.first_chunk::<MESSAGE_HEADER>() else {
        return Ok(None);
    };
    let [a, b, c, d, e, f, g, h, kind, _flags] = *header;
    let length = MESSAGE_HEADER + length([a, b, c, d], "a message", MAX_MESSAGE)?;
    let kind = match kind {
        1 => MessageKind::Request,
        2 => MessageKind::Response,
        other => return Err(FrameError::Kind(other)),
    };
    let Some(payload) = bytes.get(MESSAGE_HEADER..length) else {
        return Ok(None);
    };
    let message = Message {
        connection,
        stream: u32::from_be_bytes([e, f, g, h]),
        kind,
        payload: payload.to_vec(),
    };
    Ok(Some((message, length)))
}

/// The bytes of a message, in frames that containerd can read.
///
/// # Errors
///
/// If the message is longer than containerd queues.
pub fn encode(message: &Message) -> Result<Vec<u8>, FrameError> {
    let length = message.payload.len();
    let too_long = FrameError::TooLong {
        what: "a message",
        found: length,
        limit: MAX_SENT,
    };
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_SENT);
    let mut whole = header.ok_or(too_long)?.to_be_bytes().to_vec();
    whole.extend(message.stream.to_be_bytes());
    whole.extend(match message.kind {
        MessageKind::Request => [1, 0],
        MessageKind::Response => [2, 0],
    });
    whole.extend_from_slice(&message.payload);
    let mut bytes = Vec::with_capacity(whole.len() + FRAME_HEADER);
    for frame in whole.chunks(SENT_FRAME) {
        let length = u32::try_from(frame.len()).expect("a frame has at most 4096 bytes");
        bytes.extend(message.connection.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend_from_slice(frame);
    }
    Ok(bytes)
}
