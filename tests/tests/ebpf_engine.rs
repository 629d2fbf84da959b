//! What only the engine `ebpf` has: a filter in the kernel, rings that can be full, the whole host.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use e2e::{Engine, Fixture, Limited, Scratch, Watch, Watched, need_root, need_slow, program, skip};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Paths of every form that the kernel's filter knows.
const RULES: &str = "\
- rule: Exact
  desc: one file
  condition: evt.type in (open, openat) and evt.is_open_read=true and fd.name = /usr/bin/env
  output: exact %fd.name
  priority: DEBUG
- rule: Below
  desc: a folder
  condition: evt.type in (open, openat) and fd.directory = /etc/pam.d
  output: below %fd.name
  priority: DEBUG
- rule: Ending
  desc: the end of a name
  condition: evt.type in (open, openat) and fd.num >= 0 and fd.name endswith /target
  output: ending %fd.name
  priority: DEBUG
- rule: Named
  desc: a name in any folder
  condition: evt.type in (open, openat) and fd.filename in (needle, target) and fd.name contains work
  output: named %fd.name
  priority: DEBUG
- rule: Traversal
  desc: a way up in what was passed
  condition: evt.type in (open, openat) and fd.name startswith /etc and fd.nameraw contains \"../\"
  output: traversal %fd.name
  priority: DEBUG
- rule: Up
  desc: a way up, wherever it leads, also where it leads nowhere
  condition: evt.type in (open, openat) and fd.nameraw glob '*../*' and proc.name = cat
  output: up %fd.name
  priority: DEBUG
- rule: Who
  desc: by a process of this name
  condition: evt.type in (open, openat) and proc.name = head and fd.name startswith /etc
  output: who %fd.name
  priority: DEBUG
";

/// Relative and absolute, plain and not, by links, in folders that move.
const PATHS: &str = "\
exec > /dev/null
cd %W && mkdir -p a/b && echo > a/b/target && echo > needle && ln -s a/b/target link
ln -s a/b folder && ln -s /etc/pam.d there && ln -s /usr/bin/env env
cat a/b/target link folder/target ./a/../a/b//target $PWD/link $PWD/folder/../b/target
cat needle $PWD/./needle there/su /etc/pam.d/su /etc/../etc/pam.d/su env /usr/bin/../bin/env /bin/env
head -n1 /etc/hosts /etc/passwd; tail -n1 /etc/hosts; cat missing/target a/b/missing ../nothing/./here /no/../such/../file
mv a moved && cat moved/b/target; cd moved/b && cat target ../b/target
exit 0
";

/// What the alerts say, in an order that does not depend on time.
fn accounts(watched: &Watched) -> Vec<String> {
    let folder = watched.scratch.path().display().to_string();
    let account = |alert: &e2e::Alert| {
        format!("{} {}", alert.rule, alert.field("fd.name")).replace(&folder, "")
    };
    let mut accounts: Vec<_> = watched.alerts.iter().map(account).collect();
    accounts.sort();
    accounts
}

fn counter(watched: &Watched, name: &str) -> u64 {
    let stats = watched.stats.as_ref().expect("the run writes statistics");
    let value: &Value = &stats["pieces"][name];
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no counter {name}: {stats}"))
}

#[test]
fn the_filter_in_the_kernel_takes_no_alert_away() {
    need_root!();
    let run = |option: &[&str]| {
        let watch = Watch::script(PATHS).engine(Engine::Ebpf).rules(RULES);
        option
            .iter()
            .fold(watch, |watch, option| watch.option(*option))
            .run()
    };
    let (with, without) = (run(&[]), run(&["--unfiltered"]));
    assert_eq!(accounts(&with), accounts(&without), "{}", with.story());
    for rule in [
        "Exact",
        "Below",
        "Ending",
        "Named",
        "Traversal",
        "Up",
        "Who",
    ] {
        assert!(!with.of(rule).is_empty(), "{rule}: {}", with.story());
    }
    assert!(counter(&with, "rejected_path") > 20, "{}", with.story());
    assert_eq!(counter(&without, "rejected_path"), 0, "{}", without.story());
    for watched in [&with, &without] {
        assert_eq!(
            watched.stats.as_ref().map(|stats| &stats["cur"]["drops"]),
            Some(&Value::from(0))
        );
    }
}

#[test]
fn a_thousand_files_in_a_crowd_are_all_found() {
    need_root!();
    let fixture = Fixture::compile("crowd");
    let watch = Watch::new(["true"]).engine(Engine::Ebpf).rules(RULES);
    let crowd = watch.scratch().program(fixture.program(), "crowd");
    let [target, other] = ["target", "targets"].map(|name| watch.scratch().file(name, 0o644, ""));
    let word = |path: &Path| path.display().to_string();
    let command = [
        word(&crowd),
        "hide".into(),
        word(&target),
        "1000".into(),
        word(&other),
        "100".into(),
    ];
    let watched = watch
        .command(command)
        .option("-o")
        .option("outputs_queue.capacity=100000")
        .run();
    assert_eq!(watched.of("Ending").len(), 1000, "{}", watched.story());
    assert!(
        counter(&watched, "rejected_path") >= 100_000,
        "{}",
        watched.story()
    );
    assert_eq!(counter(&watched, "lost_bulk"), 0, "{}", watched.story());
}

