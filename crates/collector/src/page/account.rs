//! Users: who may look and who may change, managed on the page by administrators.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use store::{
    AuditEntry, Invitation, NewUser, PasswordSet, Scope, Store, StoreError, User, UserAdded,
};

use super::session::Visitor;
use super::view::{self, Answer, PageError, ago, plain};
use super::{door, form, html as answer, password, see_other};
use crate::secret::NewSecret;
use crate::server::{Shared, now_ns};
use crate::user_name::is_user_name;

/// Time that an invitation lasts.
const INVITED_NS: i64 = 24 * 3_600_000_000_000;

/// Lines of the audit log on the page.
const LINES: u32 = 200;

/// A user cannot be added or changed.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The name is no name.
    #[error("the name has to be 1 to 64 letters, digits, `-`, `_`, `.` and `@`")]
    Name,
    /// The password is too short or too long.
    #[error(
        "the password has to have {} to {} characters",
        password::LENGTH.start(),
        password::LENGTH.end()
    )]
    Password,
    /// There are no random numbers.
    #[error("the kernel has no random numbers")]
    Random,
    /// A user of this name exists, none does, or it has no password.
    #[error("{0}")]
    Exists(&'static str),
    /// The store fails.
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(super) fn check_name(name: &str) -> Result<(), AccountError> {
    match is_user_name(name) {
        true => Ok(()),
        false => Err(AccountError::Name),
    }
}

pub(super) fn check_password(text: &str) -> Result<(), AccountError> {
    match password::LENGTH.contains(&text.len()) {
        true => Ok(()),
        false => Err(AccountError::Password),
    }
}

/// Adds a user with a password.
///
/// # Errors
///
/// The name or the password is refused, the name is taken, or the store fails.
pub fn add_user(
    store: &dyn Store,
    (name, text): (&str, &str),
    scope: Scope,
    actor: &str,
) -> Result<(), AccountError> {
    check_name(name)?;
    check_password(text)?;
    let user = NewUser {
        name: name.to_owned(),
        scope,
        password: password::hash(text).ok_or(AccountError::Random)?,
        actor: actor.to_owned(),
    };
    match store.add_user(user)? {
        UserAdded::Added => Ok(()),
        UserAdded::Taken | UserAdded::NotInvited => {
            Err(AccountError::Exists("a user of this name exists"))
        }
    }
}

/// Changes a password and ends the user's sessions.
///
/// # Errors
///
/// The password is refused, there is no such user, an identity provider vouches for it, or the store fails.
pub fn set_password(
    store: &dyn Store,
    (name, text): (&str, &str),
    actor: &str,
) -> Result<(), AccountError> {
    check_password(text)?;
    let hash = password::hash(text).ok_or(AccountError::Random)?;
    match store.set_password(name, &hash, actor)? {
        PasswordSet::Changed => Ok(()),
        PasswordSet::Unknown => Err(AccountError::Exists("there is no such user")),
        PasswordSet::Federated => Err(AccountError::Exists(
            "the user logs in by an identity provider; remove the user first",
        )),
    }
}

/// Returns the path of a link by which an administrator is made, if there is no user yet. It works once, within
/// 24 hours, until there is a user or another one is made.
///
/// # Errors
///
/// There are no random numbers, or the store fails.
pub fn first_link(store: &dyn Store, actor: &str) -> Result<Option<String>, AccountError> {
    new_link(store, Scope::Admin, actor, true)
}

/// Returns the path of a link, or `None` if `actor` may not invite.
fn new_link(
    store: &dyn Store,
    scope: Scope,
    actor: &str,
    is_first: bool,
) -> Result<Option<String>, AccountError> {
    let secret = NewSecret::of_invitation().ok_or(AccountError::Random)?;
    let is_kept = store.invite(Invitation {
        hash: secret.hash,
        scope,
        expires_ns: now_ns().saturating_add(INVITED_NS),
        actor: actor.to_owned(),
        is_first,
    })?;
    Ok(is_kept.then(|| format!("/setup/{}", secret.text)))
}

/// Returns the name of a role.
pub(super) fn role(scope: &Scope) -> &'static str {
    match scope {
        Scope::Agents(_) => "agent",
        Scope::Viewer => "viewer",
        Scope::Operator => "operator",
        Scope::Admin => "administrator",
    }
}

