//! Users, sessions, invitations, and what users do about groups.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::fleet::{record, scope_of_role};
use super::{SqliteStore, federated, tail};
use crate::account::{
    Comment, Federated, FederatedUser, Invitation, NewSession, NewUser, PasswordSet, People,
    Session, Triage, User, UserAdded,
};
use crate::error::StoreError;
use crate::limits::{self, COMMENTS};
use crate::model::{AlertId, GroupId, Scope, TailRows};
use crate::number::now_ns;
use crate::severity::Severity;

impl People for SqliteStore {
    fn add_user(&self, user: NewUser) -> Result<UserAdded, StoreError> {
        self.write(move |state| add_user(state.connection(), &user, now_ns()))
    }

    fn users(&self) -> Result<Vec<User>, StoreError> {
        self.readers.with(users)
    }

    fn user(&self, name: &str) -> Result<Option<User>, StoreError> {
        self.readers.with(|connection| user(connection, name))
    }

    fn remove_user(&self, name: &str, actor: &str) -> Result<bool, StoreError> {
        let (name, actor) = (name.to_owned(), actor.to_owned());
        self.write(move |state| remove_user(state.connection(), &name, &actor, now_ns()))
    }

    fn set_password(
        &self,
        name: &str,
        password: &str,
        actor: &str,
    ) -> Result<PasswordSet, StoreError> {
        let (name, password) = (name.to_owned(), password.to_owned());
        let actor = actor.to_owned();
        self.write(move |state| {
            set_password(state.connection(), (&name, &password), &actor, now_ns())
        })
    }

    fn federate(&self, user: FederatedUser) -> Result<Federated, StoreError> {
        self.write(move |state| federated::admit(state.connection(), user, now_ns()))
    }

    fn begin_session(&self, session: NewSession) -> Result<bool, StoreError> {
        self.write(move |state| begin_session(state.connection(), &session, now_ns()))
    }

    fn session(&self, hash: &[u8; 32]) -> Result<Option<Session>, StoreError> {
        self.readers
            .with(|connection| session(connection, hash, now_ns()))
    }

    fn end_session(&self, hash: &[u8; 32]) -> Result<(), StoreError> {
        let hash = *hash;
        self.write(move |state| end_session(state.connection(), &hash))
    }

    fn invite(&self, invitation: Invitation) -> Result<bool, StoreError> {
        self.write(move |state| invite(state.connection(), &invitation, now_ns()))
    }

    fn invitation(&self, hash: &[u8; 32]) -> Result<Option<Scope>, StoreError> {
        self.readers
            .with(|connection| invitation(connection, hash, now_ns()))
    }

    fn accept(&self, hash: &[u8; 32], user: NewUser) -> Result<UserAdded, StoreError> {
        let hash = *hash;
        self.write(move |state| accept(state.connection(), &hash, user, now_ns()))
    }

    fn triage(&self, group: GroupId, change: Triage, actor: &str) -> Result<bool, StoreError> {
        let actor = actor.to_owned();
        self.write(move |state| triage(state.connection(), group, &change, (&actor, now_ns())))
    }

    fn comments(&self, group: GroupId) -> Result<Vec<Comment>, StoreError> {
        self.readers.with(|connection| comments(connection, group))
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
    connection: &Connection,
    user: &NewUser,
    now_ns: i64,
) -> Result<UserAdded, StoreError> {
    let (_, role) = user.scope.columns();
    let added = connection
        .prepare_cached(
            "INSERT INTO users (name, role, password, created_ns, created_by)
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO NOTHING",
        )?
        .execute(params![user.name, role, user.password, now_ns, user.actor])?;
    if added == 0 {
        return Ok(UserAdded::Taken);
    }
    connection
        .prepare_cached("DELETE FROM invitations WHERE is_first = 1")?
        .execute([])?;
    let object = format!("{} ({role})", user.name);
    record(connection, now_ns, &user.actor, ("add user", &object))?;
    Ok(UserAdded::Added)
}

fn user_of(row: &Row<'_>) -> rusqlite::Result<User> {
    Ok(User {
        name: row.get(0)?,
        scope: scope_of_role(row, 1)?,
        password: row.get(2)?,
        created_ns: row.get(3)?,
        created_by: row.get(4)?,
        last_login_ns: row.get(5)?,
    })
}

const USER: &str = "SELECT name, role, password, created_ns, created_by, last_login_ns FROM users";

fn users(connection: &Connection) -> Result<Vec<User>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("{USER} ORDER BY name"))?;
    let rows = statement.query_map([], user_of)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn user(connection: &Connection, name: &str) -> Result<Option<User>, StoreError> {
    let mut statement = connection.prepare_cached(&format!("{USER} WHERE name = ?1"))?;
    Ok(statement.query_row([name], user_of).optional()?)
}

fn remove_user(
    connection: &Connection,
    name: &str,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    end_access(connection, name)?;
    let removed = connection
        .prepare_cached("DELETE FROM users WHERE name = ?1")?
        .execute([name])?;
    if removed > 0 {
        record(connection, now_ns, actor, ("remove user", name))?;
    }
    Ok(removed > 0)
}

/// Whoever knew the old password is logged out, and cannot come back by a link.
fn set_password(
    connection: &Connection,
    (name, password): (&str, &str),
    actor: &str,
    now_ns: i64,
) -> Result<PasswordSet, StoreError> {
    let changed = connection
        .prepare_cached(
            "UPDATE users SET password = ?2 WHERE name = ?1 AND password NOT LIKE 'oidc:%'",
        )?
        .execute([name, password])?;
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
pub(super) fn end_access(connection: &Connection, name: &str) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM invitations WHERE created_by = ?1 AND is_first = 0")?
        .execute([name])?;
    connection
        .prepare_cached("DELETE FROM sessions WHERE user = (SELECT id FROM users WHERE name = ?1)")?
        .execute([name])?;
    Ok(())
}

