//! Who sends a request.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use store::{AgentId, Credential, Scope, TokenId};

use crate::answer::Refusal;
use crate::secret;
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

/// Returns the agent that sends the request.
pub(crate) async fn agent(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Sender, Refusal> {
    match credential(shared, headers).await? {
        Credential::Agent { id, .. } => Ok(Sender { id }),
        Credential::Token { .. } => Err(forbidden("the secret of an agent that has enrolled")),
    }
}

/// Returns the token with which an agent enrols.
pub(crate) async fn enrolling(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
) -> Result<TokenId, Refusal> {
    match credential(shared, headers).await? {
        Credential::Token {
            id,
            scope: Scope::Agents(_),
        } => Ok(id),
        Credential::Token { .. } | Credential::Agent { .. } => Err(forbidden("a token of agents")),
    }
}

/// Returns the sender of alerts without sequence numbers: the agent, or the one of its token.
pub(crate) async fn direct(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Sender, Refusal> {
    let token = enrolling(shared, headers).await?;
    let id = shared
        .blocking(move |store| store.direct_sender(token))
        .await?;
    Ok(Sender { id })
}

/// Returns who asks.
pub(crate) async fn reader(shared: &Arc<Shared>, headers: &HeaderMap) -> Result<Reader, Refusal> {
    match credential(shared, headers).await? {
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
    let refused = || {
        shared.metrics.unauthorized.add(1);
        let message = "the token is missing, unknown, expired or revoked";
        Refusal::new(StatusCode::UNAUTHORIZED, message)
    };
    let secret = secret(headers).ok_or_else(refused)?;
    let hash = secret::hash(&secret);
    let known = shared
        .blocking(move |store| store.credential(&hash))
        .await?;
    known.ok_or_else(refused)
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
