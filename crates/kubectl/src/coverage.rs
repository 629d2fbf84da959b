//! `kubectl tollgate coverage`.

use std::collections::BTreeSet;

use cluster::{Cluster, NodeState, PolicyId};
use kinds::{PolicyObject, ProfileState};
use serde_json::{Value, json};

use crate::output::{Shown, Table, columns, list};
use crate::session::{Failure, Session};
use crate::state::{is_current, read_cluster};

/// A policy on a node.
struct Cell {
    node: String,
    policy: PolicyId,
    state: &'static str,
    /// What the node counts; `None` if it is not known.
    counts: Option<ProfileState>,
    reasons: Vec<String>,
}

/// Shows policies on nodes; on all if no nodes are named.
pub(crate) fn show(session: &Session, nodes: &[String]) -> Result<Shown, Failure> {
    let cluster = read_cluster(session)?;
    let known: BTreeSet<&str> = cluster.nodes().collect();
    if let Some(name) = nodes.iter().find(|name| !known.contains(name.as_str())) {
        let what = format!("the node {name}");
        return Err(Failure::Missing { what });
    }
    let is_shown = |cell: &Cell| nodes.is_empty() || nodes.contains(&cell.node);
    let mut cells: Vec<Cell> = cluster
        .policies()
        .flat_map(|(id, policy)| of_policy(&cluster, id, policy))
        .filter(is_shown)
        .collect();
    cells.sort_by(|one, other| (&one.node, &one.policy).cmp(&(&other.node, &other.policy)));
    let table = Table {
        columns: columns(&[
            "NODE",
            "NAMESPACE",
            "POLICY",
            "STATE",
            "CONTAINERS",
            "ENFORCED",
            "LATE",
            "UNPROTECTED",
            "+HASH",
            "REASONS",
        ]),
        rows: cells.iter().map(row).collect(),
        ..Table::default()
    };
    Ok(Shown {
        tables: vec![table],
        data: list(cells.iter().map(data).collect()),
        notes: Vec::new(),
    })
}

/// A policy on each node.
fn of_policy(cluster: &Cluster, id: &PolicyId, policy: &PolicyObject) -> Vec<Cell> {
    let unknown = |cause: &str| {
        let nodes = cluster.nodes();
        let cell = |node: &str| Cell {
            node: node.to_owned(),
            policy: id.clone(),
            state: "Unknown",
            counts: None,
            reasons: vec![cause.to_owned()],
        };
        nodes.map(cell).collect()
    };
    if !is_current(policy) {
        return unknown("the operator has not seen the policy as it is");
    }
    match cluster.nodes_of(id) {
        None => unknown("the policy has no profile: its status says why"),
        Some(states) => states.map(|(node, state)| cell(node, id, state)).collect(),
    }
}

fn cell(node: &str, id: &PolicyId, state: NodeState<'_>) -> Cell {
    let (word, counts, reasons) = match state {
        NodeState::Idle => ("Idle", Some(ProfileState::default()), Vec::new()),
        NodeState::Ready(counts) => {
            let word = match (counts.unprotected, counts.late) {
                (0, 0) => "Enforced",
                (0, _) => "Late",
                _ => "Unprotected",
            };
            (word, Some(counts.clone()), counts.reasons.clone())
        }
        NodeState::Failed(counts, cause) => {
            let mut reasons = vec![cause.to_owned()];
            reasons.extend(counts.reasons.iter().cloned());
            ("Failed", Some(counts.clone()), reasons)
        }
        NodeState::Unknown(cause) => ("Unknown", None, vec![cause.to_owned()]),
    };
    Cell {
        node: node.to_owned(),
        policy: id.clone(),
        state: word,
        counts,
        reasons,
    }
}

fn row(cell: &Cell) -> Vec<String> {
    let counts = cell.counts.as_ref();
    let count = |of: fn(&ProfileState) -> u64| {
        counts.map_or_else(|| "<unknown>".to_owned(), |counts| of(counts).to_string())
    };
    vec![
        cell.node.clone(),
        cell.policy.key.namespace.clone(),
        cell.policy.key.name.clone(),
        cell.state.to_owned(),
        count(|counts| counts.containers),
        count(|counts| counts.enforced),
        count(|counts| counts.late),
        count(|counts| counts.unprotected),
        counts.map(|counts| counts.hash.clone()).unwrap_or_default(),
        cell.reasons.join("; "),
    ]
}

fn data(cell: &Cell) -> Value {
    let counts = cell.counts.as_ref();
    json!({
        "node": cell.node,
        "kind": cell.policy.scope.kind(),
        "namespace": cell.policy.key.namespace,
        "policy": cell.policy.key.name,
        "state": cell.state,
        "containers": counts.map(|counts| counts.containers),
        "enforced": counts.map(|counts| counts.enforced),
        "late": counts.map(|counts| counts.late),
        "unprotected": counts.map(|counts| counts.unprotected),
        "reasons": cell.reasons,
    })
}
