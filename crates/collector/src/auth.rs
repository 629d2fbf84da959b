//! Who sends a request.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serve::ClientCertificate;
use store::{AgentId, CertificateName, Credential, Scope, TokenId};

use crate::answer::Refusal;
use crate::identity;
use crate::secret::{self, NewSecret};
use crate::server::Shared;

/// Longest secret that is looked at.
const LENGTH: usize = 200;

/// An agent that has enrolled, or a direct sender.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sender {
    pub(crate) id: AgentId,
}

/// Someone who asks questions.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// Name in the audit log.
    pub(crate) actor: String,
    scope: Scope,
}

impl Reader {
    /// Refuses those who may only look.
    pub(crate) fn may_change(&self) -> Result<(), Refusal> {
        match self.scope {
            Scope::Operator | Scope::Admin => Ok(()),
            Scope::Viewer | Scope::Agents(_) => Err(forbidden("a token of an operator")),
        }
    }
}

/// Who sends what agents and other senders send: the headers of the request, and the certificate of its connection. Requests of readers
/// have no use for a certificate.
pub(crate) struct Caller {
    pub(crate) headers: HeaderMap,
    certificate: Option<ClientCertificate>,
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self {
            headers: parts.headers.clone(),
            certificate: parts.extensions.get().cloned(),
        })
    }
}

impl Caller {
    /// Returns the name in the certificate, `None` without one. A certificate that is not accepted is an error, whatever else the
    /// request has: its sender meant to be known by it.
    async fn name(&self, shared: &Arc<Shared>) -> Result<Option<CertificateName>, Refusal> {
        let Some(certificate) = self.certificate.clone() else {
            return Ok(None);
        };
        // It may read files and verifies signatures.
        let uris = shared.working(move || certificate.uris());
        let name = match uris.await? {
            Ok(uris) => identity::name(&uris),
            Err(refusal) => Err(refusal.to_string()),
        };
        name.map(Some).map_err(|problem| {
            shared.metrics.certificate.add(1);
            Refusal::new(StatusCode::FORBIDDEN, problem)
        })
    }
}

/// Returns the agent that sends the request: the one that its secret belongs to, if it comes with what that agent enrolled with.
pub(crate) async fn agent(shared: &Arc<Shared>, caller: &Caller) -> Result<Sender, Refusal> {
    let presented = caller.name(shared).await?;
    match known_credential(shared, &caller.headers).await? {
        Credential::Agent {
            id, certificate, ..
        } if certificate == presented => Ok(Sender { id }),
        Credential::Agent { certificate, .. } => {
            shared.metrics.unauthorized.add(1);
            let needed = match certificate {
                Some(_) => "the certificate that it enrolled with",
                None => "no certificate, because it enrolled with a token",
            };
            let message = format!("the secret is of an agent that has to send it with {needed}");
            Err(Refusal::new(StatusCode::UNAUTHORIZED, message))
        }
        Credential::Token { .. } => Err(forbidden("the secret of an agent that has enrolled")),
    }
}

/// What an agent enrols with.
pub(crate) struct Enrolling {
    pub(crate) token: TokenId,
    /// Name in its certificate; `None` if it has a token, and says itself what its host is.
    pub(crate) name: Option<String>,
}

/// Returns the token with which an agent enrols: the one of its certificate, or the one that it sends.
pub(crate) async fn enrolling(shared: &Arc<Shared>, caller: &Caller) -> Result<Enrolling, Refusal> {
    let Some(presented) = caller.name(shared).await? else {
        return match credential(shared, &caller.headers).await? {
            Credential::Token {
                id,
                scope: Scope::Agents(_),
            } => Ok(Enrolling {
                token: id,
                name: None,
            }),
            Credential::Token { .. } | Credential::Agent { .. } => {
                Err(forbidden("a token of agents"))
            }
        };
    };
    // Whose alerts are they, if both name different agents?
    if caller.headers.contains_key(header::AUTHORIZATION) {
        let message = "there are a certificate and a token: send one of both";
        return Err(Refusal::new(StatusCode::FORBIDDEN, message));
    }
    let name = presented.name.clone();
    // Nobody knows what this is the hash of, so no secret opens the token.
    let hash = NewSecret::of_token().ok_or_else(Refusal::without_random)?;
    let known = shared.blocking({
        let presented = presented.clone();
        move |store| store.certificate_token(&presented, hash.hash)
    });
    let token = known.await?.ok_or_else(|| {
        shared.metrics.certificate.add(1);
        let message = format!("the name {presented} in the certificate is revoked");
        Refusal::new(StatusCode::FORBIDDEN, message)
    })?;
    Ok(Enrolling {
        token,
        name: Some(name),
    })
}

/// Returns the sender of alerts without sequence numbers: the one of its token or certificate.
pub(crate) async fn direct(shared: &Arc<Shared>, caller: &Caller) -> Result<Sender, Refusal> {
    let token = enrolling(shared, caller).await?.token;
    let id = shared
        .blocking(move |store| store.direct_sender(token))
        .await?;
    Ok(Sender { id })
}

/// Returns who asks.
pub(crate) async fn reader(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Reader, Refusal> {
    as_reader(credential(shared, headers).await?)
}

/// Returns who asks for metrics: also while the store is away, if there is a queue.
pub(crate) async fn metrics_reader(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
) -> Result<Reader, Refusal> {
    as_reader(known_credential(shared, headers).await?)
}

fn as_reader(credential: Credential) -> Result<Reader, Refusal> {
    match credential {
        Credential::Token { id, scope } if !matches!(scope, Scope::Agents(_)) => Ok(Reader {
            actor: format!("token {}", id.0),
            scope,
        }),
        // An agent can be the workload's prisoner: it learns nothing about others.
        Credential::Token { .. } | Credential::Agent { .. } => {
            Err(forbidden("a token of a viewer"))
        }
    }
}

fn forbidden(needed: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, format!("this needs {needed}"))
}

async fn credential(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Credential, Refusal> {
    let hash = hash(shared, headers)?;
    let known = shared
        .blocking(move |store| store.credential(&hash))
        .await?;
    known.ok_or_else(|| unknown(shared))
}

/// The same for senders: with a queue, what the store has confirmed holds for a while.
async fn known_credential(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
) -> Result<Credential, Refusal> {
    let Some(queue) = &shared.queue else {
        return credential(shared, headers).await;
    };
    let hash = hash(shared, headers)?;
    let known = queue.credential(hash).await?;
    known.ok_or_else(|| unknown(shared))
}

/// Returns the hash of the secret.
fn hash(shared: &Shared, headers: &HeaderMap) -> Result<[u8; 32], Refusal> {
    let secret = secret(headers).ok_or_else(|| unknown(shared))?;
    Ok(secret::hash(&secret))
}

fn unknown(shared: &Shared) -> Refusal {
    shared.metrics.unauthorized.add(1);
    let message = "the token is missing, unknown, expired or revoked";
    Refusal::new(StatusCode::UNAUTHORIZED, message)
}

/// Returns the secret of a bearer token, or the password of Basic authentication, which Falco sends for a URL
/// such as `https://token:SECRET@HOST/`.
fn secret(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, value) = value.split_once(' ')?;
    let value = value.trim();
    let secret = if scheme.eq_ignore_ascii_case("bearer") {
        value.to_owned()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let pair = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
        pair.split_once(':')?.1.to_owned()
    } else {
        return None;
    };
    (!secret.is_empty() && secret.len() <= LENGTH).then_some(secret)
}
