//! Bundles and roll-outs.

use labels::{Labels, Selector};
use postgres::Row;
use postgres::types::ToSql;

use super::PostgresStore;
use super::connection::Connection;
use super::fleet::record;
use super::text as clean;
use crate::bundles::{
    Assigned, Assignment, Bundle, BundleId, BundleReport, Bundles, Gate, Health, NewBundle,
    Rollout, Target, conflict, labels_of, matching, selector_of,
};
use crate::error::StoreError;
use crate::limits;
use crate::model::AgentId;
use crate::number::{now_ns, signed, unsigned};

impl Bundles for PostgresStore {
    fn add_bundle(&self, bundle: NewBundle) -> Result<BundleId, StoreError> {
        self.write(move |state| add(state.connection()?, &bundle, now_ns()))
    }

    fn bundles(&self) -> Result<Vec<Bundle>, StoreError> {
        self.readers.with(all)
    }

    fn bundle_text(&self, bundle: BundleId) -> Result<Option<String>, StoreError> {
        self.readers.with(|connection| text(connection, bundle))
    }

    fn assign(&self, assignment: Assignment) -> Result<Assigned, StoreError> {
        self.write(move |state| assign(state.connection()?, &assignment, now_ns()))
    }

    fn unassign(&self, target: &Target, actor: &str) -> Result<bool, StoreError> {
        let (target, actor) = (target.clone(), actor.to_owned());
        self.write(move |state| unassign(state.connection()?, &target, &actor, now_ns()))
    }

    fn roll_back(&self, target: &Target, actor: &str) -> Result<bool, StoreError> {
        let (target, actor) = (target.clone(), actor.to_owned());
        self.write(move |state| roll_back(state.connection()?, &target, &actor, now_ns()))
    }

    fn halt(&self, target: &Target, bundle: BundleId, reason: &str) -> Result<bool, StoreError> {
        let (target, reason) = (target.clone(), reason.to_owned());
        self.write(move |state| halt(state.connection()?, (&target, bundle), &reason, now_ns()))
    }

    fn rollouts(&self) -> Result<Vec<Rollout>, StoreError> {
        self.readers
            .with(|connection| rollouts(connection, now_ns()))
    }

    fn rollouts_of(&self, agent: AgentId) -> Result<(Vec<Rollout>, Labels), StoreError> {
        self.readers
            .with(|connection| rollouts_of(connection, agent))
    }

    fn set_labels(&self, agent: AgentId, labels: &Labels) -> Result<bool, StoreError> {
        let text = labels.to_string();
        let is_kept = |connection: &mut Connection| is_kept(connection, agent, &text, now_ns());
        if self.readers.with(is_kept)? {
            return Ok(false);
        }
        self.write(move |state| set_labels(state.connection()?, agent, &text, now_ns()))
    }

    fn note_bundle(&self, agent: AgentId, report: BundleReport) -> Result<bool, StoreError> {
        let is_noted = |connection: &mut Connection| is_noted(connection, agent, &report);
        if self.readers.with(is_noted)? {
            return Ok(false);
        }
        self.write(move |state| note(state.connection()?, agent, &report, now_ns()))?;
        Ok(true)
    }
}

fn add(
    connection: &mut Connection,
    bundle: &NewBundle,
    now_ns: i64,
) -> Result<BundleId, StoreError> {
    let find = "SELECT id FROM bundles WHERE digest = $1";
    if let Some(row) = connection.first(find, &[&bundle.digest])? {
        return Ok(BundleId(row.try_get(0)?));
    }
    let id = connection.number(
        "INSERT INTO bundles (version, digest, key, text, created_ns, created_by)
         VALUES ($1, $2, $3, $4, $5, $6) RETURNING id",
        &[
            &signed(bundle.version),
            &bundle.digest,
            &bundle.key,
            &bundle.text,
            &now_ns,
            &bundle.actor,
        ],
    )?;
    let object = limits::bundle_text(id, bundle.version, &bundle.digest);
    record(connection, now_ns, &bundle.actor, ("add bundle", &object))?;
    Ok(BundleId(id))
}

