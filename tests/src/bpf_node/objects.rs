//! Pods, policies and files of a node whose kernel confines containers.

use std::fs;
use std::process::Output;

use kinds::annotations::{HASH, INSTALLATION, TARGET};
use nri::message::PodSandbox;
use serde_json::{Value, json};

use super::{OTHER, SECRET};

/// The pod of this name.
#[must_use]
pub fn pod(name: &str) -> PodSandbox {
    PodSandbox {
        id: format!("{name:0<64}"),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        namespace: "demo".to_owned(),
        ..PodSandbox::default()
    }
}

/// A policy that denies reading these files. With `is_reported`, the kernel reports what it denies.
#[must_use]
pub fn policy(files: &[&str], is_reported: bool) -> String {
    let rule =
        |file: &&str| json!({ "pattern": file, "permissions": ["read"], "qualifiers": ["deny"] });
    let files: Vec<Value> = files.iter().map(rule).collect();
    policy_of(
        &json!({ "privileged": true, "auditViolations": is_reported, "bpfRawRules": { "files": files } }),
    )
}

/// A policy of the mode `EnhanceProtect` for BPF.
#[must_use]
pub fn policy_of(enhanced: &Value) -> String {
    let policy = json!({ "policy": {
        "enforcer": "BPF", "mode": "EnhanceProtect", "enhanceProtect": enhanced } });
    policy.to_string()
}

/// The profile of a policy for the pod of this name.
pub(super) fn profile(pod: &str, policy: &str) -> Value {
    let target = json!({ "kind": "Pod", "name": pod });
    let hash = kinds::policy_hash(policy);
    let name = format!("varmor-demo-{pod}");
    json!({
        "apiVersion": "crd.varmor.org/v1beta1", "kind": "ArmorProfile",
        "metadata": {
            "name": name, "namespace": "demo", "uid": format!("u-{pod}"), "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": { HASH: hash, TARGET: target.to_string(), INSTALLATION: "tollgate" },
            "ownerReferences": [{
                "apiVersion": "crd.varmor.org/v1beta1", "kind": "VarmorPolicy", "name": pod, "uid": "u2",
                "controller": true }],
        },
        "spec": { "target": target, "updateExistingWorkloads": false,
            "behaviorModeling": { "enable": false, "duration": 0 }, "profile": {
            "name": name, "enforcer": "BPF", "mode": "enforce", "hash": hash, "policy": policy } },
    })
}

/// A program that reads the secret.
pub const READ: [&str; 2] = ["cat", SECRET];

/// A program fails with EPERM, and does what the policy allows.
///
/// # Panics
/// If not.
pub fn is_confined(run: impl Fn(&[&str]) -> Output, what: &str) {
    let denied = run(&READ);
    let said = String::from_utf8_lossy(&denied.stderr);
    assert!(
        said.contains("Operation not permitted"),
        "{what}: {denied:?}"
    );
    assert!(denied.stdout.is_empty(), "{what}: {denied:?}");
    let allowed = run(&["cat", OTHER]);
    assert_eq!(allowed.stdout, b"other\n", "{what}: {allowed:?}");
}

/// Writes the files.
///
/// # Panics
/// If they cannot be written.
pub fn write_files() {
    fs::write(SECRET, "secret\n").expect("the root is writable");
    fs::write(OTHER, "other\n").expect("the root is writable");
}

/// What was measured in the machine: the rest of each line after the word `sample`. The first one is in the line of the test's name.
pub fn samples(printed: &str) -> impl Iterator<Item = &str> {
    let lines = printed.lines();
    lines.filter_map(|line| line.split_once("sample\t").map(|(_, sample)| sample))
}
