//! What only the engine `ebpf` has: rings that can be full, the whole host, processes that have ended
//! when their events are evaluated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use e2e::{
    Alert, Engine, Fixture, Limited, Scratch, Watch, need_root, need_slow, program, skip, slow,
    watch_host, watch_host_for,
};

const LIMIT: Duration = Duration::from_secs(60);

/// The whole host is watched, so what one test does fills the rings of the other tests of this file as well.
static FLOODS: RwLock<()> = RwLock::new(());

/// Waits until it may do more at once than a ring has room for.
fn flooding() -> RwLockWriteGuard<'static, ()> {
    FLOODS.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no other test floods the rings.
fn without_floods() -> RwLockReadGuard<'static, ()> {
    FLOODS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Of a program that has ended before anybody could look for it in `/proc`.
const SHORT: &str = "\
- rule: Environment
  desc: a variable of the program itself
  condition: evt.type = execve and evt.res = SUCCESS and proc.name = true and proc.env[MARKED] = yes
  output: environment %proc.args
  priority: DEBUG
- rule: Large environment
  desc: one of several pieces
  condition: evt.type = execve and evt.res = SUCCESS and proc.name = true and proc.env[LAST] = end
  output: large %proc.args
  priority: DEBUG
- rule: Streams
  desc: where it reads and writes
  condition: >
    evt.type = execve and evt.res = SUCCESS and proc.name = true and proc.stdin.name endswith /input
    and proc.stdout.type = pipe and not fd.types[2] exists
  output: streams %proc.stdin.name %proc.stdout.type
  priority: DEBUG
- rule: At a call
  desc: what the streams are when the call has been made
  condition: evt.type = dup2 and evt.rawres = 0 and proc.name = sh and proc.stdin.name endswith /input
  output: call %proc.stdin.name
  priority: DEBUG
- rule: At the end
  desc: what they were at last
  condition: evt.type = procexit and proc.name = true and proc.stdin.name endswith /input
  output: end %proc.stdin.name
  priority: DEBUG
";

#[test]
fn programs_that_end_at_once_are_known_with_their_environment_and_streams() {
    need_root!();
    let script = "\
        cd %W; echo > input; large=$(head -c 15000 /dev/zero | tr '\\0' x)
        for i in $(seq 100); do env MARKED=yes /usr/bin/true $i; done
        for i in $(seq 20); do env -i MANY=$large LAST=end /usr/bin/true $i; done
        for i in $(seq 100); do /usr/bin/true < input 2>&-; done | cat
        for i in $(seq 100); do sh -c 'exec 3< input; exec <&3'; done";
    // A busy machine: what is read from `/proc` comes late.
    let mut busy = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .expect("a shell");
    let watched = Watch::script(script)
        .engine(Engine::Ebpf)
        .rules(SHORT)
        .run();
    busy.kill().expect("it is ours");
    busy.wait().expect("it is ours");
    for (rule, count) in [
        ("Environment", 100),
        ("Large environment", 20),
        ("Streams", 100),
        // Redirections of the third line, too.
        ("At a call", 200),
        ("At the end", 100),
    ] {
        assert_eq!(watched.of(rule).len(), count, "{rule}: {}", watched.story());
    }
    let stats = watched.stats.as_ref().expect("the run writes statistics");
    assert_eq!(stats["counters"]["undecided"], 0, "{}", watched.story());
}

#[test]
fn calls_by_an_io_uring_are_events_or_told() {
    need_root!();
    let rules = "\
- rule: Opened
  desc: x
  condition: evt.type in (open, openat) and fd.name endswith /secret and proc.name = racer
  output: opened %fd.name %evt.rawres %fd.nameraw
  priority: DEBUG
- rule: Failed
  desc: x
  condition: evt.type in (open, openat) and evt.failed = true and fd.name endswith /missing and proc.name = racer
  output: failed %fd.name %evt.res
  priority: DEBUG
- rule: Removed
  desc: x
  condition: evt.type in (unlink, unlinkat) and fs.path.name endswith /secret
  output: removed
  priority: DEBUG
";
    let fixture = Fixture::shared("racer");
    let watch = Watch::new(["true"]).engine(Engine::Ebpf).rules(rules);
    let racer = watch.scratch().program(fixture.program(), "racer");
    let racer = racer.display();
    let script = format!(
        "cd %W; echo > secret; echo > other; {racer} ringopen $PWD/secret; {racer} ringopen secret
         {racer} ringopen other; {racer} ringopen ../work/./secret; {racer} ringopen $PWD/missing
         {racer} ringunlink secret; exit 0"
    );
    let watched = watch
        .command(["sh", "-c", &script].map(str::to_owned))
        .run();
    assert_eq!(watched.of("Opened").len(), 3, "{}", watched.story());
    assert_eq!(watched.of("Failed").len(), 1, "{}", watched.story());
    let told = watched.of("Tollgate internal: io_uring call");
    let is_removal = |alert: &&&e2e::Alert| alert.output.contains("operation=unlinkat");
    assert_eq!(
        told.iter().filter(is_removal).count(),
        1,
        "{}",
        watched.story()
    );
    let stats = watched.stats.as_ref().expect("the run writes statistics");
    assert_eq!(
        stats["counters"]["ring_calls_unseen"],
        1,
        "{}",
        watched.story()
    );
}

