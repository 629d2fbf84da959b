//! How far a workload is with a rollout.

use serde_json::Value;

/// How far a workload is with the replacement of its pods.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rollout {
    Done,
    Running,
    Stalled,
    /// It does not replace them by itself, or not all.
    NotRolled(&'static str),
}

/// How far a workload is whose template was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// It has its new pods, or does not replace them by itself.
    Over,
    /// It replaces them. The value grows with each pod of the newest template.
    Running([u64; 2]),
    /// Its controller has given up.
    Stalled,
}

/// How far a workload of a kind is with its newest template. What a controller says of an earlier one says nothing.
#[must_use]
pub fn replacement(kind: &str, workload: &Value) -> Replacement {
    // A controller that has not written a number has replaced nothing.
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let status = &workload["status"];
    let observed = number(&status["observedGeneration"]);
    let updated = match kind {
        "DaemonSet" => number(&status["updatedNumberScheduled"]),
        _ => number(&status["updatedReplicas"]),
    };
    match rollout(kind, workload) {
        Rollout::Done | Rollout::NotRolled(_) => Replacement::Over,
        Rollout::Stalled if observed >= number(&workload["metadata"]["generation"]) => {
            Replacement::Stalled
        }
        Rollout::Stalled | Rollout::Running => Replacement::Running([observed, updated]),
    }
}

/// How far a workload of a kind is.
pub(crate) fn rollout(kind: &str, workload: &Value) -> Rollout {
    let (spec, status) = (&workload["spec"], &workload["status"]);
    let number = |value: &Value, default: u64| value.as_u64().unwrap_or(default);
    let wanted = number(&spec["replicas"], 1);
    if spec["paused"] == true {
        return Rollout::NotRolled("is paused");
    }
    if spec["updateStrategy"]["type"] == "OnDelete" {
        return Rollout::NotRolled("has the update strategy OnDelete");
    }
    if number(&spec["updateStrategy"]["rollingUpdate"]["partition"], 0) > 0 {
        return Rollout::NotRolled("has a partition, so that it replaces some alone");
    }
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    if conditions.any(|one| one["reason"] == "ProgressDeadlineExceeded" && one["status"] == "False")
    {
        return Rollout::Stalled;
    }
    let generation = number(&workload["metadata"]["generation"], 0);
    let (wanted, updated, available, all) = match kind {
        "DaemonSet" => {
            let desired = number(&status["desiredNumberScheduled"], 0);
            let updated = number(&status["updatedNumberScheduled"], 0);
            (
                desired,
                updated,
                number(&status["numberAvailable"], 0),
                updated,
            )
        }
        "StatefulSet" => {
            let updated = number(&status["updatedReplicas"], 0);
            (
                wanted,
                updated,
                number(&status["readyReplicas"], 0),
                updated,
            )
        }
        _ => {
            let updated = number(&status["updatedReplicas"], 0);
            let all = number(&status["replicas"], 0);
            (
                wanted,
                updated,
                number(&status["availableReplicas"], 0),
                all,
            )
        }
    };
    let is_seen = number(&status["observedGeneration"], 0) >= generation;
    match is_seen && updated >= wanted && available >= wanted && all <= updated {
        true => Rollout::Done,
        false => Rollout::Running,
    }
}
