//! Tests of single rules, and the property that the order of events does not matter.

mod artifacts;
mod claim;
mod egress;
mod marks;
mod models;
mod order;
mod release;
mod restart;
mod review;
mod status;

use kinds::{ConditionStatus, NodeReport, ObjectKey, Phase, PolicyStatus, Scope};
use serde_json::{Value, json};

use super::*;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> Box<T> {
    Box::new(serde_json::from_value(value).unwrap())
}

fn id(name: &str) -> PolicyId {
    PolicyId {
        scope: Scope::Namespace,
        key: key("demo", name),
    }
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn policy(name: &str, body: Value) -> Event {
    let spec = json!({ "target": { "kind": "Deployment", "name": name }, "policy": body });
    Event::Policy(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": name, "namespace": "demo", "generation": 3 }, "spec": spec,
    })))
}

fn simple(name: &str) -> Event {
    policy(name, json!({ "enforcer": "BPF", "mode": "RuntimeDefault" }))
}

/// The ArmorProfile of a policy, as the API server would have it after it was written.
fn stored(cluster: &Cluster, id: &PolicyId, version: u64) -> Event {
    let profile = cluster.profile(id).unwrap();
    Event::Profile(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
        "metadata": { "name": profile.name, "namespace": profile.namespace, "resourceVersion": version.to_string(),
            "annotations": { INSTALLATION: "tollgate" } },
        "spec": profile.spec,
    })))
}

fn node(name: &str, boot: &str) -> Event {
    Event::Node(read(
        json!({ "metadata": { "name": name }, "status": { "nodeInfo": { "bootID": boot } } }),
    ))
}

fn report_of(name: &str, boot: &str, time: u64, observed: u64, profiles: Value) -> Event {
    let report: Box<NodeReport> = read(json!({
        "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": name },
        "status": { "agentVersion": "1", "bootID": boot, "observedVersion": observed.to_string(),
            "renewTime": format!("2026-01-01T00:00:{time:02}Z"), "profiles": profiles },
    }));
    Event::Report(report)
}

fn usage(cluster: &Cluster, id: &PolicyId, counts: [u64; 3]) -> Value {
    let profile = cluster.profile(id).unwrap();
    json!([{ "namespace": profile.namespace, "name": profile.name, "hash": profile.spec.profile.hash,
        "containers": counts.iter().sum::<u64>(), "enforced": counts[0], "late": counts[1], "unprotected": counts[2] }])
}

fn sync(cluster: &mut Cluster) {
    for kind in [
        ObjectKind::Policies,
        ObjectKind::Profiles,
        ObjectKind::Nodes,
        ObjectKind::Reports,
    ] {
        cluster.apply(Event::Synced(kind));
    }
}

fn ready(cluster: &Cluster, id: &PolicyId) -> (ConditionStatus, String, String) {
    let PolicyStatus {
        conditions, ready, ..
    } = cluster.status(id).unwrap();
    let last = conditions.last().unwrap();
    assert_eq!(last.kind, "Ready");
    assert_eq!(ready, last.status == ConditionStatus::True);
    (last.status, last.reason.clone(), last.message.clone())
}

/// A cluster with one policy, its profile at version 10, and one node that has reported nothing.
fn one_node() -> Cluster {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(simple("web"));
    sync(&mut cluster);
    cluster.apply(stored(&cluster, &id("web"), 10));
    cluster.apply(node("n1", "b1"));
    cluster
}

#[test]
fn a_policy_is_ready_when_every_node_has_seen_its_profile() {
    let mut cluster = one_node();
    let unknown = |cluster: &Cluster, cause: &str| {
        let (status, reason, message) = ready(cluster, &id("web"));
        assert_eq!(
            (status, reason.as_str()),
            (ConditionStatus::Unknown, "Processing"),
            "{message}"
        );
        let coverage = cluster.status(&id("web")).unwrap().coverage.unwrap();
        assert_eq!(coverage.reasons, [format!("1 x node unknown: {cause}")]);
        assert_eq!((coverage.nodes, coverage.unknown_nodes), (1, 1));
    };
    unknown(&cluster, "there is no report");
    cluster.apply(report_of("n1", "b0", 1, 10, json!([])));
    unknown(&cluster, "the report is about an earlier boot");
    cluster.apply(report_of("n1", "b1", 2, 9, json!([])));
    unknown(&cluster, "the agent has not seen the profile yet");
    cluster.apply(report_of("n1", "b1", 3, 10, json!([])));
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
    assert_eq!(
        cluster.status(&id("web")).unwrap().phase,
        Some(Phase::Protecting)
    );
    let since = "2026-01-01T00:00:03Z".to_owned();
    let node = "n1".to_owned();
    cluster.apply(Event::Silent { node, since });
    unknown(&cluster, "the agent has stopped to report");
    cluster.apply(report_of("n1", "b1", 4, 10, json!([])));
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
    cluster.apply(stored(&cluster, &id("web"), 11));
    unknown(&cluster, "the agent has not seen the profile yet");
}

