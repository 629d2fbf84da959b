//! Users whom an identity provider vouches for.

use rusqlite::{Connection, OptionalExtension, params};

use super::fleet::record;
use super::people::{add_user, end_access};
use crate::account::{Federated, FederatedUser, NewUser, PROVIDER, UserAdded};
use crate::error::StoreError;

/// Adds the user of an identity, or gives it the role of now.
pub(super) fn admit(
    connection: &Connection,
    user: FederatedUser,
    now_ns: i64,
) -> Result<Federated, StoreError> {
    let known = connection
        .prepare_cached("SELECT name, role FROM users WHERE password = ?1")?
        .query_row([&user.identity], |row| {
            Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    match (known, user.scope) {
        (None, None) => Ok(Federated::Refused),
        (None, Some(scope)) => {
            let added = NewUser {
                name: user.name.clone(),
                scope,
                password: user.identity,
                actor: PROVIDER.to_owned(),
            };
            Ok(match add_user(connection, &added, now_ns)? {
                UserAdded::Added => Federated::Admitted(user.name),
                UserAdded::Taken | UserAdded::NotInvited => Federated::Taken,
            })
        }
        (Some((name, _)), None) => {
            end_access(connection, &name)?;
            record(connection, now_ns, PROVIDER, ("end access", &name))?;
            Ok(Federated::Refused)
        }
        (Some((name, had)), Some(scope)) => {
            let (_, role) = scope.columns();
            if had != role {
                // Whoever may invite no more leaves no link behind.
                end_access(connection, &name)?;
                connection
                    .prepare_cached("UPDATE users SET role = ?2 WHERE name = ?1")?
                    .execute(params![name, role])?;
                let object = format!("{name} ({role})");
                record(connection, now_ns, PROVIDER, ("change role", &object))?;
            }
            Ok(Federated::Admitted(name))
        }
    }
}
