//! ID tokens: what a provider says about somebody, as a signed JWT.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

use super::keys::{Algorithm, Keys};

/// Seconds by which the clocks of the provider and of the collector may differ.
const SKEW: i64 = 60;

/// Longest subject, as OpenID Connect has it.
const MAX_SUBJECT: usize = 255;

/// What a token has to say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected<'e> {
    pub(super) issuer: &'e str,
    /// The identifier of this client.
    pub(super) audience: &'e str,
    pub(super) nonce: &'e str,
    /// Seconds since 1970.
    pub(super) now_s: i64,
}

/// A token is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// It names a key that is not there; the provider may have a new one.
    UnknownKey,
    /// Nothing helps.
    Invalid(&'static str),
}

/// Claims that are believed.
pub(super) type Claims = Map<String, Value>;

/// Verifies a token and returns its claims.
pub(super) fn verify(token: &str, keys: &Keys, expected: Expected<'_>) -> Result<Claims, Refused> {
    let claims = signed(token, keys)?;
    check(&claims, expected).map_err(Refused::Invalid)?;
    Ok(claims)
}

/// Returns the claims of a token that one of the keys has signed.
fn signed(token: &str, keys: &Keys) -> Result<Claims, Refused> {
    let form = "it has not the form of a signed token";
    let invalid = |problem| Refused::Invalid(problem);
    let (message, signature) = token.rsplit_once('.').ok_or(invalid(form))?;
    let (header, claims) = message.split_once('.').ok_or(invalid(form))?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_text| invalid(form));
    let object = |part: &str| {
        let object = serde_json::from_slice::<Map<String, Value>>(&decode(part)?);
        object.map_err(|_json| invalid(form))
    };
    let header = object(header)?;
    if header.contains_key("crit") {
        return Err(invalid("it has an extension that has to be understood"));
    }
    let algorithm = header.get("alg").and_then(Value::as_str);
    let algorithm = algorithm.and_then(Algorithm::named);
    let algorithm = algorithm.ok_or(invalid("its algorithm is not allowed"))?;
    let id = match header.get("kid") {
        None => None,
        Some(id) => Some(id.as_str().ok_or(invalid(form))?),
    };
    let key = keys.find(id, algorithm).ok_or(Refused::UnknownKey)?;
    // Nothing of the claims is looked at before.
    match key.has_signed(algorithm, message.as_bytes(), &decode(signature)?) {
        true => object(claims),
        false => Err(invalid("its signature is wrong")),
    }
}

fn check(claims: &Claims, expected: Expected<'_>) -> Result<(), &'static str> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    if text("iss") != Some(expected.issuer) {
        return Err("another issuer made it");
    }
    let several = match claims.get("aud") {
        Some(Value::String(one)) if one == expected.audience => false,
        Some(Value::Array(all)) if all.iter().any(|it| it == expected.audience) => all.len() > 1,
        _ => return Err("it is for another client"),
    };
    // With several the provider says which of them asked for it.
    if (several || claims.contains_key("azp")) && text("azp") != Some(expected.audience) {
        return Err("another client asked for it");
    }
    let time = |name: &str| claims.get(name).and_then(seconds);
    let ends = time("exp").ok_or("it has no end (exp)")?;
    if ends.saturating_add(SKEW) <= expected.now_s {
        return Err("it has expired");
    }
    let latest = expected.now_s.saturating_add(SKEW);
    if time("iat").ok_or("it does not say when it was made (iat)")? > latest {
        return Err("it is from the future");
    }
    if claims.contains_key("nbf") && time("nbf").is_none_or(|begins| begins > latest) {
        return Err("it is not valid yet");
    }
    if text("nonce") != Some(expected.nonce) {
        return Err("it is for another attempt to log in");
    }
    match text("sub").map(str::len) {
        Some(1..=MAX_SUBJECT) => Ok(()),
        _ => Err("it names nobody (sub)"),
    }
}

/// Returns a time in whole seconds; a provider may write fractions.
fn seconds(value: &Value) -> Option<i64> {
    let whole = |seconds: f64| format!("{:.0}", seconds.trunc()).parse().ok();
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

#[cfg(test)]
mod tests;
