//! The Helm chart has the objects that the program prints, and takes the values that it can follow.
//!
//! `TOLLGATE_HELM` is the program helm, if it is in no folder of `PATH`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs, io};

use operator::manifests::{self, Installation};
use serde_json::{Value, json};

fn installation(has_all: bool) -> Installation {
    Installation {
        namespace: "chosen".to_owned(),
        image: "registry.example/tollgate:1".to_owned(),
        detect: has_all,
        events: has_all,
        violations: has_all,
        behavior_modeling: has_all,
        update_workloads: has_all,
        bpf: has_all,
        webhook: has_all,
        webhook_exempt: Vec::new(),
        webhook_names: has_all
            .then(|| "webhook.example".to_owned())
            .into_iter()
            .collect(),
    }
}

/// The documents of a stream. Numbers and truth values are texts, which is all that YAML's readers agree about.
fn read(text: &str) -> Vec<Value> {
    let (documents, error) = yaml::read(&"chart".into(), text);
    assert!(error.is_none(), "{error:?}\n{text}");
    let documents = documents.iter().map(from_node);
    documents.filter(|document| document.is_object()).collect()
}

fn from_node(node: &yaml::Node) -> Value {
    match &node.kind {
        yaml::Kind::Mapping(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| {
                let key = key.scalar().expect("keys are texts");
                (key.text().to_owned(), from_node(value))
            });
            Value::Object(pairs.collect())
        }
        yaml::Kind::Sequence(items) => items.iter().map(from_node).collect(),
        _ => json!(node.scalar().map(|scalar| scalar.text().to_owned())),
    }
}

/// Objects by kind and name.
fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let name = |object: &Value| format!("{} {}", object["kind"], object["metadata"]["name"]);
    let count = objects.len();
    let all: BTreeMap<String, Value> = objects
        .into_iter()
        .map(|object| (name(&object), object))
        .collect();
    assert_eq!(all.len(), count, "two objects have one name");
    all
}

/// What the program prints, but for what Helm makes by itself.
fn printed(installation: &Installation) -> BTreeMap<String, Value> {
    let all = manifests::all(installation).into_iter();
    let all =
        all.filter(|one| one["kind"] != "Namespace" && one["kind"] != "CustomResourceDefinition");
    let all: Vec<Value> = all.collect();
    by_name(read(&kinds::yaml_text::stream(&all)))
}

fn assert_same(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) {
    for (name, object) in expected {
        let found = found.get(name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(found, object, "{name}");
    }
    assert_eq!(found.len(), expected.len());
}

/// Does what the templates of the chart need of Helm, which is little.
fn render(template: &str, values: &Value) -> String {
    let mut text = template
        .replace("{{ .Release.Namespace }}", "chosen")
        .replace(
            "{{ .Values.image.reference }}",
            "registry.example/tollgate:1",
        );
    while let Some((before, rest)) = text.split_once("{{ toJson .Values.") {
        let (path, after) = rest.split_once(" }}").expect("it ends");
        let value = values.pointer(&format!("/{}", path.replace('.', "/")));
        let value = value.unwrap_or_else(|| panic!("no value {path}"));
        text = format!("{before}{value}{after}");
    }
    assert!(!text.contains("{{") && !text.contains("@helm"), "{text}");
    text
}

fn file(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).expect("the chart has it")
}

#[test]
fn a_chart_has_the_objects_that_are_printed() {
    for has_all in [false, true] {
        let folder = tempfile::tempdir().expect("there are temporary folders");
        let installation = installation(has_all);
        manifests::write_chart(folder.path(), &installation).expect("it can be written");
        let values = read(&file(folder.path(), "values.yaml")).remove(0);
        let made = render(&file(folder.path(), "templates/tollgate.yaml"), &values);
        assert_same(&by_name(read(&made)), &printed(&installation));
        assert_eq!(read(&file(folder.path(), "crds/tollgate.yaml")).len(), 7);
        let version = read(&file(folder.path(), "Chart.yaml"))[0]["kubeVersion"].clone();
        assert_eq!(version, if has_all { ">=1.30.0-0" } else { ">=1.36.0-0" });
        // No value is without a type, and no other name is taken.
        let schema: Value =
            serde_json::from_str(&file(folder.path(), "values.schema.json")).expect("it is JSON");
        let names = |value: &Value| -> Vec<String> {
            let fields = value.as_object().expect("it is an object");
            fields
                .keys()
                .filter(|key| *key != "global")
                .cloned()
                .collect()
        };
        assert_eq!(names(&schema["properties"]), names(&values));
        assert_eq!(schema["additionalProperties"], false);
        for part in ["agent", "global"] {
            assert_eq!(schema["properties"][part]["additionalProperties"], false);
        }
        let count = &schema["properties"]["manager"]["properties"]["replicaCount"];
        assert_eq!(*count, json!({ "type": "integer", "minimum": 1 }));
        let least = &schema["properties"]["podDisruptionBudget"]["properties"]["minAvailable"];
        assert_eq!(least["type"], json!(["integer", "string"]));
        let checks = file(folder.path(), "templates/checks.yaml");
        assert!(checks.contains("no node with an operator can be drained"));
        let operator = &printed(&installation)["\"Deployment\" \"tollgate-operator\""];
        let command = &operator["spec"]["template"]["spec"]["containers"][0]["command"];
        let words = command.as_array().expect("it is a list");
        let named = words
            .windows(2)
            .any(|two| two == ["--webhook-name", "webhook.example"]);
        assert_eq!(named, has_all);
    }
}

