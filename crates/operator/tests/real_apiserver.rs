//! The program with a real API server, which `tests/cluster/build` builds into the cache.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use apiserver::real::{Programs, RealApiserver, Running};
use apiserver::{ApiError, Client, Resource};
use kinds::ObjectKey;
use kinds::crd::Definition;
use serde_json::{Value, json};

/// An API server with a folder of its own.
struct Cluster {
    client: Client,
    server: RealApiserver,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn start(programs: &Programs) -> Self {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let key = rcgen::KeyPair::generate().expect("keys can be made");
        let (private, public) = (key.serialize_pem(), key.public_key_pem());
        let server = RealApiserver::start(programs, folder.path(), [&private, &public]);
        let server = server.unwrap_or_else(|error| panic!("{error}"));
        Self {
            client: server.client.clone(),
            server,
            folder,
        }
    }

    fn operator(&self, name: &str) -> Running {
        self.operator_of("tollgate", name, &[])
    }

    fn operator_of(&self, namespace: &str, name: &str, more: &[&str]) -> Running {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-operator"));
        command.args(["run", "--namespace", namespace, "--name", name]);
        command.args(more);
        command.args(self.server.options());
        let log = self.folder.path().join(format!("operator-{name}.log"));
        Running::start(command, &log).expect("the program was built")
    }
}

fn wait<T>(what: &str, mut there: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = there() {
            return found;
        }
        assert!(Instant::now() < end, "{what} does not come");
        thread::sleep(Duration::from_millis(100));
    }
}

fn key_of(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the kind is in the table"))
}

fn policy(enforcer: &str, target: &str) -> Value {
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "demo" },
        "spec": { "target": { "kind": target, "name": "web" }, "policy": { "enforcer": enforcer,
            "mode": "EnhanceProtect", "enhanceProtect": { "hardeningRules": ["disallow-mount"] } } } })
}

fn refusal(result: Result<Value, ApiError>) -> String {
    result.expect_err("the server refuses it").to_string()
}

/// Writes the definitions, and waits until the server has them.
fn prepare(cluster: &Cluster) {
    let installed = cluster.server.install(&["demo", "tollgate"]);
    installed.expect("the definitions are structural, and their rules are cheap");
    add_node(cluster, "n1");
    wait("the kind", || {
        cluster
            .client
            .apply(&of("VarmorPolicy"), &policy("AppArmorBPF", "Pod"))
            .ok()
    });
}

fn refuses_what_the_webhook_refuses(cluster: &Cluster) {
    let policies = of("VarmorPolicy");
    let changed = |policy: Value| refusal(cluster.client.apply(&policies, &policy));
    assert!(changed(policy("AppArmorBPF", "Job")).contains("the kind has to be Deployment"));
    assert!(changed(policy("AppArmorBPF", "DaemonSet")).contains("the target cannot be changed"));
    assert!(changed(policy("BPF", "Pod")).contains("the enforcer AppArmor cannot be removed"));
}

fn add_node(cluster: &Cluster, name: &str) {
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
    let nodes = Resource::new("", "v1", "nodes");
    cluster.client.apply(&nodes, &node).expect("it can be made");
}

/// Reports for a node that it has seen the profile.
fn report(cluster: &Cluster, node: &str, profile: &Value) {
    let mut report = json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": node } });
    cluster
        .client
        .apply(&of("NodeReport"), &report)
        .expect("it can be made");
    report["status"] = json!({ "agentVersion": "1", "bootID": "",
        "observedVersion": profile["metadata"]["resourceVersion"], "renewTime": jiff::Timestamp::now().to_string() });
    cluster
        .client
        .apply_status(&of("NodeReport"), &report)
        .expect("it can be written");
}