/// Where alerts wait for more of them, half take longer than 10 ms. What is written through a pipe and `cat` shows what
/// the machine needs by itself to wake up a process that writes, 0.2 ms with little to do.
#[test]
fn an_alert_on_a_machine_with_little_to_do_is_out_at_once() {
    need_root!();
    let files = Scratch::new();
    let secret = files.file("secret", 0o644, "");
    let alerts = files.path().join("alerts");
    let rules = format!(
        "- rule: Opened\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = {}\n  output: x\n  priority: DEBUG\n",
        secret.display()
    );
    let output = format!("file_output.filename={}", alerts.display());
    let options = ["-o", "file_output.enabled=true", "-o", &output];
    const POLL: Duration = Duration::from_micros(100);
    let copy = files.path().join("copy");
    let mut cat = Command::new("cat")
        .stdin(std::process::Stdio::piped())
        .stdout(fs::File::create(&copy).expect("the folder is writable"))
        .spawn()
        .expect("cat starts");
    let mut pipe = cat.stdin.take().expect("it is piped");
    let until_it_grows = |file: &Path, act: &mut dyn FnMut()| {
        let size = || fs::metadata(file).map_or(0, |data| data.len());
        let (before, start) = (size(), std::time::Instant::now());
        act();
        while size() == before {
            assert!(start.elapsed() < LIMIT, "{} does not grow", file.display());
            std::thread::sleep(POLL);
        }
        start.elapsed()
    };
    let (mut times, mut copied) = (Vec::new(), Vec::new());
    let (_, stats) = watch_host(&options, &rules, || {
        for _ in 0..100 {
            times.push(until_it_grows(&alerts, &mut || {
                fs::read(&secret).expect("it is there");
            }));
            copied.push(until_it_grows(&copy, &mut || {
                pipe.write_all(b"x").expect("cat reads");
            }));
            std::thread::sleep(Duration::from_millis(15));
        }
    });
    drop(pipe);
    assert!(cat.wait().expect("it is ours").success());
    times.sort();
    copied.sort();
    let (half, most, machine) = (times[50], times[95], copied[50]);
    println!("from the call to the file: p50 {half:?}, p95 {most:?}, by cat p50 {machine:?}");
    let slowest = machine.max(POLL) * 60;
    assert!(half < slowest, "{times:?}, {copied:?} {stats}");
}

#[test]
fn a_flood_hides_nothing_of_other_processes() {
    need_root!();
    let _alone = flooding();
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let [target, other] = ["target", "targets"].map(|name| files.file(name, 0o644, ""));
    let rules = format!(
        "- rule: Secret\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = {}\n  output: x\n  priority: DEBUG\n\
         - rule: Program\n  desc: x\n  condition: evt.type = execve and evt.res = SUCCESS and proc.args startswith marked-in-a-flood\n  output: x\n  priority: DEBUG\n",
        target.display()
    );
    let (printed, stats) = watch_host(&[], &rules, || {
        let mut flood = Command::new(&crowd)
            .args(["flood", "4"])
            .arg(&other)
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("the program runs");
        let script = "for i in $(seq 200); do /bin/true marked-in-a-flood; done";
        let programs = Command::new("sh").args(["-c", script]).status();
        assert!(programs.expect("a shell").success());
        let hidden = Command::new(&crowd)
            .args([
                "hide".as_ref(),
                target.as_os_str(),
                "1000".as_ref(),
                other.as_os_str(),
                "10".as_ref(),
            ])
            .status();
        assert!(hidden.expect("the program runs").success());
        flood.wait().expect("it ends");
    });
    let count = |rule: &str| printed.matches(&format!("\"rule\":\"{rule}\"")).count();
    assert_eq!((count("Secret"), count("Program")), (1000, 200), "{stats}");
    assert_eq!(stats["cur"]["drops"], 0, "{stats}");
    assert!(
        stats["counters"]["rejected_path"]
            .as_u64()
            .is_some_and(|count| count > 50_000),
        "{stats}"
    );
}

/// Memory of a process, in KiB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let word = line.and_then(|line| line.split_ascii_whitespace().next());
    word.and_then(|word| word.parse().ok()).expect("a number")
}

/// Where a control group of the second version can be made.
fn unified() -> Option<&'static Path> {
    let folders = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].map(Path::new);
    folders
        .into_iter()
        .find(|folder| folder.join("cgroup.controllers").exists())
}

/// One rule about opens in a control group, and one about the program after all others.
const CHURN_RULES: &str = "- rule: In a group\n  desc: x\n  condition: evt.type in (open, openat) and fd.name endswith /secret and proc.name = crowd and container.id != none\n  output: x\n  priority: DEBUG\n\
    - rule: Program\n  desc: x\n  condition: evt.type = execve and proc.args startswith marked-after-churn\n  output: x\n  priority: DEBUG\n";