#[test]
fn a_node_that_joins_later_is_unknown_until_it_reports() {
    let mut cluster = one_node();
    cluster.apply(report_of("n1", "b1", 1, 10, json!([])));
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
    cluster.apply(node("n2", "b2"));
    let (status, _, message) = ready(&cluster, &id("web"));
    assert_eq!(
        (status, message.as_str()),
        (ConditionStatus::Unknown, "1 of 2 nodes are unknown")
    );
    cluster.apply(Event::NodeGone("n2".to_owned()));
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
}

#[test]
fn nothing_is_ready_before_all_objects_of_each_kind_are_known() {
    for missing in [ObjectKind::Profiles, ObjectKind::Nodes, ObjectKind::Reports] {
        let mut cluster = Cluster::new("tollgate", false);
        cluster.apply(simple("web"));
        cluster.apply(stored(&cluster, &id("web"), 10));
        cluster.apply(node("n1", "b1"));
        cluster.apply(report_of("n1", "b1", 1, 10, json!([])));
        for kind in [ObjectKind::Profiles, ObjectKind::Nodes, ObjectKind::Reports] {
            if kind != missing {
                cluster.apply(Event::Synced(kind));
            }
        }
        let message = format!("not all {missing:?} are known yet");
        let expected = (ConditionStatus::Unknown, "Processing".to_owned(), message);
        assert_eq!(ready(&cluster, &id("web")), expected);
        cluster.apply(Event::Synced(missing));
        assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
    }
}

#[test]
fn containers_of_all_nodes_are_counted_and_one_unprotected_is_not_ready() {
    let mut cluster = one_node();
    cluster.apply(node("n2", "b2"));
    let of = |cluster: &Cluster, counts| usage(cluster, &id("web"), counts);
    cluster.apply(report_of("n1", "b1", 1, 10, of(&cluster, [3, 1, 0])));
    cluster.apply(report_of("n2", "b2", 1, 10, of(&cluster, [2, 0, 0])));
    let (status, _, message) = ready(&cluster, &id("web"));
    assert_eq!(status, ConditionStatus::True);
    assert_eq!(
        message,
        "1 of 6 containers were confined after they had begun"
    );
    cluster.apply(report_of("n2", "b2", 2, 10, of(&cluster, [2, 0, 1])));
    let (status, reason, message) = ready(&cluster, &id("web"));
    assert_eq!(
        (status, reason.as_str()),
        (ConditionStatus::False, "Unprotected")
    );
    assert_eq!(message, "1 of 7 containers are not confined");
    let coverage = cluster.status(&id("web")).unwrap().coverage.unwrap();
    let counts = (
        coverage.containers,
        coverage.enforced,
        coverage.late,
        coverage.unprotected,
    );
    assert_eq!(counts, (7, 5, 1, 1));
}

#[test]
fn a_report_that_contradicts_itself_or_an_earlier_profile_is_unknown() {
    let mut cluster = one_node();
    let reasons = |cluster: &Cluster| {
        cluster
            .status(&id("web"))
            .unwrap()
            .coverage
            .unwrap()
            .reasons
    };
    let mut profiles = usage(&cluster, &id("web"), [1, 0, 0]);
    profiles[0]["containers"] = json!(2);
    cluster.apply(report_of("n1", "b1", 1, 10, profiles.clone()));
    assert_eq!(
        reasons(&cluster),
        ["1 x node unknown: the numbers in the report do not add up"]
    );
    profiles[0]["hash"] = json!("0");
    cluster.apply(report_of("n1", "b1", 2, 10, profiles.clone()));
    assert_eq!(
        reasons(&cluster),
        ["1 x node unknown: the agent enforces an earlier profile"]
    );
    profiles[0]["failure"] = json!("no BPF LSM");
    cluster.apply(report_of("n1", "b1", 3, 10, profiles));
    let (status, reason, message) = ready(&cluster, &id("web"));
    assert_eq!((status, reason.as_str()), (ConditionStatus::False, "Error"));
    assert_eq!(message, "1 of 1 nodes failed");
    let status = cluster
        .profile_status(&key("demo", "varmor-demo-web"))
        .unwrap();
    assert_eq!(
        (status.desired_number_loaded, status.current_number_loaded),
        (1, 0)
    );
    assert_eq!(status.conditions[0].message, "no BPF LSM");
    assert_eq!(status.conditions[0].node_name, "n1");
}

