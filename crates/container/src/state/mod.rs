//! Readers of the state that runtimes keep on their containers.
//!
//! All state is read from files, so nothing waits for a runtime's daemon. The state exists before the
//! container's first program runs: runtimes write it before they start a container.

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

/// Adds name, image, pod, labels and similar facts from a runtime's files. Missing files are normal: most
/// hosts have one runtime, and its state may belong to another user. If no file has any facts, the container
/// is marked as undescribed.
pub(super) fn describe(container: &mut Container, root: &Path) {
    let Some(id) = container.full_id.clone() else {
        return;
    };
    // The id becomes part of a path.
    if id.contains(['/', '\0']) || id.starts_with('.') {
        container.undescribed = Some("its ID is not a file name".to_owned());
        return;
    }
    let found = docker::describe(container, root, &id) || by_bundle(container, root, &id);
    container.undescribed = (!found).then(|| {
        let where_from = container.runtime.as_deref().unwrap_or("any runtime");
        format!("no files of {where_from} about it below {}", root.display())
    });
}

/// Adds facts as [`describe`] does, for a container with a known bundle.
pub(super) fn describe_bundle(container: &mut Container, folder: &Path, root: &Path) {
    let Some(id) = container.full_id.clone() else {
        return;
    };
    let bundle = Bundle::open(folder);
    // Docker's own state has more facts than the bundle.
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
    let own = match bundle.as_ref().map(|bundle| &bundle.maker) {
        Some(BundleOrigin::Containerd { namespace, data }) => {
            let usual = root.join(containerd::DATA);
            let data = data.as_deref().unwrap_or(&usual);
            containerd::describe(container, data, namespace, id);
            return true;
        }
        Some(BundleOrigin::ContainersStorage(storage)) => Some(storage),
        Some(BundleOrigin::Other) | None => None,
    };
    storage::describe(container, own, root, id) || bundle.is_some()
}

/// Sets a fact that is not known yet.
fn merge<T>(known: &mut Option<T>, found: Option<T>) {
    if known.is_none() {
        *known = found;
    }
}

/// Name, namespace and uid of the pod, by the label keys of kubelet and the CRI runtimes.
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

/// Joins words with spaces.
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
    // A file that is missing, unreadable or not JSON is no state of this runtime; other runtimes are tried.
    let bytes = regular::contents(file).ok()??;
    serde_json::from_slice(&bytes).ok()
}