/// Asserts that nothing was lost or forgotten but places, of which `made` were made.
fn assert_bounded(stats: &serde_json::Value, made: u64) {
    assert_eq!(stats["cur"]["drops"], 0, "{stats}");
    assert_eq!(stats["counters"]["evicted"], 0, "{stats}");
    // Each group is a place, and more of them were than are remembered.
    let count = |name: &str| stats["counters"][name].as_u64().expect("a number");
    assert!(
        count("evicted_container_keys") + count("container_keys") >= made,
        "{stats}"
    );
    assert!(count("evicted_container_keys") > 10_000, "{stats}");
}

/// A million processes and 100,000 control groups with TOLLGATE_TEST_CHURN=100, which takes minutes; a
/// hundredth of each without.
#[test]
fn processes_and_groups_that_come_and_go_leave_nothing_behind() {
    need_root!();
    let _quiet = without_floods();
    need_slow!();
    let Some(unified) = unified() else {
        skip!("has no control groups of the second version", || Ok(
            String::from("no cgroup.controllers below /sys/fs/cgroup")
        ));
    };
    let scale = std::env::var("TOLLGATE_TEST_CHURN").map_or(1, |scale| {
        scale.parse().expect("TOLLGATE_TEST_CHURN is a number")
    });
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let secret = files.file("secret", 0o644, "");
    let folder = unified.join(format!("tollgate-churn-{}", std::process::id()));
    fs::create_dir(&folder).expect("root makes control groups");
    let run = |words: &[String]| {
        let done = Command::new(&crowd).args(words).status();
        assert!(done.expect("the program runs").success());
    };
    let births = |count: u64| run(&["births".to_owned(), count.to_string()]);
    let groups = |count: u64| {
        let [folder, secret] = [&folder, &secret].map(|path| path.display().to_string());
        run(&["groups".to_owned(), count.to_string(), folder, secret]);
    };
    let mut sizes = Vec::new();
    // To a file, because standard output is read at the end, and alerts that wait for that take memory.
    let alerts = files.path().join("alerts");
    let output = format!("file_output.filename={}", alerts.display());
    let options = [
        "stdout_output.enabled=false",
        "file_output.enabled=true",
        "file_output.keep_alive=true",
        &output,
    ];
    let options = options.map(|option| ["-o", option]).concat();
    let limit = Duration::from_secs(1800);
    let (_, stats) = watch_host_for(limit, &options, CHURN_RULES, |watcher| {
        // What is kept of processes and places that have ended is bounded: first that much.
        births(10_000);
        groups(10_000);
        sizes.push(resident(watcher));
        births(10_000 * scale);
        sizes.push(resident(watcher));
        groups(10_000.max(1_000 * scale));
        sizes.push(resident(watcher));
        let marked = Command::new("true").arg("marked-after-churn").status();
        assert!(marked.expect("it runs").success());
    });
    fs::remove_dir(&folder).expect("its groups are gone");
    println!("resident KiB: {sizes:?}; {stats}");
    let printed = fs::read_to_string(&alerts).expect("alerts were written");
    assert!(printed.contains("\"rule\":\"Program\""), "{stats}");
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    assert!(last < first + first / 8, "{sizes:?} {stats}");
    assert_bounded(&stats, 10_000 + 10_000.max(1_000 * scale));
}

/// Whoever makes processes as fast as can be hides no program: its births and ends leave room for others.
/// Whoever waits for the command finds all of its alerts, also where evaluating takes longer than the command.
#[test]
fn the_command_ends_after_its_alerts_are_written() {
    need_root!();
    let _quiet = without_floods();
    const OPENS: usize = 3000;
    const RIVALS: usize = 3;
    let scratch = Scratch::new();
    let (rules, log) = (scratch.path().join("rules"), scratch.path().join("log"));
    let text = "- rule: Opened\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = /etc/shadow\n  \
                output: opened\n  priority: NOTICE\n";
    fs::write(&rules, text).expect("it is ours");
    // The agent, the command and three programs that never wait share one processor.
    let script = format!(
        "set -e; rivals=; for n in $(seq {RIVALS}); do (while :; do :; done) & rivals=\"$rivals $!\"; done
         trap 'kill $rivals' EXIT
         '{}' run -q --engine ebpf --log '{log}' -r '{}' -- \
             sh -c 'n=0; while [ $n -lt {OPENS} ]; do : </etc/shadow; n=$((n + 1)); done'
         grep -c Notice '{log}'",
        program().display(),
        rules.display(),
        log = log.display(),
    );
    let processor = Command::new("taskset")
        .args(["-pc", &std::process::id().to_string()])
        .output();
    let processor = processor.expect("taskset is part of util-linux");
    let processor = String::from_utf8_lossy(&processor.stdout);
    let processor = processor.rsplit(' ').next().expect("it prints a list");
    let first = processor.split(|c: char| !c.is_ascii_digit()).next();
    let mut command = Command::new("taskset");
    command.args(["-c", first.expect("a list begins with a number")]);
    e2e::same_environment(command.args(["sh", "-c", &script]));
    let finished = Limited::start(&mut command, LIMIT).finish(b"");
    assert_eq!(finished.stdout.trim(), OPENS.to_string(), "{finished:?}");
}

