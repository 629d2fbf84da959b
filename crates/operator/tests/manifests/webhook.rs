//! The webhook gives the same objects as MutatingAdmissionPolicies: two API servers get the same policies and workloads.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use apiserver::ApiError;
use apiserver::real::{Programs, Running, until};
use operator::manifests::{MUTATE, OPERATOR, WEBHOOK};
use serde_json::{Value, json};

use super::{Installed, NAMESPACE, installation, key, of, resource, token, workload};

/// What an API server writes by itself, and differs between two.
const OF_SERVER: [&str; 4] = [
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "managedFields",
];
const MARK: &str = "profile.tollgate.dev/varmor-";

/// A workload, and the names of the policies whose marks it has.
struct Case {
    what: &'static str,
    object: Value,
    marks: &'static [&'static str],
}

fn policy(kind: &str, name: &str, target: &Value) -> Value {
    let metadata = match kind {
        "VarmorPolicy" => json!({ "name": name, "namespace": "demo" }),
        _ => json!({ "name": name }),
    };
    json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": kind, "metadata": metadata,
        "spec": { "target": target, "policy": { "enforcer": "Seccomp",
            "mode": "EnhanceProtect", "enhanceProtect": { "hardeningRules": ["disallow-mount"] } } } })
}

/// Policies with each way to name a target.
fn policies() -> Vec<Value> {
    let web = json!({ "kind": "Deployment", "selector": { "matchLabels": { "app": "web" },
        "matchExpressions": [{ "key": "off", "operator": "DoesNotExist" }] } });
    let tiers = json!([
        { "key": "example.com/tier", "operator": "In", "values": ["a", "b"] },
        { "key": "app", "operator": "Exists" } ]);
    let free = json!([{ "key": "app", "operator": "NotIn", "values": ["web", "other"] }]);
    vec![
        policy("VarmorPolicy", "web", &web),
        policy("VarmorClusterPolicy", "all", &web),
        policy(
            "VarmorPolicy",
            "db",
            &json!({ "kind": "StatefulSet", "name": "db" }),
        ),
        policy(
            "VarmorPolicy",
            "agents",
            &json!({ "kind": "DaemonSet",
            "selector": { "matchLabels": { "app": "agent" } } }),
        ),
        policy(
            "VarmorPolicy",
            "pods",
            &json!({ "kind": "Pod", "selector": { "matchExpressions": tiers } }),
        ),
        policy(
            "VarmorClusterPolicy",
            "free",
            &json!({ "kind": "Pod", "selector": { "matchExpressions": free } }),
        ),
    ]
}

fn case(what: &'static str, object: Value, marks: &'static [&'static str]) -> Case {
    Case {
        what,
        object,
        marks,
    }
}

/// A workload with a change at a place of it.
fn changed(kind: &str, name: &str, at: &str, value: Value) -> Value {
    let mut object = workload(kind, name);
    let (parent, last) = at.rsplit_once('/').expect("a place below the root");
    let parent = object
        .pointer_mut(parent)
        .expect("the object has the place");
    parent[last] = value;
    object
}

/// Marks that an author wrote: of policies that are about the workload, of others, and of none.
fn forged() -> Value {
    json!({ "profile.tollgate.dev/varmor-demo-web": "target",
        "profile.tollgate.dev/varmor-demo-pods": "x", "profile.tollgate.dev/varmor-cluster-guard-all": "x",
        "profile.tollgate.dev/unknown": "target", "own": "y" })
}

fn labels(text: &[(&str, &str)]) -> Value {
    let text = text
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)));
    Value::Object(text.collect())
}

