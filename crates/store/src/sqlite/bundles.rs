//! Bundles and roll-outs.

use labels::{Labels, Selector};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SqliteStore;
use super::fleet::{record, unknown};
use crate::bundles::{
    Assigned, Assignment, Bundle, BundleId, BundleReport, Bundles, Gate, Health, NewBundle,
    Rollout, Target, conflict, labels_of, matching, selector_of,
};
use crate::error::StoreError;
use crate::limits;
use crate::model::AgentId;
use crate::number::{now_ns, signed, unsigned};

impl Bundles for SqliteStore {
    fn add_bundle(&self, bundle: NewBundle) -> Result<BundleId, StoreError> {
        self.write(move |state| add(state.connection(), &bundle, now_ns()))
    }

    fn bundles(&self) -> Result<Vec<Bundle>, StoreError> {
        self.readers.with(all)
    }

    fn bundle_text(&self, bundle: BundleId) -> Result<Option<String>, StoreError> {
        self.readers.with(|connection| text(connection, bundle))
    }

    fn assign(&self, assignment: Assignment) -> Result<Assigned, StoreError> {
        self.write(move |state| assign(state.connection(), &assignment, now_ns()))
    }

    fn unassign(&self, target: &Target, actor: &str) -> Result<bool, StoreError> {
        let (target, actor) = (target.clone(), actor.to_owned());
        self.write(move |state| unassign(state.connection(), &target, &actor, now_ns()))
    }

    fn roll_back(&self, target: &Target, actor: &str) -> Result<bool, StoreError> {
        let (target, actor) = (target.clone(), actor.to_owned());
        self.write(move |state| roll_back(state.connection(), &target, &actor, now_ns()))
    }

    fn halt(&self, target: &Target, bundle: BundleId, reason: &str) -> Result<bool, StoreError> {
        let (target, reason) = (target.clone(), reason.to_owned());
        self.write(move |state| halt(state.connection(), (&target, bundle), &reason, now_ns()))
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
        let is_kept = |connection: &Connection| is_kept(connection, agent, &text, now_ns());
        if self.readers.with(is_kept)? {
            return Ok(false);
        }
        self.write(move |state| set_labels(state.connection(), agent, &text, now_ns()))
    }

    fn note_bundle(&self, agent: AgentId, report: BundleReport) -> Result<bool, StoreError> {
        let is_noted = |connection: &Connection| is_noted(connection, agent, &report);
        if self.readers.with(is_noted)? {
            return Ok(false);
        }
        self.write(move |state| note(state.connection(), agent, &report, now_ns()))?;
        Ok(true)
    }
}

fn add(connection: &Connection, bundle: &NewBundle, now_ns: i64) -> Result<BundleId, StoreError> {
    let find = "SELECT id FROM bundles WHERE digest = ?1";
    let known = connection.query_row(find, [&bundle.digest], |row| row.get(0));
    if let Some(id) = known.optional()? {
        return Ok(BundleId(id));
    }
    connection.execute(
        "INSERT INTO bundles (version, digest, key, text, created_ns, created_by)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            signed(bundle.version),
            bundle.digest,
            bundle.key,
            bundle.text,
            now_ns,
            bundle.actor
        ],
    )?;
    let id = connection.last_insert_rowid();
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

fn bundle(row: &Row<'_>, at: usize) -> rusqlite::Result<Bundle> {
    Ok(Bundle {
        id: BundleId(row.get(at)?),
        version: unsigned(row.get(at + 1)?),
        digest: row.get(at + 2)?,
        key: row.get(at + 3)?,
        created_ns: row.get(at + 4)?,
        created_by: row.get(at + 5)?,
    })
}

