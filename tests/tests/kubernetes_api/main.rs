//! What `tollgate-operator manifests` prints, the operator and the agent, with a real API server.
//!
//! `tests/cluster/build` builds Kubernetes and containerd into the cache.

mod corpus;
mod installed;
mod marks;
mod policies;
mod programs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use apiserver::Resource;
use apiserver::real::{Running, until};
use e2e::{need_api_server, skip_part};
use installed::{Installed, NAMESPACE, installation, text};
use operator::manifests;
use serde_json::{Value, json};

/// Everything of `part` is in `whole`; what a server adds is not looked at. An error names the first difference.
fn is_within(whole: &Value, part: &Value, at: &str) -> Result<(), String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().try_for_each(|(key, part)| {
            // The server leaves empty values out.
            let whole = whole.get(key).unwrap_or(&Value::Null);
            is_within(whole, part, &format!("{at}.{key}"))
        }),
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            let mut pairs = whole.iter().zip(part).enumerate();
            pairs.try_for_each(|(index, (whole, part))| {
                is_within(whole, part, &format!("{at}[{index}]"))
            })
        }
        (Value::Null, part) if is_empty(part) => Ok(()),
        (whole, part) if whole == part => Ok(()),
        _ => Err(format!("{at}: {part} has become {whole}")),
    }
}

/// A value that the server does not tell from a missing one.
fn is_empty(value: &Value) -> bool {
    *value == json!(false) || *value == json!([]) || *value == json!({})
}

/// One server for all: it takes most of the time to start.
#[test]
fn a_server_takes_the_manifests_checks_their_expressions_and_makes_their_pods() {
    let programs = need_api_server!();
    let installed = Installed::start(&programs);
    each_object_of_the_manifests_is_taken_strictly_and_a_second_time_changes_nothing(&installed);
    match e2e::cluster::built("kube-controller-manager") {
        Ok(manager) => {
            let manager = start_manager(&installed, &manager);
            expressions_of_admission_fit_the_kinds_that_they_are_about(&installed, &manager.1);
            controllers_make_the_pods_of_the_installation(&installed, &manager.1);
            controllers_give_pods_the_marks_of_their_workload(&installed, &manager.1);
        }
        Err(missing) => skip_part!("needs what tests/cluster/build builds", || Ok(missing)),
    }
}

fn each_object_of_the_manifests_is_taken_strictly_and_a_second_time_changes_nothing(
    installed: &Installed,
) {
    for object in manifests::all(&installation()) {
        let taken = installed.apply(&object).expect("it was taken before");
        let name = format!(
            "{} {}",
            text(&object["kind"]),
            text(&object["metadata"]["name"])
        );
        is_within(&taken, &object, &name).unwrap_or_else(|difference| panic!("{difference}"));
        // Controllers of the server write the status of some objects meanwhile.
        until(|| {
            let versions = [(); 2].map(|()| installed.apply(&object).expect("it was taken before"));
            let [first, second] = versions.map(|object| object["metadata"].clone());
            match first == second {
                true => Ok(()),
                false => Err(format!("{name}: {first} {second}")),
            }
        })
        .expect("nothing is changed");
        assert_eq!(
            taken["metadata"]["generation"].as_u64().unwrap_or(1),
            1,
            "{name} is not what was written"
        );
    }
    a_field_that_no_kind_has_is_refused(installed);
    each_text_arrives_as_it_is(installed);
}

/// A server-side apply is read as YAML, which has other line ends than JSON.
fn each_text_arrives_as_it_is(installed: &Installed) {
    let text = "a\u{85}b\u{2028}c\u{2029}d\u{7f}e\u{9f}\u{feff}\u{fffe}\u{ffff}\u{e9}\u{1f600}\"\\\n\t\u{0}\u{1f}";
    let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "texts", "namespace": "demo" },
        "data": { "text": text } });
    let taken = installed.apply(&map).expect("it is a text");
    assert_eq!(taken["data"]["text"], text);
}

/// Without this the test above would show nothing.
fn a_field_that_no_kind_has_is_refused(installed: &Installed) {
    for mut object in manifests::all(&installation()) {
        let root = match object["spec"].is_object() {
            true => &mut object["spec"],
            false => &mut object,
        };
        root["tollgateTypo"] = json!(true);
        let error = installed.apply(&object).expect_err("it is refused");
        let error = error.to_string();
        assert!(error.contains("tollgateTypo"), "{error}");
    }
}

