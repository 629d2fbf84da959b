//! Real programs do the same watched as not: compilers, git, Python, servers, package managers. Each
//! runs natively first; exit status and results of the watched runs must be the same, byte for byte.
//!
//! The workloads are scripts in `fixtures/real`. Their results are made of what does not change from
//! run to run: hashes of what was built, answers of servers, exit statuses.

use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use e2e::{
    Alert, Finished, Identity, Limited, Scratch, Watch, WatchResult, day, default_rules, installed,
    is_root, need_root, need_slow, same_environment, skip, slow, stock_rules_file, toolchain,
};

/// Runs a script in the work folder, then something that every rule file must notice, so that a run
/// that was not watched to its end fails. Adds 40 to the exit status: 0 is what too many things end with.
const WRAPPER: &str = r#"
cd "$1"
sh "../real/$2" "$3" "$4" > result 2> errors < /dev/null
status=$?
find . -maxdepth 0 -name id_rsa
exit $((status + 40))
"#;

const NOTICED: &str = "Search Private Keys or Passwords";

const PASSED: i32 = 40;

/// Counters of the stats file that must be zero when nothing went wrong.
const ZERO: &[&str] = &[
    "answer_errors",
    "escalation_refused",
    "read_timeouts",
    "undecided",
    "unknown_calls",
];

/// The same, of defects and strangers.
const ZERO_DEFECTS: &[&str] = &["receiver_panics", "unknown_callers"];

/// Of a user who is root in a namespace of his own.
const ROOT_INSIDE: &str = "Become root without a login program";

/// Work folders lie in the temporary folder, and what is built there is run there.
const RUNS_FROM_TMP: &str = "Execution from a temporary directory";

const HOST: &[Identity] = &[Identity::Root, Identity::User];

/// A script and how it is run.
struct Workload {
    script: &'static str,
    /// What the script gets as its arguments.
    arguments: fn() -> [String; 2],
    identities: &'static [Identity],
    /// Fewer calls than this were surely not all.
    calls: u64,
    /// Rules that this workload rightly fires.
    rules: &'static [&'static str],
    limit: Duration,
}

const PLAIN: Workload = Workload {
    script: "",
    arguments: || [const { String::new() }; 2],
    identities: HOST,
    calls: 100,
    rules: &[],
    limit: Duration::from_secs(120),
};

#[test]
fn a_c_program_is_built() {
    Workload {
        script: "build.sh",
        calls: 2000,
        rules: &[RUNS_FROM_TMP],
        ..PLAIN
    }
    .check();
}

#[test]
fn a_git_repository_grows_and_is_cloned() {
    Workload {
        script: "git.sh",
        calls: 5000,
        ..PLAIN
    }
    .check();
}

#[test]
fn python_tests_pass() {
    Workload {
        script: "python.sh",
        calls: 3000,
        ..PLAIN
    }
    .check();
}

#[test]
fn a_debian_package_is_built_and_installed() {
    Workload {
        script: "package.sh",
        calls: 300,
        ..PLAIN
    }
    .check();
}

#[test]
fn pipelines_run_four_at_a_time() {
    Workload {
        script: "pipeline.sh",
        calls: 2000,
        ..PLAIN
    }
    .check();
}

#[test]
fn every_background_job_of_a_shell_starts() {
    Workload {
        script: "jobs.sh",
        calls: 1200,
        ..PLAIN
    }
    .check();
}

#[test]
fn forks_are_never_interrupted_and_opens_are_restarted() {
    Workload {
        script: "interrupted.sh",
        calls: 1000,
        rules: &[RUNS_FROM_TMP],
        ..PLAIN
    }
    .check();
}

#[test]
fn nginx_answers_every_request() {
    let arguments = || [free_port().to_string(), "500".to_owned()];
    Workload {
        script: "nginx.sh",
        arguments,
        calls: 500,
        ..PLAIN
    }
    .check();
}

#[test]
fn redis_keeps_every_key() {
    if !installed("redis-server") {
        skip!("needs redis-server", || Ok(String::from(
            "redis-server is in no folder of PATH"
        )));
    }
    let arguments = || [free_port().to_string(), String::new()];
    Workload {
        script: "redis.sh",
        arguments,
        calls: 200,
        ..PLAIN
    }
    .check();
}

#[test]
fn node_reads_files_starts_processes_and_serves() {
    if !installed("node") {
        skip!("needs nodejs", || Ok(String::from(
            "node is in no folder of PATH"
        )));
    }
    Workload {
        script: "node.sh",
        calls: 500,
        ..PLAIN
    }
    .check();
}

#[test]
fn podman_runs_containers() {
    need_root!();
    need_slow!();
    Workload {
        script: "podman.sh",
        calls: 2000,
        // The runtime's own mounts, seen when it is in the container already.
        rules: &[RUNS_FROM_TMP, ROOT_INSIDE, "Mount in container"],
        ..PLAIN
    }
    .check();
}

