//! Containers in notes.

use std::collections::BTreeMap;
use std::sync::Arc;

use event::{Container, Containment, Details, Mount};
use serde_json::{Value, json};

pub(super) fn show_container(container: &Container) -> Value {
    let containment = match container.containment {
        Containment::Host => "host",
        Containment::Known => "known",
        Containment::Unknown => "unknown",
    };
    json!({
        "is": containment,
        "id": container.id,
        "full_id": container.full_id,
        "name": container.name,
        "runtime": container.runtime,
        "image": container.image,
        "privileged": container.privileged,
        "start_ns": container.start_ns,
        "pod": container.pod,
        "details": show_details(&container.details),
        "undescribed": container.undescribed,
    })
}

fn show_details(details: &Details) -> Value {
    let mounts = details.mounts.iter().map(|mount| {
        json!([
            mount.source,
            mount.destination,
            mount.mode,
            mount.writable,
            mount.propagation
        ])
    });
    json!({
        "image_id": details.image_id,
        "image_digest": details.image_digest,
        "annotations": details.annotations,
        "labels": details.labels,
        "mounts": mounts.collect::<Vec<_>>(),
        "health_check": details.health_check,
        "ip": details.ip,
        "host": [details.host_pid, details.host_network, details.host_ipc],
        "pod_labels": details.pod_labels,
        "sandbox_id": details.sandbox_id,
        "pod_ip": details.pod_ip,
    })
}

fn read_details(value: &Value) -> Details {
    let text = |key: &str| value[key].as_str().map(str::to_owned);
    let labels = |key: &str| -> BTreeMap<String, String> {
        let labels = value[key].as_object().into_iter().flatten();
        let texts =
            labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        texts.collect()
    };
    let mounts = value["mounts"].as_array().into_iter().flatten();
    let mounts = mounts.map(|mount| {
        let part = |at: usize| mount[at].as_str().map(str::to_owned).unwrap_or_default();
        Mount {
            source: part(0),
            destination: part(1),
            mode: part(2),
            writable: mount[3] == true,
            propagation: part(4),
        }
    });
    Details {
        image_id: text("image_id"),
        image_digest: text("image_digest"),
        annotations: labels("annotations"),
        labels: labels("labels"),
        mounts: mounts.collect(),
        health_check: text("health_check"),
        ip: text("ip"),
        host_pid: value["host"][0].as_bool(),
        host_network: value["host"][1].as_bool(),
        host_ipc: value["host"][2].as_bool(),
        pod_labels: labels("pod_labels"),
        sandbox_id: text("sandbox_id"),
        pod_ip: text("pod_ip"),
    }
}

pub(super) fn read_container(value: &Value) -> Option<Container> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let pod = value.get("pod").and_then(|pod| {
        let part = |at: usize| pod.get(at)?.as_str().map(str::to_owned);
        Some((part(0)?, part(1)?, part(2)?))
    });
    Some(Container {
        containment: match value.get("is")?.as_str()? {
            "host" => Containment::Host,
            "known" => Containment::Known,
            _ => Containment::Unknown,
        },
        id: text("id")?,
        full_id: text("full_id"),
        name: text("name"),
        runtime: text("runtime"),
        image: text("image"),
        privileged: value.get("privileged").and_then(Value::as_bool),
        start_ns: value.get("start_ns").and_then(Value::as_u64),
        pod,
        details: Arc::new(read_details(&value["details"])),
        undescribed: text("undescribed"),
    })
}
