//! Questions of the API server, and what a webhook answers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kinds::validate::Installation;

use super::*;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

fn stored(kind: &str, name: &str, target: Value) -> Value {
    let mut policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": kind,
        "metadata": { "name": name }, "spec": { "target": target,
            "policy": { "enforcer": "Seccomp", "mode": "AlwaysAllow" } } });
    if kind == "VarmorPolicy" {
        policy["metadata"]["namespace"] = json!("demo");
    }
    policy
}

fn policies() -> Vec<Value> {
    let tier = |kind: &str, operator: &str, values: Value| json!({ "kind": kind, "selector": { "matchExpressions": [{ "key": "tier", "operator": operator, "values": values }] } });
    let mut of_other = stored(
        "VarmorPolicy",
        "other",
        json!({ "kind": "Deployment", "selector": {} }),
    );
    of_other["status"] = json!({ "profileName": "", "ready": false, "installation": "another" });
    let all = json!({ "kind": "Deployment", "selector": {} });
    let mut elsewhere = stored("VarmorPolicy", "elsewhere", all);
    elsewhere["metadata"]["namespace"] = json!("shop");
    vec![
        stored(
            "VarmorPolicy",
            "name",
            json!({ "kind": "Deployment", "name": "web" }),
        ),
        stored(
            "VarmorPolicy",
            "in",
            tier("Deployment", "In", json!(["a", "b"])),
        ),
        stored(
            "VarmorPolicy",
            "not-in",
            tier("StatefulSet", "NotIn", json!(["a"])),
        ),
        stored(
            "VarmorPolicy",
            "pod",
            json!({ "kind": "Pod", "selector": { "matchLabels": { "app": "web" } } }),
        ),
        stored(
            "VarmorPolicy",
            &"l".repeat(60),
            json!({ "kind": "Deployment", "selector": {} }),
        ),
        stored(
            "VarmorClusterPolicy",
            "all",
            tier("Deployment", "DoesNotExist", json!([])),
        ),
        of_other,
        elsewhere,
    ]
}

fn workload(kind: &str, name: &str, labels: &Value, annotations: &Value) -> Value {
    let mut metadata = json!({ "name": name, "labels": labels });
    let spec = json!({ "containers": [{ "name": "app", "image": "x" }] });
    if kind == "Pod" {
        metadata["annotations"] = annotations.clone();
        return json!({ "kind": kind, "metadata": metadata, "spec": spec });
    }
    json!({ "kind": kind, "metadata": metadata,
        "spec": { "template": { "metadata": { "annotations": annotations }, "spec": spec } } })
}

fn question(kind: &str, object: &Value) -> Value {
    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": UID, "kind": { "group": "", "version": "v1", "kind": kind }, "operation": "CREATE",
        "namespace": "demo", "object": object } })
}

/// Applies the operations that the answers have, each of which must have something to act on.
fn patched(mut object: Value, operations: &Value) -> Value {
    for operation in operations.as_array().into_iter().flatten() {
        let path = operation["path"].as_str().unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        match operation["op"].as_str() {
            Some("add") => drop(parent.insert(key, operation["value"].clone())),
            _ => assert!(parent.remove(&key).is_some(), "{path} is not there"),
        }
    }
    object
}

#[test]
fn a_webhook_marks_what_the_library_marks_and_takes_out_marks_of_others() {
    let mut cluster = Cluster::new("guard", false);
    let mut admission = Admission::new("guard");
    for policy in policies() {
        let scope = Scope::of_kind(policy["kind"].as_str().unwrap()).unwrap();
        admission.apply(scope, &policy);
        cluster.apply(Event::Policy(read(policy)));
    }
    let forged = json!({ "own": "x", "profile.tollgate.dev/varmor-demo-in": "x",
        "profile.tollgate.dev/varmor-cluster-guard-all": "target", "profile.tollgate.dev/varmor-demo-other": "x" });
    let (mut marks, mut count) = (0, 0);
    for kind in ["Deployment", "StatefulSet", "DaemonSet", "Pod"] {
        for name in ["web", "shop"] {
            for labels in [
                json!(null),
                json!({ "app": "web", "tier": "a" }),
                json!({ "tier": "c" }),
            ] {
                for annotations in [json!(null), json!({}), forged.clone()] {
                    let object = workload(kind, name, &labels, &annotations);
                    let review = question(kind, &object).to_string();
                    let review = Review::read(review.as_bytes()).unwrap();
                    let answer = review.answer(&review.marks(&admission));
                    assert_eq!(answer["response"]["uid"], UID);
                    assert_eq!(answer["response"]["allowed"], true);
                    let patch = answer["response"]["patch"]
                        .as_str()
                        .map(|text| STANDARD.decode(text).unwrap());
                    let patch: Value =
                        patch.map_or(Value::Null, |patch| serde_json::from_slice(&patch).unwrap());
                    let made = patched(object.clone(), &patch);
                    let pod = match kind {
                        "Pod" => &made,
                        _ => &made["spec"]["template"],
                    };
                    let found: BTreeSet<String> = pod["metadata"]["annotations"]
                        .as_object()
                        .into_iter()
                        .flatten()
                        .filter(|(key, value)| {
                            key.starts_with("profile.tollgate.dev/") && *value == "target"
                        })
                        .map(|(key, _)| key.clone())
                        .collect();
                    let expected = library(&cluster, kind, &object);
                    // Pods keep what their workload may have given them.
                    let kept = kind == "Pod" && annotations == forged;
                    match kept {
                        true => assert!(expected.is_subset(&found)),
                        false => assert_eq!(found, expected, "{object}"),
                    }
                    marks += found.len();
                    count += 1;
                }
            }
        }
    }
    assert!(marks > 20 && count == 72, "{marks} {count}");
}

