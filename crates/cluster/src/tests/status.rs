//! The conditions Updated, and Ready of a policy that needs a proxy.

use super::*;

fn condition(cluster: &Cluster, kind: &str) -> Option<(ConditionStatus, String, String)> {
    let status = cluster.status(&id("web")).unwrap();
    let mut all = status.conditions.into_iter();
    let found = all.find(|condition| condition.kind == kind)?;
    Some((found.status, found.reason, found.message))
}

/// The policy `web` with this body and generation.
fn changed(body: Value, generation: i64) -> Event {
    let Event::Policy(mut policy) = policy("web", body) else {
        panic!("it is a policy");
    };
    policy.metadata.generation = Some(generation);
    Event::Policy(policy)
}

/// vArmor says of a change whether it has taken it, and leaves the profile before in force when it has not.
#[test]
fn a_change_of_a_policy_is_updated_when_its_profile_has_it() {
    let body = |mode: &str| json!({ "enforcer": "BPF", "mode": mode });
    let mut cluster = one_node();
    cluster.apply(changed(body("RuntimeDefault"), 1));
    assert_eq!(condition(&cluster, "Updated"), None, "it was never changed");
    cluster.apply(changed(body("AlwaysAllow"), 2));
    let waits = (
        ConditionStatus::Unknown,
        "Processing".to_owned(),
        String::new(),
    );
    assert_eq!(condition(&cluster, "Updated"), Some(waits));
    cluster.apply(stored(&cluster, &id("web"), 11));
    let done = (ConditionStatus::True, String::new(), String::new());
    assert_eq!(condition(&cluster, "Updated"), Some(done));
    cluster.apply(changed(body("DefenseInDepth"), 3));
    let (status, reason, message) = condition(&cluster, "Updated").unwrap();
    assert_eq!(
        (status, reason.as_str()),
        (ConditionStatus::False, "Forbidden")
    );
    assert!(message.contains("needs `defenseInDepth`"), "{message}");
    assert_eq!(
        condition(&cluster, "Created").unwrap().0,
        ConditionStatus::True
    );
}

#[test]
fn rules_that_need_a_proxy_are_named_and_the_policy_is_not_ready() {
    let mut cluster = one_node();
    let egress = json!({ "defaultAction": "allow", "httpRules": [{ "qualifiers": ["deny"],
        "match": { "hosts": ["a.example"], "methods": ["POST"] } }] });
    let body = json!({ "enforcer": "NetworkProxy", "mode": "EnhanceProtect",
        "enhanceProtect": { "networkProxyRawRules": { "egress": egress } } });
    cluster.apply(policy("web", body));
    cluster.apply(stored(&cluster, &id("web"), 12));
    cluster.apply(report_of("n1", "b1", 1, 12, json!([])));
    let (status, reason, message) = ready(&cluster, &id("web"));
    assert_eq!(
        (status, reason.as_str()),
        (ConditionStatus::False, "NeedsProxy")
    );
    let begin = "rules inside of connections are not enforced: ";
    assert!(
        message.starts_with(begin) && message.len() > begin.len(),
        "{message}"
    );
    let status = cluster.status(&id("web")).unwrap();
    assert_eq!((status.ready, status.phase), (false, Some(Phase::Error)));
    // A node that fails comes first: that is worse.
    let mut profiles = usage(&cluster, &id("web"), [0, 0, 1]);
    profiles[0]["failure"] = json!("no BPF LSM");
    cluster.apply(report_of("n1", "b1", 2, 12, profiles));
    assert_eq!(ready(&cluster, &id("web")).1, "Error");
}
