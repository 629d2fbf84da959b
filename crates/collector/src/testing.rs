//! Entries for fuzzing: bodies of requests, without a server and a store.

use store::Record;

pub use crate::oidc::testing::{endpoints, subject};
use crate::otlp::{self, Encoding};
use crate::{alert, body, bundles, ingest};

/// Largest alert in bytes.
pub const MAX_ALERT: usize = alert::MAX_ALERT;

/// Decompresses a body.
///
/// # Errors
///
/// The message of the refusal.
pub fn decompressed(bytes: &[u8]) -> Result<Vec<u8>, String> {
    body::decompressed(bytes).map_err(|refusal| refusal.message)
}

/// Reads an alert as Falco and falcosidekick send it.
///
/// # Errors
///
/// The message of the refusal.
pub fn alert(text: &str, received_ns: i64) -> Result<Record, String> {
    alert::read(text, received_ns).map_err(|error| error.to_string())
}

/// Reads a batch of an agent.
///
/// # Errors
///
/// The message of the refusal.
pub fn batch(text: &str, received_ns: i64) -> Result<Vec<Record>, String> {
    ingest::records(text, received_ns).map_err(|refusal| refusal.message)
}

/// Reads the labels of an inventory.
///
/// # Errors
///
/// The message of the refusal.
pub fn labels(text: &str) -> Result<usize, String> {
    let inventory = serde_json::from_str(text).map_err(|error| error.to_string())?;
    bundles::labels_of(&inventory).map(|labels| labels.iter().count())
}

/// Reads a request with log records. Returns those that became alerts, and the number of the others.
///
/// # Errors
///
/// The message of the refusal.
pub fn logs(bytes: &[u8], is_json: bool, received_ns: i64) -> Result<(Vec<Record>, u64), String> {
    let encoding = match is_json {
        true => Encoding::Json,
        false => Encoding::Protobuf,
    };
    let request = encoding.decode(bytes).map_err(|refusal| refusal.message)?;
    let sorted = otlp::sort(&request, received_ns).map_err(|refusal| refusal.message)?;
    Ok((sorted.accepted, sorted.rejected))
}
