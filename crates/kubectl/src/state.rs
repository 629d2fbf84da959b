//! The state of the cluster, as crate `cluster` has it of the objects that are there now.

use apiserver::Resource;
use cluster::{Cluster, Event, ObjectKind, SILENCE};
use jiff::Timestamp;
use kinds::{ConditionStatus, NodeReport, PolicyObject};
use serde_json::Value;

use crate::session::{Failure, Session, key};

/// The policies that a command is about: those of its namespace, and those of the cluster.
pub(crate) fn policies(session: &Session) -> Result<Vec<PolicyObject>, Failure> {
    let mut objects = session.list("VarmorPolicy", session.namespace.as_deref())?;
    objects.extend(session.list("VarmorClusterPolicy", None)?);
    objects.into_iter().map(read).collect()
}

/// Policies, profiles, nodes and reports.
pub(crate) fn read_cluster(session: &Session) -> Result<Cluster, Failure> {
    let mut cluster = Cluster::new(&session.installation, false);
    for policy in policies(session)? {
        cluster.apply(Event::Policy(Box::new(policy)));
    }
    let mut profiles = session.list("ArmorProfile", session.namespace.as_deref())?;
    if session
        .namespace
        .as_ref()
        .is_some_and(|own| *own != session.installation)
    {
        // Where those of the cluster's policies are.
        profiles.extend(session.list("ArmorProfile", Some(&session.installation))?);
    }
    for profile in profiles {
        cluster.apply(Event::Profile(Box::new(read(profile)?)));
    }
    for mut node in session.list_any(&Resource::new("", "v1", "nodes"), None)? {
        node["kind"] = "Node".into();
        node["apiVersion"] = "v1".into();
        cluster.apply(Event::Node(Box::new(read(node)?)));
    }
    for report in reports(session)? {
        let silent = silence(&report);
        cluster.apply(Event::Report(Box::new(report)));
        silent.into_iter().for_each(|event| cluster.apply(event));
    }
    for kind in [
        ObjectKind::Policies,
        ObjectKind::Profiles,
        ObjectKind::Nodes,
        ObjectKind::Reports,
    ] {
        cluster.apply(Event::Synced(kind));
    }
    Ok(cluster)
}

/// The reports of all nodes.
pub(crate) fn reports(session: &Session) -> Result<Vec<NodeReport>, Failure> {
    let objects = session.list("NodeReport", None)?;
    objects.into_iter().map(read).collect()
}

/// An event if a report is so old that it says nothing any more, by the clock of this machine.
fn silence(report: &NodeReport) -> Option<Event> {
    let since = &report.status.as_ref()?.renew_time;
    let written: Option<Timestamp> = since.parse().ok();
    let is_fresh = written
        .is_some_and(|written| Timestamp::now().duration_since(written).unsigned_abs() <= SILENCE);
    (!is_fresh).then(|| Event::Silent {
        node: report.metadata.name.clone(),
        since: since.clone(),
    })
}

/// An object in the form of its kind.
pub(crate) fn read<T: serde::de::DeserializeOwned>(object: Value) -> Result<T, Failure> {
    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
    let kind = object["kind"].as_str().unwrap_or_default();
    let what = format!("{kind} {}", key(text("namespace"), text("name")));
    serde_json::from_value(object).map_err(|error| Failure::Object {
        what,
        problem: error.to_string(),
    })
}

/// Returns true if the status of a policy is about the policy as it is.
pub(crate) fn is_current(policy: &PolicyObject) -> bool {
    let status = policy.status.as_ref();
    let observed = status.and_then(|status| status.observed_generation);
    observed.is_some() && observed == policy.metadata.generation
}

/// The condition Ready of a policy: status, reason and message. Without a current status it is not known.
pub(crate) fn ready(policy: &PolicyObject) -> (ConditionStatus, String, String) {
    let unknown = |message: &str| {
        let (reason, message) = ("Processing".to_owned(), message.to_owned());
        (ConditionStatus::Unknown, reason, message)
    };
    let Some(status) = &policy.status else {
        return unknown("the operator has not written a status");
    };
    if !is_current(policy) {
        return unknown("the operator has not seen the last change of the policy");
    }
    let mut conditions = status.conditions.iter();
    match conditions.find(|condition| condition.kind == "Ready") {
        Some(ready) => (ready.status, ready.reason.clone(), ready.message.clone()),
        None => unknown("the status has no condition Ready"),
    }
}

/// Namespace of the installation that acts on a policy, as its status says; `None` if none does yet, or vArmor does.
pub(crate) fn acting(policy: &PolicyObject) -> Option<&str> {
    let acting = policy.status.as_ref()?.installation.as_deref();
    acting.filter(|acting| !acting.is_empty())
}

/// A note if nobody keeps the status of policies current.
pub(crate) fn note_operator(session: &Session) -> Option<String> {
    let leases = Resource::new("coordination.k8s.io", "v1", "leases");
    let at = key(&session.installation, "tollgate-operator");
    let lease = match session.find(&leases, &at) {
        Ok(Some(lease)) => lease,
        Ok(None) => {
            return Some(format!(
                "warning: no operator has ever acted in the namespace {}: status is not kept current",
                session.installation
            ));
        }
        Err(failure) => {
            return Some(format!(
                "warning: it is not known whether an operator keeps the status current: {}",
                failure.text()
            ));
        }
    };
    let renewed = lease["spec"]["renewTime"].as_str().unwrap_or_default();
    let seconds = lease["spec"]["leaseDurationSeconds"]
        .as_i64()
        .unwrap_or_default();
    let age = renewed.parse::<Timestamp>().ok();
    let age = age.map(|renewed| Timestamp::now().duration_since(renewed).as_secs());
    match age {
        // A lease is renewed well before its end; clocks of two machines differ.
        Some(age) if age <= seconds.saturating_mul(2) => None,
        _ => Some(format!(
            "warning: no operator acts since {renewed}: status is not kept current"
        )),
    }
}
