//! What runtimes have written down about their containers.
//!
//! All of it is read from files, so nothing waits for a runtime's daemon, and it is there before
//! the container's first program runs: runtimes write it down before they start one.

mod bolt;
mod bundle;
mod containerd;
mod docker;
mod storage;

#[cfg(test)]
pub(crate) use bolt::tests as database;

use std::collections::BTreeMap;
use std::path::Path;

use event::Container;
use serde_json::Value;

use bundle::{Bundle, BundleOrigin};
use process_info::regular;

/// Adds name, image, pod, labels and the like where a runtime's files tell. Missing files are
/// ordinary: most machines have one runtime, and its state may belong to another user. If none
/// tells, the container says so.
pub(super) fn describe(container: &mut Container, root: &Path) {
    let Some(id) = container.full_id.clone() else {
        return;
    };
    // The id becomes part of a path.
    if id.contains(['/', '\0']) || id.starts_with('.') {
        container.undescribed = Some("its id is no name of a file".to_owned());
        return;
    }
    let found = docker::describe(container, root, &id) || by_bundle(container, root, &id);
    container.undescribed = (!found).then(|| {
        let where_from = container.runtime.as_deref().unwrap_or("any runtime");
        format!("no files of {where_from} about it below {}", root.display())
    });
}

/// As [`describe`], for a container whose bundle is known.
pub(super) fn describe_bundle(container: &mut Container, folder: &Path, root: &Path) {
    let Some(id) = container.full_id.clone() else {
        return;
    };
    let bundle = Bundle::open(folder);
    // What is written of docker's containers says more than the bundle.
    let found = docker::describe(container, root, &id) | by_this(container, bundle, root, &id);
    container.undescribed = (!found).then(|| format!("no config.json in {}", folder.display()));
}

fn by_bundle(container: &mut Container, root: &Path, id: &str) -> bool {
    by_this(container, Bundle::find(root, id), root, id)
}

fn by_this(container: &mut Container, bundle: Option<Bundle>, root: &Path, id: &str) -> bool {
    if let Some(bundle) = &bundle {
        bundle.describe(container);
    }
    if let Some(Bundle {
        maker: BundleOrigin::Containerd(namespace),
        ..
    }) = &bundle
    {
        containerd::describe(container, root, namespace, id);
        return true;
    }
    storage::describe(container, root, id) || bundle.is_some()
}

/// Takes a fact over if there is none yet.
fn merge<T>(known: &mut Option<T>, found: Option<T>) {
    if known.is_none() {
        *known = found;
    }
}

/// Pod name, namespace and uid by the keys that kubelet and the CRI runtimes use.
fn pod(labels: &Value) -> Option<(String, String, String)> {
    pod_of(|key| text(&labels[key]))
}

fn pod_of(label: impl Fn(&str) -> Option<String>) -> Option<(String, String, String)> {
    let cri = ["sandbox-name", "sandbox-namespace", "sandbox-uid"]
        .map(|key| label(&format!("io.kubernetes.cri.{key}")));
    let kubelet =
        ["name", "namespace", "uid"].map(|key| label(&format!("io.kubernetes.pod.{key}")));
    [cri, kubelet].into_iter().find_map(|found| match found {
        [Some(name), Some(namespace), Some(uid)] => Some((name, namespace, uid)),
        _ => None,
    })
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let entries = object.as_object().into_iter().flatten();
    let texts = entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

/// Words separated by spaces.
fn joined(words: &[Value]) -> Option<String> {
    let words: Vec<&str> = words.iter().filter_map(Value::as_str).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

fn text(value: &Value) -> Option<String> {
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn read(file: &Path) -> Option<Value> {
    // What is not there, not readable or not JSON is no state of this runtime; others are asked.
    let bytes = regular::contents(file).ok()??;
    serde_json::from_slice(&bytes).ok()
}
