//! Containers inside of a known container.
//!
//! A descendant of a container's processes is in that container, or in a container that was created inside of
//! it. The runtime of the inner container usually gives it a control group below the outer one's; if an id
//! names that group, the inner container is known. A process that has a control group below the outer one's,
//! and pid and mount namespaces of its own, but no id, is in an unknown container. A process that stays in
//! the outer control group counts as a process of the outer container.

use event::cgroup::Identity;

use super::ContainerKey;
use process_info::procfs::{CgroupLine, cgroup_lines};

/// The container of a process, relative to a known one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nested {
    /// The known container.
    Outer,
    /// A container that was created inside of it.
    Inner(Identity),
    /// A container that was created inside of it, whose id is not proven.
    Unknown,
}

/// Decides which container a process is in. `outer` is the key of the outermost process of the known
/// container from which the process descends.
pub(super) fn decide(id: &str, outer: &ContainerKey, place: &ContainerKey) -> Nested {
    let mut inner: Option<(Identity, &[u8])> = None;
    let mut is_below = false;
    for line in cgroup_lines(&place.cgroup) {
        let same = |other: &CgroupLine<'_>| {
            (other.hierarchy, other.controllers) == (line.hierarchy, line.controllers)
        };
        let Some(top) = cgroup_lines(&outer.cgroup).find(same) else {
            continue;
        };
        if !is_strictly_below(line.path, root_of(id, top.path)) {
            continue;
        }
        is_below |= is_strictly_below(line.path, top.path);
        let Some(found) = by_path(line.path).filter(|found| found.full_id != id) else {
            continue;
        };
        // The outer container's own group may lie in that of another container, whose id is not the inner
        // one's.
        let is_outers = by_path(root_of(id, top.path)).is_some_and(|outers| outers == found);
        if is_outers {
            continue;
        }
        // A container inside of the inner one may have groups of its own in some hierarchies only.
        match &inner {
            Some((_, path)) if names(path, &found.full_id) => {}
            Some((before, _)) if !names(line.path, &before.full_id) => {
                // Hierarchies that disagree prove nothing.
                return Nested::Unknown;
            }
            _ => inner = Some((found, line.path)),
        }
    }
    let has_own_view = outer.pid_namespace != place.pid_namespace
        && outer.mount_namespace != place.mount_namespace;
    match inner {
        Some((inner, _)) => Nested::Inner(inner),
        None if is_below && has_own_view => Nested::Unknown,
        None => Nested::Outer,
    }
}

fn by_path(path: &[u8]) -> Option<Identity> {
    event::cgroup::identify(std::str::from_utf8(path).ok()?)
}

fn names(path: &[u8], id: &str) -> bool {
    std::str::from_utf8(path).is_ok_and(|path| event::cgroup::names(path, id))
}

/// The part of a path up to the component that names the container's id: a process of the container may be in
/// a group below. The whole path if no component names the id.
fn root_of<'p>(id: &str, path: &'p [u8]) -> &'p [u8] {
    let names_it = |end: usize| {
        let part = path[..end].rsplit(|byte| *byte == b'/').next();
        part == Some(id.as_bytes())
            || by_path(&path[..end]).is_some_and(|found| found.full_id == id)
    };
    let ends = (1..=path.len()).filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/'));
    let first = ends.into_iter().find(|end| names_it(*end));
    first.map_or(path, |end| &path[..end])
}

