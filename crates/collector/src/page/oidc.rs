//! Logging in by an identity provider.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde::Deserialize;
use serve::ClientAddress;
use store::Federated;

use super::door::{self, Next, local, no_random_numbers};
use super::session::{cookie_of, value_of};
use super::turns::Turns;
use super::view::{self, Answer, PageError};
use super::{html as answer, see_other};
use crate::oidc::{Attempt, OidcError, OidcSettings, Provider, SECONDS};
use crate::server::Shared;

/// Cookie of an attempt, and the seconds that it lasts.
const ATTEMPT: (&str, u32) = ("tollgate-login", SECONDS);

/// Requests that ask the provider at the same time: each has a thread.
const ASKING: usize = 2;

/// The provider, and turns to ask it.
pub(crate) struct OidcDoor {
    provider: Arc<Provider>,
    turns: Turns,
    /// Browsers reach the collector by TLS, be it that of a proxy in front.
    is_secure: bool,
}

impl OidcDoor {
    pub(crate) fn new(settings: OidcSettings) -> Result<Self, OidcError> {
        Ok(Self {
            is_secure: settings.public_url.starts_with("https:"),
            provider: Arc::new(Provider::new(settings)?),
            turns: Turns::new(ASKING),
        })
    }

    pub(crate) fn provider(&self) -> Arc<Provider> {
        Arc::clone(&self.provider)
    }

    /// Returns the link that begins a login.
    pub(super) fn link(&self, next: &str) -> Markup {
        let query = serde_urlencoded::to_string([("next", next)]);
        let query = query.unwrap_or_else(|_no_text| "next=/".to_owned());
        html! {
            div.panel.stack {
                a.button.first href={ "/oidc/login?" (query) } { "Log in with " (self.provider.host()) }
            }
        }
    }

    /// Returns the page after a logout.
    pub(super) fn left_page(&self) -> Response {
        let body = html! {
            div.panel.stack {
                h1 { "You are logged out" }
                p.soft { "Your session with " (self.provider.host()) " goes on until you end it there." }
                a.button.first href="/login" { "Log in again" }
                a.button href="/oidc/logout" { "Log out of " (self.provider.host()) }
            }
        };
        answer(StatusCode::OK, view::door("Logged out", &body))
    }

    /// Runs `ask`, which asks the provider, when it is its turn: else a slow provider would get all threads, and the
    /// store none.
    async fn asked<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&Provider) -> Result<T, OidcError> + Send + 'static,
    ) -> Result<T, PageError> {
        let provider = self.provider();
        let asked = self.turns.run(move || {
            let asked = ask(&provider);
            if let Err(error) = &asked {
                provider.report(error);
            }
            asked
        });
        asked.await?.map_err(|error| match error {
            // Where the provider serves what is not for strangers.
            OidcError::Provider { .. } | OidcError::Client(_) | OidcError::Setting { .. } => {
                let message =
                    "the identity provider does not answer as it should; the collector's log has the reason";
                PageError::new(StatusCode::BAD_GATEWAY, message)
            }
            OidcError::Token(_) | OidcError::Name { .. } => {
                PageError::new(StatusCode::FORBIDDEN, error.to_string())
            }
        })
    }
}

fn door_of(shared: &Shared) -> Result<&OidcDoor, PageError> {
    shared
        .oidc
        .as_ref()
        .ok_or_else(|| PageError::new(StatusCode::NOT_FOUND, "there is no identity provider here"))
}

/// Returns an answer that leads to another server.
fn lead_to(url: &str) -> Answer {
    let location = HeaderValue::from_str(url).map_err(|_no_header| {
        let message = "the identity provider has no address to go to";
        PageError::new(StatusCode::BAD_GATEWAY, message)
    })?;
    let mut response = see_other("/");
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

/// Returns true if the cookie of an attempt is for TLS alone. Behind a proxy that ends TLS it is, too: the provider leads
/// back to the public URL, so the cookie is of no use elsewhere.
fn is_secure(shared: &Shared) -> bool {
    shared.is_secure || shared.oidc.as_ref().is_some_and(|door| door.is_secure)
}

/// Adds the header that sets the cookie of an attempt, or ends it.
fn mark(mut response: Response, shared: &Shared, attempt: &str) -> Response {
    let cookie = cookie_of(is_secure(shared), ATTEMPT, attempt);
    // Letters, digits and dots.
    if let Ok(value) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
    response
}

/// `GET /oidc/login`: begins an attempt.
pub(super) async fn begin(State(shared): State<Arc<Shared>>, Query(next): Query<Next>) -> Answer {
    let door = door_of(&shared)?;
    let attempt = Attempt::begin(local(&next.next)).ok_or_else(no_random_numbers)?;
    let asked = attempt.clone();
    let url = door.asked(move |provider| provider.authorization_url(&asked));
    let response = lead_to(&url.await?)?;
    Ok(mark(response, &shared, attempt.cookie()))
}

/// What the provider says by the browser.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Said {
    code: String,
    state: String,
    iss: Option<String>,
    error: Option<String>,
}

