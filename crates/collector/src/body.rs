//! Reading bodies within limits.

use std::io::Read;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use flate2::read::GzDecoder;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use crate::answer::Refusal;

/// Largest body, as sent.
pub(crate) const MAX_BODY: usize = 4 << 20;

/// Largest body after decompression: no small body becomes a large one.
pub(crate) const MAX_TEXT: u64 = 16 << 20;

/// Time limit for a body. A client that sends more slowly is refused.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads a body as text.
pub(crate) async fn text(headers: &HeaderMap, body: Body) -> Result<String, Refusal> {
    let read = tokio::time::timeout(PATIENCE, Limited::new(body, MAX_BODY).collect()).await;
    let read = read
        .map_err(|_elapsed| Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long"))?;
    let bytes = match read {
        Ok(read) => read.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => return Err(too_large()),
        Err(error) => {
            let message = format!("cannot read the body: {error}");
            return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
        }
    };
    let encoding = headers.get(header::CONTENT_ENCODING);
    let bytes = match encoding.map(|value| value.as_bytes()) {
        None | Some(b"identity") => bytes.to_vec(),
        Some(b"gzip") => decompressed(&bytes)?,
        Some(_) => {
            let message = "unknown Content-Encoding: expected gzip or none";
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
    };
    String::from_utf8(bytes)
        .map_err(|_not_utf8| Refusal::new(StatusCode::BAD_REQUEST, "the body is not UTF-8"))
}

fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
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

fn too_large() -> Refusal {
    let message = format!("the body exceeds {MAX_BODY} bytes, or {MAX_TEXT} decompressed");
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}
