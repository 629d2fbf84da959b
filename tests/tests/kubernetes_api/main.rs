//! What `tollgate-operator manifests` prints, the operator and the agent, with a real API server.
//!
//! `tests/cluster/build` builds Kubernetes and containerd into the cache.

mod installed;
mod marks;
mod policies;
mod programs;

use std::fs;
use std::path::Path;
use std::process::Command;

use apiserver::real::{Running, until};
use e2e::{need_api_server, need_built};
use installed::{Installed, installation, text};
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

#[test]
fn each_object_of_the_manifests_is_taken_strictly_and_a_second_time_changes_nothing() {
    let programs = need_api_server!();
    let installed = Installed::start(&programs);
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
    a_field_that_no_kind_has_is_refused(&installed);
    each_text_arrives_as_it_is(&installed);
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

#[test]
fn expressions_of_admission_fit_the_kinds_that_they_are_about() {
    need_built!("kube-controller-manager");
    let programs = need_api_server!();
    let installed = Installed::start(&programs);
    let config = installed.kubeconfig("kcm", &installed.folder().join("token"));
    let manager = e2e::cluster::built("kube-controller-manager").expect("the test asked for it");
    let mut manager = Command::new(manager);
    manager.arg("--kubeconfig").arg(config).args([
        "--controllers=validatingadmissionpolicy-status-controller",
        "--leader-elect=false",
        "--secure-port=0",
    ]);
    let log = installed.folder().join("kcm.log");
    let _manager = Running::start(manager, &log).expect("it was built");
    let policies = manifests::all(&installation()).into_iter();
    let policies = policies.filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    let mut count = 0;
    for policy in policies {
        let status = until(|| {
            let found = installed.get(&policy).map_err(|error| error.to_string())?;
            let status = found["status"].clone();
            match status["observedGeneration"] == found["metadata"]["generation"] {
                true => Ok(status),
                false => Err(format!("{found} {}", read(&log))),
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

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.to_string())
}
