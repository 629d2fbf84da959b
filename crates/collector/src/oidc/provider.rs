//! The identity provider: what it serves, and whom it vouches for. All methods that ask it block.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outputs::http_client::{ClientOptions, agent};
use serde_json::Value;
use store::{FederatedUser, Scope};
use ureq::http::Response;
use ureq::{Agent, Body};

use super::keys::Keys;
use super::settings::{OidcError, OidcSettings, PATIENCE, is_safe};
use super::token::{self, Claims, Expected, Refused};
use super::{Attempt, hashed, now_s};
use crate::user_name::is_user_name;

/// Path of the collector to which the provider leads back.
pub(crate) const CALLBACK: &str = "/oidc/callback";

/// Claim with an address, and the one that says whether its owner has been asked.
const EMAIL: &str = "email";
const VERIFIED: &str = "email_verified";

/// Largest answer of the provider in bytes.
const MAX_ANSWER: u64 = 256 << 10;

/// Longest code that is handed to the provider.
const MAX_CODE: usize = 4096;

/// Time after which endpoints and keys are asked for again, so that a key that the provider gives up ends here.
const FRESH: Duration = Duration::from_secs(3600);

/// Time in which a provider that did not say what it serves is not asked again: each time would take a thread for as
/// long as it is silent.
const REFUSED: Duration = Duration::from_secs(5);

/// Time between two reports of errors.
const REPORTS: Duration = Duration::from_secs(60);

/// Where the provider serves what, as it says itself.
#[derive(Debug)]
pub(super) struct Endpoints {
    pub(super) authorization: String,
    pub(super) token: String,
    pub(super) keys: String,
    pub(super) end_session: Option<String>,
    /// The client sends its secret in a header; else in the form.
    takes_basic: bool,
    /// Answers to browsers name the issuer (RFC 9207).
    names_issuer: bool,
}

/// Something that was asked for at a time.
type Cached<T> = Mutex<Option<(Instant, Arc<T>)>>;

/// An identity provider.
pub(crate) struct Provider {
    settings: OidcSettings,
    agent: Agent,
    endpoints: Cached<Endpoints>,
    /// Why the provider did not say what it serves, when it was asked last.
    refused: Cached<String>,
    keys: Cached<Keys>,
    /// Attempts that somebody has logged in by, with the second at which they end by themselves.
    used: Mutex<HashMap<[u8; 32], i64>>,
    /// When an error was reported.
    reported: Mutex<Option<Instant>>,
}

impl Provider {
    /// Checks the settings. Asks nobody yet: a collector takes alerts, also while the provider is away.
    pub(crate) fn new(settings: OidcSettings) -> Result<Self, OidcError> {
        settings.check()?;
        let agent = agent(&ClientOptions {
            url: &settings.issuer,
            user_agent: "tollgate",
            tls: &settings.tls(),
            idle: Duration::from_secs(15),
            timeout: PATIENCE,
        })?;
        Ok(Self {
            settings,
            agent,
            endpoints: Mutex::default(),
            refused: Mutex::default(),
            keys: Mutex::default(),
            used: Mutex::default(),
            reported: Mutex::default(),
        })
    }

    /// Asks the provider for what it serves, and reports what keeps it from being asked.
    pub(crate) fn try_out(&self) {
        let tried = self.endpoints().and_then(|it| self.keys(&it, false));
        if let Err(error) = tried {
            self.report(&error);
        }
    }

