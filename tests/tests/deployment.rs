//! Where there is no host access: one file copied into any image, in front of its entry point.

use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use e2e::{Alert, BareRoot, Finished, Limited, ProcView, Scratch, need_root, skip, wait_for};
use rustix::process::{Pid, Signal, kill_process};

const LIMIT: Duration = Duration::from_secs(30);

fn alerts(finished: &Finished) -> Vec<Alert> {
    finished.stderr.lines().filter_map(Alert::parse).collect()
}

#[test]
fn in_a_bare_image_a_user_is_watched_with_little_of_proc() {
    need_root!();
    let root = BareRoot::new();
    for proc in [ProcView::Masked, ProcView::OwnProcesses] {
        let script = "cat /etc/shadow; touch /new 2>/dev/null; ls /sys /tmp /dev; id -u; exit 7";
        let run = ["/tollgate", "run", "--json", "--", "/bin/sh", "-c", script];
        let finished = root.run(proc, &run);
        let alerts = alerts(&finished);
        assert_eq!(finished.code(), 7, "{proc:?}: {finished:?}");
        let [alert] = &alerts[..] else {
            panic!("{proc:?}: one alert expected: {alerts:?}; {finished:?}")
        };
        assert_eq!(alert.rule, "Read sensitive file untrusted");
        for (field, value) in [
            ("fd.name", "/etc/shadow"),
            // Busybox's shell runs its programs by /proc/self/exe: that is the name at exec.
            ("proc.name", "exe"),
            ("proc.exepath", "/bin/busybox"),
            ("proc.pname", "sh"),
            ("user.uid", "1000"),
        ] {
            assert_eq!(alert.field(field), value, "{proc:?} {field}: {alert}");
        }
        // The workload saw what it would have seen: none of the three folders.
        assert_eq!(
            finished.stderr.matches("No such file").count(),
            3,
            "{finished:?}"
        );
        let messages = finished.stderr.lines();
        let mut messages = messages.filter(|line| line.starts_with("tollgate"));
        assert_eq!(messages.next(), None, "{finished:?}");
    }
}

#[test]
fn without_proc_the_cause_and_the_next_step_are_named() {
    need_root!();
    let root = BareRoot::new();
    let finished = root.run(ProcView::Missing, &["/tollgate", "run", "--", "/bin/true"]);
    assert_eq!(finished.code(), 3, "{finished:?}");
    assert_eq!(
        finished.stderr,
        "tollgate: cannot use /proc: nothing is mounted there\n\
         help: mount a new /proc with `mount -t proc proc /proc`, as container runtimes and `unshare --mount-proc` do\n"
    );
}

#[test]
fn the_static_program_needs_no_library() {
    let Some(program) = e2e::static_program() else {
        skip!("`make static` takes minutes", || Ok(String::from(
            "TOLLGATE_STATIC_BIN is not set"
        )));
    };
    // `ldd` has found no library; the loader of libraries is not asked for either.
    let headers = Command::new("readelf")
        .arg("--program-headers")
        .arg(&program)
        .output();
    let headers = headers.expect("binutils are installed with gcc");
    let text = String::from_utf8_lossy(&headers.stdout);
    assert!(text.contains("LOAD") && !text.contains("INTERP"), "{text}");
}

/// `tollgate run -- COMMAND` as the first process of a pid namespace.
fn first_process(scratch: &Scratch, script: &str) -> Limited {
    let program = scratch.program(&e2e::program(), "tollgate");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--"]);
    command
        .arg(program)
        .args(["run", "--quiet", "--", "bash", "-c", script]);
    command.stdin(Stdio::null());
    Limited::start(&mut command, LIMIT)
}

/// The process outside that is pid 1 inside: the only child of unshare(1).
fn outside_pid(unshare: &Limited) -> Pid {
    let pid = unshare.pid().as_raw_nonzero();
    let file = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(file).expect("unshare runs");
    let child = children.trim().parse().ok().and_then(Pid::from_raw);
    child.unwrap_or_else(|| panic!("unshare has not one child: {children:?}"))
}

#[test]
fn as_pid_1_the_exit_status_is_the_commands() {
    need_root!();
    for (script, status) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137)] {
        let finished = first_process(&Scratch::new(), script).finish(b"");
        assert_eq!(finished.code(), status, "{script}: {finished:?}");
    }
}

