//! Users, sessions and invitations.

use postgres::Row;

use super::connection::Connection;
use super::fleet::{record, scope_of_role};
use super::{PostgresStore, federated, tail, text, triage};
use crate::account::{
    Comment, Federated, FederatedUser, Invitation, NewSession, NewUser, PasswordSet, People,
    Session, Triage, User, UserAdded,
};
use crate::error::StoreError;
use crate::model::{AlertId, GroupId, Scope, TailRows};
use crate::number::now_ns;
use crate::severity::Severity;

impl People for PostgresStore {
    fn add_user(&self, user: NewUser) -> Result<UserAdded, StoreError> {
        self.write(move |state| add_user(state.connection()?, &user, now_ns()))
    }

    fn users(&self) -> Result<Vec<User>, StoreError> {
        self.readers.with(users)
    }

    fn user(&self, name: &str) -> Result<Option<User>, StoreError> {
        self.readers.with(|connection| user(connection, name))
    }

    fn remove_user(&self, name: &str, actor: &str) -> Result<bool, StoreError> {
        let (name, actor) = (text(name), actor.to_owned());
        self.write(move |state| remove_user(state.connection()?, &name, &actor, now_ns()))
    }

    fn set_password(
        &self,
        name: &str,
        password: &str,
        actor: &str,
    ) -> Result<PasswordSet, StoreError> {
        let (name, password) = (text(name), password.to_owned());
        let actor = actor.to_owned();
        self.write(move |state| {
            set_password(state.connection()?, (&name, &password), &actor, now_ns())
        })
    }

    fn federate(&self, user: FederatedUser) -> Result<Federated, StoreError> {
        self.write(move |state| federated::admit(state.connection()?, user, now_ns()))
    }

    fn begin_session(&self, session: NewSession) -> Result<bool, StoreError> {
        self.write(move |state| begin_session(state.connection()?, &session, now_ns()))
    }

    fn session(&self, hash: &[u8; 32]) -> Result<Option<Session>, StoreError> {
        self.readers
            .with(|connection| session(connection, hash, now_ns()))
    }

    fn end_session(&self, hash: &[u8; 32]) -> Result<(), StoreError> {
        let hash = *hash;
        self.write(move |state| {
            let end = "DELETE FROM sessions WHERE hash = $1";
            state.connection()?.execute(end, &[&hash.as_slice()])?;
            Ok(())
        })
    }

    fn invite(&self, invitation: Invitation) -> Result<bool, StoreError> {
        self.write(move |state| invite(state.connection()?, &invitation, now_ns()))
    }

    fn invitation(&self, hash: &[u8; 32]) -> Result<Option<Scope>, StoreError> {
        self.readers.with(|connection| {
            let found = invitation(connection, hash, now_ns())?;
            Ok(found.map(|(scope, _actor)| scope))
        })
    }

    fn accept(&self, hash: &[u8; 32], user: NewUser) -> Result<UserAdded, StoreError> {
        let hash = *hash;
        self.write(move |state| accept(state.connection()?, &hash, user, now_ns()))
    }

    fn triage(&self, group: GroupId, change: Triage, actor: &str) -> Result<bool, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| {
            triage::triage(state.connection()?, group, &change, (&actor, now_ns()))
        })
    }

    fn comments(&self, group: GroupId) -> Result<Vec<Comment>, StoreError> {
        self.readers
            .with(|connection| triage::comments(connection, group))
    }

    fn stored_after(
        &self,
        alert: AlertId,
        least: Severity,
        limit: u32,
    ) -> Result<TailRows, StoreError> {
        self.readers
            .with(|connection| tail::stored_after(connection, alert, least, limit))
    }

    fn last_stored(&self) -> Result<AlertId, StoreError> {
        self.readers.with(tail::last_stored)
    }
}

pub(super) fn add_user(
    connection: &mut Connection,
    user: &NewUser,
    now_ns: i64,
) -> Result<UserAdded, StoreError> {
    let (_, role) = user.scope.columns();
    let name = text(&user.name);
    let added = connection.execute(
        "INSERT INTO users (name, role, password, created_ns, created_by)
         VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
        &[&name, &role, &user.password, &now_ns, &text(&user.actor)],
    )?;
    if added == 0 {
        return Ok(UserAdded::Taken);
    }
    connection.execute("DELETE FROM invitations WHERE is_first", &[])?;
    let object = format!("{name} ({role})");
    record(connection, now_ns, &user.actor, ("add user", &object))?;
    Ok(UserAdded::Added)
}

fn user_of(row: &Row) -> Result<User, StoreError> {
    Ok(User {
        name: row.try_get(0)?,
        scope: scope_of_role(row, 1)?,
        password: row.try_get(2)?,
        created_ns: row.try_get(3)?,
        created_by: row.try_get(4)?,
        last_login_ns: row.try_get(5)?,
    })
}

const USER: &str = "SELECT name, role, password, created_ns, created_by, last_login_ns FROM users";

fn users(connection: &mut Connection) -> Result<Vec<User>, StoreError> {
    // In the order of code points, whatever the database's collation is.
    let rows = connection.query(&format!("{USER} ORDER BY name COLLATE \"C\""), &[])?;
    rows.iter().map(user_of).collect()
}

