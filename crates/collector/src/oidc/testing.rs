//! Entries for fuzzing: what a provider says, without a provider.

use serde_json::Value;

use super::keys::Keys;
use super::provider;
use super::token::{self, Expected, Refused};

/// Reads a discovery document. Returns the addresses that the collector would use.
///
/// # Errors
///
/// It is refused.
pub fn endpoints(issuer: &str, bytes: &[u8]) -> Result<Vec<String>, String> {
    let document: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let found = provider::endpoints(issuer, &document)?;
    let all = [found.authorization, found.token, found.keys];
    Ok(all.into_iter().chain(found.end_session).collect())
}

/// Verifies a token by a set of keys, at a time in seconds since 1970. Returns its subject.
///
/// # Errors
///
/// The set or the token is refused.
pub fn subject(keys: &[u8], token: &str, now_s: i64) -> Result<String, String> {
    let set: Value = serde_json::from_slice(keys).map_err(|error| error.to_string())?;
    let expected = Expected {
        issuer: "https://id.example",
        audience: "tollgate",
        nonce: "n",
        now_s,
    };
    let claims = token::verify(token, &Keys::read(&set)?, expected);
    let claims = claims.map_err(|refused| match refused {
        Refused::UnknownKey => "its key is not there".to_owned(),
        Refused::Invalid(why) => why.to_owned(),
    })?;
    let subject = claims.get("sub").and_then(Value::as_str);
    let subject = subject.ok_or("a token without a subject was believed")?;
    Ok(subject.to_owned())
}