    /// Reports an error, at most once a minute: strangers can cause some.
    pub(crate) fn report(&self, error: &OidcError) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.is_none_or(|since| since.elapsed() >= REPORTS) {
            *reported = Some(Instant::now());
            (self.settings.report)(&error.to_string());
        }
    }

    /// Returns the host of the issuer, as people are told.
    pub(crate) fn host(&self) -> &str {
        let rest = self.settings.issuer.split_once("://");
        let rest = rest.map_or("", |(_, rest)| rest);
        rest.split_once('/').map_or(rest, |(host, _)| host)
    }

    /// Returns the URL to which a browser goes for an attempt.
    pub(crate) fn authorization_url(&self, attempt: &Attempt) -> Result<String, OidcError> {
        let settings = &self.settings;
        let endpoints = self.endpoints()?;
        let parameters = [
            ("response_type", "code"),
            ("client_id", &*settings.client_id),
            ("redirect_uri", &self.redirect_uri()),
            ("scope", &settings.scopes.join(" ")),
            ("state", &attempt.state()),
            ("nonce", &attempt.nonce()),
            ("code_challenge", &attempt.challenge()),
            ("code_challenge_method", "S256"),
        ];
        Ok(with_query(&endpoints.authorization, &parameters))
    }

    /// Returns the URL at which a browser ends its session with the provider, if there is one.
    pub(crate) fn end_session_url(&self) -> Result<Option<String>, OidcError> {
        let endpoints = self.endpoints()?;
        let login = format!("{}/login", self.settings.public_url);
        let parameters = [
            ("client_id", &*self.settings.client_id),
            ("post_logout_redirect_uri", &login),
        ];
        let url = endpoints.end_session.as_deref();
        Ok(url.map(|url| with_query(url, &parameters)))
    }

    /// Asks the provider whom the code is about. `issuer` is what its answer to the browser says about itself.
    pub(crate) fn identify(
        &self,
        attempt: &Attempt,
        code: &str,
        issuer: Option<&str>,
    ) -> Result<FederatedUser, OidcError> {
        let endpoints = self.endpoints()?;
        let is_ours = match issuer {
            Some(issuer) => issuer == self.settings.issuer,
            None => !endpoints.names_issuer,
        };
        if !is_ours {
            return Err(OidcError::Token("another provider answers"));
        }
        let token = self.exchange(&endpoints, attempt, code)?;
        let claims = match self.verified(&token, attempt, &*self.keys(&endpoints, false)?) {
            // The provider may have changed its keys since they were asked for.
            Err(Refused::UnknownKey) => {
                self.verified(&token, attempt, &*self.keys(&endpoints, true)?)
            }
            result => result,
        };
        let claims = claims.map_err(|refused| {
            OidcError::Token(match refused {
                Refused::UnknownKey => "none of the provider's keys is the one that it names",
                Refused::Invalid(why) => why,
            })
        })?;
        self.user(&claims)
    }

    fn verified(&self, token: &str, attempt: &Attempt, keys: &Keys) -> Result<Claims, Refused> {
        let expected = Expected {
            issuer: &self.settings.issuer,
            audience: &self.settings.client_id,
            nonce: &attempt.nonce(),
            now_s: now_s(),
        };
        token::verify(token, keys, expected)
    }

    /// Returns true if somebody has logged in by this attempt.
    pub(crate) fn is_used(&self, attempt: &Attempt) -> bool {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.contains_key(&attempt.hash())
    }

    /// Takes note of a login by this attempt. Returns false if somebody has logged in by it already.
    pub(crate) fn use_up(&self, attempt: &Attempt) -> bool {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now_s();
        // Only who has logged in gets here, so there are few.
        used.retain(|_, ends| *ends >= now);
        used.insert(attempt.hash(), attempt.ends_s()).is_none()
    }

    fn redirect_uri(&self) -> String {
        format!("{}{CALLBACK}", self.settings.public_url)
    }

    /// Hands the code to the provider and returns the ID token.
    fn exchange(
        &self,
        endpoints: &Endpoints,
        attempt: &Attempt,
        code: &str,
    ) -> Result<String, OidcError> {
        let settings = &self.settings;
        let failed = |problem: String| OidcError::Provider {
            url: endpoints.token.clone(),
            problem,
        };
        if code.is_empty() || code.len() > MAX_CODE {
            return Err(OidcError::Token("there is no code for it"));
        }
        let (uri, verifier) = (self.redirect_uri(), attempt.verifier());
        let mut form = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &uri),
            ("code_verifier", &verifier),
        ];
        let mut request = self.agent.post(&endpoints.token);
        if endpoints.takes_basic {
            let (id, secret) = (
                encoded(&settings.client_id),
                encoded(&settings.client_secret),
            );
            let credentials = STANDARD.encode(format!("{id}:{secret}"));
            request = request.header("authorization", format!("Basic {credentials}"));
        } else {
            form.push(("client_id", &settings.client_id));
            form.push(("client_secret", &settings.client_secret));
        }
        let answer = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .send(query(&form));
        let answer = json(answer).map_err(failed)?;
        let token = answer.get("id_token").and_then(Value::as_str);
        token
            .map(str::to_owned)
            .ok_or_else(|| failed("its answer has no ID token".to_owned()))
    }

    fn endpoints(&self) -> Result<Arc<Endpoints>, OidcError> {
        if let Some(known) = within(FRESH, &self.endpoints) {
            return Ok(known);
        }
        let issuer = &self.settings.issuer;
        let url = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        if let Some(problem) = within(REFUSED, &self.refused) {
            let problem = problem.to_string();
            return Err(OidcError::Provider { url, problem });
        }
        let read = self
            .get(&url)
            .and_then(|document| endpoints(issuer, &document));
        let read = read.map_err(|problem| {
            keep(&self.refused, problem.clone());
            OidcError::Provider { url, problem }
        })?;
        Ok(keep(&self.endpoints, read))
    }

    /// Returns the keys of the provider; asks for them again if `is_newer` ones are wanted.
    fn keys(&self, endpoints: &Endpoints, is_newer: bool) -> Result<Arc<Keys>, OidcError> {
        if let Some(known) = within(FRESH, &self.keys).filter(|_| !is_newer) {
            return Ok(known);
        }
        let url = &endpoints.keys;
        let read = self.get(url).and_then(|set| Keys::read(&set));
        let read = read.map_err(|problem| OidcError::Provider {
            url: url.clone(),
            problem,
        })?;
        Ok(keep(&self.keys, read))
    }

    fn get(&self, url: &str) -> Result<Value, String> {
        json(
            self.agent
                .get(url)
                .header("accept", "application/json")
                .call(),
        )
    }

    /// Returns the user of claims that are believed.
    fn user(&self, claims: &Claims) -> Result<FederatedUser, OidcError> {
        let subject = claims.get("sub").and_then(Value::as_str);
        let subject = subject.ok_or(OidcError::Token("it names nobody (sub)"))?;
        let claim = self.name_claim(claims)?;
        let name = claims.get(claim).and_then(Value::as_str);
        let name = name.filter(|name| is_user_name(name)).map(str::to_owned);
        // A subject that stands in for another claim may be any text.
        let in_place =
            || (claim != self.settings.name_claim).then(|| format!("oidc-{}", hashed(subject)));
        let name = name.or_else(in_place).ok_or_else(|| OidcError::Name {
            claim: claim.to_owned(),
        })?;
        let issuer = &self.settings.issuer;
        Ok(FederatedUser {
            // An issuer has no line break.
            identity: format!("oidc:{}", hashed(&format!("{issuer}\n{subject}"))),
            name,
            scope: self.scope(claims),
        })
    }

    /// Returns the claim that names the user. Whoever may write any address as `email` could be taken for its owner, so
    /// it has to be verified. Some providers (Entra ID) never say that: the subject, which no user chooses, is the name
    /// then, and a user who has another one from before keeps it.
    fn name_claim(&self, claims: &Claims) -> Result<&str, OidcError> {
        let claim = self.settings.name_claim.as_str();
        match claims.get(VERIFIED) {
            _ if claim != EMAIL => Ok(claim),
            Some(Value::Bool(true)) => Ok(claim),
            None => Ok("sub"),
            Some(_) => Err(OidcError::Token(
                "it does not say that the e-mail address is verified (email_verified)",
            )),
        }
    }

    /// Returns the highest role that the claims give. An address that is not verified gives none.
    fn scope(&self, claims: &Claims) -> Option<Scope> {
        let is_address = self.settings.role_claim == EMAIL;
        if is_address && claims.get(VERIFIED) != Some(&Value::Bool(true)) {
            return None;
        }
        let rank = |scope: &Scope| match scope {
            Scope::Agents(_) => 0,
            Scope::Viewer => 1,
            Scope::Operator => 2,
            Scope::Admin => 3,
        };
        let said = texts(claims, &self.settings.role_claim);
        let given = self.settings.roles.iter();
        let given = given.filter(|(text, _)| said.contains(&text.as_str()));
        given
            .map(|(_, scope)| scope)
            .max_by_key(|scope| rank(scope))
            .cloned()
    }
}

