//! Reader of docker's state: one folder for each container.

use std::path::Path;

use event::{Container, Details, Mount};
use serde_json::Value;

use super::{joined, labels, merge, pod, read, text};

/// Adds docker's facts on a container. Returns false if docker has no container with this id.
pub(super) fn describe(container: &mut Container, root: &Path, id: &str) -> bool {
    let folder = root.join("var/lib/docker/containers").join(id);
    let Some(config) = read(&folder.join("config.v2.json")) else {
        return false;
    };
    let name = text(&config["Name"]).map(|name| name.trim_start_matches('/').to_owned());
    let own = &config["Config"];
    container.runtime = Some("docker".to_owned());
    merge(&mut container.name, name);
    merge(&mut container.image, text(&own["Image"]));
    merge(&mut container.pod, pod(&own["Labels"]));
    let host = read(&folder.join("hostconfig.json")).unwrap_or(Value::Null);
    if let Some(privileged) = host["Privileged"].as_bool() {
        container.privileged = Some(privileged);
    }
    let shares = |key: &str| text(&host[key]).map(|mode| mode == "host");
    let image_id = text(&config["Image"]);
    container.details = std::sync::Arc::new(Details {
        image_id: image_id.map(|id| id.trim_start_matches("sha256:").to_owned()),
        labels: labels(&own["Labels"]),
        mounts: mounts(&config["MountPoints"]),
        health_check: health_check(&own["Healthcheck"]["Test"]),
        ip: address(&config["NetworkSettings"]["Networks"]),
        host_pid: host.is_object().then(|| shares("PidMode").unwrap_or(false)),
        host_network: shares("NetworkMode"),
        host_ipc: shares("IpcMode"),
        ..Details::default()
    });
    true
}

fn mounts(points: &Value) -> Vec<Mount> {
    let points = points.as_object().into_iter().flatten();
    // Volumes have no source and most mounts no mode: docker omits the key or leaves the text empty.
    let mounts = points.map(|(destination, point)| Mount {
        source: text(&point["Source"]).unwrap_or_default(),
        destination: text(&point["Destination"]).unwrap_or_else(|| destination.clone()),
        mode: text(&point["Mode"]).unwrap_or_default(),
        writable: point["RW"].as_bool().unwrap_or(false),
        propagation: text(&point["Propagation"]).unwrap_or_default(),
    });
    mounts.collect()
}

/// The command of a health check. The first word selects how the others are run.
fn health_check(test: &Value) -> Option<String> {
    match test.as_array()?.split_first()? {
        (kind, _) if kind == "NONE" => None,
        (_, words) => joined(words),
    }
}

fn address(networks: &Value) -> Option<String> {
    let mut networks = networks.as_object()?.values();
    networks.find_map(|network| text(&network["IPAddress"]))
}
