//! The manifests with a real API server: it takes them, and each service account may do what it needs and no more.

mod events;
mod restarts;
mod security;
mod webhook;

use std::thread;
use std::time::Duration;

use apiserver::real::{Programs, RealApiserver, until};
use apiserver::{ApiError, Client, Resource};
use kinds::ObjectKey;
use kinds::crd::Definition;
use operator::manifests::{self, Installation, NODE, OPERATOR};
use serde_json::{Value, json};

const NAMESPACE: &str = "guard";

/// The kind of an object.
fn resource(object: &Value) -> Resource {
    let version = object["apiVersion"]
        .as_str()
        .expect("the cluster is as this test made it");
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let kind = object["kind"]
        .as_str()
        .expect("the cluster is as this test made it")
        .to_lowercase();
    let plural = match kind.as_str() {
        "networkpolicy" | "validatingadmissionpolicy" | "mutatingadmissionpolicy" => {
            format!("{}ies", kind.trim_end_matches('y'))
        }
        "runtimeclass" => "runtimeclasses".to_owned(),
        kind => format!("{kind}s"),
    };
    Resource::new(group, version, &plural)
}

fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

fn of(kind: &str) -> Resource {
    Resource::of(Definition::of_kind(kind).expect("the cluster is as this test made it"))
}

fn code(result: Result<Value, ApiError>) -> Option<u16> {
    result.err().and_then(|error| error.code())
}

/// A token of a service account, bound to a node if one is given.
fn token(server: &RealApiserver, account: &str, node: Option<&str>) -> Client {
    let resource = Resource::new("", "v1", &format!("serviceaccounts/{account}/token"));
    let mut request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "metadata": { "namespace": NAMESPACE, "name": account }, "spec": { "audiences": [] } });
    if let Some(node) = node {
        let uid = server
            .client
            .get(&Resource::new("", "v1", "nodes"), &key("", node))
            .expect("the cluster is as this test made it");
        request["spec"]["boundObjectRef"] = json!({ "apiVersion": "v1", "kind": "Node", "name": node, "uid": uid["metadata"]["uid"] });
    }
    let made = server
        .client
        .create(&resource, &request)
        .expect("the cluster is as this test made it");
    let token = made["status"]["token"]
        .as_str()
        .expect("the cluster is as this test made it");
    let name = format!("{account}-{}", node.unwrap_or("unbound"));
    server
        .client_with(&name, token)
        .expect("the cluster is as this test made it")
}

fn report(node: &str) -> Value {
    json!({ "apiVersion": "tollgate.dev/v1alpha1", "kind": "NodeReport", "metadata": { "name": node } })
}

/// `detect`: the agent watches its node, whose labels it may read.
fn an_agent_writes_its_own_report_alone(server: &RealApiserver, detect: bool) {
    let reports = of("NodeReport");
    let agent = token(server, NODE, Some("n1"));
    until(|| {
        agent
            .apply(&reports, &report("n1"))
            .map_err(|error| format!("{error:?}"))
    })
    .expect("the cluster is as this test made it");
    let mut written = report("n1");
    written["status"] = json!({ "agentVersion": "1", "bootID": "b", "observedVersion": "1",
        "renewTime": "2026-01-01T00:00:00Z" });
    agent
        .apply_status(&reports, &written)
        .expect("the cluster is as this test made it");
    // The policy comes into force some time after it was written.
    let error = until(|| match agent.apply(&reports, &report("n2")) {
        Ok(_) => Err("it is allowed".to_owned()),
        Err(error) => Ok(error.to_string()),
    })
    .expect("it is refused");
    assert!(
        error.contains("403") && error.contains("its own node alone"),
        "{error}"
    );
    server
        .client
        .apply(&reports, &report("n2"))
        .expect("the cluster is as this test made it");
    written["metadata"]["name"] = json!("n2");
    assert_eq!(code(agent.apply_status(&reports, &written)), Some(403));
    // A token that was minted without a node writes no report.
    let unbound = token(server, NODE, None);
    assert_eq!(code(unbound.apply(&reports, &report("n1"))), Some(403));
    let uid = server
        .client
        .get(&reports, &key("", "n1"))
        .expect("the cluster is as this test made it")["metadata"]["uid"]
        .clone();
    assert_eq!(
        code(agent.delete(
            &reports,
            &key("", "n1"),
            uid.as_str().expect("the cluster is as this test made it")
        )),
        Some(403)
    );
    an_agent_reads_nothing_but_profiles(&agent, detect);
}

