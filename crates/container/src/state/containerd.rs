//! Reader of containerd's database: images and labels of containers.

use std::path::Path;
use std::sync::Arc;

use event::Container;

use super::bolt::{Bucket, Database};
use super::{merge, pod_of};

/// Usual folder of containerd's data.
pub(super) const DATA: &str = "var/lib/containerd";
const FILE: &str = "io.containerd.metadata.v1.bolt/meta.db";
/// Label of the CRI plugin's containers with their kind: container or sandbox.
const KIND: &str = "io.cri-containerd.kind";
const CRI_NAME: &str = "io.kubernetes.container.name";

/// Adds the facts of the database in a folder of data on a container in one of its namespaces.
pub(super) fn describe(container: &mut Container, data: &Path, namespace: &str, id: &str) {
    let Some(database) = Database::open(&data.join(FILE)) else {
        return;
    };
    let sandbox = container.details.sandbox_id.clone();
    let found = database.read(|top| {
        let namespace = top.bucket(&[b"v1", namespace.as_bytes()])?;
        Some(Record::of(&namespace, id, sandbox.as_deref()))
    });
    let Some(record) = found else {
        return;
    };
    let is_cri = record.labels.iter().any(|(key, _)| key == KIND);
    let label = |wanted: &str| {
        let mut labels = record.labels.iter();
        labels.find_map(|(key, value)| (key == wanted).then(|| value.clone()))
    };
    // `nerdctl` names its containers; for other containers the id is the name.
    let name = label(CRI_NAME).or_else(|| label("nerdctl/name"));
    merge(
        &mut container.name,
        name.or_else(|| (!is_cri).then(|| id.to_owned())),
    );
    merge(&mut container.image, record.image);
    merge(&mut container.pod, pod_of(|key| label(key)));
    let details = Arc::make_mut(&mut container.details);
    merge(&mut details.image_digest, record.digest);
    merge(&mut details.image_id, record.image_id);
    details.labels.extend(record.labels);
    details.pod_labels.extend(record.pod_labels);
}

struct Record {
    image: Option<String>,
    digest: Option<String>,
    image_id: Option<String>,
    labels: Vec<(String, String)>,
    pod_labels: Vec<(String, String)>,
}

impl Record {
    fn of(namespace: &Bucket<'_>, id: &str, sandbox: Option<&str>) -> Self {
        let container = namespace.bucket(&[b"containers", id.as_bytes()]);
        let labels_of =
            |bucket: &Bucket<'_>| bucket.bucket(&[b"labels"]).map(|labels| labels.texts());
        let image = container
            .as_ref()
            .and_then(|container| container.text(b"image"));
        let target = image
            .as_ref()
            .and_then(|image| namespace.bucket(&[b"images", image.as_bytes(), b"target"]));
        let digest = target.and_then(|target| target.text(b"digest"));
        // An image id is the digest of the configuration that its manifest references.
        let manifest = digest.as_ref().and_then(|digest| {
            namespace.bucket(&[b"content", b"blob", digest.as_bytes(), b"labels"])
        });
        let config =
            manifest.and_then(|labels| labels.text(b"containerd.io/gc.ref.content.config"));
        // The labels of a pod are those of its sandbox.
        let pod = sandbox.and_then(|id| namespace.bucket(&[b"containers", id.as_bytes()]));
        // A container without labels has no bucket of labels.
        Self {
            image,
            digest,
            image_id: config.map(|id| id.trim_start_matches("sha256:").to_owned()),
            labels: container.as_ref().and_then(labels_of).unwrap_or_default(),
            pod_labels: pod.as_ref().and_then(labels_of).unwrap_or_default(),
        }
    }
}