fn begin_session(
    connection: &Connection,
    session: &NewSession,
    now_ns: i64,
) -> Result<bool, StoreError> {
    connection
        .prepare_cached("DELETE FROM sessions WHERE expires_ns <= ?1")?
        .execute([now_ns])?;
    let begun = connection
        .prepare_cached(
            "INSERT INTO sessions (hash, user, created_ns, expires_ns)
             SELECT ?1, id, ?3, ?4 FROM users WHERE name = ?2 AND password = ?5",
        )?
        .execute(params![
            session.hash,
            session.user,
            now_ns,
            session.expires_ns,
            session.password
        ])?;
    if begun > 0 {
        connection
            .prepare_cached("UPDATE users SET last_login_ns = ?2 WHERE name = ?1")?
            .execute(params![session.user, now_ns])?;
        record(connection, now_ns, &session.user, ("log in", ""))?;
    }
    Ok(begun > 0)
}

fn session(
    connection: &Connection,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<Session>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT users.name, users.role FROM sessions JOIN users ON users.id = sessions.user
         WHERE sessions.hash = ?1 AND sessions.expires_ns > ?2",
    )?;
    let found = statement.query_row(params![hash, now_ns], |row| {
        Ok(Session {
            user: row.get(0)?,
            scope: scope_of_role(row, 1)?,
        })
    });
    Ok(found.optional()?)
}

fn end_session(connection: &Connection, hash: &[u8; 32]) -> Result<(), StoreError> {
    connection
        .prepare_cached("DELETE FROM sessions WHERE hash = ?1")?
        .execute([hash])?;
    Ok(())
}

fn invite(
    connection: &Connection,
    invitation: &Invitation,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let (_, role) = invitation.scope.columns();
    connection
        .prepare_cached("DELETE FROM invitations WHERE expires_ns <= ?1")?
        .execute([now_ns])?;
    if invitation.is_first {
        connection
            .prepare_cached("DELETE FROM invitations WHERE is_first = 1")?
            .execute([])?;
    }
    // In this transaction: who was an administrator when the request came may have been removed since.
    let kept = connection
        .prepare_cached(
            "INSERT INTO invitations (hash, role, created_by, expires_ns, is_first)
             SELECT ?1, ?2, ?3, ?4, ?5 WHERE CASE WHEN ?5 THEN NOT EXISTS (SELECT 1 FROM users)
                 ELSE EXISTS (SELECT 1 FROM users WHERE name = ?3 AND role = 'admin') END",
        )?
        .execute(params![
            invitation.hash,
            role,
            invitation.actor,
            invitation.expires_ns,
            invitation.is_first
        ])?;
    if kept > 0 {
        record(connection, now_ns, &invitation.actor, ("invite", role))?;
    }
    Ok(kept > 0)
}

fn invitation(
    connection: &Connection,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<Scope>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT role FROM invitations WHERE hash = ?1 AND expires_ns > ?2")?;
    let found = statement.query_row(params![hash, now_ns], |row| scope_of_role(row, 0));
    Ok(found.optional()?)
}

/// Adds the user that an invitation allows, and ends the invitation, which decides the role and who adds the user.
fn accept(
    connection: &Connection,
    hash: &[u8; 32],
    user: NewUser,
    now_ns: i64,
) -> Result<UserAdded, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT role, created_by FROM invitations WHERE hash = ?1 AND expires_ns > ?2",
        )?
        .query_row(params![hash, now_ns], |row| {
            Ok((scope_of_role(row, 0)?, row.get(1)?))
        });
    let Some((scope, actor)) = found.optional()? else {
        return Ok(UserAdded::NotInvited);
    };
    let user = NewUser {
        scope,
        actor,
        ..user
    };
    let added = add_user(connection, &user, now_ns)?;
    if added == UserAdded::Added {
        connection
            .prepare_cached("DELETE FROM invitations WHERE hash = ?1")?
            .execute([hash])?;
    }
    Ok(added)
}

fn triage(
    connection: &Connection,
    group: GroupId,
    change: &Triage,
    (actor, now_ns): (&str, i64),
) -> Result<bool, StoreError> {
    let changed = match change {
        Triage::Assign(to) => connection
            .prepare_cached("UPDATE groups SET assignee = ?2 WHERE id = ?1")?
            .execute(params![group.0, to])?,
        Triage::Mute(until) => connection
            .prepare_cached("UPDATE groups SET muted_until_ns = ?2 WHERE id = ?1")?
            .execute(params![group.0, until])?,
        Triage::Comment(text) => connection
            .prepare_cached(
                "INSERT INTO comments (group_id, time_ns, actor, text)
                 SELECT id, ?2, ?3, ?4 FROM groups WHERE id = ?1",
            )?
            .execute(params![group.0, now_ns, actor, text])?,
    };
    if changed == 0 {
        return Ok(false);
    }
    let (action, object) = limits::triage(group, change);
    connection
        .prepare_cached(&format!(
            "DELETE FROM comments WHERE group_id = ?1 AND id NOT IN
                 (SELECT id FROM comments WHERE group_id = ?1 ORDER BY id DESC LIMIT {COMMENTS})"
        ))?
        .execute([group.0])?;
    record(connection, now_ns, actor, (action, &object))?;
    Ok(true)
}

fn comments(connection: &Connection, group: GroupId) -> Result<Vec<Comment>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT time_ns, actor, text FROM comments WHERE group_id = ?1 ORDER BY id",
    )?;
    let rows = statement.query_map([group.0], |row| {
        Ok(Comment {
            time_ns: row.get(0)?,
            actor: row.get(1)?,
            text: row.get(2)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