#[test]
fn as_pid_1_signals_reach_the_command() {
    need_root!();
    for (handler, signal, status) in [
        ("trap 'exit 42' TERM;", Signal::TERM, 42),
        ("trap 'exit 43' INT;", Signal::INT, 43),
        ("trap 'exit 44' QUIT;", Signal::QUIT, 44),
        ("", Signal::TERM, 143),
    ] {
        let scratch = Scratch::new();
        let ready = scratch.path().join("ready");
        let script = format!(
            "{handler} : > {}; while :; do sleep 0.05; done",
            ready.display()
        );
        let run = first_process(&scratch, &script);
        wait_for(&scratch.path().join("ready"));
        kill_process(outside_pid(&run), signal).expect("it runs");
        let finished = run.finish(b"");
        assert_eq!(
            finished.code(),
            status,
            "{handler:?} {signal:?}: {finished:?}"
        );
    }
}

#[test]
fn as_pid_1_orphans_are_reaped_whoever_left_them() {
    need_root!();
    let scratch = Scratch::new();
    let (ready, done) = (scratch.path().join("ready"), scratch.path().join("done"));
    let script = format!(
        "for i in 1 2 3 4 5; do ( (sleep 0.1; exit $i) & ); done; : > {}\n\
         until [ -e {} ]; do sleep 0.05; done; sleep 0.5\n\
         ps -eo stat= | grep -c Z",
        ready.display(),
        done.display()
    );
    let run = first_process(&scratch, &script);
    wait_for(&scratch.path().join("ready"));
    // As `docker exec` does it: its parent is outside, so its orphans go to pid 1.
    let target = outside_pid(&run).as_raw_nonzero().to_string();
    let mut session = Command::new("nsenter");
    session.args(["--target", &target, "--pid", "--mount", "--", "bash", "-c"]);
    session.arg(format!("( (sleep 0.1) & ); : > {}", done.display()));
    let session = session
        .process_group(0)
        .status()
        .expect("util-linux has nsenter");
    assert!(session.success());
    let finished = run.finish(b"");
    // A session this short may end before it is watched, which is told before and after.
    let zombies = finished.stdout.lines().find(|line| !line.contains(' '));
    assert_eq!(zombies, Some("0"), "{finished:?}");
}

#[test]
fn as_pid_1_the_end_of_the_command_ends_the_container() {
    need_root!();
    let finished = first_process(&Scratch::new(), "sleep 60 & exit 5").finish(b"");
    assert_eq!(finished.code(), 5, "{finished:?}");
    assert!(finished.elapsed < Duration::from_secs(20), "{finished:?}");
}

/// The flags make no difference to what is tried: no network, and limits that an ordinary user
/// has too.
const PODMAN_RUN: &[&str] = &[
    "--runtime",
    "runc",
    "run",
    "--rm",
    "--network",
    "none",
    "--ulimit",
    "nofile=1024:1024",
    "--ulimit",
    "nproc=1000:1000",
];