#[test]
fn of_two_policies_with_one_profile_name_the_older_has_it() {
    let at = |name: &str, namespace: &str, time: &str| {
        Event::Policy(read(json!({
            "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
            "metadata": { "name": name, "namespace": namespace, "creationTimestamp": time },
            "spec": { "target": { "kind": "Pod", "name": "x" }, "policy": { "enforcer": "BPF", "mode": "AlwaysAllow" } },
        })))
    };
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(at("b-c", "a", "2026-01-02T00:00:00Z"));
    cluster.apply(at("c", "a-b", "2026-01-01T00:00:00Z"));
    let policy = |namespace: &str, name: &str| PolicyId {
        scope: Scope::Namespace,
        key: key(namespace, name),
    };
    assert!(cluster.profile(&policy("a-b", "c")).is_ok());
    let error = cluster.profile(&policy("a", "b-c")).unwrap_err();
    assert_eq!(
        error,
        ProfileError::SameName {
            other: key("a-b", "c")
        }
    );
    cluster.take_changes();
    cluster.apply(Event::PolicyGone(policy("a-b", "c")));
    assert!(
        cluster.take_changes().contains(&policy("a", "b-c")),
        "its status has to be written again"
    );
    assert!(cluster.profile(&policy("a", "b-c")).is_ok());
}

#[test]
fn modes_that_nodes_do_not_have_and_wrong_policies_are_said_in_the_status() {
    let mut cluster = Cluster::new("tollgate", false);
    let modeling = json!({ "enforcer": "BPF", "mode": "BehaviorModeling", "modelingOptions": { "duration": 1 } });
    cluster.apply(policy("m", modeling));
    cluster.apply(policy(
        "w",
        json!({ "enforcer": "BPF", "mode": "Whatever" }),
    ));
    let (_, reason, message) = ready(&cluster, &id("m"));
    assert_eq!(reason, "Forbidden");
    assert!(message.contains("not enabled"), "{message}");
    let (_, reason, message) = ready(&cluster, &id("w"));
    assert_eq!(reason, "Error");
    assert!(message.contains("Whatever"), "{message}");
    assert_eq!(
        cluster.status(&id("w")).unwrap().observed_generation,
        Some(3)
    );
}

/// A status that is written gives the profile a new version, which must not make every node unknown.
#[test]
fn only_a_new_spec_has_to_be_seen_by_nodes() {
    let mut cluster = one_node();
    let version = |cluster: &mut Cluster, version: u64, generation: i64, status: Option<Value>| {
        let Event::Profile(mut profile) = stored(cluster, &id("web"), version) else {
            panic!("it is a profile");
        };
        profile.metadata.generation = Some(generation);
        profile.status = status.map(|status| serde_json::from_value(status).unwrap());
        cluster.apply(Event::Profile(profile));
    };
    version(&mut cluster, 20, 1, None);
    cluster.apply(report_of("n1", "b1", 1, 20, json!([])));
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
    version(&mut cluster, 21, 1, None);
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::True);
    version(&mut cluster, 22, 2, None);
    assert_eq!(ready(&cluster, &id("web")).0, ConditionStatus::Unknown);
    let key = key("demo", "varmor-demo-web");
    let status = cluster.profile_status(&key).unwrap();
    assert_eq!(
        (status.observed_generation, status.spec_version.as_deref()),
        (Some(2), Some("22"))
    );
    // A new leader reads it there.
    let mut leader = one_node();
    version(&mut leader, 29, 2, Some(json!(status)));
    leader.apply(report_of("n1", "b1", 1, 22, json!([])));
    assert_eq!(ready(&leader, &id("web")).0, ConditionStatus::True);
    version(&mut leader, 30, 3, Some(json!(status)));
    assert_eq!(ready(&leader, &id("web")).0, ConditionStatus::Unknown);
}

#[test]
fn times_of_conditions_change_with_their_status() {
    let mut cluster = one_node();
    let mut first = cluster.status(&id("web")).unwrap();
    keep_times(&mut first, None, "t1");
    cluster.apply(report_of("n1", "b1", 1, 10, json!([])));
    let mut second = cluster.status(&id("web")).unwrap();
    keep_times(&mut second, Some(&first), "t2");
    let times = |status: &PolicyStatus| -> Vec<String> {
        let times = status
            .conditions
            .iter()
            .map(|condition| condition.last_transition_time.clone());
        times.map(Option::unwrap).collect()
    };
    assert_eq!(times(&first), ["t1", "t1", "t1"]);
    assert_eq!(times(&second), ["t1", "t1", "t2"]);
}
