//! Tests of marks.

use super::*;

#[test]
fn marks_name_the_profile_in_every_container_of_the_target() {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(policy(
        "web",
        json!({ "enforcer": "AppArmorBPFSeccomp", "mode": "AlwaysAllow" }),
    ));
    let object = json!({ "metadata": { "name": "web" }, "spec": { "template": {
        "metadata": { "annotations": { "a": "b" } },
        "spec": {
            "initContainers": [{ "name": "i" }],
            "containers": [{ "name": "c", "securityContext": { "privileged": true, "appArmorProfile": { "type": "Unconfined" } } }],
        } } } });
    let marks = |cluster: &Cluster, object: &Value, kind: &str, namespace: &str| {
        cluster.marks(Workload {
            kind,
            namespace,
            object,
        })
    };
    let found = marks(&cluster, &object, "Deployment", "demo");
    let profile = json!({ "type": "Localhost", "localhostProfile": "varmor-demo-web" });
    let both = json!({ "appArmorProfile": profile, "seccompProfile": profile });
    let local = json!("localhost/varmor-demo-web");
    let annotations = "/spec/template/metadata/annotations";
    let containers = "/spec/template/spec";
    let of = |enforcer: &str, name: &str| {
        format!("{annotations}/container.{enforcer}.security.beta.varmor.org~1{name}")
    };
    let expected = BTreeMap::from([
        (of("apparmor", "c"), local.clone()),
        (of("apparmor", "i"), local.clone()),
        (of("bpf", "c"), local.clone()),
        (of("bpf", "i"), local.clone()),
        (of("seccomp", "i"), local),
        (
            format!("{annotations}/profile.tollgate.dev~1varmor-demo-web"),
            json!("target"),
        ),
        (
            format!("{containers}/containers/0/securityContext/appArmorProfile"),
            profile,
        ),
        (
            format!("{containers}/initContainers/0/securityContext"),
            both,
        ),
    ]);
    let found = found.into_iter();
    let found: BTreeMap<String, Value> = found
        .map(|operation| (operation.path, operation.value))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(marks(&cluster, &object, "StatefulSet", "demo"), []);
    assert_eq!(marks(&cluster, &object, "Deployment", "other"), []);
}

#[test]
fn authors_can_switch_an_enforcer_off_only_if_the_policy_lets_them() {
    let Event::Policy(mut policy) = policy(
        "web",
        json!({ "enforcer": "AppArmor", "mode": "AlwaysAllow" }),
    ) else {
        panic!("it is a policy");
    };
    let object = json!({ "metadata": { "name": "web" }, "spec": { "template": { "spec": {
        "securityContext": { "appArmorProfile": { "type": "Unconfined" } }, "containers": [{ "name": "c" }] } } } });
    let workload = Workload {
        kind: "Deployment",
        namespace: "demo",
        object: &object,
    };
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(Event::Policy(policy.clone()));
    let has_field = |cluster: &Cluster| {
        let marks = cluster.marks(workload);
        marks
            .iter()
            .any(|operation| operation.path.ends_with("/securityContext"))
    };
    assert!(has_field(&cluster));
    policy
        .metadata
        .annotations
        .insert("tollgate.dev/opt-out".to_owned(), "allow".to_owned());
    cluster.apply(Event::Policy(policy));
    assert!(!has_field(&cluster));
}

#[test]
fn marks_are_not_made_twice_and_the_policy_of_the_cluster_wins() {
    let mut cluster = Cluster::new("tollgate", false);
    cluster.apply(policy(
        "web",
        json!({ "enforcer": "Seccomp", "mode": "RuntimeDefault" }),
    ));
    let marked = json!({ "metadata": { "name": "web" }, "spec": { "template": {
        "metadata": { "annotations": { "container.seccomp.security.beta.varmor.org/c": "localhost/varmor-demo-web",
            "profile.tollgate.dev/varmor-demo-web": "target" } },
        "spec": { "containers": [{ "name": "c", "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } } }] } } } });
    let workload = Workload {
        kind: "Deployment",
        namespace: "demo",
        object: &marked,
    };
    assert_eq!(cluster.marks(workload), []);
    cluster.apply(Event::Policy(read(json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorClusterPolicy", "metadata": { "name": "all" },
        "spec": { "target": { "kind": "Deployment", "selector": {} }, "policy": { "enforcer": "BPF", "mode": "AlwaysAllow" } },
    }))));
    // The policy of the namespace keeps its mark.
    let annotations = "/spec/template/metadata/annotations";
    let marks: BTreeMap<String, Value> = cluster
        .marks(workload)
        .into_iter()
        .map(|operation| (operation.path, operation.value))
        .collect();
    let expected = BTreeMap::from([
        (
            format!("{annotations}/container.bpf.security.beta.varmor.org~1c"),
            json!("localhost/varmor-cluster-tollgate-all"),
        ),
        (
            format!("{annotations}/profile.tollgate.dev~1varmor-cluster-tollgate-all"),
            json!("target"),
        ),
    ]);
    assert_eq!(marks, expected);
}
