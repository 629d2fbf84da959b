//! `tollgate guard` as the first process of a container, under the defaults of a container engine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{BareRoot, Finished, Limited, Scratch, installed, need_root, skip};

const LIMIT: Duration = Duration::from_secs(120);

/// Users of the image. The engine would add one whose home is the working directory.
const USERS: &str = "root:x:0:0::/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n";

/// Works in the folder, and tries what the box denies: a file of the system, a credential and a network.
const JOB: &str = "echo in > in; cat in; echo x >> /etc/passwd; cat /home/me/.ssh/id; \
                   busybox nc 192.0.2.1 443 < /dev/null; exit 6";

/// Runs the job in a box in a container, in a folder that is writable.
fn in_podman(user: &str) -> Finished {
    let (root, storage) = (BareRoot::new(), Scratch::new());
    let open = |name: &str, mode: u32| {
        let path = root.path().join(name);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
    };
    for folder in ["project", "home/me/.ssh"] {
        fs::create_dir_all(root.path().join(folder)).expect("the folder is new");
        open(folder, 0o777);
    }
    fs::write(root.path().join("home/me/.ssh/id"), "secret\n").expect("written");
    fs::write(root.path().join("etc/passwd"), USERS).expect("written");
    open("etc/passwd", 0o666);
    // What a container engine leaves mounted would keep the folder from being removed.
    let mut podman = Command::new("unshare");
    podman.args(["--mount", "--propagation", "private", "podman"]);
    podman.arg("--root").arg(storage.path().join("storage"));
    podman.arg("--runroot").arg(storage.path().join("run"));
    podman.args([
        "--cgroup-manager",
        "cgroupfs",
        "--runtime",
        "runc",
        "run",
        "--rm",
    ]);
    podman.args([
        "--network",
        "none",
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1000:1000",
    ]);
    podman.args([
        "--user",
        user,
        "--env",
        "HOME=/home/me",
        "--workdir",
        "/project",
    ]);
    podman.args(["--entrypoint", r#"["/tollgate","guard","--"]"#]);
    podman.arg("--rootfs").arg(root.path());
    podman.args(["sh", "-c", JOB]).stdin(Stdio::null());
    let finished = Limited::start(&mut podman, LIMIT).finish(b"");
    let users = fs::read_to_string(root.path().join("etc/passwd")).expect("there");
    assert_eq!(users, USERS, "{finished:?}");
    finished
}

#[test]
fn in_a_container_each_denial_is_reported() {
    need_root!();
    if let Some(missing) = ["podman", "runc"].into_iter().find(|name| !installed(name)) {
        skip!("needs podman and runc", || Ok(format!(
            "{missing} is not in PATH"
        )));
    }
    for user in ["0", "1000"] {
        let finished = in_podman(user);
        assert_eq!(
            (finished.code(), finished.stdout.as_str()),
            (6, "in\n"),
            "{user}: {finished:?}"
        );
        for denied in [
            " may not write /etc/passwd (",
            " may not read /home/me/.ssh/id (",
            " may not connect to 192.0.2.1:443 (",
            // There is no name server.
            "  cannot look up allowed hosts with this port: ",
        ] {
            assert!(
                finished.stderr.contains(denied),
                "{user}: {denied}: {finished:?}"
            );
        }
    }
}
