//! gRPC frames: one byte for compression, four bytes of length, and the message.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;

/// Length of a frame header.
const HEADER: usize = 5;
/// Maximum length of a received message; gRPC's usual limit.
const MAX_MESSAGE: usize = 4 << 20;

/// Encodes a message as a frame.
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

/// A received frame is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum FrameError {
    /// The frame is compressed, although no compression was negotiated.
    #[error("a message is compressed")]
    Compressed,
    /// The message is too long.
    #[error("a message of {length} bytes is too long")]
    TooLong {
        /// Length in the frame header.
        length: usize,
    },
    /// The message does not have the expected fields.
    #[error("a message is damaged: {problem}")]
    Damaged {
        /// Description of the error.
        problem: String,
    },
}

/// Decodes the first complete message of the received bytes.
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
