//! Tokens, agents, acknowledgements and the audit log.

use labels::Labels;
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::certificate::{CertificateName, CertificateToken};
use crate::error::StoreError;
use crate::limits::{self, scope_text};
use crate::model::{
    Acknowledgement, Agent, AgentId, AuditEntry, Credential, GroupId, NewAgent, NewToken, Scope,
    Token, TokenId,
};
use crate::number::unsigned;

pub(super) fn create_token(
    connection: &Connection,
    token: &NewToken,
    now_ns: i64,
) -> Result<TokenId, StoreError> {
    let (class, role) = token.scope.columns();
    let id = connection
        .prepare_cached(
            "INSERT INTO tokens (class, role, hash, created_ns, created_by, expires_ns)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .insert(params![
            class,
            role,
            token.hash,
            now_ns,
            token.actor,
            token.expires_ns
        ])?;
    let object = format!("token {id} ({})", scope_text(&token.scope));
    record(connection, now_ns, &token.actor, ("create token", &object))?;
    Ok(TokenId(id))
}

/// Returns the token of a certificate's name, if there is one.
pub(super) fn known_certificate(
    connection: &Connection,
    name: &CertificateName,
) -> Result<Option<CertificateToken>, StoreError> {
    let known = connection
        .prepare_cached(
            "SELECT id, revoked_ns IS NOT NULL FROM tokens WHERE class = ?1 AND certificate = ?2",
        )?
        .query_row(params![name.class, name.name], |row| {
            Ok(CertificateToken {
                id: TokenId(row.get(0)?),
                is_revoked: row.get(1)?,
            })
        })
        .optional()?;
    Ok(known)
}

pub(super) fn certificate_token(
    connection: &Connection,
    name: &CertificateName,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<TokenId>, StoreError> {
    // Another request may have added it since.
    if let Some(known) = known_certificate(connection, name)? {
        return Ok(known.in_force());
    }
    let actor = limits::certificate_text(name);
    let id = connection
        .prepare_cached(
            "INSERT INTO tokens (class, role, hash, created_ns, created_by, certificate)
             VALUES (?1, '', ?2, ?3, ?4, ?5)",
        )?
        .insert(params![name.class, hash, now_ns, actor, name.name])?;
    let object = limits::certificate_token_text(id, name);
    record(connection, now_ns, &actor, ("create token", &object))?;
    Ok(Some(TokenId(id)))
}

/// Adds a line to the audit log: what was done, and to what.
pub(super) fn record(
    connection: &Connection,
    now_ns: i64,
    actor: &str,
    (action, object): (&str, &str),
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO audit (time_ns, actor, action, object) VALUES (?1, ?2, ?3, ?4)",
        )?
        .execute(params![now_ns, actor, action, object])?;
    Ok(())
}

/// A role that this build does not know, or a severity out of range: the row is refused, not guessed.
pub(super) fn unknown(column: usize, problem: &str) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(
        column,
        rusqlite::types::Type::Text,
        problem.to_owned().into(),
    )
}

fn scope_of(row: &Row<'_>, class: usize, role: usize) -> rusqlite::Result<Scope> {
    let (class, name): (String, String) = (row.get(class)?, row.get(role)?);
    Scope::of(&class, &name).ok_or_else(|| unknown(role, "unknown role"))
}

/// Returns what a role allows.
pub(super) fn scope_of_role(row: &Row<'_>, role: usize) -> rusqlite::Result<Scope> {
    let name: String = row.get(role)?;
    Scope::of("", &name).ok_or_else(|| unknown(role, "unknown role"))
}