fn is_strictly_below(path: &[u8], top: &[u8]) -> bool {
    let top = top.strip_suffix(b"/").unwrap_or(top);
    path.strip_prefix(top)
        .is_some_and(|rest| rest.len() > 1 && rest[0] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTER: &str = "3f4b2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";
    const INNER: &str = "aaaa2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";

    const MIDDLE: &str = "cccc2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";

    fn place(namespaces: u64, cgroup: &str) -> ContainerKey {
        ContainerKey {
            pid_namespace: namespaces,
            cgroup_namespace: 1,
            mount_namespace: namespaces,
            cgroup: cgroup
                .replace("OUTER", OUTER)
                .replace("INNER", INNER)
                .replace("MID", MIDDLE)
                .into_bytes(),
        }
    }

    fn decided(id: &str, outer: &str, inner: (u64, &str)) -> Nested {
        let id = id.replace("OUTER", OUTER);
        decide(&id, &place(1, outer), &place(inner.0, inner.1))
    }

    fn inner(nested: &Nested) -> Option<&str> {
        match nested {
            Nested::Inner(identity) => Some(&identity.full_id),
            _ => None,
        }
    }

    #[test]
    fn a_group_below_the_outer_ones_that_an_id_names_is_the_inner_one() {
        let cases = [
            ("OUTER", "0::/docker/OUTER", "0::/docker/OUTER/docker/INNER"),
            (
                "OUTER",
                "0::/docker/OUTER/init.scope",
                "0::/docker/OUTER/docker/INNER",
            ),
            (
                "OUTER",
                "4:pids:/docker/OUTER",
                "9:cpu:/\n4:pids:/docker/OUTER/INNER",
            ),
            (
                "OUTER",
                "0::/system.slice/docker-OUTER.scope",
                "0::/system.slice/docker-OUTER.scope/machine.slice/libpod-INNER.scope/container",
            ),
            ("t1", "0::/t1", "0::/t1/INNER"),
            ("t1", "0::/else", "0::/else/INNER"),
            // A container of the inner one has groups of its own in some hierarchies only.
            (
                "OUTER",
                "9:pids:/docker/OUTER\n4:memory:/docker/OUTER\n0::/docker/OUTER",
                "9:pids:/docker/OUTER/docker/MID\n4:memory:/docker/OUTER/docker/MID/docker/INNER\n0::/docker/OUTER",
            ),
            (
                "OUTER",
                "9:pids:/docker/OUTER\n4:memory:/docker/OUTER",
                "9:pids:/docker/OUTER/docker/MID/docker/INNER\n4:memory:/docker/OUTER/docker/MID",
            ),
            // A cluster node that is itself a container: the containers that it runs are its own.
            (
                "OUTER",
                "0::/docker/OUTER/kubelet.slice",
                "0::/docker/OUTER/kubelet.slice/kubepods.slice/cri-containerd-INNER.scope",
            ),
        ];
        for (id, outer, path) in cases {
            for namespaces in [1, 2] {
                let found = decided(id, outer, (namespaces, path));
                assert_eq!(inner(&found), Some(INNER), "{path}");
            }
        }
    }

    #[test]
    fn what_no_id_names_and_has_pids_and_mounts_of_its_own_is_unknown() {
        assert_eq!(
            decided("t1", "0::/t1", (2, "0::/t1/inner")),
            Nested::Unknown
        );
        let outer = "0::/docker/OUTER";
        assert_eq!(
            decided("OUTER", outer, (2, "0::/docker/OUTER/inner")),
            Nested::Unknown
        );
        // Two hierarchies that name two containers.
        let two = "1:cpu:/docker/OUTER/INNER\n2:pids:/docker/OUTER/bbbb2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";
        let tops = "1:cpu:/docker/OUTER\n2:pids:/docker/OUTER";
        assert_eq!(decided("OUTER", tops, (2, two)), Nested::Unknown);
    }

    #[test]
    fn whatever_else_the_outer_one_does_is_the_outer_ones() {
        let cases = [
            ("OUTER", "0::/docker/OUTER", (1, "0::/docker/OUTER")),
            // A program's sandbox, as in browsers.
            ("OUTER", "0::/docker/OUTER", (2, "0::/docker/OUTER")),
            // A systemd service.
            (
                "OUTER",
                "0::/docker/OUTER",
                (1, "0::/docker/OUTER/system.slice/x.service"),
            ),
            (
                "t1",
                "0::/t1/init.scope",
                (1, "0::/t1/user.slice/session-1.scope"),
            ),
            // A container whose own group lies in that of the container in which the engine runs.
            ("t1", "0::/docker/INNER/t1", (2, "0::/docker/INNER/t1")),
            ("t1", "0::/docker/INNER/x", (2, "0::/docker/INNER/x")),
            // Groups elsewhere do not prove that a container was created inside.
            ("t1", "0::/t1", (2, "0::/docker/INNER")),
            ("t1", "0::/t1", (2, "0::/t12/INNER")),
        ];
        for (id, outer, at) in cases {
            assert_eq!(decided(id, outer, at), Nested::Outer, "{at:?}");
        }
    }
}