fn all(connection: &Connection) -> Result<Vec<Bundle>, StoreError> {
    let sql = format!("SELECT {} FROM bundles b ORDER BY id DESC", columns("b"));
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([], |row| bundle(row, 0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn text(connection: &Connection, bundle: BundleId) -> Result<Option<String>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT text FROM bundles WHERE id = ?1")?;
    Ok(statement
        .query_row([bundle.0], |row| row.get(0))
        .optional()?)
}

fn assign(
    connection: &Connection,
    assignment: &Assignment,
    now_ns: i64,
) -> Result<Assigned, StoreError> {
    let id = assignment.bundle;
    let find = "SELECT version, digest FROM bundles WHERE id = ?1";
    let known = connection.query_row(find, [id.0], |row| {
        Ok((unsigned(row.get(0)?), row.get::<_, String>(1)?))
    });
    let Some((version, digest)) = known.optional()? else {
        return Ok(Assigned::UnknownBundle);
    };
    let target = &assignment.target;
    if let Some(other) = conflict(assignment, selectors(connection, &target.class)?) {
        return Ok(Assigned::Conflict(other));
    }
    let gate = &assignment.gate;
    connection.execute(
        "INSERT INTO rollouts (class, bundle, percent, max_failures, max_losses, max_alerts, started_ns, actor, selector, priority)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT (class, selector) DO UPDATE SET
             -- What was halted, or did not reach all, was not found good: those who do not get the new one must not get it.
             previous = nullif(CASE WHEN rollouts.bundle <> excluded.bundle AND rollouts.halted IS NULL AND rollouts.percent >= 100
                 THEN rollouts.bundle ELSE rollouts.previous END, excluded.bundle),
             bundle = excluded.bundle, percent = excluded.percent, max_failures = excluded.max_failures,
             max_losses = excluded.max_losses, max_alerts = excluded.max_alerts, halted = NULL,
             started_ns = excluded.started_ns, actor = excluded.actor, priority = excluded.priority",
        params![
            target.class,
            id.0,
            assignment.percent,
            gate.failures.map(signed),
            gate.losses.map(signed),
            gate.alerts.map(signed),
            now_ns,
            assignment.actor,
            target.selector.to_string(),
            assignment.priority
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
fn selectors(connection: &Connection, class: &str) -> Result<Vec<(Selector, i32)>, StoreError> {
    let sql = "SELECT selector, priority FROM rollouts WHERE class = ?1 ORDER BY selector";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map([class], |row| Ok((selector(row, 0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn selector(row: &Row<'_>, column: usize) -> rusqlite::Result<Selector> {
    let text: String = row.get(column)?;
    selector_of(&text).map_err(|error| unknown(column, &error.to_string()))
}

fn unassign(
    connection: &Connection,
    target: &Target,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let sql = "DELETE FROM rollouts WHERE class = ?1 AND selector = ?2";
    let changed = connection.execute(sql, params![target.class, target.selector.to_string()])?;
    if changed > 0 {
        let object = target.to_string();
        record(connection, now_ns, actor, ("end roll-out", &object))?;
    }
    Ok(changed > 0)
}

fn roll_back(
    connection: &Connection,
    target: &Target,
    actor: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection.execute(
        "UPDATE rollouts SET bundle = previous, percent = 100, max_failures = NULL,
             -- As for an assignment: the next part must not leave the others with what was rolled back for a reason.
             previous = CASE WHEN halted IS NULL AND percent >= 100 THEN bundle END,
             max_losses = NULL, max_alerts = NULL, halted = NULL, started_ns = ?2, actor = ?3
         WHERE class = ?1 AND selector = ?4 AND previous IS NOT NULL",
        params![target.class, now_ns, actor, target.selector.to_string()],
    )?;
    if changed > 0 {
        let object = target.to_string();
        record(connection, now_ns, actor, ("roll back bundle", &object))?;
    }
    Ok(changed > 0)
}

fn halt(
    connection: &Connection,
    (target, bundle): (&Target, BundleId),
    reason: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection.execute(
        "UPDATE rollouts SET halted = ?3
         WHERE class = ?1 AND selector = ?4 AND bundle = ?2 AND halted IS NULL",
        params![target.class, bundle.0, reason, target.selector.to_string()],
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
const ROLLOUTS: &str =
    "rollouts r JOIN bundles b ON b.id = r.bundle LEFT JOIN bundles p ON p.id = r.previous";

fn rollout(row: &Row<'_>) -> rusqlite::Result<Rollout> {
    let has_previous = row.get::<_, Option<i64>>(6)?.is_some();
    let percent: i64 = row.get(13)?;
    let limit = |at| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(at)?.map(unsigned));
    Ok(Rollout {
        bundle: bundle(row, 0)?,
        previous: has_previous.then(|| bundle(row, 6)).transpose()?,
        target: Target {
            class: row.get(12)?,
            selector: selector(row, 20)?,
        },
        priority: row.get(21)?,
        percent: u8::try_from(percent)
            .map_err(|_error| rusqlite::Error::IntegralValueOutOfRange(13, percent))?,
        gate: Gate {
            failures: limit(14)?,
            losses: limit(15)?,
            alerts: limit(16)?,
        },
        halted: row.get(17)?,
        started_ns: row.get(18)?,
        actor: row.get(19)?,
        health: Health::default(),
    })
}

fn rollouts(connection: &Connection, now_ns: i64) -> Result<Vec<Rollout>, StoreError> {
    let sql = format!(
        "SELECT {} FROM {ROLLOUTS} ORDER BY r.class, r.selector",
        rollout_columns()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([], rollout)?;
    let mut rollouts: Vec<Rollout> = rows.collect::<Result<_, _>>()?;
    for rollout in &mut rollouts {
        rollout.health = health(connection, rollout, now_ns)?;
    }
    Ok(rollouts)
}

fn health(connection: &Connection, rollout: &Rollout, now_ns: i64) -> Result<Health, StoreError> {
    let mut statement = connection.prepare_cached(
        "WITH reported AS (
             SELECT s.agent, s.refused, s.since_ns, a.acknowledged - s.acknowledged AS records
             FROM agent_bundles s JOIN agents a ON a.id = s.agent JOIN tokens t ON t.id = a.token
             WHERE t.class = ?1 AND s.digest = ?2
                 AND (?5 IS NULL OR a.labels IN (SELECT value FROM json_each(?5))))
         SELECT
             (SELECT count(*) FROM agents a JOIN tokens t ON t.id = a.token
              WHERE t.class = ?1 AND (?5 IS NULL OR a.labels IN (SELECT value FROM json_each(?5)))
                  AND a.hash IS NOT NULL AND t.revoked_ns IS NULL
                  AND coalesce(t.expires_ns, ?4 + 1) > ?4),
             (SELECT count(*) FROM reported WHERE refused IS NULL),
             (SELECT count(*) FROM reported WHERE refused IS NOT NULL AND since_ns >= ?3),
             (SELECT coalesce(sum(l.count), 0) FROM reported r JOIN losses l ON l.agent = r.agent
              WHERE r.refused IS NULL AND l.time_ns >= r.since_ns),
             (SELECT coalesce(sum(records), 0) FROM reported WHERE refused IS NULL),
             (SELECT coalesce(sum(?4 - since_ns), 0) FROM reported WHERE refused IS NULL)",
    )?;
    let Target { class, selector } = &rollout.target;
    let labels = matching(selector, || all_labels(connection, class))?;
    let values = params![
        class,
        rollout.bundle.digest,
        rollout.started_ns,
        now_ns,
        labels.map(|labels| json_list(&labels))
    ];
    let health = statement.query_row(values, |row| {
        Ok(Health {
            agents: unsigned(row.get(0)?),
            in_force: unsigned(row.get(1)?),
            refused: unsigned(row.get(2)?),
            losses: unsigned(row.get(3)?),
            records: unsigned(row.get(4)?),
            time_ns: row.get(5)?,
        })
    })?;
    Ok(health)
}

/// Returns the different labels that agents of a class have.
fn all_labels(connection: &Connection, class: &str) -> Result<Vec<String>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT DISTINCT a.labels FROM agents a JOIN tokens t ON t.id = a.token WHERE t.class = ?1",
    )?;
    let rows = statement.query_map([class], |row| row.get(0))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns labels as a list of JSON. They have no character that JSON escapes.
fn json_list(labels: &[String]) -> String {
    let quoted: Vec<_> = labels.iter().map(|text| format!("\"{text}\"")).collect();
    format!("[{}]", quoted.join(","))
}

fn rollouts_of(
    connection: &Connection,
    agent: AgentId,
) -> Result<(Vec<Rollout>, Labels), StoreError> {
    let sql = format!(
        "SELECT {} FROM {ROLLOUTS} JOIN tokens t ON t.class = r.class JOIN agents a ON a.token = t.id WHERE a.id = ?1
         ORDER BY r.selector",
        rollout_columns()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([agent.0], rollout)?;
    let rollouts = rows.collect::<Result<_, _>>()?;
    let Some(text) = labels_text(connection, agent)? else {
        // An agent that does not exist.
        return Ok((Vec::new(), Labels::default()));
    };
    Ok((rollouts, labels_of(&text)?))
}

fn labels_text(connection: &Connection, agent: AgentId) -> Result<Option<String>, StoreError> {
    let mut statement = connection.prepare_cached("SELECT labels FROM agents WHERE id = ?1")?;
    Ok(statement
        .query_row([agent.0], |row| row.get(0))
        .optional()?)
}

fn set_labels(
    connection: &Connection,
    agent: AgentId,
    text: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let changed = connection
        .prepare_cached("UPDATE agents SET labels = ?2 WHERE id = ?1 AND labels <> ?2")?
        .execute(params![agent.0, text])?;
    let actor = format!("agent {}", agent.0);
    if !is_recorded(connection, now_ns, (&actor, limits::CHANGE_LABELS))? {
        let sql = "UPDATE agents SET recorded_labels = labels WHERE id = ?1 AND recorded_labels <> labels";
        if connection.prepare_cached(sql)?.execute([agent.0])? > 0 {
            record(connection, now_ns, &actor, (limits::CHANGE_LABELS, text))?;
        }
    }
    Ok(changed > 0)
}

/// Returns true if these are the agent's labels, and the audit log has them or must wait to have them.
fn is_kept(
    connection: &Connection,
    agent: AgentId,
    text: &str,
    now_ns: i64,
) -> Result<bool, StoreError> {
    let sql = "SELECT labels, recorded_labels FROM agents WHERE id = ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?));
    let Some((known, recorded)) = statement.query_row([agent.0], read).optional()? else {
        return Ok(false);
    };
    let actor = format!("agent {}", agent.0);
    Ok(known == text
        && (recorded == text || is_recorded(connection, now_ns, (&actor, limits::CHANGE_LABELS))?))
}

/// Returns true if this is what the agent said last. Of a bundle that the store does not know nothing is kept.
fn is_noted(
    connection: &Connection,
    agent: AgentId,
    report: &BundleReport,
) -> Result<bool, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT CASE WHEN EXISTS (SELECT 1 FROM bundles WHERE digest = ?2)
             THEN EXISTS (SELECT 1 FROM agent_bundles WHERE agent = ?1 AND digest = ?2 AND refused IS ?3)
             ELSE NOT EXISTS (SELECT 1 FROM agent_bundles WHERE agent = ?1) END",
    )?;
    let values = params![agent.0, report.digest, report.refused];
    Ok(statement.query_row(values, |row| row.get(0))?)
}

fn note(
    connection: &Connection,
    agent: AgentId,
    report: &BundleReport,
    now_ns: i64,
) -> Result<(), StoreError> {
    let noted = connection
        .prepare_cached(
            "INSERT INTO agent_bundles (agent, digest, refused, since_ns, acknowledged)
             SELECT id, ?2, ?3, ?4, acknowledged FROM agents
             WHERE id = ?1 AND EXISTS (SELECT 1 FROM bundles WHERE digest = ?2)
             ON CONFLICT (agent) DO UPDATE SET digest = excluded.digest, refused = excluded.refused,
                 since_ns = excluded.since_ns, acknowledged = excluded.acknowledged",
        )?
        .execute(params![agent.0, report.digest, report.refused, now_ns])?;
    if noted == 0 {
        connection.execute("DELETE FROM agent_bundles WHERE agent = ?1", [agent.0])?;
        return Ok(());
    }
    let (action, object) = limits::bundle_report(report);
    let actor = format!("agent {}", agent.0);
    if is_recorded(connection, now_ns, (&actor, action))? {
        return Ok(());
    }
    record(connection, now_ns, &actor, (action, &object))
}

/// Returns true if the audit log has this of this agent from the last minute: whoever has an agent's secret must not fill
/// it. Only its end is read, as it has no index of times: what comes before that many others is no flood.
fn is_recorded(
    connection: &Connection,
    now_ns: i64,
    (actor, action): (&str, &str),
) -> Result<bool, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM audit WHERE id > (SELECT max(id) FROM audit) - ?1
             AND time_ns > ?2 AND time_ns <= ?3 AND actor = ?4 AND action = ?5)",
    )?;
    let since_ns = now_ns - limits::REPORT_NS;
    let values = params![limits::LATEST, since_ns, now_ns, actor, action];
    Ok(statement.query_row(values, |row| row.get(0))?)
}
