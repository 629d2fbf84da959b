//! What a stolen token of an agent can do, and what authors of pods can.

use std::collections::{BTreeMap, HashMap};
use std::thread;

use apiserver::real::{RealApiserver, until};
use apiserver::{Client, Resource};
use node::explain::Profiles;
use nri::message::PodSandbox;
use operator::manifests::NODE;
use operator::{Operator, Settings};
use serde_json::{Value, json};

use super::{Installed, NAMESPACE, key, of, resource, token};

/// What an agent may do besides writing its own report. Every user may ask who it is and what it may, and every service
/// account may read the bundles of public certificates.
const ALLOWED: [(&str, &str); 19] = [
    ("get", "armorprofiles"),
    ("list", "armorprofiles"),
    ("watch", "armorprofiles"),
    ("get", "varmorpolicies"),
    ("get", "varmorclusterpolicies"),
    // With detection.
    ("get", "rulesfiles"),
    ("list", "rulesfiles"),
    ("watch", "rulesfiles"),
    ("get", "configs"),
    ("list", "configs"),
    ("watch", "configs"),
    ("get", "configmaps"),
    ("get", "nodes"),
    ("create", "selfsubjectaccessreviews"),
    ("create", "selfsubjectrulesreviews"),
    ("create", "selfsubjectreviews"),
    ("get", "clustertrustbundles"),
    ("list", "clustertrustbundles"),
    ("watch", "clustertrustbundles"),
];

/// A kind of the discovery document.
struct Kind {
    /// Path of the group and version.
    root: String,
    version: String,
    /// Name in paths, such as `pods/log`.
    name: String,
    kind: String,
    is_namespaced: bool,
    verbs: Vec<String>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Everything that the API server serves.
fn kinds(client: &Client) -> Vec<Kind> {
    let get = |path: &str| {
        client
            .attempt("GET", path, &[], None)
            .expect("everybody may ask")
    };
    let groups = get("/apis");
    let groups = groups["groups"].as_array().expect("it is a list").clone();
    let versions = groups
        .iter()
        .flat_map(|group| group["versions"].as_array().cloned().unwrap_or_default());
    let mut roots: Vec<(String, String)> = versions
        .map(|version| text(&version["groupVersion"]))
        .map(|version| (format!("/apis/{version}"), version))
        .collect();
    roots.push(("/api/v1".to_owned(), "v1".to_owned()));
    let mut all = Vec::new();
    for (root, version) in roots {
        let found = get(&root);
        for one in found["resources"].as_array().expect("it is a list") {
            let verbs = one["verbs"].as_array().expect("it is a list");
            all.push(Kind {
                root: root.clone(),
                version: version.clone(),
                name: text(&one["name"]),
                kind: text(&one["kind"]),
                is_namespaced: one["namespaced"] == true,
                verbs: verbs.iter().map(text).collect(),
            });
        }
    }
    all
}

impl Kind {
    /// Method, path and query of a verb on an object of another node, or on all objects.
    fn request(&self, verb: &str, namespace: &str) -> Option<(&'static str, String)> {
        let scope = match self.is_namespaced {
            true => format!("{}/namespaces/{namespace}", self.root),
            false => self.root.clone(),
        };
        let object = match self.name.split_once('/') {
            Some((plural, part)) => format!("{scope}/{plural}/n2/{part}"),
            None => format!("{scope}/{}/n2", self.name),
        };
        // A part of an object is created below its object.
        let list = match self.name.contains('/') {
            true => object.clone(),
            false => format!("{scope}/{}", self.name),
        };
        Some(match verb {
            "get" => ("GET", object),
            "list" => ("GET", list),
            "watch" => ("GET", format!("{list}?watch=1&timeoutSeconds=1")),
            "create" => ("POST", list),
            "update" => ("PUT", object),
            "patch" => ("PATCH", format!("{object}?fieldManager=thief&force=true")),
            "delete" => ("DELETE", object),
            "deletecollection" => ("DELETE", list),
            _ => return None,
        })
    }

