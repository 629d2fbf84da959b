//! What runtimes have written down about their containers.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use event::Container;
use serde_json::Value;

/// How much of one file is read.
const FILE_LIMIT: u64 = 4 * 1024 * 1024;

/// Adds name, image, pod and privilege where a runtime's files tell. Missing files are ordinary:
/// most machines have one runtime, and its state may belong to another user.
pub(super) fn describe(container: &mut Container, root: &Path) {
    let Some(id) = container.full_id.clone() else {
        return;
    };
    // The id becomes part of a path.
    if id.contains(['/', '\0']) || id.starts_with('.') {
        return;
    }
    let _found = docker(container, root, &id)
        || oci_bundle(container, root, &id)
        || containers_storage(container, root, &id);
}

fn docker(container: &mut Container, root: &Path, id: &str) -> bool {
    let directory = root.join("var/lib/docker/containers").join(id);
    let Some(config) = read(&directory.join("config.v2.json")) else {
        return false;
    };
    container.runtime = Some("docker".to_owned());
    let name = text(&config["Name"]).map(|name| name.trim_start_matches('/').to_owned());
    container.name = name.or(container.name.take());
    container.image = text(&config["Config"]["Image"]).or(container.image.take());
    container.pod = pod(&config["Config"]["Labels"]).or(container.pod.take());
    if let Some(host) = read(&directory.join("hostconfig.json")) {
        container.privileged = host["Privileged"].as_bool();
    }
    true
}

/// Where containerd's shim and the containers/storage family keep the OCI bundle.
fn bundles(root: &Path, id: &str) -> Vec<(PathBuf, &'static str)> {
    let mut found = Vec::new();
    let tasks = root.join("run/containerd/io.containerd.runtime.v2.task");
    // One directory a namespace: k8s.io, default, moby.
    for namespace in std::fs::read_dir(&tasks)
        .into_iter()
        .flatten()
        .flatten()
        .take(64)
    {
        found.push((namespace.path().join(id), "containerd"));
    }
    for storage in ["run/containers/storage", "var/lib/containers/storage"] {
        let userdata = root
            .join(storage)
            .join("overlay-containers")
            .join(id)
            .join("userdata");
        found.push((userdata, "podman"));
    }
    found
}

fn oci_bundle(container: &mut Container, root: &Path, id: &str) -> bool {
    for (bundle, runtime) in bundles(root, id) {
        let Some(spec) = read(&bundle.join("config.json")) else {
            continue;
        };
        let annotations = &spec["annotations"];
        if container.runtime.is_none() {
            container.runtime = Some(runtime.to_owned());
        }
        let first = |names: &[&str]| names.iter().find_map(|name| text(&annotations[*name]));
        container.name = first(&[
            "io.kubernetes.cri.container-name",
            "io.kubernetes.container.name",
        ]);
        container.image = first(&[
            "io.kubernetes.cri.image-name",
            "io.kubernetes.cri-o.ImageName",
        ]);
        container.pod = pod(annotations);
        // Podman's name and image are elsewhere.
        return container.name.is_some();
    }
    false
}

/// Podman and CRI-O list names and images in one file.
fn containers_storage(container: &mut Container, root: &Path, id: &str) -> bool {
    for storage in ["var/lib/containers/storage", "run/containers/storage"] {
        let list = root
            .join(storage)
            .join("overlay-containers/containers.json");
        let Some(Value::Array(entries)) = read(&list) else {
            continue;
        };
        let Some(entry) = entries.iter().find(|entry| entry["id"] == id) else {
            continue;
        };
        container.name = text(&entry["names"][0]);
        let metadata = entry["metadata"]
            .as_str()
            .and_then(|text| serde_json::from_str(text).ok());
        let metadata: Value = metadata.unwrap_or(Value::Null);
        container.image = text(&metadata["image-name"]);
        return true;
    }
    false
}

/// Pod name, namespace and uid by the keys that kubelet and the CRI runtimes use.
fn pod(labels: &Value) -> Option<(String, String, String)> {
    let cri = ["sandbox-name", "sandbox-namespace", "sandbox-uid"]
        .map(|key| text(&labels[format!("io.kubernetes.cri.{key}")]));
    let kubelet =
        ["name", "namespace", "uid"].map(|key| text(&labels[format!("io.kubernetes.pod.{key}")]));
    [cri, kubelet].into_iter().find_map(|found| match found {
        [Some(name), Some(namespace), Some(uid)] => Some((name, namespace, uid)),
        _ => None,
    })
}

fn text(value: &Value) -> Option<String> {
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn read(file: &Path) -> Option<Value> {
    let mut bytes = Vec::new();
    File::open(file)
        .ok()?
        .take(FILE_LIMIT)
        .read_to_end(&mut bytes)
        .ok()?;
    serde_json::from_slice(&bytes).ok()
}