#[test]
fn births_and_ends_that_pile_up_leave_room_for_programs_and_calls_about_privileges() {
    const PROGRAMS: usize = 200;
    need_root!();
    let _alone = flooding();
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let rules = "- rule: Program\n  desc: x\n  condition: evt.type = execve and evt.res = SUCCESS and proc.name = busybox and proc.args contains marked-among-births\n  output: x\n  priority: DEBUG\n\
                 - rule: Privilege\n  desc: x\n  condition: evt.type = chroot and proc.name = busybox and proc.args contains marked-among-births\n  output: x\n  priority: DEBUG\n";
    let (printed, stats) = watch_host_for(LIMIT, &[], rules, |watcher| {
        // So that all of it waits.
        signal(watcher, "-STOP");
        let births = Command::new(&crowd).args(["births", "5000"]).status();
        let script = format!(
            "for i in $(seq {PROGRAMS}); do busybox chroot marked-among-births 2> /dev/null; done; exit 0"
        );
        let programs = Command::new("sh").args(["-c", &script]).status();
        signal(watcher, "-CONT");
        assert!(births.expect("the program runs").success());
        assert!(programs.expect("a shell").success());
    });
    let count = |rule: &str| printed.matches(&format!("\"rule\":\"{rule}\"")).count();
    let counts = (count("Program"), count("Privilege"));
    assert_eq!(counts, (PROGRAMS, PROGRAMS), "{stats}");
    assert_eq!(stats["counters"]["lost_critical"], 0, "{stats}");
    // That it piled up.
    assert!(
        stats["counters"]["lost_state"].as_u64() > Some(0),
        "{stats}"
    );
}

/// Programs that begin and changes of identity that somebody makes among much else.
const MARKED: &str = "
- rule: Marked program
  desc: x
  condition: evt.type = execve and evt.rawres = 0 and proc.name = busybox and proc.args contains marked
  output: x
  priority: DEBUG
- rule: Marked identity
  desc: x
  condition: evt.type = setuid and evt.rawres = 0 and proc.name = crowd and proc.args contains marked
  output: x
  priority: DEBUG
";

/// Programs that begin and changes of identity: so many of each.
fn do_what_is_marked(crowd: &Path, user: &str) {
    do_marked(Command::new("sh"), crowd, user);
}

/// The same by another shell.
fn do_marked(mut shell: Command, crowd: &Path, user: &str) {
    const SCRIPT: &str =
        "for i in $(seq 40); do busybox true marked; \"$0\" identity \"$1\" 0 0 marked; done";
    let done = shell.args(["-c", SCRIPT]).arg(crowd).arg(user).status();
    assert!(done.expect("a shell").success());
}

/// How many were seen of what was marked.
fn marked(printed: &str) -> (usize, usize) {
    let count = |rule: &str| printed.matches(&format!("\"rule\":\"{rule}\"")).count();
    (count("Marked program"), count("Marked identity"))
}

fn started(crowd: &Path, words: &[&str]) {
    ends_well(Command::new(crowd).args(words));
}

fn ends_well(command: &mut Command) {
    let status = command.status();
    assert!(status.expect("the program runs").success(), "{command:?}");
}

/// A control group to watch instead of the host, where other programs may lose what they do.
struct WatchedGroup(PathBuf);

impl WatchedGroup {
    fn new() -> Option<Self> {
        let first = Path::new("/sys/fs/cgroup/pids");
        let first = Some(first).filter(|folder| folder.join("tasks").exists());
        let folder = unified().or(first)?;
        let folder = folder.join(format!("tollgate-lanes-{}", std::process::id()));
        fs::create_dir(&folder).expect("root makes control groups");
        Some(Self(folder))
    }

    /// Returns a command that runs in the group.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0/cgroup.procs\" && exec \"$@\""]);
        command.arg(&self.0).arg(program);
        command
    }
}