    fn body(&self, verb: &str) -> Option<Value> {
        let has_body = ["create", "update", "patch"].contains(&verb);
        let body =
            json!({ "apiVersion": self.version, "kind": self.kind, "metadata": { "name": "n2" } });
        has_body.then_some(body)
    }
}

pub(super) fn a_stolen_token_of_an_agent_writes_nothing_but_the_report_of_its_node(
    server: &RealApiserver,
) {
    let thief = token(server, NODE, Some("n1"));
    let mut tried = 0;
    let mut allowed: BTreeMap<(String, String), usize> = BTreeMap::new();
    for kind in kinds(&server.client) {
        for verb in &kind.verbs {
            // Writes are tried where authors have their pods, reads and deletions where the operator has its lease.
            let namespace = match verb.as_str() {
                "create" | "update" | "patch" => "demo",
                _ => NAMESPACE,
            };
            let (method, path) = kind.request(verb, namespace).expect("the verb is known");
            tried += 1;
            match thief.attempt(method, &path, &[], kind.body(verb).as_ref()) {
                Err(error) if error.code() == Some(403) => {}
                // Others are not told from success: the API server has let the request through.
                _ => {
                    *allowed
                        .entry((verb.clone(), kind.name.clone()))
                        .or_default() += 1
                }
            }
        }
    }
    println!("{tried} requests with the token of an agent");
    assert!(tried > 500, "{tried}");
    let expected = ALLOWED.map(|(verb, kind)| (verb.to_owned(), kind.to_owned()));
    let unexpected: Vec<_> = allowed
        .keys()
        .filter(|one| !expected.contains(one))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    for one in &expected {
        assert!(
            allowed.contains_key(one),
            "{one:?} is not needed: {allowed:?}"
        );
    }
    it_is_nobody_else(&thief);
}

/// Tokens of others, their names, and what is no object.
fn it_is_nobody_else(thief: &Client) {
    let account = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/tollgate-operator/token");
    let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": [] } });
    let refused = |method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>| {
        let code = thief
            .attempt(method, path, headers, body)
            .err()
            .and_then(|error| error.code());
        assert_eq!(code, Some(403), "{method} {path}");
    };
    refused("POST", &account, &[], Some(&request));
    for path in [
        "/metrics",
        "/logs",
        "/debug/pprof/heap",
        "/configz",
        "/api/v1/nodes/n1/proxy/pods",
    ] {
        refused("GET", path, &[], None);
    }
    // Nor as somebody else.
    for user in [
        "admin",
        "system:serviceaccount:guard:tollgate-operator",
        "system:node:n2",
    ] {
        refused(
            "GET",
            "/api/v1/secrets",
            &[("impersonate-user", user)],
            None,
        );
    }
}

/// An author of workloads of one namespace, with more than the usual rights on pods.
fn author(installed: &Installed) -> Client {
    let server = &installed.server;
    let role = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": "author", "namespace": "demo" }, "rules": [
            { "apiGroups": ["", "apps"], "resources": ["pods", "pods/ephemeralcontainers", "pods/status", "deployments"],
              "verbs": ["*"] }] });
    let binding = json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "author", "namespace": "demo" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "author" },
        "subjects": [{ "kind": "ServiceAccount", "name": "author", "namespace": NAMESPACE }] });
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "author", "namespace": NAMESPACE } });
    for object in [role, binding, account] {
        let applied = server.client.apply(&resource(&object), &object);
        applied.unwrap_or_else(|error| panic!("{error:?}"));
    }
    token(server, "author", None)
}

/// A pod that a policy is about, by its labels.
fn pod(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "demo", "labels": { "app": "shop" } },
        "spec": { "containers": [{ "name": "app", "image": "x" }] } })
}

/// The pod as a container runtime describes it.
fn sandbox(pod: &Value) -> PodSandbox {
    let texts = |key: &str| -> HashMap<String, String> {
        let pairs = pod["metadata"][key].as_object().into_iter().flatten();
        pairs
            .map(|(key, value)| (key.clone(), text(value)))
            .collect()
    };
    PodSandbox {
        name: text(&pod["metadata"]["name"]),
        namespace: text(&pod["metadata"]["namespace"]),
        labels: texts("labels"),
        annotations: texts("annotations"),
        ..PodSandbox::default()
    }
}

