//! Sessions: who looks at a page, and proof that a form came from it.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use maud::{Markup, html};
use store::Scope;

use super::view::PageError;
use super::{form, see_other};
use crate::secret;
use crate::server::Shared;

/// Time that a session lasts, in seconds.
pub(super) const SECONDS: u32 = 12 * 3600;

/// Name of the cookie.
const SESSION: &str = "tollgate";

/// What the name of a cookie begins with that a browser takes from this host by TLS alone.
const SECURE: &str = "__Host-";

/// Someone who has logged in.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    pub(crate) user: String,
    scope: Scope,
    secret: String,
}

impl Visitor {
    /// Returns true if the visitor may acknowledge, assign, comment and mute.
    pub(super) fn is_operator(&self) -> bool {
        matches!(self.scope, Scope::Operator | Scope::Admin)
    }

    /// Returns true if the visitor may manage users.
    pub(super) fn is_admin(&self) -> bool {
        self.scope == Scope::Admin
    }

    /// Refuses those who may only look.
    pub(super) fn may_change(&self) -> Result<(), PageError> {
        allowed(self.is_operator(), "an operator")
    }

    /// Refuses those who are not administrators.
    pub(super) fn may_administer(&self) -> Result<(), PageError> {
        allowed(self.is_admin(), "an administrator")
    }

    /// Returns the hidden field that every form of a page has.
    pub(super) fn token(&self) -> Markup {
        html! { input type="hidden" name="token" value=(token(&self.secret)); }
    }

    /// Refuses a form that no page of this session had.
    pub(super) fn sent(&self, token_of_form: &str) -> Result<(), PageError> {
        // Hashes are compared, so that the time tells nothing about the token.
        let expected = secret::hash(&token(&self.secret));
        match secret::hash(token_of_form) == expected {
            true => Ok(()),
            false => Err(PageError::new(
                StatusCode::FORBIDDEN,
                "the form is of an earlier session; go back, reload the page and send it again",
            )),
        }
    }

    /// Returns the hash by which the store knows the session.
    pub(super) fn hash(&self) -> [u8; 32] {
        secret::hash(&self.secret)
    }
}

fn allowed(is_allowed: bool, who: &str) -> Result<(), PageError> {
    match is_allowed {
        true => Ok(()),
        false => Err(PageError::new(
            StatusCode::FORBIDDEN,
            format!("this needs {who}"),
        )),
    }
}

/// Returns the token of a session's forms: whoever has the cookie can make it, nobody else.
fn token(session: &str) -> String {
    URL_SAFE_NO_PAD.encode(secret::hash(&format!("form {session}")))
}

/// Returns the header that sets the cookie of a session, or ends it for an empty secret.
pub(super) fn cookie(is_secure: bool, secret: &str) -> String {
    cookie_of(is_secure, (SESSION, SECONDS), secret)
}

/// Returns the header that sets a cookie of this name for these seconds, or ends it for an empty value.
pub(super) fn cookie_of(is_secure: bool, (name, seconds): (&str, u32), value: &str) -> String {
    let age = if value.is_empty() { 0 } else { seconds };
    let (prefix, mark) = match is_secure {
        true => (SECURE, "; Secure"),
        false => ("", ""),
    };
    format!("{prefix}{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{mark}")
}

/// Returns the secret of the session.
fn secret_of(headers: &HeaderMap, is_secure: bool) -> Option<String> {
    let secret = value_of(headers, is_secure, SESSION)?;
    (!secret.is_empty() && secret.len() <= 200).then(|| secret.to_owned())
}

/// Returns the value of the cookie of this name.
pub(super) fn value_of<'h>(headers: &'h HeaderMap, is_secure: bool, name: &str) -> Option<&'h str> {
    let prefix = if is_secure { SECURE } else { "" };
    let cookies = headers.get_all(header::COOKIE).into_iter();
    let pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|text| text.split(';'));
    pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(found, value)| (found.strip_prefix(prefix) == Some(name)).then_some(value))
}

/// A visitor, or the answer to someone who is none.
pub(crate) enum Stranger {
    /// Leads to the login.
    LogIn(Response),
    /// Another site sent the request, or the store fails.
    Refused(PageError),
}

impl axum::response::IntoResponse for Stranger {
    fn into_response(self) -> Response {
        match self {
            Self::LogIn(response) => response,
            Self::Refused(error) => error.into_response(),
        }
    }
}

impl FromRequestParts<Arc<Shared>> for Visitor {
    type Rejection = Stranger;

    async fn from_request_parts(
        parts: &mut Parts,
        shared: &Arc<Shared>,
    ) -> Result<Self, Self::Rejection> {
        let is_question = parts.method == Method::GET;
        if !is_question {
            let host = parts.uri.authority().map(|authority| authority.as_str());
            form::is_from_here(&parts.headers, host).map_err(Stranger::Refused)?;
        }
        let log_in = || {
            let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            let next = if is_question { path } else { "/" };
            let query = serde_urlencoded::to_string([("next", next)]);
            let query = query.unwrap_or_else(|_no_text| "next=/".to_owned());
            Stranger::LogIn(see_other(&format!("/login?{query}")))
        };
        let Some(secret) = secret_of(&parts.headers, shared.is_secure) else {
            return Err(log_in());
        };
        let hash = secret::hash(&secret);
        let session = shared
            .blocking(move |store| store.session(&hash))
            .await
            .map_err(|refusal| Stranger::Refused(refusal.into()))?;
        let session = session.ok_or_else(log_in)?;
        Ok(Self {
            user: session.user,
            scope: session.scope,
            secret,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_by_its_whole_name() {
        let of = |text: &'static str, is_secure| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, text.parse().expect("a header"));
            secret_of(&headers, is_secure)
        };
        assert_eq!(
            of("a=b; __Host-tollgate=x; tollgate=y", true),
            Some("x".to_owned())
        );
        assert_eq!(
            of("a=b; __Host-tollgate=x; tollgate=y", false),
            Some("y".to_owned())
        );
        assert_eq!(of("x__Host-tollgate=x", true), None);
        assert_eq!(of("__Host-tollgate=", true), None);
    }

    #[test]
    fn the_cookie_says_that_no_script_and_no_other_site_has_it() {
        let text = cookie(true, "s");
        for part in [
            "__Host-tollgate=s",
            "Secure",
            "HttpOnly",
            "SameSite=Lax",
            "Path=/",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(cookie(true, "").contains("Max-Age=0"));
    }
}