#[test]
fn nginx_answers_twenty_thousand_requests() {
    need_slow!();
    let arguments = || [free_port().to_string(), "20000".to_owned()];
    let limit = Duration::from_secs(300);
    Workload {
        script: "nginx.sh",
        arguments,
        calls: 20_000,
        limit,
        ..PLAIN
    }
    .check();
}

#[test]
fn apt_installs_a_package_in_a_root_of_its_own() {
    need_root!();
    need_slow!();
    let arguments = || [e2e::debian_root(None).display().to_string(), String::new()];
    let limit = Duration::from_secs(300);
    Workload {
        script: "apt.sh",
        arguments,
        calls: 3000,
        // A root is copied with its setuid programs.
        rules: &[
            RUNS_FROM_TMP,
            ROOT_INSIDE,
            "Change thread namespace",
            "Set Setuid or Setgid bit",
        ],
        limit,
        ..PLAIN
    }
    .check();
}

#[test]
fn cargo_builds_a_workspace() {
    need_root!();
    need_slow!();
    // The toolchain that runs this test, without the wrapper of a version manager.
    let arguments = || {
        [
            toolchain(Path::new(env!("CARGO_TARGET_TMPDIR")))
                .join("bin/cargo")
                .display()
                .to_string(),
            String::new(),
        ]
    };
    let limit = Duration::from_secs(300);
    Workload {
        script: "cargo.sh",
        arguments,
        calls: 1000,
        rules: &[RUNS_FROM_TMP],
        limit,
        ..PLAIN
    }
    .check();
}

/// The stats file must say how often the program had a defect, or did not know a caller.
#[test]
fn defects_and_strangers_are_counted() {
    let watched = Watch::new(["true"]).run();
    let counter = |name: &str| {
        watched
            .stats
            .as_ref()
            .and_then(|stats| stats["counters"][name].as_u64())
    };
    let missing: Vec<_> = ZERO_DEFECTS
        .iter()
        .filter(|name| counter(name).is_none())
        .collect();
    if !missing.is_empty() {
        skip!(
            "needs receiver_panics and unknown_callers in the stats file",
            || { Ok(format!("`counters` lacks {missing:?}")) }
        );
    }
    for name in ZERO_DEFECTS {
        assert_eq!(counter(name), Some(0), "{name}: {}", watched.story());
    }
}

/// Whether a page of the workload's memory did not come within the time that a caller may be held, as one that is
/// read from a busy disk: it is told, and no value is made up for what could not be read.
fn was_late(watched: &WatchResult) -> bool {
    let stats = watched.stats.as_ref();
    stats.is_some_and(|stats| stats["counters"]["read_timeouts"].as_u64() > Some(0))
}

impl Workload {
    /// Runs it natively, then watched by a rule file, as every user: by each one when slow tests are asked for, and else
    /// by one after the other, each user by another one the next day.
    fn check(&self) {
        let files = rule_files();
        let first = if slow() { 0 } else { day() };
        for (turn, &identity) in self.identities.iter().enumerate() {
            // Whoever is not root can only be himself.
            if is_root() || identity == Identity::User {
                let turn = (first + turn) % files.len();
                let files = if slow() {
                    &files[..]
                } else {
                    &files[turn..=turn]
                };
                self.check_as(identity, files);
            }
        }
    }

    fn check_as(&self, identity: Identity, files: &[Option<PathBuf>]) {
        let native = self.native(identity);
        let mut failures = Vec::new();
        for rules in files {
            let mut watched = self.watched(identity, rules.as_ref());
            if was_late(&watched) {
                // Once is the machine's doing; what is wrong here comes again.
                println!(
                    "{}: memory came late, which was told: once more",
                    self.script
                );
                watched = self.watched(identity, rules.as_ref());
            }
            let name = rules.as_ref().map_or_else(
                || "built-in rules".into(),
                |file| file.display().to_string(),
            );
            let (fast, slow) = (
                native.elapsed.as_secs_f64(),
                watched.finished.elapsed.as_secs_f64(),
            );
            println!(
                "{} as {identity:?}, {name}: {fast:.2} s native, {slow:.2} s watched",
                self.script
            );
            let wrong = self.complaints(&native, &watched);
            if !wrong.is_empty() {
                let errors = left(&watched.scratch, "errors");
                let story = watched.story();
                failures.push(format!(
                    "{name}: {}\nerrors:\n{errors}\n{story}",
                    wrong.join("\n")
                ));
            }
        }
        assert!(
            failures.is_empty(),
            "{} as {identity:?} under {}",
            self.script,
            failures.join("\n\n")
        );
    }

    fn native(&self, identity: Identity) -> Native {
        let watch = self.watch(identity);
        let words = without_tollgate(&watch);
        let mut command = Command::new(&words[0]);
        same_environment(&mut command)
            .args(&words[1..])
            .stdin(Stdio::null());
        let Finished {
            elapsed,
            stderr,
            status,
            ..
        } = Limited::start(&mut command, self.limit).finish(b"");
        let (result, errors) = (
            left(watch.scratch(), "result"),
            left(watch.scratch(), "errors"),
        );
        let passed = status.code() == Some(PASSED) && !result.is_empty();
        assert!(
            passed,
            "{} as {identity:?} fails natively: {status}\n{result}{errors}{stderr}",
            self.script
        );
        Native { elapsed, result }
    }

