//! What the container runtime says of pods and containers, as the engine wants it.

use container::registry::ContainerFacts;
use nri::message::{Container, PodSandbox};

/// Facts of a pod, which hold for its sandbox.
pub(crate) fn of_pod(pod: &PodSandbox) -> ContainerFacts {
    let labels = pod.labels.iter();
    ContainerFacts {
        pod: Some((pod.name.clone(), pod.namespace.clone(), pod.uid.clone())),
        pod_ip: pod.ips.first().cloned(),
        pod_labels: labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        sandbox_id: Some(pod.id.clone()),
        ..ContainerFacts::default()
    }
}

/// Facts of a container, those of its pod among them.
pub(crate) fn of_container(pod: &PodSandbox, container: &Container) -> ContainerFacts {
    let labels = container.labels.iter();
    ContainerFacts {
        name: Some(container.name.clone()).filter(|name| !name.is_empty()),
        image: image(container),
        image_digest: container
            .image
            .as_ref()
            .map(|image| image.digest.clone())
            .filter(|digest| !digest.is_empty()),
        labels: labels
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        ..of_pod(pod)
    }
}

/// Name of the image of a container.
pub(crate) fn image(container: &Container) -> Option<String> {
    // Runtimes before containerd 2.4 name the image only in an annotation of theirs.
    let annotation = |key: &str| container.annotations.get(key).cloned();
    let image = container.image.as_ref();
    let name = image.map(|image| image.name.clone());
    let name = name
        .or_else(|| annotation("io.kubernetes.cri.image-name"))
        .or_else(|| annotation("io.kubernetes.cri-o.ImageName"));
    name.filter(|name| !name.is_empty())
}
