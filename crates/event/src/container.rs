//! Which container a process is in, and how sure that is.

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
        }
    }
}
