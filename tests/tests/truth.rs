//! What was read of a caller's memory is compared with what the kernel did: an honest caller is never
//! taken for a liar, whatever the shape of a name, and a liar is found.

use std::time::Duration;

use e2e::{Engine, Fixture, Watch, WatchResult, need_root, skip};

const CHANGED: &str = "Tollgate internal: arguments changed under the call";

/// Asks for opens of a name that nobody opens.
const RULE: &str = "\
- rule: Opened
  desc: a name that nobody opens
  condition: evt.type in (open, openat, openat2, creat) and fd.name = /nowhere
  output: opened %fd.name
  priority: INFO
";

/// Runs the program with every call verified; `%D` is a folder that it makes.
fn shapes(words: &[&str]) -> WatchResult {
    let fixture = Fixture::compile("shapes");
    let watch = Watch::new(["true"]).limit(Duration::from_secs(120));
    let program = watch.scratch().program(fixture.program(), "shapes");
    let words = words.iter().map(|word| (*word).to_owned());
    let command = [program.display().to_string()].into_iter().chain(words);
    let watched = watch
        .command(command)
        .rules(RULE)
        .option("--verify")
        .option("always")
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    watched
}

fn count(watched: &WatchResult, name: &str) -> u64 {
    let stats = watched.stats.as_ref();
    let value = stats.and_then(|stats| stats["counters"][name].as_u64());
    value.unwrap_or_else(|| panic!("no {name} in the stats: {}", watched.story()))
}

fn is_believed(kind: &str) {
    let watched = shapes(&[kind, "%W/made"]);
    let opens = watched.printed.trim().strip_prefix("opens ");
    let opens: u64 = opens.expect("it says so").parse().expect("a number");
    assert!(opens > 2000 && count(&watched, "verified") >= opens);
    let told = watched.of(CHANGED);
    let told: Vec<_> = told.iter().map(ToString::to_string).collect();
    assert!(told.is_empty(), "{told:#?}");
}

macro_rules! need_comparisons {
    () => {
        need_root!();
        if Engine::under_test() == Engine::Ebpf {
            skip!("sees what the kernel reads", || Ok(String::from("ebpf")));
        }
    };
}

#[test]
fn names_of_every_shape_are_believed() {
    need_comparisons!();
    is_believed("honest");
}

#[test]
fn names_of_every_shape_are_believed_in_another_root() {
    need_comparisons!();
    is_believed("rooted");
}

#[test]
fn names_below_mounts_that_are_attached_nowhere_are_believed() {
    need_comparisons!();
    is_believed("detached");
}

#[test]
fn which_of_two_links_is_opened_itself_is_found_out() {
    need_comparisons!();
    let watched = shapes(&["liar", "%W/made", "5000"]);
    assert!(
        count(&watched, "arguments_changed") > 0,
        "there was no race"
    );
    let told = watched.of(CHANGED);
    let alert = told.first().expect("one is let through");
    let (read, done) = (alert.field("tollgate.read"), alert.field("tollgate.done"));
    let last = |name: &str| name.rsplit('/').next().map(str::to_owned);
    assert!(read.ends_with("link") && done.ends_with("link"), "{alert}");
    assert_ne!(last(&read), last(&done), "{alert}");
}
