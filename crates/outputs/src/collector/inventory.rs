//! The inventory of an agent, which goes with its signs of life.

use labels::Labels;
use serde_json::{Value, json};

use crate::report::{
    AgentReport, BundleReport, BundledPolicy, EnforcerReport, PolicyReport, RuleTime, RuleTimes,
};

/// Longest reason in characters.
const REASON: usize = 240;

/// Rules of the policy that are not enforced in full, as many as the inventory names.
const GAPS: usize = 12;

/// Rules in the inventory whose evaluation took the most time, and the bytes of their names: a collector refuses an inventory
/// of more than 64 KiB.
const RULES: usize = 50;
const NAMES: usize = 16 << 10;

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
    if let Some(times) = &report.rule_times {
        inventory["rule_times"] = rule_times(times);
    }
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
            gaps,
        } => {
            let extents: Value = enforcers
                .iter()
                .map(|of| (&*of.enforcer, &*of.extent))
                .collect();
            let reasons: serde_json::Map<String, Value> =
                enforcers.iter().filter_map(reason).collect();
            let mut policy = json!({
                "name": name,
                "digest": format!("sha256:{digest}"),
                "audits": audits,
                "enforcers": extents,
                "reasons": reasons,
            });
            if let Some(gaps) = gaps {
                let gaps = gaps.iter().take(GAPS).map(|gap| clipped(gap));
                policy["gaps"] = gaps.collect();
            }
            policy
        }
    }
}

fn reason(of: &EnforcerReport) -> Option<(String, Value)> {
    Some((of.enforcer.clone(), clipped(of.reason.as_ref()?).into()))
}

fn clipped(text: &str) -> String {
    text.chars().take(REASON).collect()
}

fn rule_times(times: &RuleTimes) -> Value {
    let mut names = 0;
    let is_room = |time: &&RuleTime| {
        // In JSON a character can take six bytes.
        names += json!(time.rule).to_string().len();
        names <= NAMES
    };
    let rules = times.rules.iter().take(RULES).take_while(is_room);
    let rules = rules.map(|time| {
        json!({
            "rule": time.rule,
            "evaluations": time.evaluations,
            "nanoseconds": time.nanoseconds,
        })
    });
    json!({
        "events": times.events,
        "nanoseconds": times.nanoseconds,
        "rules": rules.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{BundledPolicyState, RulesReport};

    fn enforcer(name: &str, extent: &str, reason: Option<String>) -> EnforcerReport {
        EnforcerReport {
            enforcer: name.to_owned(),
            extent: extent.to_owned(),
            reason,
        }
    }

    #[test]
    fn the_rules_that_took_the_most_time_fit_into_an_inventory() {
        let of = |name: &str| {
            let rules = (0..200).map(|at| RuleTime {
                rule: format!("{at}{name}"),
                evaluations: 64,
                nanoseconds: 1000 - at,
            });
            let report = AgentReport {
                rule_times: Some(RuleTimes {
                    events: 9,
                    nanoseconds: 12_345,
                    rules: rules.collect(),
                }),
                ..AgentReport::default()
            };
            of_agent(&Labels::default(), Some(&report), false)
        };
        let inventory = of("r");
        let times = &inventory["rule_times"];
        assert_eq!(
            (&times["events"], &times["nanoseconds"]),
            (&json!(9), &json!(12_345))
        );
        let rules = times["rules"].as_array().expect("a list");
        assert_eq!(rules.len(), RULES);
        assert_eq!(
            rules[0],
            json!({"rule": "0r", "evaluations": 64, "nanoseconds": 1000})
        );
        let hostile = of(&"\u{1}".repeat(1000));
        let count = hostile["rule_times"]["rules"].as_array().map(Vec::len);
        assert_eq!(count, Some(2));
        assert!(hostile.to_string().len() < 32 << 10);
    }

    fn of_policy(enforcers: Vec<EnforcerReport>, gaps: Option<Vec<String>>) -> PolicyReport {
        PolicyReport::Known {
            name: "p".to_owned(),
            digest: "cd".to_owned(),
            audits: false,
            enforcers,
            gaps,
        }
    }

    #[test]
    fn reasons_and_gaps_are_bounded_and_left_out_where_they_are_not_known() {
        let long = format!("no BTF{}", "!".repeat(1000));
        let enforcers = vec![
            enforcer("Landlock", "fully enforced", None),
            enforcer("BPF", "not enforced", Some(long)),
            enforcer("Caps", "partially enforced", None),
        ];
        let known = policy(&of_policy(enforcers, Some(vec!["`r`".to_owned(); 99])));
        let why = format!("no BTF{}", "!".repeat(REASON - "no BTF".len()));
        assert_eq!(
            known,
            json!({"name": "p", "digest": "sha256:cd", "audits": false,
                   "enforcers": {"Landlock": "fully enforced", "BPF": "not enforced", "Caps": "partially enforced"},
                   "reasons": {"BPF": why}, "gaps": vec!["`r`"; GAPS]})
        );
        let before = policy(&of_policy(Vec::new(), None));
        assert!(before.get("gaps").is_none(), "not told");
    }

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
                rule_times: None,
            };
            of_agent(&Labels::default(), Some(&report), true)
        };
        assert_eq!(of(PolicyReport::Absent)["policy"], Value::Null);
        assert_eq!(of(PolicyReport::Unknown)["policy"], json!({}));
        let known = of(of_policy(Vec::new(), None));
        assert_eq!(known["policy"]["digest"], "sha256:cd");
        assert!(known.get("rule_times").is_none(), "not measured");
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