fn events_tell_of_it(cluster: &Cluster) {
    let events = Resource::new("events.k8s.io", "v1", "events").in_namespace("demo");
    wait("the event", || {
        let all = cluster.client.get(&events, &key_of("demo", "")).ok()?;
        let reasons: Vec<&str> = all["items"]
            .as_array()?
            .iter()
            .filter(|event| event["regarding"]["name"] == "web")
            .filter_map(|event| event["reason"].as_str())
            .collect();
        (reasons.contains(&"Processing") && reasons.contains(&"AllAgentsReady")).then_some(())
    });
}

/// Name of the operator that acts.
fn leader(cluster: &Cluster) -> Option<String> {
    let leases = Resource::new("coordination.k8s.io", "v1", "leases");
    let lease = cluster
        .client
        .get(&leases, &key_of("tollgate", "tollgate-operator"));
    let holder = lease.ok()?["spec"]["holderIdentity"].as_str()?.to_owned();
    Some(holder)
}

/// The condition Ready of the policy and its unknown nodes, if the status is about the policy as it is now.
fn current(cluster: &Cluster) -> Option<(String, u64)> {
    let policy = cluster
        .client
        .get(&of("VarmorPolicy"), &key_of("demo", "web"))
        .ok()?;
    let status = &policy["status"];
    if status["observedGeneration"] != policy["metadata"]["generation"] {
        return None;
    }
    let mut conditions = status["conditions"].as_array()?.iter();
    let ready = conditions.find(|condition| condition["type"] == "Ready")?;
    let unknown = status["coverage"]["unknownNodes"].as_u64()?;
    Some((ready["status"].as_str()?.to_owned(), unknown))
}

/// The programs of a cluster; skips the test without them.
macro_rules! programs {
    () => {
        match Programs::find() {
            Ok(programs) => programs,
            Err(missing) => {
                let found: Result<String, String> = Ok(missing);
                testing::skip!("needs what tests/cluster/build builds, and etcd", || found)
            }
        }
    };
}

#[test]
fn after_the_leader_was_killed_the_next_operator_knows_nothing_before_nodes_have_reported() {
    testing::need_slow!();
    let programs = programs!();
    let cluster = Cluster::start(&programs);
    prepare(&cluster);
    let at = key_of("demo", "varmor-demo-web");
    let profile = || cluster.client.get(&of("ArmorProfile"), &at).ok();
    let mut one = cluster.operator("one");
    wait("the leader", || (leader(&cluster)? == "one").then_some(()));
    let _two = cluster.operator("two");
    let first = wait("the profile", profile);
    report(&cluster, "n1", &first);
    wait("success", || {
        (current(&cluster)? == ("True".to_owned(), 0)).then_some(())
    });
    one.kill().expect("it runs");
    // Nobody acts for as long as the lease lasts.
    add_node(&cluster, "n2");
    let mut changed = policy("AppArmorBPF", "Pod");
    changed["spec"]["policy"]["enhanceProtect"]["hardeningRules"] = json!(["disallow-insmod"]);
    let applied = cluster.client.apply(&of("VarmorPolicy"), &changed);
    applied.expect("it can be changed");
    assert_eq!((current(&cluster), profile()), (None, Some(first.clone())));
    let mut seen = Vec::new();
    let mut look = |expected: u64| {
        seen.extend(current(&cluster));
        (seen.last()?.1 == expected).then_some(())
    };
    wait("the next leader's status", || look(2));
    assert_eq!(leader(&cluster).as_deref(), Some("two"));
    let second = wait("the new profile", || {
        profile().filter(|new| new["metadata"]["generation"] != first["metadata"]["generation"])
    });
    report(&cluster, "n2", &second);
    wait("one node's report", || look(1));
    // The report of the other node is about the profile before, and stays so.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        assert_eq!(look(1), Some(()));
        thread::sleep(Duration::from_millis(100));
    }
    let success: Vec<_> = seen
        .iter()
        .filter(|(ready, _)| ready != "Unknown")
        .collect();
    assert!(success.is_empty(), "{seen:?}");
    report(&cluster, "n1", &second);
    wait("success", || {
        (current(&cluster)? == ("True".to_owned(), 0)).then_some(())
    });
}

