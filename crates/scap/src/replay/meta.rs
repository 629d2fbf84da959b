//! Events that describe users and containers.

use event::{Container, Containment, Evaluator};
use serde_json::Value;

use super::capture_state::{CaptureState, NotedCall};
use super::dialect::Meta;
use crate::Error;
use crate::bytes::{unsigned, until_nul};
use crate::note;
use crate::read::{Params, Record, Starts};

impl<J: Evaluator> CaptureState<'_, J> {
    pub(super) fn meta(&mut self, record: &Record<'_>, meta: Meta) -> Result<(), Error> {
        let mut starts = Starts::default();
        let params = record.params(&mut starts)?;
        let fields = MetaFields { record, params };
        match meta {
            Meta::User => self.user(&fields),
            Meta::Group => {
                if let Some(gid) = fields.id("gid") {
                    self.state.add_group(gid, fields.text("name"));
                }
            }
            Meta::Container => self.container(fields.text("json")),
            // One of system calls has no number of a plugin.
            Meta::Asynchronous if fields.id("plugin_id").is_some_and(|plugin| plugin != 0) => {
                if let Some(ty) = record.ty() {
                    return self.plugin_event(record, ty);
                }
            }
            Meta::Asynchronous if fields.text("name") == b"container" => {
                self.container(fields.text("data"));
            }
            Meta::Note if record.is_state_only() => self.note(&fields),
            Meta::Asynchronous | Meta::Note => {}
        }
        Ok(())
    }

    /// Applies a note of this program.
    fn note(&mut self, fields: &MetaFields<'_, '_>) {
        let desc = fields.text("desc");
        let id = fields.text("id");
        if id == note::CALL.as_bytes() {
            self.call = note::Call::of_json(desc).map(|call| NotedCall {
                tid: fields.record.tid,
                time_ns: fields.record.time_ns,
                call,
            });
        } else if id == note::PROCESS.as_bytes()
            && let Some(slot) = self.state.find_or_add(fields.record.tid)
            && let Some(exact) = note::ExactProcess::of_json(desc)
        {
            let process = self.state.thread(slot).process;
            self.state.change(process, |held| held.correct(exact));
        }
    }

    fn user(&mut self, fields: &MetaFields<'_, '_>) {
        if let Some(uid) = fields.id("uid") {
            let [name, home, shell] = ["name", "home", "shell"].map(|name| fields.text(name));
            self.state.add_user(uid, name, home, shell);
        }
    }

    fn container(&mut self, json: &[u8]) {
        // Invalid JSON, or JSON without an id, describes no container.
        if let Some(container) = serde_json::from_slice(json)
            .ok()
            .and_then(|json| container(&json))
        {
            self.state.add_container(container);
        }
    }
}

/// Parameters of an event by name.
struct MetaFields<'e, 'b> {
    record: &'e Record<'b>,
    params: Params<'b>,
}

impl<'b> MetaFields<'_, 'b> {
    fn bytes(&self, name: &str) -> Option<&'b [u8]> {
        self.params.get(self.record.ty()?.param(name)?)
    }

    fn text(&self, name: &str) -> &'b [u8] {
        self.bytes(name).map(until_nul).unwrap_or_default()
    }

    fn id(&self, name: &str) -> Option<u32> {
        u32::try_from(unsigned(self.bytes(name)?)?).ok()
    }
}

/// Parses a container from the JSON of capture recorders.
fn container(json: &Value) -> Option<Container> {
    let container = json.get("container")?;
    let text = |name: &str| {
        let text = container.get(name)?.as_str()?;
        (!text.is_empty()).then(|| text.to_owned())
    };
    let id = text("id").filter(|id| id != "host")?;
    Some(Container {
        containment: Containment::Known,
        id,
        full_id: text("full_id"),
        name: text("name"),
        runtime: container
            .get("type")
            .and_then(Value::as_u64)
            .and_then(runtime),
        image: text("image"),
        privileged: container.get("privileged").and_then(Value::as_bool),
        start_ns: container
            .get("created_time")
            .and_then(Value::as_u64)
            .and_then(|seconds| seconds.checked_mul(1_000_000_000)),
        pod: pod(container),
        ..Container::unknown()
    })
}

/// Returns pod name, namespace and uid from Kubernetes' container labels.
fn pod(container: &Value) -> Option<(String, String, String)> {
    let labels = container.get("labels")?;
    let label = |name: &str| {
        let label = labels.get(format!("io.kubernetes.pod.{name}"))?;
        label.as_str().map(str::to_owned)
    };
    Some((label("name")?, label("namespace")?, label("uid")?))
}

/// Returns the container runtime with this number in captures.
fn runtime(number: u64) -> Option<String> {
    let name = match number {
        0 => "docker",
        1 => "lxc",
        2 => "libvirt_lxc",
        3 => "mesos",
        4 => "rkt",
        6 => "cri",
        7 => "containerd",
        8 => "cri-o",
        9 => "bpm",
        11 => "podman",
        _ => return None,
    };
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_read_and_the_host_is_none() {
        let json = serde_json::json!({"container": {
            "id": "0123456789ab", "full_id": "0123456789abcdef", "name": "web", "type": 7,
            "image": "nginx:1", "privileged": true, "created_time": 5,
            "labels": {"io.kubernetes.pod.name": "p", "io.kubernetes.pod.namespace": "n",
                       "io.kubernetes.pod.uid": "u"}}});
        let found = container(&json).unwrap();
        assert_eq!(
            (found.id.as_str(), found.runtime.as_deref()),
            ("0123456789ab", Some("containerd"))
        );
        assert_eq!(
            (found.privileged, found.start_ns),
            (Some(true), Some(5_000_000_000))
        );
        assert_eq!(found.pod.unwrap().1, "n");
        assert_eq!(
            container(&serde_json::json!({"container": {"id": "host"}})),
            None
        );
        assert_eq!(container(&serde_json::json!([1])), None);
    }
}
