//! `container:quarantine` cuts the container of an alert off from the network, and no other. Traffic is on the loopback of a
//! network of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use e2e::marks::work;
use e2e::responding::{TAKEN, answering, pair, results, to_mark};
use e2e::{Limited, Watch, WatchResult, need_root};

/// Control groups that are named as those of containers, removed at the end.
struct Groups(Vec<PathBuf>);

impl Groups {
    fn new(count: usize) -> Self {
        let hierarchy = hierarchy();
        // Tests run at the same time.
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let groups = (0..count).map(|_| {
            let number = MADE.fetch_add(1, Ordering::Relaxed);
            let id = format!("{:08x}{number:056x}", std::process::id());
            let path = hierarchy.join(format!("docker-{id}.scope"));
            fs::create_dir(&path).expect("root makes control groups");
            path
        });
        Self(groups.collect())
    }

    fn path(&self, number: usize) -> &Path {
        &self.0[number]
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for path in &self.0 {
            // The kernel takes a moment to let go of processes that have ended.
            for _ in 0..200 {
                if fs::remove_dir(path).is_ok() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

fn hierarchy() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("it can be read");
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let at = mount
        .expect("control groups of version 2 are mounted")
        .split(' ')
        .nth(4);
    PathBuf::from(at.expect("a place"))
}

/// Makes a BPF file system and a network for what follows, with a server; then runs the words, and then `$AFTER`.
const SURROUNDINGS: &str = "\
mount -t bpf bpf /sys/fs/bpf && ip link set lo up || exit 9
python3 $TALK serve $WORK/port & server=$!
while [ ! -e $WORK/port ]; do sleep 0.02; done
\"$@\"
status=$?
eval \"$AFTER\"
kill $server
exit $status";

fn talk() -> String {
    format!("{}/fixtures/quarantined.py", env!("CARGO_MANIFEST_DIR"))
}

/// Runs it there.
fn run(watch: Watch, after: &str) -> WatchResult {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "sh", "-c", SURROUNDINGS, "sh"]);
    command.args(watch.command_line());
    command
        .env("TALK", talk())
        .env("WORK", work(&watch))
        .env("AFTER", after);
    let finished = Limited::start(&mut command, Duration::from_secs(60)).finish(b"");
    watch.watched(finished)
}

/// A line of shell that talks from a group.
fn from(group: &Path, words: &str) -> String {
    format!(
        "sh -c 'echo $$ > {}/cgroup.procs; exec python3 {} {words}'",
        group.display(),
        talk()
    )
}

fn action(parameters: &str) -> String {
    to_mark(&format!(
        "  - {{action: Cut, actionner: 'container:quarantine', parameters: {{{parameters}}}}}\n"
    ))
}

#[test]
fn a_container_is_cut_off_and_stays_so_after_the_end_until_it_is_undone() {
    need_root!();
    let groups = Groups::new(2);
    let (hit, twin) = (groups.path(0), groups.path(1));
    let script = format!(
        "{} & {}; wait",
        from(twin, "talk %W/port twin -"),
        from(hit, "talk %W/port hit %W/mark")
    );
    let watch = answering(&script, &action("allow: [127.0.0.2/32]"));
    let again = from(hit, "try $WORK/port again");
    let after = format!(
        "{again}; rm -r /sys/fs/bpf/tollgate-quarantine/*; {}",
        from(hit, "try $WORK/port undone")
    );
    let watched = run(watch, &after);
    let mut printed: Vec<&str> = watched.finished.stdout.lines().collect();
    printed.sort_unstable();
    let expected = [
        "again new=no allowed=yes",
        "hit existing=no new=no allowed=yes",
        "twin existing=yes new=yes allowed=yes",
        "undone new=yes allowed=yes",
    ];
    assert_eq!(printed, expected, "{}", watched.story());
    assert_eq!(results(&watched), [pair("container:quarantine", "done")]);
    let report = watched.of(TAKEN)[0];
    let reason = report.field("response.reason");
    assert!(reason.starts_with("cut off the container "), "{reason}");
    assert!(
        reason.ends_with("from the network except 127.0.0.2/32"),
        "{reason}"
    );
    let undo = report.field("response.undo");
    assert!(
        undo.starts_with("rm -r /sys/fs/bpf/tollgate-quarantine/"),
        "{undo}"
    );
}

#[test]
fn a_quarantine_with_a_time_ends_with_it_or_with_tollgate() {
    need_root!();
    let groups = Groups::new(1);
    let group = groups.path(0);
    let during = format!(
        "{}; sleep 4; {}",
        from(group, "talk %W/port during %W/mark"),
        from(group, "try %W/port later")
    );
    let watched = run(answering(&during, &action("duration: 6")), "true");
    let expected = "during existing=no new=no allowed=no\nlater new=yes allowed=yes\n";
    assert_eq!(watched.finished.stdout, expected, "{}", watched.story());

    let watch = answering(
        &from(group, "talk %W/port during %W/mark"),
        &action("duration: 600"),
    );
    let watched = run(watch, &from(group, "try $WORK/port after"));
    let expected = "during existing=no new=no allowed=no\nafter new=yes allowed=yes\n";
    assert_eq!(watched.finished.stdout, expected, "{}", watched.story());
}

#[test]
fn what_is_in_no_container_or_beside_a_protected_program_is_not_cut_off() {
    need_root!();
    // The process of the alert is in no group of a container.
    let watch = answering(
        &format!("python3 {} talk %W/port host %W/mark", talk()),
        &action(""),
    );
    let watched = run(watch, "true");
    assert_eq!(
        watched.finished.stdout,
        "host existing=yes new=yes allowed=yes\n",
        "{}",
        watched.story()
    );
    assert_eq!(results(&watched), [pair("container:quarantine", "refused")]);

    // A program called sshd, which only root can have put there, is in the group.
    let groups = Groups::new(1);
    let group = groups.path(0);
    let script = format!(
        "cp /bin/sleep %W/sshd; chmod 755 %W/sshd; sh -c 'echo $$ > {}/cgroup.procs; exec %W/sshd 6' & sleep 0.2; {}",
        group.display(),
        from(group, "talk %W/port beside %W/mark")
    );
    let watched = run(answering(&script, &action("")), "true");
    assert!(
        watched
            .finished
            .stdout
            .contains("beside existing=yes new=yes"),
        "{}",
        watched.story()
    );
    assert_eq!(results(&watched), [pair("container:quarantine", "refused")]);
    let reason = watched.of(TAKEN)[0].field("response.reason");
    assert!(reason.contains("`sshd` is protected"), "{reason}");

    let dry = answering(&from(group, "talk %W/port dry %W/mark"), &action(""));
    let watched = run(dry.option("--responses-dry-run"), "true");
    // The other one may still be there.
    let result = &results(&watched)[0].1;
    assert!(
        ["dry_run", "refused"].contains(&result.as_str()),
        "{result}"
    );
    assert_eq!(
        watched.finished.stdout,
        "dry existing=yes new=yes allowed=yes\n"
    );
}

#[test]
fn without_a_bpf_file_system_nothing_starts() {
    need_root!();
    let watch = answering(": < %W/mark", &action("allow: [10.0.0.0/33]"));
    let watched = run(watch, "true");
    assert_eq!(watched.finished.code(), 2, "{}", watched.story());
    let text = &watched.finished.stderr;
    assert!(text.contains("`allow` cannot have `10.0.0.0/33`"), "{text}");

    let watch = answering(": < %W/mark", &action(""));
    let mut command = Command::new("unshare");
    let hide = "mount -t tmpfs none /sys/fs/bpf; exec \"$@\"";
    command
        .args(["--mount", "sh", "-c", hide, "sh"])
        .args(watch.command_line());
    let finished = Limited::start(&mut command, Duration::from_secs(30)).finish(b"");
    assert_eq!(finished.code(), 2);
    assert!(
        finished.stderr.contains("not supported here: "),
        "{}",
        finished.stderr
    );
}
