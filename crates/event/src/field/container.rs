//! `container.*`: the container the process runs in.

use std::collections::BTreeMap;

use super::text::Text;
use super::{Argument, ArgumentKind, Class, FieldSpec, ProcessFact as Fact, Source};
use crate::ValueType::{self, AbsTime, Bool, RelTime};
use crate::glob::Glob;
use crate::{Container, Containment, Details, Event, Mount, Value};

pub(super) const CLASS: Class = Class {
    name: "container",
    description: "The container the process runs in.",
};

const TEXT: ValueType = ValueType::Text;
const CONTAINER: Source = Source::Process(Fact::Container);
const MOUNT: ArgumentKind = ArgumentKind::IndexOrName { required: true };
const RUNTIME: &str = "tollgate does not query the container runtime";

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
        |e, _| known_text(e, "", |c| c.full_id.as_deref()),
        "Whole id.",
    ),
    FieldSpec::new(
        "container.name",
        TEXT,
        CONTAINER,
        |e, _| known_text(e, "host", |c| c.name.as_deref()),
        "Name; `host` if the process runs in none.",
    ),
    FieldSpec::new(
        "container.image",
        TEXT,
        CONTAINER,
        |e, _| known_text(e, "", |c| c.image.as_deref()),
        "Image as it was named when the container was made.",
    ),
    FieldSpec::new(
        "container.image.id",
        TEXT,
        CONTAINER,
        |e, _| detail(e, |d| d.image_id.as_deref()),
        "Id of the image.",
    ),
    FieldSpec::new(
        "container.image.repository",
        TEXT,
        CONTAINER,
        |e, _| {
            known_text(e, "", |c| {
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
            known_text(e, "", |c| {
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
            known_text(e, "", |c| {
                let named = || image_parts(c.image.as_deref()?).digest;
                c.details.image_digest.as_deref().or_else(named)
            })
        },
        "Digest of the image.",
    ),
    FieldSpec::new(
        "container.type",
        TEXT,
        CONTAINER,
        |e, _| known_text(e, "host", |c| c.runtime.as_deref()),
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
    FieldSpec::new(
        "container.mounts",
        TEXT,
        CONTAINER,
        mounts,
        "All mounts, separated by spaces: source:dest:mode:rdwr:propagation.",
    ),
    FieldSpec::new(
        "container.mount",
        TEXT,
        CONTAINER,
        |e, a| mount(e, a, |m| &m.source, described),
        "One mount by number or source (which may be a pattern); `none` if there is none.",
    )
    .with(MOUNT),
    FieldSpec::new(
        "container.mount.source",
        TEXT,
        CONTAINER,
        |e, a| mount(e, a, |m| &m.destination, |m, _| Value::text(&m.source)),
        "Source of a mount by number or destination.",
    )
    .with(MOUNT),
    FieldSpec::new(
        "container.mount.dest",
        TEXT,
        CONTAINER,
        |e, a| mount(e, a, |m| &m.source, |m, _| Value::text(&m.destination)),
        "Destination of a mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::new(
        "container.mount.mode",
        TEXT,
        CONTAINER,
        |e, a| mount(e, a, |m| &m.source, |m, _| Value::text(&m.mode)),
        "Mode of a mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::new(
        "container.mount.rdwr",
        TEXT,
        CONTAINER,
        |e, a| mount(e, a, |m| &m.source, |m, _| Value::text(rdwr(m))),
        "Whether a mount may be written (`true`, `false`), by number or source.",
    )
    .with(MOUNT),
    FieldSpec::new(
        "container.mount.propagation",
        TEXT,
        CONTAINER,
        |e, a| mount(e, a, |m| &m.source, |m, _| Value::text(&m.propagation)),
        "Propagation of a mount by number or source.",
    )
    .with(MOUNT),
    FieldSpec::new(
        "container.healthcheck",
        TEXT,
        CONTAINER,
        |e, _| detail(e, |d| d.health_check.as_deref()),
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
    FieldSpec::new(
        "container.ip",
        TEXT,
        CONTAINER,
        |e, _| detail(e, |d| d.ip.as_deref()),
        "Address of the container.",
    ),
    FieldSpec::absent(
        "container.cni.json",
        TEXT,
        RUNTIME,
        "Result of the network plugin.",
    ),
    FieldSpec::new(
        "container.host_pid",
        Bool,
        CONTAINER,
        |e, _| flag(e, |d| d.host_pid),
        "Whether it shares the host's pid namespace.",
    ),
    FieldSpec::new(
        "container.host_network",
        Bool,
        CONTAINER,
        |e, _| flag(e, |d| d.host_network),
        "Whether it shares the host's network namespace.",
    ),
    FieldSpec::new(
        "container.host_ipc",
        Bool,
        CONTAINER,
        |e, _| flag(e, |d| d.host_ipc),
        "Whether it shares the host's IPC namespace.",
    ),
    FieldSpec::new(
        "container.annotation",
        TEXT,
        CONTAINER,
        |e, a| label(&e.container().details.annotations, a),
        "One annotation of its OCI bundle: `container.annotation[NAME]`; not a field of Falco's.",
    )
    .with(ArgumentKind::Label),
    FieldSpec::new(
        "container.annotations",
        TEXT,
        CONTAINER,
        |e, _| labels(e, &e.container().details.annotations),
        "All annotations of its OCI bundle: key:value, separated by commas; not a field of Falco's.",
    ),
    FieldSpec::new(
        "container.label",
        TEXT,
        CONTAINER,
        |e, a| label(&e.container().details.labels, a),
        "One label: `container.label.NAME` or `container.label[NAME]`.",
    )
    .with(ArgumentKind::Label),
    FieldSpec::new(
        "container.labels",
        TEXT,
        CONTAINER,
        |e, _| labels(e, &e.container().details.labels),
        "All labels: key:value, separated by commas.",
    ),
    FieldSpec::new(
        "container.metadata",
        TEXT,
        CONTAINER,
        metadata,
        "`known`, or why name, image and labels are not known; not a field of Falco's.",
    ),
];

fn metadata<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let container = event.container();
    match (&container.undescribed, container.containment) {
        (Some(reason), _) => Value::text(reason),
        (None, Containment::Known) => Value::text("known"),
        (None, Containment::Host) => Value::Absent,
        (None, Containment::Unknown) => Value::text("the container cannot be identified"),
    }
}

fn detail<'a>(event: &Event<'a>, part: fn(&Details) -> Option<&str>) -> Value<'a> {
    Value::or_absent(part(&event.container().details).map(Value::text))
}

fn flag<'a>(event: &Event<'a>, part: fn(&Details) -> Option<bool>) -> Value<'a> {
    Value::or_absent(part(&event.container().details).map(Value::Bool))
}

