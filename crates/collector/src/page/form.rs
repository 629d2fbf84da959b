//! Forms that people send.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;

use super::view::PageError;
use crate::body;

/// Longest form in bytes.
const LENGTH: usize = 64 << 10;

/// Reads a form. Says nothing about who sends it.
pub(super) async fn read<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, PageError> {
    let bad = |message: String| PageError::new(StatusCode::BAD_REQUEST, message);
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    if !kind.starts_with("application/x-www-form-urlencoded") {
        return Err(bad("the request has no form".to_owned()));
    }
    let text = body::text(headers, body).await?;
    if text.len() > LENGTH {
        return Err(bad(format!("the form has more than {LENGTH} bytes")));
    }
    serde_urlencoded::from_str(&text).map_err(|error| bad(format!("cannot read the form: {error}")))
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
