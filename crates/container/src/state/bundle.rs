//! Reader of OCI bundles: `config.json` in the folder with which a runtime was started, as created by
//! containerd, podman and CRI-O.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use event::{Container, Mount};
use serde_json::Value;

use super::{labels, merge, pod, read, text};

/// Maximum number of containerd namespaces that are searched for an id.
const NAMESPACE_LIMIT: usize = 64;
/// Folder with containerd's bundles, by namespace and id. Its folder of data has one of this name, too.
const TASKS: &str = "io.containerd.runtime.v2.task";

/// A bundle.
#[derive(Debug)]
pub(super) struct Bundle {
    spec: Value,
    /// The creator of the bundle.
    pub(super) maker: BundleOrigin,
}

/// A storage of podman or CRI-O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage {
    /// Its folder (`graphroot`).
    pub(super) folder: PathBuf,
    /// Name of the driver, which is part of the names of folders.
    pub(super) driver: String,
}

impl Storage {
    pub(super) fn overlay(folder: PathBuf) -> Self {
        let driver = "overlay".to_owned();
        Self { folder, driver }
    }

    /// Returns a folder with something of the driver: `containers` or `images`.
    pub(super) fn part(&self, what: &str) -> PathBuf {
        self.folder.join(format!("{}-{what}", self.driver))
    }
}

/// The creator of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BundleOrigin {
    /// containerd.
    Containerd {
        /// Name of the container's namespace.
        namespace: String,
        /// The daemon's folder of data (`root` in its configuration), if the bundle tells it.
        data: Option<PathBuf>,
    },
    /// podman or CRI-O.
    ContainersStorage(Storage),
    /// Any other program.
    Other,
}

impl Bundle {
    /// Finds the bundle of a container.
    pub(super) fn find(root: &Path, id: &str) -> Option<Self> {
        candidates(root, id).find_map(|(folder, maker)| {
            let spec = read(&folder.join("config.json"))?;
            Some(Self { spec, maker })
        })
    }

    /// Opens the bundle in a folder; the folder's path determines the creator.
    pub(super) fn open(folder: &Path) -> Option<Self> {
        let spec = read(&folder.join("config.json"))?;
        let name = |levels: usize| folder.ancestors().nth(levels)?.file_name()?.to_str();
        let maker = if let (Some(TASKS), Some(namespace)) = (name(2), name(1)) {
            BundleOrigin::Containerd {
                namespace: namespace.to_owned(),
                data: containerd_data(folder),
            }
        } else if let (Some("userdata"), Some(driver), Some(above)) = (
            name(0),
            name(2).and_then(|name| name.strip_suffix("-containers")),
            folder.ancestors().nth(3),
        ) {
            BundleOrigin::ContainersStorage(Storage {
                folder: above.to_owned(),
                driver: driver.to_owned(),
            })
        } else {
            BundleOrigin::Other
        };
        Some(Self { spec, maker })
    }

    /// Adds the facts in the bundle.
    pub(super) fn describe(&self, container: &mut Container) {
        let annotations = &self.spec["annotations"];
        let first = |names: &[&str]| names.iter().find_map(|name| text(&annotations[*name]));
        let runtime = match self.maker {
            BundleOrigin::Containerd { .. } => Some("containerd"),
            BundleOrigin::ContainersStorage(_)
                if annotations["io.kubernetes.cri-o.Name"].is_string() =>
            {
                Some("cri-o")
            }
            BundleOrigin::ContainersStorage(_) => Some("podman"),
            BundleOrigin::Other => None,
        };
        merge(&mut container.runtime, runtime.map(str::to_owned));
        let name = first(&[
            "io.kubernetes.cri.container-name",
            "io.kubernetes.container.name",
        ]);
        merge(&mut container.name, name);
        let image = first(&[
            "io.kubernetes.cri.image-name",
            "io.kubernetes.cri-o.ImageName",
        ]);
        merge(&mut container.image, image);
        merge(&mut container.pod, pod(annotations));
        let details = Arc::make_mut(&mut container.details);
        details.annotations = labels(annotations);
        details.sandbox_id = first(&[
            "io.kubernetes.cri.sandbox-id",
            "io.kubernetes.cri-o.SandboxID",
        ]);
        let encoded = first(&["io.kubernetes.cri-o.Labels"]);
        if let Some(Ok(decoded)) = encoded.map(|text| serde_json::from_str(&text)) {
            details.labels = labels(&decoded);
        }
        details.ip = first(&["io.kubernetes.cri-o.IP.0"]);
        let own = |kind: &str| {
            let namespaces = self.spec["linux"]["namespaces"].as_array()?;
            // A namespace with a path belongs to another container, e.g. to the pod.
            Some(namespaces.iter().any(|namespace| namespace["type"] == kind))
        };
        details.host_pid = own("pid").map(|own| !own);
        details.host_network = own("network").map(|own| !own);
        details.host_ipc = own("ipc").map(|own| !own);
        details.mounts = mounts(&self.spec["mounts"]);
    }
}

/// Returns containerd's folder of data: a bundle has a link to its place there.
fn containerd_data(bundle: &Path) -> Option<PathBuf> {
    let work = std::fs::read_link(bundle.join("work")).ok()?;
    let tasks = work.ancestors().nth(2)?;
    let is_one = tasks.file_name().is_some_and(|name| name == TASKS);
    is_one.then(|| tasks.parent().map(Path::to_owned))?
}

fn candidates(root: &Path, id: &str) -> impl Iterator<Item = (PathBuf, BundleOrigin)> {
    let tasks = root.join("run/containerd").join(TASKS);
    let namespaces = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    let in_containerd = namespaces.take(NAMESPACE_LIMIT).map({
        let id = id.to_owned();
        move |namespace| {
            let name = namespace.file_name().to_string_lossy().into_owned();
            let folder = namespace.path().join(&id);
            let data = containerd_data(&folder);
            let namespace = name;
            (folder, BundleOrigin::Containerd { namespace, data })
        }
    });
    let storages = ["var/lib/containers/storage", "run/containers/storage"];
    let in_storage = storages.map(|storage| {
        let storage = Storage::overlay(root.join(storage));
        let folder = storage.part("containers").join(id).join("userdata");
        (folder, BundleOrigin::ContainersStorage(storage))
    });
    in_containerd.chain(in_storage)
}

/// Mounts of host files. File systems that every container has are omitted, because nobody requested them.
fn mounts(mounts: &Value) -> Vec<Mount> {
    let mounts = mounts.as_array().into_iter().flatten();
    let bound = mounts.filter(|mount| mount["type"] == "bind");
    let described = bound.map(|mount| {
        let options: Vec<&str> = mount["options"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let is_propagation = |option: &&&str| {
            let kind = option.strip_prefix('r').unwrap_or(option);
            matches!(kind, "private" | "shared" | "slave" | "unbindable")
        };
        let propagation = options.iter().find(is_propagation);
        // A value that the specification leaves open is empty in container.mount.*, as in Falco.
        Mount {
            source: text(&mount["source"]).unwrap_or_default(),
            destination: text(&mount["destination"]).unwrap_or_default(),
            mode: if options.contains(&"ro") { "ro" } else { "" }.to_owned(),
            writable: !options.contains(&"ro"),
            propagation: propagation.map(ToString::to_string).unwrap_or_default(),
        }
    });
    described.collect()
}