fn expressions_of_admission_fit_the_kinds_that_they_are_about(installed: &Installed, log: &Path) {
    let policies = manifests::all(&installation()).into_iter();
    let policies = policies.filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    let mut count = 0;
    for policy in policies {
        let status = until(|| {
            let found = installed.get(&policy).map_err(|error| error.to_string())?;
            let status = found["status"].clone();
            match status["observedGeneration"] == found["metadata"]["generation"] {
                true => Ok(status),
                false => Err(format!("{found} {}", read(log))),
            }
        })
        .expect("its types are checked");
        let name = &policy["metadata"]["name"];
        assert_eq!(
            status["typeChecking"]["expressionWarnings"],
            Value::Null,
            "{name}"
        );
        count += 1;
    }
    assert_eq!(count, 5);
}

/// Starts controllers of Kubernetes; returns their log, too.
fn start_manager(installed: &Installed, program: &Path) -> (Running, PathBuf) {
    let config = installed.kubeconfig("kcm", &installed.folder().join("token"));
    let mut manager = Command::new(program);
    manager.arg("--kubeconfig").arg(config);
    manager.arg(
        "--controllers=validatingadmissionpolicy-status-controller,deployment-controller,replicaset-controller,\
         daemonset-controller",
    );
    manager.args(["--leader-elect=false", "--secure-port=0"]);
    let log = installed.folder().join("kcm.log");
    let running = Running::start(manager, &log).expect("it was built");
    (running, log)
}

/// The pods of a namespace, as the name that they are called by and their annotations.
fn pods(installed: &Installed, namespace: &str) -> Result<Vec<(String, Value)>, String> {
    let mut all = Vec::new();
    let pods = Resource::new("", "v1", "pods").in_namespace(namespace);
    let listed = installed.client().list(&pods, |pod| {
        let name = text(&pod["metadata"]["generateName"]).to_owned();
        all.push((name, pod["metadata"]["annotations"].clone()));
    });
    listed.map_err(|error| error.to_string())?;
    all.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(all)
}

fn controllers_make_the_pods_of_the_installation(installed: &Installed, log: &Path) {
    let own = until(|| {
        let own = pods(installed, NAMESPACE)?;
        match own.len() {
            3 => Ok(own),
            _ => Err(format!("{own:?} {}", read(log))),
        }
    });
    // Two operators, and an agent on the node. Their namespace may have the annotation that authors may not write.
    for (name, annotations) in own.expect("the pods are made") {
        let is_known = ["tollgate-node-", "tollgate-operator-"];
        assert!(
            is_known.iter().any(|known| name.starts_with(known)),
            "{name}"
        );
        assert_eq!(
            annotations,
            json!({ "tollgate.dev/tolerate-missing": "true" })
        );
    }
}

fn controllers_give_pods_the_marks_of_their_workload(installed: &Installed, log: &Path) {
    let policy = json!({ "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy",
        "metadata": { "name": "shop", "namespace": "demo" }, "spec": {
            "target": { "kind": "Deployment", "selector": { "matchLabels": { "tier": "a" } } },
            "policy": { "enforcer": "Seccomp", "mode": "AlwaysAllow" } } });
    installed.apply(&policy).expect("the policy is right");
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": "shop", "namespace": "demo", "labels": { "tier": "a" } },
        "spec": { "selector": { "matchLabels": { "of": "shop" } }, "template": {
            "metadata": { "labels": { "of": "shop" } }, "spec": { "containers": [{ "name": "app", "image": "x" }] } } } });
    // The policy comes into force some time after it was written.
    until(|| match installed.try_create(&deployment) {
        Ok(made) if made["spec"]["template"]["metadata"]["annotations"].is_object() => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .expect("the workload is marked");
    installed.apply(&deployment).expect("it is a workload");
    let made = until(|| match pods(installed, "demo")?.as_slice() {
        [(_, annotations)] => Ok(annotations.clone()),
        other => Err(format!("{other:?} {}", read(log))),
    });
    // The label of the target is the workload's alone: only the mark leads from the pod to the policy.
    let expected = json!({ "profile.tollgate.dev/varmor-demo-shop": "target" });
    assert_eq!(made.expect("the pod is made"), expected);
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}