/// `GET /users`
pub(super) async fn users(State(shared): State<Arc<Shared>>, visitor: Visitor) -> Answer {
    visitor.may_administer()?;
    page(&shared, &visitor, &html! {}).await
}

async fn page(shared: &Arc<Shared>, visitor: &Visitor, note: &Markup) -> Answer {
    let (users, audit) = shared
        .blocking(|store| Ok((store.users()?, store.audit(LINES)?)))
        .await?;
    let body = html! {
        (view::title("Users", "Who may look, acknowledge and manage, and what they did.", &html! {}))
        (note)
        div.columns.wide {
            div.panel.flush { (user_table(visitor, &users)) }
            form.panel.stack method="post" action="/users/invite" {
                h2 { "Invite someone" }
                (visitor.token())
                label { "Role" select name="role" {
                    option value="viewer" { "Viewer: looks" }
                    option value="operator" { "Operator: also acknowledges, assigns, mutes" }
                    option value="admin" { "Administrator: also manages users" }
                } }
                button.first type="submit" { "Create a link" }
            }
        }
        div.panel.flush { h2 { "Audit log" } (audit_table(&audit)) }
    };
    Ok(answer(
        StatusCode::OK,
        view::page(visitor, "/users", "Users", &body),
    ))
}

fn user_table(visitor: &Visitor, users: &[User]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "Name" } th { "Role" } th { "Last login" } th { "Added" } th {} } }
            tbody { @for user in users {
                tr {
                    td { span.main { (plain(&user.name)) } }
                    td { (role(&user.scope)) }
                    td { @if let Some(time) = user.last_login_ns { (ago(time)) } @else { span.soft { "never" } } }
                    td { (ago(user.created_ns)) span.sub { "by " (plain(&user.created_by)) } }
                    td.num { @if user.name != visitor.user {
                        form method="post" action="/users/remove" {
                            (visitor.token())
                            input type="hidden" name="name" value=(user.name);
                            button type="submit" { "Remove" }
                        }
                    } }
                }
            } }
        } }
    }
}

fn audit_table(entries: &[AuditEntry]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "When" } th { "Who" } th { "What" } th { "To what" } } }
            tbody { @for entry in entries {
                tr {
                    td { (ago(entry.time_ns)) }
                    td { (plain(&entry.actor)) }
                    td { (plain(&entry.action)) }
                    td { span.sub { (plain(&entry.object)) } }
                }
            } }
        } }
    }
}

#[derive(Deserialize)]
pub(super) struct Remove {
    token: String,
    name: String,
}

/// `POST /users/remove`
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    let form: Remove = form::read(&headers, body).await?;
    visitor.sent(&form.token)?;
    visitor.may_administer()?;
    if form.name == visitor.user {
        let message = "you cannot remove yourself; another administrator can";
        return Err(PageError::new(StatusCode::BAD_REQUEST, message));
    }
    let actor = visitor.user.clone();
    shared
        .blocking(move |store| store.remove_user(&form.name, &actor))
        .await?;
    Ok(see_other("/users"))
}

#[derive(Deserialize)]
pub(super) struct Invite {
    token: String,
    role: String,
}

/// `POST /users/invite`
pub(super) async fn invite(
    State(shared): State<Arc<Shared>>,
    visitor: Visitor,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, PageError> {
    let form: Invite = form::read(&headers, body).await?;
    visitor.sent(&form.token)?;
    visitor.may_administer()?;
    let scope = match &*form.role {
        "viewer" => Scope::Viewer,
        "operator" => Scope::Operator,
        "admin" => Scope::Admin,
        _ => return Err(PageError::new(StatusCode::BAD_REQUEST, "unknown role")),
    };
    let actor = visitor.user.clone();
    let link = shared
        .blocking(move |store| {
            new_link(store, scope, &actor, false).map_err(|error| match error {
                AccountError::Store(error) => error,
                _ => StoreError::Stopped,
            })
        })
        .await?;
    let link = link.ok_or_else(|| {
        let message = "administrators alone may invite";
        PageError::new(StatusCode::FORBIDDEN, message)
    })?;
    page(&shared, &visitor, &door::link(&link)).await
}