/// Runs helm; skips the test without it.
macro_rules! helm {
    ($folder:expr, $verb:expr, $values:expr) => {
        match helm($folder, $verb, $values) {
            Ok(output) => output,
            Err(error) => testing::skip!("needs helm", || match error.kind() {
                io::ErrorKind::NotFound => Ok("it is in no folder of PATH".to_owned()),
                _ => Err(error.to_string()),
            }),
        }
    };
}

fn helm(folder: &Path, verb: &[&str], values: &[&str]) -> io::Result<Output> {
    let program = env::var_os("TOLLGATE_HELM").unwrap_or_else(|| "helm".into());
    let mut command = Command::new(program);
    command.args(verb).arg(folder);
    command.args(["--namespace", "chosen", "--kube-version", "1.37.0"]);
    for value in values {
        command.args(["--set-json", value]);
    }
    command.env("HOME", folder).output()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn helm_makes_the_objects_that_are_printed_and_refuses_what_it_cannot_follow() {
    let folder = tempfile::tempdir().expect("there are temporary folders");
    let folder = folder.path();
    let template = &["template", "t"];
    for has_all in [false, true] {
        let installation = installation(has_all);
        manifests::write_chart(folder, &installation).expect("it can be written");
        let output = helm!(folder, template, &[]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_same(
            &by_name(read(&text(&output.stdout))),
            &printed(&installation),
        );
    }
    for (value, expected) in [
        ("manager.replicas=3", "replicas"),
        ("image.registry=\"r\"", "registry"),
        ("classifier.replicaCount=1", "classifier"),
        ("manager.replicaCount=\"3\"", "replicaCount"),
        ("manager.replicaCount=0", "replicaCount"),
        ("manager.replicaCount=1", "can be drained"),
        ("podDisruptionBudget.minAvailable=2", "can be drained"),
        ("podDisruptionBudget.minAvailable=\"51%\"", "can be drained"),
        ("podDisruptionBudget.minAvailable=\"half\"", "minAvailable"),
        ("global.imageRegistry=\"r\"", "imageRegistry"),
        ("bpfLsmEnforcer.enabled=false", "without --bpf"),
        (
            "bpfExclusiveMode.enabled=true",
            "leaves AppArmor of pods as it is",
        ),
    ] {
        let output = helm!(folder, template, &[value]);
        let problem = text(&output.stderr);
        assert!(
            !output.status.success() && problem.contains(expected),
            "{value}: {problem}"
        );
    }
}

#[test]
fn helm_puts_values_into_pods_and_says_which_have_no_effect() {
    let folder = tempfile::tempdir().expect("there are temporary folders");
    let folder = folder.path();
    let template = &["template", "t"];
    manifests::write_chart(folder, &installation(true)).expect("it can be written");
    let values = [
        "manager.replicaCount=3",
        "podDisruptionBudget.minAvailable=\"50%\"",
        "agent.tolerations=[{\"key\":\"gpu\",\"operator\":\"Exists\"}]",
        "agent.nodeSelector={\"kubernetes.io/os\":\"linux\"}",
        "manager.resources={\"limits\":{\"memory\":\"256Mi\"}}",
        "imagePullSecrets=[{\"name\":\"pull\"}]",
    ];
    let output = helm!(folder, template, &values);
    let all = by_name(read(&text(&output.stdout)));
    let operator = &all["\"Deployment\" \"tollgate-operator\""]["spec"];
    assert_eq!(operator["replicas"], "3");
    let pod = &operator["template"]["spec"];
    assert_eq!(
        pod["containers"][0]["resources"]["limits"]["memory"],
        "256Mi"
    );
    assert_eq!(pod["imagePullSecrets"][0]["name"], "pull");
    let agent = &all["\"DaemonSet\" \"tollgate-node\""]["spec"]["template"]["spec"];
    assert_eq!(agent["tolerations"][0]["key"], "gpu");
    assert_eq!(agent["nodeSelector"]["kubernetes.io/os"], "linux");
    let install = &["install", "t", "--dry-run=client"];
    let output = helm!(folder, install, &["appArmorLsmEnforcer.enabled=false"]);
    let notes = text(&output.stdout);
    assert!(
        notes.contains("The value appArmorLsmEnforcer.enabled has no effect"),
        "{notes}{}",
        text(&output.stderr)
    );
}
