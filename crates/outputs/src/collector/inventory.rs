//! The inventory of an agent, which goes with its signs of life.

use labels::Labels;
use serde_json::{Value, json};

use crate::report::{AgentReport, BundleReport, BundledPolicy, PolicyReport};

/// Returns the inventory: the machine and its labels, and what is in force, and whether captures are allowed, as soon as the
/// engine runs.
pub(super) fn of_agent(
    labels: &Labels,
    report: Option<&AgentReport>,
    allows_captures: bool,
) -> Value {
    let system = rustix::system::uname();
    let mut inventory = json!({
        "host": system.nodename().to_string_lossy(),
        "kernel": system.release().to_string_lossy(),
        "architecture": system.machine().to_string_lossy(),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "labels": labels.iter().collect::<Value>(),
    });
    let Some(report) = report else {
        return inventory;
    };
    inventory["engine"] = json!(report.engine);
    inventory["rules"] = json!(format!("sha256:{}", report.rules.digest));
    inventory["rules_enabled"] = json!(report.rules.enabled);
    inventory["rules_refused"] = json!(report.rules.refused);
    let counters = report.counters.iter();
    inventory["counters"] = counters.map(|(name, count)| (*name, *count)).collect();
    inventory["policy"] = policy(&report.policy);
    inventory["captures"] = json!(allows_captures);
    inventory["bundle"] = report.bundle.as_ref().map_or(Value::Null, bundle);
    inventory
}

fn bundle(report: &BundleReport) -> Value {
    let (version, digest) = report.in_force.clone().unzip();
    let refused = report.refused.as_ref();
    let policies: Vec<_> = report.policies.iter().map(bundled_policy).collect();
    json!({
        "version": version,
        "digest": digest,
        "refused": refused.map(|(digest, why)| json!({"digest": digest, "reason": why})),
        "policies": policies,
    })
}

fn bundled_policy(policy: &BundledPolicy) -> Value {
    let (state, reason) = policy.state.named();
    json!({
        "name": policy.name,
        "digest": format!("sha256:{}", policy.digest),
        "state": state,
        "reason": reason,
    })
}

/// `null` without a policy; without members if it is not known.
fn policy(policy: &PolicyReport) -> Value {
    match policy {
        PolicyReport::Absent => Value::Null,
        PolicyReport::Unknown => json!({}),
        PolicyReport::Known {
            name,
            digest,
            audits,
            enforcers,
        } => {
            let enforcers = enforcers.iter();
            let enforcers: Value = enforcers
                .map(|(enforcer, extent)| (&**enforcer, &**extent))
                .collect();
            json!({
                "name": name,
                "digest": format!("sha256:{digest}"),
                "audits": audits,
                "enforcers": enforcers,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{BundledPolicyState, RulesReport};

    #[test]
    fn an_unknown_policy_is_not_reported_as_none() {
        let of = |policy| {
            let report = AgentReport {
                engine: "notify".to_owned(),
                rules: RulesReport {
                    digest: "ab".to_owned(),
                    enabled: 3,
                    refused: 1,
                },
                policy,
                bundle: Some(BundleReport {
                    in_force: Some((4, "ef".to_owned())),
                    refused: None,
                    policies: vec![BundledPolicy {
                        name: "q".to_owned(),
                        digest: "01".to_owned(),
                        state: BundledPolicyState::Refused("looser".to_owned()),
                    }],
                }),
                counters: vec![("dropped_events", 7)],
            };
            of_agent(&Labels::default(), Some(&report), true)
        };
        assert_eq!(of(PolicyReport::Absent)["policy"], Value::Null);
        assert_eq!(of(PolicyReport::Unknown)["policy"], json!({}));
        let known = of(PolicyReport::Known {
            name: "p".to_owned(),
            digest: "cd".to_owned(),
            audits: false,
            enforcers: vec![("Landlock".to_owned(), "fully enforced".to_owned())],
        });
        assert_eq!(
            known["policy"],
            json!({"name": "p", "digest": "sha256:cd", "audits": false,
                   "enforcers": {"Landlock": "fully enforced"}})
        );
        assert_eq!(known["captures"], true);
        assert_eq!(known["rules"], "sha256:ab");
        assert_eq!(
            known["bundle"],
            json!({"version": 4, "digest": "ef", "refused": null, "policies": [
                {"name": "q", "digest": "sha256:01", "state": "refused", "reason": "looser"}]})
        );
        assert_eq!(known["counters"], json!({"dropped_events": 7}));
        let labels = Labels::parse("tier=db,zone=b").expect("valid");
        let early = of_agent(&labels, None, true);
        assert!(early.get("policy").is_none());
        assert_eq!(early["labels"], json!({"tier": "db", "zone": "b"}));
    }
}
