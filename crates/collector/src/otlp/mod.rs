//! Log records of OpenTelemetry, sent by OTLP over HTTP: each becomes an alert.

mod answer;
mod bounds;
mod record;

use axum::http::{HeaderMap, StatusCode, header};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message;
use store::Record;

use self::record::Origin;
use crate::answer::Refusal;
use crate::body::{self, MAX_RECORDS};
use crate::{alert, grouping};

pub(crate) use self::answer::{refused, taken};

/// Largest alerts of a request together, in bytes: each has the attributes of its resource, which the request has once.
const MAX_ALERTS: usize = 32 << 20;

/// Encoding of a request, and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    Protobuf,
    Json,
}

impl Encoding {
    /// Returns the encoding that a request says it has.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
        // Parameters such as the character set change nothing.
        let essence = text.split_once(';').map_or(text, |(essence, _)| essence);
        let essence = essence.trim();
        match essence.to_ascii_lowercase().as_str() {
            "application/x-protobuf" => Some(Self::Protobuf),
            "application/json" => Some(Self::Json),
            _ => None,
        }
    }

    /// Decodes a request that is within the bounds.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<ExportLogsServiceRequest, Refusal> {
        let bad = |why: String| {
            let message = format!("cannot read the request: {}", grouping::clipped(&why));
            Refusal::new(StatusCode::BAD_REQUEST, message)
        };
        match self {
            Self::Protobuf => {
                bounds::check_protobuf(bytes)?;
                ExportLogsServiceRequest::decode(bytes).map_err(|error| bad(error.to_string()))
            }
            Self::Json => {
                bounds::check_json(bytes)?;
                // A list would be taken for the members in order.
                let start = bytes.iter().find(|byte| !byte.is_ascii_whitespace());
                if start != Some(&b'{') {
                    return Err(bad("expected a JSON object".to_owned()));
                }
                serde_json::from_slice(bytes).map_err(|error| bad(error.to_string()))
            }
        }
    }
}

/// What became of the records of a request.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    pub(crate) accepted: Vec<Record>,
    pub(crate) rejected: u64,
    /// Why the first one was rejected.
    pub(crate) reason: String,
}

/// Makes alerts of the records of a request. A record that cannot be one is rejected, and its sender is told.
pub(crate) fn sort(
    request: &ExportLogsServiceRequest,
    received_ns: i64,
) -> Result<Sorted, Refusal> {
    let scopes = request
        .resource_logs
        .iter()
        .flat_map(|logs| &logs.scope_logs);
    if scopes.map(|scope| scope.log_records.len()).sum::<usize>() > MAX_RECORDS {
        let message = format!("the request has more than {MAX_RECORDS} log records");
        return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    let mut sorted = Sorted::default();
    let mut bytes = 0;
    for logs in &request.resource_logs {
        for scope in &logs.scope_logs {
            let origin = Origin::of(logs, scope);
            for record in &scope.log_records {
                let text = record::alert(record, &origin);
                bytes += text.as_ref().map_or(0, String::len);
                if bytes > MAX_ALERTS {
                    return Err(body::too_large());
                }
                let read = text.and_then(|text| {
                    alert::read(&text, received_ns).map_err(|error| error.to_string())
                });
                sorted.add(read);
            }
        }
    }
    Ok(sorted)
}

impl Sorted {
    fn add(&mut self, read: Result<Record, String>) {
        match read {
            Ok(record) => self.accepted.push(record),
            Err(reason) => {
                if self.rejected == 0 {
                    self.reason = reason;
                }
                self.rejected += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
