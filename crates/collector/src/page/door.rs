//! Logging in and out, and the link by which a first user is made.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serve::ClientAddress;
use store::{NewSession, NewUser, Scope, UserAdded};

use super::account::{check_name, check_password};
use super::session::{SECONDS, Visitor, cookie};
use super::throttle::Throttle;
use super::turns::Turns;
use super::view::{self, Answer, PageError, plain};
use super::{form, html as answer, password, see_other};
use crate::secret::{self, NewSecret};
use crate::server::{Shared, now_ns};

/// Passwords that are hashed at the same time: each takes 19 MiB.
const HASHING: usize = 2;

/// What guards the login.
pub(crate) struct Door {
    pub(super) throttle: Throttle,
    hashing: Turns,
    /// A hash of no password, so that an unknown name takes as long as a known one.
    nobody: String,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self {
            throttle: Throttle::default(),
            hashing: Turns::new(HASHING),
            // Without random numbers there are no sessions either.
            nobody: NewSecret::of_token()
                .and_then(|secret| password::hash(&secret.text))
                .unwrap_or_default(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Next {
    pub(super) next: String,
    /// Somebody has just logged out.
    left: String,
}

/// Returns a path of this server, whatever was asked for.
pub(super) fn local(next: &str) -> &str {
    let is_path = next.starts_with('/')
        && !next.starts_with("//")
        && !next.contains(|c: char| c == '\\' || c.is_control());
    if is_path { next } else { "/" }
}

#[derive(Deserialize)]
pub(super) struct Login {
    name: String,
    password: String,
    #[serde(default)]
    next: String,
}

fn login_page(shared: &Shared, status: StatusCode, next: &str, problem: &str) -> Response {
    let provider = shared.oidc.as_ref();
    let body = html! {
        @if let Some(provider) = provider { (provider.link(next)) }
        form.panel.stack method="post" action="/login" {
            h1 { "Log in" }
            @if !problem.is_empty() { div.note.bad role="alert" { (problem) } }
            input type="hidden" name="next" value=(next);
            label { "Name" input name="name" autocomplete="username" required autofocus; }
            label { "Password" input type="password" name="password" autocomplete="current-password" required; }
            button.first type="submit" { "Log in" }
        }
        p.soft.small { "No account? An administrator invites you, or runs " code { "tollgate serve user add NAME" } "." }
    };
    answer(status, view::door("Log in", &body))
}

/// `GET /login`
pub(super) async fn login(State(shared): State<Arc<Shared>>, Query(next): Query<Next>) -> Response {
    match &shared.oidc {
        Some(provider) if !next.left.is_empty() => provider.left_page(),
        _ => login_page(&shared, StatusCode::OK, local(&next.next), ""),
    }
}

/// `POST /login`
pub(super) async fn log_in(
    State(shared): State<Arc<Shared>>,
    client: Option<Extension<ClientAddress>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    form::is_of_this_site(&uri, &headers)?;
    let login: Login = form::read_of_stranger(&headers, body).await?;
    let next = local(&login.next).to_owned();
    let address = client.map(|Extension(address)| address.0);
    // Strangers whose address is not known share one limit of attempts.
    let address = address.unwrap_or_default();
    let name: String = login.name.chars().take(100).collect();
    if !shared.door.throttle.admit(&name, &address, Instant::now()) {
        let problem = "Too many attempts. Wait a minute and try again.";
        return Ok(login_page(
            &shared,
            StatusCode::TOO_MANY_REQUESTS,
            &next,
            problem,
        ));
    }
    let Some(verified) = verified(&shared, &name, login.password).await? else {
        let problem = "Name or password is wrong.";
        return Ok(login_page(
            &shared,
            StatusCode::UNAUTHORIZED,
            &next,
            problem,
        ));
    };
    shared.door.throttle.forgive(&name, &address);
    begin(&shared, (name, verified), &next).await
}

/// Compares a password with the one of a user. Returns the hash that it has, or `None` if it is wrong.
async fn verified(
    shared: &Arc<Shared>,
    name: &str,
    password: String,
) -> Result<Option<String>, PageError> {
    let name = name.to_owned();
    let user = shared.blocking(move |store| store.user(&name)).await?;
    let exists = user.is_some();
    let hash = user.map_or_else(|| shared.door.nobody.clone(), |user| user.password);
    let compared = shared.door.hashing.run(move || {
        let is_short = password.len() <= *password::LENGTH.end();
        let is_right = is_short && password::is(&password, &hash) && exists;
        is_right.then_some(hash)
    });
    Ok(compared.await?)
}

/// Begins a session with a new secret, whatever cookie the browser had. `password` is the hash that was verified,
/// or the identity that a provider vouched for.
pub(super) async fn begin(
    shared: &Arc<Shared>,
    (user, password): (String, String),
    next: &str,
) -> Answer {
    let secret = NewSecret::of_session().ok_or_else(no_random_numbers)?;
    let session = NewSession {
        hash: secret.hash,
        user,
        password,
        expires_ns: now_ns().saturating_add(i64::from(SECONDS) * 1_000_000_000),
    };
    let begun = shared
        .blocking(move |store| store.begin_session(session))
        .await?;
    if !begun {
        let problem = "Name or password is wrong.";
        return Ok(login_page(shared, StatusCode::UNAUTHORIZED, next, problem));
    }
    Ok(with_cookie(see_other(next), shared.is_secure, &secret.text))
}

pub(super) fn no_random_numbers() -> PageError {
    let message = "the server cannot make a secret: the kernel has no random numbers yet";
    PageError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

fn with_cookie(mut response: Response, is_secure: bool, secret: &str) -> Response {
    // Our own secrets are letters and digits.
    if let Ok(value) = HeaderValue::from_str(&cookie(is_secure, secret)) {
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
    response
}

#[derive(Deserialize)]
pub(super) struct Token {
    token: String,
}

/// `POST /logout`
pub(super) async fn log_out(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let form: Token = form::read(&headers, body).await?;
    visitor.sent(&form.token)?;
    let hash = visitor.hash();
    shared
        .blocking(move |store| store.end_session(&hash))
        .await?;
    let to = match shared.oidc {
        Some(_) => "/login?left=1",
        None => "/login",
    };
    Ok(with_cookie(see_other(to), shared.is_secure, ""))
}

#[derive(Deserialize)]
pub(super) struct Setup {
    name: String,
    password: String,
    again: String,
}

fn setup_page(status: StatusCode, role: &Scope, problem: &str) -> Response {
    let role = super::account::role(role);
    let shortest = *password::LENGTH.start();
    let body = html! {
        form.panel.stack method="post" {
            h1 { "Create your account" }
            p.soft { "Your role: " b { (role) } ". This link works once." }
            @if !problem.is_empty() { div.note.bad role="alert" { (plain(problem)) } }
            label { "Name" input name="name" autocomplete="username" required autofocus; }
            label { "Password, at least " (shortest) " characters"
                input type="password" name="password" autocomplete="new-password" minlength=(shortest) required; }
            label { "Password again"
                input type="password" name="again" autocomplete="new-password" minlength=(shortest) required; }
            button.first type="submit" { "Create account" }
        }
    };
    answer(status, view::door("Create your account", &body))
}

fn invalid() -> PageError {
    PageError::new(
        StatusCode::NOT_FOUND,
        "This link is unknown, used or expired. Ask an administrator for another, or restart `tollgate serve` while there is no user.",
    )
}

/// Returns what an invitation in force allows.
async fn invited(shared: &Arc<Shared>, hash: [u8; 32]) -> Result<Scope, PageError> {
    let scope = shared.blocking(move |store| store.invitation(&hash));
    scope.await?.ok_or_else(invalid)
}

/// `GET /setup/{secret}`
pub(super) async fn setup(State(shared): State<Arc<Shared>>, Path(secret): Path<String>) -> Answer {
    let hash = secret::hash(&secret);
    let scope = invited(&shared, hash).await?;
    Ok(setup_page(StatusCode::OK, &scope, ""))
}

/// `POST /setup/{secret}`
pub(super) async fn set_up(
    State(shared): State<Arc<Shared>>,
    Path(secret): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    form::is_of_this_site(&uri, &headers)?;
    let hash = secret::hash(&secret);
    // Before anything costs time.
    let scope = invited(&shared, hash).await?;
    let form: Setup = form::read_of_stranger(&headers, body).await?;
    let refuse = |problem: &str| setup_page(StatusCode::BAD_REQUEST, &scope, problem);
    if form.password != form.again {
        return Ok(refuse("The passwords differ."));
    }
    let checked = check_name(&form.name).and_then(|()| check_password(&form.password));
    if let Err(problem) = checked {
        return Ok(refuse(&problem.to_string()));
    }
    let hashed = shared
        .door
        .hashing
        .run(move || password::hash(&form.password));
    let password = hashed.await?.ok_or_else(no_random_numbers)?;
    let account = (form.name.clone(), password.clone());
    let user = NewUser {
        actor: form.name.clone(),
        name: form.name,
        scope: Scope::Viewer,
        password,
    };
    let added = shared
        .blocking(move |store| store.accept(&hash, user))
        .await?;
    match added {
        UserAdded::Added => begin(&shared, account, "/").await,
        UserAdded::Taken => Ok(refuse("A user of this name exists.")),
        UserAdded::NotInvited => Err(invalid()),
    }
}

/// Returns a link with which someone becomes a user, as text to copy.
pub(super) fn link(path: &str) -> Markup {
    html! { div.note { "Send this link; it works once within 24 hours:" br; code { (path) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_this_server_alone() {
        for (next, expected) in [
            ("/alerts?q=x", "/alerts?q=x"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
            ("/\\evil.example", "/"),
            ("", "/"),
            ("/a\r\nSet-Cookie: x", "/"),
        ] {
            assert_eq!(local(next), expected);
        }
    }
}
