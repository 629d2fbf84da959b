//! Answers: JSON, and refusals with a reason.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use store::StoreError;

/// A request is refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    pub(crate) fn not_found(what: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("there is no such {what}"))
    }

    /// The kernel has no random numbers for a secret.
    pub(crate) fn without_random() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server cannot make a secret: the kernel has no random numbers yet",
        )
    }

    /// Adds what a client has to know beside the reason.
    pub(crate) fn add_headers(&self, response: &mut Response) {
        let headers = response.headers_mut();
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                let scheme = HeaderValue::from_static("Bearer realm=\"tollgate\"");
                headers.insert(header::WWW_AUTHENTICATE, scheme);
            }
            _ => {}
        }
    }
}

impl From<StoreError> for Refusal {
    /// A sender keeps what is refused so, and sends it again.
    fn from(error: StoreError) -> Self {
        // The cause may have a path of this machine; it is not for clients.
        let message = match &error {
            StoreError::Busy => "the store is busy; send it again",
            _ => "the store fails; send it again",
        };
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &json!({"error": self.message}));
        self.add_headers(&mut response);
        response
    }
}

/// Returns a value as JSON. Characters that control a terminal are escaped, because people look at answers
/// with `curl`.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut text = String::new();
    crate::json::write(&mut text, value);
    text.push('\n');
    let content_type = HeaderValue::from_static("application/json");
    let kept = HeaderValue::from_static("no-store");
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, kept),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ];
    (status, headers, text).into_response()
}

/// What a browser may do with an answer that is no page: nothing.
const HEADERS: [(HeaderName, &str); 2] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Adds to an answer what keeps a browser from running what is in it, unless the answer says itself what a browser may do.
pub(crate) async fn protected(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        let entry = headers.entry(name);
        entry.or_insert(HeaderValue::from_static(value));
    }
    response
}
