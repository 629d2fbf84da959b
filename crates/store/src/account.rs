//! People who use the page: users, their sessions, and invitations.

use crate::error::StoreError;
use crate::model::{AlertId, GroupId, Scope, TailRows};
use crate::severity::Severity;

/// Who adds and changes users that a provider vouches for, in the audit log.
pub(crate) const PROVIDER: &str = "OpenID Connect";

/// How the identity of a [`FederatedUser`] begins, and the hash of no password.
const IDENTITY: &str = "oidc:";

/// A user to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewUser {
    /// Name, unique.
    pub name: String,
    /// What the user may do; never [`Scope::Agents`].
    pub scope: Scope,
    /// Hash of the password, in PHC form.
    pub password: String,
    /// Who adds the user.
    pub actor: String,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// What the user may do.
    pub scope: Scope,
    /// Hash of the password, in PHC form; or the identity of a [`FederatedUser`].
    pub password: String,
    /// When it was added.
    pub created_ns: i64,
    /// Who added it.
    pub created_by: String,
    /// When the last session began.
    pub last_login_ns: Option<i64>,
}

impl User {
    /// Returns true if an identity provider vouches for the user, who has no password then.
    #[must_use]
    pub fn is_federated(&self) -> bool {
        self.password.starts_with(IDENTITY)
    }
}

/// Someone whom an identity provider has just vouched for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FederatedUser {
    /// Who it is, whatever the name, with `oidc:` in front: kept in place of the hash of a password, which no password
    /// has.
    pub identity: String,
    /// Name of the user at its first login, unique. It stays the same.
    pub name: String,
    /// What the user may do now; `None` for nothing.
    pub scope: Option<Scope>,
}

/// Result of the login of a [`FederatedUser`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Federated {
    /// The user exists now under this name, with the role of now.
    Admitted(String),
    /// The user may do nothing any more. Its sessions, and invitations by it, have ended.
    Refused,
    /// The name is another user's.
    Taken,
}

/// A session to be begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// Hash of its secret.
    pub hash: [u8; 32],
    /// Name of the user.
    pub user: String,
    /// Hash of the password that was verified, in PHC form; or the identity that a provider vouched for.
    pub password: String,
    /// When it ends, nanoseconds since 1970.
    pub expires_ns: i64,
}

/// A session in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Name of the user.
    pub user: String,
    /// What the user may do now.
    pub scope: Scope,
}

/// Allows whoever has its secret to become a user, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Hash of its secret.
    pub hash: [u8; 32],
    /// What the user will be allowed.
    pub scope: Scope,
    /// When it ends, nanoseconds since 1970.
    pub expires_ns: i64,
    /// Who invites: an administrator, or for the first user whoever started the server.
    pub actor: String,
    /// Makes the first user. It ends all earlier ones of this kind, and ends when there is a user.
    pub is_first: bool,
}

/// Result of an attempt to add a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserAdded {
    /// The user was added.
    Added,
    /// A user of this name exists.
    Taken,
    /// The invitation is unknown, used or expired.
    NotInvited,
}

/// Result of an attempt to change a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordSet {
    /// The password was changed.
    Changed,
    /// There is no such user.
    Unknown,
    /// An identity provider vouches for the user, who has no password.
    Federated,
}

/// What someone does about a group of alerts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Triage {
    /// Makes someone responsible; empty for nobody.
    Assign(String),
    /// Adds a comment.
    Comment(String),
    /// Hides the group until this time, nanoseconds since 1970; `None` shows it again.
    Mute(Option<i64>),
}

/// A comment on a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// When.
    pub time_ns: i64,
    /// Who.
    pub actor: String,
    /// What they wrote.
    pub text: String,
}

/// What the page needs of a store besides questions about alerts. All methods block.
pub trait People {
    /// Adds a user.
    ///
    /// # Errors
    ///
    /// The database fails; so for all methods of this trait.
    fn add_user(&self, user: NewUser) -> Result<UserAdded, StoreError>;

    /// Returns all users by name.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn users(&self) -> Result<Vec<User>, StoreError>;

    /// Returns the user of this name.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn user(&self, name: &str) -> Result<Option<User>, StoreError>;

    /// Removes a user and ends its sessions and the invitations by it. Returns false if there is no such user.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn remove_user(&self, name: &str, actor: &str) -> Result<bool, StoreError>;

    /// Changes the hash of a password and ends the user's sessions and the invitations by it. The user of an identity
    /// provider stays one: its identity would be lost.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn set_password(
        &self,
        name: &str,
        password: &str,
        actor: &str,
    ) -> Result<PasswordSet, StoreError>;

    /// Adds the user of an identity at its first login, gives it the role of now at later ones, and ends its access if it
    /// has none.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn federate(&self, user: FederatedUser) -> Result<Federated, StoreError>;

    /// Begins a session. Returns false if there is no such user any more, or if the password has changed since it was
    /// verified.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn begin_session(&self, session: NewSession) -> Result<bool, StoreError>;

    /// Returns the session whose secret has this hash, or `None` if it has ended.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn session(&self, hash: &[u8; 32]) -> Result<Option<Session>, StoreError>;

    /// Ends a session.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn end_session(&self, hash: &[u8; 32]) -> Result<(), StoreError>;

    /// Keeps an invitation. Returns false if whoever invites is no administrator any more; for the first user, if
    /// there is a user.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn invite(&self, invitation: Invitation) -> Result<bool, StoreError>;

    /// Returns what an invitation in force allows.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn invitation(&self, hash: &[u8; 32]) -> Result<Option<Scope>, StoreError>;

    /// Adds the user of an invitation, and ends the invitation, which decides the role and who adds the user.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn accept(&self, hash: &[u8; 32], user: NewUser) -> Result<UserAdded, StoreError>;

    /// Does something about a group. Returns false if there is no such group.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn triage(&self, group: GroupId, change: Triage, actor: &str) -> Result<bool, StoreError>;

    /// Returns the comments on a group, the oldest first.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn comments(&self, group: GroupId) -> Result<Vec<Comment>, StoreError>;

    /// Returns the alerts of this severity and more severe ones that were stored after this one, in that order, at
    /// most `limit`: for a live tail.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn stored_after(
        &self,
        alert: AlertId,
        least: Severity,
        limit: u32,
    ) -> Result<TailRows, StoreError>;

    /// Returns the number of the alert that was stored last; 0 without alerts.
    ///
    /// # Errors
    ///
    /// The database fails.
    fn last_stored(&self) -> Result<AlertId, StoreError>;
}