/// Returns the texts of a claim: one, or a list. A claim whose name has dots can be the path to a member.
fn texts<'c>(claims: &'c Claims, claim: &str) -> Vec<&'c str> {
    let along = || {
        let (first, rest) = claim.split_once('.')?;
        let mut value = claims.get(first)?;
        for name in rest.split('.') {
            value = value.get(name)?;
        }
        Some(value)
    };
    match claims.get(claim).or_else(along) {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

pub(super) fn endpoints(issuer: &str, document: &Value) -> Result<Endpoints, String> {
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    let said = text("issuer").ok_or("it names no issuer")?;
    if said != issuer {
        return Err(format!(
            "it says that the issuer is `{said}`; --oidc-issuer has to be the same, letter by letter"
        ));
    }
    // The client has no TLS for an issuer without.
    let is_like_issuer =
        |url: &str| is_safe(url) && url.starts_with("https:") == issuer.starts_with("https:");
    let url = |name: &str| match text(name) {
        Some(url) if is_like_issuer(url) => Ok(url.to_owned()),
        _ => Err(format!("its `{name}` is no https URL")),
    };
    let list = |name: &str| document.get(name).and_then(Value::as_array);
    let has = |name: &str, wanted: &str| list(name).map(|all| all.iter().any(|it| it == wanted));
    if has("code_challenge_methods_supported", "S256") == Some(false) {
        return Err("it does not support PKCE with S256".to_owned());
    }
    let methods = "token_endpoint_auth_methods_supported";
    let takes_basic = has(methods, "client_secret_basic") != Some(false);
    if !takes_basic && has(methods, "client_secret_post") == Some(false) {
        return Err("it takes no client with a secret".to_owned());
    }
    let named = document.get("authorization_response_iss_parameter_supported");
    Ok(Endpoints {
        authorization: url("authorization_endpoint")?,
        token: url("token_endpoint")?,
        keys: url("jwks_uri")?,
        end_session: text("end_session_endpoint")
            .filter(|url| is_safe(url))
            .map(str::to_owned),
        takes_basic,
        names_issuer: named == Some(&Value::Bool(true)),
    })
}

/// Reads an answer as JSON; the problem says what the provider said, if it refuses.
fn json(answer: Result<Response<Body>, ureq::Error>) -> Result<Value, String> {
    let mut answer = answer.map_err(|error| error.to_string())?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(MAX_ANSWER);
    let body = body.read_to_vec().map_err(|error| error.to_string())?;
    let value = serde_json::from_slice::<Value>(&body);
    if !status.is_success() {
        let said = value.ok().and_then(|value| {
            let said = value.get("error")?.as_str()?;
            Some(said.chars().take(100).collect::<String>())
        });
        let said = said.map_or_else(String::new, |said| format!(", `{said}`"));
        return Err(format!("it answers with status {}{said}", status.as_u16()));
    }
    value.map_err(|error| format!("its answer is no JSON: {error}"))
}

fn within<T>(time: Duration, cached: &Cached<T>) -> Option<Arc<T>> {
    let known = cached.lock().unwrap_or_else(PoisonError::into_inner);
    let (since, value) = known.as_ref()?;
    (since.elapsed() < time).then(|| Arc::clone(value))
}

fn keep<T>(cached: &Cached<T>, value: T) -> Arc<T> {
    let value = Arc::new(value);
    let mut known = cached.lock().unwrap_or_else(PoisonError::into_inner);
    *known = Some((Instant::now(), Arc::clone(&value)));
    value
}

/// Returns pairs in the form of a query.
fn query(pairs: &[(&str, &str)]) -> String {
    // Pairs of texts always have that form.
    serde_urlencoded::to_string(pairs).unwrap_or_default()
}

fn with_query(url: &str, pairs: &[(&str, &str)]) -> String {
    let mark = if url.contains('?') { '&' } else { '?' };
    format!("{url}{mark}{}", query(pairs))
}

/// Returns a text as a value of a form.
fn encoded(text: &str) -> String {
    let pair = query(&[("", text)]);
    pair.trim_start_matches('=').to_owned()
}

#[cfg(test)]
mod tests;
