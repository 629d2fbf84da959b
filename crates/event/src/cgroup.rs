//! Container ids in cgroup paths.

use crate::{Container, Containment};

/// Identity of a container: its id and runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Full id, as the runtime knows it.
    pub full_id: String,
    /// Container runtime, if the cgroup path identifies it.
    pub runtime: Option<&'static str>,
}

impl Identity {
    /// Creates the identity of a container whose id is known, without a runtime.
    pub fn named(full_id: String) -> Self {
        Self {
            full_id,
            runtime: None,
        }
    }

    /// Converts the identity into a container whose other facts are unknown.
    pub fn into_container(self) -> Container {
        // Falco shortens generated ids and keeps user-chosen names.
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

/// Syntax of a container id.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// 64 hexadecimal digits.
    Hex64,
    /// At least 12 hexadecimal digits, perhaps with dashes.
    HexDash,
    /// Any text that the user chose.
    Any,
}

/// A path component that holds the id between fixed parts.
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

/// Components written by runtimes that use systemd, and by runtimes that add a prefix of their own.
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

/// A directory whose children are named by container id.
struct Parent {
    name: &'static str,
    /// Whether the directory must be the first of the path.
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

/// Parent directories of runtimes that manage cgroups themselves.
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

/// Prefixes in `slice:prefix:id`, the form that runtimes write when systemd is not used after all.
const COLON_PREFIXES: [(&str, &str); 4] = [
    ("cri-containerd", "containerd"),
    ("crio", "cri-o"),
    ("docker", "docker"),
    ("nerdctl", "containerd"),
];

/// Returns the innermost container that a cgroup path names. `path` is relative to the hierarchy's root.
pub fn identify(path: &str) -> Option<Identity> {
    named_by(path).next()
}

/// Returns the container that the paths of a process in several hierarchies name: that of the first path that names
/// one, or a container inside of it that a later path names. A runtime that runs in a container may make its groups in
/// some hierarchies only, and leave its containers in the group of its own container in others.
pub fn identify_in_all<'p>(paths: impl IntoIterator<Item = &'p str>) -> Option<Identity> {
    let mut found: Option<Identity> = None;
    for path in paths {
        let mut containers = named_by(path);
        let Some(inner) = containers.next() else {
            continue;
        };
        let is_inside = |outer: &Identity| containers.any(|above| above.full_id == outer.full_id);
        if found.as_ref().is_none_or(is_inside) {
            found = Some(inner);
        }
    }
    found
}

/// Returns the containers that a path names, from the innermost to the outermost.
fn named_by(path: &str) -> impl Iterator<Item = Identity> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    (0..parts.len())
        .rev()
        .filter_map(move |index| identify_part(&parts, index))
}

/// Returns true if `path` names the container `id`, or one inside of it.
pub fn names(path: &str, id: &str) -> bool {
    named_by(path).any(|container| container.full_id == id)
}

fn identify_part(parts: &[&str], index: usize) -> Option<Identity> {
    let part = parts[index];
    by_component(part)
        .or_else(|| by_colons(part))
        .or_else(|| by_ecs(parts, index))
        .or_else(|| by_parent(parts, index))
        // Any runtime: nothing else has such a name.
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

/// Matches `/ecs/TASK/CONTAINER`. Fargate's container ids are the task's id with a number.
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

/// Returns true if `id` is a full container id, for ids found outside cgroup paths.
pub fn is_full_id(id: &str) -> bool {
    fits(id, Shape::Hex64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: &str = "3f4b2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";
    const INNER: &str = "aaaa2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";

    fn named(paths: &[&str]) -> Option<String> {
        let paths = paths.iter();
        let paths = paths.map(|path| path.replace("OUTER", OUTER).replace("INNER", INNER));
        let paths: Vec<String> = paths.collect();
        identify_in_all(paths.iter().map(String::as_str)).map(|found| found.full_id)
    }

    #[test]
    fn a_container_inside_another_is_found_in_whatever_hierarchy_it_has_groups() {
        let inside = "/docker/OUTER/libpod_parent/libpod-INNER";
        let cases = [
            &["/docker/OUTER", inside][..],
            &[inside, "/docker/OUTER"],
            &["/", "/docker/OUTER", "/docker/OUTER", inside, "/"],
            &["/docker/OUTER", "/docker/OUTER/init.scope", inside],
        ];
        for paths in cases {
            assert_eq!(named(paths).as_deref(), Some(INNER), "{paths:?}");
        }
    }

    #[test]
    fn a_container_elsewhere_is_not_inside_the_first_one() {
        let cases = [
            &["/docker/OUTER", "/docker/INNER"][..],
            &["/docker/OUTER", "/docker/OUTER/docker/OUTER"],
            &["/docker/OUTER/x", "/INNER/INNER"],
        ];
        for paths in cases {
            assert_eq!(named(paths).as_deref(), Some(OUTER), "{paths:?}");
        }
        assert_eq!(named(&["/", "/system.slice"]), None);
    }
}
