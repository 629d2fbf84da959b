//! `container.*`: the container the process runs in.

use super::{Argument, ArgumentKind, Class, FieldSpec, ProcessFact as Fact, Source};
use crate::ValueType::{self, AbsTime, Bool, RelTime};
use crate::{Container, Containment, Event, Value};

pub(super) const CLASS: Class = Class {
    name: "container",
    description: "The container the process runs in.",
};

const TEXT: ValueType = ValueType::Text;
const CONTAINER: Source = Source::Process(Fact::Container);
const MOUNT: ArgumentKind = ArgumentKind::IndexOrName { required: true };
const RUNTIME: &str = "the container runtime is not asked for it";

pub(super) static FIELDS: &[FieldSpec] = &[
    FieldSpec::new(
        "container.id",
        TEXT,
        CONTAINER,
        |e, _| Value::text(&e.container().id),
        "First 12 characters of the id; `host` if the process is proven to run in none; empty if neither is proven.",
    ),
    FieldSpec::new(
        "container.full_id",
        TEXT,
        CONTAINER,
        |e, _| told(e, "", |c| c.full_id.as_deref()),
        "Whole id.",
    ),
    FieldSpec::new(
        "container.name",
        TEXT,
        CONTAINER,
        |e, _| told(e, "host", |c| c.name.as_deref()),
        "Name; `host` if the process runs in none.",
    ),
    FieldSpec::new(
        "container.image",
        TEXT,
        CONTAINER,
        |e, _| told(e, "", |c| c.image.as_deref()),
        "Image as it was named when the container was made.",
    ),
    FieldSpec::absent("container.image.id", TEXT, RUNTIME, "Id of the image."),
    FieldSpec::new(
        "container.image.repository",
        TEXT,
        CONTAINER,
        |e, _| {
            told(e, "", |c| {
                c.image
                    .as_deref()
                    .map(|image| image_parts(image).repository)
            })
        },
        "Image without tag and digest.",
    ),
    FieldSpec::new(
        "container.image.tag",
        TEXT,
        CONTAINER,
        |e, _| {
            told(e, "", |c| {
                c.image.as_deref().and_then(|image| image_parts(image).tag)
            })
        },
        "Tag of the image.",
    ),
    FieldSpec::new(
        "container.image.digest",
        TEXT,
        CONTAINER,
        |e, _| {
            told(e, "", |c| {
                c.image
                    .as_deref()
                    .and_then(|image| image_parts(image).digest)
            })
        },
        "Digest of the image, if it was named by digest.",
    ),
    FieldSpec::new(
        "container.type",
        TEXT,
        CONTAINER,
        |e, _| told(e, "host", |c| c.runtime.as_deref()),
        "`docker`, `containerd`, `cri-o`, `podman`, ...; `host` if the process runs in none.",
    ),
    FieldSpec::new(
        "container.privileged",
        Bool,
        CONTAINER,
        |e, _| Value::or_absent(e.container().privileged.map(Value::Bool)),
        "Whether the container has all privileges.",
    ),
    FieldSpec::new(
        "container.start_ts",
        AbsTime,
        CONTAINER,
        |e, _| Value::or_absent(e.container().start_ns.map(Value::Uint)),
        "When the container started, in nanoseconds since 1970.",
    ),
    FieldSpec::new(
        "container.duration",
        RelTime,
        CONTAINER,
        duration,
        "Nanoseconds since the container started.",
    ),
    FieldSpec::absent(
        "container.mounts",
        TEXT,
        RUNTIME,
        "All mounts: source:dest:mode:rdwr:propagation.",
    ),
    FieldSpec::absent(
        "container.mount",
        TEXT,
        RUNTIME,
        "One mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::absent(
        "container.mount.source",
        TEXT,
        RUNTIME,
        "Source of a mount by number or destination.",
    )
    .with(MOUNT),
    FieldSpec::absent(
        "container.mount.dest",
        TEXT,
        RUNTIME,
        "Destination of a mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::absent(
        "container.mount.mode",
        TEXT,
        RUNTIME,
        "Mode of a mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::absent(
        "container.mount.rdwr",
        TEXT,
        RUNTIME,
        "Whether a mount may be written, by number or source.",
    )
    .with(MOUNT),
    FieldSpec::absent(
        "container.mount.propagation",
        TEXT,
        RUNTIME,
        "Propagation of a mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::absent(
        "container.healthcheck",
        TEXT,
        RUNTIME,
        "Command of the health check.",
    ),
    FieldSpec::absent(
        "container.liveness_probe",
        TEXT,
        RUNTIME,
        "Command of the liveness probe.",
    ),
    FieldSpec::absent(
        "container.readiness_probe",
        TEXT,
        RUNTIME,
        "Command of the readiness probe.",
    ),
    FieldSpec::absent("container.ip", TEXT, RUNTIME, "Address of the container."),
    FieldSpec::absent(
        "container.cni.json",
        TEXT,
        RUNTIME,
        "Result of the network plugin.",
    ),
    FieldSpec::absent(
        "container.host_pid",
        Bool,
        RUNTIME,
        "Whether it shares the host's pid namespace.",
    ),
    FieldSpec::absent(
        "container.host_network",
        Bool,
        RUNTIME,
        "Whether it shares the host's network namespace.",
    ),
    FieldSpec::absent(
        "container.host_ipc",
        Bool,
        RUNTIME,
        "Whether it shares the host's IPC namespace.",
    ),
    FieldSpec::absent(
        "container.label",
        TEXT,
        RUNTIME,
        "One label: `container.label.NAME` or `container.label[NAME]`.",
    )
    .with(ArgumentKind::Label),
    FieldSpec::absent("container.labels", TEXT, RUNTIME, "All labels."),
];

