//! Disks that fill up, writers that are killed, files that are damaged.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use e2e::{Engine, Watch, need_root, skip, until};
use rustix::process::{Pid, Signal, kill_process};

use crate::recording::recorded;
use crate::{RULES, WORK, need_sysdig, replay, sysdig};

/// Long enough for a loaded machine; nothing waits for it unless something is broken.
const PATIENCE: Duration = Duration::from_secs(40);

#[test]
fn a_full_disk_ends_the_recording_and_nothing_else() {
    let (watched, _) = recorded("unused", &["-w", "/dev/full"]);
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let stopped = watched.of("Tollgate internal: recording stopped");
    assert_eq!(stopped.len(), 1, "{}", watched.story());
    // It is empty, and not said to be of any use.
    let said = &stopped[0].output;
    assert!(said.ends_with("; nothing was written to it"), "{said}");
    assert!(watched.of("open").len() > 5, "{}", watched.story());
}

#[test]
fn a_file_that_cannot_be_written_stops_the_start() {
    let (watched, _) = recorded("unused", &["-w", "/no/such/folder/x.scap"]);
    assert_eq!(watched.code(), 2, "{}", watched.story());
    assert!(
        watched
            .finished
            .stderr
            .contains("cannot write /no/such/folder/x.scap")
    );
}

/// The agent's pid, once it has written it.
fn agent(file: &Path) -> Pid {
    let started = Instant::now();
    loop {
        let text = fs::read_to_string(file).unwrap_or_default();
        if let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) {
            return pid;
        }
        assert!(started.elapsed() < PATIENCE, "no pid file");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Kills the agent while it records; another one takes over under `notify`.
#[test]
fn what_a_killed_agent_has_recorded_can_be_read() {
    if Engine::under_test() != Engine::Notify {
        // Under the others nobody takes over, and the command ends.
        skip!("needs the keeper of the engine notify", || Ok(
            "TOLLGATE_TEST_ENGINE names another engine".to_owned()
        ));
    }
    let watch = Watch::script(
        "cat /etc/hosts > /dev/null; : > %W/loops; while [ ! -e %W/go ]; do : < /etc/passwd; done
        cat /etc/group > /dev/null",
    );
    let path = |name: &str| watch.scratch().path().join(name);
    let (pid, file, next) = (path("pid"), path("killed.scap"), path("killed.scap0"));
    let (loops, go) = (path("work").join("loops"), path("work").join("go"));
    let watch = watch
        .rules(RULES)
        .option("-w")
        .option(file.display().to_string())
        .option("-P")
        .option(pid.display().to_string());
    let running = watch.start();
    let first = agent(&pid);
    // In the midst of writing what the loop does.
    let length = || fs::metadata(&file).map_or(0, |meta| meta.len());
    until("it loops", || loops.exists());
    let before = length();
    until("it records", || length() > before + 100_000);
    kill_process(first, Signal::KILL).expect("it lives");
    until("another one takes over", || {
        agent(&pid) != first && fs::metadata(&next).is_ok_and(|meta| meta.len() > 50_000)
    });
    fs::write(&go, "").expect("the work folder can be written");
    let watched = watch.watched(running.finish(b""));
    assert_eq!(watched.code(), 0, "{}", watched.story());
    let opened = |file: &Path| {
        let (code, out, errors) = replay(&["-p", "%fd.name", "--filter", "evt.type=openat"], file);
        // The last event may be missing, not more.
        assert!(
            code == 0 || errors.contains("ends inside a block"),
            "{errors}"
        );
        out
    };
    let (before, after) = (opened(&file), opened(&next));
    assert!(before.lines().any(|line| line == "/etc/hosts"), "{before}");
    assert!(before.lines().any(|line| line == "/etc/passwd"), "{before}");
    assert!(after.lines().any(|line| line == "/etc/group"), "{after}");
    need_sysdig!();
    let theirs = sysdig(&["-p", "*%evt.type %fd.name"], &next);
    assert!(
        theirs.lines().any(|line| line == "openat /etc/group"),
        "{theirs}"
    );
}

/// A file system with room for 256 KiB, in a mount namespace that ends with the command.
#[test]
fn a_recording_on_a_disk_that_fills_up_can_be_read() {
    need_root!();
    let watch = Watch::script(WORK);
    let scratch = watch.scratch().path().to_owned();
    let rules = watch.scratch().file("rules.yaml", 0o644, RULES);
    let script = format!(
        "mkdir {folder} && mount -t tmpfs -o size=256k none {folder} || exit 99
        {program} run -q --json -r {rules} -w {folder}/full.scap -- \
            sh -c 'i=0; while [ $i -lt 3000 ]; do : < /etc/hosts; i=$((i + 1)); done; exit 7'
        status=$?; cp {folder}/full.scap {scratch}/; exit $status",
        folder = scratch.join("small").display(),
        program = watch.program().display(),
        rules = rules.display(),
        scratch = scratch.display(),
    );
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output()
        .expect("unshare is there");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{errors}");
    let stopped = |line: &&str| line.contains("Tollgate internal: recording stopped");
    let stopped: Vec<_> = errors.lines().filter(stopped).collect();
    assert!(
        matches!(stopped[..], [line] if line.contains("; the events recorded so far are readable")),
        "{errors}"
    );
    // The command went on, and was watched to its end.
    let of_hosts = |line: &&str| line.contains("\"fd.name\":\"/etc/hosts\"");
    let alerts = errors.lines().filter(of_hosts).count();
    assert_eq!(alerts, 3000);
    let file = scratch.join("full.scap");
    let size = fs::metadata(&file).expect("it was copied").len();
    assert!((200_000..=262_144).contains(&size), "{size}");
    let (code, out, errors) = replay(&["-p", "%proc.name %fd.name"], &file);
    assert_eq!((code, errors.as_str()), (0, ""));
    let opened = out.lines().filter(|line| *line == "sh /etc/hosts").count();
    assert!((100..3000).contains(&opened), "{opened}");
    need_sysdig!();
    let theirs = sysdig(&["-p", "*%evt.type %fd.name", "evt.dir=<"], &file);
    let theirs = theirs.lines().filter(|line| *line == "openat /etc/hosts");
    assert_eq!(theirs.count(), opened);
}