#[test]
fn a_real_api_server_takes_the_definitions_and_a_policy_becomes_ready() {
    let programs = programs!();
    let cluster = Cluster::start(&programs);
    prepare(&cluster);
    refuses_what_the_webhook_refuses(&cluster);
    let policies = of("VarmorPolicy");
    let _operator = cluster.operator("one");
    let profile = wait("the profile", || {
        cluster
            .client
            .get(&of("ArmorProfile"), &key_of("demo", "varmor-demo-web"))
            .ok()
    });
    let ready = |status: &str| {
        wait(status, || {
            let policy = cluster.client.get(&policies, &key_of("demo", "web")).ok()?;
            let conditions = policy["status"]["conditions"].as_array()?.clone();
            let is_it =
                |condition: &Value| condition["type"] == "Ready" && condition["status"] == status;
            conditions.iter().any(is_it).then_some(policy)
        })
    };
    // Before all nodes are known there is none, and nothing is ready, either.
    wait("the node", || {
        (ready("Unknown")["status"]["coverage"]["unknownNodes"] == 1).then_some(())
    });
    report(&cluster, "n1", &profile);
    let done = ready("True");
    assert_eq!(done["status"]["phase"], "Protecting");
    assert_eq!(
        done["status"]["observedGeneration"],
        done["metadata"]["generation"]
    );
    events_tell_of_it(&cluster);
    a_deleted_profile_stays_until_all_nodes_have_seen_it(&cluster, &done);
}

/// The profile, with the time of its deletion if there is one.
fn deletion(cluster: &Cluster) -> Result<(Value, bool), Option<u16>> {
    let at = key_of("demo", "varmor-demo-web");
    let profile = cluster.client.get(&of("ArmorProfile"), &at);
    let profile = profile.map_err(|error| error.code())?;
    let is_deleted = !profile["metadata"]["deletionTimestamp"].is_null();
    Ok((profile, is_deleted))
}

fn a_deleted_profile_stays_until_all_nodes_have_seen_it(cluster: &Cluster, policy: &Value) {
    let at = key_of("demo", "varmor-demo-web");
    let delete = |resource: &Resource, key: &ObjectKey, object: &Value| {
        let uid = object["metadata"]["uid"].as_str().expect("it has one");
        let deleted = cluster.client.delete(resource, key, uid);
        deleted.expect("it is there");
    };
    // Of a policy that exists, whoever deletes its profile.
    let (profile, _) = deletion(cluster).expect("it is there");
    delete(&of("ArmorProfile"), &at, &profile);
    let (marked, is_deleted) = deletion(cluster).expect("it stays");
    assert!(is_deleted);
    report(cluster, "n1", &marked);
    let stays = || {
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            assert!(deletion(cluster).is_ok_and(|(_, is_deleted)| is_deleted));
            thread::sleep(Duration::from_millis(100));
        }
    };
    stays();
    // A second node has seen nothing yet.
    add_node(cluster, "n2");
    delete(&of("VarmorPolicy"), &key_of("demo", "web"), policy);
    stays();
    report(cluster, "n2", &marked);
    wait("the end of the profile", || {
        (deletion(cluster) == Err(Some(404))).then_some(())
    });
    let events = Resource::new("events.k8s.io", "v1", "events").in_namespace("demo");
    wait("the event", || {
        let all = cluster.client.get(&events, &key_of("demo", "")).ok()?;
        let mut all = all["items"].as_array()?.iter();
        all.any(|event| {
            event["reason"] == "ProfileDeleted" && event["regarding"]["kind"] == "ArmorProfile"
        })
        .then_some(())
    });
}

/// The installation that acts on each policy of the cluster, when the other one has said that it does not.
fn owners(cluster: &Cluster, count: usize) -> Option<Vec<String>> {
    let mut owners = Vec::new();
    let listed = cluster.client.list(&of("VarmorClusterPolicy"), |policy| {
        let status = &policy["status"];
        let owner = status["installation"].as_str().unwrap_or_default();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let has = |kind: &str| conditions.iter().any(|one| one["type"] == kind);
        let other = ["b", "a"][usize::from(owner == "b")];
        if has("Ready") && has(&format!("{other}.tollgate.dev/Active")) {
            owners.push(owner.to_owned());
        }
    });
    listed.ok()?;
    (owners.len() == count).then_some(owners)
}