    fn watched(&self, identity: Identity, rules: Option<&PathBuf>) -> WatchResult {
        let watch = self.watch(identity);
        match rules {
            Some(file) => watch.rules_file(file).run(),
            None => watch.run(),
        }
    }

    fn watch(&self, identity: Identity) -> Watch {
        let [first, second] = (self.arguments)();
        let words = [
            "sh",
            "-c",
            WRAPPER,
            "sh",
            "%W",
            self.script,
            &first,
            &second,
        ];
        Watch::new(words)
            .identity(identity)
            .limit(self.limit)
            .with_fixtures("real")
    }

    /// All that a watched run did otherwise than it must.
    fn complaints(&self, native: &Native, watched: &WatchResult) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |right: bool, what: &str| wrong.extend((!right).then(|| what.to_owned()));
        check(
            watched.code() == PASSED,
            &format!("exit status {}", watched.code()),
        );
        let result = left(&watched.scratch, "result");
        let text = format!("other results:\n{result}than natively:\n{}", native.result);
        check(result == native.result, &text);
        check(
            watched.finished.stderr.is_empty(),
            "something was written to standard error",
        );
        check(
            watched.printed.is_empty(),
            "something was printed besides alerts",
        );
        check(
            watched.of(NOTICED).len() == 1,
            "the last command was not noticed once",
        );
        for alert in &watched.alerts {
            let rightly = alert.rule == NOTICED || self.rules.contains(&alert.rule.as_str());
            check(
                rightly && !is_about_tollgate(alert),
                &format!("unexpected alert: {alert}"),
            );
        }
        wrong.extend(self.miscounts(watched));
        wrong
    }

    fn miscounts(&self, watched: &WatchResult) -> Vec<String> {
        let Some(stats) = &watched.stats else {
            return vec!["there are no stats".to_owned()];
        };
        let (cur, counters, alerts) = (&stats["cur"], &stats["counters"], &stats["alerts"]);
        let mut wrong = Vec::new();
        let zeros = ZERO.iter().map(|name| (*name, &counters[*name]));
        let others = [
            ("drops", &cur["drops"]),
            ("internal", &alerts["internal"]),
            ("suppressed", &alerts["suppressed"]),
        ];
        // Those that older programs do not write; see `defects_and_strangers_are_counted`.
        let defects = ZERO_DEFECTS
            .iter()
            .map(|name| (*name, &counters[*name]))
            .filter(|(_, value)| !value.is_null());
        for (name, value) in zeros.chain(others).chain(defects) {
            if value.as_u64() != Some(0) {
                wrong.push(format!("{name} is {value}"));
            }
        }
        if cur["events"]
            .as_u64()
            .is_none_or(|events| events < self.calls)
        {
            wrong.push(format!(
                "{} events, expected {} at least",
                cur["events"], self.calls
            ));
        }
        let log = &alerts["channels"]["log"];
        if log["delivered"].as_u64() != u64::try_from(watched.alerts.len()).ok() {
            wrong.push(format!(
                "{} alerts printed, but {log}",
                watched.alerts.len()
            ));
        }
        wrong
    }
}

struct Native {
    elapsed: Duration,
    result: String,
}

/// The built-in rules, and the published ones where they are.
fn rule_files() -> Vec<Option<PathBuf>> {
    assert!(
        default_rules().is_some(),
        "the built-in rules are rules/default.yaml"
    );
    let mut files = vec![None];
    match stock_rules_file() {
        Some(file) => files.push(Some(file)),
        None => println!("not run under the stock rules, which are not beside the repository"),
    }
    files
}

/// The watched command line without the watch: the prefix that makes the user, and the command.
fn without_tollgate(watch: &Watch) -> Vec<String> {
    let words = watch.command_line();
    let program = watch.program().display().to_string();
    let start = words
        .iter()
        .position(|word| *word == program)
        .expect("it is what runs");
    let end = words[start..]
        .iter()
        .position(|word| word == "--")
        .expect("the command follows");
    [&words[..start], &words[start + end + 1..]].concat()
}

fn left(scratch: &Scratch, name: &str) -> String {
    let path = scratch.path().join("work").join(name);
    fs::read(&path).map_or_else(
        |error| format!("no {name}: {error}\n"),
        |text| String::from_utf8_lossy(&text).into_owned(),
    )
}

fn is_about_tollgate(alert: &Alert) -> bool {
    alert.source != "syscall"
        || alert
            .fields
            .get("proc.name")
            .is_some_and(|name| name == "tollgate")
}

/// A port that nobody uses and that the kernel gives to no client of its own accord.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let offset = u16::try_from(std::process::id() % 8000).expect("it is below 8000");
    loop {
        let port = 20_000 + (offset + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