/// The profile that an agent gives each container of a pod.
fn chosen(installed: &Installed, pod: &Value) -> Vec<(String, Option<String>)> {
    let mut objects = Vec::new();
    let all = of("ArmorProfile");
    let listed = installed
        .server
        .client
        .list(&all, |object| objects.push(object));
    listed.expect("the kind is served");
    let (profiles, wrong) = Profiles::new(NAMESPACE, &objects);
    assert_eq!(wrong, Vec::<String>::new());
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    let containers = lists
        .iter()
        .flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
    let names = containers.map(|container| text(&container["name"]));
    let one = |name: String| {
        let choice = profiles
            .choose(&sandbox(pod), &name)
            .expect("it can be told");
        (name, choice.map(|choice| choice.profile.name))
    };
    names.map(one).collect()
}

/// A name, and a change of a pod.
type Trick = (&'static str, fn(&mut Value));

/// What an author writes into a pod to switch the policy off.
fn tricks() -> Vec<Trick> {
    vec![
        ("old mark", |pod| {
            pod["metadata"]["annotations"] = json!({ "container.tollgate.dev/app": "unconfined" })
        }),
        ("empty mark", |pod| {
            pod["metadata"]["annotations"] = json!({ "profile.tollgate.dev/varmor-demo-shop": "" });
        }),
        ("marks of the peer", |pod| {
            pod["metadata"]["annotations"] = json!({ "container.seccomp.security.beta.varmor.org/app": "unconfined",
                "container.apparmor.security.beta.kubernetes.io/app": "unconfined" });
        }),
        ("runtime's annotation", |pod| {
            pod["metadata"]["annotations"] = json!({ "tollgate.policy": "none" })
        }),
        ("Unconfined", |pod| {
            pod["spec"]["securityContext"] = json!({ "seccompProfile": { "type": "Unconfined" } })
        }),
        ("Unconfined container", |pod| {
            pod["spec"]["containers"][0]["securityContext"] =
                json!({ "privileged": true, "seccompProfile": { "type": "Unconfined" } });
        }),
        ("other RuntimeClass", |pod| {
            pod["spec"]["runtimeClassName"] = json!("other")
        }),
        ("namespaces of the host", |pod| {
            for key in ["hostPID", "hostNetwork", "hostIPC"] {
                pod["spec"][key] = json!(true);
            }
        }),
        ("forged kind", |pod| {
            pod["metadata"]["labels"]["pod-template-hash"] = json!("x");
            pod["metadata"]["labels"]["controller-revision-hash"] = json!("x");
        }),
        ("no owner", |pod| {
            if let Some(metadata) = pod["metadata"].as_object_mut() {
                metadata.remove("ownerReferences");
            }
        }),
        ("init container", |pod| {
            pod["spec"]["initContainers"] = json!([{ "name": "first", "image": "x" },
                { "name": "side", "image": "x", "restartPolicy": "Always" }]);
        }),
    ]
}

/// Has the operator compile a policy for all pods of the shop.
fn protect(installed: &Installed) {
    let server = &installed.server;
    let class = json!({ "apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": { "name": "other" },
        "handler": "other" });
    let applied = server.client.apply(&resource(&class), &class);
    applied.expect("the cluster is as this test made it");
    let policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "shop", "namespace": "demo" },
        "spec": { "target": { "kind": "Pod", "selector": { "matchLabels": { "app": "shop" } } },
            "policy": { "enforcer": "Seccomp", "mode": "EnhanceProtect",
                "enhanceProtect": { "hardeningRules": ["disallow-mount"] } } } });
    let applied = server.client.apply(&of("VarmorPolicy"), &policy);
    applied.expect("the cluster is as this test made it");
    let client = server.client.clone();
    // It ends with the test.
    thread::spawn(move || {
        let operator = Operator::new(client, Settings::new(NAMESPACE, "one"));
        let _ = operator.run(|_| {});
    });
    let at = key("demo", "varmor-demo-shop");
    until(|| {
        let found = server.client.get(&of("ArmorProfile"), &at);
        found.map_err(|error| error.to_string())
    })
    .expect("the operator compiles it");
}