fn user(connection: &mut Connection, name: &str) -> Result<Option<User>, StoreError> {
    let row = connection.first(&format!("{USER} WHERE name = $1"), &[&text(name)])?;
    row.as_ref().map(user_of).transpose()
}

fn remove_user(
    connection: &mut Connection,
    name: &str,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    end_access(connection, name)?;
    let removed = connection.execute("DELETE FROM users WHERE name = $1", &[&name])?;
    if removed > 0 {
        record(connection, now_ns, actor, ("remove user", name))?;
    }
    Ok(removed > 0)
}

/// Whoever knew the old password is logged out, and cannot come back by a link.
fn set_password(
    connection: &mut Connection,
    (name, password): (&str, &str),
    actor: &str,
    now_ns: i64,
) -> Result<PasswordSet, StoreError> {
    let set = "UPDATE users SET password = $2 WHERE name = $1 AND password NOT LIKE 'oidc:%'";
    let changed = connection.execute(set, &[&name, &password])?;
    if changed == 0 {
        return Ok(match user(connection, name)? {
            Some(_) => PasswordSet::Federated,
            None => PasswordSet::Unknown,
        });
    }
    end_access(connection, name)?;
    record(connection, now_ns, actor, ("set password", name))?;
    Ok(PasswordSet::Changed)
}

/// Ends a user's sessions and the invitations by it.
pub(super) fn end_access(connection: &mut Connection, name: &str) -> Result<(), StoreError> {
    connection.execute(
        "DELETE FROM invitations WHERE created_by = $1 AND NOT is_first",
        &[&name],
    )?;
    connection.execute(
        "DELETE FROM sessions WHERE user_id = (SELECT id FROM users WHERE name = $1)",
        &[&name],
    )?;
    Ok(())
}

fn begin_session(
    connection: &mut Connection,
    session: &NewSession,
    now_ns: i64,
) -> Result<bool, StoreError> {
    connection.execute("DELETE FROM sessions WHERE expires_ns <= $1", &[&now_ns])?;
    let user = text(&session.user);
    let begun = connection.execute(
        "INSERT INTO sessions (hash, user_id, created_ns, expires_ns)
         SELECT $1, id, $3, $4 FROM users WHERE name = $2 AND password = $5",
        &[
            &session.hash.as_slice(),
            &user,
            &now_ns,
            &session.expires_ns,
            &session.password,
        ],
    )?;
    if begun > 0 {
        let note = "UPDATE users SET last_login_ns = $2 WHERE name = $1";
        connection.execute(note, &[&user, &now_ns])?;
        record(connection, now_ns, &user, ("log in", ""))?;
    }
    Ok(begun > 0)
}

fn session(
    connection: &mut Connection,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<Session>, StoreError> {
    let row = connection.first(
        "SELECT users.name, users.role FROM sessions JOIN users ON users.id = sessions.user_id
         WHERE sessions.hash = $1 AND sessions.expires_ns > $2",
        &[&hash.as_slice(), &now_ns],
    )?;
    row.map(|row| {
        Ok(Session {
            user: row.try_get(0)?,
            scope: scope_of_role(&row, 1)?,
        })
    })
    .transpose()
}

fn invite(
    connection: &mut Connection,
    invitation: &Invitation,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let (_, role) = invitation.scope.columns();
    connection.execute("DELETE FROM invitations WHERE expires_ns <= $1", &[&now_ns])?;
    if invitation.is_first {
        connection.execute("DELETE FROM invitations WHERE is_first", &[])?;
    }
    // In this transaction: who was an administrator when the request came may have been removed since.
    let kept = connection.execute(
        "INSERT INTO invitations (hash, role, created_by, expires_ns, is_first)
         SELECT $1, $2, $3, $4, $5 WHERE CASE WHEN $5 THEN NOT EXISTS (SELECT 1 FROM users)
             ELSE EXISTS (SELECT 1 FROM users WHERE name = $3 AND role = 'admin') END",
        &[
            &invitation.hash.as_slice(),
            &role,
            &text(&invitation.actor),
            &invitation.expires_ns,
            &invitation.is_first,
        ],
    )?;
    if kept > 0 {
        record(connection, now_ns, &invitation.actor, ("invite", role))?;
    }
    Ok(kept > 0)
}

/// Returns what an invitation in force allows, and who invites.
fn invitation(
    connection: &mut Connection,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<(Scope, String)>, StoreError> {
    let row = connection.first(
        "SELECT role, created_by FROM invitations WHERE hash = $1 AND expires_ns > $2",
        &[&hash.as_slice(), &now_ns],
    )?;
    row.map(|row| Ok((scope_of_role(&row, 0)?, row.try_get(1)?)))
        .transpose()
}

/// Adds the user that an invitation allows, and ends the invitation, which decides the role and who adds the user.
fn accept(
    connection: &mut Connection,
    hash: &[u8; 32],
    user: NewUser,
    now_ns: i64,
) -> Result<UserAdded, StoreError> {
    let Some((scope, actor)) = invitation(connection, hash, now_ns)? else {
        return Ok(UserAdded::NotInvited);
    };
    let user = NewUser {
        scope,
        actor,
        ..user
    };
    let added = add_user(connection, &user, now_ns)?;
    if added == UserAdded::Added {
        let end = "DELETE FROM invitations WHERE hash = $1";
        connection.execute(end, &[&hash.as_slice()])?;
    }
    Ok(added)
}
