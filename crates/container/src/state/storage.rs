//! Reader of the state of podman and CRI-O outside of the bundle: the lists of containers/storage and
//! podman's database.

use std::path::Path;
use std::sync::Arc;

use event::Container;
use serde_json::Value;

use super::bolt::Database;
use super::bundle::Storage;
use super::{joined, labels, merge, pod, read, text};

/// The system's storages, in search order.
fn storages(root: &Path) -> [Storage; 2] {
    ["var/lib/containers/storage", "run/containers/storage"]
        .map(|storage| Storage::overlay(root.join(storage)))
}

/// Adds the facts in the lists and the database of the storage in which the bundle lies, else of the system's.
/// Returns false if there are none.
pub(super) fn describe(
    container: &mut Container,
    own: Option<&Storage>,
    root: &Path,
    id: &str,
) -> bool {
    let mut found = false;
    for storage in own.cloned().into_iter().chain(storages(root)) {
        if let Some(entry) = entry(&storage.part("containers").join("containers.json"), id) {
            found = true;
            listed(container, &storage, &entry);
        }
        if let Some(config) = libpod(&storage.folder, id) {
            found = true;
            merge(&mut container.runtime, Some("podman".to_owned()));
            configured(container, &config);
        }
    }
    found
}

fn listed(container: &mut Container, storage: &Storage, entry: &Value) {
    merge(&mut container.name, text(&entry["names"][0]));
    let metadata = entry["metadata"].as_str();
    let metadata: Option<Value> = metadata.and_then(|text| serde_json::from_str(text).ok());
    let metadata = metadata.unwrap_or(Value::Null);
    merge(&mut container.image, text(&metadata["image-name"]));
    let details = Arc::make_mut(&mut container.details);
    let image_id = text(&entry["image"]);
    if let Some(id) = &image_id
        && let Some(image) = self::entry(&storage.part("images").join("images.json"), id)
    {
        merge(&mut details.image_digest, text(&image["digest"]));
    }
    merge(&mut details.image_id, image_id);
}

/// Podman's configuration of the container. Versions before 4.8, and later ones after an upgrade, keep it in
/// a bbolt file.
fn libpod(storage: &Path, id: &str) -> Option<Value> {
    let database = Database::open(&storage.join("libpod/bolt_state.db"))?;
    let config = database.read(|top| top.bucket(&[b"ctr", id.as_bytes()])?.value(b"config"))?;
    serde_json::from_slice(&config).ok()
}

fn configured(container: &mut Container, config: &Value) {
    merge(&mut container.name, text(&config["name"]));
    merge(&mut container.image, text(&config["rootfsImageName"]));
    merge(&mut container.pod, pod(&config["labels"]));
    if let Some(privileged) = config["privileged"].as_bool() {
        container.privileged = Some(privileged);
    }
    let details = Arc::make_mut(&mut container.details);
    details.labels.extend(labels(&config["labels"]));
    let test = config["healthcheck"]["Test"].as_array();
    let words = test
        .and_then(|test| test.split_first())
        .map(|(_, words)| words);
    merge(&mut details.health_check, words.and_then(joined));
}

fn entry(list: &Path, id: &str) -> Option<Value> {
    let Value::Array(entries) = read(list)? else {
        return None;
    };
    entries.into_iter().find(|entry| entry["id"] == id)
}