/// Namespaces in which a policy of the cluster has a profile.
fn profiles_of(cluster: &Cluster, policy: &str) -> Vec<String> {
    let mut found = Vec::new();
    let listed = cluster.client.list(&of("ArmorProfile"), |profile| {
        if profile["metadata"]["ownerReferences"][0]["name"] == policy {
            found.push(
                profile["metadata"]["namespace"]
                    .as_str()
                    .expect("it has one")
                    .to_owned(),
            );
        }
    });
    listed.expect("it is served");
    found
}

#[test]
fn of_two_installations_that_race_for_policies_exactly_one_acts_on_each() {
    const COUNT: usize = 40;
    let programs = programs!();
    let cluster = Cluster::start(&programs);
    let installed = cluster.server.install(&["demo", "a", "b"]);
    installed.expect("the definitions are structural");
    wait("the kind", || {
        cluster.client.list(&of("VarmorClusterPolicy"), drop).ok()
    });
    let _running = ["a", "b"].map(|name| cluster.operator_of(name, name, &[]));
    for number in 0..COUNT {
        let policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorClusterPolicy",
            "metadata": { "name": format!("p{number}") },
            "spec": { "target": { "kind": "Deployment", "selector": {} },
                "policy": { "enforcer": "BPF", "mode": "RuntimeDefault" } } });
        let applied = cluster.client.apply(&of("VarmorClusterPolicy"), &policy);
        applied.expect("it is taken");
    }
    let first = wait("an owner of each", || owners(&cluster, COUNT));
    let of_a = first.iter().filter(|owner| *owner == "a").count();
    println!("{of_a} of {COUNT} are of the first installation");
    thread::sleep(Duration::from_secs(3));
    assert_eq!(
        owners(&cluster, COUNT),
        Some(first.clone()),
        "nobody gives up"
    );
    for number in 0..COUNT {
        let all = profiles_of(&cluster, &format!("p{number}"));
        assert_eq!(all.len(), 1, "p{number}: {all:?}");
    }
    let (old, new) = match profiles_of(&cluster, "p0")[0].as_str() {
        "a" => ("a", "b"),
        _ => ("b", "a"),
    };
    let path = "/apis/crd.varmor.org/v1beta1/varmorclusterpolicies/p0/status?fieldManager=kubectl&force=true";
    let patch = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorClusterPolicy",
        "metadata": { "name": "p0" }, "status": { "profileName": "", "ready": false, "installation": new } });
    let patched = cluster.client.attempt("PATCH", path, &[], Some(&patch));
    patched.expect("the step that the reference names");
    wait("the hand-over", || {
        (profiles_of(&cluster, "p0") == [new]).then_some(())
    });
    let [active, inactive] = [new, old].map(|name| format!("{name}.tollgate.dev/Active"));
    wait("the condition of the other one", || {
        let policy = cluster
            .client
            .get(&of("VarmorClusterPolicy"), &key_of("", "p0"));
        let conditions = policy.ok()?["status"]["conditions"].clone();
        let conditions = conditions.as_array()?;
        let is_quiet =
            |one: &Value| one["type"] == *inactive && one["reason"] == "OtherInstallation";
        let is_gone = conditions.iter().all(|one| one["type"] != *active);
        (is_gone && conditions.iter().any(is_quiet)).then_some(())
    });
}

/// Annotations of the pods of the deployment `web`.
fn annotations(cluster: &Cluster) -> Value {
    let deployments = Resource::new("apps", "v1", "deployments");
    let found = cluster.client.get(&deployments, &key_of("demo", "web"));
    let found = found.expect("it is there");
    found["spec"]["template"]["metadata"]["annotations"].clone()
}