/// Watches the machine while `act` runs; what was printed, and the last line of statistics.
fn watch_host(options: &[&str], rules: &str, act: impl FnOnce()) -> (String, Value) {
    watch_host_for(LIMIT, options, rules, |_| act())
}

/// The same with a limit of its own; `act` gets the watcher's pid.
fn watch_host_for(
    limit: Duration,
    options: &[&str],
    rules: &str,
    act: impl FnOnce(i32),
) -> (String, Value) {
    let files = Scratch::new();
    let rules = files.file("rules.yaml", 0o644, rules);
    let (stats, pid) = (files.path().join("stats"), files.path().join("pid"));
    let mut command = Command::new(program());
    command
        .args([
            "watch",
            "--quiet",
            "--json",
            "-o",
            "outputs_queue.capacity=100000",
            "-r",
        ])
        .arg(&rules)
        .arg("-s")
        .arg(&stats)
        .arg("-P")
        .arg(&pid)
        .args(options);
    let limited = Limited::start(&mut command, limit);
    let started = std::time::Instant::now();
    while fs::read_to_string(&pid).map_or(true, |text| text.is_empty()) {
        assert!(started.elapsed() < LIMIT, "the watch does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    let number = fs::read_to_string(&pid).expect("it was there");
    let number: i32 = number.trim().parse().expect("a pid");
    act(number);
    let process = rustix::process::Pid::from_raw(number).expect("not zero");
    rustix::process::kill_process(process, rustix::process::Signal::TERM).expect("it runs");
    let finished = limited.finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    let text = fs::read_to_string(&stats).expect("the watch writes statistics");
    let last = text.lines().last().expect("at least one line");
    (finished.stdout, serde_json::from_str(last).expect("JSON"))
}

#[test]
fn a_flood_hides_nothing_of_other_processes() {
    need_root!();
    let fixture = Fixture::compile("crowd");
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
        stats["pieces"]["rejected_path"]
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

/// A million processes and 100,000 control groups with TOLLGATE_TEST_CHURN=100, which takes minutes; a
/// hundredth of each without.
#[test]
fn processes_and_groups_that_come_and_go_leave_nothing_behind() {
    need_root!();
    need_slow!();
    let Some(unified) = unified() else {
        skip!("has no control groups of the second version", || Ok(
            String::from("no cgroup.controllers below /sys/fs/cgroup")
        ));
    };
    let scale = std::env::var("TOLLGATE_TEST_CHURN").map_or(1, |scale| {
        scale.parse().expect("TOLLGATE_TEST_CHURN is a number")
    });
    let fixture = Fixture::compile("crowd");
    let files = Scratch::new();
    let crowd = files.program(fixture.program(), "crowd");
    let secret = files.file("secret", 0o644, "");
    let folder = unified.join(format!("tollgate-churn-{}", std::process::id()));
    fs::create_dir(&folder).expect("root makes control groups");
    let rules = "- rule: In a group\n  desc: x\n  condition: evt.type in (open, openat) and fd.name endswith /secret and proc.name = crowd and container.id != none\n  output: x\n  priority: DEBUG\n\
                 - rule: Program\n  desc: x\n  condition: evt.type = execve and proc.args startswith marked-after-churn\n  output: x\n  priority: DEBUG\n";
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
    let limit = Duration::from_secs(1800);
    let (printed, stats) = watch_host_for(limit, &[], rules, |watcher| {
        // What is kept of processes and places that have ended is bounded: first that much.
        births(10_000);
        groups(1_000);
        sizes.push(resident(watcher));
        births(10_000 * scale);
        sizes.push(resident(watcher));
        groups(1_000 * scale);
        sizes.push(resident(watcher));
        let marked = Command::new("true").arg("marked-after-churn").status();
        assert!(marked.expect("it runs").success());
    });
    fs::remove_dir(&folder).expect("its groups are gone");
    println!("resident KiB: {sizes:?}; {stats}");
    assert!(printed.contains("\"rule\":\"Program\""), "{stats}");
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    assert!(last < first + first / 4, "{sizes:?} {stats}");
    assert_eq!(stats["cur"]["drops"], 0, "{stats}");
    assert_eq!(stats["pieces"]["evicted"], 0, "{stats}");
}

#[test]
fn what_finds_no_room_is_counted_and_told() {
    need_root!();
    let fixture = Fixture::compile("crowd");
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
        stats["pieces"]["lost_bulk"].as_u64(),
        Some(drops),
        "{stats}"
    );
    assert!(
        printed.contains("Falco internal: syscall event drop"),
        "{stats}"
    );
    assert!(printed.contains("openat="), "the calls are named: {stats}");
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
    assert_eq!(stats["pieces"]["malformed"], 0, "{stats}");
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
        gone.stderr.contains("there is none\nhelp: "),
        "{}",
        gone.stderr
    );
    let finished = watching.finish(b"");
    assert_eq!(finished.code(), 0, "{}", finished.stderr);
    assert!(finished.stderr.contains("has ended"), "{}", finished.stderr);
}
