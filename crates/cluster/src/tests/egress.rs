//! Tests of egress rules about Services and Pods.

use super::*;

fn destinations(cluster: &Cluster, id: &PolicyId) -> Value {
    let text = cluster.profile(id).unwrap().spec.profile.policy;
    let policy: Value = serde_json::from_str(&text).unwrap();
    policy["policy"]["enhanceProtect"]["bpfRawRules"]["network"]["egress"]["toDestinations"].clone()
}

fn egress(rules: Value) -> Event {
    policy(
        "e",
        json!({ "enforcer": "BPF", "mode": "EnhanceProtect", "enhanceProtect": {
        "privileged": true, "bpfRawRules": { "network": { "egress": rules } } } }),
    )
}

#[test]
fn services_become_their_addresses_and_those_behind_them() {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(egress(json!({
        "toDestinations": [{ "qualifiers": ["deny"], "cidr": "10.9.0.0/16" }],
        "toServices": [{ "qualifiers": ["deny", "audit"], "name": "api" }],
    })));
    let needed = [ObjectKind::Services, ObjectKind::Endpoints];
    for kind in needed {
        assert_eq!(
            cluster.profile(&id("e")),
            Err(ProfileError::NotSynced(kind))
        );
        cluster.apply(Event::Synced(kind));
    }
    assert_eq!(
        destinations(&cluster, &id("e")).as_array().unwrap().len(),
        1
    );
    let before = cluster.profile(&id("e")).unwrap().spec.profile.hash;
    cluster.take_changes();
    cluster.apply(Event::Service(read(json!({
        "metadata": { "name": "api", "namespace": "demo" },
        "spec": { "clusterIPs": ["10.0.0.7", "fd00::7"], "externalIPs": ["192.0.2.1"], "ports": [{ "port": 443 }] },
        "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.2" }, { "hostname": "x.example" }] } } }))));
    cluster.apply(Event::Endpoints(read(json!({
        "metadata": { "name": "api-1", "namespace": "demo", "labels": { "kubernetes.io/service-name": "api" } },
        "endpoints": [{ "addresses": ["10.1.0.3"] }], "ports": [{ "port": 8443 }] }))));
    assert!(cluster.take_changes().contains(&id("e")));
    let both = json!(["deny", "audit"]);
    let on =
        |ip: &str, port: u16| json!({ "ip": ip, "qualifiers": both, "ports": [{ "port": port }] });
    let expected = json!([
        { "qualifiers": ["deny"], "cidr": "10.9.0.0/16" },
        on("10.0.0.7", 443),
        on("10.1.0.3", 8443),
        on("192.0.2.1", 443),
        on("192.0.2.2", 443),
        on("fd00::7", 443),
    ]);
    let found = destinations(&cluster, &id("e"));
    assert_eq!(found, expected);
    assert_ne!(cluster.profile(&id("e")).unwrap().spec.profile.hash, before);
    cluster.apply(Event::ServiceGone(key("demo", "api")));
    cluster.apply(Event::EndpointsGone(key("demo", "api-1")));
    assert_eq!(cluster.profile(&id("e")).unwrap().spec.profile.hash, before);
}

#[test]
fn pods_become_their_addresses_unless_they_are_those_of_the_node() {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(egress(json!({ "toPods": [{ "qualifiers": ["deny"], "namespace": "back",
        "podSelector": { "matchLabels": { "app": "db" } }, "ports": [{ "port": 5432, "endPort": 5440 }] }] })));
    cluster.apply(Event::Synced(ObjectKind::Pods));
    let pod = |name: &str, namespace: &str, app: &str, host: bool, phase: &str| {
        Event::Pod(read(json!({
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": app } },
            "spec": { "hostNetwork": host },
            "status": { "phase": phase, "podIPs": [{ "ip": format!("10.1.0.{}", name.len()) }] } })))
    };
    for event in [
        pod("a", "back", "db", false, "Running"),
        pod("bb", "front", "db", false, "Running"),
        pod("ccc", "back", "web", false, "Running"),
        pod("dddd", "back", "db", true, "Running"),
        pod("eeeee", "back", "db", false, "Succeeded"),
        pod("ffffff", "back", "db", false, "Running"),
    ] {
        cluster.apply(event);
    }
    let to = |ip: &str| json!({ "ip": ip, "qualifiers": ["deny"], "ports": [{ "port": 5432, "endPort": 5440 }] });
    assert_eq!(
        destinations(&cluster, &id("e")),
        json!([to("10.1.0.1"), to("10.1.0.6")])
    );
    cluster.apply(pod("a", "back", "db", false, "Failed"));
    assert_eq!(destinations(&cluster, &id("e")), json!([to("10.1.0.6")]));
}

#[test]
fn a_rule_about_services_that_cannot_be_meant_is_an_error_by_name() {
    let mut cluster = Cluster::new("tollgate", false);
    for kind in [
        ObjectKind::Services,
        ObjectKind::Endpoints,
        ObjectKind::Pods,
    ] {
        cluster.apply(Event::Synced(kind));
    }
    for (rules, expected) in [
        (
            json!({ "toServices": [{ "qualifiers": ["deny"] }] }),
            "`toServices[0]` needs one of",
        ),
        (
            json!({ "toPods": [{ "qualifiers": ["deny"] }] }),
            "`toPods[0]` needs `podSelector`",
        ),
        (
            json!({ "toPods": [{ "qualifiers": ["deny"], "podSelector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } }] }),
            "`toPods[0]` has a bad `podSelector`",
        ),
    ] {
        cluster.apply(egress(rules));
        let error = cluster.profile(&id("e")).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn more_addresses_than_an_object_can_hold_are_an_error() {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(egress(
        json!({ "toPods": [{ "qualifiers": ["deny"], "podSelector": {} }] }),
    ));
    cluster.apply(Event::Synced(ObjectKind::Pods));
    for index in 0..4097_u32 {
        let ip = std::net::Ipv4Addr::from(0x0a00_0000 + index).to_string();
        cluster.apply(Event::Pod(read(json!({
            "metadata": { "name": format!("p{index}"), "namespace": "x" }, "status": { "podIPs": [{ "ip": ip }] } }))));
        if index == 4095 {
            assert!(cluster.profile(&id("e")).is_ok());
        }
    }
    let error = cluster.profile(&id("e")).unwrap_err();
    assert_eq!(
        error,
        ProfileError::TooManyAddresses {
            found: 4097,
            limit: 4096
        }
    );
}