/// What the controller of deployments does: there are no pods to make.
fn roll_out(cluster: &Cluster) {
    let deployments = Resource::new("apps", "v1", "deployments");
    let found = cluster.client.get(&deployments, &key_of("demo", "web"));
    let generation = found.expect("it is there")["metadata"]["generation"].clone();
    let status = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "demo" },
        "status": { "observedGeneration": generation } });
    let client = cluster.client.with_manager("controller");
    let written = client.apply_status(&deployments, &status);
    written.expect("the status is right");
}

/// A deployment `web` without pods.
fn add_deployment(cluster: &Cluster) {
    let deployments = Resource::new("apps", "v1", "deployments");
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "web", "namespace": "demo" },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "web" } }, "template": {
            "metadata": { "labels": { "app": "web" }, "annotations": { "own": "x" } },
            "spec": { "containers": [{ "name": "app", "image": "x" }] } } } });
    let applied = cluster
        .client
        .with_manager("tester")
        .apply(&deployments, &deployment);
    applied.expect("it is right");
}

#[test]
fn a_workload_is_restarted_for_its_policy_and_has_nothing_of_it_when_the_policy_is_gone() {
    let programs = programs!();
    let cluster = Cluster::start(&programs);
    let installed = cluster.server.install(&["demo", "tollgate"]);
    installed.expect("the definitions are structural");
    add_node(&cluster, "n1");
    add_deployment(&cluster);
    let mut asking = policy("Seccomp", "Deployment");
    asking["spec"]["updateExistingWorkloads"] = json!(true);
    let applied = wait("the kind", || {
        cluster
            .client
            .with_manager("tester")
            .apply(&of("VarmorPolicy"), &asking)
            .ok()
    });
    let _operator = cluster.operator_of("tollgate", "one", &["--update-workloads"]);
    let at = key_of("demo", "varmor-demo-web");
    let profile = wait("the profile", || {
        cluster.client.get(&of("ArmorProfile"), &at).ok()
    });
    let mut report = json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": "n1" } });
    let made = cluster.client.apply(&of("NodeReport"), &report);
    made.expect("it can be made");
    report["status"] = json!({ "agentVersion": "1", "bootID": "", "observedVersion": profile["metadata"]["resourceVersion"],
        "renewTime": jiff::Timestamp::now().to_string(), "profiles": [{ "namespace": "demo", "name": "varmor-demo-web",
            "hash": profile["spec"]["profile"]["hash"], "containers": 1, "enforced": 0, "late": 0, "unprotected": 1 }] });
    let written = cluster.client.apply_status(&of("NodeReport"), &report);
    written.expect("it can be written");
    wait("the restart", || {
        let all = annotations(&cluster);
        let is_whole = all["own"] == "x" && all["profile.tollgate.dev/varmor-demo-web"] == "target";
        (is_whole && all["controller.varmor.org/restartedAt"].is_string()).then_some(())
    });
    let uid = applied["metadata"]["uid"].as_str().expect("it has one");
    let deleted = cluster
        .client
        .delete(&of("VarmorPolicy"), &key_of("demo", "web"), uid);
    deleted.expect("it is there");
    let marked = wait("the deletion", || {
        let profile = cluster.client.get(&of("ArmorProfile"), &at).ok()?;
        (!profile["metadata"]["deletionTimestamp"].is_null()).then_some(profile)
    });
    let own = json!({ "own": "x" });
    assert_ne!(annotations(&cluster), own, "the node has not seen it");
    report["status"]["observedVersion"] = marked["metadata"]["resourceVersion"].clone();
    report["status"]["renewTime"] = json!(jiff::Timestamp::now().to_string());
    let written = cluster.client.apply_status(&of("NodeReport"), &report);
    written.expect("it can be written");
    wait("the end of the profile", || {
        roll_out(&cluster);
        (deletion(&cluster) == Err(Some(404))).then_some(())
    });
    assert_eq!(annotations(&cluster), own);
}
