//! Tokens, agents and the audit log.

use postgres::Row;

use super::connection::Connection;
use super::text;
use crate::bundles::labels_of;
use crate::certificate::{CertificateName, CertificateToken};
use crate::error::StoreError;
use crate::limits::{self, scope_text};
use crate::model::{
    Agent, AgentId, AuditEntry, Credential, NewAgent, NewToken, Scope, Token, TokenId,
};
use crate::number::unsigned;

pub(super) fn create_token(
    connection: &mut Connection,
    token: &NewToken,
    now_ns: i64,
) -> Result<TokenId, StoreError> {
    let (class, role) = token.scope.columns();
    let id = connection.number(
        "INSERT INTO tokens (class, role, hash, created_ns, created_by, expires_ns)
         VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
        &[
            &class,
            &role,
            &token.hash.as_slice(),
            &now_ns,
            &text(&token.actor),
            &token.expires_ns,
        ],
    )?;
    let object = format!("token {id} ({})", scope_text(&token.scope));
    record(connection, now_ns, &token.actor, ("create token", &object))?;
    Ok(TokenId(id))
}

/// Returns the token of a certificate's name, if there is one.
pub(super) fn known_certificate(
    connection: &mut Connection,
    name: &CertificateName,
) -> Result<Option<CertificateToken>, StoreError> {
    let row = connection.first(
        "SELECT id, revoked_ns IS NOT NULL FROM tokens WHERE class = $1 AND certificate = $2",
        &[&name.class, &name.name],
    )?;
    row.map(|row| {
        Ok(CertificateToken {
            id: TokenId(row.try_get(0)?),
            is_revoked: row.try_get(1)?,
        })
    })
    .transpose()
}