fn an_agent_reads_nothing_but_profiles(agent: &Client, detect: bool) {
    for (resource, at) in [
        (Resource::new("", "v1", "secrets"), key(NAMESPACE, "x")),
        (Resource::new("", "v1", "pods"), key("demo", "x")),
        // An empty name makes it a list. A node may be asked for by its name, because of its labels.
        (Resource::new("", "v1", "nodes"), key("", "")),
        (of("VarmorPolicy"), key("demo", "")),
        (of("NodeReport"), key("", "n1")),
    ] {
        assert_eq!(
            code(agent.get(&resource, &at)),
            Some(403),
            "{}",
            resource.plural
        );
    }
    let node = agent.get(&Resource::new("", "v1", "nodes"), &key("", "n1"));
    assert_eq!(code(node), (!detect).then_some(403));
    for kind in ["ArmorProfile", "VarmorPolicy"] {
        assert_eq!(code(agent.get(&of(kind), &key("demo", "x"))), Some(404));
    }
}

fn the_operator_changes_no_policy_and_reads_no_secret(server: &RealApiserver) {
    let client = token(server, OPERATOR, None);
    let policy = server
        .client
        .get(&of("VarmorPolicy"), &key("demo", "web"))
        .expect("the cluster is as this test made it");
    let mut status = policy.clone();
    status["metadata"] = json!({ "name": "web", "namespace": "demo" });
    status["status"] = json!({ "profileName": "p", "ready": false });
    client
        .apply_status(&of("VarmorPolicy"), &status)
        .expect("the cluster is as this test made it");
    assert_eq!(code(client.apply(&of("VarmorPolicy"), &status)), Some(403));
    assert_eq!(
        code(client.get(&Resource::new("", "v1", "secrets"), &key(NAMESPACE, "x"))),
        Some(403)
    );
    assert_eq!(
        code(client.apply(&of("NodeReport"), &report("n1"))),
        Some(403)
    );
    let lease = |namespace: &str| {
        json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": OPERATOR, "namespace": namespace }, "spec": {} })
    };
    let leases = Resource::new("coordination.k8s.io", "v1", "leases");
    assert_eq!(code(client.create(&leases, &lease(NAMESPACE))), None);
    assert_eq!(code(client.create(&leases, &lease("demo"))), Some(403));
}

fn workload(kind: &str, name: &str) -> Value {
    let pod = json!({ "containers": [{ "name": "app", "image": "x" }, { "name": "side", "image": "x" }] });
    let metadata = json!({ "name": name, "namespace": "demo", "labels": { "app": name } });
    match kind {
        "Pod" => json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": pod }),
        _ => json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": pod } } }),
    }
}

fn workloads_are_marked(server: &RealApiserver) {
    let client = &server.client;
    let marks = |object: &Value, pod: &str| {
        let made = client
            .create(&resource(object), object)
            .map_err(|error| error.to_string())?;
        let marks = &made
            .pointer(pod)
            .expect("the cluster is as this test made it")["annotations"];
        let uid = made["metadata"]["uid"]
            .as_str()
            .expect("the cluster is as this test made it")
            .to_owned();
        let name = made["metadata"]["name"]
            .as_str()
            .expect("the cluster is as this test made it");
        client
            .delete(&resource(object), &key("demo", name), &uid)
            .expect("the cluster is as this test made it");
        Ok::<_, String>(marks.clone())
    };
    // Policies of cluster and namespace leave each other's marks alone.
    let expected = json!({ "profile.tollgate.dev/varmor-cluster-guard-all": "target",
        "profile.tollgate.dev/varmor-demo-web": "target" });
    // Policies of admission and their parameters come into force some time after they were written.
    until(|| {
        let found = marks(&workload("Deployment", "web"), "/spec/template/metadata")?;
        thread::sleep(Duration::from_millis(100));
        (found == expected).then_some(()).ok_or(found.to_string())
    })
    .expect("the cluster is as this test made it");
    // Marks of policies that are not about a workload are taken out, whoever wrote them.
    let mut forged = workload("Deployment", "other");
    let written = json!({ "profile.tollgate.dev/varmor-demo-web": "target",
        "profile.tollgate.dev/varmor-cluster-guard-all": "x", "own": "y" });
    forged["spec"]["template"]["metadata"]["annotations"] = written.clone();
    let other = marks(&forged, "/spec/template/metadata").expect("it is taken");
    assert_eq!(other, json!({ "own": "y" }));
    // Pods have those of their workload, which is not known here.
    let mut pod = workload("Pod", "other");
    pod["metadata"]["annotations"] = written.clone();
    assert_eq!(marks(&pod, "/metadata"), Ok(written));
    let kind = marks(&workload("StatefulSet", "web"), "/spec/template/metadata")
        .expect("the cluster is as this test made it");
    assert_eq!(kind, Value::Null);
}

