//! `kubectl tollgate status`.

use jiff::Timestamp;
use kinds::{PolicyObject, PolicyStatus};
use serde_json::{Value, json};

use crate::output::{Shown, Table, age, columns, list};
use crate::session::{Failure, Session};
use crate::state::{acting, is_current, note_operator, policies, ready};

/// Shows policies; all if no names are given.
pub(crate) fn show(session: &Session, names: &[String]) -> Result<Shown, Failure> {
    let mut policies = policies(session)?;
    for name in names {
        if !policies.iter().any(|policy| policy.metadata.name == *name) {
            let what = format!("a policy with the name {name}");
            return Err(Failure::Missing { what });
        }
    }
    policies.retain(|policy| names.is_empty() || names.contains(&policy.metadata.name));
    let now = Timestamp::now();
    let others = policies.iter().filter_map(|policy| {
        let acting = acting(policy).filter(|acting| *acting != session.installation)?;
        let (kind, key) = (&policy.kind, policy.key());
        Some(format!(
            "{kind} {key}: the installation in {acting} acts on it"
        ))
    });
    let notes = note_operator(session).into_iter().chain(others).collect();
    let table = Table {
        columns: columns(&[
            "NAMESPACE",
            "NAME",
            "READY",
            "STATUS",
            "CONTAINERS",
            "ENFORCED",
            "LATE",
            "UNPROTECTED",
            "UNKNOWN-NODES",
            "AGE",
            "+PROFILE",
            "+ENFORCER",
            "+MODE",
            "+INSTALLATION",
            "REASONS",
        ]),
        rows: policies.iter().map(|policy| row(policy, now)).collect(),
        ..Table::default()
    };
    Ok(Shown {
        tables: vec![table],
        data: list(policies.iter().map(data).collect()),
        notes,
    })
}

/// The status of a policy, if it is about the policy as it is.
fn current(policy: &PolicyObject) -> Option<&PolicyStatus> {
    policy.status.as_ref().filter(|_| is_current(policy))
}

/// Why a policy is not ready, or not everywhere.
fn reasons(policy: &PolicyObject) -> Vec<String> {
    let (_, reason, message) = ready(policy);
    let mut all = match message.is_empty() {
        true => vec![reason],
        false => vec![format!("{reason}: {message}")],
    };
    let coverage = current(policy).and_then(|status| status.coverage.as_ref());
    all.extend(
        coverage
            .into_iter()
            .flat_map(|coverage| coverage.reasons.clone()),
    );
    all
}

fn row(policy: &PolicyObject, now: Timestamp) -> Vec<String> {
    let unknown = || "<unknown>".to_owned();
    let coverage = current(policy).and_then(|status| status.coverage.as_ref());
    let count = |of: fn(&kinds::Coverage) -> u64| {
        coverage.map_or_else(unknown, |coverage| of(coverage).to_string())
    };
    let phase = current(policy).and_then(|status| status.phase);
    let profile = policy
        .status
        .as_ref()
        .map(|status| status.profile_name.clone());
    let created = policy.metadata.creation_timestamp.as_deref();
    vec![
        policy.metadata.namespace.clone().unwrap_or_default(),
        policy.metadata.name.clone(),
        format!("{:?}", ready(policy).0),
        phase.map_or_else(unknown, |phase| format!("{phase:?}")),
        count(|coverage| coverage.containers),
        count(|coverage| coverage.enforced),
        count(|coverage| coverage.late),
        count(|coverage| coverage.unprotected),
        count(|coverage| coverage.unknown_nodes),
        age(created.unwrap_or_default(), now),
        profile.unwrap_or_default(),
        policy.spec.enforcer().to_owned(),
        policy.spec.mode().to_owned(),
        // An empty column: no installation acts on it yet.
        acting(policy).unwrap_or_default().to_owned(),
        reasons(policy).join("; "),
    ]
}

fn data(policy: &PolicyObject) -> Value {
    let (is_ready, ..) = ready(policy);
    let status = current(policy);
    json!({
        "kind": policy.kind,
        "namespace": policy.metadata.namespace,
        "name": policy.metadata.name,
        "ready": is_ready,
        "phase": status.and_then(|status| status.phase),
        "profile": policy.status.as_ref().map(|status| &status.profile_name),
        "enforcer": policy.spec.enforcer(),
        "mode": policy.spec.mode(),
        "installation": acting(policy),
        "coverage": status.and_then(|status| status.coverage.as_ref()),
        "reasons": reasons(policy),
    })
}