/// Columns of a bundle in the table that is called so.
fn columns(table: &str) -> String {
    ["id", "version", "digest", "key", "created_ns", "created_by"]
        .map(|column| format!("{table}.{column}"))
        .join(", ")
}

fn bundle(row: &Row, at: usize) -> Result<Bundle, StoreError> {
    Ok(Bundle {
        id: BundleId(row.try_get(at)?),
        version: unsigned(row.try_get(at + 1)?),
        digest: row.try_get(at + 2)?,
        key: row.try_get(at + 3)?,
        created_ns: row.try_get(at + 4)?,
        created_by: row.try_get(at + 5)?,
    })
}

fn all(connection: &mut Connection) -> Result<Vec<Bundle>, StoreError> {
    let sql = format!("SELECT {} FROM bundles b ORDER BY id DESC", columns("b"));
    let rows = connection.query(&sql, &[])?;
    rows.iter().map(|row| bundle(row, 0)).collect()
}

fn text(connection: &mut Connection, bundle: BundleId) -> Result<Option<String>, StoreError> {
    let row = connection.first("SELECT text FROM bundles WHERE id = $1", &[&bundle.0])?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

fn assign(
    connection: &mut Connection,
    assignment: &Assignment,
    now_ns: i64,
) -> Result<Assigned, StoreError> {
    let id = assignment.bundle;
    let find = "SELECT version, digest FROM bundles WHERE id = $1";
    let Some(row) = connection.first(find, &[&id.0])? else {
        return Ok(Assigned::UnknownBundle);
    };
    let target = &assignment.target;
    if let Some(other) = conflict(assignment, selectors(connection, &target.class)?) {
        return Ok(Assigned::Conflict(other));
    }
    let (version, digest) = (unsigned(row.try_get(0)?), row.try_get::<_, String>(1)?);
    let gate = &assignment.gate;
    connection.execute(
        "INSERT INTO rollouts_by_selector AS r (class, bundle, percent, max_failures, max_losses, max_alerts, started_ns, actor, selector, priority)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT (class, selector) DO UPDATE SET
             -- What was halted, or did not reach all, was not found good: those who do not get the new one must not get it.
             previous = nullif(CASE WHEN r.bundle <> excluded.bundle AND r.halted IS NULL AND r.percent >= 100
                 THEN r.bundle ELSE r.previous END, excluded.bundle),
             bundle = excluded.bundle, percent = excluded.percent, max_failures = excluded.max_failures,
             max_losses = excluded.max_losses, max_alerts = excluded.max_alerts, halted = NULL,
             started_ns = excluded.started_ns, actor = excluded.actor, priority = excluded.priority",
        &[
            &target.class,
            &id.0,
            &i64::from(assignment.percent),
            &gate.failures.map(signed),
            &gate.losses.map(signed),
            &gate.alerts.map(signed),
            &now_ns,
            &assignment.actor,
            &target.selector.to_string(),
            &i64::from(assignment.priority),
        ],
    )?;
    let object = limits::assignment(assignment, &limits::bundle_text(id.0, version, &digest));
    record(
        connection,
        now_ns,
        &assignment.actor,
        ("assign bundle", &object),
    )?;
    Ok(Assigned::Done)
}

/// Returns the selectors of a class's roll-outs, with their priorities.
fn selectors(connection: &mut Connection, class: &str) -> Result<Vec<(Selector, i32)>, StoreError> {
    let sql =
        "SELECT selector, priority FROM rollouts_by_selector WHERE class = $1 ORDER BY selector";
    let rows = connection.query(sql, &[&class])?;
    let read = |row: &Row| Ok((selector_of(row.try_get(0)?)?, priority_of(row.try_get(1)?)?));
    rows.iter().map(read).collect()
}

fn unassign(
    connection: &mut Connection,
    target: &Target,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let sql = "DELETE FROM rollouts_by_selector WHERE class = $1 AND selector = $2";
    let changed = connection.execute(sql, &[&target.class, &target.selector.to_string()])?;
    if changed > 0 {
        let object = target.to_string();
        record(connection, now_ns, actor, ("end roll-out", &object))?;
    }
    Ok(changed > 0)
}

fn roll_back(
    connection: &mut Connection,
    target: &Target,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection.execute(
        "UPDATE rollouts_by_selector SET bundle = previous, percent = 100, max_failures = NULL,
             -- As for an assignment: the next part must not leave the others with what was rolled back for a reason.
             previous = CASE WHEN halted IS NULL AND percent >= 100 THEN bundle END,
             max_losses = NULL, max_alerts = NULL, halted = NULL, started_ns = $2, actor = $3
         WHERE class = $1 AND selector = $4 AND previous IS NOT NULL",
        &[&target.class, &now_ns, &actor, &target.selector.to_string()],
    )?;
    if changed > 0 {
        let object = target.to_string();
        record(connection, now_ns, actor, ("roll back bundle", &object))?;
    }
    Ok(changed > 0)
}

fn halt(
    connection: &mut Connection,
    (target, bundle): (&Target, BundleId),
    reason: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection.execute(
        "UPDATE rollouts_by_selector SET halted = $3 WHERE class = $1 AND selector = $4 AND bundle = $2 AND halted IS NULL",
        &[&target.class, &bundle.0, &reason, &target.selector.to_string()],
    )?;
    if changed > 0 {
        let object = format!("{target}: {reason}");
        record(connection, now_ns, "collector", ("halt roll-out", &object))?;
    }
    Ok(changed > 0)
}

/// Returns what is read of a roll-out called `r`, its bundle `b` and the one before, `p`.
fn rollout_columns() -> String {
    format!(
        "{}, {}, r.class, r.percent, r.max_failures, r.max_losses, r.max_alerts, r.halted, r.started_ns, r.actor, r.selector, r.priority",
        columns("b"),
        columns("p")
    )
}

/// Where it is read from.
const ROLLOUTS: &str = "rollouts_by_selector r JOIN bundles b ON b.id = r.bundle LEFT JOIN bundles p ON p.id = r.previous";

fn rollout(row: &Row) -> Result<Rollout, StoreError> {
    let has_previous = row.try_get::<_, Option<i64>>(6)?.is_some();
    let percent: i64 = row.try_get(13)?;
    let limit = |at| Ok::<_, StoreError>(row.try_get::<_, Option<i64>>(at)?.map(unsigned));
    Ok(Rollout {
        bundle: bundle(row, 0)?,
        previous: has_previous.then(|| bundle(row, 6)).transpose()?,
        target: Target {
            class: row.try_get(12)?,
            selector: selector_of(row.try_get(20)?)?,
        },
        priority: priority_of(row.try_get(21)?)?,
        percent: u8::try_from(percent).map_err(|_error| StoreError::Row {
            problem: format!("unknown part {percent}"),
        })?,
        gate: Gate {
            failures: limit(14)?,
            losses: limit(15)?,
            alerts: limit(16)?,
        },
        halted: row.try_get(17)?,
        started_ns: row.try_get(18)?,
        actor: row.try_get(19)?,
        health: Health::default(),
    })
}

fn rollouts(connection: &mut Connection, now_ns: i64) -> Result<Vec<Rollout>, StoreError> {
    let sql = format!(
        "SELECT {} FROM {ROLLOUTS} ORDER BY r.class, r.selector",
        rollout_columns()
    );
    let rows = connection.query(&sql, &[])?;
    let mut rollouts: Vec<Rollout> = rows.iter().map(rollout).collect::<Result<_, _>>()?;
    for rollout in &mut rollouts {
        rollout.health = health(connection, rollout, now_ns)?;
    }
    Ok(rollouts)
}

fn health(
    connection: &mut Connection,
    rollout: &Rollout,
    now_ns: i64,
) -> Result<Health, StoreError> {
    let sql = "WITH reported AS (
             SELECT s.agent, s.refused, s.since_ns, a.acknowledged - s.acknowledged AS records
             FROM agent_bundles s JOIN agents a ON a.id = s.agent JOIN tokens t ON t.id = a.token
             WHERE t.class = $1 AND s.digest = $2 AND ($5::text[] IS NULL OR a.labels = ANY($5)))
         SELECT
             (SELECT count(*) FROM agents a JOIN tokens t ON t.id = a.token
              WHERE t.class = $1 AND ($5::text[] IS NULL OR a.labels = ANY($5)) AND a.hash IS NOT NULL AND t.revoked_ns IS NULL
                  AND (t.expires_ns IS NULL OR t.expires_ns > $4)),
             (SELECT count(*) FROM reported WHERE refused IS NULL),
             (SELECT count(*) FROM reported WHERE refused IS NOT NULL AND since_ns >= $3),
             (SELECT coalesce(sum(l.count), 0)::bigint FROM reported r JOIN losses l ON l.agent = r.agent
              WHERE r.refused IS NULL AND l.time_ns >= r.since_ns),
             (SELECT coalesce(sum(records), 0)::bigint FROM reported WHERE refused IS NULL),
             (SELECT coalesce(sum($4::bigint - since_ns), 0)::bigint FROM reported WHERE refused IS NULL)";
    let digest = &rollout.bundle.digest;
    let Target { class, selector } = &rollout.target;
    let labels = matching(selector, || all_labels(connection, class))?;
    let values: [&(dyn ToSql + Sync); 5] = [class, digest, &rollout.started_ns, &now_ns, &labels];
    let row = connection.first(sql, &values)?;
    let row = row.ok_or_else(|| StoreError::Row {
        problem: "a sum without a row".to_owned(),
    })?;
    Ok(Health {
        agents: unsigned(row.try_get(0)?),
        in_force: unsigned(row.try_get(1)?),
        refused: unsigned(row.try_get(2)?),
        losses: unsigned(row.try_get(3)?),
        records: unsigned(row.try_get(4)?),
        time_ns: row.try_get(5)?,
    })
}