fn workload_cases() -> Vec<Case> {
    let of_template = "/spec/template/metadata/annotations";
    let off = labels(&[("app", "web"), ("off", "")]);
    vec![
        case(
            "selected by two",
            workload("Deployment", "web"),
            &["demo-web", "cluster-guard-all"],
        ),
        case(
            "an expression keeps it out",
            changed("Deployment", "web", "/metadata/labels", off),
            &[],
        ),
        case(
            "no labels",
            changed("Deployment", "web", "/metadata/labels", Value::Null),
            &[],
        ),
        case(
            "forged marks",
            changed("Deployment", "other", of_template, forged()),
            &["unknown"],
        ),
        case(
            "forged values",
            changed("Deployment", "web", of_template, forged()),
            &["demo-web", "cluster-guard-all", "unknown"],
        ),
        case(
            "no annotations",
            changed("Deployment", "web", of_template, Value::Null),
            &["demo-web", "cluster-guard-all"],
        ),
        case("by name", workload("StatefulSet", "db"), &["demo-db"]),
        case("another name", workload("StatefulSet", "web"), &[]),
        case(
            "another kind",
            workload("DaemonSet", "agent"),
            &["demo-agents"],
        ),
        case(
            "a kind that is marked by its owner",
            changed("ReplicaSet", "web", of_template, forged()),
            &["demo-web", "demo-pods", "cluster-guard-all", "unknown"],
        ),
    ]
}

fn pod_cases() -> Vec<Case> {
    let in_tier = labels(&[("app", "other"), ("example.com/tier", "b")]);
    vec![
        case(
            "a pod by label",
            changed("Pod", "other", "/metadata/labels", in_tier),
            &["demo-pods"],
        ),
        case(
            "a pod without the label",
            workload("Pod", "free"),
            &["cluster-guard-free"],
        ),
        case("a pod of nobody", workload("Pod", "web"), &[]),
        case(
            "a pod with the marks of its workload",
            changed("Pod", "web", "/metadata/annotations", forged()),
            &["demo-web", "cluster-guard-all", "unknown"],
        ),
    ]
}

/// The names of the policies whose marks a workload has.
fn marks(object: &Value) -> BTreeSet<String> {
    let place = match object["kind"] == "Pod" {
        true => "/metadata/annotations",
        false => "/spec/template/metadata/annotations",
    };
    let annotations = object.pointer(place).and_then(Value::as_object);
    let keys = annotations.into_iter().flatten().map(|(key, _)| key);
    let mark = |key: &String| {
        let name = key
            .strip_prefix(MARK)
            .or_else(|| key.strip_prefix("profile.tollgate.dev/"));
        name.map(str::to_owned)
    };
    keys.filter_map(mark).collect()
}

/// What was stored, without what each server writes by itself.
fn stored(made: Result<Value, ApiError>) -> Result<(Value, String), String> {
    let mut made = made.map_err(|error| error.to_string())?;
    let uid = made["metadata"]["uid"].as_str();
    let uid = uid.ok_or("it has no unique id")?.to_owned();
    let metadata = made["metadata"]
        .as_object_mut()
        .ok_or("it has no metadata")?;
    metadata.retain(|key, _| !OF_SERVER.contains(&key.as_str()));
    Ok((made, uid))
}

/// Creates a workload, and deletes it again.
fn created(installed: &Installed, object: &Value) -> Result<Value, String> {
    let client = &installed.server.client;
    let mut object = object.clone();
    if object["kind"] == "Pod" {
        // The volume of the token has a name by chance.
        object["spec"]["automountServiceAccountToken"] = json!(false);
    }
    let object = &object;
    let (made, uid) = stored(client.create(&resource(object), object))?;
    let name = object["metadata"]["name"]
        .as_str()
        .ok_or("it has no name")?;
    let deleted = client.delete(&resource(object), &key("demo", name), &uid);
    deleted.map_err(|error| error.to_string())?;
    Ok(made)
}

/// An operator of the installation, with the rights of its account alone.
fn operator(installed: &Installed, folder: &Path, port: u16) -> Running {
    drop(token(&installed.server, OPERATOR, None));
    let mut options = installed.server.options();
    let token = options.iter().position(|option| option == "--token");
    let token = token.expect("the server's options have a token") + 1;
    let own = Path::new(&options[token]).with_file_name(format!("token-of-{OPERATOR}-unbound"));
    options[token] = own.display().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate-operator"));
    command.args(["run", "--namespace", NAMESPACE, "--name", "first"]);
    command.args(["--webhook", &format!("127.0.0.1:{port}")]);
    command.args(options);
    Running::start(command, &folder.join("operator.log")).expect("the program was built")
}

