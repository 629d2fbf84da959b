//! What is kept of a container to say what it was: as little as that needs, because containers that have ended are kept, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::ObjectKey;
use nri::message::{Container, PodSandbox};

use crate::facts::image;
use crate::pod_events::PodRef;
use crate::workload::{Workload, workload};

/// Names of a container and of its pod.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) id: String,
    /// Name of the container in its pod.
    pub(crate) name: String,
    pub(crate) image: Option<String>,
    pub(crate) pod: PodRef,
    /// Labels of the pod.
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) workload: Option<Workload>,
}

impl Names {
    pub(crate) fn of(pod: &PodSandbox, container: &Container) -> Self {
        let labels = pod.labels.iter();
        Self {
            id: container.id.clone(),
            name: container.name.clone(),
            image: image(container),
            pod: PodRef::of(pod),
            labels: labels
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            workload: workload(pod),
        }
    }
}

/// What the agent knows of a container.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) names: Arc<Names>,
    /// The profile by which it was confined.
    pub(crate) profile: Option<ObjectKey>,
    /// Kind and name of the policy.
    pub(crate) policy: Option<(String, String)>,
}