/// A pod that asks a runtime to create it without the agent, by an annotation.
fn tolerating(namespace: &str, value: &str) -> Value {
    let mut pod = workload("Pod", "alone");
    pod["metadata"]["namespace"] = json!(namespace);
    pod["metadata"]["annotations"] = json!({ "tollgate.dev/tolerate-missing": value });
    pod
}

fn an_author_of_pods_cannot_have_them_created_without_the_agent(server: &RealApiserver) {
    let client = &server.client;
    let pods = Resource::new("", "v1", "pods");
    let refused = |result: Result<Value, ApiError>, part: &str| {
        let error = result.err().map(|error| error.to_string());
        let is_it = error
            .as_ref()
            .is_some_and(|error| error.contains("403") && error.contains(part));
        is_it.then_some(()).ok_or(format!("{error:?}"))
    };
    let dry = |pod: &Value| {
        let made = client.create(&pods, pod);
        if let Ok(made) = &made {
            let uid = made["metadata"]["uid"].as_str();
            let uid = uid.expect("what was made has one");
            let namespace = pod["metadata"]["namespace"].as_str();
            let namespace = namespace.expect("the pods of this test have one");
            // A pod without a node is gone at once.
            client
                .delete(&pods, &key(namespace, "alone"), uid)
                .map_err(|error| error.to_string())
                .expect("it was made");
        }
        made
    };
    let cause = "created without tollgate";
    until(|| refused(dry(&tolerating("demo", "true")), cause))
        .expect("the policy comes into force");
    // An empty value is a value, too.
    refused(dry(&tolerating("demo", "")), cause).expect("it is refused");
    // The namespaces of the installation and those with the label may have them.
    for namespace in [NAMESPACE, "allowed"] {
        dry(&tolerating(namespace, "true")).expect("it is allowed");
    }
    let mut pod = workload("Pod", "alone");
    client
        .apply(&pods, &pod)
        .expect("a pod without it is allowed");
    pod["metadata"]["annotations"] = json!({ "tollgate.dev/tolerate-missing": "true" });
    refused(client.apply(&pods, &pod), cause).expect("it is refused");
    for mark in ["profile.tollgate.dev/x", "container.tollgate.dev/app"] {
        pod["metadata"]["annotations"] = json!({ mark: "app" });
        refused(client.apply(&pods, &pod), "marks of tollgate stay").expect("it is refused");
    }
    pod["metadata"]["annotations"] = json!({ "other": "app" });
    client
        .apply(&pods, &pod)
        .expect("other annotations are free");
}

