//! Entries for fuzzing: frames of a client or a server.

use bytes::BytesMut;

use super::Output;
use super::frame::{decode, encode};

/// An alert, and the frame that it is written as.
pub type AlertAndFrame = (Output, Vec<u8>);

/// Decodes alerts until the bytes have no whole frame any more. Returns them, each with the frame that it is written as, and how many
/// bytes are left.
///
/// # Errors
///
/// A frame is refused.
pub fn alerts(bytes: &[u8]) -> Result<(Vec<AlertAndFrame>, usize), String> {
    let mut received = BytesMut::from(bytes);
    let mut alerts = Vec::new();
    while let Some(alert) = decode::<Output>(&mut received).map_err(|error| error.to_string())? {
        let frame = encode(&alert).to_vec();
        alerts.push((alert, frame));
    }
    Ok((alerts, received.len()))
}
