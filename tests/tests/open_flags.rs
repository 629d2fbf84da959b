//! Flags of openat2, which lie in memory, and which another thread changes while the call is made: rules see what the
//! file was opened with.

use std::fs;
use std::time::Duration;

use e2e::{Engine, Fixture, Watch, WatchResult, need_root};

const CHANGED: &str = "Tollgate internal: arguments changed under the call";

/// Asks for the access in each way that rules have.
const WRITTEN: &str = "\
- rule: Written
  desc: an open for writing
  condition: evt.type = openat2 and fd.name endswith /files/secret and evt.is_open_write = true
  output: opened %fd.name (flags=%evt.arg.flags)
  priority: WARNING
- rule: Named
  desc: the same by the names of flags
  condition: evt.type = openat2 and fd.name endswith /files/secret and evt.arg.flags contains O_WRONLY
  output: opened %fd.name (flags=%evt.arg.flags)
  priority: WARNING
";

/// Runs the program by one of its ways; `count`: opens for writing.
fn watched(engine: Engine, way: &str, count: u64, options: &[&str]) -> WatchResult {
    let fixture = Fixture::shared("how");
    let watch = Watch::new(["true"]).engine(engine);
    let program = watch.scratch().program(fixture.program(), "how");
    let folder = watch.scratch().path().join("files");
    fs::create_dir_all(&folder).expect("the scratch folder is writable");
    let file = folder.join("secret");
    fs::write(&file, "secret").expect("writable");
    let count = count.to_string();
    let command = [
        program.display().to_string(),
        way.to_owned(),
        file.display().to_string(),
        count,
    ];
    let watch = watch
        .command(command)
        .rules(WRITTEN)
        .limit(Duration::from_secs(120))
        .option("-o")
        .option("outputs_queue.capacity=100000");
    let watch = options
        .iter()
        .fold(watch, |watch, option| watch.option(*option));
    let watched = watch.run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    watched
}

/// What the program counted: opens that were not for writing, and those that were.
fn account(watched: &WatchResult) -> (u64, u64) {
    let mut lines = watched.printed.lines();
    let line = lines.find(|line| line.starts_with("one "));
    let line = line.unwrap_or_else(|| panic!("no account: {}", watched.story()));
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    (numbers[0], numbers[1])
}

fn count(watched: &WatchResult, name: &str) -> u64 {
    let stats = watched.stats.as_ref();
    let value = stats.and_then(|stats| stats["counters"][name].as_u64());
    value.unwrap_or_else(|| panic!("no {name} in the stats: {}", watched.story()))
}

/// Each open for writing matches both rules, and no other one does.
fn each_is_seen(engine: Engine, way: &str, swaps: u64, options: &[&str]) -> WatchResult {
    let watched = watched(engine, way, swaps, options);
    let (others, written) = account(&watched);
    assert_eq!(written, swaps, "{engine:?} {way}: {others} others");
    let matched = count(&watched, "matched");
    assert_eq!(matched, 2 * written, "{engine:?} {way}: {others} others");
    watched
}

/// The engines without privileges compare flags with those of the file, and report what differs.
fn is_reported(watched: &WatchResult) {
    assert!(count(watched, "arguments_changed") > 0, "there was no race");
    assert_eq!(count(watched, "verify_failed"), 0, "{}", watched.story());
    let alerts = watched.of(CHANGED);
    let alert = *alerts.first().expect("one is let through");
    let (read, done) = (alert.field("tollgate.read"), alert.field("tollgate.done"));
    assert!(
        read.starts_with("flags=") && done.starts_with("flags="),
        "{alert}"
    );
    assert_ne!(read.contains("O_PATH"), done.contains("O_PATH"), "{alert}");
}

#[test]
fn flags_that_a_thread_changes_all_the_time_are_those_of_the_file() {
    need_root!();
    for engine in [Engine::Notify, Engine::Ptrace] {
        // Whether calls that rules do not ask about are sampled or not: what their flags hide is none of these.
        for options in [&[][..], &["--verify", "always"]] {
            is_reported(&each_is_seen(engine, "flip", 1_000, options));
        }
    }
    each_is_seen(Engine::Ebpf, "flip", 1_000, &[]);
}

/// No chance is in this: the agent is held up between the flags and the rest of the structure.
#[test]
fn flags_that_change_between_the_agents_copy_and_the_kernels_are_those_of_the_file() {
    need_root!();
    let watched = each_is_seen(Engine::Notify, "before", 50, &[]);
    assert_eq!(account(&watched).0, 0, "the agent was not held up");
    assert_eq!(count(&watched, "arguments_changed"), 50);
    is_reported(&watched);
}

/// Nor in this: the kernel is held up between its copy and the return.
#[test]
fn flags_that_change_after_the_kernels_copy_are_those_of_the_file() {
    need_root!();
    let watched = each_is_seen(Engine::Ebpf, "after", 50, &[]);
    assert_eq!(account(&watched).0, 0, "the kernel was not held up");
}
