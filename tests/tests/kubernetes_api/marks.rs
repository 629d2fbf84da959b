//! Marks by the API server are those of the library.

use apiserver::real::until;
use cluster::{Cluster, Event, Workload};
use e2e::need_api_server;
use kinds::annotations::OF_POLICY;
use kinds::{MAX_NAME, PolicyObject};
use serde_json::{Map, Value, json};

use super::installed::{Installed, NAMESPACE, text};

fn policy(kind: &str, name: &str, target: Value) -> Value {
    let mut policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": kind, "metadata": { "name": name },
        "spec": { "target": target, "policy": { "enforcer": "Seccomp", "mode": "AlwaysAllow" } } });
    if kind == "VarmorPolicy" {
        policy["metadata"]["namespace"] = json!("demo");
    }
    policy
}

/// A target with a test on the label `tier`.
fn by_tier(kind: &str, operator: &str, values: &[&str]) -> Value {
    let mut test = json!({ "key": "tier", "operator": operator });
    if !values.is_empty() {
        test["values"] = json!(values);
    }
    json!({ "kind": kind, "selector": { "matchExpressions": [test] } })
}

fn policies() -> Vec<Value> {
    let own = |name: &str, target: Value| policy("VarmorPolicy", name, target);
    let all = |kind: &str| json!({ "kind": kind, "selector": {} });
    let longest = "l".repeat(MAX_NAME - "varmor-demo-".len());
    vec![
        own("name", json!({ "kind": "Deployment", "name": "web" })),
        own("pod", json!({ "kind": "Pod", "name": "web" })),
        own(
            "labels",
            json!({ "kind": "Deployment", "selector": { "matchLabels": { "app": "web", "tier": "a" } } }),
        ),
        own("in", by_tier("Deployment", "In", &["a", "b"])),
        own("not-in", by_tier("StatefulSet", "NotIn", &["a", "b"])),
        own("exists", by_tier("DaemonSet", "Exists", &[])),
        own("absent", by_tier("Deployment", "DoesNotExist", &[])),
        own("pod-in", by_tier("Pod", "In", &["a"])),
        own(&longest, all("StatefulSet")),
        policy("VarmorClusterPolicy", "all", all("Deployment")),
        policy(
            "VarmorClusterPolicy",
            "pods",
            by_tier("Pod", "NotIn", &["a"]),
        ),
    ]
}

fn workloads() -> Vec<Value> {
    let mut all = Vec::new();
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "Pod"] {
        for name in ["web", "other"] {
            for labels in [
                json!(null),
                json!({}),
                json!({ "app": "web", "tier": "a" }),
                json!({ "tier": "c" }),
            ] {
                for annotations in [json!(null), json!({ "own/x": "y" })] {
                    all.push(workload(kind, name, &labels, &annotations));
                }
            }
        }
    }
    all
}

fn workload(kind: &str, name: &str, labels: &Value, annotations: &Value) -> Value {
    let mut metadata = json!({ "name": name, "namespace": "demo" });
    if !labels.is_null() {
        metadata["labels"] = labels.clone();
    }
    // The names of volumes of tokens are random.
    let spec = json!({ "automountServiceAccountToken": false, "containers": [
        { "name": "app", "image": "x", "securityContext": { "privileged": true } }, { "name": "side", "image": "x" }] });
    if kind == "Pod" {
        if !annotations.is_null() {
            metadata["annotations"] = annotations.clone();
        }
        return json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec });
    }
    let mut template = json!({ "metadata": { "labels": { "of": name } }, "spec": spec });
    if !annotations.is_null() {
        template["metadata"]["annotations"] = annotations.clone();
    }
    json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": metadata,
        "spec": { "selector": { "matchLabels": { "of": name } }, "template": template } })
}

/// JSON pointer of the metadata of a workload's pods.
fn pods(workload: &Value) -> &'static str {
    match workload["kind"] == "Pod" {
        true => "/metadata",
        false => "/spec/template/metadata",
    }
}

/// The workload with the marks that the library computes. It computes marks of vArmor, too, which no admission writes.
fn marked(cluster: &Cluster, workload: &Value) -> Value {
    let pods = pods(workload);
    let operations = cluster.marks(Workload {
        kind: text(&workload["kind"]),
        namespace: "demo",
        object: workload,
    });
    let annotations = format!("{pods}/annotations");
    let mut marks = Map::new();
    for operation in operations {
        if operation.path == annotations {
            marks.extend(operation.value.as_object().cloned().into_iter().flatten());
        } else if let Some(key) = operation.path.strip_prefix(&format!("{annotations}/")) {
            marks.insert(key.replace("~1", "/").replace("~0", "~"), operation.value);
        }
    }
    let mut workload = workload.clone();
    let pods = workload.pointer_mut(pods).expect("workloads have it");
    for (key, value) in marks {
        if key.starts_with(OF_POLICY) {
            pods["annotations"][key] = value;
        }
    }
    workload
}

