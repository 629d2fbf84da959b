//! Messages on their way: a byte that says whether it is compressed, four with its length, and itself.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Length of what stands before a message.
const HEADER: usize = 5;
/// Longest message that is taken; gRPC's usual limit.
const MAX_MESSAGE: usize = 4 << 20;

/// A message as it is sent.
pub(super) fn encode(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(HEADER + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).expect("an alert is smaller than 4 GiB"));
    message
        .encode(&mut frame)
        .expect("the buffer grows as it has to");
    frame.freeze()
}

/// Why what came is no message.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FrameError {
    /// Nothing that compresses was agreed on.
    #[error("a message is compressed")]
    Compressed,
    /// It would take too much memory.
    #[error("a message of {length} bytes is too long")]
    TooLong {
        /// What it says of itself.
        length: usize,
    },
    /// It is not made of the fields it ought to be made of.
    #[error("a message is damaged: {problem}")]
    Damaged {
        /// What is wrong.
        problem: String,
    },
}

/// Takes the first message out of what was received, once it is whole.
pub(super) fn decode<M: Message + Default>(
    received: &mut BytesMut,
) -> Result<Option<M>, FrameError> {
    let Some(header) = received.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [compressed, a, b, c, d] = *header;
    if compressed != 0 {
        return Err(FrameError::Compressed);
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MAX_MESSAGE {
        return Err(FrameError::TooLong { length });
    }
    if received.len() < HEADER + length {
        return Ok(None);
    }
    received.advance(HEADER);
    let message = received.split_to(length);
    let message = M::decode(message).map_err(|error| FrameError::Damaged {
        problem: error.to_string(),
    })?;
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::Version;

    fn version() -> Version {
        Version {
            version: "0.44.1".to_owned(),
            minor: 44,
            ..Version::default()
        }
    }

    #[test]
    fn a_message_comes_out_once_it_is_whole() {
        let bytes = encode(&version());
        let mut received = BytesMut::new();
        for byte in &bytes[..bytes.len() - 1] {
            received.put_u8(*byte);
            assert_eq!(decode::<Version>(&mut received), Ok(None));
        }
        received.put_u8(bytes[bytes.len() - 1]);
        received.put_slice(&bytes);
        assert_eq!(decode(&mut received), Ok(Some(version())));
        assert_eq!(decode(&mut received), Ok(Some(version())));
        assert_eq!(decode::<Version>(&mut received), Ok(None));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let bad = |bytes: &[u8]| decode::<Version>(&mut BytesMut::from(bytes)).unwrap_err();
        assert_eq!(bad(&[1, 0, 0, 0, 0]), FrameError::Compressed);
        let too_long = FrameError::TooLong {
            length: 0xffff_ffff,
        };
        assert_eq!(bad(&[0, 255, 255, 255, 255]), too_long);
        let damaged = bad(&[0, 0, 0, 0, 1, 0xff]);
        assert!(matches!(damaged, FrameError::Damaged { .. }), "{damaged}");
    }
}