impl Drop for WatchedGroup {
    fn drop(&mut self) {
        // Its last process may not be gone yet. A group that remains does no harm: its name is unique.
        for _ in 0..50 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Returns how many records the lanes of calls have lost.
fn lost_calls(stats: &serde_json::Value) -> u64 {
    let counters = ["lost_critical", "lost_bulk"].map(|name| &stats["counters"][name]);
    let counts = counters.map(|count| count.as_u64().expect("it is counted"));
    counts.iter().sum()
}

/// Returns the alerts about losses.
fn drops(printed: &str) -> Vec<Alert> {
    let alerts = printed.lines().filter_map(Alert::parse);
    let drops = alerts.filter(|alert| alert.rule == "Falco internal: syscall event drop");
    drops.collect()
}

/// Other programs of this host share the lanes and may fill them at that moment, but not each of three times.
fn loses_nothing_once(
    watched: impl Fn() -> (String, serde_json::Value),
    is_whole: impl Fn(&str) -> bool,
) {
    let mut failed = Vec::new();
    for (printed, stats) in std::iter::repeat_with(watched).take(3) {
        if is_whole(&printed) && lost_calls(&stats) == 0 {
            return;
        }
        failed.push(format!(
            "{:?} {:?} {stats}",
            marked(&printed),
            drops(&printed)
        ));
    }
    panic!("{failed:#?}");
}

/// A descriptor is made for each port that is tried, and each time the default rules have nothing to ask. The same
/// program in the same group loses what it does where a rule asks for it, which shows that a loss would be seen.
#[test]
fn whoever_looks_for_open_ports_fills_no_lane() {
    need_root!();
    let _alone = flooding();
    let Some(group) = WatchedGroup::new() else {
        skip!("has no control groups", || Ok(String::from(
            "none below /sys/fs/cgroup"
        )));
    };
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let scanner = files.program(fixture.program(), "scanner");
    let folder = group.0.display().to_string();
    let alerts = files.path().join("alerts");
    let output = format!("file_output.filename={}", alerts.display());
    let options = ["-o", "rule_matching=all", "--cgroup", &folder];
    let options = [
        &options[..],
        &["-o", "file_output.enabled=true", "-o", &output],
    ]
    .concat();
    let first = std::cell::Cell::new(0);
    let watched = |rules: &str| {
        first.set(0);
        watch_host_for(LIMIT, &options, rules, |watcher| {
            // The kernel is told that a new group is no container when the first event of it is evaluated.
            let seen = || fs::read_to_string(&alerts).map_or(0, |text| marked(&text).0);
            let before = seen();
            e2e::until("the group is known", || {
                ends_well(group.command(Path::new("busybox")).args(["true", "marked"]));
                first.set(first.get() + 1);
                seen() > before
            });
            // So that all of it waits.
            signal(watcher, "-STOP");
            ends_well(group.command(&scanner).args(["scan", "4", "10000"]));
            do_marked(group.command(Path::new("sh")), &crowd, "1");
            ends_well(group.command(&scanner).args(["scan", "4", "10000"]));
            signal(watcher, "-CONT");
            // Losses are told once a second.
            std::thread::sleep(Duration::from_millis(1500));
        })
    };

    let rules = [include_str!("../../rules/default.yaml"), MARKED].concat();
    loses_nothing_once(
        || watched(&rules),
        |printed| marked(printed) == (first.get() + 40, 40),
    );

    let asked = "- rule: Tried\n  desc: x\n  condition: evt.type = connect and proc.name = scanner\n  output: x\n  priority: DEBUG\n";
    let (printed, stats) = watched(&[asked, MARKED].concat());
    assert!(lost_calls(&stats) > 0, "{stats}");
    let told = drops(&printed);
    let is_named = |alert: &Alert| alert.field("tollgate.processes").contains("scanner[");
    assert!(told.iter().any(is_named), "{told:?} {stats}");
}

/// Who floods the lane of calls about privileges has part of it: other users find room, and so do programs that
/// begin, those of the same user too. What is lost is told by lane, cause and process.
#[test]
fn a_flood_of_calls_about_privileges_hides_nothing_of_others() {
    need_root!();
    let _alone = flooding();
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let rules = format!(
        "- rule: Identity\n  desc: x\n  condition: evt.type = setuid and user.uid = 12345\n  output: x\n  priority: DEBUG\n{MARKED}"
    );
    let floods = [
        ("100", "1000", "1"),
        ("4", "20000", "12345"),
        ("4", "20000", "1"),
    ];
    let floods = if slow() { &floods[..] } else { &floods[..2] };
    for &(processes, count, user) in floods {
        let (printed, stats) =
            watch_host_for(LIMIT, &["-o", "rule_matching=all"], &rules, |watcher| {
                signal(watcher, "-STOP");
                started(&crowd, &["identity", "12345", processes, count]);
                do_what_is_marked(&crowd, user);
                signal(watcher, "-CONT");
                // Losses are told once a second.
                std::thread::sleep(Duration::from_millis(1500));
            });
        let (programs, identities) = marked(&printed);
        assert_eq!(programs, 40, "{processes} {stats}");
        // Who floods hides what he does by such calls himself: it is told that something was lost.
        if user == "1" {
            assert_eq!(identities, 40, "{processes} {stats}");
        }
        assert!(
            stats["counters"]["lost_share"].as_u64() > Some(0),
            "{stats}"
        );
        assert_eq!(stats["counters"]["lost_bulk"], 0, "{stats}");
        let told = printed.lines().filter_map(Alert::parse);
        let mut told = told.filter(|alert| alert.rule == "Falco internal: syscall event drop");
        let told = told.next().expect("losses are told");
        let by_process = told.field("tollgate.processes");
        assert!(by_process.contains("crowd["), "{by_process}");
        assert!(by_process.contains("/critical/share="), "{by_process}");
    }
}

/// The same of the other lane: one process has half of it at most.
#[test]
fn a_flood_of_opens_hides_no_open_of_another_process() {
    need_root!();
    let _alone = flooding();
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let [target, other] = ["target", "other"].map(|name| files.file(name, 0o644, ""));
    let rules = format!(
        "- rule: Secret\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = {}\n  output: x\n  priority: DEBUG\n\
         - rule: Each\n  desc: x\n  condition: evt.type in (open, openat) and proc.name = crowd\n  output: x\n  priority: DEBUG\n",
        target.display()
    );
    let (printed, stats) = watch_host_for(LIMIT, &[], &rules, |watcher| {
        signal(watcher, "-STOP");
        let [target, other] = [&target, &other].map(|path| path.to_str().expect("text"));
        started(&crowd, &["hide", other, "50000", other, "0"]);
        started(&crowd, &["hide", target, "100", other, "0"]);
        signal(watcher, "-CONT");
        std::thread::sleep(Duration::from_millis(1500));
    });
    let seen = printed.matches("\"rule\":\"Secret\"").count();
    assert_eq!(seen, 100, "{stats}");
    assert!(
        stats["counters"]["lost_share"].as_u64() > Some(0),
        "{stats}"
    );
}

/// Sends a signal by the name that kill(1) has for it.
fn signal(pid: i32, name: &str) {
    let sent = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(sent.expect("kill(1) is there").success());
}

/// What cannot be learnt of processes that have ended when their calls are looked at: the condition, what they
/// do, and what is told as the cause.
const UNDECIDED: [[&str; 3]; 3] = [
    [
        "fd.name = /nowhere/target",
        "mkdir -p a/x b m; echo > a/x/target; mount --bind a m; cd m/x; mv %W/a/x %W/b; %W/marked target",
        "moved out of its mount",
    ],
    [
        "fd.name = /nowhere/target",
        "deep=$(printf 'd/%.0s' $(seq 100)); mkdir -p $deep; cd $deep; echo > target; %W/marked target",
        "is too long and was truncated",
    ],
    [
        "fd.name = %W/target and proc.fdopencount > 1000",
        "echo > target; ./marked target",
        "exited before",
    ],
];

#[test]
fn an_undecided_event_is_told_with_its_rules_and_the_cause() {
    need_root!();
    for [condition, script, cause] in UNDECIDED {
        let files = Scratch::new();
        let folder = files.path().display().to_string();
        let rule = |name: &str, more: &str| {
            format!(
                "- rule: {name}\n  desc: x\n  condition: evt.type in (open, openat) and proc.name = marked and {}{more}\n  output: x\n  priority: DEBUG\n",
                condition.replace("%W", &folder)
            )
        };
        let rules = [
            rule("Hidden", ""),
            rule("Decided", " and fd.num < 0"),
            rule("Also hidden", " and fd.num >= 0"),
        ]
        .concat();
        let script = format!("cd %W; cp /bin/cat marked; {script}").replace("%W", &folder);
        let options = ["-o", "rule_matching=all"];
        let (printed, stats) = watch_host_for(LIMIT, &options, &rules, |watcher| {
            signal(watcher, "-STOP");
            let words = ["--mount", "sh", "-ec", &script];
            let status = Command::new("unshare").args(words).status();
            signal(watcher, "-CONT");
            assert!(status.expect("unshare(1) is there").success(), "{script}");
        });
        let alerts: Vec<_> = printed.lines().filter_map(Alert::parse).collect();
        let [alert] = &*alerts else {
            panic!("{cause}: {printed} {stats}");
        };
        assert_eq!(alert.rule, "Tollgate internal: undecided event", "{alert}");
        assert!(alert.field("tollgate.cause").contains(cause), "{alert}");
        assert_eq!(
            alert.field("tollgate.undecided"),
            "[\"Hidden\",\"Also hidden\"]"
        );
        assert_eq!(alert.number("tollgate.rules"), 2, "{alert}");
        assert!(
            alert.output.ends_with("rules=Hidden, Also hidden)"),
            "{}",
            alert.output
        );
        assert_eq!(stats["counters"]["undecided"], 2, "{stats}");
    }
}

#[test]
fn what_finds_no_room_is_counted_and_told() {
    need_root!();
    let _alone = flooding();
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let other = files.file("target", 0o644, "");
    let rules = "- rule: Each\n  desc: x\n  condition: evt.type in (open, openat) and proc.name = crowd\n  output: x\n  priority: DEBUG\n";
    let (printed, stats) = watch_host(&["--ring-kib", "64"], rules, || {
        let flood = Command::new(&crowd)
            .args(["flood", "2"])
            .arg(&other)
            .output();
        assert!(flood.expect("the program runs").status.success());
        // Losses are told once a second.
        std::thread::sleep(Duration::from_millis(1500));
    });
    let drops = stats["cur"]["drops"].as_u64().expect("a number");
    assert!(drops > 0, "{stats}");
    assert_eq!(
        stats["counters"]["lost_bulk"].as_u64(),
        Some(drops),
        "{stats}"
    );
    assert!(
        printed.contains("Falco internal: syscall event drop"),
        "{stats}"
    );
    assert!(printed.contains("openat="), "the calls are named: {stats}");
}

/// What has piled up is evaluated by several threads, and of one process still in order.
#[test]
fn crowds_are_judged_by_several_threads_and_each_process_in_its_order() {
    const PROCESSES: usize = 4;
    const OPENS: usize = 500;
    need_root!();
    let _quiet = without_floods();
    let fixture = Fixture::shared("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let target = files.file("target", 0o644, "");
    let rules = format!(
        "- rule: Each\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = {}\n  output: x %proc.pid %evt.num %proc.pname\n  priority: DEBUG\n",
        target.display()
    );
    let script = format!(
        "for i in $(seq {PROCESSES}); do {} hide {target} {OPENS} {target} 0 & done; wait",
        crowd.display(),
        target = target.display()
    );
    let options = ["--rule-threads", "4"];
    let (printed, stats) = watch_host_for(LIMIT, &options, &rules, |watcher| {
        // So that all of them wait.
        signal(watcher, "-STOP");
        let opens = Command::new("sh").args(["-c", &script]).status();
        signal(watcher, "-CONT");
        assert!(opens.expect("a shell").success());
    });
    let mut times: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    let mut numbers = BTreeSet::new();
    let alerts = printed.lines().filter_map(Alert::parse);
    for alert in alerts.filter(|alert| alert.rule == "Each") {
        assert_eq!(alert.field("proc.pname"), "sh", "{alert}");
        assert!(numbers.insert(alert.number("evt.num")), "{alert}");
        let of_process = times.entry(alert.number("proc.pid")).or_default();
        of_process.push(alert.time.clone());
    }
    let counts: Vec<_> = times.values().map(Vec::len).collect();
    assert_eq!(counts, [OPENS; PROCESSES], "{stats}");
    assert!(times.values().all(|times| times.is_sorted()), "{times:?}");
    assert!(stats["counters"]["crowds"].as_u64() > Some(0), "{stats}");
    assert_eq!(stats["cur"]["drops"], 0, "{stats}");
}

#[test]
fn the_whole_machine_is_watched_and_the_watcher_is_not() {
    need_root!();
    let rules = "- rule: Each\n  desc: x\n  condition: evt.type = execve and evt.res = SUCCESS\n  output: x %proc.name %proc.pid %proc.cmdline %container.id %user.name\n  priority: DEBUG\n";
    let (printed, stats) = watch_host(&[], rules, || {
        let status = Command::new("/bin/echo").arg("seen-on-the-host").output();
        assert!(status.expect("echo runs").status.success());
    });
    assert!(printed.contains("echo seen-on-the-host"), "{printed}");
    assert!(printed.contains("\"container.id\":\"host\""), "{printed}");
    assert_eq!(stats["counters"]["malformed"], 0, "{stats}");
}

/// Two roots in one mount namespace, where one number has two names. Of each root a process lives until its
/// users are known; programs that end before anybody could look for them have the same.
#[test]
fn names_of_users_are_those_of_the_root_that_a_process_had() {
    const ROUNDS: usize = 100;
    need_root!();
    let rules = "\
- rule: Named
  desc: x
  condition: evt.type = execve and evt.res = SUCCESS and user.uid = 1234 and proc.name = true
  output: x %proc.args %user.name %group.name
  priority: DEBUG
";
    let script = format!(
        "cd %W
         for root in amber basil; do
             mkdir -p $root/etc
             for name in sh true; do cp \"$(command -v busybox)\" $root/$name; chmod 755 $root/$name; done
             echo \"$root:x:1234:1234::/:/bin/sh\" > $root/etc/passwd
             echo \"$root:x:1234:\" > $root/etc/group
         done
         exec unshare --mount sh -c '
             in_root() {{ root=$1; shift; chroot --userspec=1234:1234 $root \"$@\"; }}
             for root in amber basil; do
                 in_root $root /sh -c \"until [ -e /known ]; do /true early; sleep 0.05; done\" &
                 until grep -q \"x early $root $root\" alerts; do sleep 0.05; done
                 : > $root/known
             done
             wait
             for i in $(seq {ROUNDS}); do for root in amber basil; do in_root $root /true $root; done; done'"
    );
    let watch = Watch::script(&script).engine(Engine::Ebpf).rules(rules);
    let alerts = watch.scratch().path().join("work/alerts");
    let output = format!("file_output.filename={}", alerts.display());
    let options = ["-o", "file_output.enabled=true", "-o", &output];
    let watched = options
        .into_iter()
        .fold(watch, |watch, option| watch.option(option))
        .run();
    for root in ["amber", "basil"] {
        let alerts = watched.of("Named");
        let own = alerts
            .iter()
            .filter(|alert| alert.field("proc.args") == root);
        let names = own.map(|alert| [alert.field("user.name"), alert.field("group.name")]);
        let names: Vec<_> = names.collect();
        assert_eq!(names, vec![[root; 2]; ROUNDS], "{}", watched.story());
    }
}

#[test]
fn a_terminal_shows_how_much_happens_unless_it_is_to_be_quiet() {
    need_root!();
    let files = Scratch::new();
    let rules = "- rule: Each\n  desc: x\n  condition: evt.type in (open, openat) and fd.name = /nowhere\n  output: x\n  priority: DEBUG\n";
    let rules = files.file("rules.yaml", 0o644, rules);
    let watch = |option: &str| {
        let (program, rules) = (program(), rules.display());
        let command = format!(
            "exec '{}' watch {option} -M 3 -r '{rules}'",
            program.display()
        );
        let mut script = Command::new("script");
        script.args([
            "--quiet",
            "--return",
            "--flush",
            "--command",
            &command,
            "/dev/null",
        ]);
        let finished = Limited::start(&mut script, LIMIT).finish(b"");
        assert_eq!(finished.code(), 0, "{finished:?}");
        finished.stdout
    };
    let shown = watch("");
    assert!(shown.contains(" syscalls/s inspected, "), "{shown}");
    assert!(shown.contains(" dropped\r"), "{shown}");
    let armed = shown
        .find(" processes (eBPF, ")
        .expect("it says what it watches");
    let count = shown[..armed].rsplit(' ').next().map(str::parse::<u32>);
    assert!(matches!(count, Some(Ok(2..))), "{shown}");
    assert!(shown.contains("); Ctrl-C stops"), "{shown}");
    // Other tests may raise alerts on the same host; a process that sleeps raises none.
    let mut sleeping = Command::new("sleep")
        .arg("100")
        .spawn()
        .expect("it is installed");
    let shown = watch(&format!("-p {}", sleeping.id()));
    let quiet = watch(&format!("--quiet -p {}", sleeping.id()));
    sleeping.kill().expect("it is ours");
    sleeping.wait().expect("it is ours");
    assert!(shown.contains(", 0 alerts, 0 dropped\r"), "{shown}");
    assert!(shown.contains("tollgate: no alerts"), "{shown}");
    assert_eq!(quiet, "", "it is quiet");
}

#[test]
fn a_process_that_is_not_there_is_refused_and_one_that_ends_ends_the_watch() {
    need_root!();
    let watch = |pid: u32| {
        let mut command = Command::new(program());
        command.args(["watch", "--engine", "ebpf", "-p", &pid.to_string()]);
        Limited::start(&mut command, LIMIT)
    };
    let mut child = Command::new("sleep")
        .arg("100")
        .spawn()
        .expect("it is installed");
    let scratch = Scratch::new();
    let pid_file = scratch.path().join("pid");
    let mut command = Command::new(program());
    command.args([
        "watch",
        "--engine",
        "ebpf",
        "-p",
        &child.id().to_string(),
        "-P",
    ]);
    let watching = Limited::start(command.arg(&pid_file), LIMIT);
    let deadline = std::time::Instant::now() + LIMIT;
    while fs::read_to_string(&pid_file).unwrap_or_default().is_empty() {
        assert!(std::time::Instant::now() < deadline, "it does not watch");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("it is ours");
    // What is left of it for its parent is no process any more.
    let left = watch(child.id()).finish(b"");
    assert_eq!(left.code(), 2, "{}", left.stderr);
    child.wait().expect("it is ours");
    let gone = watch(child.id()).finish(b"");
    assert_eq!(gone.code(), 2, "{}", gone.stderr);
    assert!(
        gone.stderr.contains("no such process\nhelp: "),
        "{}",
        gone.stderr
    );
    let finished = watching.finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert!(
        finished.stderr.contains("have ended"),
        "{}",
        finished.stderr
    );
}

/// Nothing holds the calls of this engine's command: who sent a signal is asked of the kernel, and of no
/// `/proc` of the command's own.
#[test]
fn the_command_gives_no_orders_whatever_it_mounts_over_proc() {
    need_root!();
    let scratch = Scratch::new();
    let pidfile = scratch.path().join("pid").display().to_string();
    let script = "until [ -s \"$1\" ]; do sleep 0.1; done; read -r agent < \"$1\"; sleep 1
        kill -HUP $agent; sleep 1
        mount -t tmpfs none /proc && mkdir /proc/$$ || exit 1
        printf 'Pid:\\t1\\nPPid:\\t1\\nSeccomp_filters:\\t0\\n' > /proc/$$/status
        kill -HUP $agent; sleep 1; umount /proc";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private"]);
    command
        .arg(program())
        .args(["run", "--engine", "ebpf", "-P", &pidfile]);
    command.args(["--", "sh", "-c", script, "sh", &pidfile]);
    let output = command.output().expect("unshare is there");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success(), "{text}");
    let refused = "ignored a signal to upgrade, reload or reopen";
    assert_eq!(text.matches(refused).count(), 2, "{text}");
    assert!(!text.contains("rules in force"), "{text}");
}