/// Returns one label by its key.
pub(super) fn label<'a>(labels: &'a BTreeMap<String, String>, argument: &Argument) -> Value<'a> {
    let value = argument.name().and_then(|key| labels.get(key));
    Value::or_absent(value.map(|value| Value::text(value)))
}

/// Returns all labels in Falco's format.
pub(super) fn labels<'a>(event: &Event<'a>, labels: &BTreeMap<String, String>) -> Value<'a> {
    let mut text = Text::new(event.arena);
    for (key, value) in labels {
        let comma = if text.is_empty() { "" } else { "," };
        for part in [comma, key, ":", value] {
            text.push(part.as_bytes());
        }
    }
    if text.is_empty() {
        Value::Absent
    } else {
        text.value()
    }
}

fn rdwr(mount: &Mount) -> &'static str {
    if mount.writable { "true" } else { "false" }
}

fn described<'a>(mount: &Mount, event: &Event<'a>) -> Value<'a> {
    let mut text = Text::new(event.arena);
    describe(mount, &mut text);
    text.value()
}

fn describe(mount: &Mount, text: &mut Text<'_>) {
    let Mount {
        source,
        destination,
        mode,
        propagation,
        ..
    } = mount;
    for part in [
        source,
        ":",
        destination,
        ":",
        mode,
        ":",
        rdwr(mount),
        ":",
        propagation,
    ] {
        text.push(part.as_bytes());
    }
}

fn mounts<'a>(event: &Event<'a>, _: &Argument) -> Value<'a> {
    let mut text = Text::new(event.arena);
    for mount in &event.container().details.mounts {
        if !text.is_empty() {
            text.push(b" ");
        }
        describe(mount, &mut text);
    }
    if text.is_empty() {
        Value::Absent
    } else {
        text.value()
    }
}

/// Returns the mount with a number, or the first mount whose `key` equals or matches the name.
fn mount<'a>(
    event: &Event<'a>,
    argument: &Argument,
    key: fn(&Mount) -> &String,
    tell: fn(&'a Mount, &Event<'a>) -> Value<'a>,
) -> Value<'a> {
    let container = event.container();
    if container.containment != Containment::Known {
        return Value::Absent;
    }
    let mounts = &container.details.mounts;
    let found = match (argument.index(), argument.name()) {
        (Some(index), _) => usize::try_from(index)
            .ok()
            .and_then(|index| mounts.get(index)),
        (None, Some(name)) => {
            let pattern = Glob::new(name.as_bytes(), false);
            mounts
                .iter()
                .find(|mount| pattern.matches(key(mount).as_bytes()))
        }
        (None, None) => None,
    };
    found.map_or(Value::text("none"), |mount| tell(mount, event))
}

/// Returns `on_host` for the host (absent if empty), otherwise the known value.
fn known_text<'a>(
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

/// Splits `registry:5000/name:tag@sha256:...` into its parts.
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
