//! Container ids as seen from inside, where the cgroup path is `/`.

use std::path::Path;

use event::cgroup::{Identity, is_full_id};

use process_info::procfs::{mount_lines, unescape};

/// Host directories from which runtimes mount files into containers; the container id follows in the path.
const SOURCES: [(&str, &str); 6] = [
    ("/docker/containers/", "docker"),
    ("/overlay-containers/", "podman"),
    ("/io.containerd.grpc.v1.cri/containers/", "containerd"),
    ("/io.containerd.grpc.v1.cri/sandboxes/", "containerd"),
    ("/nerdctl/", "containerd"),
    ("/containers/", "docker"),
];

/// Files that every runtime mounts over those of the image.
const MOUNTED: [&str; 4] = [
    "/etc/hostname",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/dev/shm",
];

/// Finds the id in the sources of mounts that only a runtime creates.
pub(super) fn by_mounts(mountinfo: &[u8]) -> Option<Identity> {
    let mounts = || {
        mount_lines(mountinfo).filter(|mount| {
            MOUNTED
                .iter()
                .any(|path| mount.mount_point == path.as_bytes())
        })
    };
    mounts().find_map(|mount| {
        let root = unescape(mount.root);
        let source = std::str::from_utf8(&root).ok()?;
        SOURCES.iter().find_map(|(directory, runtime)| {
            let at = source.find(directory)? + directory.len();
            // nerdctl has further directories in between.
            let id = source[at..].split('/').find(|part| is_full_id(part))?;
            Some(Identity {
                full_id: id.to_owned(),
                runtime: Some(runtime),
            })
        })
    })
}

/// Identifies the agent's own container from the environment at start, markers in the root, and the host
/// name. Only valid for the agent itself: a workload can set all of these.
pub(super) fn by_own_surroundings() -> Option<Identity> {
    by_environment(|name| std::env::var(name).ok()).or_else(|| {
        let name = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        by_markers(&name, |path| Path::new(path).exists())
    })
}

/// Finds the id in the metadata address of ECS and Fargate. The address is not contacted.
fn by_environment(variable: impl Fn(&str) -> Option<String>) -> Option<Identity> {
    let address = [
        "ECS_CONTAINER_METADATA_URI_V4",
        "ECS_CONTAINER_METADATA_URI",
    ]
    .iter()
    .find_map(|name| variable(name))?;
    let id = address.trim_end_matches('/').rsplit('/').next()?;
    let plausible = id.len() >= 12
        && id
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    plausible.then(|| Identity {
        full_id: id.to_owned(),
        runtime: Some("ecs"),
    })
}

/// Finds the id in the host name, which docker and podman set to the short id by default.
fn by_markers(host_name: &str, exists: impl Fn(&str) -> bool) -> Option<Identity> {
    let runtime = [("/.dockerenv", "docker"), ("/run/.containerenv", "podman")]
        .iter()
        .find(|(path, _)| exists(path))
        .map(|(_, runtime)| *runtime)?;
    let is_short_id = host_name.len() == 12
        && host_name
            .bytes()
            .all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    is_short_id.then(|| Identity {
        full_id: host_name.to_owned(),
        runtime: Some(runtime),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f4b2a1c9d8e7f60514233241506a7b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e";

    fn mounted(source: &str) -> Option<Identity> {
        let text = format!(
            "1 0 0:5 / / rw - overlay overlay rw\n\
             2 1 8:1 {source} /etc/hostname rw,relatime - ext4 /dev/sda1 rw\n"
        );
        by_mounts(text.as_bytes())
    }

    #[test]
    fn mounts_of_runtimes_name_the_container() {
        let cases = [
            (
                format!("/var/lib/docker/containers/{ID}/hostname"),
                "docker",
            ),
            (
                format!("/var/lib/containers/storage/overlay-containers/{ID}/userdata/hostname"),
                "podman",
            ),
            (
                format!("/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/hostname"),
                "containerd",
            ),
            (
                format!("/nerdctl/1935db59/containers/default/{ID}/hostname"),
                "containerd",
            ),
        ];
        for (source, runtime) in cases {
            let identity = mounted(&source).unwrap();
            assert_eq!(
                (identity.full_id.as_str(), identity.runtime),
                (ID, Some(runtime))
            );
        }
        assert_eq!(mounted("/etc/hostname"), None);
        assert_eq!(mounted("/var/lib/docker/containers/short/hostname"), None);
    }

    #[test]
    fn a_host_that_can_see_container_files_is_not_one() {
        let text = format!(
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
             2 1 8:1 /x /var/lib/docker/containers/{ID}/mounts/shm rw - tmpfs shm rw\n"
        );
        assert_eq!(by_mounts(text.as_bytes()), None);
    }

    #[test]
    fn the_metadata_address_of_ecs_ends_in_the_id() {
        let id = "cd189a933e5849daa93386466019ab50-2495160603";
        let address = format!("http://169.254.170.2/v4/{id}");
        let found = by_environment(|name| {
            (name == "ECS_CONTAINER_METADATA_URI_V4").then(|| address.clone())
        });
        assert_eq!(found.clone().unwrap().full_id, id);
        assert_eq!(found.unwrap().into_container().id, "cd189a933e58");
        assert_eq!(by_environment(|_| None), None);
        assert_eq!(
            by_environment(|_| Some("http://x/../../etc".to_owned())),
            None
        );
    }

    #[test]
    fn host_names_count_only_beside_a_marker() {
        assert_eq!(by_markers("3f4b2a1c9d8e", |_| false), None);
        assert_eq!(by_markers("web-1", |path| path == "/.dockerenv"), None);
        let found = by_markers("3f4b2a1c9d8e", |path| path == "/run/.containerenv").unwrap();
        assert_eq!(found.runtime, Some("podman"));
    }
}