pub(super) fn an_author_of_pods_cannot_switch_confinement_off(installed: &Installed) {
    protect(installed);
    let author = author(installed);
    let pods = Resource::new("", "v1", "pods");
    // Rights and policies of admission come into force some time after they were written.
    until(|| {
        let made = author
            .create(&pods, &pod("begin"))
            .map_err(|error| error.to_string())?;
        let uid = text(&made["metadata"]["uid"]);
        let deleted = author.delete(&pods, &key("demo", "begin"), &uid);
        deleted.map_err(|error| error.to_string())?;
        let marks = &made["metadata"]["annotations"];
        match marks["profile.tollgate.dev/varmor-demo-shop"] == "target" {
            true => Ok(()),
            false => Err(marks.to_string()),
        }
    })
    .expect("the policy marks its pods");
    let confined = |what: &str, pod: &Value| {
        let all = chosen(installed, pod);
        assert!(!all.is_empty(), "{what}");
        for (container, profile) in all {
            assert_eq!(
                profile.as_deref(),
                Some("varmor-demo-shop"),
                "{what}: {container}"
            );
        }
    };
    for (index, (what, change)) in tricks().into_iter().enumerate() {
        let mut object = pod(&format!("trick-{index}"));
        change(&mut object);
        let made = author.create(&pods, &object);
        let made = made.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        confined(what, &made);
    }
    later_changes_of_a_pod_do_not_help_either(&author, confined);
    nor_do_objects_of_the_operator(&author);
    // The twin: what no policy is about has none.
    let mut twin = pod("twin");
    twin["metadata"]["labels"] = json!({ "app": "other" });
    let made = author.create(&pods, &twin).expect("it is taken");
    assert_eq!(chosen(installed, &made), [("app".to_owned(), None)]);
}

/// Labels that are taken away, and debug containers.
fn later_changes_of_a_pod_do_not_help_either(author: &Client, confined: impl Fn(&str, &Value)) {
    let pods = Resource::new("", "v1", "pods");
    let made = author.create(&pods, &pod("later")).expect("it is taken");
    let mut debugged = made.clone();
    debugged["spec"]["ephemeralContainers"] =
        json!([{ "name": "debug", "image": "x", "targetContainerName": "app" }]);
    let path = "/api/v1/namespaces/demo/pods/later/ephemeralcontainers";
    let debugged = author.attempt("PUT", path, &[], Some(&debugged));
    let mut debugged = debugged.expect("authors may debug");
    assert_eq!(debugged["spec"]["ephemeralContainers"][0]["name"], "debug");
    confined("debug container", &debugged);
    debugged["metadata"]["labels"] = json!({ "app": "other" });
    let moved = author
        .replace(&pods, &debugged)
        .expect("labels may be changed");
    confined("other labels", &moved);
    // The mark, by which it is confined now, stays.
    let mut unmarked = moved;
    unmarked["metadata"]["annotations"] = json!({});
    let refused = author.replace(&pods, &unmarked).expect_err("it is refused");
    assert!(
        refused.to_string().contains("marks of tollgate stay"),
        "{refused}"
    );
}

fn nor_do_objects_of_the_operator(author: &Client) {
    for (kind, namespace, name) in [
        ("VarmorPolicy", "demo", "shop"),
        ("ArmorProfile", "demo", "varmor-demo-shop"),
        ("NodeReport", "", "n1"),
    ] {
        let at = key(namespace, name);
        let definition = of(kind);
        let path = definition.object_path(&at);
        for (method, body) in [
            ("DELETE", None),
            ("PATCH", Some(json!({ "metadata": { "name": name } }))),
        ] {
            let path = match method {
                "PATCH" => format!("{path}?fieldManager=author&force=true"),
                _ => path.clone(),
            };
            let error = author
                .attempt(method, &path, &[], body.as_ref())
                .expect_err("it is refused");
            assert_eq!(error.code(), Some(403), "{method} {kind}");
        }
    }
}