pub(super) fn tokens(connection: &Connection) -> Result<Vec<Token>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT id, class, role, created_by, created_ns, expires_ns, revoked_ns,
             (SELECT count(*) FROM agents WHERE token = tokens.id AND hash IS NOT NULL), certificate
         FROM tokens ORDER BY id DESC",
    )?;
    let rows = statement.query_map([], |row| {
        Ok(Token {
            id: TokenId(row.get(0)?),
            scope: scope_of(row, 1, 2)?,
            created_by: row.get(3)?,
            created_ns: row.get(4)?,
            expires_ns: row.get(5)?,
            revoked_ns: row.get(6)?,
            agents: unsigned(row.get(7)?),
            certificate: row.get(8)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn revoke(
    connection: &Connection,
    token: TokenId,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection
        .prepare_cached("UPDATE tokens SET revoked_ns = ?2 WHERE id = ?1 AND revoked_ns IS NULL")?
        .execute(params![token.0, now_ns])?;
    if changed > 0 {
        let object = format!("token {}", token.0);
        record(connection, now_ns, actor, ("revoke token", &object))?;
    }
    Ok(changed > 0)
}

/// Tokens that are in force at `?2`.
const IN_FORCE: &str = "revoked_ns IS NULL AND (expires_ns IS NULL OR expires_ns > ?2)";

pub(super) fn credential(
    connection: &Connection,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<Credential>, StoreError> {
    let agent = connection
        .prepare_cached(&format!(
            "SELECT agents.id, agents.host, tokens.class, tokens.certificate
             FROM agents JOIN tokens ON tokens.id = agents.token
             WHERE agents.hash = ?1 AND {IN_FORCE}"
        ))?
        .query_row(params![hash, now_ns], |row| {
            let (class, name): (_, Option<_>) = (row.get(2)?, row.get(3)?);
            Ok(Credential::Agent {
                id: AgentId(row.get(0)?),
                host: row.get(1)?,
                certificate: name.map(|name| CertificateName { class, name }),
            })
        })
        .optional()?;
    if agent.is_some() {
        return Ok(agent);
    }
    let token = connection
        .prepare_cached(&format!(
            "SELECT id, class, role FROM tokens WHERE hash = ?1 AND certificate IS NULL AND {IN_FORCE}"
        ))?
        .query_row(params![hash, now_ns], |row| {
            Ok(Credential::Token {
                id: TokenId(row.get(0)?),
                scope: scope_of(row, 1, 2)?,
            })
        })
        .optional()?;
    Ok(token)
}

pub(super) fn enrol(
    connection: &Connection,
    agent: &NewAgent,
    now_ns: i64,
) -> Result<AgentId, StoreError> {
    let id = connection
        .prepare_cached(
            "INSERT INTO agents (token, hash, host, first_seen_ns, last_seen_ns)
             VALUES (?1, ?2, ?3, ?4, ?4)",
        )?
        .insert(params![agent.token.0, agent.hash, agent.host, now_ns])?;
    let object = format!("agent {id} on {}", agent.host);
    let actor = format!("token {}", agent.token.0);
    record(connection, now_ns, &actor, ("enrol agent", &object))?;
    Ok(AgentId(id))
}

pub(super) fn known_direct_sender(
    connection: &Connection,
    token: TokenId,
) -> Result<Option<AgentId>, StoreError> {
    let id = connection
        .prepare_cached("SELECT id FROM agents WHERE token = ?1 AND hash IS NULL")?
        .query_row([token.0], |row| row.get(0))
        .optional()?;
    Ok(id.map(AgentId))
}

pub(super) fn direct_sender(
    connection: &Connection,
    token: TokenId,
    now_ns: i64,
) -> Result<AgentId, StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO agents (token, hash, host, first_seen_ns, last_seen_ns)
             SELECT id, NULL, coalesce(certificate, ''), ?2, ?2 FROM tokens WHERE id = ?1
             ON CONFLICT DO NOTHING",
        )?
        .execute(params![token.0, now_ns])?;
    let known = known_direct_sender(connection, token)?;
    known.ok_or(StoreError::Database(rusqlite::Error::QueryReturnedNoRows))
}

pub(super) fn heartbeat(
    connection: &Connection,
    agent: AgentId,
    inventory: &str,
    now_ns: i64,
) -> Result<(), StoreError> {
    connection
        .prepare_cached("UPDATE agents SET last_seen_ns = ?2, inventory = ?3 WHERE id = ?1")?
        .execute(params![agent.0, now_ns, inventory])?;
    Ok(())
}

/// Returns all agents, or the one that is named.
pub(super) fn agents(
    connection: &Connection,
    only: Option<AgentId>,
    now_ns: i64,
) -> Result<Vec<Agent>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT agents.id, class, host, hash IS NULL, first_seen_ns, last_seen_ns, acknowledged,
             missing, inventory,
             revoked_ns IS NOT NULL OR (expires_ns IS NOT NULL AND expires_ns <= ?1), labels
         FROM agents JOIN (SELECT id AS token_id, class, expires_ns, revoked_ns FROM tokens)
             ON token_id = agents.token
         WHERE ?2 IS NULL OR agents.id = ?2
         ORDER BY last_seen_ns DESC",
    )?;
    let only = only.map(|agent| agent.0);
    let rows = statement.query_map(params![now_ns, only], |row| {
        Ok(Agent {
            id: AgentId(row.get(0)?),
            class: row.get(1)?,
            host: row.get(2)?,
            is_direct: row.get(3)?,
            first_seen_ns: row.get(4)?,
            last_seen_ns: row.get(5)?,
            acknowledged: unsigned(row.get(6)?),
            missing: unsigned(row.get(7)?),
            inventory: row.get(8)?,
            is_ended: row.get(9)?,
            labels: labels_of(row, 10)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn labels_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Labels> {
    let text: String = row.get(column)?;
    Labels::parse(&text).map_err(|error| unknown(column, &error.to_string()))
}

pub(super) fn acknowledge(
    connection: &Connection,
    group: GroupId,
    how: &Acknowledgement,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let (time, actor) = match how.is_set {
        true => (Some(now_ns), Some(&how.actor)),
        false => (None, None),
    };
    let changed = connection
        .prepare_cached(
            "UPDATE groups SET acknowledged_ns = ?2, acknowledged_by = ?3, note = ?4 WHERE id = ?1",
        )?
        .execute(params![group.0, time, actor, how.note])?;
    if changed == 0 {
        return Ok(false);
    }
    let (action, object) = limits::acknowledgement(group, how);
    record(connection, now_ns, &how.actor, (action, &object))?;
    Ok(true)
}

pub(super) fn audit(connection: &Connection, limit: u32) -> Result<Vec<AuditEntry>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT time_ns, actor, action, object FROM audit ORDER BY id DESC LIMIT ?1",
    )?;
    let rows = statement.query_map([limit], |row| {
        Ok(AuditEntry {
            time_ns: row.get(0)?,
            actor: row.get(1)?,
            action: row.get(2)?,
            object: row.get(3)?,
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
