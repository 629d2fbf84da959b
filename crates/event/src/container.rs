//! Which container a process is in, and how sure that is.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Whether a process runs in a container. Unknown never prunes a rule: it satisfies
/// `container.id != host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containment {
    /// Proven to be on the host: initial pid and cgroup namespaces and no container cgroup.
    Host,
    /// In the container that [`Container::id`] names.
    Known,
    /// Not provable either way.
    Unknown,
}

/// What is known of a process's container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Container {
    /// How sure.
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
    /// Whether it runs with all privileges, if that can be told.
    pub privileged: Option<bool>,
    /// Start time in nanoseconds since the epoch.
    pub start_ns: Option<u64>,
    /// Kubernetes pod name, namespace and uid.
    pub pod: Option<(String, String, String)>,
    /// What else its runtime has written down; shared by all that look.
    pub details: Arc<Details>,
    /// Why name and image are not known, if they are not.
    pub undescribed: Option<String>,
}

/// What a runtime has written down about a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Id of the image, without the name of the hash.
    pub image_id: Option<String>,
    /// Digest of the image (`sha256:...`).
    pub image_digest: Option<String>,
    /// Annotations of its bundle by key.
    pub annotations: BTreeMap<String, String>,
    /// Labels by key.
    pub labels: BTreeMap<String, String>,
    /// Mounts that were asked for, in the runtime's order.
    pub mounts: Vec<Mount>,
    /// Command of the health check, arguments separated by spaces.
    pub health_check: Option<String>,
    /// Address in its network.
    pub ip: Option<String>,
    /// Whether it shares the host's pid namespace.
    pub host_pid: Option<bool>,
    /// Whether it shares the host's network.
    pub host_network: Option<bool>,
    /// Whether it shares the host's IPC namespace.
    pub host_ipc: Option<bool>,
    /// Labels of its pod by key.
    pub pod_labels: BTreeMap<String, String>,
    /// Id of the sandbox of its pod.
    pub sandbox_id: Option<String>,
}

/// A mount of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Path or name outside.
    pub source: String,
    /// Path inside.
    pub destination: String,
    /// Mode as given (`ro`, `z`), often empty.
    pub mode: String,
    /// Whether it may be written.
    pub writable: bool,
    /// Propagation as given (`rprivate`), often empty.
    pub propagation: String,
}

impl Container {
    /// The host.
    pub fn host() -> Self {
        Self {
            containment: Containment::Host,
            id: "host".to_owned(),
            ..Self::unknown()
        }
    }

    /// Neither proven host nor a known container.
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
