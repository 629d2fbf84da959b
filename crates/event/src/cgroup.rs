//! Container ids in cgroup paths.

use crate::{Container, Containment};

/// A container by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The id as the runtime knows it.
    pub full_id: String,
    /// The runtime, if the place it was found at tells.
    pub runtime: Option<&'static str>,
}

impl Identity {
    /// A container that somebody named.
    pub fn named(full_id: String) -> Self {
        Self {
            full_id,
            runtime: None,
        }
    }

    /// What is known of the container so far.
    pub fn into_container(self) -> Container {
        // Falco shortens generated ids and keeps names that people gave.
        let generated = self.full_id.len() > 12
            && self
                .full_id
                .bytes()
                .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        let id = if generated {
            self.full_id[..12].to_owned()
        } else {
            self.full_id.clone()
        };
        Container {
            containment: Containment::Known,
            id,
            full_id: Some(self.full_id),
            runtime: self.runtime.map(str::to_owned),
            ..Container::unknown()
        }
    }
}

/// What an id looks like.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// 64 hexadecimal digits.
    Hex64,
    /// Hexadecimal digits, perhaps with dashes: 12 at least.
    HexDash,
    /// Whatever the user chose.
    Any,
}

/// One directory of the path that carries the id between fixed parts.
struct Component {
    prefix: &'static str,
    suffix: &'static str,
    shape: Shape,
    runtime: &'static str,
}

const fn component(
    prefix: &'static str,
    suffix: &'static str,
    shape: Shape,
    runtime: &'static str,
) -> Component {
    Component {
        prefix,
        suffix,
        shape,
        runtime,
    }
}

/// Made by runtimes that use systemd, and by those that put a prefix of their own.
const COMPONENTS: [Component; 13] = [
    component("docker-", ".scope", Shape::Hex64, "docker"),
    component("cri-containerd-", ".scope", Shape::Hex64, "containerd"),
    component("nerdctl-", ".scope", Shape::Hex64, "containerd"),
    component("crio-", ".scope", Shape::Hex64, "cri-o"),
    component("crio-", "", Shape::Hex64, "cri-o"),
    component("libpod-", ".scope", Shape::Hex64, "podman"),
    component("libpod-payload-", "", Shape::Hex64, "podman"),
    component("libpod-", "", Shape::Hex64, "podman"),
    component("buildah-", "", Shape::Hex64, "buildah"),
    component("lxc.payload.", "", Shape::Any, "lxc"),
    component("systemd-nspawn@", ".service", Shape::Any, "systemd-nspawn"),
    component("machine-", ".scope", Shape::Any, "systemd-nspawn"),
    component("garden-", "", Shape::HexDash, "garden"),
];

/// A directory whose children are named by the id.
struct Parent {
    name: &'static str,
    /// Whether it must be the first directory of the path.
    at_top: bool,
    shape: Shape,
    runtime: &'static str,
}

const fn parent(name: &'static str, at_top: bool, shape: Shape, runtime: &'static str) -> Parent {
    Parent {
        name,
        at_top,
        shape,
        runtime,
    }
}

/// Made by runtimes that manage cgroups themselves.
const PARENTS: [Parent; 9] = [
    parent("docker", false, Shape::Hex64, "docker"),
    parent("moby", true, Shape::Hex64, "docker"),
    parent("k8s.io", true, Shape::Hex64, "containerd"),
    parent("default", true, Shape::Any, "containerd"),
    parent("buildkit", false, Shape::Any, "buildkit"),
    parent("garden", false, Shape::HexDash, "garden"),
    parent("lxc", false, Shape::Any, "lxc"),
    parent("lxc.payload", false, Shape::Any, "lxc"),
    parent("libpod_parent", false, Shape::Hex64, "podman"),
];

/// Names in `slice:prefix:id`, which runtimes use when systemd did not take part after all.
const COLON_PREFIXES: [(&str, &str); 4] = [
    ("cri-containerd", "containerd"),
    ("crio", "cri-o"),
    ("docker", "docker"),
    ("nerdctl", "containerd"),
];

/// The innermost container that a path below a hierarchy's root names, if any does.
pub fn identify(path: &str) -> Option<Identity> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    (0..parts.len())
        .rev()
        .find_map(|index| identify_part(&parts, index))
}

fn identify_part(parts: &[&str], index: usize) -> Option<Identity> {
    let part = parts[index];
    by_component(part)
        .or_else(|| by_colons(part))
        .or_else(|| by_ecs(parts, index))
        .or_else(|| by_parent(parts, index))
        // Whoever made it: nothing else is named like that.
        .or_else(|| fits(part, Shape::Hex64).then(|| identity(part, None)))
}

fn by_component(part: &str) -> Option<Identity> {
    COMPONENTS.iter().find_map(|pattern| {
        let id = part
            .strip_prefix(pattern.prefix)?
            .strip_suffix(pattern.suffix)?;
        fits(id, pattern.shape).then(|| identity(id, Some(pattern.runtime)))
    })
}

fn by_colons(part: &str) -> Option<Identity> {
    let mut fields = part.rsplit(':');
    let (id, prefix) = (fields.next()?, fields.next()?);
    let (_, runtime) = COLON_PREFIXES.iter().find(|(name, _)| *name == prefix)?;
    fits(id, Shape::Hex64).then(|| identity(id, Some(runtime)))
}

/// `/ecs/TASK/CONTAINER`; Fargate's container ids are the task's with a number.
fn by_ecs(parts: &[&str], index: usize) -> Option<Identity> {
    let grandparent = parts.get(index.checked_sub(2)?)?;
    let is_ecs = *grandparent == "ecs" || grandparent.starts_with("ecstasks");
    (is_ecs && fits(parts[index], Shape::HexDash)).then(|| identity(parts[index], Some("ecs")))
}

fn by_parent(parts: &[&str], index: usize) -> Option<Identity> {
    let above = index.checked_sub(1)?;
    PARENTS.iter().find_map(|pattern| {
        let in_place = parts[above] == pattern.name && (!pattern.at_top || above == 0);
        let found = in_place && fits(parts[index], pattern.shape);
        found.then(|| identity(parts[index], Some(pattern.runtime)))
    })
}

fn identity(id: &str, runtime: Option<&'static str>) -> Identity {
    Identity {
        full_id: id.to_owned(),
        runtime,
    }
}

fn fits(id: &str, shape: Shape) -> bool {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    match shape {
        Shape::Hex64 => id.len() == 64 && id.bytes().all(hex),
        Shape::HexDash => id.len() >= 12 && id.bytes().all(|byte| hex(byte) || byte == b'-'),
        Shape::Any => !id.is_empty(),
    }
}

/// For other places that hold ids.
pub fn is_full_id(id: &str) -> bool {
    fits(id, Shape::Hex64)
}
