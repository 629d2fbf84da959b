//! Forms that people send.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::session::Visitor;
use super::view::PageError;
use crate::body;
use crate::server::Shared;

/// Longest form in bytes of someone who is logged in.
const LENGTH: usize = 64 << 10;

/// Longest form in bytes of someone who is not. Each of all connections may send one at the same time.
const LENGTH_OF_STRANGER: usize = 8 << 10;

/// Reads a form of someone who is logged in.
pub(super) async fn read<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, PageError> {
    read_within(headers, body, LENGTH).await
}

/// Reads a form of anybody.
pub(super) async fn read_of_stranger<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, PageError> {
    read_within(headers, body, LENGTH_OF_STRANGER).await
}

async fn read_within<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    length: usize,
) -> Result<T, PageError> {
    let bad = |message: String| PageError::new(StatusCode::BAD_REQUEST, message);
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return Err(bad("the request has no form".to_owned()));
    }
    let text = body::small(headers, body, length).await?;
    serde_urlencoded::from_str(&text).map_err(|error| bad(format!("cannot read the form: {error}")))
}

/// A form that proves that it is of this session.
pub(super) trait Sealed {
    fn token(&self) -> &str;
}

/// Implements [`Sealed`] for forms with a member `token`.
macro_rules! sealed {
    ($($form:ident),*) => {$(
        impl $crate::page::form::Sealed for $form {
            fn token(&self) -> &str {
                &self.token
            }
        }
    )*};
}
pub(super) use sealed;

/// A form about the thing whose number is in the path, from someone who may change it.
pub(super) struct Change<F> {
    pub(super) shared: Arc<Shared>,
    pub(super) visitor: Visitor,
    pub(super) id: i64,
    pub(super) form: F,
}

impl<F: Sealed + DeserializeOwned> FromRequest<Arc<Shared>> for Change<F> {
    type Rejection = Response;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Self::Rejection> {
        let (mut parts, body) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, shared).await;
        let visitor = visitor.map_err(IntoResponse::into_response)?;
        let id = Path::<i64>::from_request_parts(&mut parts, shared).await;
        let Path(id) = id.map_err(IntoResponse::into_response)?;
        let form = sealed_by(&visitor, &parts.headers, body).await;
        Ok(Self {
            form: form.map_err(IntoResponse::into_response)?,
            shared: Arc::clone(shared),
            visitor,
            id,
        })
    }
}

/// Reads the form of someone who may change something.
async fn sealed_by<F: Sealed + DeserializeOwned>(
    visitor: &Visitor,
    headers: &HeaderMap,
    body: Body,
) -> Result<F, PageError> {
    let form: F = read(headers, body).await?;
    visitor.sent(form.token())?;
    visitor.may_change()?;
    Ok(form)
}

/// Refuses a form of a stranger that another site made the browser send.
pub(super) fn is_of_this_site(uri: &Uri, headers: &HeaderMap) -> Result<(), PageError> {
    is_from_here(headers, uri.authority().map(|authority| authority.as_str()))
}

/// Refuses a request that another site made the browser send.
pub(super) fn is_from_here(headers: &HeaderMap, host: Option<&str>) -> Result<(), PageError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_own = match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => matches!(site, "same-origin" | "none"),
        (None, Some(origin)) => {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            let host = host.or_else(|| text("host"));
            authority.is_some() && authority == host
        }
        // A program, not a browser: it cannot be made to send another's cookie.
        (None, None) => true,
    };
    match is_own {
        true => Ok(()),
        false => Err(PageError::new(
            StatusCode::FORBIDDEN,
            "another site sent this form",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Bytes;
    use http_body_util::channel::Channel;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    struct Form {
        a: String,
    }

    /// Reads a form that is sent in pieces of 4 KiB. Returns the number of pieces that were taken, and the answer.
    fn sent(further: &[(&'static str, &str)], pieces: usize) -> (usize, Result<Form, PageError>) {
        let mut headers = HeaderMap::new();
        let kind = ("content-type", "application/x-www-form-urlencoded");
        for (name, value) in further.iter().copied().chain([kind]) {
            headers.insert(name, value.parse().expect("a header"));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("threads");
        runtime.block_on(async {
            let (mut sender, body) = Channel::<Bytes>::new(1);
            let sending = tokio::spawn(async move {
                let mut text = b"a=".to_vec();
                for piece in 0..pieces {
                    text.resize(4 << 10, b'x');
                    let sent = sender.send_data(Bytes::from(std::mem::take(&mut text)));
                    if sent.await.is_err() {
                        return piece;
                    }
                }
                pieces
            });
            let read = read_of_stranger(&headers, Body::new(body)).await;
            (sending.await.expect("no panic"), read)
        })
    }

    #[test]
    fn a_form_of_a_stranger_is_not_read_beyond_its_limit() {
        let status = |read: Result<Form, PageError>| match read {
            Ok(form) => panic!("a form of {} bytes is read", form.a.len()),
            Err(error) => error.0.status,
        };
        let (_, read) = sent(&[], 2);
        assert_eq!(read.expect("a form").a.len(), (8 << 10) - 2);
        let (taken, read) = sent(&[], 1000);
        assert_eq!(status(read), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(taken < 10, "{taken} pieces");
        let (taken, read) = sent(&[("content-length", "8193")], 1000);
        assert_eq!(status(read), StatusCode::PAYLOAD_TOO_LARGE);
        assert!(taken < 3, "{taken} pieces");
        let (taken, read) = sent(&[("content-encoding", "gzip")], 1000);
        assert_eq!(status(read), StatusCode::UNSUPPORTED_MEDIA_TYPE);
        assert!(taken < 3, "{taken} pieces");
    }

    #[test]
    fn forms_of_other_sites_are_refused() {
        let check = |rows: &[(&'static str, &'static str)]| {
            let mut headers = HeaderMap::new();
            for (name, value) in rows {
                headers.insert(*name, value.parse().expect("a header"));
            }
            is_from_here(&headers, None).is_ok()
        };
        assert!(check(&[]));
        assert!(check(&[("sec-fetch-site", "same-origin")]));
        assert!(!check(&[("sec-fetch-site", "cross-site")]));
        assert!(!check(&[("sec-fetch-site", "same-site")]));
        assert!(check(&[("origin", "https://a:1"), ("host", "a:1")]));
        assert!(!check(&[("origin", "https://b"), ("host", "a:1")]));
        assert!(!check(&[("origin", "null"), ("host", "a:1")]));
    }
}
