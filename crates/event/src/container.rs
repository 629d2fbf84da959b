//! The container of a process, and the certainty of that knowledge.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a process runs in a container. `Unknown` never prunes a rule: it satisfies `container.id != host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containment {
    /// Proven to be on the host: initial pid and cgroup namespaces and no container cgroup.
    Host,
    /// The process is in the container that [`Container::id`] names.
    Known,
    /// Neither can be proven.
    Unknown,
}

/// Facts about a process's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// Certainty of the containment.
    pub containment: Containment,
    /// Short id (12 characters) as Falco prints it; `host` on the host; empty if unknown.
    pub id: String,
    /// Full id if known.
    pub full_id: Option<String>,
    /// Container name.
    pub name: Option<String>,
    /// `docker`, `containerd`, `cri-o`, `podman`, `ecs`, `lxc`, ...
    pub runtime: Option<String>,
    /// Image as given (`docker.io/library/nginx:1.25`).
    pub image: Option<String>,
    /// Whether the container is privileged, if known.
    pub privileged: Option<bool>,
    /// Start time in nanoseconds since the epoch.
    pub start_ns: Option<u64>,
    /// Kubernetes pod name, namespace and uid.
    pub pod: Option<(String, String, String)>,
    /// Further facts that the runtime recorded; shared by all processes of the container.
    pub details: Arc<Details>,
    /// Reason why name and image are unknown; `None` if they are known.
    pub undescribed: Option<String>,
}

/// Facts that a runtime recorded about a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Id of the image, without the name of the hash.
    pub image_id: Option<String>,
    /// Digest of the image (`sha256:...`).
    pub image_digest: Option<String>,
    /// Annotations of the container's bundle by key.
    pub annotations: BTreeMap<String, String>,
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// Requested mounts, in the runtime's order.
    pub mounts: Vec<Mount>,
    /// Command of the health check, arguments separated by spaces.
    pub health_check: Option<String>,
    /// Address in the container's network.
    pub ip: Option<String>,
    /// Whether the container shares the host's pid namespace.
    pub host_pid: Option<bool>,
    /// Whether the container shares the host's network.
    pub host_network: Option<bool>,
    /// Whether the container shares the host's IPC namespace.
    pub host_ipc: Option<bool>,
    /// Labels of the container's pod by key.
    pub pod_labels: BTreeMap<String, String>,
    /// Id of the pod's sandbox.
    pub sandbox_id: Option<String>,
    /// Address of the pod.
    pub pod_ip: Option<String>,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Path or name outside the container.
    pub source: String,
    /// Path inside the container.
    pub destination: String,
    /// Mode as given (`ro`, `z`), often empty.
    pub mode: String,
    /// Whether the mount is writable.
    pub writable: bool,
    /// Propagation as given (`rprivate`), often empty.
    pub propagation: String,
}

impl Container {
    /// Creates the value for a process on the host.
    pub fn host() -> Self {
        Self {
            containment: Containment::Host,
            id: "host".to_owned(),
            ..Self::unknown()
        }
    }

    /// Creates the value for a process that is neither proven on the host nor in a known container.
    pub fn unknown() -> Self {
        Self {
            containment: Containment::Unknown,
            id: String::new(),
            full_id: None,
            name: None,
            runtime: None,
            image: None,
            privileged: None,
            start_ns: None,
            pod: None,
            details: Arc::default(),
            undescribed: None,
        }
    }
}
