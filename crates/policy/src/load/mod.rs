//! Loader of policy files.
//!
//! A file contains vArmor resources (`VarmorPolicy`, `VarmorClusterPolicy`), or only their `policy:` section
//! for use without Kubernetes. An unknown key is an error.

mod allow_profile;
mod body;
mod network;
#[cfg(test)]
mod peer_tests;
mod proxy;
mod raw;
mod reader;
mod recorded;
mod syscalls;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use yaml::{Kind, Location, Node};

use self::reader::{Fields, Reader};
use crate::diagnostic::{Code, Diagnostic};
use crate::policy::Policy;

const API_VERSION: &str = "crd.varmor.org/v1beta1";
const KINDS: [&str; 2] = ["VarmorPolicy", "VarmorClusterPolicy"];
const WORKLOADS: [&str; 4] = ["Deployment", "StatefulSet", "DaemonSet", "Pod"];

/// Loads the policies of a file with the content `text`, and reports all problems.
///
/// ```
/// let text = "policy:\n  enforcer: Seccomp\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
///     hardeningRules: [disallow-insmood]\n";
/// let (_, problems) = policy::load("p.yaml", text);
/// assert_eq!(problems[0].to_string(),
///     "p.yaml:5:22: error[POLICY_UNKNOWN_RULE]: no such rule: `disallow-insmood`");
/// assert_eq!(problems[0].help.as_deref(), Some("did you mean `disallow-insmod`?"));
/// ```
#[must_use]
pub fn load(file: &str, text: &str) -> (Vec<Policy>, Vec<Diagnostic>) {
    let name: Arc<str> = file.into();
    let (documents, error) = yaml::read(&name, text);
    let mut reader = Reader::default();
    let mut policies = Vec::new();
    let documents = documents.iter().filter(|document| !document.is_null());
    let (models, documents): (Vec<_>, Vec<_>) =
        documents.partition(|document| kind_of(document).as_deref() == Some(recorded::KIND));
    for document in models {
        let model = recorded::read(&mut reader, document, stem(file));
        reader.models.extend(model);
    }
    for document in documents {
        policies.extend(read_document(&mut reader, document, stem(file)));
    }
    let mut diagnostics = reader.diagnostics;
    if let Some(problem) = error {
        let problem = Diagnostic::new(Code::YamlParse, problem.location, problem.message);
        diagnostics.push(problem);
    } else if policies.is_empty() && diagnostics.is_empty() {
        let location = Location {
            file: name,
            line: 1,
            column: 1,
        };
        let problem = Diagnostic::new(Code::Shape, location, "the file has no policy");
        let help = "begin with `policy:`, or with a VarmorPolicy; an ArmorProfileModel needs one that uses it";
        diagnostics.push(problem.with_help(help));
    }
    diagnostics.sort_by_key(|problem| (problem.location.line, problem.location.column));
    (policies, diagnostics)
}

/// The diagnostic for a file that the caller could not read.
#[must_use]
pub fn unreadable(file: &str, cause: &str) -> Diagnostic {
    let location = Location {
        file: file.into(),
        line: 0,
        column: 0,
    };
    Diagnostic::new(
        Code::FileRead,
        location,
        format!("cannot read the file: {cause}"),
    )
}

/// The default name of a policy: the stem of its file name.
fn stem(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".yaml")
        .or_else(|| name.strip_suffix(".yml"))
        .unwrap_or(name)
}