/// The marks of a workload by the library.
fn library(cluster: &Cluster, kind: &str, object: &Value) -> BTreeSet<String> {
    let operations = cluster.marks(Workload {
        kind,
        namespace: "demo",
        object: &patched(
            object.clone(),
            &json!([{ "op": "add", "path": match kind {
            "Pod" => "/metadata/annotations",
            _ => "/spec/template/metadata/annotations",
        }, "value": null }]),
        ),
    });
    let whole = operations.iter().flat_map(|one| one.value.as_object());
    let keys = whole.flatten().map(|(key, _)| key.clone());
    keys.filter(|key| key.starts_with("profile.tollgate.dev/"))
        .collect()
}

#[test]
fn what_is_no_question_is_an_error() {
    let object = workload("Deployment", "web", &json!({}), &json!({}));
    let whole = question("Deployment", &object);
    let with = |path: &str, value: Value| {
        let mut question = whole.clone();
        *question.pointer_mut(path).unwrap() = value;
        Review::read(question.to_string().as_bytes()).map(drop)
    };
    for (path, value) in [
        ("/request/uid", json!(7)),
        ("/request/uid", json!("")),
        ("/request/uid", json!("a\nb")),
        ("/request/uid", json!("x".repeat(129))),
        ("/request", json!([])),
        ("/request", json!("x")),
    ] {
        assert_eq!(with(path, value).unwrap_err(), ReviewError::Uid, "{path}");
    }
    for (path, value) in [
        ("/kind", json!("Pod")),
        ("/apiVersion", json!("admission.k8s.io/v1beta1")),
    ] {
        assert_eq!(with(path, value).unwrap_err(), ReviewError::Kind);
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for bytes in [
        &b"\xff"[..],
        b"",
        b"{",
        b"7",
        b"[]",
        b"null",
        deep.as_bytes(),
    ] {
        assert!(Review::read(bytes).is_err());
    }
}

#[test]
fn a_wrong_type_in_a_question_is_refused_with_the_field() {
    let object = workload("Deployment", "web", &json!({}), &json!({}));
    let whole = question("Deployment", &object);
    let mut admission = Admission::new("guard");
    let own = json!({ "kind": "Deployment", "selector": {} });
    admission.apply(Scope::Namespace, &stored("VarmorPolicy", "all", own));
    let decide = |path: &str, value: Value| {
        let mut question = whole.clone();
        *question.pointer_mut(path).unwrap() = value;
        let question = question.to_string();
        Review::read(question.as_bytes()).unwrap().marks(&admission)
    };
    for (path, value, field) in [
        ("/request/object", json!(7), "request.object"),
        ("/request/object", json!(null), "request.object"),
        ("/request/kind", json!("Deployment"), "request.kind.kind"),
        ("/request/operation", json!([]), "request.operation"),
        ("/request/namespace", json!({}), "request.namespace"),
        (
            "/request/object/metadata/labels",
            json!("x"),
            "/metadata/labels",
        ),
        (
            "/request/object/metadata/labels",
            json!({ "a": 1 }),
            "/metadata/labels",
        ),
        (
            "/request/object/spec/template/metadata/annotations",
            json!([1]),
            "/spec/template/metadata/annotations",
        ),
    ] {
        let decision = decide(path, value);
        let Decision::Refused(400, message) = decision else {
            panic!("{path}: {decision:?}");
        };
        assert!(message.contains(field), "{message}");
    }
    // Anything may stand where pods have their template.
    for template in [json!(null), json!(7), json!([])] {
        let decision = decide("/request/object/spec/template", template);
        assert!(matches!(decision, Decision::Allowed(_)), "{decision:?}");
    }
}

#[test]
fn a_policy_is_refused_by_the_webhook_for_the_reasons_of_the_library() {
    let installation = Installation {
        namespace: "guard",
        behavior_modeling: true,
    };
    let decide = |policy: &Value| {
        let review = question("VarmorPolicy", policy).to_string();
        Review::read(review.as_bytes())
            .unwrap()
            .validity(installation)
    };
    let right = stored(
        "VarmorPolicy",
        "web",
        json!({ "kind": "Deployment", "name": "web" }),
    );
    assert_eq!(decide(&right), Decision::Allowed(Vec::new()));
    let wrong = stored(
        "VarmorPolicy",
        "web",
        json!({ "kind": "Job", "name": "web" }),
    );
    let Decision::Refused(422, message) = decide(&wrong) else {
        panic!("it is refused");
    };
    assert!(message.contains("found `Job`"), "{message}");
    let broken = json!({ "kind": "VarmorPolicy", "metadata": 7 });
    assert!(matches!(decide(&broken), Decision::Refused(400, _)));
    // However long the object, the answer is short.
    let long = stored(
        "VarmorPolicy",
        "web",
        json!({ "kind": "\u{e9}".repeat(100_000), "name": "web" }),
    );
    let question = question("VarmorPolicy", &long).to_string();
    let review = Review::read(question.as_bytes()).unwrap();
    let answer = review.answer(&review.validity(installation)).to_string();
    assert!(answer.len() < 10_000, "{}", answer.len());
}

#[test]
fn a_mark_that_two_policies_share_stays_while_one_of_them_is_about_the_workload() {
    let target = |name: &str| json!({ "kind": "Deployment", "name": name });
    let mut of_namespace = stored("VarmorPolicy", "guard-all", target("shop"));
    of_namespace["metadata"]["namespace"] = json!("cluster");
    let mut admission = Admission::new("guard");
    admission.apply(Scope::Namespace, &of_namespace);
    admission.apply(
        Scope::Cluster,
        &stored("VarmorClusterPolicy", "all", target("web")),
    );
    let mark = "profile.tollgate.dev/varmor-cluster-guard-all";
    let patch = |name: &str| {
        let object = workload("Deployment", name, &json!({}), &json!({ mark: "target" }));
        admission.patch(Workload {
            kind: "Deployment",
            namespace: "cluster",
            object: &object,
        })
    };
    assert_eq!(patch("shop"), Vec::<Value>::new());
    assert_eq!(patch("web"), Vec::<Value>::new());
    let removed = patch("other");
    assert_eq!(removed.len(), 1, "{removed:?}");
    assert_eq!(removed[0]["op"], "remove");
}

/// The largest number of bytes that a question and its answer have at one time, without the question's text.
fn memory(question: &str, installation: Installation<'_>) -> u64 {
    let admission = Admission::new("guard");
    let measured = allocation_counter::measure(|| {
        if let Ok(review) = Review::read(question.as_bytes()) {
            drop(review.answer(&review.marks(&admission)));
            drop(review.answer(&review.validity(installation)));
        }
    });
    measured.bytes_max
}

#[test]
fn memory_for_a_question_does_not_follow_the_number_of_its_values() {
    let installation = Installation {
        namespace: "guard",
        behavior_modeling: true,
    };
    let of_pod = |metadata: &str, spec: &str| {
        format!(
            r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{{"uid":"u","kind":{{"kind":"Pod"}},
            "operation":"CREATE","namespace":"demo","object":{{"metadata":{metadata},"spec":{spec}}}}}}}"#
        )
    };
    let many = |item: &str| vec![item; 700_000].join(",");
    let texts: Vec<String> = (0..300_000).map(|at| format!(r#""k{at}":"""#)).collect();
    let texts = texts.join(",");
    let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    for question in [
        of_pod(
            "{}",
            &format!(r#"{{"containers":[{{"env":[{}]}}]}}"#, many("{}")),
        ),
        of_pod("{}", &format!(r#"{{"policy":[{}]}}"#, many(r#"{"a":1}"#))),
        of_pod(&format!(r#"{{"labels":{{{texts}}}}}"#), "{}"),
        of_pod(&format!(r#"{{"annotations":{{{texts}}}}}"#), "{}"),
        of_pod(&format!(r#"{{"labels":[{}]}}"#, many("{}")), "{}"),
        of_pod(&format!(r#"{{"name":{deep}}}"#), &deep),
    ] {
        assert!(question.len() > 1_000_000);
        let bytes = memory(&question, installation);
        assert!(bytes < 2 << 20, "{bytes} bytes for {}", &question[..200]);
    }
    // A policy is read as a whole, up to a number of values.
    let policy = |items: usize| {
        let items = vec![r#"{"a":1}"#; items].join(",");
        of_pod(
            "{}",
            &format!(r#"{{"target":{{"kind":"Pod","name":"x"}},"policy":{{"x":[{items}]}}}}"#),
        )
    };
    for items in [16_000, 700_000] {
        let bytes = memory(&policy(items), installation);
        assert!(bytes < 32 << 20, "{bytes} bytes for {items} values");
    }
}

/// What becomes of a change of a policy.
fn decide(new: &Value, old: &Value) -> Decision {
    let mut review = question("VarmorPolicy", new);
    review["request"]["operation"] = json!("UPDATE");
    review["request"]["oldObject"] = old.clone();
    let review = review.to_string();
    let review = Review::read(review.as_bytes()).unwrap();
    review.validity(Installation {
        namespace: "guard",
        behavior_modeling: true,
    })
}

/// The policy with another value.
fn with(policy: &Value, path: &str, value: Value) -> Value {
    let mut policy = policy.clone();
    let (parent, key) = path.rsplit_once('/').unwrap();
    policy.pointer_mut(parent).unwrap()[key] = value;
    policy
}

#[test]
fn a_change_of_a_policy_is_refused_only_for_what_it_adds() {
    let target = json!({ "kind": "Deployment", "name": "web" });
    let long = stored("VarmorPolicy", &"l".repeat(60), target.clone());
    let right = stored("VarmorPolicy", "web", target);
    let unreadable = with(
        &right,
        "/spec/target",
        json!({ "kind": "Pod", "selector": 7 }),
    );
    let job = json!({ "kind": "Job", "name": "web" });
    let labelled = |policy: &Value| with(policy, "/metadata/labels", json!({ "a": "b" }));
    let allowed = Decision::Allowed(Vec::new());
    for old in [&long, &unreadable, &right] {
        assert_eq!(decide(&labelled(old), old), allowed, "{old}");
        // What the change adds is refused whatever the policy was before.
        if old != &unreadable {
            let wrong = with(old, "/spec/target", job.clone());
            let Decision::Refused(422, message) = decide(&wrong, old) else {
                panic!("it is refused: {old}");
            };
            assert!(message.contains("found `Job`"), "{message}");
            assert!(!message.contains("long"), "{message}");
            // Nothing keeps a policy from going away.
            let going = with(
                &wrong,
                "/metadata/deletionTimestamp",
                json!("2026-01-01T00:00:00Z"),
            );
            assert_eq!(decide(&going, old), allowed);
            let of = |owner: &str| {
                with(
                    old,
                    "/status",
                    json!({ "installation": owner, "profileName": "", "ready": false }),
                )
            };
            assert_eq!(decide(&wrong, &of("another")), allowed);
            assert!(matches!(
                decide(&wrong, &of("guard")),
                Decision::Refused(422, _)
            ));
        }
    }
    let Decision::Refused(400, message) = decide(&unreadable, &right) else {
        panic!("a selector that nobody can read is new");
    };
    assert!(
        message.contains("cannot read the VarmorPolicy"),
        "{message}"
    );
}

#[test]
fn a_policy_with_the_inactive_condition_of_this_installation_gives_no_mark_and_takes_none() {
    let decide = |installation: &str, annotations: Value| {
        let mut policy = stored(
            "VarmorPolicy",
            "web",
            json!({ "kind": "Deployment", "selector": {} }),
        );
        policy["status"] = json!({ "conditions": [
            { "type": crate::inactive_condition(installation), "status": "True" }] });
        let mut admission = Admission::new("guard");
        admission.apply(Scope::Namespace, &policy);
        let object = workload("Deployment", "web", &json!({}), &annotations);
        admission.patch(Workload {
            kind: "Deployment",
            namespace: "demo",
            object: &object,
        })
    };
    let mark = json!({ "profile.tollgate.dev/varmor-demo-web": "x" });
    assert_eq!(decide("guard", json!({})), Vec::<Value>::new());
    assert_eq!(decide("guard", mark.clone()), Vec::<Value>::new());
    // The condition of another installation is about that one.
    assert_eq!(decide("another", mark).len(), 1);
}