/// Leads the server to a port of this machine: it asks the Service by its name, and checks the certificate's name.
fn lead_here(object: &mut Value, port: u16) {
    if object["kind"] == "Service" && object["metadata"]["name"] == WEBHOOK {
        object["spec"] = json!({ "type": "ExternalName", "externalName": "localhost" });
    }
    let webhooks = object.get_mut("webhooks").and_then(Value::as_array_mut);
    for one in webhooks.into_iter().flatten() {
        assert!(one["clientConfig"]["service"]["path"].is_string(), "{one}");
        one["clientConfig"]["service"]["port"] = json!(port);
    }
}

pub(super) fn gives_the_same_objects(programs: &Programs) {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("there is a free port").port();
    let folder = tempfile::tempdir().expect("there are temporary folders");
    let mut own = installation();
    let by_policies = Installed::start(programs, &own, |_| {});
    own.webhook = true;
    let by_webhook = Installed::start(programs, &own, |object| lead_here(object, port));
    let operator = operator(&by_webhook, folder.path(), port);
    let both = [&by_policies, &by_webhook];
    let log = || std::fs::read_to_string(folder.path().join("operator.log"));
    for policy in policies() {
        for one in both {
            let kind = of(policy["kind"].as_str().expect("a policy has a kind"));
            // The webhook about policies is asked as soon as API servers trust it.
            let applied = until(|| {
                let applied = one.server.client.apply(&kind, &policy);
                applied.map(drop).map_err(|error| error.to_string())
            });
            applied.unwrap_or_else(|error| panic!("{error}: {policy}\n{:?}", log()));
        }
    }
    for case in workload_cases().into_iter().chain(pod_cases()) {
        let same = same_on(both, &case.object, case.marks);
        same.unwrap_or_else(|error| panic!("{}: {error}\n{:?}", case.what, log()));
    }
    changes_give_the_same_objects(both);
    // The marks were the webhook's: without it nothing is created.
    drop(operator);
    let refused = created(&by_webhook, &workload("Deployment", "web"));
    let refused = refused.expect_err("nobody answers the API server");
    assert!(
        refused.contains("failed calling webhook") && refused.contains(MUTATE),
        "{refused}"
    );
}

/// Creates a workload on both servers until policies of admission and their parameters are in force.
fn same_on(both: [&Installed; 2], object: &Value, marked: &[&str]) -> Result<(), String> {
    let wanted: BTreeSet<String> = marked.iter().map(|&mark| mark.to_owned()).collect();
    until(|| {
        let [first, second] = both.map(|one| created(one, object));
        let (first, second) = (first?, second?);
        let found = [marks(&first), marks(&second)];
        let is_right = found.iter().all(|marks| *marks == wanted) && first == second;
        is_right
            .then_some(())
            .ok_or_else(|| format!("wanted {wanted:?}, found {found:?}:\n{first}\n{second}"))
    })
}

/// A workload gains and loses marks as it changes.
fn changes_give_the_same_objects(both: [&Installed; 2]) {
    let deployments = resource(&workload("Deployment", "web"));
    let check = |labels: &Value, wanted: &[&str]| {
        let object = changed("Deployment", "kept", "/metadata/labels", labels.clone());
        let found = both.map(|one| stored(one.server.client.apply(&deployments, &object)));
        let [first, second] = found.map(|found| found.expect("the server takes it").0);
        assert_eq!(first, second);
        let wanted: BTreeSet<String> = wanted.iter().map(|&mark| mark.to_owned()).collect();
        assert_eq!(marks(&first), wanted, "{first}");
    };
    check(&json!({ "app": "x" }), &[]);
    check(&json!({ "app": "web" }), &["demo-web", "cluster-guard-all"]);
    check(&json!({ "app": "web", "off": "1" }), &[]);
    for one in both {
        let policies = of("VarmorPolicy");
        let found = one.server.client.get(&policies, &key("demo", "web"));
        let uid = found.expect("it was written")["metadata"]["uid"].clone();
        let uid = uid.as_str().expect("what is stored has one");
        let deleted = one
            .server
            .client
            .delete(&policies, &key("demo", "web"), uid);
        deleted.expect("it may be deleted");
    }
    same_on(both, &workload("Deployment", "web"), &["cluster-guard-all"])
        .expect("the policy that is gone marks nothing");
}