pub(super) fn certificate_token(
    connection: &mut Connection,
    name: &CertificateName,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<TokenId>, StoreError> {
    // Another request may have added it since; writers take turns.
    if let Some(known) = known_certificate(connection, name)? {
        return Ok(known.in_force());
    }
    let actor = limits::certificate_text(name);
    let id = connection.number(
        "INSERT INTO tokens (class, role, hash, created_ns, created_by, certificate)
         VALUES ($1, '', $2, $3, $4, $5) RETURNING id",
        &[&name.class, &hash.as_slice(), &now_ns, &actor, &name.name],
    )?;
    let object = limits::certificate_token_text(id, name);
    record(connection, now_ns, &actor, ("create token", &object))?;
    Ok(Some(TokenId(id)))
}

/// Adds a line to the audit log: what was done, and to what.
pub(super) fn record(
    connection: &mut Connection,
    now_ns: i64,
    actor: &str,
    (action, object): (&str, &str),
) -> Result<(), StoreError> {
    connection.execute(
        "INSERT INTO audit (time_ns, actor, action, object) VALUES ($1, $2, $3, $4)",
        &[&now_ns, &text(actor), &action, &text(object)],
    )?;
    Ok(())
}

fn scope_of(row: &Row, class: usize, role: usize) -> Result<Scope, StoreError> {
    let (class, role): (&str, &str) = (row.try_get(class)?, row.try_get(role)?);
    Scope::of(class, role).ok_or_else(unknown_role)
}

/// Returns what a role allows.
pub(super) fn scope_of_role(row: &Row, role: usize) -> Result<Scope, StoreError> {
    Scope::of("", row.try_get(role)?).ok_or_else(unknown_role)
}

/// The row is refused, not guessed.
fn unknown_role() -> StoreError {
    StoreError::Row {
        problem: "unknown role".to_owned(),
    }
}

pub(super) fn tokens(connection: &mut Connection) -> Result<Vec<Token>, StoreError> {
    let rows = connection.query(
        "SELECT id, class, role, created_by, created_ns, expires_ns, revoked_ns,
             (SELECT count(*) FROM agents WHERE token = tokens.id AND hash IS NOT NULL), certificate
         FROM tokens ORDER BY id DESC",
        &[],
    )?;
    let token = |row: &Row| {
        Ok(Token {
            id: TokenId(row.try_get(0)?),
            scope: scope_of(row, 1, 2)?,
            created_by: row.try_get(3)?,
            created_ns: row.try_get(4)?,
            expires_ns: row.try_get(5)?,
            revoked_ns: row.try_get(6)?,
            agents: unsigned(row.try_get(7)?),
            certificate: row.try_get(8)?,
        })
    };
    rows.iter().map(token).collect()
}

pub(super) fn revoke(
    connection: &mut Connection,
    token: TokenId,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection.execute(
        "UPDATE tokens SET revoked_ns = $2 WHERE id = $1 AND revoked_ns IS NULL",
        &[&token.0, &now_ns],
    )?;
    if changed > 0 {
        let object = format!("token {}", token.0);
        record(connection, now_ns, actor, ("revoke token", &object))?;
    }
    Ok(changed > 0)
}

/// Tokens that are in force at `$2`.
const IN_FORCE: &str = "revoked_ns IS NULL AND (expires_ns IS NULL OR expires_ns > $2)";

pub(super) fn credential(
    connection: &mut Connection,
    hash: &[u8; 32],
    now_ns: i64,
) -> Result<Option<Credential>, StoreError> {
    let hash = hash.as_slice();
    let agent = format!(
        "SELECT agents.id, agents.host, tokens.class, tokens.certificate
         FROM agents JOIN tokens ON tokens.id = agents.token
         WHERE agents.hash = $1 AND {IN_FORCE}"
    );
    if let Some(row) = connection.first(&agent, &[&hash, &now_ns])? {
        let (class, name): (_, Option<_>) = (row.try_get(2)?, row.try_get(3)?);
        return Ok(Some(Credential::Agent {
            id: AgentId(row.try_get(0)?),
            host: row.try_get(1)?,
            certificate: name.map(|name| CertificateName { class, name }),
        }));
    }
    let token = format!(
        "SELECT id, class, role FROM tokens
         WHERE hash = $1 AND certificate IS NULL AND {IN_FORCE}"
    );
    let row = connection.first(&token, &[&hash, &now_ns])?;
    row.map(|row| {
        Ok(Credential::Token {
            id: TokenId(row.try_get(0)?),
            scope: scope_of(&row, 1, 2)?,
        })
    })
    .transpose()
}

pub(super) fn enrol(
    connection: &mut Connection,
    agent: &NewAgent,
    now_ns: i64,
) -> Result<AgentId, StoreError> {
    let id = connection.number(
        "INSERT INTO agents (token, hash, host, first_seen_ns, last_seen_ns)
         VALUES ($1, $2, $3, $4, $4) RETURNING id",
        &[
            &agent.token.0,
            &agent.hash.as_slice(),
            &text(&agent.host),
            &now_ns,
        ],
    )?;
    let object = format!("agent {id} on {}", agent.host);
    let actor = format!("token {}", agent.token.0);
    record(connection, now_ns, &actor, ("enrol agent", &object))?;
    Ok(AgentId(id))
}

pub(super) fn known_direct_sender(
    connection: &mut Connection,
    token: TokenId,
) -> Result<Option<AgentId>, StoreError> {
    let find = "SELECT id FROM agents WHERE token = $1 AND hash IS NULL";
    let row = connection.first(find, &[&token.0])?;
    row.map(|row| Ok(AgentId(row.try_get(0)?))).transpose()
}

pub(super) fn direct_sender(
    connection: &mut Connection,
    token: TokenId,
    now_ns: i64,
) -> Result<AgentId, StoreError> {
    connection.execute(
        "INSERT INTO agents (token, hash, host, first_seen_ns, last_seen_ns)
         SELECT id, NULL, coalesce(certificate, ''), $2, $2 FROM tokens WHERE id = $1
         ON CONFLICT DO NOTHING",
        &[&token.0, &now_ns],
    )?;
    let known = known_direct_sender(connection, token)?;
    known.ok_or_else(|| StoreError::Row {
        problem: format!("token {} has no direct sender", token.0),
    })
}

pub(super) fn heartbeat(
    connection: &mut Connection,
    agent: AgentId,
    inventory: &str,
    now_ns: i64,
) -> Result<(), StoreError> {
    connection.execute(
        "UPDATE agents SET last_seen_ns = $2, inventory = $3 WHERE id = $1",
        &[&agent.0, &now_ns, &text(inventory)],
    )?;
    Ok(())
}

/// Returns all agents, or the one that is named.
pub(super) fn agents(
    connection: &mut Connection,
    only: Option<AgentId>,
    now_ns: i64,
) -> Result<Vec<Agent>, StoreError> {
    let only = only.map(|agent| agent.0);
    let rows = connection.query(
        "SELECT a.id, t.class, a.host, a.hash IS NULL, a.first_seen_ns, a.last_seen_ns,
             a.acknowledged, a.missing, a.inventory,
             t.revoked_ns IS NOT NULL OR (t.expires_ns IS NOT NULL AND t.expires_ns <= $1), a.labels
         FROM agents a JOIN tokens t ON t.id = a.token WHERE $2::bigint IS NULL OR a.id = $2
         ORDER BY a.last_seen_ns DESC",
        &[&now_ns, &only],
    )?;
    let agent = |row: &Row| {
        Ok(Agent {
            id: AgentId(row.try_get(0)?),
            class: row.try_get(1)?,
            host: row.try_get(2)?,
            is_direct: row.try_get(3)?,
            first_seen_ns: row.try_get(4)?,
            last_seen_ns: row.try_get(5)?,
            acknowledged: unsigned(row.try_get(6)?),
            missing: unsigned(row.try_get(7)?),
            inventory: row.try_get(8)?,
            is_ended: row.try_get(9)?,
            labels: labels_of(row.try_get(10)?)?,
        })
    };
    rows.iter().map(agent).collect()
}

pub(super) fn audit(
    connection: &mut Connection,
    limit: u32,
) -> Result<Vec<AuditEntry>, StoreError> {
    let rows = connection.query(
        "SELECT time_ns, actor, action, object FROM audit ORDER BY id DESC LIMIT $1",
        &[&i64::from(limit)],
    )?;
    let entry = |row: &Row| {
        Ok(AuditEntry {
            time_ns: row.try_get(0)?,
            actor: row.try_get(1)?,
            action: row.try_get(2)?,
            object: row.try_get(3)?,
        })
    };
    rows.iter().map(entry).collect()
}