/// Makes a namespace whose pods may be created without the agent, and what pods need.
fn allow_a_namespace(server: &RealApiserver) {
    let allowed = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "allowed",
        "labels": { "tollgate.dev/tolerate-missing": "allow" } } });
    // No controller makes the default account of a namespace here, which pods need.
    let made = [allowed]
        .into_iter()
        .chain(["demo", "allowed", NAMESPACE].map(|namespace| {
            json!({ "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "default", "namespace": namespace } })
        }));
    for object in made {
        let applied = server.client.apply(&resource(&object), &object);
        applied.expect("the cluster is as this test made it");
    }
}

/// An API server with everything that the manifests have, and two nodes.
struct Installed {
    server: RealApiserver,
    _folder: tempfile::TempDir,
}

/// An installation without anything that an administrator has to ask for.
fn installation() -> Installation {
    Installation {
        namespace: NAMESPACE.to_owned(),
        image: "registry.example/tollgate:1".to_owned(),
        detect: false,
        events: false,
        violations: false,
        behavior_modeling: false,
        update_workloads: false,
        bpf: false,
        webhook: false,
        webhook_exempt: Vec::new(),
        webhook_names: Vec::new(),
    }
}

impl Installed {
    /// Starts a server, and writes each object as `change` leaves it.
    fn start(
        programs: &Programs,
        installation: &Installation,
        mut change: impl FnMut(&mut Value),
    ) -> Self {
        let folder = tempfile::tempdir().expect("the cluster is as this test made it");
        let key = rcgen::KeyPair::generate().expect("the cluster is as this test made it");
        let key = [key.serialize_pem(), key.public_key_pem()];
        let server = RealApiserver::start(programs, folder.path(), [&key[0], &key[1]])
            .expect("the cluster is as this test made it");
        server
            .install(&["demo"])
            .expect("the cluster is as this test made it");
        for mut object in manifests::all(installation) {
            change(&mut object);
            let applied = server.client.apply(&resource(&object), &object);
            applied.unwrap_or_else(|error| panic!("{error} {object}"));
        }
        allow_a_namespace(&server);
        for name in ["n1", "n2"] {
            let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
            server
                .client
                .apply(&resource(&node), &node)
                .expect("the cluster is as this test made it");
        }
        Self {
            server,
            _folder: folder,
        }
    }
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
fn a_compromised_node_and_an_author_of_pods_cannot_switch_confinement_off() {
    let programs = programs!();
    let mut own = installation();
    own.detect = true;
    let installed = Installed::start(&programs, &own, |_| {});
    an_agent_writes_its_own_report_alone(&installed.server, true);
    security::a_stolen_token_of_an_agent_writes_nothing_but_the_report_of_its_node(
        &installed.server,
    );
    security::an_author_of_pods_cannot_switch_confinement_off(&installed);
}

#[test]
fn an_agent_may_create_events_of_pods_as_its_own_node_and_nothing_more() {
    let programs = programs!();
    let mut own = installation();
    (own.events, own.update_workloads) = (true, true);
    let installed = Installed::start(&programs, &own, |_| {});
    events::an_agent_creates_events_of_pods_as_its_own_node_alone(&installed.server);
    restarts::the_operator_restarts_workloads(&installed.server, true);
}

#[test]
fn a_real_api_server_takes_the_manifests_and_holds_each_account_to_its_rights() {
    let programs = programs!();
    let Installed { server, _folder } = Installed::start(&programs, &installation(), |_| {});
    let policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "web", "namespace": "demo" },
        "spec": { "target": { "kind": "Deployment", "containers": ["app"], "selector": {
            "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "off", "operator": "DoesNotExist" }] } },
            "policy": { "enforcer": "Seccomp", "mode": "EnhanceProtect",
            "enhanceProtect": { "hardeningRules": ["disallow-mount"] } } } });
    server
        .client
        .apply(&of("VarmorPolicy"), &policy)
        .expect("the cluster is as this test made it");
    let mut all = policy;
    all["kind"] = json!("VarmorClusterPolicy");
    all["metadata"] = json!({ "name": "all" });
    let applied = server.client.apply(&of("VarmorClusterPolicy"), &all);
    applied.expect("the cluster is as this test made it");
    an_agent_writes_its_own_report_alone(&server, false);
    the_operator_changes_no_policy_and_reads_no_secret(&server);
    restarts::the_operator_restarts_workloads(&server, false);
    workloads_are_marked(&server);
    an_author_of_pods_cannot_have_them_created_without_the_agent(&server);
}

#[test]
fn the_webhook_gives_the_same_objects_as_policies_of_admission() {
    webhook::gives_the_same_objects(&programs!());
}
