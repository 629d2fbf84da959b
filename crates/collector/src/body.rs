//! Reading bodies within limits.

use std::io::Read;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use flate2::read::GzDecoder;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::answer::Refusal;

/// Largest body, as sent.
pub(crate) const MAX_BODY: usize = 4 << 20;

/// Largest body after decompression: no small body becomes a large one.
pub(crate) const MAX_TEXT: u64 = 16 << 20;

/// Records of one batch, or log records of one request, at most.
pub(crate) const MAX_RECORDS: usize = 10_000;

/// Time limit for a body. A client that sends more slowly is refused.
const PATIENCE: Duration = Duration::from_secs(20);

/// So much of a body that is too large is read all the same, and forgotten: a client that still writes when the connection
/// is closed learns of a broken pipe instead of the reason.
const FORGOTTEN: usize = 32 << 20;

/// Reads a body as text.
pub(crate) async fn text(headers: &HeaderMap, body: Body) -> Result<String, Refusal> {
    utf8(message(headers, body).await?)
}

/// Reads a body of at most [`MAX_BODY`] bytes, and decompresses it to at most [`MAX_TEXT`].
pub(crate) async fn message(headers: &HeaderMap, body: Body) -> Result<Vec<u8>, Refusal> {
    let bytes = received_to_the_end(body, MAX_BODY, too_large).await?;
    let encoding = headers.get(header::CONTENT_ENCODING);
    match encoding.map(|value| value.as_bytes()) {
        None | Some(b"identity") => Ok(bytes.to_vec()),
        Some(b"gzip") => decompressed(&bytes),
        Some(_) => {
            let message = "unknown Content-Encoding: expected gzip or none";
            Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
        }
    }
}

/// Reads a body of at most `limit` bytes as text. Does not decompress it, and does not begin to read a body that
/// announces more: its sender may be anybody.
pub(crate) async fn small(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
) -> Result<String, Refusal> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "this request takes no Content-Encoding: send the body as it is";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let too_large = || {
        let message = format!("the body exceeds {limit} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let announced = headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    utf8(received(&mut body, limit, too_large).await?.to_vec())
}

/// Reads a body of at most `limit` bytes as it is.
pub(crate) async fn bytes(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
) -> Result<Vec<u8>, Refusal> {
    if headers.contains_key(header::CONTENT_ENCODING) {
        let message = "this request takes no Content-Encoding: send the body as it is";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let too_large = || {
        let message = format!("the body exceeds {limit} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
    };
    let bytes = received_to_the_end(body, limit, too_large).await?;
    Ok(bytes.to_vec())
}

/// Reads a body of at most `limit` bytes, and the rest of a larger one before it is refused.
async fn received_to_the_end(
    mut body: Body,
    limit: usize,
    too_large: impl FnOnce() -> Refusal,
) -> Result<Bytes, Refusal> {
    let read = received(&mut body, limit, too_large).await;
    if matches!(&read, Err(refusal) if refusal.status == StatusCode::PAYLOAD_TOO_LARGE) {
        let forget = async {
            let mut forgotten = 0;
            while let Some(Ok(frame)) = body.frame().await {
                forgotten += frame.data_ref().map_or(0, Bytes::len);
                if forgotten > FORGOTTEN {
                    break;
                }
            }
        };
        // It is refused all the same if it takes too long.
        let _late = tokio::time::timeout(PATIENCE, forget).await;
    }
    read
}

/// Reads a body and stops at `limit` bytes.
async fn received(
    body: &mut Body,
    limit: usize,
    too_large: impl FnOnce() -> Refusal,
) -> Result<Bytes, Refusal> {
    let read = tokio::time::timeout(PATIENCE, Limited::new(body, limit).collect()).await;
    match read {
        Ok(Ok(read)) => Ok(read.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            let message = format!("cannot read the body: {error}");
            Err(Refusal::new(StatusCode::BAD_REQUEST, message))
        }
        Err(_elapsed) => Err(Refusal::new(
            StatusCode::REQUEST_TIMEOUT,
            "the body took too long",
        )),
    }
}

fn utf8(bytes: Vec<u8>) -> Result<String, Refusal> {
    String::from_utf8(bytes)
        .map_err(|_not_utf8| Refusal::new(StatusCode::BAD_REQUEST, "the body is not UTF-8"))
}

pub(crate) fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
    let mut text = Vec::new();
    let read = GzDecoder::new(bytes)
        .take(MAX_TEXT + 1)
        .read_to_end(&mut text);
    match read {
        Ok(length) if length as u64 > MAX_TEXT => Err(too_large()),
        Ok(_) => Ok(text),
        Err(_) => Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "the body is not gzip",
        )),
    }
}

pub(crate) fn too_large() -> Refusal {
    let message = format!("the body exceeds {MAX_BODY} bytes, or {MAX_TEXT} decompressed");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}