/// `on_host` for the host (nothing if empty), otherwise what is known.
fn told<'a>(
    event: &Event<'a>,
    on_host: &'static str,
    part: fn(&Container) -> Option<&str>,
) -> Value<'a> {
    let container = event.container();
    match container.containment {
        Containment::Host if on_host.is_empty() => Value::Absent,
        Containment::Host => Value::text(on_host),
        Containment::Known | Containment::Unknown => {
            Value::or_absent(part(container).map(Value::text))
        }
    }
}

fn duration<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let start = event.container().start_ns;
    Value::or_absent(
        start
            .and_then(|start| event.time_ns.checked_sub(start))
            .map(Value::Uint),
    )
}

#[derive(Debug, PartialEq, Eq)]
struct ImageParts<'i> {
    repository: &'i str,
    tag: Option<&'i str>,
    digest: Option<&'i str>,
}

/// Takes `registry:5000/name:tag@sha256:...` apart.
fn image_parts(image: &str) -> ImageParts<'_> {
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash belongs to the registry's port.
    let name = rest.rfind('/').map_or(0, |slash| slash + 1);
    match rest[name..].split_once(':') {
        Some((short, tag)) => ImageParts {
            repository: &rest[..name + short.len()],
            tag: Some(tag),
            digest,
        },
        None => ImageParts {
            repository: rest,
            tag: None,
            digest,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_apart_at_tag_and_digest() {
        let rows = [
            ("nginx", ("nginx", None, None)),
            ("nginx:1.25", ("nginx", Some("1.25"), None)),
            ("localhost:5000/a/b", ("localhost:5000/a/b", None, None)),
            (
                "localhost:5000/a/b:t",
                ("localhost:5000/a/b", Some("t"), None),
            ),
            (
                "docker.io/x/y:t@sha256:ab",
                ("docker.io/x/y", Some("t"), Some("sha256:ab")),
            ),
            ("x@sha256:ab", ("x", None, Some("sha256:ab"))),
            ("", ("", None, None)),
        ];
        for (image, (repository, tag, digest)) in rows {
            assert_eq!(
                image_parts(image),
                ImageParts {
                    repository,
                    tag,
                    digest
                },
                "{image}"
            );
        }
    }
}
