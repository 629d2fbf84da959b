//! Two installations, or vArmor beside one.

use super::*;

const CLUSTER_POLICY: &str = "/apis/crd.varmor.org/v1beta1/varmorclusterpolicies/all";

fn of(installation: &str) -> Settings {
    Settings {
        namespace: installation.to_owned(),
        ..settings(installation)
    }
}

fn profile(installation: &str) -> String {
    format!(
        "/apis/crd.varmor.org/v1beta1/namespaces/{installation}/armorprofiles/varmor-cluster-{installation}-all"
    )
}

fn cluster_policy() -> Value {
    json!({
        "apiVersion": "crd.varmor.org/v1beta1",
        "kind": "VarmorClusterPolicy",
        "metadata": { "name": "all" },
        "spec": { "target": { "kind": "Deployment", "selector": {} },
            "policy": { "enforcer": "BPF", "mode": "RuntimeDefault" } },
    })
}

/// The condition by which an installation says that it does nothing.
fn inactive<'o>(object: &'o Value, installation: &str) -> &'o Value {
    let kind = cluster::inactive_condition(installation);
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.and_then(|all| all.iter().find(|one| one["type"] == *kind));
    found.unwrap_or(&Value::Null)
}

#[test]
fn of_two_installations_one_acts_on_a_policy_of_the_cluster_and_the_other_says_so() {
    let server = FakeApiserver::start().unwrap();
    start(&server, of("a"));
    start(&server, of("b"));
    server.put(CLUSTER_POLICY, cluster_policy());
    let settled = wait(&server, CLUSTER_POLICY, |object| {
        let quiet = ["a", "b"].map(|name| inactive(object, name)["reason"] == "OtherInstallation");
        !ready(object).is_null() && (quiet[0] || quiet[1])
    });
    let active = settled["status"]["installation"].as_str().unwrap();
    let other = match active {
        "a" => "b",
        _ => "a",
    };
    assert!(inactive(&settled, active).is_null(), "{settled:#}");
    assert_eq!(inactive(&settled, other)["status"], "False");
    wait(&server, &profile(active), Value::is_object);
    // Neither gives up, and neither writes what the other has written.
    thread::sleep(Duration::from_millis(500));
    let version = server.get(CLUSTER_POLICY).unwrap()["metadata"]["resourceVersion"].clone();
    thread::sleep(Duration::from_millis(500));
    let later = server.get(CLUSTER_POLICY).unwrap();
    assert_eq!(later["metadata"]["resourceVersion"], version, "{later:#}");
    assert_eq!(later["status"]["installation"], active);
    assert_eq!(server.get(&profile(other)), None);
    // Somebody hands the policy over.
    let mut handed = later;
    handed["status"]["installation"] = json!(other);
    server.put(CLUSTER_POLICY, handed);
    wait(&server, &profile(other), Value::is_object);
    wait(&server, CLUSTER_POLICY, |object| {
        inactive(object, active)["reason"] == "OtherInstallation"
            && inactive(object, other).is_null()
    });
    // The profile of the first one waits for its nodes, as every profile that is deleted.
    wait(&server, &profile(active), Value::is_null);
}

/// vArmor keeps no fields in a status that it does not know, and writes a profile without an installation.
#[test]
fn a_policy_of_varmor_is_left_alone_until_varmor_is_gone() {
    let server = FakeApiserver::start().unwrap();
    let theirs = json!({ "metadata": { "name": "varmor-demo-web", "namespace": "demo" }, "spec": {
        "target": { "kind": "Deployment", "name": "web" }, "updateExistingWorkloads": false,
        "behaviorModeling": { "enable": false, "duration": 0 },
        "profile": { "name": "varmor-demo-web", "enforcer": "BPF", "mode": "enforce" } } });
    server.put(PROFILE, theirs.clone());
    start(&server, settings("one"));
    let mut theirs_of_policy = simple();
    theirs_of_policy["status"] = json!({ "profileName": "varmor-demo-web", "ready": true, "phase": "Protecting",
        "conditions": [{ "type": "Ready", "status": "True", "reason": "AllAgentsReady" }] });
    server.put(POLICY, theirs_of_policy);
    let told = wait(&server, POLICY, |object| {
        inactive(object, "tollgate")["reason"] == "OtherInstallation"
    });
    assert_eq!(ready(&told)["status"], "True", "it is vArmor's");
    assert_eq!(told["status"]["profileName"], "varmor-demo-web");
    assert_eq!(told["status"]["installation"], Value::Null);
    assert_eq!(server.get(PROFILE).unwrap()["spec"], theirs["spec"]);
    server.remove(PROFILE);
    let profile = wait(&server, PROFILE, Value::is_object);
    let annotations = &profile["metadata"]["annotations"];
    assert_eq!(annotations["tollgate.dev/installation"], "tollgate");
    wait(&server, POLICY, |object| {
        inactive(object, "tollgate").is_null() && object["status"]["installation"] == "tollgate"
    });
}
