//! Logging in by an identity provider that speaks OpenID Connect: the authorization code flow with PKCE.
//!
//! A login attempt has one secret, in a cookie of the browser. State, nonce and the verifier of PKCE are hashes of it
//! ([`Attempt`]), so nothing is kept until the provider has vouched for somebody ([`Provider`]). What it says is
//! believed if its ID token is signed by one of its keys and made for this attempt ([`token`]). Roles come from a claim;
//! whoever has none of them does not come in.

mod attempt;
mod keys;
mod provider;
mod settings;
#[cfg(feature = "testing")]
pub(crate) mod testing;
mod token;

pub(crate) use attempt::{Attempt, SECONDS};
pub(crate) use provider::{CALLBACK, Provider};
pub use settings::{OidcError, OidcSettings};

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};

/// Returns the SHA-256 hash of a text, in base64url.
fn hashed(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest(&SHA256, text.as_bytes()))
}

/// Returns seconds since 1970.
fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    i64::try_from(now).unwrap_or(i64::MAX)
}