/// Takes out what differs between two objects that were made alike.
fn settled(mut object: Value) -> Value {
    let metadata = object["metadata"].as_object_mut().expect("objects have it");
    for key in [
        "uid",
        "creationTimestamp",
        "managedFields",
        "namespace",
        "resourceVersion",
    ] {
        metadata.remove(key);
    }
    object
}

/// What the API server makes of each workload, beside what it makes of the same with marks of the library where no policy is.
fn compare(installed: &Installed, cluster: &Cluster) -> Result<usize, String> {
    let mut count = 0;
    for workload in workloads() {
        let by_server = installed
            .try_create(&workload)
            .map_err(|error| error.to_string())?;
        let mut by_library = marked(cluster, &workload);
        by_library["metadata"]["namespace"] = json!(NAMESPACE);
        let by_library = installed
            .try_create(&by_library)
            .map_err(|error| error.to_string())?;
        let (by_server, by_library) = (settled(by_server), settled(by_library));
        if by_server != by_library {
            return Err(format!("{by_server:#}\nis not\n{by_library:#}"));
        }
        let marks = by_server
            .pointer(pods(&workload))
            .expect("workloads have it");
        let marks = marks["annotations"].as_object().into_iter().flatten();
        count += marks.filter(|(key, _)| key.starts_with(OF_POLICY)).count();
    }
    Ok(count)
}

#[test]
fn workloads_get_the_marks_that_the_library_computes_and_nothing_else() {
    let programs = need_api_server!();
    let installed = Installed::start(&programs);
    let mut cluster = Cluster::new(NAMESPACE, false);
    for policy in policies() {
        let stored = installed
            .apply(&policy)
            .unwrap_or_else(|error| panic!("{error} {policy}"));
        let object: PolicyObject = serde_json::from_value(stored).expect("it is a policy");
        cluster.apply(Event::Policy(Box::new(object)));
    }
    let other = policy(
        "VarmorPolicy",
        "of-another",
        json!({ "kind": "Deployment", "selector": {} }),
    );
    let stored = installed.apply(&other).expect("it is right");
    let claimed = installed.claim(&stored, "another");
    let object: PolicyObject = serde_json::from_value(claimed).expect("it is a policy");
    cluster.apply(Event::Policy(Box::new(object)));
    // Policies of admission and their parameters come into force some time after they were written.
    let marks = until(|| compare(&installed, &cluster)).unwrap_or_else(|error| panic!("{error}"));
    println!("{} workloads with {marks} marks", workloads().len());
    assert!(marks > 50, "{marks}");
    a_selector_that_nobody_can_read_refuses_no_workload(&installed);
}

/// Such a policy is refused now; one from before an upgrade may be there.
fn a_selector_that_nobody_can_read_refuses_no_workload(installed: &Installed) {
    let version = "admissionregistration.k8s.io/v1";
    let binding = json!({ "apiVersion": version, "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": { "name": "tollgate-policies" } });
    installed.delete(&binding);
    let wrong: [(&str, &[&str]); 4] = [("In", &[]), ("NotIn", &[]), ("Within", &["a"]), ("", &[])];
    for (number, (operator, values)) in wrong.into_iter().enumerate() {
        let policy = policy(
            "VarmorPolicy",
            &format!("wrong-{number}"),
            by_tier("Deployment", operator, values),
        );
        until(|| installed.apply(&policy).map_err(|error| error.to_string()))
            .expect("the definition takes it");
    }
    let labels = json!({ "tier": "a" });
    let workload = workload("Deployment", "shop", &labels, &Value::Null);
    // The last of them has come into force when this one has.
    let last = policy(
        "VarmorPolicy",
        "last",
        json!({ "kind": "Deployment", "name": "shop" }),
    );
    installed.apply(&last).expect("it is right");
    let made = until(|| {
        let made = installed
            .try_create(&workload)
            .map_err(|error| error.to_string())?;
        let marks = made["spec"]["template"]["metadata"]["annotations"].clone();
        let key = format!("{OF_POLICY}varmor-demo-last");
        marks
            .get(&key)
            .is_some()
            .then(|| marks.clone())
            .ok_or(marks.to_string())
    })
    .expect("the workload is taken");
    // `NotIn` without values is true, as the library has it.
    for (number, is_marked) in [(0, false), (1, true), (2, false), (3, false)] {
        let key = format!("{OF_POLICY}varmor-demo-wrong-{number}");
        assert_eq!(made.get(&key).is_some(), is_marked, "{number}: {made}");
    }
}
