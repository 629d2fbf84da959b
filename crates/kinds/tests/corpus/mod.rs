//! Reads the manifests of this folder's neighbour `manifests`, and says what is wrong with each without an API server.
//!
//! Each manifest begins with comments: `shape`, what it is an example of; `server`, `taken` or `refused TEXT`, what an API server
//! says of it under strict validation; `loads`, `yes`, `no TEXT`, or `-` where no policy is.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kinds::validate::{self, Installation};
use kinds::{PolicyObject, compile, crd};
use serde_json::{Map, Value, json};
use yaml::{Kind, Node};

/// What is said of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Taken,
    /// The message has this text.
    Refused(String),
    /// The question is about policies, and it is none.
    None,
}

impl Verdict {
    fn of(text: &str) -> Self {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("taken" | "yes", "") => Self::Taken,
            ("refused" | "no", why) if !why.is_empty() => Self::Refused(why.to_owned()),
            ("-", "") => Self::None,
            _ => panic!("no verdict: {text}"),
        }
    }

    /// Why messages are not as the verdict says.
    pub(crate) fn difference(&self, what: &str, messages: &[String]) -> Option<String> {
        let is_right = match self {
            Self::Taken => messages.is_empty(),
            Self::Refused(why) => messages.iter().any(|one| one.contains(why.as_str())),
            Self::None => true,
        };
        (!is_right).then(|| format!("{what} is not {self:?}: {messages:?}"))
    }
}

/// A manifest.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) server: Verdict,
    pub(crate) loads: Verdict,
    pub(crate) object: Value,
}

/// All manifests, by the folder of crate `kinds`.
pub(crate) fn read(kinds: &Path) -> Vec<Manifest> {
    let folder = fs::read_dir(kinds.join("tests/manifests")).expect("it is in the repository");
    let mut files: Vec<PathBuf> = folder
        .map(|file| file.expect("it is there").path())
        .collect();
    files.sort();
    files.iter().map(|path| manifest(path)).collect()
}

fn manifest(path: &Path) -> Manifest {
    let text = fs::read_to_string(path).expect("it is text");
    let name = path.display().to_string();
    let (nodes, problem) = yaml::read(&Arc::from(name.as_str()), &text);
    assert_eq!(problem, None, "{name}");
    let said = |key: &str| {
        let begin = format!("# {key}: ");
        let mut lines = text.lines().take(3);
        let line = lines.find_map(|line| line.strip_prefix(&begin));
        line.unwrap_or_else(|| panic!("{name} has no {key}"))
            .to_owned()
    };
    assert!(!said("shape").is_empty(), "{name}");
    Manifest {
        server: Verdict::of(&said("server")),
        loads: Verdict::of(&said("loads")),
        object: json(&nodes[0]),
        name,
    }
}

/// A value as JSON. The manifests have no text that looks like a number or a boolean.
fn json(node: &Node) -> Value {
    match &node.kind {
        Kind::Null => Value::Null,
        Kind::Scalar(text) => match (text.text(), text.text().parse::<i64>()) {
            ("true" | "false", _) => json!(text.text() == "true"),
            (_, Ok(number)) => json!(number),
            (text, Err(_)) => json!(text),
        },
        Kind::Sequence(items) => items.iter().map(json).collect(),
        Kind::Mapping(pairs) => {
            let pairs = pairs.iter().map(|(key, value)| {
                let key = key.scalar().expect("keys are texts");
                (key.text().to_owned(), json(value))
            });
            Value::Object(pairs.collect())
        }
    }
}

/// The schema of a kind.
pub(crate) fn schema(kind: &str) -> Value {
    let crds = crd::all();
    let found = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == kind);
    let crd = found.unwrap_or_else(|| panic!("no kind {kind}"));
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
}

/// What an API server would refuse: fields that there are not, that are missing or have another type, and what
/// [`kinds::validate`] finds.
pub(crate) fn refusals(object: &Value, installation: Installation<'_>) -> Vec<String> {
    let kind = object["kind"].as_str().expect("it has a kind");
    let mut found = Vec::new();
    let mut schema = schema(kind);
    // Any metadata is taken here.
    schema["properties"]["metadata"] = json!({ "x-kubernetes-preserve-unknown-fields": true });
    structure(&schema, object, "", &mut found);
    if found.is_empty()
        && let Some(policy) = policy(object)
    {
        let invalid = validate::policy(&policy, None, installation);
        found.extend(invalid.iter().map(ToString::to_string));
    }
    found
}

/// Why a policy cannot be compiled; `None` for an object of another kind.
pub(crate) fn load_problems(object: &Value) -> Option<Vec<String>> {
    let policy = policy(object)?;
    Some(match compile::load(&policy) {
        Ok(_) => Vec::new(),
        Err(error) => error.problems,
    })
}

fn policy(object: &Value) -> Option<PolicyObject> {
    let is_policy = object["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("Policy"));
    is_policy.then(|| serde_json::from_value(object.clone()).expect("its structure is right"))
}

fn structure(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    let is_right = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !is_right {
        return found.push(format!("{path}: is no {}", schema["type"]));
    }
    if let Some(items) = value.as_array() {
        // A schema without the word allows an empty list.
        let least = schema["minItems"].as_u64().unwrap_or_default();
        if (items.len() as u64) < least {
            found.push(format!("{path}: has too few items"));
        }
        for (index, item) in items.iter().enumerate() {
            structure(&schema["items"], item, &format!("{path}[{index}]"), found);
        }
    }
    if let Some(fields) = value.as_object() {
        mapping(schema, fields, path, found);
    }
}

fn mapping(schema: &Value, fields: &Map<String, Value>, path: &str, found: &mut Vec<String>) {
    let at = |key: &str| match path.is_empty() {
        true => key.to_owned(),
        false => format!("{path}.{key}"),
    };
    for key in schema["required"].as_array().into_iter().flatten() {
        let key = key.as_str().expect("keys are texts");
        if !fields.contains_key(key) {
            found.push(format!("{}: is missing", at(key)));
        }
    }
    for (key, value) in fields {
        let of_all = schema.get("additionalProperties");
        match schema["properties"].get(key).or(of_all) {
            Some(schema) => structure(schema, value, &at(key), found),
            None => found.push(format!("unknown field {}", at(key))),
        }
    }
}
