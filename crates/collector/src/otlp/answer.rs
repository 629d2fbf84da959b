//! Answers in the encoding of the request, as OTLP defines them.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use opentelemetry_proto::tonic::collector::logs::v1::{
    ExportLogsPartialSuccess, ExportLogsServiceResponse,
};
use prost::Message;
use serde_json::json;

use super::Encoding;
use crate::answer::{Refusal, json_response};

/// `google.rpc.Status`, with which OTLP refuses a request.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

/// Answers a request whose records were stored, except for those that were rejected.
pub(crate) fn taken(encoding: Option<Encoding>, rejected: u64, reason: &str) -> Response {
    match encoding {
        Some(Encoding::Protobuf) => {
            let partial = (rejected > 0).then(|| ExportLogsPartialSuccess {
                rejected_log_records: i64::try_from(rejected).unwrap_or(i64::MAX),
                error_message: reason.to_owned(),
            });
            let answer = ExportLogsServiceResponse {
                partial_success: partial,
            };
            protobuf(StatusCode::OK, answer.encode_to_vec())
        }
        _ if rejected == 0 => json_response(StatusCode::OK, &json!({})),
        _ => {
            // A 64-bit number is a text in this encoding.
            let partial =
                json!({"rejectedLogRecords": rejected.to_string(), "errorMessage": reason});
            json_response(StatusCode::OK, &json!({"partialSuccess": partial}))
        }
    }
}

/// Refuses a request. Without an encoding that is known, in JSON.
pub(crate) fn refused(encoding: Option<Encoding>, refusal: &Refusal) -> Response {
    let (status, code) = (refusal.status, code(refusal.status));
    let mut response = match encoding {
        Some(Encoding::Protobuf) => {
            let body = Status {
                code,
                message: refusal.message.clone(),
            };
            protobuf(status, body.encode_to_vec())
        }
        _ => json_response(status, &json!({"code": code, "message": refusal.message})),
    };
    refusal.add_headers(&mut response);
    response
}

/// Returns the code of gRPC that says the same as a status of HTTP.
fn code(status: StatusCode) -> i32 {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNSUPPORTED_MEDIA_TYPE => 3,
        StatusCode::REQUEST_TIMEOUT => 4,
        StatusCode::FORBIDDEN => 7,
        StatusCode::PAYLOAD_TOO_LARGE => 8,
        StatusCode::SERVICE_UNAVAILABLE => 14,
        StatusCode::UNAUTHORIZED => 16,
        _ => 13,
    }
}

fn protobuf(status: StatusCode, body: Vec<u8>) -> Response {
    let headers = [
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (status, headers, body).into_response()
}