/// `GET /oidc/callback`: the provider has led the browser back.
pub(super) async fn come_back(
    State(shared): State<Arc<Shared>>,
    client: Option<Extension<ClientAddress>>,
    headers: HeaderMap,
    Query(said): Query<Said>,
) -> Answer {
    door_of(&shared)?;
    let cookie = value_of(&headers, is_secure(&shared), ATTEMPT.0);
    let attempt = cookie.and_then(Attempt::read);
    let Some(attempt) = attempt.filter(|attempt| attempt.is_answered_by(&said.state)) else {
        let message = "This login was not begun in this browser, or more than 10 minutes ago. Go to the overview to log in again.";
        return Err(PageError::new(StatusCode::BAD_REQUEST, message));
    };
    let address = client.map(|Extension(address)| address.0);
    // Strangers whose address is not known share one limit of attempts.
    let address = address.unwrap_or_default();
    let finished = finish(&shared, &attempt, said, &address).await;
    let response = finished.unwrap_or_else(IntoResponse::into_response);
    // Whatever became of it, it does not come back again.
    Ok(mark(response, &shared, ""))
}

/// Logs in whomever the provider vouches for.
async fn finish(shared: &Arc<Shared>, attempt: &Attempt, said: Said, address: &str) -> Answer {
    let door = door_of(shared)?;
    let forbidden = |message: &str| PageError::new(StatusCode::FORBIDDEN, message);
    if let Some(error) = said.error {
        let error: String = error.chars().take(100).collect();
        return Err(forbidden(&format!(
            "the identity provider refuses: {error}"
        )));
    }
    if door.provider.is_used(attempt) {
        return Err(forbidden(REPLAYED));
    }
    // Each attempt has a name of its own: the failures of one are not those of others behind the same address or proxy.
    let name = format!("oidc {}", attempt.state());
    let throttle = &shared.door.throttle;
    if !throttle.admit(&name, address, Instant::now()) {
        let message = "Too many attempts. Wait a minute and try again.";
        return Err(PageError::new(StatusCode::TOO_MANY_REQUESTS, message));
    }
    let asked = attempt.clone();
    let user = door.asked(move |it| it.identify(&asked, &said.code, said.iss.as_deref()));
    let user = user.await?;
    let identity = user.identity.clone();
    let federated = shared.blocking(move |store| store.federate(user)).await?;
    let name_of_user = match federated {
        Federated::Admitted(name) => name,
        Federated::Refused => {
            shared.metrics.unauthorized.add(1);
            return Err(forbidden(
                "the identity provider knows you, and gives you no role here; ask whoever manages it",
            ));
        }
        Federated::Taken => {
            return Err(forbidden(
                "another user has your name here; an administrator can remove that user",
            ));
        }
    };
    if !door.provider.use_up(attempt) {
        return Err(forbidden(REPLAYED));
    }
    // The name does not come again, so there is nothing to remember about it.
    throttle.take_back(&name, address);
    door::begin(shared, (name_of_user, identity), attempt.next()).await
}

const REPLAYED: &str = "this login was used already; log in again";

/// `GET /oidc/logout`: leads to where the session with the provider ends.
pub(super) async fn leave(State(shared): State<Arc<Shared>>) -> Answer {
    let url = door_of(&shared)?.asked(Provider::end_session_url).await?;
    match url {
        Some(url) => lead_to(&url),
        None => {
            let message = "the identity provider says nothing about how a session with it ends";
            Err(PageError::new(StatusCode::NOT_FOUND, message))
        }
    }
}