/// Runs `cat /etc/shadow` behind tollgate as entry point, in a container with the default
/// capabilities and the default seccomp profile.
fn in_podman(options: &[&str]) -> Finished {
    let (root, storage) = (BareRoot::new(), Scratch::new());
    let mut podman = Command::new("podman");
    podman.arg("--root").arg(storage.path().join("storage"));
    podman.arg("--runroot").arg(storage.path().join("run"));
    podman
        .args(["--cgroup-manager", "cgroupfs"])
        .args(PODMAN_RUN)
        .args(options);
    podman.args(["--entrypoint", r#"["/tollgate","run","--json","--"]"#]);
    podman.arg("--rootfs").arg(root.path());
    podman
        .args(["sh", "-c", "cat /etc/shadow; exit 6"])
        .stdin(Stdio::null());
    let finished = Limited::start(&mut podman, LIMIT).finish(b"");
    unmount_storage(&storage);
    finished
}

/// What a container engine leaves mounted keeps its folder from being removed.
fn unmount_storage(scratch: &Scratch) {
    let _ = Command::new("umount")
        .arg("-R")
        .arg(scratch.path().join("storage/overlay"))
        .output();
}

#[test]
fn as_entry_point_it_works_under_a_container_engines_defaults() {
    need_root!();
    e2e::need_slow!();
    let profile = Scratch::new();
    let docker = profile.file("docker.json", 0o644, docker_like_profile());
    let docker = format!("seccomp={}", docker.display());
    for options in [
        &["--user", "0"][..],
        &["--user", "1000", "--read-only"],
        &[
            "--user",
            "1000",
            "--cap-drop",
            "all",
            "--security-opt",
            "no-new-privileges",
        ],
        &["--user", "0", "--security-opt", &docker],
        &["--user", "1000", "--security-opt", &docker],
        &[
            "--user",
            "1000",
            "--cap-add",
            "SYS_PTRACE",
            "--security-opt",
            &docker,
        ],
    ] {
        let finished = in_podman(options);
        assert_eq!(finished.code(), 6, "{options:?}: {finished:?}");
        let alerts = alerts(&finished);
        let [alert] = &alerts[..] else {
            panic!("{options:?}: {alerts:?} {finished:?}")
        };
        assert_eq!(alert.rule, "Read sensitive file untrusted", "{options:?}");
        assert_eq!(
            alert.field("container.id").len(),
            12,
            "{options:?}: {alert}"
        );
    }
}

/// The images from which the Dockerfile of docs is built; the second stands for the user's own.
const BUILD_IMAGES: [&str; 2] = ["docker.io/library/debian:12", "docker.io/library/redis:7"];

/// It takes a release build from nothing.
#[test]
fn the_dockerfile_of_docs_builds_an_image_that_watches() {
    need_root!();
    e2e::need_slow!();
    let scratch = Scratch::new();
    let podman = || {
        let mut podman = Command::new("podman");
        podman.arg("--root").arg(scratch.path().join("storage"));
        podman.arg("--runroot").arg(scratch.path().join("run"));
        podman.args(["--cgroup-manager", "cgroupfs", "--runtime", "runc"]);
        podman.stdin(Stdio::null());
        podman
    };
    for image in BUILD_IMAGES {
        let mut pull = podman();
        pull.args(["pull", "--quiet", image]);
        let pulled = Limited::start(&mut pull, Duration::from_secs(600)).finish(b"");
        if pulled.code() != 0 {
            unmount_storage(&scratch);
            skip!("needs images of a public registry", || Ok(format!(
                "podman cannot pull {image}: {}",
                pulled.stderr.trim_end()
            )));
        }
    }
    // The commit alone, without what was built here.
    let clone = scratch.path().join("clone");
    let mut git = Command::new("git");
    git.args(["clone", "--quiet"])
        .arg(e2e::repository())
        .arg(&clone);
    assert!(git.status().expect("git is installed").success());
    let mut build = podman();
    build.args(["build", "--quiet", "-f", "docs/howto/deployment/Dockerfile"]);
    build.args([
        "--build-arg",
        "IMAGE=docker.io/library/redis:7",
        "-t",
        "watched",
        ".",
    ]);
    let built = Limited::start(build.current_dir(&clone), Duration::from_secs(3400)).finish(b"");
    assert_eq!(built.code(), 0, "{built:?}");
    let mut run = podman();
    run.args(PODMAN_RUN);
    run.args(["watched", "sh", "-c", "cat /etc/shadow; exit 6"]);
    let finished = Limited::start(&mut run, LIMIT).finish(b"");
    unmount_storage(&scratch);
    assert_eq!(finished.code(), 6, "{finished:?}");
    let rules: Vec<_> = alerts(&finished)
        .into_iter()
        .map(|alert| alert.rule)
        .collect();
    assert_eq!(rules, ["Read sensitive file untrusted"], "{finished:?}");
}

/// What Docker's default profile lacks of podman's without CAP_SYS_PTRACE, as far as it concerns
/// us: pidfd_getfd and kcmp fail with EPERM.
fn docker_like_profile() -> String {
    let podmans = std::fs::read_to_string("/usr/share/containers/seccomp.json");
    let podmans = podmans.expect("golang-github-containers-common is installed with podman");
    let mut profile: serde_json::Value = serde_json::from_str(&podmans).expect("it is JSON");
    profile["defaultErrnoRet"] = 1.into();
    let groups = profile["syscalls"]
        .as_array_mut()
        .expect("a profile lists calls");
    for group in groups {
        let names = group["names"].as_array_mut().expect("a group has names");
        names.retain(|name| name != "pidfd_getfd" && name != "kcmp");
    }
    profile.to_string()
}

/// Programs made for the test: Debian's own need not be installed.
#[test]
fn programs_that_lose_privileges_are_announced_once_each() {
    need_root!();
    let scratch = Scratch::new();
    // Never a link: its mode is about to change.
    let copy = |name: &str| {
        let path = scratch.path().join(name);
        testing::copy_program("/bin/cat", &path).expect("the scratch folder is writable");
        path
    };
    let (owner, group, capable, plain) =
        (copy("owner"), copy("group"), copy("capable"), copy("plain"));
    for (file, mode) in [(&owner, "4755"), (&group, "2755")] {
        assert!(
            tool("chmod", &[mode.as_ref(), file.as_os_str()]),
            "{}",
            file.display()
        );
    }
    assert!(tool(
        "setcap",
        &["cap_net_raw=ep".as_ref(), capable.as_os_str()]
    ));
    let all = [&owner, &group, &capable, &plain].map(|file| file.display().to_string());
    let script = format!(
        "for i in 1 2; do {}; done",
        all.map(|file| format!("{file} /dev/null")).join("; ")
    );
    let program = scratch.program(&e2e::program(), "tollgate");
    let run = |user: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(user).arg("--").arg(&program);
        command
            .args(["run", "--json", "--", "sh", "-c", &script])
            .env("HOME", "/nonexistent") // That of root may be closed to the user.
            .stdin(Stdio::null());
        let finished = Limited::start(&mut command, LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{finished:?}");
        let said = alerts(&finished).into_iter();
        let said = said.filter(|alert| alert.rule == "Tollgate internal: privileges withheld");
        said.map(|alert| {
            (
                alert.field("proc.exepath"),
                alert.field("tollgate.privilege"),
            )
        })
        .collect::<Vec<_>>()
    };
    let expected = [
        (&owner, "user"),
        (&group, "group"),
        (&capable, "capabilities"),
    ];
    let expected = expected.map(|(file, what)| (file.display().to_string(), what.to_owned()));
    assert_eq!(
        run(&["--reuid=1000", "--regid=1000", "--clear-groups"]),
        expected
    );
    // Root has no use for them, and with CAP_SYS_ADMIN they are not lost.
    assert_eq!(run(&["--regid=0", "--clear-groups"]), []);
}

fn tool(name: &str, arguments: &[&OsStr]) -> bool {
    let status = Command::new(name).args(arguments).status();
    status
        .unwrap_or_else(|error| panic!("cannot run {name}: {error}"))
        .success()
}

/// Capabilities that Docker gives to root; see `Identity::Docker`.
fn as_root_of_a_container(more: &str, script: &str) -> Finished {
    let scratch = Scratch::new();
    let program = scratch.program(&e2e::program(), "tollgate");
    let bounding = format!(
        "-all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,+setfcap,\
         +setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write{more}"
    );
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", "--bounding-set", &bounding, "--"]);
    command
        .arg(program)
        .args(["run", "--json", "--quiet", "--", "sh", "-c", script]);
    command.stdin(Stdio::null());
    Limited::start(&mut command, LIMIT).finish(b"")
}

#[test]
fn a_worker_of_another_user_is_watched_with_cap_sys_ptrace_and_reported_without() {
    need_root!();
    let folder = Scratch::new();
    let link = folder.path().join("link");
    let script = format!(
        "setpriv --reuid=1000 --regid=1000 --clear-groups ln -s /etc/shadow {}",
        link.display()
    );
    let watched = |finished: &Finished| {
        let of_worker = alerts(finished).into_iter();
        of_worker
            .map(|alert| (alert.source.clone(), alert.rule))
            .collect::<Vec<_>>()
    };
    let capable = as_root_of_a_container(",+sys_ptrace", &script);
    let rule = (
        "syscall".to_owned(),
        "Create Symlink Over Sensitive Files".to_owned(),
    );
    assert!(watched(&capable).contains(&rule), "{capable:?}");
    std::fs::remove_file(&link).expect("the worker has made it");
    let incapable = as_root_of_a_container("", &script);
    assert!(link.symlink_metadata().is_ok(), "{incapable:?}");
    let sources = watched(&incapable);
    assert!(
        sources.iter().any(|(source, _)| source == "internal"),
        "{incapable:?}"
    );
}

#[test]
fn an_older_kernel_can_be_pretended() {
    let tollgate = |arguments: &[&str]| {
        let mut command = Command::new(e2e::program());
        Limited::start(command.args(arguments).stdin(Stdio::null()), LIMIT).finish(b"")
    };
    let supported = |version: &str, name: &str| {
        let doctor = tollgate(&["doctor", "--json", "--pretend-kernel", version]);
        let report: serde_json::Value = serde_json::from_str(&doctor.stdout).expect("it is JSON");
        let probes = report["probes"].as_array().expect("it is a list").iter();
        let found = probes.clone().find(|probe| probe["name"] == name);
        found
            .map(|probe| probe["support"] == "yes")
            .expect("there is such a probe")
    };
    for (name, since, before) in [
        ("pidfd-getfd", "5.6", "5.5"),
        ("wait-killable", "5.19", "5.18"),
        ("sync-wake-up", "6.6", "6.5"),
    ] {
        // Only what this kernel has can be taken away.
        if supported("99.0", name) {
            assert!(supported(since, name), "{name} from {since} on");
            assert!(!supported(before, name), "{name} before {since}");
        }
    }
    let refused = tollgate(&["--pretend-kernel", "4.4", "doctor"]);
    assert_eq!(refused.code(), 2, "{refused:?}");
    assert!(
        refused.stderr.contains("expected a version from 5.5 on"),
        "{refused:?}"
    );
}