fn read_document(reader: &mut Reader, node: &Node, file_name: &str) -> Option<Policy> {
    let has = |key: &str| match &node.kind {
        Kind::Mapping(pairs) => pairs
            .iter()
            .any(|(name, _)| name.scalar().is_some_and(|name| name.text() == key)),
        _ => false,
    };
    if has("policy") && !has("spec") {
        let spec = reader.fields(node, "the file", &SPEC_FIELDS);
        return read_spec(reader, &spec, file_name);
    }
    if is_of_others(node) {
        return None;
    }
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    let root = reader.fields(node, "the file", &known);
    if let Some(found) = root.find("apiVersion") {
        let version = reader.text(found, "apiVersion");
        if let Some(other) = version.filter(|version| *version != API_VERSION) {
            reader.unknown_value(&found.location, "apiVersion", other, &[API_VERSION]);
        }
    }
    if let Some(found) = reader.required(&root, "the file", "kind") {
        let kind = reader.text(found, "kind");
        if let Some(other) = kind.filter(|kind| !KINDS.contains(kind)) {
            reader.unknown_value(&found.location, "kind", other, &KINDS);
        }
    }
    let name = metadata_name(root.find("metadata")).unwrap_or(file_name);
    let spec = reader.required(&root, "the file", "spec")?;
    let spec = reader.fields(spec, "spec", &SPEC_FIELDS);
    read_spec(reader, &spec, name)
}

/// The kind of a Kubernetes resource.
fn kind_of(node: &Node) -> Option<String> {
    let Kind::Mapping(pairs) = &node.kind else {
        return None;
    };
    let is_kind = |key: &Node| key.scalar().is_some_and(|key| key.text() == "kind");
    let (_, kind) = pairs.iter().find(|(key, _)| is_kind(key))?;
    Some(kind.scalar()?.text().to_owned())
}

/// Returns true for a Kubernetes resource that is no policy, such as the workload in the same file.
fn is_of_others(node: &Node) -> bool {
    let Kind::Mapping(pairs) = &node.kind else {
        return false;
    };
    let value = |wanted: &str| {
        let is_wanted = |key: &Node| key.scalar().is_some_and(|key| key.text() == wanted);
        let (_, value) = pairs.iter().find(|(key, _)| is_wanted(key))?;
        Some(value.scalar()?.text().to_lowercase())
    };
    match (value("apiVersion"), value("kind")) {
        (Some(version), Some(kind)) => !version.contains("varmor") && !kind.contains("policy"),
        _ => false,
    }
}

const SPEC_FIELDS: [&str; 3] = ["target", "policy", "updateExistingWorkloads"];

/// Reads `metadata.name`; the other keys belong to Kubernetes.
fn metadata_name(metadata: Option<&Node>) -> Option<&str> {
    let Kind::Mapping(pairs) = &metadata?.kind else {
        return None;
    };
    let is_name = |key: &Node| key.scalar().is_some_and(|key| key.text() == "name");
    let (_, name) = pairs.iter().find(|(key, _)| is_name(key))?;
    Some(name.scalar()?.text())
}

fn read_spec(reader: &mut Reader, spec: &Fields<'_>, name: &str) -> Option<Policy> {
    if let Some(target) = spec.find("target") {
        check_target(reader, target);
    }
    reader.switch(spec, "updateExistingWorkloads");
    let policy = reader.required(spec, "spec", "policy")?;
    body::read(reader, policy, name)
}

/// Checks the selector by which Kubernetes chooses workloads. Here the command line chooses the workload.
fn check_target(reader: &mut Reader, node: &Node) {
    let target = reader.fields(node, "target", &["kind", "name", "selector", "containers"]);
    if let Some(found) = reader.required(&target, "target", "kind") {
        let kind = reader.text(found, "kind");
        if let Some(other) = kind.filter(|kind| !WORKLOADS.contains(kind)) {
            reader.unknown_value(&found.location, "kind", other, &WORKLOADS);
        }
    }
    if target.find("name").is_some() == target.find("selector").is_some() {
        let message = "`target` needs one of `name` and `selector`, and not both";
        reader.problem(Code::Contradiction, &target.location, message);
    }
    reader.text_of(&target, "name");
    reader.words_of(&target, "containers");
    if let Some(selector) = target.find("selector") {
        network::read_labels(reader, selector, "selector");
    }
}