/// Returns the different labels that agents of a class have.
fn all_labels(connection: &mut Connection, class: &str) -> Result<Vec<String>, StoreError> {
    let sql =
        "SELECT DISTINCT a.labels FROM agents a JOIN tokens t ON t.id = a.token WHERE t.class = $1";
    let rows = connection.query(sql, &[&class])?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

fn rollouts_of(
    connection: &mut Connection,
    agent: AgentId,
) -> Result<(Vec<Rollout>, Labels), StoreError> {
    let sql = format!(
        "SELECT {} FROM {ROLLOUTS} JOIN tokens t ON t.class = r.class JOIN agents a ON a.token = t.id WHERE a.id = $1
         ORDER BY r.selector",
        rollout_columns()
    );
    let rows = connection.query(&sql, &[&agent.0])?;
    let rollouts: Result<Vec<_>, _> = rows.iter().map(rollout).collect();
    let Some(text) = labels_text(connection, agent)? else {
        // An agent that does not exist.
        return Ok((Vec::new(), Labels::default()));
    };
    Ok((rollouts?, labels_of(&text)?))
}

fn labels_text(connection: &mut Connection, agent: AgentId) -> Result<Option<String>, StoreError> {
    let row = connection.first("SELECT labels FROM agents WHERE id = $1", &[&agent.0])?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

fn set_labels(
    connection: &mut Connection,
    agent: AgentId,
    text: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let sql = "UPDATE agents SET labels = $2 WHERE id = $1 AND labels <> $2";
    let is_new = connection.execute(sql, &[&agent.0, &text])? > 0;
    let actor = format!("agent {}", agent.0);
    if !is_recorded(connection, now_ns, (&actor, limits::CHANGE_LABELS))? {
        let sql = "UPDATE agents SET recorded_labels = labels WHERE id = $1 AND recorded_labels <> labels";
        if connection.execute(sql, &[&agent.0])? > 0 {
            record(connection, now_ns, &actor, (limits::CHANGE_LABELS, text))?;
        }
    }
    Ok(is_new)
}

/// Returns true if these are the agent's labels, and the audit log has them or must wait to have them.
fn is_kept(
    connection: &mut Connection,
    agent: AgentId,
    text: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let sql = "SELECT labels, recorded_labels FROM agents WHERE id = $1";
    let Some(row) = connection.first(sql, &[&agent.0])? else {
        return Ok(false);
    };
    let (known, recorded): (String, String) = (row.try_get(0)?, row.try_get(1)?);
    let actor = format!("agent {}", agent.0);
    Ok(known == text
        && (recorded == text || is_recorded(connection, now_ns, (&actor, limits::CHANGE_LABELS))?))
}

fn priority_of(number: i64) -> Result<i32, StoreError> {
    i32::try_from(number).map_err(|_error| StoreError::Row {
        problem: format!("unknown priority {number}"),
    })
}

/// Returns true if this is what the agent said last. Of a bundle that the store does not know nothing is kept.
fn is_noted(
    connection: &mut Connection,
    agent: AgentId,
    report: &BundleReport,
) -> Result<bool, StoreError> {
    let sql = "SELECT (CASE WHEN EXISTS (SELECT 1 FROM bundles WHERE digest = $2)
             THEN EXISTS (SELECT 1 FROM agent_bundles
                          WHERE agent = $1 AND digest = $2 AND refused IS NOT DISTINCT FROM $3)
             ELSE NOT EXISTS (SELECT 1 FROM agent_bundles WHERE agent = $1) END)::int::bigint";
    let refused = report.refused.as_deref().map(clean);
    Ok(connection.number(sql, &[&agent.0, &clean(&report.digest), &refused])? > 0)
}

fn note(
    connection: &mut Connection,
    agent: AgentId,
    report: &BundleReport,
    now_ns: i64,
) -> Result<(), StoreError> {
    let refused = report.refused.as_deref().map(clean);
    let noted = connection.execute(
        "INSERT INTO agent_bundles (agent, digest, refused, since_ns, acknowledged)
         SELECT id, $2, $3, $4, acknowledged FROM agents
         WHERE id = $1 AND EXISTS (SELECT 1 FROM bundles WHERE digest = $2)
         ON CONFLICT (agent) DO UPDATE SET digest = excluded.digest, refused = excluded.refused,
             since_ns = excluded.since_ns, acknowledged = excluded.acknowledged",
        &[&agent.0, &clean(&report.digest), &refused, &now_ns],
    )?;
    if noted == 0 {
        connection.execute("DELETE FROM agent_bundles WHERE agent = $1", &[&agent.0])?;
        return Ok(());
    }
    let (action, object) = limits::bundle_report(report);
    let actor = format!("agent {}", agent.0);
    if is_recorded(connection, now_ns, (&actor, action))? {
        return Ok(());
    }
    record(connection, now_ns, &actor, (action, &clean(&object)))
}

/// Returns true if the audit log has this of this agent from the last minute: whoever has an agent's secret must not fill
/// it. Only its end is read, as it has no index of times: what comes before that many others is no flood.
fn is_recorded(
    connection: &mut Connection,
    now_ns: i64,
    (actor, action): (&str, &str),
) -> Result<bool, StoreError> {
    let sql = "SELECT count(*) FROM audit WHERE id > (SELECT max(id) FROM audit) - $1
             AND time_ns > $2 AND time_ns <= $3 AND actor = $4 AND action = $5";
    let since_ns = now_ns - limits::REPORT_NS;
    let found = connection.number(sql, &[&limits::LATEST, &since_ns, &now_ns, &actor, &action])?;
    Ok(found > 0)
}
